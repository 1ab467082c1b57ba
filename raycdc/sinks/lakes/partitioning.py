"""Divides the rows of a table among its partitions. Called in stage tasks and in the driver. Uses Arrow only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.model.arrays import python_value

#: The most bytes of rows that are collected in memory. If there are more, the rows of the largest partition are
#: written.
WAITING_BYTES_MAX = 128 << 20

#: The number of rows that are divided at a time, because each time has a cost per partition.
SHARED_OUT_ROWS = 1 << 17

Values = tuple[Any, ...]


def split(columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> list[tuple[Values, np.ndarray]]:
    """Return the distinct combinations of values of `columns` (null is a value), each with its row numbers in order."""
    if not columns:
        return [((), np.arange(rows))] if rows else []
    codes = np.zeros(rows, np.int64)
    for column in columns:
        encoded = (column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column).dictionary_encode(
            null_encoding="encode"
        )
        number = encoded.indices.to_numpy().astype(np.int64)
        # The codes are renumbered after each column, so that the product for many columns cannot overflow.
        _, codes = np.unique(codes * (int(number.max(initial=0)) + 1) + number, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order], prepend=-1)) if rows else np.zeros(0, np.int64)
    parts = np.split(order, bounds[1:]) if rows else []
    return [(tuple(python_value(column[int(part[0])]) for column in columns), part) for part in parts]


def gathered(
    batches: Iterable[pa.RecordBatch],
    keys: Callable[[pa.Table], Sequence[pa.Array | pa.ChunkedArray]],
    *,
    waiting_bytes_max: int = WAITING_BYTES_MAX,
) -> Iterator[tuple[Values, list[pa.RecordBatch]]]:
    """Yield the rows of `batches` as lists of batches. A list has rows of one partition and becomes one file; a large
    partition has several lists.

    `keys` returns the partition columns. The same batches always give the same lists. At most `waiting_bytes_max` and
    `SHARED_OUT_ROWS` rows are in memory.
    """
    waiting: dict[Values, list[pa.RecordBatch]] = {}
    sizes: dict[Values, int] = {}
    for table in _together(batches):
        for values, rows in split(keys(table), table.num_rows):
            part = table.take(pa.array(rows)).combine_chunks().to_batches()
            waiting.setdefault(values, []).extend(part)
            sizes[values] = sizes.get(values, 0) + sum(batch.nbytes for batch in part)
        while sum(sizes.values()) > waiting_bytes_max:
            largest = max(sizes, key=lambda values: sizes[values])
            del sizes[largest]
            yield largest, waiting.pop(largest)
    yield from waiting.items()


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(one.num_rows for one in group) >= SHARED_OUT_ROWS or sum(one.nbytes for one in group) >= 32 << 20:
            yield pa.Table.from_batches(group)
            group = []
    if group:
        yield pa.Table.from_batches(group)
