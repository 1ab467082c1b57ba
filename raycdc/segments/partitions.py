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

from raycdc.model import RowKind, key_hashes
from raycdc.model.batch import lost_values, with_lost_values

#: A partition is worth its own task from about this size on (`raycdc.sinks.task_plan.TASK_BYTES_MIN`).
PARTITION_BYTES = 16 << 20
PARTITIONS_MAX = 16


def partitions_for(volume_bytes: int, *, worth_bytes: int = 0, most: int = PARTITIONS_MAX) -> int:
    """Return the number of partitions for this many bytes, each worth `worth_bytes` (0: `PARTITION_BYTES`).

    It is a power of two, at most `most`.
    """
    wanted = max(1, min(most, volume_bytes // (worth_bytes or PARTITION_BYTES)))
    return 1 << (wanted.bit_length() - 1)


def partition_numbers(batch: pa.RecordBatch, key: Sequence[str], count: int) -> np.ndarray:
    """Return for each row the partition of its key, uint8 below `count` (at most 256).

    Equal keys have equal numbers.
    """
    numbers: np.ndarray = (key_hashes(batch, key) % np.uint64(count)).astype(np.uint8)
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
