"""Compiled loops over a result set of the binary protocol: packets to rows in a column arena.

`resultset` receives bytes and calls these; nothing here allocates or holds the GIL. A row is
``00, NULL bitmap, values`` (MySQL internals manual, "Binary Protocol Resultset Row"); how a value is written depends
on the column's wire type, which `resultset.plan_operations` joined with the arena's column into one operation code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.compiled import copy, helper, njit
from raycdc.connectors.mysql.arena_loops import (
    COUNT_ZERO_DATES,
    FULL_NEED,
    FULL_SLOT,
    NO_DATE,
    date_days,
    little_endian,
    little_endian_signed,
    multiply_add,
    put_time,
    store_decimal,
)

# Operations: what the wire holds and where it goes.
OP_INT = 0  # p1: wire bytes, p2: Arrow bytes; signed
OP_UNSIGNED = 1  # the same, unsigned, into a wider column
OP_UINT64 = 2  # 8 bytes into decimal128(20, 0)
OP_INT32 = 3  # 4 bytes into 4 bytes: int, float
OP_INT64 = 4  # 8 bytes into 8 bytes: bigint, double
OP_INT8 = 5  # 1 byte into 1 byte
OP_TEXT = 6  # length-encoded bytes, copied
OP_DECIMAL = 7  # digits of at most 18 places into decimal128
OP_DECIMAL_LONG = 8  # digits into decimal128
OP_DATE = 9
OP_DATETIME = 10
OP_TIME = 11  # p1: fractional digits
OP_BIT = 12  # bytes, most significant first, into int64
OP_BIT64 = 13  # 64 bits into decimal128(20, 0)

# Why `decode_rows` returned.
NEED_MORE = 0
BATCH_FULL = 1
TEXT_FULL = 2
END_OF_ROWS = 3
SERVER_ERROR = 4
MALFORMED = 5

# What `scan_packets` saw last.
SCAN_MORE = 0
SCAN_END = 1
SCAN_LONG = 2

#: Payload length that says "the payload continues in the next packet".
PACKET_MAX = 0xFFFFFF
#: Bytes that must be readable behind the last packet: fixed-width reads are checked once per value, not per byte.
SLACK = 64


@njit
def scan_packets(data: Any, start: Any, end: int, position: Any) -> int:
    """Walk over complete packets; `position[0]` becomes the end of the last one.

    Returns `SCAN_END` behind an EOF or error packet (then `position[1]` is its start), `SCAN_LONG` at a packet that
    is only the first part of a payload, `SCAN_MORE` when the bytes ran out.
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


@helper
def _length_at(data: Any, at: Any) -> Any:
    """Value and width of a length-encoded integer."""
    first = np.int64(data[at])
    if first < 251:
        return first, 1
    if first == 252:
        return little_endian(data, at + 1, 2), 3
    if first == 253:
        return little_endian(data, at + 1, 3), 4
    return little_endian(data, at + 1, 8), 9


@helper
def _short_decimal(data: Any, at: Any, length: Any) -> Any:
    """Unscaled value of at most 18 digits; the point is skipped because the server prints every decimal place."""
    value = np.int64(0)
    negative = False
    for i in range(at, at + length):
        c = np.int64(data[i])
        if c >= 48:
            value = value * 10 + (c - 48)
        elif c == 45:
            negative = True
    return -value if negative else value


@helper
def _put_long_decimal(data: Any, at: Any, length: Any, i64: Any, index: Any) -> None:
    high, low = np.uint64(0), np.uint64(0)
    negative = False
    for i in range(at, at + length):
        c = np.int64(data[i])
        if c >= 48:
            high, low = multiply_add(high, low, 10, c - 48)
        elif c == 45:
            negative = True
    store_decimal(i64, index, high, low, negative)


