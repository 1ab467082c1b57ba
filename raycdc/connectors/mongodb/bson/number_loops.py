"""Compiled functions that give equal numbers in keys one form, because the server treats 1, 1.0 and 1.00 as equal.

| the number is | and becomes |
|---|---|
| an integer in the range of a long | that integer; zero has no sign |
| exact in a double, infinite, or not a number | that double |
| another decimal128, of at most 19 digits | itself without trailing zeros |
| any other | itself |

Decimals beyond a long's range, and decimals of more than 19 digits, therefore stay unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mongodb.bson.code_loops import DOUBLE, INT32, INT64
from raycdc.connectors.mongodb.bson.element_loops import int32_at
from raycdc.core.compiled import load
from raycdc.core.loops.compiling import helper

#: The results of `same_number`: an integer; the bits of a double; signed digits and a power of ten; the number itself.
WHOLE, FLOATING, FRACTION, ITSELF = range(4)
_NAN, _INFINITY, _MINUS_INFINITY = 0x7FF8000000000000, 0x7FF0000000000000, -0x10000000000000
_BIAS = 6176
#: The most halvings of a whole number below 2**53 that leave a double of full precision: far more than any key needs.
_HALVES_MAX = 60


@helper
def same_number(data: Any, kind: Any, at: Any) -> Any:
    """Return the common form of the BSON number at `at`: (`WHOLE` …, value, power of ten)."""
    none = np.int64(0)
    if kind == INT32:
        return WHOLE, np.int64(int32_at(data, at)), none
    bits = np.int64(load(data, at, 64))
    if kind == INT64:
        return WHOLE, bits, none
    if kind == DOUBLE:
        number = bits.view(np.float64)
        if number >= -9223372036854775808.0 and number < 9223372036854775808.0:
            value = np.int64(number)
            if np.float64(value) == number:
                return WHOLE, value, none
        return FLOATING, bits, none
    return _decimal(bits, np.int64(load(data, at + 8, 64)))


@helper
def _decimal(bits: Any, top: Any) -> Any:
    none = np.int64(0)
    negative = top < 0
    if (top >> 58) & 0x1F == 0x1F:
        return FLOATING, np.int64(_NAN), none
    if (top >> 58) & 0x1F == 0x1E:
        return FLOATING, np.int64(_MINUS_INFINITY) if negative else np.int64(_INFINITY), none
    digits = np.uint64(bits)
    if (top >> 61) & 3 == 3:
        digits = np.uint64(0)
    elif top & 0x1FFFFFFFFFFFF != 0 or digits >> np.uint64(63) != np.uint64(0):
        return ITSELF, none, none
    if digits == np.uint64(0):
        return WHOLE, none, none
    power = ((top >> 49) & 0x3FFF) - _BIAS
    value = np.int64(digits)
    while value % 10 == 0:
        value //= 10
        power += 1
    while power > 0 and value <= 922337203685477579:
        value *= 10
        power -= 1
    signed = -value if negative else value
    if power == 0:
        return WHOLE, signed, none
    while power > 0 and value % 10 == 0:
        value //= 10
        power += 1
    signed = -value if negative else value
    # A number that is not divisible by this power of five has no exact binary fraction.
    rest = value
    halves = np.int64(0)
    while power + halves < 0 and rest % 5 == 0 and halves < _HALVES_MAX:
        rest //= 5
        halves += 1
    if power + halves == 0 and rest < 9007199254740992:
        number = np.float64(rest) / np.float64(np.int64(1) << halves)
        return FLOATING, np.float64(-number if negative else number).view(np.int64), none
    return FRACTION, signed, np.int64(power)


@helper
def put_decimal(value: Any, power: Any, out: Any, at: Any) -> Any:
    """Write a decimal128 with these digits to `out` at `at`, and return `at`."""
    digits = -value if value < 0 else value
    top = (np.int64(power) + _BIAS) << 49
    for i in range(8):
        out[at + i] = (digits >> (8 * i)) & 0xFF
        out[at + 8 + i] = (top >> (8 * i)) & 0xFF
    if value < 0:
        out[at + 15] |= 0x80
    return at
