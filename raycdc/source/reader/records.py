"""The fetches that fetchers pass to a reader, and the emitter that puts them into the epoch.

The unit is a batch, never a row: an Arrow batch, a unit of a log, the messages of one fetch.
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

    `bytes` is its size, which limits how much is fetched ahead. `rows` is counted if the source has a rate limit; None:
    unknown.
    """

    records: tuple[SplitRecords[ItemT_co], ...] = ()
    finished_splits: tuple[str, ...] = ()
    bytes: int = 0
    rows: int | None = None

    def for_additions(self, additions: Mapping[str, int]) -> RecordsWithSplitIds[ItemT_co]:
        """Return the same fetch with the number of each split's addition in its batches.

        Batches of other splits are left out.
        """
        records = (part for part in self.records if part.split_id in additions)
        return replace(self, records=tuple(replace(part, addition=additions[part.split_id]) for part in records))


class RecordEmitter(Protocol[ItemT_contra, StateT_contra]):
    """Puts a batch of a split into the open epoch and advances the split's state to its end, in one step.

    The emitter may decode, filter or rename columns between input and output (`ReaderOutput.collect`). The reader's
    thread calls it; it must not block. An error ends the reader, whose successor continues from the sealed state. If
    batches say at which position they begin, and positions have no gaps, the emitter calls `check_begin` first.
    """

    def emit_record(self, batch: ItemT_contra, output: ReaderOutput, state: StateT_contra) -> None: ...


def check_begin(split_id: str, *, begin: int, position: int) -> None:
    """Raise `OutOfOrderError` unless the batch begins where the split's earlier rows end."""
    if begin != position:
        raise OutOfOrderError(
            f"A batch of {split_id} begins at {begin}, but the rows before it end at {position}. The batch was not "
            "emitted. This is a bug of the source's reader: something of the split was left out, or was read twice."
        )