@helper
def _days(data: Any, at: Any, length: Any) -> Any:
    """Days since the epoch of a DATE, DATETIME or TIMESTAMP of `length` bytes; `NO_DATE` for a zero date."""
    if length < 4:
        return NO_DATE
    year = np.int64(data[at]) | (np.int64(data[at + 1]) << 8)
    return date_days(year, np.int64(data[at + 2]), np.int64(data[at + 3]))


@helper
def _micros_of_day(data: Any, at: Any, length: Any) -> Any:
    """Time of day of a DATETIME or TIMESTAMP of `length` bytes; trailing zero parts are not sent."""
    micros = np.int64(0)
    if length >= 7:
        micros = np.int64(data[at + 4]) * 3600 + np.int64(data[at + 5]) * 60 + np.int64(data[at + 6])
        micros *= 1000000
    if length >= 11:
        micros += little_endian(data, at + 7, 4)
    return micros


@helper
def _put_time(
    data: Any, at: Any, length: Any, fsp: Any, slot: Any, row: Any, voff: Any, vdata: Any, vbase: Any, vcap: Any,
    counters: Any,
) -> Any:  # fmt: skip
    negative = False
    hours, minutes, seconds, micros = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if length >= 8:
        negative = data[at] != 0
        hours = little_endian(data, at + 1, 4) * 24 + np.int64(data[at + 5])
        minutes = np.int64(data[at + 6])
        seconds = np.int64(data[at + 7])
    if length >= 12:
        micros = little_endian(data, at + 8, 4)
    return put_time(negative, hours, minutes, seconds, micros, fsp, slot, row, voff, vdata, vbase, vcap, counters)


@helper
def _bits(data: Any, at: Any, length: Any) -> Any:
    value = np.int64(0)
    for i in range(length):
        value = (value << 8) | np.int64(data[at + i])
    return value


