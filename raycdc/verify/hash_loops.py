"""Compiled loops that turn columns into a hash per row, and compare two sides' hashes.

The mixing is that of MurmurHash3's finalizer (Appleby 2011), applied per value. Each column has a salt of its own, so a
value in one column is another number in the next, and NULL is a number that no value of that column has but by chance.
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
    """A column whose values are `width` words each; `valid` is empty without NULLs."""
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
    """A column of texts or binaries; `ends` has one entry more than there are rows."""
    for row in range(len(hashes)):
        code = hashes[row] * _STEP + np.uint64(salt)
        if len(valid) == 0 or valid[row]:
            at, end = ends[row], ends[row + 1]
            # The length comes first: a text of zeros must differ from a longer one.
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
    """Add each row to the range of its key's hash: ``keys[i] >> shift``. Sums wrap at 2^64.

    `second` has the sums of another hash of each row, so that both together have 128 bits.
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
    """Keys that differ, and how, of two sides in ascending order of key hashes; returns how many were `found`.

    Rows of one key hash are compared as a multiset: by how many there are, and by the sum of their hashes.
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
