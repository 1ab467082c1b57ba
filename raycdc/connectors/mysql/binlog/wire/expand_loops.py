"""Compiled loops that copy events into a buffer, with compressed events replaced by their content.

Called by `expand`. Events in the copy have no checksum: events inside a compressed event never had one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.binlog.index_loops import (
    COMPRESSED_FIRST,
    COMPRESSED_LAST,
    FORMAT_DESCRIPTION,
    HEADER_BYTES,
    ROTATE,
    TRANSACTION_PAYLOAD,
    event_length,
)
from raycdc.connectors.mysql.binlog.wire.packet_loops import crc32
from raycdc.connectors.mysql.values.arena_loops import little_endian
from raycdc.core.compiled import copy, njit

COPY_END = 0  # all events are copied
COPY_FULL = 1  # no room for the event
COPY_COMPRESSED = 2  # a compressed event, checked, not copied
COPY_FORMAT = 3  # a new file or format: the copy ends before it
COPY_CHECKSUM = 4  # the checksum of the event does not match
COPY_LENGTH = 5  # its length is impossible
COPY_POSITION = 6  # the event does not end at its recorded position


@njit
def copy_plain(data: Any, at: Any, end: Any, checksum: Any, verify: Any, position: Any, out: Any, used: Any) -> Any:
    """Copy events from `at` to ``out[used:]`` without their checksums. Returns (COPY_…, offset of the stop, used,
    position).

    `position` is where the previous event ends (32 bits), or -1 if events may end anywhere. The returned position is
    the new one.
    """
    while at < end:
        length = event_length(data, at, end)
        if length <= 0 or length < HEADER_BYTES + checksum:
            return COPY_LENGTH, at, used, position
        kind = np.int64(data[at + 4])
        if kind == FORMAT_DESCRIPTION or kind == ROTATE:
            return COPY_FORMAT, at, used, position
        size = length - checksum
        if verify and checksum == 4 and np.int64(crc32(data, at, at + size)) != little_endian(data, at + size, 4):
            return COPY_CHECKSUM, at, used, position
        if position >= 0 and little_endian(data, at + 13, 4) != ((position + length) & 0xFFFFFFFF):
            return COPY_POSITION, at, used, position
        if kind == TRANSACTION_PAYLOAD or COMPRESSED_FIRST <= kind <= COMPRESSED_LAST:
            return COPY_COMPRESSED, at, used, position
        if used + size > len(out):
            return COPY_FULL, at, used, position
        copy(data, at, out, used, size)
        for i in range(4):
            out[used + 9 + i] = (size >> (8 * i)) & 255
        used += size
        at += length
        if position >= 0:
            position = (position + length) & 0xFFFFFFFF
    return COPY_END, at, used, position


@njit
def find_compressed(data: Any, at: Any, end: Any) -> Any:
    """Return the offset of the first compressed event, or `end`."""
    while at < end:
        length = event_length(data, at, end)
        if length <= 0:
            return end
        kind = np.int64(data[at + 4])
        if kind == TRANSACTION_PAYLOAD or COMPRESSED_FIRST <= kind <= COMPRESSED_LAST:
            return at
        at += length
    return end


@njit
def set_end_positions(out: Any, at: Any, end: Any, position: Any) -> Any:
    """Give the complete events of ``out[at:end]`` the end position `position`; return the offset after the last one.

    Returns -1 if there is no valid event, or one that is never inside another.
    """
    while at < end:
        length = event_length(out, at, end)
        if length < 0:
            return np.int64(-1)
        if length == 0:
            return at
        kind = np.int64(out[at + 4])
        if (
            kind == TRANSACTION_PAYLOAD or kind == FORMAT_DESCRIPTION or kind == ROTATE
            or COMPRESSED_FIRST <= kind <= COMPRESSED_LAST
        ):  # fmt: skip
            return np.int64(-1)
        for i in range(4):
            out[at + 13 + i] = (position >> (8 * i)) & 255
        at += length
    return at
