"""Compiled loops that complete PARTIAL_UPDATE_ROWS events.

The result is the update as a server logs it without ``binlog_row_value_options``. `partial_updates` calls
`whole_update` for each event, so that the row loop handles only complete images.

In such an event, the after-image of a row may have JSON values as differences to the before-image
(sql/log_event.cc, ``Rows_log_event::unpack_row``):

| part | layout |
|---|---|
| before-image | null bits, values |
| after-image | options (packed), null bits, values; with option 1, a bit for each JSON column follows the options |
| JSON value whose bit is set | length (4), then diffs |
| diff | operation (1), path (packed length), and a value (packed length) unless the diff removes an element |
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.binlog.json_diff_loops import DIFF_CORRUPT, DIFF_NO_ROOM, REMOVE, apply_diff
from raycdc.connectors.mysql.values.arena_loops import little_endian
from raycdc.core.compiled import copy, helper, njit

WHOLE_NO_ROOM = DIFF_NO_ROOM
WHOLE_CORRUPT = DIFF_CORRUPT

_UPDATE_ROWS = 31
_HEADER = 19


@helper
def _packed(data: Any, at: Any, end: Any) -> Any:
    """Return (length-encoded integer, offset after it or -1)."""
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
def _value_bytes(data: Any, at: Any, end: Any, step: Any) -> Any:
    """Return the size of a non-null value with its length prefix (of ``-step`` bytes); -1 if it ends after `end`."""
    size = np.int64(step)
    if step < 0:
        if at - step > end:
            return np.int64(-1)
        size = little_endian(data, at, -step) - step
    return size if at + size <= end else np.int64(-1)


@helper
def _with_diffs(
    data: Any, at: Any, end: Any, old: Any, old_end: Any, levels: Any, key: Any, one: Any, other: Any, third: Any
) -> Any:
    """Apply the diffs in ``data[at:end]`` to the value in ``data[old:old_end]``.

    The result is in `third`. Returns its end, or WHOLE_….
    """
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


# long: it reads the before-image and the after-image of a row together, because differences refer to the before-image
@njit
def whole_update(
    data: Any, at: Any, end: Any, steps: Any, json: Any, out: Any, used: Any,
    before: Any, levels: Any, key: Any, one: Any, other: Any, third: Any,
) -> Any:  # fmt: skip
    """Append the event in ``data[at:end]`` (no checksum) to `out` as UPDATE_ROWS. Returns the new `used`, or WHOLE_….

    `steps` and `json` are of `plan.WirePlan`. `before` has a line (start, end) per column with the position of the
    value in the before-image. An event whose images lack columns is written without rows, and the row loop refuses it.
    """
    start = used
    columns = len(steps)
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
        if json[c]:
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
                size = _value_bytes(data, p, end, steps[c])
                if size < 0:
                    return np.int64(WHOLE_CORRUPT)
                before[c, 0] = p + (-steps[c] if json[c] else 0)
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
            if json[c]:
                by_diff = options == 1 and (data[partial + (document >> 3)] >> (document & 7)) & 1 != 0
                document += 1
            if (data[nulls + (c >> 3)] >> (c & 7)) & 1:
                continue
            size = _value_bytes(data, p, end, steps[c])
            if size < 0 or (by_diff and before[c, 0] < 0):
                return np.int64(WHOLE_CORRUPT)
            if not by_diff:
                if used + size > len(out):
                    return np.int64(WHOLE_NO_ROOM)
                copy(data, p, out, used, size)
                used += size
            else:
                width = -steps[c]
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
