"""Bytes as hexadecimal digits and base64, compiled.

Every writer returns the end of its text. The caller must provide enough room.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.loops.compiling import helper, inlined

#: The digits that `hex_text` writes.
HEX = np.frombuffer(b"0123456789abcdef", np.uint8).copy()
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8).copy()


@inlined
def put_word(out: Any, to: Any, word: Any) -> Any:
    """Write the bytes of a constant array."""
    for i in range(len(word)):
        out[to + i] = word[i]
    return to + len(word)


@inlined
def hex_digit(byte: Any) -> Any:
    """Return the value of a hexadecimal digit, or -1."""
    if 48 <= byte <= 57:
        return np.int64(byte) - 48
    if 97 <= byte <= 102:
        return np.int64(byte) - 87
    if 65 <= byte <= 70:
        return np.int64(byte) - 55
    return np.int64(-1)


@helper
def hex_text(data: Any, at: Any, count: Any, out: Any, to: Any) -> Any:
    """Write `count` bytes in hexadecimal, two digits each."""
    for i in range(count):
        byte = np.int64(data[at + i])
        out[to] = HEX[byte >> 4]
        out[to + 1] = HEX[byte & 15]
        to += 2
    return to


@helper
def base64_text(data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Write base64 with padding (RFC 4648)."""
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
