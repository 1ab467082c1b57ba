"""The blocking half of a reader: FLIP-27's `SplitReader` and the changes of its splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from raycdc.source.reader.records import RecordsWithSplitIds

ItemT_co = TypeVar("ItemT_co", covariant=True)
SplitT = TypeVar("SplitT", bound="FetchedSplit")
SplitT_co = TypeVar("SplitT_co", bound="FetchedSplit", covariant=True)
SplitT_contra = TypeVar("SplitT_contra", bound="FetchedSplit", contravariant=True)


class FetchedSplit(Protocol):
    """A split as a fetcher knows it: its name."""

    @property
    def split_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class SplitsAddition(Generic[SplitT_co]):
    """A change of a fetcher's splits: read these splits, too."""

    splits: tuple[SplitT_co, ...]


@dataclass(frozen=True, slots=True)
class SplitsRemoval:
    """A change of a fetcher's splits: stop reading these, and drop what was read ahead.

    Later fetches must not contain any of them.

    A split may be added again right after, perhaps from another position, and an old batch would then be taken for one
    of the new addition.
    """

    split_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplitsPause:
    """A change of a fetcher's splits: fetch nothing of `paused` until they are `resumed`, then go on at the same
    position.

    Only readers of many splits get this (`Multiplexed`), and only from a connector that pauses.
    """

    paused: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()


SplitsChange = SplitsAddition[SplitT] | SplitsRemoval | SplitsPause


class SplitReader(Protocol[SplitT_contra, ItemT_co]):
    """Blocking reads of splits. Its fetcher's thread opens it and calls everything; any thread may call `wake_up`."""

    def fetch(self) -> RecordsWithSplitIds[ItemT_co] | None:
        """Block until something arrived, or for a moment (None). Called only while there are splits.

        Raises whatever must end the fetcher.
        """

    def handle_splits_changes(self, change: SplitsChange[SplitT_contra]) -> None:
        """Apply a change of the splits. Called between two fetches."""

    def wake_up(self) -> None:
        """Make a blocked `fetch` return soon, or the next one if none is running."""

    def close(self) -> None: ...
