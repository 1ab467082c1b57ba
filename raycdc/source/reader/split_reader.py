"""The blocking part of a reader: FLIP-27's `SplitReader`, the changes of its splits, and its fetches. `RecordEmitter`
puts the fetches into the epoch. Nothing here handles single rows, but only batches: an Arrow batch, a unit of a log, or
the messages of one fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from raycdc.errors import OutOfOrderError
from raycdc.source.protocol.api import ReaderOutput

ItemT_co = TypeVar("ItemT_co", covariant=True)
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)
StateT_contra = TypeVar("StateT_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class SplitRecords(Generic[ItemT_co]):
    """A batch of one split. `addition` is the number of the split's addition for which it was fetched.

    A `SplitReader` leaves `addition` unset: the fetcher sets it.
    """

    split_id: str
    batch: ItemT_co
    addition: int = 0


@dataclass(frozen=True, slots=True)
class RecordsWithSplitIds(Generic[ItemT_co]):
    """One fetch: batches by split in reading order, and the splits that ended with it.

    `bytes` is its size, by which the amount that is fetched ahead is limited. `rows` is the number of rows for a source
    with a rate limit; None if unknown.
    """

    records: tuple[SplitRecords[ItemT_co], ...] = ()
    finished_splits: tuple[str, ...] = ()
    bytes: int = 0
    rows: int | None = None

    def for_additions(self, additions: Mapping[str, int]) -> RecordsWithSplitIds[ItemT_co]:
        """Return the fetch with the number of its split's addition in each batch. Batches of splits without such a
        number are left out.
        """
        records = (part for part in self.records if part.split_id in additions)
        return replace(self, records=tuple(replace(part, addition=additions[part.split_id]) for part in records))


class RecordEmitter(Protocol[ItemT_contra, StateT_contra]):
    """Puts a batch of a split into the open epoch and advances the split's state to its end, in one step.

    The emitter may decode, filter or rename columns between input and output (`ReaderOutput.collect`). The reader's
    thread calls it; it must not block. An error ends the reader; its next incarnation continues from the sealed state.
    If batches say at which position they begin, and positions have no gaps, the emitter calls `check_begin` first.
    """

    def emit_record(self, batch: ItemT_contra, output: ReaderOutput, state: StateT_contra) -> None: ...


def check_begin(split_id: str, *, begin: int, position: int) -> None:
    """Raise `OutOfOrderError` unless the batch begins where the split's earlier rows end."""
    if begin != position:
        raise OutOfOrderError(
            f"A batch of {split_id} begins at {begin}, but the rows before it end at {position}. The batch was not "
            "emitted. This is a bug of the source's reader: something of the split was left out, or was read twice."
        )


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
    """A change of a fetcher's splits: stop reading these splits, and drop their batches that were read ahead. Later
    fetches must not contain any of these splits. A removed split may be added again right afterwards, from another
    position, and an old batch would then be taken for a batch of the new addition.
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
