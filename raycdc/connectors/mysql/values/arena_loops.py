"""Compiled helpers of all loops over values: numbers of both byte orders, calendar, room in a text column.

The layout that loops write into is described in `columns.ArenaView`. None of these allocates. Inputs are trusted to lie
inside their buffers: bounds are the business of the walks (`binlog.walk_loops`, `resultset_walk_loops`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import inlined, load

#: The indices into `ArenaView.counters`.
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

#: The result of `date_days` for a zero, partial or impossible date.
NO_DATE = -(1 << 62)

_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)
#: The days before each month of a common year.
_DAYS_BEFORE = np.array([0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334], dtype=np.int64)
#: The days from 0000-01-01 to 1970-01-01 in the proleptic Gregorian calendar.
_EPOCH_DAYS = 719528


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
def date_days(year: Any, month: Any, day: Any) -> Any:
    """Return the days since 1970-01-01 in the proleptic Gregorian calendar, or `NO_DATE`. Years begin with 0."""
    if month < 1 or month > 12 or day < 1 or day > 31 or year < 0:
        return NO_DATE
    # Unsigned, because signed division by a constant takes twice the instructions.
    y = np.uint64(year)
    leap = (y & np.uint64(3)) == 0 and (y % np.uint64(100) != 0 or y % np.uint64(400) == 0)
    if day > 28 and day > _MONTH_DAYS[month] + (1 if leap and month == 2 else 0):
        return NO_DATE
    # The leap years before `year`, counting year 0 as one.
    leaps = ((y + np.uint64(3)) >> np.uint64(2)) - (y + np.uint64(99)) // np.uint64(100)
    leaps += (y + np.uint64(399)) // np.uint64(400)
    days = np.int64(y * np.uint64(365) + leaps) + _DAYS_BEFORE[month] + day - 1 - _EPOCH_DAYS
    return days + 1 if leap and month > 2 else days


@inlined
def multiply_add(high: Any, low: Any, factor: Any, addend: Any) -> Any:
    """Compute ``(high, low) * factor + addend`` in 128 bits; factor and addend are below 2**31."""
    mask = np.uint64(0xFFFFFFFF)
    by = np.uint64(factor)
    first = (low & mask) * by + np.uint64(addend)
    second = (low >> np.uint64(32)) * by + (first >> np.uint64(32))
    return np.uint64(high) * by + (second >> np.uint64(32)), (second << np.uint64(32)) | (first & mask)


@inlined
def store_decimal(i64: Any, at: Any, high: Any, low: Any, negative: Any) -> Any:
    """Store the 128-bit magnitude (high, low) with its sign, little end first."""
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
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


@inlined
def write_number(vdata: Any, out: Any, value: Any, digits: Any) -> Any:
    """Write the decimal digits of a number >= 0, with leading zeros up to `digits`. Returns the position after them."""
    width = 1
    rest = np.uint64(value) // np.uint64(10)
    while rest > np.uint64(0):
        rest //= np.uint64(10)
        width += 1
    width = max(width, digits)
    rest = np.uint64(value)
    for i in range(width - 1, -1, -1):
        vdata[out + i] = np.uint64(48) + rest % np.uint64(10)
        rest //= np.uint64(10)
    return out + width
