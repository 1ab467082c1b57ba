"""Rows of a log with their positions, and the operations of the hand-off on them.

Pure. `HeldRows` has the held rows of an open chunk: the newest in memory, older ones in the spool. Their number cannot
be known in advance, because it depends on the speed of the server and on users' writes, so memory is limited. If the
held rows of all chunks together exceed the limit (`HandOff`), those of the chunk with the most bytes are written to
disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import ProtocolError
from raycdc.model import RowKind, TableId, part_of
from raycdc.source.snapshot.key_intervals import ChunkKey


@dataclass(frozen=True, slots=True)
class LogRows:
    """Rows of one table in log order; `ordinals` (int64, ascending) are their positions in the log's total order."""

    table: TableId
    batch: pa.RecordBatch
    ordinals: np.ndarray


def removes(rows: LogRows) -> bool:
    """Return True if one of the rows leaves its chunk, or deletes its key. An update that moves a row to another chunk
    is already split into a delete and an insert here.
    """
    return bool((rows.batch.column("_op").to_numpy(zero_copy_only=False) == RowKind.DELETE).any())


def key_values(batch: pa.RecordBatch, key: ChunkKey) -> pa.Array:
    """Return the column of a chunk key, or a struct of its columns if it has several."""
    if isinstance(key, str):
        return batch.column(key)
    return pa.StructArray.from_arrays([batch.column(name) for name in key], names=list(key))


def take(rows: LogRows, mask: np.ndarray) -> LogRows | None:
    """Return the rows that `mask` selects; None if there are none."""
    if not mask.any():
        return None
    if mask.all():
        return rows
    return LogRows(rows.table, part_of(rows.batch, pa.array(mask)), rows.ordinals[mask])


def up_to(held: Iterable[LogRows], high: int) -> Iterator[LogRows]:
    """Yield the held rows at or before `high`."""
    return (part for rows in held if (part := take(rows, rows.ordinals <= high)) is not None)


def behind(held: Iterable[LogRows], high: int) -> Iterator[LogRows]:
    """Yield the held rows after `high`."""
    return (part for rows in held if (part := take(rows, rows.ordinals > high)) is not None)


def split_moves(batch: pa.RecordBatch, codes: np.ndarray, key: Sequence[str]) -> pa.RecordBatch:
    """Rewrite each update that changes `key`, or whose images are judged differently, as a delete and an insert."""
    op_index = batch.schema.get_field_index("_op")
    ops = batch.column(op_index).to_numpy(zero_copy_only=False)
    before = np.flatnonzero(ops == RowKind.UPDATE_BEFORE)
    if before.size and before[-1] + 1 >= ops.size:
        raise ProtocolError("An update's before-image is the last row of a batch; its after-image must follow it")
    moves = codes[before] != codes[before + 1]
    for name in key if before.size else ():
        column = batch.column(name)
        same = pc.equal(column.take(pa.array(before)), column.take(pa.array(before + 1)))
        moves |= ~same.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    moved = before[moves]
    if not moved.size:
        return batch
    ops = ops.copy()
    ops[moved] = RowKind.DELETE
    ops[moved + 1] = RowKind.INSERT
    return batch.set_column(op_index, batch.schema.field(op_index), pa.array(ops, pa.int8()))


class SpilledRows(Protocol):
    """Rows on disk. They can be read several times in their order, batch by batch."""

    def __iter__(self) -> Iterator[LogRows]: ...

    def delete(self) -> None:
        """Delete the rows, which are not needed any more. Harmless when repeated."""


#: Writes rows to disk.
Spill = Callable[[Sequence[LogRows]], SpilledRows]


class HeldRows:
    """The held rows of a chunk in log order: first the rows that were recalled when the chunk was opened, then rows on
    disk, then the newest rows.
    """

    def __init__(self) -> None:
        self.recalled: list[LogRows] = []
        self.spilled: list[SpilledRows] = []
        self.newest: list[LogRows] = []
        #: The size of the rows in memory.
        self.bytes = 0

    def __repr__(self) -> str:
        return f"HeldRows({self.bytes} bytes in memory, {len(self.spilled)} times put down)"

    def __iter__(self) -> Iterator[LogRows]:
        return itertools.chain(self.recalled, itertools.chain.from_iterable(self.spilled), self.newest)

    def recall(self, rows: LogRows) -> None:
        """Add rows that were dropped before the chunk was opened. Called before any other row is held."""
        self.recalled.append(rows)
        self.bytes += rows.batch.nbytes

    def hold(self, rows: LogRows) -> None:
        self.newest.append(rows)
        self.bytes += rows.batch.nbytes

    @property
    def can_spill(self) -> bool:
        return bool(self.newest)

    def spill(self, put_down: Spill) -> None:
        """Write the newest rows to disk.

        Recalled rows stay in memory. That costs little, because the dropped rows that are remembered (`DroppedRows`)
        are the same rows in memory.
        """
        self.spilled.append(put_down(self.newest))
        self.bytes -= sum(rows.batch.nbytes for rows in self.newest)
        self.newest = []

    def clear(self) -> None:
        for rows in self.spilled:
            rows.delete()
        self.recalled, self.spilled, self.newest, self.bytes = [], [], [], 0
