"""Compiled loops of `sort_keys`: they write statements with a thousand literals, convert times, and search bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import helper, njit


@njit
def write_items(
    prefix: Any, suffix: Any, data: Any, offsets: Any, first: int, stop: int, out: Any, bytes_max: int, position: Any
) -> None:
    """Write ``prefix hex suffix`` for items from `first` on, while they fit.

    `position` is (bytes written, next item).
    """
    at = position[0]
    item = first
    while item < stop:
        begin, end = np.int64(offsets[item]), np.int64(offsets[item + 1])
        need = prefix.shape[0] + 2 * (end - begin) + suffix.shape[0]
        if item > first and at + need > bytes_max:
            break
        for i in range(prefix.shape[0]):
            out[at + i] = prefix[i]
        at += prefix.shape[0]
        for i in range(begin, end):
            high, low = data[i] >> 4, data[i] & 15
            out[at] = high + (48 if high < 10 else 87)
            out[at + 1] = low + (48 if low < 10 else 87)
            at += 2
        for i in range(suffix.shape[0]):
            out[at + i] = suffix[i]
        at += suffix.shape[0]
        item += 1
    position[0] = at
    position[1] = item


@njit
def time_micros(data: Any, offsets: Any, out: Any) -> None:
    """Convert ``[-]h:mm:ss[.ffffff]`` to microseconds. An empty text (null) becomes 0."""
    for row in range(out.shape[0]):
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        negative = at < end and data[at] == 45
        if negative:
            at += 1
        total: Any = 0
        part: Any = 0
        digits = -1
        while at < end:
            c = np.int64(data[at])
            if c == 58:
                total = (total + part) * 60
                part = 0
            elif c == 46:
                digits = 0
                total = total + part
                part = 0
            else:
                part = part * 10 + c - 48
                if digits >= 0:
                    digits += 1
            at += 1
        if digits >= 0:
            for _ in range(6 - digits):
                part *= 10
            total = total * 1000000 + part
        else:
            total = (total + part) * 1000000
        out[row] = -total if negative else total


@helper
def _compare(one: Any, one_begin: Any, one_end: Any, two: Any, two_begin: Any, two_end: Any, pad: Any) -> Any:
    """Return -1, 0 or 1 in byte order.

    The shorter key is continued by `pad` repeatedly (if it is empty, shorter is less).
    """
    a, b = one_begin, two_begin
    while a < one_end and b < two_end:
        if one[a] != two[b]:
            return -1 if one[a] < two[b] else 1
        a += 1
        b += 1
    if a == one_end and b == two_end:
        return 0
    if pad.shape[0] == 0:
        return -1 if a == one_end else 1
    unit = 0
    while a < one_end:
        if one[a] != pad[unit]:
            return -1 if one[a] < pad[unit] else 1
        a += 1
        unit = (unit + 1) % pad.shape[0]
    while b < two_end:
        if two[b] != pad[unit]:
            return 1 if two[b] < pad[unit] else -1
        b += 1
        unit = (unit + 1) % pad.shape[0]
    return 0


@njit
def classify_bytes(data: Any, offsets: Any, bounds: Any, bound_offsets: Any, pad: Any, equal: Any, out: Any) -> None:
    """Set `out[i]` to the number of sorted bounds below key `i`, or also equal to it if `equal` is set."""
    for row in range(out.shape[0]):
        low, high = 0, bound_offsets.shape[0] - 1
        while low < high:
            middle = (low + high) // 2
            order = _compare(
                bounds, bound_offsets[middle], bound_offsets[middle + 1], data, offsets[row], offsets[row + 1], pad
            )
            if order < 0 or (order == 0 and equal):
                low = middle + 1
            else:
                high = middle
        out[row] = low
