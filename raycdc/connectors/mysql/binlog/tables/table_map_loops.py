"""Finds repeated TABLE_MAP events by their bytes, compiled. `map_plans.TableMapRegistry` keeps the maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import helper, load, njit


@helper
def same_bytes(data: Any, at: Any, other: Any, start: Any, length: Any) -> Any:
    """Return True if `length` bytes are equal in both."""
    different = np.int64(0)
    whole = length & ~7
    for i in range(0, whole, 8):
        different |= load(data, at + i, 64) ^ load(other, start + i, 64)
    for i in range(whole, length):
        different |= np.int64(data[at + i] ^ other[start + i])
    return different == 0


@njit
def hash_bytes(data: Any, at: Any, length: Any) -> Any:
    """Return the FNV-1a hash, in 63 bits."""
    value = np.uint64(0xCBF29CE484222325)
    for i in range(length):
        value = (value ^ np.uint64(data[at + i])) * np.uint64(0x100000001B3)
    return np.int64(value >> np.uint64(1))


@helper
def slot_of(keys: Any, key: Any) -> Any:
    """Return the slot of `key` in an open-addressed table. Free slots hold -1; the size is a power of two."""
    mask = len(keys) - 1
    i = (key * 0x9E3779B1) & mask
    while keys[i] != key and keys[i] != -1:
        i = (i + 1) & mask
    return i


@njit
def find_map(data: Any, at: Any, length: Any, maps: Any, map_bytes: Any, map_keys: Any, map_values: Any) -> Any:
    """Return the number of the registered table map with exactly these bytes, or -1.

    `maps` has (offset, length) per map.
    """
    mask = len(map_keys) - 1
    key = hash_bytes(data, at, length)
    i = (key * 0x9E3779B1) & mask
    while map_keys[i] != -1:
        if map_keys[i] == key:
            number = map_values[i]
            if maps[number, 1] == length and same_bytes(data, at, map_bytes, maps[number, 0], length):
                return number
        i = (i + 1) & mask
    return np.int64(-1)
