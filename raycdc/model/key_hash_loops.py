"""Compiled loops that hash key columns: FNV-1a over the bytes of each value, followed by a finalizer that mixes all
bits.

FNV-1a is by Fowler, Noll and Vo (RFC 9923). The finalizer is that of MurmurHash3 (Appleby 2011).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raycdc.core.compiled import njit
from raycdc.core.loops.hash_loops import mixed

#: The state of the hash before the first column.
FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
#: The byte that stands for NULL, and that separates the values of two columns.
_MARK = np.uint64(0x9E3779B97F4A7C15)


@njit
def mix_fixed(
    hashes: NDArray[np.uint64], data: NDArray[np.uint8], first: int, width: int, valid: NDArray[np.uint8]
) -> None:
    """Add a column of values of `width` bytes to the hashes.

    Row 0 is the value at index `first`. `valid` is the validity bitmap, empty if there is no NULL.
    """
    for row in range(len(hashes)):
        code = (hashes[row] ^ _MARK) * _FNV_PRIME
        if len(valid) == 0 or valid[row]:
            at = (first + row) * width
            for index in range(at, at + width):
                code = (code ^ np.uint64(data[index])) * _FNV_PRIME
        hashes[row] = code


@njit
def mix_bytes(
    hashes: NDArray[np.uint64], data: NDArray[np.uint8], ends: NDArray[np.int64], valid: NDArray[np.uint8]
) -> None:
    """Add a column of texts or binaries to the hashes. `ends` has one entry more than there are rows."""
    for row in range(len(hashes)):
        code = (hashes[row] ^ _MARK) * _FNV_PRIME
        if len(valid) == 0 or valid[row]:
            for index in range(ends[row], ends[row + 1]):
                code = (code ^ np.uint64(data[index])) * _FNV_PRIME
        hashes[row] = code


@njit
def finish(hashes: NDArray[np.uint64]) -> None:
    """Mix the bits of each hash, so that a change of any bit changes half of them."""
    for row in range(len(hashes)):
        hashes[row] = mixed(hashes[row])
