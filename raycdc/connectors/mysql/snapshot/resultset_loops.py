"""Compiled loops that decode result sets of the binary protocol into Arrow column buffers (the arena).

`resultset` receives the packets and calls these loops, which neither allocate memory nor hold the GIL. A row is
``00, NULL bitmap, values`` (MySQL internals manual, "Binary Protocol Resultset Row"); the form of a value depends on
the column's wire type, which `resultset.plan_columns` combined with the arena's column into a line of the plan. A walk
finds the values of a block of rows, and `values.block_loops` writes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import COLUMN_DONE, COLUMN_FULL, FAILED_ROW, little_endian
from raycdc.connectors.mysql.values.block_loops import write_block
from raycdc.core.compiled import helper, inlined, njit

# The reasons why `decode_rows` returned.
NEED_MORE = 0
BATCH_FULL = 1
TEXT_FULL = 2
END_OF_ROWS = 3
SERVER_ERROR = 4
MALFORMED = 5
COLUMN_FAILED = 6  # a column cannot hold a value
BLOCK_FULL = 7  # inside the loops: the block is full

# The results of `scan_packets`.
SCAN_MORE = 0
SCAN_END = 1
SCAN_LONG = 2

#: The payload length if the payload continues in the next packet.
PACKET_MAX = 0xFFFFFF
#: The bytes that must be readable after the last packet, because fixed-width reads are checked once per value, not per
#: byte.
SLACK = 64
#: The bytes of packets in a block, which stay in the cache until all columns are written.
_BLOCK_BYTES = 64 << 10


@njit
def scan_packets(data: Any, start: Any, end: int, position: Any) -> int:
    """Walk over complete packets; `position[0]` becomes the end of the last one.

    Returns `SCAN_END` after an EOF or error packet (then `position[1]` is its start), `SCAN_LONG` at the first packet
    of a longer payload, `SCAN_MORE` when more bytes are needed.
    """
    at = start
    while at + 4 <= end:
        length = np.int64(data[at]) | (np.int64(data[at + 1]) << 8) | (np.int64(data[at + 2]) << 16)
        if length == PACKET_MAX:
            position[0] = at
            return SCAN_LONG
        if at + 4 + length > end:
            break
        first = data[at + 4] if length > 0 else 0
        if length > 0 and ((first == 0xFE and length < 9) or first == 0xFF):
            position[0] = at + 4 + length
            position[1] = at
            return SCAN_END
        at += 4 + length
    position[0] = at
    return SCAN_MORE


@inlined
def _length_at(data: Any, at: Any) -> Any:
    """Return the value and the width of a length-encoded integer."""
    first = np.int64(data[at])
    if first < 251:
        return first, 1
    if first == 252:
        return little_endian(data, at + 1, 2), 3
    if first == 253:
        return little_endian(data, at + 1, 3), 4
    return little_endian(data, at + 1, 8), 9


@inlined
def _walk_row(
    data: Any, p: Any, stop: Any, steps: Any, i: Any, row: Any, at: Any, size: Any, valid: Any, has_null: Any
) -> Any:
    """Note the values of the row ``data[p:stop]``.

    Returns the bytes of values with variable length, -1 if it is damaged.
    """
    count = len(steps)
    bitmap = p
    text = np.int64(0)
    p += (count + 9) >> 3
    if p > stop:
        return np.int64(-1)
    some = np.uint8(0)
    for k in range(bitmap, p):
        some |= data[k]
    for c in range(count):
        # The first two bits of the bitmap are reserved.
        if some != 0 and (data[bitmap + ((c + 2) >> 3)] >> ((c + 2) & 7)) & 1:
            at[c, i] = -1
            valid[c, row] = 0
            has_null[c] = 1
            continue
        step = steps[c]
        if step >= 0:
            at[c, i] = p
            size[c, i] = step
            p += step
            continue
        if p >= stop:
            return np.int64(-1)
        length = np.int64(data[p])
        p += 1
        if length >= 251:
            # Bytes after the packet can be read (SLACK), but belong to no row.
            length, width = _length_at(data, p - 1)
            p += width - 1
        if length < 0 or length > stop - p:
            return np.int64(-1)
        at[c, i] = p
        size[c, i] = length
        text += length
        p += length
    return text if p == stop else np.int64(-1)


@helper
def _walk_packets(
    data: Any, start: Any, end: Any, steps: Any, at: Any, size: Any, valid: Any, has_null: Any, limits: Any,
    position: Any, after: Any,
) -> Any:  # fmt: skip
    """Walk over packets to the end of a block; return (reason, rows). `after` is `position` after the block."""
    rows_max, row_bytes, bytes_max = limits[0], limits[1], limits[2]
    block_rows = at.shape[1]
    packet = start
    first = position[1]
    row = first
    text = position[2]
    reason = NEED_MORE
    while packet + 4 < end:
        length = np.int64(data[packet]) | (np.int64(data[packet + 1]) << 8) | (np.int64(data[packet + 2]) << 16)
        # The caller has joined a payload of several packets, and `end` is its end.
        stop = end if length == PACKET_MAX else packet + 4 + length
        if stop > end or length == 0:
            break
        head = data[packet + 4]
        if head != 0:
            reason = END_OF_ROWS if head == 0xFE and length < 9 else (SERVER_ERROR if head == 0xFF else MALFORMED)
            break
        if row > 0 and (row >= rows_max or text + row * row_bytes >= bytes_max):
            reason = BATCH_FULL
            break
        if row - first == block_rows or packet - start > _BLOCK_BYTES:
            reason = BLOCK_FULL
            break
        more = _walk_row(data, packet + 5, stop, steps, row - first, row, at, size, valid, has_null)
        if more < 0:
            reason = MALFORMED
            break
        text += more
        row += 1
        packet = stop
    after[0] = packet
    after[1] = row
    after[2] = text
    return reason, row - first


@njit
def decode_rows(
    data: Any, start: Any, end: Any, steps: Any, plan: Any, at: Any, size: Any, arena: Any, limits: Any, position: Any,
    after: Any,
) -> Any:  # fmt: skip
    """Decode packets from `start` into the arena, until the caller must act.

    `position` is (start of the first packet not consumed, next row, text bytes of the batch) and is updated; `limits`
    is (rows, bytes of one row without its text, bytes of the batch). The row that exceeds a limit is included. `at`,
    `size` and `after` are scratch memory. Returns one of the reasons above; after COLUMN_FAILED the arena's counters
    say which column failed and why.
    """
    losses, counters = arena.losses, arena.counters
    while True:
        reason, count = _walk_packets(
            data, start, end, steps, at, size, arena.valid, arena.has_null, limits, position, after
        )
        if count > 0:
            for column in range(len(plan)):
                losses[1, column] = losses[0, column]
            written = write_block(data, at, size, count, position[1], plan, arena)
            if written != COLUMN_DONE:
                for column in range(len(plan)):
                    losses[0, column] = losses[1, column]
                counters[FAILED_ROW] = written
                position[0] = start
                return TEXT_FULL if written == COLUMN_FULL else COLUMN_FAILED
        start = after[0]
        for field in range(3):
            position[field] = after[field]
        if reason != BLOCK_FULL:
            return reason


@njit
def split_cells(data: Any, start: Any, end: int, offsets: Any, lengths: Any) -> int:
    """Find the offsets and lengths of the cells of one row of the text protocol (NULL: -1). Returns their number."""
    at = start
    count = 0
    while at < end and count < offsets.shape[0]:
        if data[at] == 0xFB:
            offsets[count] = at + 1
            lengths[count] = -1
            at += 1
        else:
            length, width = _length_at(data, at)
            offsets[count] = at + width
            lengths[count] = length
            at += width + length
        count += 1
    return count


@njit
def gather_cells(data: Any, offsets: Any, lengths: Any, out_offsets: Any, out: Any) -> None:
    """Copy cells next to each other; `out_offsets` has one more entry than there are cells."""
    at = np.int64(0)
    out_offsets[0] = 0
    for i in range(offsets.shape[0]):
        for j in range(lengths[i]):
            out[at + j] = data[offsets[i] + j]
        if lengths[i] > 0:
            at += lengths[i]
        out_offsets[i + 1] = at
