"""Compiled loops that find each value of a block of row events (the walk), and check all bounds.

Rows are read in blocks that fit the processor's cache: the walk notes the first byte and the length of every value,
then `row_loops` writes column after column. A block may have rows of several events, so that small transactions are
also read in large blocks. The two rows of an update stay together.

Layout: MySQL Internals manual, "Rows Event": per row a bitmap of NULLs with one bit for each column *that the event
has*, and the values that are not NULL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.binlog.index_loops import E_AT, E_END, E_OP, E_ROWS, E_V2
from raycdc.connectors.mysql.values.arena_loops import little_endian
from raycdc.core.compiled import helper, inlined, load

ROWS_END = 0  # all events are decoded
ROWS_FULL = 1  # the batch is full: take it and call again
ROWS_TEXT = 2  # a text column is full: take the batch or grow, and call again
ROWS_BOUNDS = 3  # damage: a value ends outside its event
ROWS_IMAGE = 4  # not all columns are present (binlog_row_image is not FULL)
ROWS_COLUMNS = 5  # the event has another number of columns than its table map
ROWS_LABEL = 6  # an ENUM index or SET bit that the table has no label for
ROWS_JSON = 7  # damaged JSON
ROWS_DATE = 8  # a date that no calendar has, and the policy is to fail
ROWS_BOOLEAN = 9  # a TINYINT(1) read as a boolean is neither 0 nor 1
ROWS_VALUE = 10  # a value has a length its type does not have
ROWS_KEY = 12  # a key without a distinct text in Unicode
ROWS_BLOCK = 11  # inside the loops: the block is full

# The cursor, kept between calls.
C_EVENT = 0  # index into `order`
C_AT = 1  # offset of the next row; 0: at the head of the event
C_ROW_IN_EVENT = 2
C_ROWS = 3  # rows in the arena
C_TEXT = 4  # bytes of text in the arena
C_COLUMN = 5  # where a failure occurred: the column of the table
C_FAILED = 6  # … and the number of the event
C_NEXT = 8  # C_EVENT … C_TEXT after the block
C_SIZE = 16

#: The bytes of a block in the log: its input stays in the cache until all columns are written.
_BLOCK_BYTES = 64 << 10


@inlined
def _event_head(data: Any, event: Any, columns: Any, optional: Any, present: Any) -> Any:
    """Check an event's head. Return (ROWS_…, offset of the first row), and fill `present`.

    table_id(6) flags(2) [version 2: extra_length(2) extra] columns(packed) present-bitmap [update: a second one].
    ``present[image, 0]`` is the number of columns in that image, followed by the columns.
    """
    at = event[E_AT] + 8
    end = event[E_END]
    if event[E_V2] != 0:
        if at + 2 > end:
            return ROWS_BOUNDS, at
        at += little_endian(data, at, 2)
    if at + 1 > end:
        return ROWS_BOUNDS, at
    found = np.int64(data[at])
    at += 1
    if found == 252:
        if at + 2 > end:
            return ROWS_BOUNDS, at
        found = little_endian(data, at, 2)
        at += 2
    if found != columns:
        return ROWS_COLUMNS, at
    size = (columns + 7) >> 3
    images = 2 if event[E_OP] == 1 else 1
    if at + size * images > end:
        return ROWS_BOUNDS, at
    for image in range(images):
        full = True
        for c in range(columns):
            shown = (data[at + image * size + (c >> 3)] >> (c & 7)) & 1
            if shown != 1 - optional[c]:
                return (ROWS_COLUMNS if shown else ROWS_IMAGE), at
            full = full and shown == 1
        # Most events have all columns, so that the list need not be made again.
        if not full or present[image, 0] != columns:
            count = 0
            for c in range(columns):
                if not optional[c]:
                    count += 1
                    present[image, count] = c
            present[image, 0] = count
    return ROWS_END, at + size * images


@inlined
def _nulls(data: Any, at: Any, count: Any) -> Any:
    """Return True if any of the first `count` bits is set. Later bits may have any value."""
    whole = count >> 3
    found = np.uint8(0)
    for i in range(whole):
        found |= data[at + i]
    if count & 7:
        found |= data[at + whole] & np.uint8((1 << (count & 7)) - 1)
    return found != 0


@inlined
def _walk_row(
    data: Any, p: Any, end: Any, present: Any, steps: Any, targets: Any, i: Any, row: Any, at: Any, size: Any,
    valid: Any, has_null: Any,
) -> Any:  # fmt: skip
    """Note the values of one row. Return (its end, bytes of values whose length varies).

    The end is -1 - column if a value of that column does not end inside the event.
    """
    count = present[0]
    nulls = p
    text = np.int64(0)
    p += (count + 7) >> 3
    if p > end:
        return np.int64(-1), text
    some = _nulls(data, nulls, count)
    c = np.int64(0)
    for k in range(count):
        c = present[k + 1]
        if some and (data[nulls + (k >> 3)] >> (k & 7)) & 1:
            at[c, i] = -1
            target = targets[c]
            if target >= 0:
                valid[target, row] = 0
                has_null[target] = 1
            continue
        step = steps[c]
        if step >= 0:
            at[c, i] = p
            size[c, i] = step
            p += step
            continue
        # The value begins with its length, in -step bytes.
        if p - step > end:
            return -1 - c, text
        if step == -1:
            length = np.int64(data[p])
        elif step == -2:
            length = load(data, p, 16)
        else:
            length = little_endian(data, p, -step)
        p -= step
        if p + length > end:
            return -1 - c, text
        at[c, i] = p
        size[c, i] = length
        text += length
        p += length
    return (p if p <= end else -1 - c), text


@helper
def walk_rows(
    data: Any, events: Any, order: Any, steps: Any, optional: Any, targets: Any, present: Any, at: Any, size: Any,
    valid: Any, has_null: Any, limits: Any, op: Any, row_event: Any, row_number: Any, cursor: Any,
) -> Any:  # fmt: skip
    """Walk from the cursor to the end of a block. Return (ROWS_…, rows of the block).

    Also writes `op` (RowKind), `row_event` (index into `events`) and `row_number` (row within its event) per row.
    `limits` is (rows, bytes of one row without its text, bytes of the batch).
    """
    columns = len(steps)
    block_rows = at.shape[1]
    first = cursor[C_ROWS]
    rows_max = min(limits[0], first + block_rows)
    row_bytes, bytes_max = limits[1], limits[2]
    index, p, in_event, text = cursor[C_EVENT], cursor[C_AT], cursor[C_ROW_IN_EVENT], cursor[C_TEXT]
    row = first
    read = np.int64(0)
    code = ROWS_END
    while index < len(order):
        number = order[index]
        end = events[number, E_END]
        kind = events[number, E_OP]
        images = 2 if kind == 1 else 1
        code, head_end = _event_head(data, events[number], columns, optional, present)
        if code != ROWS_END:
            cursor[C_FAILED] = number
            break
        if p == 0:
            p = head_end
            in_event = 0
        while p < end:
            if row + images > rows_max:
                code = ROWS_FULL if row + images > limits[0] else ROWS_BLOCK
                break
            full = row > 0 and text + row * row_bytes > bytes_max
            if full or read > _BLOCK_BYTES:
                code = ROWS_FULL if full else ROWS_BLOCK
                break
            begin = p
            for image in range(images):
                p, more = _walk_row(
                    data, p, end, present[image], steps, targets, row - first + image, row + image, at, size, valid,
                    has_null,
                )  # fmt: skip
                if p < 0:
                    break
                text += more
                op[row + image] = 1 + image if kind == 1 else (0 if kind == 0 else 3)
                row_event[row + image] = number
                row_number[row + image] = in_event + image
            if p < 0:
                code = ROWS_BOUNDS
                cursor[C_FAILED] = number
                cursor[C_COLUMN] = max(targets[-1 - p], 0)
                break
            read += p - begin
            row += images
            in_event += images
        if code != ROWS_END:
            break
        events[number, E_ROWS] = in_event
        index += 1
        p = 0
    cursor[C_NEXT + C_EVENT] = index
    cursor[C_NEXT + C_AT] = p
    cursor[C_NEXT + C_ROW_IN_EVENT] = in_event
    cursor[C_NEXT + C_ROWS] = row
    cursor[C_NEXT + C_TEXT] = text
    return code, row - first
