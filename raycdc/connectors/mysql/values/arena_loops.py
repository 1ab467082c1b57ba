"""Compiled helpers of all loops over values: numbers of both byte orders, decimals, room in a text column.

Loops write into Arrow column buffers (the arena), whose layout is described in `columns`. No function here allocates
memory. Callers have checked that input values lie inside their buffers (`binlog.walk_loops`,
`snapshot.resultset_loops`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import inlined, load
from raycdc.core.loops.number_loops import negate

#: The indices into `MySqlArenaView.counters`.
FULL_SLOT = 0
FULL_NEED = 1
FAILED_ROW = 2
FAILED_COLUMN = 3
COUNTERS = 4

#: The results of a column's loop.
COLUMN_DONE = 0
COLUMN_FULL = 1  # the text column is full; FULL_SLOT and FULL_NEED have the column and the missing room
COLUMN_LABEL = 2  # an ENUM index or SET bit without a label
COLUMN_JSON = 3  # damaged JSON
COLUMN_DATE = 4  # a date no calendar has, where the policy is to fail
COLUMN_BOOLEAN = 5  # a TINYINT(1) that is neither 0 nor 1, where it is read as a boolean
COLUMN_VALUE = 6  # a value whose length its type does not have
COLUMN_KEY = 7  # a key without a distinct text in Unicode


@inlined
def little_endian(data: Any, at: Any, width: Any) -> Any:
    """Return an unsigned integer of 1–8 bytes, as int64 bits."""
    if width == 8:
        return load(data, at, 64)
    if width == 4:
        return load(data, at, 32)
    if width == 2:
        return load(data, at, 16)
    value = np.uint64(0)
    for i in range(width):
        value |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return np.int64(value)


@inlined
def little_endian_signed(data: Any, at: Any, width: Any) -> Any:
    """Return a two's complement integer of 1–8 bytes."""
    shift = 64 - 8 * width
    return (little_endian(data, at, width) << shift) >> shift


@inlined
def big_endian(data: Any, at: Any, width: Any) -> Any:
    """Return an unsigned integer of 0–7 bytes, most significant first."""
    if width >= 4:
        word = load(data, at, 32)
        value = ((word & 0xFF) << 24) | ((word & 0xFF00) << 8) | ((word >> 8) & 0xFF00) | (word >> 24)
        for i in range(4, width):
            value = (value << 8) | np.int64(data[at + i])
        return value
    value = np.int64(0)
    for i in range(width):
        value = (value << 8) | np.int64(data[at + i])
    return value


@inlined
def store_decimal(i64: Any, at: Any, high: Any, low: Any, negative: Any) -> Any:
    """Store the 128-bit magnitude (high, low) with its sign, little end first."""
    if negative:
        high, low = negate(high, low)
    i64[at] = np.int64(low)
    i64[at + 1] = np.int64(high)


@inlined
def has_room(start: Any, need: Any, slot: Any, vcap: Any, counters: Any) -> Any:
    """Return True if text of `need` bytes fits at `start`; otherwise note slot and need."""
    if start + need > vcap[slot]:
        counters[FULL_SLOT] = slot
        counters[FULL_NEED] = start + need
        return False
    return True


@inlined
def put_null(row: Any, column: Any, valid: Any, has_null: Any) -> Any:
    """Mark one value as null; the caller has written the value 0 or an empty text."""
    valid[column, row] = 0
    has_null[column] = 1
