"""Compiled functions that write single BSON values as text: numbers, dates, identifiers, base64, JSON strings.

Every function writes to ``out[to:]`` and returns the end. The caller provides enough room.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import load
from raycdc.core.loops.byte_loops import hex_text
from raycdc.core.loops.calendar_loops import civil_date
from raycdc.core.loops.compiling import helper, inlined
from raycdc.core.loops.number_loops import date_text, digits_text, integer_text, tenth
from raycdc.formats.loops.double_loops import double_text

_INFINITY = np.int64(0x7FF << 52)
#: The greatest coefficient of a decimal128 is 10**34 - 1; a greater one counts as zero (IEEE 754-2008, 3.5.2).
_COEFFICIENT_HIGH = np.uint64(10**34 >> 64)
_COEFFICIENT_LOW = np.uint64(10**34 & 0xFFFFFFFFFFFFFFFF)


@helper
def uuid_text(data: Any, at: Any, out: Any, to: Any) -> Any:
    """Write sixteen bytes as RFC 4122 prints them; 36 bytes."""
    for part in range(5):
        if part > 0:
            out[to] = 45
            to += 1
        count = 4 if part == 0 else (6 if part == 4 else 2)
        to = hex_text(data, at, count, out, to)
        at += count
    return to


@inlined
def is_finite(bits: Any) -> Any:
    """Return True if the double with these bits is finite."""
    return (bits & _INFINITY) != _INFINITY


@helper
def number_text(bits: Any, out: Any, to: Any) -> Any:
    """Write a double in the fewest digits that read back as the same double, or ``NaN``, ``Infinity``,
    ``-Infinity``.
    """
    if is_finite(bits):
        return double_text(bits, out, to)
    if (bits & ~_INFINITY & 0x7FFFFFFFFFFFFFFF) != 0:
        out[to] = 78
        out[to + 1] = 97
        out[to + 2] = 78
        return to + 3
    if bits < 0:
        out[to] = 45
        to += 1
    return _infinity(out, to)


@helper
def _infinity(out: Any, to: Any) -> Any:
    out[to] = 73
    out[to + 1] = 110
    out[to + 2] = 102
    out[to + 3] = 105
    out[to + 4] = 110
    out[to + 5] = 105
    out[to + 6] = 116
    out[to + 7] = 121
    return to + 8


@helper
def decimal128_text(data: Any, at: Any, out: Any, to: Any) -> Any:
    """Write a decimal128 (binary integer significand) as its specification prints it. Returns the end; needs 64 bytes.

    The digits and the exponent are kept as they are: 1.10 is not 1.1.
    """
    low = np.uint64(load(data, at, 64))
    bits = load(data, at + 8, 64)
    if bits < 0:
        out[to] = 45
        to += 1
    high = np.uint64(bits & 0x7FFFFFFFFFFFFFFF)
    if (bits >> 58) & 0x1F == 0x1F:
        start = to - 1 if bits < 0 else to
        out[start] = 78
        out[start + 1] = 97
        out[start + 2] = 78
        return start + 3
    if (bits >> 58) & 0x1F == 0x1E:
        return _infinity(out, to)
    if (bits >> 61) & 3 == 3:
        exponent = ((bits >> 47) & 0x3FFF) - 6176
        high = np.uint64(0)
        low = np.uint64(0)
    else:
        exponent = ((bits >> 49) & 0x3FFF) - 6176
        high &= np.uint64(0x1FFFFFFFFFFFF)
        if high > _COEFFICIENT_HIGH or (high == _COEFFICIENT_HIGH and low >= _COEFFICIENT_LOW):
            high = np.uint64(0)
            low = np.uint64(0)
    last = to + 60
    first = last
    while True:
        high, low, digit = tenth(high, low)
        first -= 1
        out[first] = np.uint64(48) + digit
        if high == np.uint64(0) and low == np.uint64(0):
            break
    return _pointed(out, first, last, exponent, to)


@helper
def _pointed(out: Any, first: Any, last: Any, exponent: Any, to: Any) -> Any:
    """Write the digits in ``out[first:last]`` after `to`, with the decimal point and the exponent."""
    count = last - first
    whole = exponent + count
    if exponent > 0 or whole <= -6:
        out[to] = out[first]
        to += 1
        if count > 1:
            out[to] = 46
            to += 1
            for i in range(1, count):
                out[to] = out[first + i]
                to += 1
        out[to] = 69
        power = whole - 1
        out[to + 1] = 45 if power < 0 else 43
        return integer_text(abs(power), out, to + 2)
    if whole <= 0:
        out[to] = 48
        to += 1
        if exponent < 0:
            out[to] = 46
            to += 1
        for _ in range(-whole):
            out[to] = 48
            to += 1
        for i in range(count):
            out[to] = out[first + i]
            to += 1
        return to
    for i in range(count):
        if i == whole:
            out[to] = 46
            to += 1
        out[to] = out[first + i]
        to += 1
    return to


@helper
def moment_text(millis: Any, out: Any, to: Any) -> Any:
    """Write a date from 1970 to 9999 as ``2024-02-29T12:30:00.5Z``; at most 24 bytes.

    The fraction of the second has up to three digits, or is left out.
    """
    days = millis // 86_400_000
    rest = millis % 86_400_000
    year, month, day = civil_date(days)
    to = date_text(year, month, day, out, to)
    out[to] = 84
    to = digits_text(rest // 3_600_000, 2, out, to + 1)
    out[to] = 58
    to = digits_text(rest // 60_000 % 60, 2, out, to + 1)
    out[to] = 58
    to = digits_text(rest // 1000 % 60, 2, out, to + 1)
    if rest % 1000 != 0:
        out[to] = 46
        to = digits_text(rest % 1000, 3, out, to + 1)
    out[to] = 90
    return to + 1
