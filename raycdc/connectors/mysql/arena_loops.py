"""Compiled helpers that write values into column arenas; shared by the binlog loop and the result-set loop.

The layout they write into is described in `columns.ArenaView`. None of them allocates. Those that write text return
False when it does not fit, after noting slot and need in ``counters``; the caller then rolls its row back.
Inputs are trusted to lie inside their buffers: bounds are the caller's business.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.compiled import copy, helper, load

#: Indices into `ArenaView.counters`.
COUNT_ZERO_DATES = 0
COUNT_REPLACED = 1
FULL_SLOT = 2
FULL_NEED = 3

#: Returned by `date_days` for a zero, partial or impossible date.
NO_DATE = -(1 << 62)

_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)


@helper
def little_endian(data: Any, at: Any, width: Any) -> Any:
    """Unsigned integer of 1–8 bytes, as int64 bits."""
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


@helper
def little_endian_signed(data: Any, at: Any, width: Any) -> Any:
    """Two's complement integer of 1-8 bytes."""
    shift = 64 - 8 * width
    return (little_endian(data, at, width) << shift) >> shift


@helper
def big_endian(data: Any, at: Any, width: Any) -> Any:
    """Unsigned integer of 0-7 bytes, most significant first."""
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


@helper
def date_days(year: Any, month: Any, day: Any) -> Any:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, or `NO_DATE`.

    Method: H. Hinnant, "chrono-compatible low-level date algorithms", days_from_civil.
    """
    if month < 1 or month > 12 or day < 1 or day > 31:
        return NO_DATE
    if day > 28:
        limit = _MONTH_DAYS[month]
        if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
            limit = 29
        if day > limit:
            return NO_DATE
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@helper
def multiply_add(high: Any, low: Any, factor: Any, addend: Any) -> Any:
    """``(high, low) * factor + addend`` in 128 bits; factor and addend are below 2**31."""
    mask = np.uint64(0xFFFFFFFF)
    by = np.uint64(factor)
    first = (low & mask) * by + np.uint64(addend)
    second = (low >> np.uint64(32)) * by + (first >> np.uint64(32))
    return np.uint64(high) * by + (second >> np.uint64(32)), (second << np.uint64(32)) | (first & mask)


@helper
def store_decimal(i64: Any, at: Any, high: Any, low: Any, negative: Any) -> Any:
    """Store the 128-bit magnitude (high, low) with its sign, little end first."""
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
    i64[at] = np.int64(low)
    i64[at + 1] = np.int64(high)


@helper
def has_room(start: Any, need: Any, slot: Any, vcap: Any, counters: Any) -> Any:
    """Whether a text that starts at `start` may take `need` bytes; notes slot and need when not."""
    if start + need > vcap[slot]:
        counters[FULL_SLOT] = slot
        counters[FULL_NEED] = start + need
        return False
    return True


@helper
def put_bytes(
    source: Any, at: Any, length: Any, pad_to: Any, slot: Any, row: Any, voff: Any, vdata: Any, vbase: Any, vcap: Any,
    counters: Any,
) -> Any:  # fmt: skip
    """Copy bytes; shorter values are padded with zero bytes to `pad_to`."""
    start = np.int64(voff[slot, row])
    total = length if length > pad_to else pad_to
    if not has_room(start, total, slot, vcap, counters):
        return False
    base = vbase[slot] + start
    copy(source, at, vdata, base, length)
    for i in range(length, total):
        vdata[base + i] = 0
    voff[slot, row + 1] = start + total
    return True


@helper
def put_single_byte_text(
    source: Any, at: Any, length: Any, points: Any, page: Any, slot: Any, row: Any, voff: Any, vdata: Any, vbase: Any,
    vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write text of a single-byte character set as UTF-8; `points` holds 256 code points in each row (`page`)."""
    start = np.int64(voff[slot, row])
    if not has_room(start, 3 * length, slot, vcap, counters):
        return False
    base = vbase[slot] + start
    out = base
    for i in range(length):
        point = points[page, source[at + i]]
        if point < 0x80:
            vdata[out] = point
            out += 1
        elif point < 0x800:
            vdata[out] = 0xC0 | (point >> 6)
            vdata[out + 1] = 0x80 | (point & 0x3F)
            out += 2
        else:
            if point == 0xFFFD:
                counters[COUNT_REPLACED] += 1
            vdata[out] = 0xE0 | (point >> 12)
            vdata[out + 1] = 0x80 | ((point >> 6) & 0x3F)
            vdata[out + 2] = 0x80 | (point & 0x3F)
            out += 3
    voff[slot, row + 1] = start + out - base
    return True


@helper
def put_label(
    label: Any, loff: Any, ldata: Any, slot: Any, row: Any, voff: Any, vdata: Any, vbase: Any, vcap: Any, counters: Any
) -> Any:
    """Copy label number `label` of the arena's label table."""
    return put_bytes(
        ldata, loff[label], loff[label + 1] - loff[label], 0, slot, row, voff, vdata, vbase, vcap, counters
    )


@helper
def put_labels(
    bits: Any, first: Any, count: Any, loff: Any, ldata: Any, slot: Any, row: Any, voff: Any, vdata: Any, vbase: Any,
    vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write a SET: the labels of the bits that are set, in definition order, joined by commas."""
    start = np.int64(voff[slot, row])
    need = np.int64(0)
    for i in range(count):
        if (bits >> i) & 1:
            need += loff[first + i + 1] - loff[first + i] + 1
    if not has_room(start, need, slot, vcap, counters):
        return False
    base = vbase[slot] + start
    out = base
    for i in range(count):
        if (bits >> i) & 1:
            if out > base:
                vdata[out] = 44
                out += 1
            for j in range(loff[first + i], loff[first + i + 1]):
                vdata[out] = ldata[j]
                out += 1
    voff[slot, row + 1] = start + out - base
    return True


@helper
def write_number(vdata: Any, out: Any, value: Any, digits: Any) -> Any:
    """Decimal digits with leading zeros up to `digits`; returns the position after them."""
    width = digits
    rest = value
    limit = 1
    for _ in range(digits):
        limit *= 10
    while rest >= limit:
        limit *= 10
        width += 1
    for i in range(width - 1, -1, -1):
        vdata[out + i] = 48 + rest % 10
        rest //= 10
    return out + width


@helper
def put_time(
    negative: Any, hours: Any, minutes: Any, seconds: Any, micros: Any, fsp: Any, slot: Any, row: Any, voff: Any,
    vdata: Any, vbase: Any, vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write a TIME as the server prints it: sign, at least two digits of hours, and `fsp` fractional digits."""
    start = np.int64(voff[slot, row])
    if not has_room(start, 20, slot, vcap, counters):
        return False
    base = vbase[slot] + start
    out = base
    if negative:
        vdata[out] = 45
        out += 1
    out = write_number(vdata, out, hours, 2)
    vdata[out] = 58
    out = write_number(vdata, out + 1, minutes, 2)
    vdata[out] = 58
    out = write_number(vdata, out + 1, seconds, 2)
    if fsp > 0:
        vdata[out] = 46
        part = micros
        for _ in range(6 - fsp):
            part //= 10
        out = write_number(vdata, out + 1, part, fsp)
    voff[slot, row + 1] = start + out - base
    return True
