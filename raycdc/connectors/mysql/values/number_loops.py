"""Compiled loops that write one column of numbers, from the log or a result set, into its Arrow buffer (in the arena).

The caller has found each value of a block of rows: ``at[i]`` is the index of its first byte, or below 0 for NULL, which
the caller has already marked. Row ``i`` of the block is row ``first + i`` of the arena. NULL is written as 0, so that
equal batches have equal bytes.

Packed DECIMALs (``decimal2bin`` of strings/decimal.c) are converted to int64, to 128 bits or to text. Nine digits take
four bytes, most significant first; the remaining digits at either end take fewer. The first bit is inverted, so that
bytes sort like numbers; all bytes of a negative number are inverted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import (
    COLUMN_BOOLEAN,
    COLUMN_DONE,
    COLUMN_VALUE,
    FAILED_ROW,
    big_endian,
    little_endian,
    store_decimal,
)
from raycdc.core.compiled import helper, inlined, load
from raycdc.core.loops.number_loops import digits_text, multiply_add

DIGIT_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
_POWERS = np.array([10**i for i in range(19)], dtype=np.int64)


@inlined
def decimal_bytes(precision: Any, scale: Any) -> Any:
    """Return the number of bytes of a packed DECIMAL."""
    whole = precision - scale
    return (whole // 9) * 4 + DIGIT_BYTES[whole % 9] + (scale // 9) * 4 + DIGIT_BYTES[scale % 9]


@inlined
def _group(data: Any, at: Any, width: Any, mask: Any, flip: Any) -> Any:
    """Return one group of up to nine digits; `mask` is 0xFF for negative numbers; `flip` removes the sign bit."""
    value = big_endian(data, at, width)
    if mask != 0:
        value ^= (np.int64(1) << (8 * width)) - 1
    if flip and width > 0:
        value ^= np.int64(0x80) << (8 * (width - 1))
    return value


@inlined
def short_decimal(data: Any, at: Any, precision: Any, scale: Any) -> Any:
    """Return a packed DECIMAL of at most 18 digits, unscaled."""
    whole = precision - scale
    negative = (data[at] & 0x80) == 0
    mask = 0xFF if negative else 0
    flip = True
    value = np.int64(0)
    width = DIGIT_BYTES[whole % 9]
    if width > 0:
        value = _group(data, at, width, mask, True)
        at += width
        flip = False
    for _ in range(whole // 9):
        value = value * 1000000000 + _group(data, at, 4, mask, flip)
        at += 4
        flip = False
    for _ in range(scale // 9):
        value = value * 1000000000 + _group(data, at, 4, mask, flip)
        at += 4
        flip = False
    width = DIGIT_BYTES[scale % 9]
    if width > 0:
        value = value * _POWERS[scale % 9] + _group(data, at, width, mask, flip)
    return -value if negative else value


@helper
def long_decimal(data: Any, at: Any, precision: Any, scale: Any, i64: Any, out: Any) -> Any:
    """Return a packed DECIMAL of up to 38 digits as two int64."""
    whole = precision - scale
    negative = (data[at] & 0x80) == 0
    mask = 0xFF if negative else 0
    flip = True
    high = np.uint64(0)
    low = np.uint64(0)
    width = DIGIT_BYTES[whole % 9]
    if width > 0:
        low = np.uint64(_group(data, at, width, mask, True))
        at += width
        flip = False
    for _ in range(whole // 9 + scale // 9):
        high, low = multiply_add(high, low, 1000000000, _group(data, at, 4, mask, flip))
        at += 4
        flip = False
    width = DIGIT_BYTES[scale % 9]
    if width > 0:
        high, low = multiply_add(high, low, _POWERS[scale % 9], _group(data, at, width, mask, flip))
    store_decimal(i64, out, high, low, negative)


@inlined
def printed_decimal(data: Any, at: Any, length: Any) -> Any:
    """Return (high, low, negative) of a printed DECIMAL, unscaled.

    The point is skipped, because all decimal places are printed.
    """
    high = np.uint64(0)
    low = np.uint64(0)
    negative = False
    for i in range(at, at + length):
        byte = np.int64(data[i])
        if byte >= 48:
            high, low = multiply_add(high, low, 10, byte - 48)
        elif byte == 45:
            negative = True
    return high, low, negative


@helper
def decimal_text(data: Any, at: Any, precision: Any, scale: Any, out: Any, to: Any) -> Any:
    """Write a packed DECIMAL as the server prints it into ``out[to:]`` (room for precision + 4). Returns the end."""
    whole = precision - scale
    negative = (data[at] & 0x80) == 0
    mask = 0xFF if negative else 0
    flip = True
    start = to + 1 if negative else to
    end = start
    width = DIGIT_BYTES[whole % 9]
    if width > 0:
        end = digits_text(_group(data, at, width, mask, True), whole % 9, out, end)
        at += width
        flip = False
    for _ in range(whole // 9):
        end = digits_text(_group(data, at, 4, mask, flip), 9, out, end)
        at += 4
        flip = False
    zeros = 0
    while start + zeros < end - 1 and out[start + zeros] == 48:
        zeros += 1
    if zeros > 0:
        for i in range(start, end - zeros):
            out[i] = out[i + zeros]
        end -= zeros
    if end == start:
        out[end] = 48
        end += 1
    if scale > 0:
        out[end] = 46
        end += 1
        for _ in range(scale // 9):
            end = digits_text(_group(data, at, 4, mask, flip), 9, out, end)
            at += 4
            flip = False
        width = DIGIT_BYTES[scale % 9]
        if width > 0:
            end = digits_text(_group(data, at, width, mask, flip), scale % 9, out, end)
    if negative:
        out[to] = 45
    return end


@helper
def put_words(data: Any, at: Any, count: Any, i64: Any, start: Any) -> None:
    """Write eight bytes unchanged: BIGINT, DOUBLE."""
    for i in range(count):
        i64[start + i] = load(data, at[i], 64) if at[i] >= 0 else np.int64(0)


@helper
def put_halves(data: Any, at: Any, count: Any, i32: Any, start: Any) -> None:
    """Write four bytes unchanged: INT, FLOAT."""
    for i in range(count):
        i32[start + i] = np.int32(load(data, at[i], 32)) if at[i] >= 0 else np.int32(0)


@helper
def put_small(data: Any, at: Any, count: Any, width: Any, signed: Any, out_width: Any, arena: Any, start: Any) -> None:
    """Write integers of 1 to 4 bytes as the same or a wider Arrow type (`out_width` bytes)."""
    i8, i16, i32, i64 = arena.i8, arena.i16, arena.i32, arena.i64
    for i in range(count):
        value = np.int64(0)
        if at[i] >= 0:
            if width == 1:
                value = np.int64(data[at[i]])
            elif width == 2:
                value = load(data, at[i], 16)
            elif width == 4:
                value = load(data, at[i], 32)
            else:
                value = little_endian(data, at[i], width)
            if signed:
                value = (value << (64 - 8 * width)) >> (64 - 8 * width)
        if out_width == 1:
            i8[start + i] = np.int8(value)
        elif out_width == 2:
            i16[start + i] = np.int16(value)
        elif out_width == 4:
            i32[start + i] = np.int32(value)
        else:
            i64[start + i] = value


@helper
def put_wide_unsigned(data: Any, at: Any, count: Any, i64: Any, base: Any, first: Any) -> None:
    """Write BIGINT UNSIGNED as decimal128(20, 0)."""
    for i in range(count):
        out = base + 2 * (first + i)
        i64[out] = load(data, at[i], 64) if at[i] >= 0 else np.int64(0)
        i64[out + 1] = 0


@helper
def put_years(data: Any, at: Any, count: Any, short: Any, i16: Any, start: Any) -> None:
    """Write YEAR of a row event, a byte with the years since 1900 (0: the year 0). YEAR(2) has two digits."""
    for i in range(count):
        year = np.int64(0)
        if at[i] >= 0 and data[at[i]] != 0:
            year = 1900 + np.int64(data[at[i]])
        if short == 1:
            year %= 100
        i16[start + i] = np.int16(year)


@helper
def put_booleans(data: Any, at: Any, count: Any, i8: Any, start: Any, counters: Any) -> Any:
    """Write TINYINT(1) as 0 or 1; another value is refused rather than changed."""
    for i in range(count):
        value = np.int64(0)
        if at[i] >= 0:
            value = np.int64(data[at[i]])
            if value > 1:
                counters[FAILED_ROW] = i
                return COLUMN_BOOLEAN
        i8[start + i] = np.int8(value)
    return COLUMN_DONE


@helper
def put_bits(data: Any, at: Any, size: Any, count: Any, width: Any, i64: Any, base: Any, first: Any) -> Any:
    """Write BIT(1..63), most significant byte first. A value has `width` bytes, or `size[i]` if `width` is 0."""
    for i in range(count):
        value = np.int64(0)
        if at[i] >= 0:
            bytes_ = width if width > 0 else np.int64(size[i])
            if bytes_ > 8:
                return COLUMN_VALUE
            value = big_endian(data, at[i], bytes_)
        i64[base + first + i] = value
    return COLUMN_DONE


@helper
def put_wide_bits(data: Any, at: Any, size: Any, count: Any, width: Any, i64: Any, base: Any, first: Any) -> Any:
    """Write BIT(64) as decimal128(20, 0)."""
    for i in range(count):
        out = base + 2 * (first + i)
        value = np.int64(0)
        if at[i] >= 0:
            bytes_ = width if width > 0 else np.int64(size[i])
            if bytes_ > 8:
                return COLUMN_VALUE
            value = big_endian(data, at[i], bytes_)
        i64[out] = value
        i64[out + 1] = 0
    return COLUMN_DONE


@helper
def put_packed_decimals(
    data: Any, at: Any, count: Any, precision: Any, scale: Any, i64: Any, base: Any, first: Any
) -> None:
    """Write DECIMALs of up to 38 digits of a row event as decimal128."""
    for i in range(count):
        out = base + 2 * (first + i)
        if at[i] < 0:
            i64[out] = 0
            i64[out + 1] = 0
        elif precision <= 18:
            value = short_decimal(data, at[i], precision, scale)
            i64[out] = value
            i64[out + 1] = value >> 63
        else:
            long_decimal(data, at[i], precision, scale, i64, out)


@helper
def put_printed_decimals(
    data: Any, at: Any, size: Any, count: Any, precision: Any, i64: Any, base: Any, first: Any
) -> None:
    """Write DECIMALs of a result set, which are text with all their decimal places, as decimal128."""
    for i in range(count):
        out = base + 2 * (first + i)
        if at[i] < 0:
            i64[out] = 0
            i64[out + 1] = 0
        elif precision <= 18:
            value = np.int64(0)
            negative = False
            for j in range(at[i], at[i] + size[i]):
                byte = np.int64(data[j])
                if byte >= 48:
                    value = value * 10 + (byte - 48)
                elif byte == 45:
                    negative = True
            if negative:
                value = -value
            i64[out] = value
            i64[out + 1] = value >> 63
        else:
            high, low, negative = printed_decimal(data, at[i], size[i])
            store_decimal(i64, out, high, low, negative)
