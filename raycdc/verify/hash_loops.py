"""Compiled loops that turn columns into a hash per row, and compare two sides' hashes.

The mixing is that of MurmurHash3's finalizer (Appleby 2011), applied per value. Each column has a salt of its own, so
the same value has different hashes in different columns. The hash of NULL differs from that of every value of the
column, except by chance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from raycdc.core.compiled import load, njit
from raycdc.core.loops.hash_loops import mixed

_STEP = np.uint64(0x9E3779B97F4A7C15)
_NULL = np.uint64(0xA0761D6478BD642F)

#: The status of a key, in the output of `compare`.
MISSING = 1
EXTRA = 2
CHANGED = 3


@njit
def mix_words(
    hashes: NDArray[np.uint64], words: NDArray[np.uint64], width: int, valid: NDArray[np.uint8], salt: int
) -> None:
    """Add a column whose values are `width` words each to the hashes. `valid` is empty if there are no NULLs."""
    for row in range(len(hashes)):
        code = hashes[row] * _STEP + np.uint64(salt)
        if len(valid) == 0 or valid[row]:
            for index in range(row * width, row * width + width):
                code = mixed(code ^ words[index]) + _STEP
        else:
            code = mixed(code ^ _NULL)
        hashes[row] = code


@njit
def mix_bytes(
    hashes: NDArray[np.uint64],
    data: NDArray[np.uint8],
    ends: NDArray[np.int64],
    valid: NDArray[np.uint8],
    salt: int,
) -> None:
    """Add a column of texts or binaries to the hashes. `ends` has one entry more than there are rows."""
    for row in range(len(hashes)):
        code = hashes[row] * _STEP + np.uint64(salt)
        if len(valid) == 0 or valid[row]:
            at, end = ends[row], ends[row + 1]
            # The length comes first, because a text of zero bytes must differ from a longer one.
            code = mixed(code ^ np.uint64(end - at)) + _STEP
            while at + 8 <= end:
                code = mixed(code ^ np.uint64(load(data, at, 64))) + _STEP
                at += 8
            rest = np.uint64(0)
            for index in range(at, end):
                rest = (rest << np.uint64(8)) | np.uint64(data[index])
            code = mixed(code ^ rest)
        else:
            code = mixed(code ^ _NULL)
        hashes[row] = code


@njit
def finish(hashes: NDArray[np.uint64]) -> None:
    """Every bit moves half of the hash."""
    for row in range(len(hashes)):
        hashes[row] = mixed(hashes[row])


@njit
def sums(
    keys: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    counts: NDArray[np.uint64],
    first: NDArray[np.uint64],
    second: NDArray[np.uint64],
    shift: int,
) -> None:
    """Add each row to the sums of its key's range, which is ``keys[i] >> shift``.

    Sums wrap at 2^64. `second` has the sums of a second hash of each row, so that both sums together have 128 bits.
    """
    for row in range(len(keys)):
        index = np.int64(keys[row] >> np.uint64(shift))
        counts[index] += np.uint64(1)
        first[index] += rows[row]
        second[index] += mixed(rows[row] + _STEP)


@njit
def compare(
    source_keys: NDArray[np.uint64],
    source_rows: NDArray[np.uint64],
    target_keys: NDArray[np.uint64],
    target_rows: NDArray[np.uint64],
    found: NDArray[np.uint64],
    kinds: NDArray[np.uint8],
) -> int:
    """Find the keys of two sides that differ, with the kind of difference; return their number.

    Both sides are in ascending order of key hashes. Rows with the same key hash are compared as a multiset: by their
    number, and by the sum of their hashes.
    """
    at, to, count = 0, 0, 0
    while at < len(source_keys) or to < len(target_keys):
        if to >= len(target_keys) or (at < len(source_keys) and source_keys[at] <= target_keys[to]):
            key = source_keys[at]
        else:
            key = target_keys[to]
        balance = 0
        total = np.uint64(0)
        while at < len(source_keys) and source_keys[at] == key:
            balance += 1
            total += source_rows[at]
            at += 1
        while to < len(target_keys) and target_keys[to] == key:
            balance -= 1
            total -= target_rows[to]
            to += 1
        if balance != 0 or total != np.uint64(0):
            found[count] = key
            kinds[count] = MISSING if balance > 0 else EXTRA if balance < 0 else CHANGED
            count += 1
    return count
