"""PARTIAL_UPDATE_ROWS events made whole, compiled: the update as it would be without ``binlog_row_value_options``.

Called by `partial_updates` per event, so that the row loop knows only whole images. In such an event each row's after
image may give JSON columns as differences to the before image (sql/log_event.cc, ``Rows_log_event::unpack_row``):
before: null bits, values; after: options (packed), with option 1 a bit per JSON column, null bits, values. A column
whose bit is set has length (4) and diffs: operation (1), path (packed length), unless it removes value (packed length).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.compiled import copy, helper, njit
from raycdc.connectors.mysql.arena_loops import little_endian
from raycdc.connectors.mysql.binlog_row_loops import (
    WIRE_BIT,
    WIRE_BYTES,
    WIRE_DATE,
    WIRE_DATETIME,
    WIRE_DATETIME2,
    WIRE_DECIMAL,
    WIRE_DECIMAL_SHORT,
    WIRE_DECIMAL_TEXT,
    WIRE_DOUBLE,
    WIRE_ENUM,
    WIRE_FLOAT,
    WIRE_INT8,
    WIRE_INT16,
    WIRE_INT24,
    WIRE_INT32,
    WIRE_INT64,
    WIRE_JSON,
    WIRE_NUMBER,
    WIRE_SET,
    WIRE_TEXT,
    WIRE_TIME,
    WIRE_TIME2,
    WIRE_TIMESTAMP,
    WIRE_TIMESTAMP2,
    WIRE_UINT8,
    WIRE_UINT16,
    WIRE_UINT24,
    WIRE_UINT32,
    WIRE_UINT64,
    WIRE_YEAR,
)
from raycdc.connectors.mysql.decimal_loops import decimal_bytes
from raycdc.connectors.mysql.json_diff_loops import DIFF_CORRUPT, DIFF_NO_ROOM, REMOVE, apply_diff

WHOLE_NO_ROOM = DIFF_NO_ROOM
WHOLE_CORRUPT = DIFF_CORRUPT

_UPDATE_ROWS = 31
_HEADER = 19


@helper
def _packed(data: Any, at: Any, end: Any) -> Any:
    """(length-encoded integer, offset after it or -1)."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    first = np.int64(data[at])
    if first < 251:
        return first, at + 1
    width = 2 if first == 252 else (3 if first == 253 else (8 if first == 254 else 0))
    if width == 0 or at + 1 + width > end:
        return np.int64(0), np.int64(-1)
    return little_endian(data, at + 1, width), at + 1 + width


@helper
def _value_bytes(data: Any, at: Any, end: Any, wire: Any, wire1: Any, wire2: Any) -> Any:
    """Bytes of a value that is not null, length included; -1 when it does not end before `end`."""
    size = np.int64(-1)
    if wire == WIRE_INT32 or wire == WIRE_UINT32 or wire == WIRE_FLOAT or wire == WIRE_TIMESTAMP:
        size = np.int64(4)
    elif wire == WIRE_INT64 or wire == WIRE_UINT64 or wire == WIRE_DOUBLE or wire == WIRE_DATETIME:
        size = np.int64(8)
    elif wire == WIRE_INT8 or wire == WIRE_UINT8 or wire == WIRE_YEAR:
        size = np.int64(1)
    elif wire == WIRE_INT16 or wire == WIRE_UINT16:
        size = np.int64(2)
    elif wire == WIRE_INT24 or wire == WIRE_UINT24 or wire == WIRE_DATE or wire == WIRE_TIME:
        size = np.int64(3)
    elif wire == WIRE_TEXT or wire == WIRE_BYTES or wire == WIRE_JSON:
        if at + wire1 > end:
            return np.int64(-1)
        size = wire1 + (np.int64(data[at]) if wire1 == 1 else little_endian(data, at, wire1))
    elif wire == WIRE_DECIMAL or wire == WIRE_DECIMAL_SHORT or wire == WIRE_DECIMAL_TEXT:
        size = decimal_bytes(wire1, wire2)
    elif wire == WIRE_DATETIME2:
        size = 5 + ((wire1 + 1) >> 1)
    elif wire == WIRE_TIMESTAMP2:
        size = 4 + ((wire1 + 1) >> 1)
    elif wire == WIRE_TIME2:
        size = 3 + ((wire1 + 1) >> 1)
    elif wire == WIRE_BIT or wire == WIRE_ENUM or wire == WIRE_SET or wire == WIRE_NUMBER:
        size = wire1
    return np.int64(size) if size >= 0 and at + size <= end else np.int64(-1)


