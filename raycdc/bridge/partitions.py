"""Hash partitions of a table's changes: all changes of a key in an epoch are in one partition, in order.

A row belongs to the partition of its own key columns: before-images and deletions by the key they remove, inserts and
after-images by the key they write, so an update that moves a row to another key is two rows of two partitions. A
truncation concerns every key and goes to every partition. Partitions hold for one (table, epoch): how many there are
follows from how much there was in the epoch before, so small epochs stay one segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.bridge import partition_loops as loops
from raycdc.model import RowKind
from raycdc.model.batch import lost_values, with_lost_values

#: A partition is worth a task of its own from about this size on (`raycdc.sinks.plan.TASK_BYTES_MIN`).
PARTITION_BYTES = 16 << 20
PARTITIONS_MAX = 16

_NO_NULLS = np.zeros(0, np.uint8)


def partitions_for(volume_bytes: int, *, most: int = PARTITIONS_MAX) -> int:
    """How many partitions so many bytes of an epoch are worth: a power of two, at most `most`."""
    wanted = max(1, min(most, volume_bytes // PARTITION_BYTES))
    return 1 << (wanted.bit_length() - 1)


def partition_numbers(batch: pa.RecordBatch, key: Sequence[str], count: int) -> np.ndarray:
    """For each row the partition of its key, uint8 below `count` (at most 256). Equal keys have equal numbers."""
    hashes = np.empty(batch.num_rows, np.uint64)
    loops.begin(hashes)
    for name in key:
        _mix(hashes, batch.column(name))
    numbers = np.empty(batch.num_rows, np.uint8)
    loops.finish(hashes, count, numbers)
    return numbers


def split_by_key(batch: pa.RecordBatch, key: Sequence[str], count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition in their order, with the partition's number; a truncation is in all of them."""
    if count == 1 or not key or not batch.num_rows:
        yield 0, batch
        return
    numbers = partition_numbers(batch, key, count)
    everywhere = batch.column("_op").to_numpy(zero_copy_only=False) == RowKind.TRUNCATE
    lost = lost_values(batch)
    for number in range(count):
        rows = np.flatnonzero((numbers == number) | everywhere)
        if rows.size:
            yield number, with_lost_values(batch.take(pa.array(rows)), lost)
            lost = 0  # The sums count; whose they are is not known per row.


def _mix(hashes: np.ndarray, column: pa.Array) -> None:
    valid = _NO_NULLS if not column.null_count else column.is_valid().cast(pa.uint8()).to_numpy()
    kind = column.type
    if pa.types.is_boolean(kind):
        column, kind = column.cast(pa.int8()), pa.int8()
    if pa.types.is_floating(kind):
        column = pc.add(column, pa.scalar(0.0, kind))  # -0.0 and 0.0 are one key.
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        column, kind = column.cast(pa.large_binary()), pa.large_binary()
    if pa.types.is_large_binary(kind):
        _, ends, data = column.buffers()
        first = column.offset
        ends = np.frombuffer(ends, np.int64, count=len(column) + 1, offset=8 * first)
        loops.mix_bytes(hashes, _bytes(data), ends, valid)
        return
    loops.mix_fixed(hashes, _bytes(column.buffers()[1]), column.offset, kind.byte_width, valid)


def _bytes(data: pa.Buffer | None) -> np.ndarray:
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
