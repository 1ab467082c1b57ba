"""Single BSON values as text, compiled: numbers, dates, identifiers, base64, JSON strings.

Every function writes to ``out[to:]`` and returns the end. The caller provides enough room.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import copy, load
from raycdc.formats.loops.compiling import helper, inlined
from raycdc.formats.loops.double_loops import double_text

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8).copy()
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8).copy()
_INFINITY = np.int64(0x7FF << 52)
#: The greatest coefficient of a decimal128 is 10**34 - 1; a greater one counts as zero (IEEE 754-2008, 3.5.2).
_COEFFICIENT_HIGH = np.uint64(10**34 >> 64)
_COEFFICIENT_LOW = np.uint64(10**34 & 0xFFFFFFFFFFFFFFFF)


@inlined
def put_word(out: Any, to: Any, word: Any) -> Any:
    """Write the bytes of a constant array."""
    for i in range(len(word)):
        out[to + i] = word[i]
    return to + len(word)


@helper
def integer_text(value: Any, out: Any, to: Any) -> Any:
    """Write a signed 64-bit number in decimal; at most 20 bytes."""
    rest = np.uint64(value)
    if value < 0:
        out[to] = 45
        to += 1
        rest = ~rest + np.uint64(1)
    ten = np.uint64(10)
    size = 1
    limit = rest // ten
    while limit != np.uint64(0):
        limit //= ten
        size += 1
    for i in range(size - 1, -1, -1):
        out[to + i] = np.uint64(48) + rest % ten
        rest //= ten
    return to + size


@helper
def digits_text(value: Any, width: Any, out: Any, to: Any) -> Any:
    """Write a nonnegative number in exactly `width` digits."""
    for i in range(width - 1, -1, -1):
        out[to + i] = 48 + value % 10
        value //= 10
    return to + width


@helper
def hex_text(data: Any, at: Any, count: Any, out: Any, to: Any) -> Any:
    """Write `count` bytes in hexadecimal, two digits each."""
    for i in range(count):
        byte = np.int64(data[at + i])
        out[to] = _HEX[byte >> 4]
        out[to + 1] = _HEX[byte & 15]
        to += 2
    return to


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


@helper
def base64_text(data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Write bytes in base64 with padding (RFC 4648)."""
    while end - at >= 3:
        bits = (np.int64(data[at]) << 16) | (np.int64(data[at + 1]) << 8) | np.int64(data[at + 2])
        for i in range(4):
            out[to + i] = _BASE64[(bits >> (18 - 6 * i)) & 63]
        at += 3
        to += 4
    left = end - at
    if left > 0:
        bits = np.int64(data[at]) << 16
        if left == 2:
            bits |= np.int64(data[at + 1]) << 8
        out[to] = _BASE64[bits >> 18]
        out[to + 1] = _BASE64[(bits >> 12) & 63]
        out[to + 2] = _BASE64[(bits >> 6) & 63] if left == 2 else 61
        out[to + 3] = 61
        to += 4
    return to


@helper
def string_text(data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Write a JSON string with its quotes; up to six bytes per input byte (RFC 8259, section 7)."""
    out[to] = 34
    to += 1
    start = at
    while at < end:
        byte = np.int64(data[at])
        if byte >= 32 and byte != 34 and byte != 92:
            at += 1
            continue
        if at > start:
            copy(data, start, out, to, at - start)
            to += at - start
        out[to] = 92
        if byte == 34 or byte == 92:
            out[to + 1] = byte
            to += 2
        elif byte == 10 or byte == 13 or byte == 9:
            out[to + 1] = 110 if byte == 10 else (114 if byte == 13 else 116)
            to += 2
        else:
            out[to + 1] = 117
            out[to + 2] = 48
            out[to + 3] = 48
            out[to + 4] = _HEX[byte >> 4]
            out[to + 5] = _HEX[byte & 15]
            to += 6
        at += 1
        start = at
    if at > start:
        copy(data, start, out, to, at - start)
        to += at - start
    out[to] = 34
    return to + 1


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
def _tenth(high: Any, low: Any) -> Any:
    """Divide a number of 128 bits by ten, 32 bits at a time. Returns (high, low, remainder)."""
    ten = np.uint64(10)
    half = np.uint64(32)
    mask = np.uint64(0xFFFFFFFF)
    part = high >> half
    top = part // ten
    part = ((part % ten) << half) | (high & mask)
    new_high = (top << half) | (part // ten)
    part = ((part % ten) << half) | (low >> half)
    top = part // ten
    part = ((part % ten) << half) | (low & mask)
    return new_high, (top << half) | (part // ten), part % ten


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
        high, low, digit = _tenth(high, low)
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
def _civil(days: Any) -> Any:
    """Return year, month and day of a nonnegative number of days since 1970-01-01 (proleptic Gregorian calendar)."""
    shifted = days + 719468
    era = shifted // 146097
    day_of_era = shifted % 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    return year, month, day


@helper
def moment_text(millis: Any, out: Any, to: Any) -> Any:
    """Write a date from 1970 to 9999 as ``2024-02-29T12:30:00.5Z``; at most 24 bytes.

    The fraction of the second has up to three digits, or is left out.
    """
    days = millis // 86_400_000
    rest = millis % 86_400_000
    year, month, day = _civil(days)
    to = digits_text(year, 4, out, to)
    out[to] = 45
    to = digits_text(month, 2, out, to + 1)
    out[to] = 45
    to = digits_text(day, 2, out, to + 1)
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
