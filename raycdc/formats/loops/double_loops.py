"""Writes the shortest text that reads back as the same double, compiled.

`double_text` writes raycdc's own form: positional between 1e-15 and 1e15, otherwise with an exponent (``1.5e-20``), and
with ``.0`` after a whole number. The digits of a number with up to 15 digits are found by exact integer arithmetic. For
all other numbers, the C library is asked for 15, 16 and 17 digits, until the text reads back as the same double.

`server_double_text` writes the text that MySQL prints for a double in a JSON document. It differs in three ways. First,
MySQL's ``my_gcvt`` (strings/dtoa.cc) stays positional if that shows a fraction (2662411633882185.5). Second, its digits
are those of David Gay's mode 4: if the nearest text of 16 digits does not read back as a power of two, the next larger
text does, because doubles above a power of two are farther apart than below it. Third, MySQL 5.7 prints whole numbers
without ``.0`` (``Json_wrapper::to_string`` of sql/json_dom.cc).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import external, helper
from raycdc.core.loops.number_loops import number_text

#: The room that a caller must provide: for the longest text, and after it for the digits of the C library.
DOUBLE_TEXT_MAX = 80
_SCRATCH_AT = 44

_gcvt = external("gcvt", "voidptr(float64, int32, voidptr)")
_strtod = external("strtod", "float64(voidptr, int64)")
_EXACT = 9007199254740992.0  # 2**53
_POINT_MAX = 15  # MAX_DECPT_FOR_F_FORMAT of dtoa.cc
_SUBNORMAL = 2.2250738585072014e-308
_FRACTION_BITS = (1 << 52) - 1
_TENS = np.array([10.0**i for i in range(23)])


@helper
def _parse(out: Any, at: Any) -> Any:
    """Turn the C library's text at `at` into bare digits there; returns (number of digits, position of the point)."""
    digits = 0
    point = 0
    seen_point = False
    source = at
    while out[source] != 0 and out[source] != 101:
        byte = out[source]
        source += 1
        if byte == 46:
            seen_point = True
        elif byte != 45:
            if byte == 48 and digits == 0:
                point -= 1 if seen_point else 0
                continue
            out[at + digits] = byte
            digits += 1
            if not seen_point:
                point += 1
    if out[source] == 101:
        sign = -1 if out[source + 1] == 45 else 1
        source += 2
        exponent = 0
        while out[source] != 0:
            exponent = exponent * 10 + out[source] - 48
            source += 1
        point += sign * exponent
    while digits > 1 and out[at + digits - 1] == 48:
        digits -= 1
    return digits, point


@helper
def _write_digits(out: Any, at: Any, digits: Any, point: Any, to: Any, servers: Any, point_zero: Any) -> Any:
    """Write `digits` digits found at `at` with the point after the first `point` of them."""
    if point < -_POINT_MAX + 1 or (point > _POINT_MAX and not (servers and digits > point)):
        out[to] = out[at]
        to += 1
        if digits > 1:
            out[to] = 46
            to += 1
            for i in range(1, digits):
                out[to] = out[at + i]
                to += 1
        out[to] = 101
        to += 1
        exponent = point - 1
        if exponent < 0:
            out[to] = 45
            to += 1
            exponent = -exponent
        return number_text(exponent, 1, out, to)
    if point <= 0:
        out[to] = 48
        out[to + 1] = 46
        to += 2
        for _ in range(-point):
            out[to] = 48
            to += 1
        for i in range(digits):
            out[to] = out[at + i]
            to += 1
        return to
    for i in range(max(digits, point)):
        if i == point:
            out[to] = 46
            to += 1
        out[to] = out[at + i] if i < digits else 48
        to += 1
    if digits <= point and point_zero:
        out[to] = 46
        out[to + 1] = 48
        to += 2
    return to


@helper
def _last_digit(out: Any, at: Any) -> Any:
    """Return the position of the last digit before the exponent in the C library's text at `at`."""
    while out[at + 1] != 0 and out[at + 1] != 101:
        at += 1
    return at


@helper
def double_text(bits: Any, out: Any, to: Any) -> Any:
    """Write the double with these IEEE bits into ``out[to:]``; returns the end of the text."""
    return _written(bits, out, to, False, True)


@helper
def server_double_text(bits: Any, out: Any, to: Any, point_zero: Any) -> Any:
    """Write the double like `double_text`, but as MySQL prints it.

    If `point_zero` is True, whole numbers end in ``.0``.
    """
    return _written(bits, out, to, True, point_zero)


@helper
def _written(bits: Any, out: Any, to: Any, servers: Any, point_zero: Any) -> Any:
    value = np.int64(bits).view(np.float64)
    if bits < 0:
        out[to] = 45
        to += 1
        value = -value
    if value == 0.0 or 1e-5 <= value < 1e15:
        for decimals in range(16):
            scaled = np.rint(value * _TENS[decimals])
            if scaled >= _EXACT:
                break
            if scaled / _TENS[decimals] == value:
                number = np.int64(scaled)
                power = np.int64(_TENS[decimals])
                to = number_text(number // power, 1, out, to)
                if decimals == 0 and not point_zero:
                    return to
                out[to] = 46
                return number_text(number % power, max(decimals, 1), out, to + 1)
    scratch = to + _SCRATCH_AT
    precision = 15 if value >= _SUBNORMAL else 1
    while True:
        _gcvt(value, np.int32(precision), out[scratch:].ctypes)
        if precision == 17 or _strtod(out[scratch:].ctypes, np.int64(0)) == value:
            break
        precision += 1
    if servers and precision == 17 and bits & _FRACTION_BITS == 0:
        # The next text of 16 digits above it.
        last = _last_digit(out, scratch)
        digit = out[last]
        out[last] = 48
        out[last - 1] += 1
        if out[last - 1] > 57 or _strtod(out[scratch:].ctypes, np.int64(0)) != value:
            out[last] = digit
            out[last - 1] -= 1
    digits, point = _parse(out, scratch)
    return _write_digits(out, scratch, digits, point, to, servers, point_zero)
