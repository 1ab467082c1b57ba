"""Converts packed DECIMALs (``decimal2bin`` of strings/decimal.c) to int64, to 128 bits and to text, compiled.

Nine digits take four bytes, most significant first; the remaining digits at either end take fewer. The first bit is
inverted, so that bytes sort like numbers; all bytes of a negative number are inverted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import big_endian, multiply_add, store_decimal
from raycdc.core.compiled import helper, inlined

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
def _digits(out: Any, at: Any, value: Any, count: Any) -> Any:
    for i in range(count - 1, -1, -1):
        out[at + i] = 48 + value % 10
        value //= 10
    return at + count


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
        end = _digits(out, end, _group(data, at, width, mask, True), whole % 9)
        at += width
        flip = False
    for _ in range(whole // 9):
        end = _digits(out, end, _group(data, at, 4, mask, flip), 9)
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
            end = _digits(out, end, _group(data, at, 4, mask, flip), 9)
            at += 4
            flip = False
        width = DIGIT_BYTES[scale % 9]
        if width > 0:
            end = _digits(out, end, _group(data, at, width, mask, flip), scale % 9)
    if negative:
        out[to] = 45
    return end