# long: a dispatch over wire types whose locals live in registers; as helpers over one arena it was four times slower
@njit
def decode_rows(data: Any, start: Any, end: Any, operations: Any, view: Any, limits: Any, position: Any) -> int:
    """Decode packets from `start` into the arena, until something needs the caller.

    `position` is (start of the first packet not consumed, next row, text bytes of the batch) and is updated; `limits`
    is (rows, bytes of one row without its text, bytes of the batch). The row that passes a limit is still taken.
    Returns one of the reasons above.
    """
    # Local names: the arena's arrays as one tuple would be copied into every call of a helper.
    base_of, slot_of, valid, has_null, counters = view.base, view.slot, view.valid, view.has_null, view.counters
    i8, i16, i32, i64 = view.i8, view.i16, view.i32, view.i64
    voff, vdata, vbase, vcap = view.voff, view.vdata, view.vbase, view.vcap
    rows_max, row_bytes, bytes_max = limits[0], limits[1], limits[2]
    count = operations.shape[0]
    bitmap_bytes = (count + 9) // 8
    packet = start
    row = position[1]
    text = position[2]
    reason = NEED_MORE
    while packet + 4 < end:
        length = np.int64(data[packet]) | (np.int64(data[packet + 1]) << 8) | (np.int64(data[packet + 2]) << 16)
        # A payload in several packets was joined by the caller, which says where it ends.
        stop = end if length == PACKET_MAX else packet + 4 + length
        if stop > end or length == 0:
            break
        first = data[packet + 4]
        if first != 0:
            reason = END_OF_ROWS if first == 0xFE and length < 9 else (SERVER_ERROR if first == 0xFF else MALFORMED)
            break
        if row > 0 and (row >= rows_max or text + row * row_bytes >= bytes_max):
            reason = BATCH_FULL
            break
        bitmap = packet + 5
        at = bitmap + bitmap_bytes
        row_text = np.int64(0)
        for column in range(count):
            if at > stop:
                break
            operation = operations[column, 0]
            base = base_of[column]
            slot = slot_of[column]
            # The first two bits of the bitmap are reserved.
            if (data[bitmap + ((column + 2) >> 3)] >> ((column + 2) & 7)) & 1:
                # Nulls hold the value 0 (a text: nothing), so that equal batches are equal bytes.
                valid[column, row] = 0
                has_null[column] = 1
                if slot >= 0:
                    voff[slot, row + 1] = voff[slot, row]
                elif operations[column, 3] == 16:
                    i64[base + 2 * row] = 0
                    i64[base + 2 * row + 1] = 0
                elif operations[column, 3] == 8:
                    i64[base + row] = 0
                elif operations[column, 3] == 4:
                    i32[base + row] = 0
                elif operations[column, 3] == 2:
                    i16[base + row] = 0
                else:
                    i8[base + row] = 0
                continue
            if operation == OP_INT64:
                i64[base + row] = little_endian(data, at, 8)
                at += 8
                continue
            if operation == OP_INT32:
                i32[base + row] = little_endian_signed(data, at, 4)
                at += 4
                continue
            if operation == OP_INT8:
                i8[base + row] = np.int8(data[at])
                at += 1
                continue
            if operation <= OP_UNSIGNED:
                width = operations[column, 1]
                value = little_endian(data, at, width)
                if operation == OP_INT:
                    shift = 64 - 8 * width
                    value = (value << shift) >> shift
                at += width
                if operations[column, 2] == 8:
                    i64[base + row] = value
                elif operations[column, 2] == 4:
                    i32[base + row] = value
                else:
                    i16[base + row] = value
                continue
            if operation == OP_UINT64:
                i64[base + 2 * row] = little_endian(data, at, 8)
                i64[base + 2 * row + 1] = 0
                at += 8
                continue
            size = np.int64(data[at])
            at += 1
            if size >= 251:
                size, width = _length_at(data, at - 1)
                at += width - 1
            if size < 0 or at + size > stop:
                at = stop + 1
                break
            if operation == OP_TEXT:
                begin = np.int64(voff[slot, row])
                if begin + size > vcap[slot]:
                    counters[FULL_SLOT] = slot
                    counters[FULL_NEED] = begin + size
                    reason = TEXT_FULL
                    break
                out = vbase[slot] + begin
                copy(data, at, vdata, out, size)
                voff[slot, row + 1] = begin + size
                row_text += size
            elif operation == OP_DECIMAL:
                value = _short_decimal(data, at, size)
                i64[base + 2 * row] = value
                i64[base + 2 * row + 1] = value >> 63
            elif operation in (OP_DATETIME, OP_DATE):
                days = _days(data, at, size)
                if days == NO_DATE:
                    valid[column, row] = 0
                    has_null[column] = 1
                    counters[COUNT_ZERO_DATES] += 1
                    days = 0
                    size_of_time = np.int64(0)
                else:
                    size_of_time = size
                if operation == OP_DATE:
                    i32[base + row] = days
                else:
                    i64[base + row] = days * 86400000000 + _micros_of_day(data, at, size_of_time)
            elif operation == OP_DECIMAL_LONG:
                _put_long_decimal(data, at, size, i64, base + 2 * row)
            elif operation == OP_TIME:
                fsp = operations[column, 1]
                if not _put_time(data, at, size, fsp, slot, row, voff, vdata, vbase, vcap, counters):
                    reason = TEXT_FULL
                    break
                row_text += 20
            elif operation == OP_BIT:
                i64[base + row] = _bits(data, at, size)
            else:
                i64[base + 2 * row] = _bits(data, at, size)
                i64[base + 2 * row + 1] = 0
            at += size
        if reason == TEXT_FULL:
            break
        if at != stop:
            reason = MALFORMED
            break
        text += row_text
        row += 1
        packet = stop
    position[0] = packet
    position[1] = row
    position[2] = text
    return reason


@njit
def split_cells(data: Any, start: Any, end: int, offsets: Any, lengths: Any) -> int:
    """Offsets and lengths of the cells of one row of the text protocol (NULL: -1); returns how many there are."""
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