@helper
def _with_diffs(
    data: Any, at: Any, end: Any, old: Any, old_end: Any, levels: Any, key: Any, one: Any, other: Any, third: Any
) -> Any:
    """The value in ``data[old:old_end]`` after the diffs in ``data[at:end]``, in `third`; its end or WHOLE_…."""
    size = old_end - old
    if size > len(third):
        return np.int64(WHOLE_NO_ROOM)
    copy(data, old, third, 0, size)
    while at < end:
        operation = np.int64(data[at])
        length, path = _packed(data, at + 1, end)
        if operation > REMOVE or path < 0 or length < 0 or path + length > end:
            return np.int64(WHOLE_CORRUPT)
        value = path + length
        after = value
        if operation != REMOVE:
            count, value = _packed(data, path + length, end)
            if value < 0 or count < 1 or value + count > end:
                return np.int64(WHOLE_CORRUPT)
            after = value + count
        size = apply_diff(
            third, np.int64(0), size, operation, data, path, path + length, data, value, after, levels, key, one, other
        )
        if size < 0:
            return size
        if size > len(third):
            return np.int64(WHOLE_NO_ROOM)
        copy(one, 0, third, 0, size)
        at = after
    return np.int64(size)


# long: the images of a row are walked side by side
@njit
def whole_update(
    data: Any, at: Any, end: Any, wire: Any, wire1: Any, wire2: Any, out: Any, used: Any,
    before: Any, levels: Any, key: Any, one: Any, other: Any, third: Any,
) -> Any:  # fmt: skip
    """Append the event in ``data[at:end]`` (no checksum) to `out` as UPDATE_ROWS; the new `used`, or WHOLE_….

    `before` has a line (start, end) per column for where the before image's value is. An event whose images lack
    columns is written without rows: the row loop refuses it by its bitmaps.
    """
    start = used
    columns = len(wire)
    p = at + _HEADER + 8
    if p + 2 > end:
        return np.int64(WHOLE_CORRUPT)
    p += little_endian(data, p, 2)
    count, p = _packed(data, p, end)
    bitmap = (columns + 7) >> 3
    if p < 0 or count != columns or p + 2 * bitmap > end:
        return np.int64(WHOLE_CORRUPT)
    complete = True
    documents = 0
    for c in range(columns):
        complete = complete and (data[p + (c >> 3)] >> (c & 7)) & 1 != 0
        complete = complete and (data[p + bitmap + (c >> 3)] >> (c & 7)) & 1 != 0
        if wire[c] == WIRE_JSON:
            documents += 1
    p += 2 * bitmap
    if used + (p - at) > len(out):
        return np.int64(WHOLE_NO_ROOM)
    copy(data, at, out, used, p - at)
    out[used + 4] = _UPDATE_ROWS
    used += p - at
    while complete and p < end:
        nulls = p
        p += bitmap
        if p > end:
            return np.int64(WHOLE_CORRUPT)
        for c in range(columns):
            before[c, 0] = -1
            if (data[nulls + (c >> 3)] >> (c & 7)) & 1 == 0:
                size = _value_bytes(data, p, end, wire[c], wire1[c], wire2[c])
                if size < 0:
                    return np.int64(WHOLE_CORRUPT)
                before[c, 0] = p + (wire1[c] if wire[c] == WIRE_JSON else 0)
                before[c, 1] = p + size
                p += size
        if used + (p - nulls) > len(out):
            return np.int64(WHOLE_NO_ROOM)
        copy(data, nulls, out, used, p - nulls)
        used += p - nulls
        options, p = _packed(data, p, end)
        if p < 0 or options > 1:
            return np.int64(WHOLE_CORRUPT)
        partial = p
        if options == 1:
            p += (documents + 7) >> 3
        nulls = p
        p += bitmap
        if p > end:
            return np.int64(WHOLE_CORRUPT)
        if used + bitmap > len(out):
            return np.int64(WHOLE_NO_ROOM)
        copy(data, nulls, out, used, bitmap)
        used += bitmap
        document = 0
        for c in range(columns):
            by_diff = False
            if wire[c] == WIRE_JSON:
                by_diff = options == 1 and (data[partial + (document >> 3)] >> (document & 7)) & 1 != 0
                document += 1
            if (data[nulls + (c >> 3)] >> (c & 7)) & 1:
                continue
            size = _value_bytes(data, p, end, wire[c], wire1[c], wire2[c])
            if size < 0 or (by_diff and before[c, 0] < 0):
                return np.int64(WHOLE_CORRUPT)
            if not by_diff:
                if used + size > len(out):
                    return np.int64(WHOLE_NO_ROOM)
                copy(data, p, out, used, size)
                used += size
            else:
                width = wire1[c]
                length = _with_diffs(
                    data, p + width, p + size, before[c, 0], before[c, 1], levels, key, one, other, third
                )
                if length < 0:
                    return length
                if used + width + length > len(out):
                    return np.int64(WHOLE_NO_ROOM)
                for i in range(width):
                    out[used + i] = (length >> (8 * i)) & 255
                copy(third, 0, out, used + width, length)
                used += width + length
            p += size
    length = used - start
    for i in range(4):
        out[start + 9 + i] = (length >> (8 * i)) & 255
    return np.int64(used)
