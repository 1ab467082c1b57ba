"""Compiled functions that write whole numbers as decimal digits, and calculate with integers of 128 bits in two words.

Every writer returns the end of its text; the caller must provide enough room. The words of a wide integer are unsigned,
and the high word comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.loops.compiling import helper, inlined

#: The longest text of `integer_text`, in bytes.
INTEGER_TEXT_MAX = 20


@inlined
def digits_text(value: Any, width: Any, out: Any, to: Any) -> Any:
    """Write a number that is not negative in exactly `width` digits."""
    for i in range(width - 1, -1, -1):
        out[to + i] = 48 + value % 10
        value //= 10
    return to + width


@inlined
def date_text(year: Any, month: Any, day: Any, out: Any, to: Any) -> Any:
    """Write a date as ``2024-02-29``; its year is from 0 to 9999."""
    to = digits_text(year, 4, out, to)
    out[to] = 45
    to = digits_text(month, 2, out, to + 1)
    out[to] = 45
    return digits_text(day, 2, out, to + 1)


@inlined
def number_text(value: Any, digits: Any, out: Any, to: Any) -> Any:
    """Write an unsigned integer, or a signed one that is not negative, with leading zeros up to `digits` digits."""
    # Unsigned, because signed division by a constant takes twice the instructions.
    ten = np.uint64(10)
    width = 1
    rest = np.uint64(value) // ten
    while rest > np.uint64(0):
        rest //= ten
        width += 1
    width = max(width, digits)
    rest = np.uint64(value)
    for i in range(width - 1, -1, -1):
        out[to + i] = np.uint64(48) + rest % ten
        rest //= ten
    return to + width


@helper
def integer_text(value: Any, out: Any, to: Any) -> Any:
    """Write a signed number of 64 bits."""
    rest = np.uint64(value)
    if value < 0:
        out[to] = 45
        to += 1
        rest = ~rest + np.uint64(1)
    return number_text(rest, 1, out, to)


@inlined
def multiply_add(high: Any, low: Any, factor: Any, addend: Any) -> Any:
    """Return ``(high, low) * factor + addend``. Factor and addend must be below 2**31."""
    mask = np.uint64(0xFFFFFFFF)
    by = np.uint64(factor)
    first = (low & mask) * by + np.uint64(addend)
    second = (low >> np.uint64(32)) * by + (first >> np.uint64(32))
    return np.uint64(high) * by + (second >> np.uint64(32)), (second << np.uint64(32)) | (first & mask)


@inlined
def negate(high: Any, low: Any) -> Any:
    """Return the two's complement."""
    low = ~low + np.uint64(1)
    high = ~high + (np.uint64(1) if low == np.uint64(0) else np.uint64(0))
    return high, low


@helper
def tenth(high: Any, low: Any) -> Any:
    """Divide by ten, by long division of 32 bits at a time. Returns (high, low, rest)."""
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
