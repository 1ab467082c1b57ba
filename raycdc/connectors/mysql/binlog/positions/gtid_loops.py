"""GTID_TAGGED events (MySQL 8.3 and newer), compiled.

Their body is a message of MySQL's serialization library (libs/mysql/serialization, readme.md): numbers of variable
length, each field preceded by its id. A number of n + 1 bytes begins with n one-bits (low bits first), then a zero; the
value is above them. Signed numbers have their sign in the lowest bit. The fields of the event: 0 flags, 1 uuid (16
numbers), 2 transaction number, 3 tag, 4 last_committed, 5 sequence_number, 6 immediate_commit_timestamp, …
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import little_endian
from raycdc.core.compiled import helper, njit

_TAG_MAX = 32


@helper
def varying(data: Any, at: Any, end: Any) -> Any:
    """Return (unsigned value, offset after it). The offset is -1 if the number does not end before `end`."""
    if at < 0 or at >= end:
        return np.int64(0), np.int64(-1)
    first = np.int64(data[at])
    more = 0
    while more < 8 and (first >> more) & 1:
        more += 1
    if at + more + 1 > end:
        return np.int64(0), np.int64(-1)
    if more == 8:
        return little_endian(data, at + 1, 8), at + 9
    if more == 7:
        return little_endian(data, at + 1, 7), at + 8
    return little_endian(data, at, more + 1) >> (more + 1), at + more + 1


# long: one field after the other
@helper
def tagged_gtid(data: Any, at: Any, end: Any, keys: Any, slot: Any) -> Any:
    """Return (transaction number or -1, commit time in µs or 0).

    Writes UUID and tag into the six words of ``keys[slot]``.
    """
    _, at = varying(data, at, end)  # version
    _, at = varying(data, at, end)  # size
    _, at = varying(data, at, end)  # last field that may not be ignored
    number = np.int64(-1)
    micros = np.int64(0)
    while at >= 0 and at < end:
        field, at = varying(data, at, end)
        if at < 0:
            break
        if field == 1:
            for i in range(16):
                byte, at = varying(data, at, end)
                if at < 0 or byte < 0 or byte > 255:
                    return np.int64(-1), micros
                keys[slot, i >> 3] |= byte << (8 * (i & 7))
        elif field == 2:
            value, at = varying(data, at, end)
            if at < 0 or value & 1:
                return np.int64(-1), micros
            number = value >> 1
        elif field == 3:
            size, at = varying(data, at, end)
            if at < 0 or size < 0 or size > _TAG_MAX or at + size > end:
                return np.int64(-1), micros
            for i in range(size):
                keys[slot, 2 + (i >> 3)] |= np.int64(data[at + i]) << (8 * (i & 7))
            at += size
        elif field == 6:
            micros, at = varying(data, at, end)
            if at < 0 or micros < 0:
                return np.int64(-1), np.int64(0)
            break
        else:
            _, at = varying(data, at, end)
    if at < 0:
        return np.int64(-1), micros
    return number, micros


@njit
def read_tagged_gtid(data: Any, at: Any, end: Any, keys: Any) -> Any:
    """Call `tagged_gtid` for Python, with the first line of `keys`."""
    return tagged_gtid(data, at, end, keys, 0)
