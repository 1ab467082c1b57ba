"""UTF-8 (RFC 3629), compiled: no surrogates, no overlong forms, nothing above U+10FFFF."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import load
from raycdc.core.loops.compiling import helper, inlined

#: The bits that are 0 in eight bytes of ASCII.
HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)


@inlined
def put_character(point: Any, out: Any, to: Any) -> Any:
    """Write a code point; return the end."""
    if point < 0x80:
        out[to] = point
        return to + 1
    if point < 0x800:
        out[to] = 0xC0 | (point >> 6)
        out[to + 1] = 0x80 | (point & 0x3F)
        return to + 2
    if point < 0x10000:
        out[to] = 0xE0 | (point >> 12)
        out[to + 1] = 0x80 | ((point >> 6) & 0x3F)
        out[to + 2] = 0x80 | (point & 0x3F)
        return to + 3
    out[to] = 0xF0 | (point >> 18)
    out[to + 1] = 0x80 | ((point >> 12) & 0x3F)
    out[to + 2] = 0x80 | ((point >> 6) & 0x3F)
    out[to + 3] = 0x80 | (point & 0x3F)
    return to + 4


@inlined
def character_size(data: Any, at: Any, end: Any) -> Any:
    """Return the bytes of the well-formed multi-byte character at `at`; 0 if there is none."""
    first = data[at]
    if first < 0xC2:
        return 0
    if first < 0xE0:
        return 2 if at + 1 < end and (data[at + 1] & 0xC0) == 0x80 else 0
    if first < 0xF0:
        if at + 2 >= end or (data[at + 1] & 0xC0) != 0x80 or (data[at + 2] & 0xC0) != 0x80:
            return 0
        if (first == 0xE0 and data[at + 1] < 0xA0) or (first == 0xED and data[at + 1] >= 0xA0):
            return 0
        return 3
    if first > 0xF4 or at + 3 >= end:
        return 0
    if (data[at + 1] & 0xC0) != 0x80 or (data[at + 2] & 0xC0) != 0x80 or (data[at + 3] & 0xC0) != 0x80:
        return 0
    if (first == 0xF0 and data[at + 1] < 0x90) or (first == 0xF4 and data[at + 1] >= 0x90):
        return 0
    return 4


@helper
def is_utf8(data: Any, at: Any, end: Any) -> Any:
    """Return True if the bytes are well-formed UTF-8."""
    while at < end:
        while end - at >= 8 and (load(data, at, 64) & HIGH_BITS) == 0:
            at += 8
        while at < end and data[at] < 0x80:
            at += 1
        while at < end and data[at] >= 0x80:
            size = character_size(data, at, end)
            if size == 0:
                return False
            at += size
    return True
