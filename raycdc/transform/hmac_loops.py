"""Compiled loops that replace each value of a column by its HMAC-SHA-256 in hexadecimal digits.

The method is in FIPS 180-4 (SHA-256) and RFC 2104 (HMAC). HMAC hashes a padded form of the key twice, before the value
and before the inner hash. The states of SHA-256 after these two blocks depend on the key only, so
`raycdc.transform.masks` computes them once for all values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raycdc.core.compiled import helper, njit

#: The size of a block in bytes, and the number of hexadecimal digits of a hash.
BLOCK = 64
DIGITS = 64


@helper
def _rotated(word: int, by: int) -> int:
    return ((word >> by) | (word << (32 - by))) & 0xFFFFFFFF


@helper
def compress(
    state: NDArray[np.int64], block: NDArray[np.uint8], words: NDArray[np.int64], constants: NDArray[np.int64]
) -> None:
    """Add one block to `state`. `words` is scratch space for 64 numbers."""
    for i in range(16):
        at = 4 * i
        words[i] = (
            (np.int64(block[at]) << 24)
            | (np.int64(block[at + 1]) << 16)
            | (np.int64(block[at + 2]) << 8)
            | np.int64(block[at + 3])
        )
    for i in range(16, 64):
        one, two = words[i - 15], words[i - 2]
        small = _rotated(one, 7) ^ _rotated(one, 18) ^ (one >> 3)
        large = _rotated(two, 17) ^ _rotated(two, 19) ^ (two >> 10)
        words[i] = (words[i - 16] + small + words[i - 7] + large) & 0xFFFFFFFF
    a, b, c, d = state[0], state[1], state[2], state[3]
    e, f, g, h = state[4], state[5], state[6], state[7]
    for i in range(64):
        sum_1 = _rotated(e, 6) ^ _rotated(e, 11) ^ _rotated(e, 25)
        choice = (e & f) ^ ((e ^ 0xFFFFFFFF) & g)
        first = h + sum_1 + choice + constants[i] + words[i]
        sum_0 = _rotated(a, 2) ^ _rotated(a, 13) ^ _rotated(a, 22)
        majority = (a & b) ^ (a & c) ^ (b & c)
        h, g, f, e = g, f, e, (d + first) & 0xFFFFFFFF
        d, c, b, a = c, b, a, (first + sum_0 + majority) & 0xFFFFFFFF
    state[0] = (state[0] + a) & 0xFFFFFFFF
    state[1] = (state[1] + b) & 0xFFFFFFFF
    state[2] = (state[2] + c) & 0xFFFFFFFF
    state[3] = (state[3] + d) & 0xFFFFFFFF
    state[4] = (state[4] + e) & 0xFFFFFFFF
    state[5] = (state[5] + f) & 0xFFFFFFFF
    state[6] = (state[6] + g) & 0xFFFFFFFF
    state[7] = (state[7] + h) & 0xFFFFFFFF


@helper
def _end(
    state: NDArray[np.int64],
    block: NDArray[np.uint8],
    filled: int,
    length: int,
    words: NDArray[np.int64],
    constants: NDArray[np.int64],
) -> None:
    """Add the last block or two of a message to `state`: a bit, zeros, and the number of bits of all `length` bytes."""
    block[filled] = 0x80
    for i in range(filled + 1, 64):
        block[i] = 0
    if filled >= 56:
        compress(state, block, words, constants)
        for i in range(64):
            block[i] = 0
    bits = length * 8
    for i in range(8):
        block[63 - i] = (bits >> (8 * i)) & 0xFF
    compress(state, block, words, constants)


@njit
def key_state(
    state: NDArray[np.int64], block: NDArray[np.uint8], words: NDArray[np.int64], constants: NDArray[np.int64]
) -> None:
    """Add one padding block of the key to `state`. `words` is scratch space for 64 numbers."""
    compress(state, block, words, constants)


@njit
def hex_digests(
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    inner: NDArray[np.int64],
    outer: NDArray[np.int64],
    constants: NDArray[np.int64],
    state: NDArray[np.int64],
    block: NDArray[np.uint8],
    words: NDArray[np.int64],
    digits: NDArray[np.uint8],
) -> None:
    """Write the 64 hexadecimal digits of each value's HMAC to `digits`. `ends` are the offsets of the values, one more
    than there are values. `state`, `block` and `words` are scratch space for 8, 64 and 64 numbers, because the loop
    cannot allocate memory.
    """
    for row in range(len(ends) - 1):
        for i in range(8):
            state[i] = inner[i]
        begin, length = ends[row], ends[row + 1] - ends[row]
        whole = length // 64
        for number in range(whole):
            at = begin + 64 * number
            for i in range(64):
                block[i] = data[at + i]
            compress(state, block, words, constants)
        rest = length - 64 * whole
        at = begin + 64 * whole
        for i in range(rest):
            block[i] = data[at + i]
        _end(state, block, rest, 64 + length, words, constants)
        for i in range(8):
            word = state[i]
            for j in range(4):
                block[4 * i + j] = (word >> (24 - 8 * j)) & 0xFF
        for i in range(8):
            state[i] = outer[i]
        _end(state, block, 32, 64 + 32, words, constants)
        index = 64 * row
        for i in range(8):
            word = state[i]
            for j in range(8):
                digit = (word >> (28 - 4 * j)) & 0xF
                digits[index] = digit + 48 if digit < 10 else digit + 87
                index += 1
