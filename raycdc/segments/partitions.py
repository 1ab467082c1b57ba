"""Hash partitions of a table's changes: all changes of a key in an epoch are in one partition, in order.

The partition of a row follows from its own key columns: before-images and deletions have the key that they remove,
inserts and after-images the key that they write. The images of an update that changes the key may therefore be in two
partitions. A truncation concerns every key and goes to every partition. The number of partitions is chosen for each
table and epoch, by the size of the table's previous epoch, so small epochs stay one segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from raycdc.model import RowKind, key_hashes
from raycdc.model.batch import lost_values, with_lost_values

#: From about this size on, a partition is worth a task of its own (`raycdc.sinks.task_plan.TASK_BYTES_MIN`).
PARTITION_BYTES = 16 << 20
PARTITIONS_MAX = 16


def partitions_for(volume_bytes: int, *, worth_bytes: int = 0, most: int = PARTITIONS_MAX) -> int:
    """Return the number of partitions for `volume_bytes`: a power of two, at most `most`.

    Each partition gets at least `worth_bytes` (0: `PARTITION_BYTES`).
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
    """Yield each partition's number and its rows in their order. A truncation is in all partitions."""
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
            lost = 0  # Only the sum is known, so the first part carries it.
