"""Converts texts of numbers, dates and base64 to machine words, compiled.

A value is exact or an error: nothing is rounded or cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import external
from raycdc.core.loops.compiling import helper
from raycdc.core.loops.number_loops import multiply_add, negate
from raycdc.formats.loops.code_loops import (
    NOT_A_NUMBER,
    NOT_BASE64,
    OK,
    OUT_OF_RANGE,
    TOO_PRECISE,
    TOO_SMALL,
    WIRE_BASE64,
    WIRE_EITHER,
    WIRE_PLAIN,
    WRONG_KIND,
)
from raycdc.formats.loops.tape_loops import FALSE, FRACTION, INTEGER, STRING, TRUE

_strtod = external("strtod", "float64(voidptr, int64)")
_TENS = np.array([10.0**i for i in range(23)])
_POWERS = np.array([10**i for i in range(19)], dtype=np.int64)
_LIMIT_HIGH = np.array([(10**i) >> 64 for i in range(39)], dtype=np.uint64)
_LIMIT_LOW = np.array([(10**i) & 0xFFFFFFFFFFFFFFFF for i in range(39)], dtype=np.uint64)
_SIGN_BIT = np.uint64(1 << 63)


def _base64_values() -> np.ndarray:
    values = np.full(256, -1, np.int64)
    for i, byte in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
        values[byte] = i
    values[ord("-")], values[ord("_")] = 62, 63
    return values


_BASE64 = _base64_values()


@helper
def _is_number(data: Any, at: Any, end: Any) -> Any:
    """Return True if a text is a decimal number: sign, digits with at most one point, exponent."""
    if at < end and (data[at] == 45 or data[at] == 43):
        at += 1
    digits = 0
    while at < end and 48 <= data[at] <= 57:
        at += 1
        digits += 1
    if at < end and data[at] == 46:
        at += 1
        while at < end and 48 <= data[at] <= 57:
            at += 1
            digits += 1
    if digits == 0:
        return False
    if at < end and (data[at] | 32) == 101:
        at += 1
        if at < end and (data[at] == 43 or data[at] == 45):
            at += 1
        first = at
        while at < end and 48 <= data[at] <= 57:
            at += 1
        if at == first:
            return False
    return at == end


@helper
def _exact(data: Any, at: Any, end: Any, precision: Any, scale: Any) -> Any:
    """Return a checked number times ``10**scale`` as (error, negative, high, low).

    The result is exact; otherwise the error is set.
    """
    high = np.uint64(0)
    low = np.uint64(0)
    negative = data[at] == 45
    if negative or data[at] == 43:
        at += 1
    stop = at
    point = -1
    while stop < end and (data[stop] | 32) != 101:
        if data[stop] == 46:
            point = stop
        stop += 1
    exponent = np.int64(0)
    if stop < end:
        i = stop + 1
        minus = data[i] == 45
        if minus or data[i] == 43:
            i += 1
        while i < end:
            if exponent < 100_000_000:
                exponent = exponent * 10 + np.int64(data[i]) - 48
            i += 1
        if minus:
            exponent = -exponent
    whole = (point if point >= 0 else stop) - at
    weight = whole + exponent  # the next digit counts 10**(weight - 1)
    digits = 0
    for i in range(at, stop):
        if i == point:
            continue
        digit = np.int64(data[i]) - 48
        weight -= 1
        if digits == 0 and digit == 0:
            continue
        if weight < -scale:
            if digit != 0:
                return TOO_PRECISE, negative, high, low
            continue
        digits += 1
        if digits > precision:
            return OUT_OF_RANGE, negative, high, low
        high, low = multiply_add(high, low, 10, digit)
    if digits > 0:
        zeros = weight + scale
        if zeros > 0:
            if digits + zeros > precision:
                return OUT_OF_RANGE, negative, high, low
            for _ in range(zeros):
                high, low = multiply_add(high, low, 10, 0)
    return OK, negative, high, low


@helper
def simple_integer(data: Any, at: Any, end: Any) -> Any:
    """Return (value, True if the text is an optional minus and 1-18 digits)."""
    negative = at < end and data[at] == 45
    if negative:
        at += 1
    if at >= end or end - at > 18:
        return np.int64(0), False
    value = np.int64(0)
    while at < end:
        digit = np.int64(data[at]) - 48
        if digit < 0 or digit > 9:
            return np.int64(0), False
        value = value * 10 + digit
        at += 1
    return (-value if negative else value), True


@helper
def _simple_decimal(data: Any, at: Any, end: Any, scale: Any) -> Any:
    """Return (value times 10**scale, True if the text is plain digits: at most 18, with at most `scale` after the
    point).
    """
    negative = at < end and data[at] == 45
    if negative:
        at += 1
    if at >= end or end - at > 18 or data[at] == 46:
        return np.int64(0), False
    value = np.int64(0)
    after = -1
    while at < end:
        digit = np.int64(data[at]) - 48
        if digit == -2 and after < 0:
            after = 0
        elif digit < 0 or digit > 9:
            return np.int64(0), False
        else:
            value = value * 10 + digit
            if after >= 0:
                after += 1
        at += 1
    missing = scale - max(after, 0)
    if missing < 0 or missing > 18 or (missing > 0 and value >= _POWERS[18 - missing]):
        return np.int64(0), False
    value *= _POWERS[missing]
    return (-value if negative else value), True


@helper
def _double(data: Any, at: Any, end: Any) -> Any:
    """Return the double nearest to a checked number.

    If the number has up to 15 digits and a small exponent, one multiplication or division gives the exact result.
    """
    value = np.int64(0)
    digits = 0
    after = -1
    i = at
    negative = data[i] == 45
    if negative or data[i] == 43:
        i += 1
    while i < end:
        byte = data[i]
        if byte == 46:
            after = 0
        elif 48 <= byte <= 57:
            value = value * 10 + np.int64(byte) - 48
            digits += 1
            if after >= 0:
                after += 1
        else:
            break
        if digits > 15:
            break
        i += 1
    if i == end and digits <= 15:
        number = np.float64(value)
        if after > 0:
            number /= _TENS[after]
        return -number if negative else number
    return _strtod(data[at:].ctypes, np.int64(0))


@helper
def _word(data: Any, at: Any, end: Any) -> Any:
    """Return NaN or an infinity, as Java and databases spell it: (value, True if the text is one)."""
    negative = at < end and data[at] == 45
    if negative or (at < end and data[at] == 43):
        at += 1
    length = end - at
    if length < 3:
        return np.nan, False
    first = data[at] | 32
    if length == 3 and first == 110 and (data[at + 1] | 32) == 97 and (data[at + 2] | 32) == 110:
        return np.nan, True
    if first == 105 and (data[at + 1] | 32) == 110 and (data[at + 2] | 32) == 102 and (length == 3 or length == 8):
        return (-np.inf if negative else np.inf), True
    return np.nan, False


@helper
def base64_length(data: Any, at: Any, end: Any) -> Any:
    """Return the number of bytes of a base64 text, and its end without padding; -1 for invalid text."""
    stop = end
    while stop > at and end - stop < 2 and data[stop - 1] == 61:
        stop -= 1
    count = stop - at
    if count % 4 == 1 or (stop < end and (end - at) % 4 != 0):
        return np.int64(-1), stop
    return np.int64(count * 3 // 4), stop


@helper
def base64_into(data: Any, at: Any, stop: Any, out: Any, to: Any) -> Any:
    """Decode base64 without padding. Returns the end, or -1. The remaining bits must be zero."""
    while at + 4 <= stop:
        a, b, c, d = _BASE64[data[at]], _BASE64[data[at + 1]], _BASE64[data[at + 2]], _BASE64[data[at + 3]]
        if a | b | c | d < 0:
            return -1
        word = (a << 18) | (b << 12) | (c << 6) | d
        out[to] = word >> 16
        out[to + 1] = (word >> 8) & 255
        out[to + 2] = word & 255
        at += 4
        to += 3
    rest = stop - at
    if rest >= 2:
        a, b = _BASE64[data[at]], _BASE64[data[at + 1]]
        c = _BASE64[data[at + 2]] if rest == 3 else np.int64(0)
        if a | b | c < 0:
            return -1
        word = (a << 18) | (b << 12) | (c << 6)
        out[to] = word >> 16
        to += 1
        if rest == 3:
            out[to] = (word >> 8) & 255
            to += 1
    return to


@helper
def base64_number(data: Any, at: Any, end: Any, big: Any) -> Any:
    """Return the bytes of a base64 text as a number: (error, negative, high, low).

    If `big` is True, the bytes are two's complement, most significant first. Otherwise they are unsigned, least
    significant first.
    """
    high = np.uint64(0)
    low = np.uint64(0)
    length, stop = base64_length(data, at, end)
    if length < 0 or length == 0:
        return NOT_BASE64, False, high, low
    word = np.int64(0)
    bits = 0
    index = 0
    negative = False
    fill = np.int64(0)
    for i in range(at, stop):
        value = _BASE64[data[i]]
        if value < 0:
            return NOT_BASE64, False, high, low
        word = ((word << 6) | value) & 0xFFFF
        bits += 6
        if bits < 8:
            continue
        bits -= 8
        byte = (word >> bits) & 255
        if big:
            if index == 0 and byte >= 128:
                negative = True
                fill = np.int64(255)
                high = ~np.uint64(0)
                low = ~np.uint64(0)
            if length - index > 16 and byte != fill:
                return OUT_OF_RANGE, negative, high, low
            high = (high << np.uint64(8)) | (low >> np.uint64(56))
            low = (low << np.uint64(8)) | np.uint64(byte)
        elif index < 8:
            low |= np.uint64(byte) << np.uint64(8 * index)
        elif byte != 0:
            return OUT_OF_RANGE, negative, high, low
        index += 1
    if big and negative != ((high & _SIGN_BIT) != np.uint64(0)):
        return OUT_OF_RANGE, negative, high, low
    if negative:
        high, low = negate(high, low)
    return OK, negative, high, low


@helper
def fits(high: Any, low: Any, precision: Any) -> Any:
    """Return True if a magnitude has at most `precision` digits."""
    limit = _LIMIT_HIGH[precision]
    return high < limit or (high == limit and low < _LIMIT_LOW[precision])


@helper
def to_decimal(data: Any, kind: Any, at: Any, end: Any, precision: Any, scale: Any) -> Any:
    """Return a number of at most `precision` digits, times ``10**scale``: (error, low word, high word)."""
    if kind == TRUE or kind == FALSE:
        return OK, np.int64(_POWERS[scale] if kind == TRUE and scale < 19 else 0), np.int64(0)
    if end - at <= 18:
        value, simple = _simple_decimal(data, at, end, scale)
        if simple and (precision >= 18 or abs(value) < _POWERS[precision]):
            return OK, value, value >> 63
    if kind == STRING:
        if not _is_number(data, at, end):
            return NOT_A_NUMBER, np.int64(0), np.int64(0)
    elif kind != INTEGER and kind != FRACTION:
        return WRONG_KIND, np.int64(0), np.int64(0)
    error, negative, high, low = _exact(data, at, end, precision, scale)
    if negative:
        high, low = negate(high, low)
    return error, np.int64(low), np.int64(high)


@helper
def decimal_wire(data: Any, at: Any, end: Any) -> Any:
    """Return the representation of a decimal that is a string: text, base64, or `WIRE_EITHER` if the string can be
    both. A text need not have as many digits after the point as its column.
    """
    signs = False
    for i in range(at, end):
        signs = signs or data[i] == 46 or data[i] == 45
    number = _is_number(data, at, end)
    if signs:
        return WIRE_PLAIN
    if not number:
        return WIRE_BASE64
    base64 = end > at and (end - at) % 4 == 0
    return WIRE_EITHER if base64 else WIRE_PLAIN


@helper
def to_integer(data: Any, kind: Any, at: Any, end: Any) -> Any:
    """Return (error, value) of a token that is a whole number within 64 bits."""
    value, simple = simple_integer(data, at, end)
    if simple:
        return OK, value
    error, low, high = to_decimal(data, kind, at, end, np.int64(19), np.int64(0))
    if error == OK and high != low >> 63:
        error = OUT_OF_RANGE
    return error, low


@helper
def _has_digits(data: Any, at: Any, end: Any) -> Any:
    """Return True if a checked number is not 0."""
    for i in range(at, end):
        if 49 <= data[i] <= 57:
            return True
        if data[i] | 32 == 101:
            return False
    return False


@helper
def fits_float(number: Any) -> Any:
    """Return `OK` if a double has a nearest single-precision number; otherwise the error."""
    single = np.float64(np.float32(number))
    if np.isinf(single) and not np.isinf(number):
        return OUT_OF_RANGE
    return TOO_SMALL if single == 0.0 and number != 0.0 else OK


@helper
def to_double(data: Any, kind: Any, at: Any, end: Any) -> Any:
    """Return (error, value). A number beyond the largest double, or closer to 0 than the smallest, is refused."""
    if kind == TRUE or kind == FALSE:
        return OK, 1.0 if kind == TRUE else 0.0
    if kind == INTEGER or kind == FRACTION or (kind == STRING and _is_number(data, at, end)):
        number = _double(data, at, end)
        if number == 0.0 and _has_digits(data, at, end):
            return TOO_SMALL, number
        return (OUT_OF_RANGE if np.isinf(number) else OK), number
    if kind != STRING:
        return WRONG_KIND, 0.0
    value, known = _word(data, at, end)
    return (OK if known else NOT_A_NUMBER), value


@helper
def to_bool(data: Any, kind: Any, at: Any, end: Any) -> Any:
    """Return (error, 0 or 1) of a boolean."""
    length = end - at
    if kind == TRUE:
        return OK, np.int64(1)
    if kind == FALSE:
        return OK, np.int64(0)
    if kind == INTEGER or kind == STRING:
        if length == 1 and (data[at] == 48 or data[at] == 49):
            return OK, np.int64(data[at]) - 48
        if length == 4 and (data[at] | 32) == 116 and (data[at + 3] | 32) == 101:
            return OK, np.int64(1)
        if length == 5 and (data[at] | 32) == 102 and (data[at + 4] | 32) == 101:
            return OK, np.int64(0)
    return WRONG_KIND, np.int64(0)
