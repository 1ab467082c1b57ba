"""JSON strings (RFC 8259, section 7), compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import copy, load
from raycdc.core.loops.byte_loops import HEX
from raycdc.core.loops.compiling import helper, inlined
from raycdc.core.loops.utf8_loops import HIGH_BITS

#: A byte may become six (``\u0001``).
WIDEST = 6

_ONES = np.int64(0x0101010101010101)
_QUOTES = np.int64(0x2222222222222222)
_BACKSLASHES = np.int64(0x5C5C5C5C5C5C5C5C)
_BLANKS = np.int64(0x2020202020202020)


@inlined
def marks(word: Any) -> Any:
    """Return the high bit of each of eight bytes that is a quote, a backslash or a control character.

    Bytes above the lowest one may be marked wrongly. Method: S. E. Anderson, "Bit Twiddling Hacks", hasless.
    """
    quote = word ^ _QUOTES
    slash = word ^ _BACKSLASHES
    return (((quote - _ONES) & ~quote) | ((slash - _ONES) & ~slash) | ((word - _BLANKS) & ~word)) & HIGH_BITS


@inlined
def first_mark(marked: Any) -> Any:
    """Return the index of the lowest byte whose high bit is set. At least one high bit must be set."""
    lowest = marked & -marked
    return ((((lowest - 1) & _ONES) * _ONES) >> 56) - 1


@inlined
def _letter(byte: Any, five: Any) -> Any:
    """Return the letter after the backslash if the byte has one, else ``u``."""
    letter = np.int64(117)
    if byte == 34 or byte == 92:
        letter = byte
    elif byte == 10:
        letter = np.int64(110)
    elif byte == 13:
        letter = np.int64(114)
    elif byte == 9:
        letter = np.int64(116)
    elif five and byte == 8:
        letter = np.int64(98)
    elif five and byte == 12:
        letter = np.int64(102)
    return letter


@helper
def string_size(data: Any, at: Any, end: Any, five: Any) -> Any:
    """Return the bytes that `string_text` writes."""
    size = end - at + 2
    for i in range(at, end):
        byte = np.int64(data[i])
        if byte < 32 or byte == 34 or byte == 92:
            size += 5 if _letter(byte, five) == 117 else 1
    return size


@inlined
def string_text(data: Any, at: Any, end: Any, out: Any, to: Any, five: Any) -> Any:
    r"""Write a JSON string with its quotes, up to `WIDEST` bytes per input byte; return the end.

    If `five` is True, the five control characters with a short escape (``\b``, ``\f``, ``\n``, ``\r``, ``\t``) are all
    written with it. Otherwise ``\b`` and ``\f`` are not.
    """
    out[to] = 34
    to += 1
    while at < end:
        if end - at >= 8:
            copy(data, at, out, to, 8)
            marked = marks(load(data, at, 64))
            if marked == 0:
                at += 8
                to += 8
                continue
            plain = first_mark(marked)
            at += plain
            to += plain
        byte = np.int64(data[at])
        at += 1
        if byte >= 32 and byte != 34 and byte != 92:
            out[to] = byte
            to += 1
            continue
        letter = _letter(byte, five)
        out[to] = 92
        out[to + 1] = letter
        to += 2
        if letter == 117:
            out[to] = 48
            out[to + 1] = 48
            out[to + 2] = HEX[byte >> 4]
            out[to + 3] = HEX[byte & 15]
            to += 4
    out[to] = 34
    return to + 1
