"""The compiled loop from row events to column arenas: no Python object per row, no read outside the event.

Called by `binlog_decoder` once per table map and batch with the list of row events that `binlog_index_loops` made.
It stops when the batch is full, at a row boundary (an update's two rows stay together), and goes on from the same
place after the caller has emptied or enlarged the arena.

Value formats: MySQL Internals manual, "Rows Event" and "Date and Time Data Type Representation"; decimals:
``decimal2bin`` in strings/decimal.c.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# long: the dispatch of decode_rows is most of it
from raycdc.compiled import copy, helper, njit
from raycdc.connectors.mysql.arena_loops import (
    COUNT_REPLACED,
    COUNT_ZERO_DATES,
    NO_DATE,
    big_endian,
    date_days,
    has_room,
    little_endian,
    little_endian_signed,
    put_bytes,
    put_label,
    put_labels,
    put_single_byte_text,
    put_time,
)
from raycdc.connectors.mysql.binlog_index_loops import E_AT, E_END, E_OP, E_ROWS, E_V2
from raycdc.connectors.mysql.decimal_loops import decimal_bytes, decimal_text, long_decimal, short_decimal
from raycdc.connectors.mysql.json_loops import JSON_NO_ROOM, json_text

# How a value lies in a row event. `wire1` and `wire2` are its parameters.
WIRE_INT8 = 0
WIRE_INT16 = 1
WIRE_INT24 = 2
WIRE_INT32 = 3
WIRE_INT64 = 4
WIRE_UINT8 = 5
WIRE_UINT16 = 6
WIRE_UINT24 = 7
WIRE_UINT32 = 8
WIRE_UINT64 = 9
WIRE_FLOAT = 10
WIRE_DOUBLE = 11
WIRE_DECIMAL = 12  # wire1: precision; wire2: scale
WIRE_TEXT = 13  # wire1: bytes of the length
WIRE_BYTES = 14  # wire1: bytes of the length
WIRE_DATE = 15
WIRE_DATETIME2 = 16  # wire1: fractional digits
WIRE_TIMESTAMP2 = 17
WIRE_TIME2 = 18
WIRE_YEAR = 19
WIRE_BIT = 20  # wire1: bytes; wire2: 1 for 64 bits (decimal128)
WIRE_ENUM = 21  # wire1: bytes
WIRE_SET = 22  # wire1: bytes
WIRE_JSON = 23  # wire1: bytes of the length
WIRE_DECIMAL_TEXT = 24
WIRE_DATETIME = 25  # before MySQL 5.6: yyyymmddhhmmss as a number
WIRE_TIMESTAMP = 26
WIRE_TIME = 27
WIRE_DECIMAL_SHORT = 28  # at most 18 digits
WIRE_NUMBER = 29  # wire1: bytes; an ENUM or SET whose labels are unknown, as its number

ROWS_END = 0  # all events are decoded
ROWS_FULL = 1  # the batch is full: take it and call again
ROWS_TEXT = 2  # a text column is full: take the batch or grow, and call again
ROWS_BOUNDS = 3  # damage: a value ends outside its event
ROWS_IMAGE = 4  # not all columns are present (binlog_row_image is not FULL)
ROWS_COLUMNS = 5  # the event has another number of columns than its table map
ROWS_LABEL = 6  # an ENUM index or SET bit that the table has no label for
ROWS_JSON = 7  # damaged JSON

# The cursor, kept between calls.
C_EVENT = 0  # index into `order`
C_AT = 1  # offset of the next row; 0: at the event's head
C_ROW_IN_EVENT = 2
C_ROWS = 3  # rows in the arena
C_TEXT = 4  # bytes of text in the arena
C_COLUMN = 5  # where a failure was met
C_SIZE = 8

_FRACTION = np.array([0, 10000, 100, 1], dtype=np.int64)


@helper
def _micros(data: Any, at: Any, fsp: Any) -> Any:
    width = (fsp + 1) >> 1
    return big_endian(data, at, width) * _FRACTION[width]


@helper
def _wall_micros(days: Any, hour: Any, minute: Any, second: Any, micros: Any) -> Any:
    return ((days * 24 + hour) * 60 + minute) * 60000000 + second * 1000000 + micros


@helper
def _event_head(data: Any, event: Any, columns: Any) -> Any:
    """Check an event's head; returns (ROWS_…, offset of the first row).

    table_id(6) flags(2) [version 2: extra_length(2) extra] columns(packed) present-bitmap [update: a second one]
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
        for c in range(columns):
            if not (data[at + image * size + (c >> 3)] >> (c & 7)) & 1:
                return ROWS_IMAGE, at
    return ROWS_END, at + size * images


@helper
def _null(c: Any, r: Any, slot: Any, base: Any, valid: Any, has_null: Any, voff: Any, width: Any, fixed: Any) -> Any:
    valid[c, r] = 0
    has_null[c] = 1
    s = slot[c]
    if s >= 0:
        voff[s, r + 1] = voff[s, r]
    else:
        start = base[c] * min(width[c], 8) + r * width[c]
        for i in range(width[c]):
            fixed[start + i] = 0


# long: a dispatch over wire types whose locals live in registers; cutting it up costs a third of its speed
@njit
def decode_rows(
    data: Any, events: Any, order: Any, wire: Any, wire1: Any, wire2: Any, width: Any, arena: Any, rows_max: Any,
    row_bytes: Any, bytes_max: Any, op: Any, row_event: Any, row_number: Any, cursor: Any,
) -> Any:  # fmt: skip
    """Decode the events ``events[order]`` of one table map from `cursor` on; returns ROWS_….

    Per row it also writes `op` (RowKind), `row_event` (index into `events`) and `row_number` (row within its event).
    """
    base = arena.base
    slot = arena.slot
    p1 = arena.p1
    p2 = arena.p2
    i8 = arena.i8
    i16 = arena.i16
    i32 = arena.i32
    i64 = arena.i64
    valid = arena.valid
    has_null = arena.has_null
    voff = arena.voff
    vdata = arena.vdata
    vbase = arena.vbase
    vcap = arena.vcap
    counters = arena.counters
    columns = len(wire)
    bitmap_bytes = (columns + 7) >> 3
    index = cursor[C_EVENT]
    p = cursor[C_AT]
    in_event = cursor[C_ROW_IN_EVENT]
    r = cursor[C_ROWS]
    text = cursor[C_TEXT]
    while index < len(order):
        number = order[index]
        end = events[number, E_END]
        kind_of_event = events[number, E_OP]
        images = 2 if kind_of_event == 1 else 1
        if p == 0:
            code, p = _event_head(data, events[number], columns)
            if code != ROWS_END:
                cursor[C_EVENT] = index
                return code
            in_event = 0
        while p < end:
            row_at = p
            first = r
            text_before = text
            zero_dates = counters[COUNT_ZERO_DATES]
            replaced = counters[COUNT_REPLACED]
            code = ROWS_END
            if r + images > rows_max or (r > 0 and text + r * row_bytes > bytes_max):
                code = ROWS_FULL
            c = 0
            for image in range(images):
                if code != ROWS_END:
                    break
                nulls = p
                p += bitmap_bytes
                if p > end:
                    code = ROWS_BOUNDS
                    break
                c = 0
                while c < columns:
                    if (data[nulls + (c >> 3)] >> (c & 7)) & 1:
                        _null(c, r, slot, base, valid, has_null, voff, width, i8)
                        c += 1
                        continue
                    k = wire[c]
                    if k == WIRE_INT32:
                        if p + 4 > end:
                            code = ROWS_BOUNDS
                            break
                        i32[base[c] + r] = np.int32(little_endian(data, p, 4))
                        p += 4
                    elif k == WIRE_INT64:
                        if p + 8 > end:
                            code = ROWS_BOUNDS
                            break
                        i64[base[c] + r] = little_endian(data, p, 8)
                        p += 8
                    elif k == WIRE_TEXT:
                        n = wire1[c]
                        if p + n > end:
                            code = ROWS_BOUNDS
                            break
                        length = np.int64(data[p]) if n == 1 else little_endian(data, p, n)
                        p += n
                        if p + length > end:
                            code = ROWS_BOUNDS
                            break
                        s = slot[c]
                        if p2[c] < 0:
                            start = np.int64(voff[s, r])
                            if not has_room(start, length, s, vcap, counters):
                                code = ROWS_TEXT
                                break
                            to = vbase[s] + start
                            copy(data, p, vdata, to, length)
                            voff[s, r + 1] = start + length
                        elif not put_single_byte_text(
                            data, p, length, arena.points, p2[c], s, r, voff, vdata, vbase, vcap, counters
                        ):
                            code = ROWS_TEXT
                            break
                        text += length
                        p += length
                    elif k == WIRE_INT8:
                        if p + 1 > end:
                            code = ROWS_BOUNDS
                            break
                        i8[base[c] + r] = np.int8(data[p])
                        p += 1
                    elif k == WIRE_INT16:
                        if p + 2 > end:
                            code = ROWS_BOUNDS
                            break
                        i16[base[c] + r] = np.int16(little_endian(data, p, 2))
                        p += 2
                    elif k == WIRE_INT24:
                        if p + 3 > end:
                            code = ROWS_BOUNDS
                            break
                        i32[base[c] + r] = np.int32(little_endian_signed(data, p, 3))
                        p += 3
                    elif k == WIRE_UINT8:
                        if p + 1 > end:
                            code = ROWS_BOUNDS
                            break
                        i16[base[c] + r] = data[p]
                        p += 1
                    elif k == WIRE_UINT16:
                        if p + 2 > end:
                            code = ROWS_BOUNDS
                            break
                        i32[base[c] + r] = np.int32(little_endian(data, p, 2))
                        p += 2
                    elif k == WIRE_UINT24:
                        if p + 3 > end:
                            code = ROWS_BOUNDS
                            break
                        i32[base[c] + r] = np.int32(little_endian(data, p, 3))
                        p += 3
                    elif k == WIRE_UINT32:
                        if p + 4 > end:
                            code = ROWS_BOUNDS
                            break
                        i64[base[c] + r] = little_endian(data, p, 4)
                        p += 4
                    elif k == WIRE_UINT64:
                        if p + 8 > end:
                            code = ROWS_BOUNDS
                            break
                        i64[base[c] + 2 * r] = little_endian(data, p, 8)
                        i64[base[c] + 2 * r + 1] = 0
                        p += 8
                    elif k == WIRE_FLOAT:
                        if p + 4 > end:
                            code = ROWS_BOUNDS
                            break
                        i32[base[c] + r] = np.int32(little_endian(data, p, 4))
                        p += 4
                    elif k == WIRE_DOUBLE:
                        if p + 8 > end:
                            code = ROWS_BOUNDS
                            break
                        i64[base[c] + r] = little_endian(data, p, 8)
                        p += 8
                    elif k == WIRE_DECIMAL_SHORT or k == WIRE_DECIMAL:
                        size = decimal_bytes(wire1[c], wire2[c])
                        if p + size > end:
                            code = ROWS_BOUNDS
                            break
                        if k == WIRE_DECIMAL_SHORT:
                            value = short_decimal(data, p, wire1[c], wire2[c])
                            i64[base[c] + 2 * r] = value
                            i64[base[c] + 2 * r + 1] = value >> 63
                        else:
                            long_decimal(data, p, wire1[c], wire2[c], i64, base[c] + 2 * r)
                        p += size
                    elif k == WIRE_DECIMAL_TEXT:
                        size = decimal_bytes(wire1[c], wire2[c])
                        if p + size > end:
                            code = ROWS_BOUNDS
                            break
                        s = slot[c]
                        start = np.int64(voff[s, r])
                        if not has_room(start, wire1[c] + 13, s, vcap, counters):
                            code = ROWS_TEXT
                            break
                        to = vbase[s] + start
                        voff[s, r + 1] = start + decimal_text(data, p, wire1[c], wire2[c], vdata, to) - to
                        text += wire1[c]
                        p += size
                    elif k == WIRE_DATETIME2:
                        fsp = wire1[c]
                        size = 5 + ((fsp + 1) >> 1)
                        if p + size > end:
                            code = ROWS_BOUNDS
                            break
                        packed = big_endian(data, p, 5) - 0x8000000000
                        month = packed >> 22
                        days = date_days(month // 13, month % 13, (packed >> 17) & 31)
                        if days == NO_DATE:
                            counters[COUNT_ZERO_DATES] += 1
                            _null(c, r, slot, base, valid, has_null, voff, width, i8)
                        else:
                            i64[base[c] + r] = _wall_micros(
                                days, (packed >> 12) & 31, (packed >> 6) & 63, packed & 63, _micros(data, p + 5, fsp)
                            )
                        p += size
                    elif k == WIRE_TIMESTAMP2:
                        fsp = wire1[c]
                        size = 4 + ((fsp + 1) >> 1)
                        if p + size > end:
                            code = ROWS_BOUNDS
                            break
                        instant = big_endian(data, p, 4) * 1000000 + _micros(data, p + 4, fsp)
                        if instant == 0:
                            counters[COUNT_ZERO_DATES] += 1
                            _null(c, r, slot, base, valid, has_null, voff, width, i8)
                        else:
                            i64[base[c] + r] = instant
                        p += size
                    elif k == WIRE_DATE:
                        if p + 3 > end:
                            code = ROWS_BOUNDS
                            break
                        packed = little_endian(data, p, 3)
                        days = date_days(packed >> 9, (packed >> 5) & 15, packed & 31)
                        if days == NO_DATE:
                            counters[COUNT_ZERO_DATES] += 1
                            _null(c, r, slot, base, valid, has_null, voff, width, i8)
                        else:
                            i32[base[c] + r] = days
                        p += 3
                    elif k == WIRE_BYTES:
                        n = wire1[c]
                        if p + n > end:
                            code = ROWS_BOUNDS
                            break
                        length = np.int64(data[p]) if n == 1 else little_endian(data, p, n)
                        p += n
                        if p + length > end:
                            code = ROWS_BOUNDS
                            break
                        if not put_bytes(data, p, length, p1[c], slot[c], r, voff, vdata, vbase, vcap, counters):
                            code = ROWS_TEXT
                            break
                        text += max(length, p1[c])
                        p += length
                    elif k == WIRE_ENUM:
                        n = wire1[c]
                        if p + n > end:
                            code = ROWS_BOUNDS
                            break
                        label = little_endian(data, p, n)
                        if label >= p2[c]:
                            code = ROWS_LABEL
                            break
                        if not put_label(
                            p1[c] + label, arena.loff, arena.ldata, slot[c], r, voff, vdata, vbase, vcap, counters
                        ):
                            code = ROWS_TEXT
                            break
                        text += voff[slot[c], r + 1] - voff[slot[c], r]
                        p += n
                    elif k == WIRE_SET:
                        n = wire1[c]
                        if p + n > end:
                            code = ROWS_BOUNDS
                            break
                        bits = little_endian(data, p, n)
                        if p2[c] < 64 and (bits >> p2[c]) != 0:
                            code = ROWS_LABEL
                            break
                        if not put_labels(
                            bits, p1[c], p2[c], arena.loff, arena.ldata, slot[c], r, voff, vdata, vbase, vcap, counters
                        ):
                            code = ROWS_TEXT
                            break
                        text += voff[slot[c], r + 1] - voff[slot[c], r]
                        p += n
                    elif k == WIRE_YEAR:
                        if p + 1 > end:
                            code = ROWS_BOUNDS
                            break
                        i16[base[c] + r] = 1900 + np.int64(data[p]) if data[p] != 0 else 0
                        p += 1
                    elif k == WIRE_BIT:
                        n = wire1[c]
                        if p + n > end:
                            code = ROWS_BOUNDS
                            break
                        if wire2[c] != 0:
                            i64[base[c] + 2 * r] = big_endian(data, p, n)
                            i64[base[c] + 2 * r + 1] = 0
                        else:
                            i64[base[c] + r] = big_endian(data, p, n)
                        p += n
                    elif k == WIRE_JSON:
                        n = wire1[c]
                        if p + n > end:
                            code = ROWS_BOUNDS
                            break
                        length = np.int64(data[p]) if n == 1 else little_endian(data, p, n)
                        p += n
                        if p + length > end:
                            code = ROWS_BOUNDS
                            break
                        s = slot[c]
                        start = np.int64(voff[s, r])
                        to = vbase[s] + start
                        done = json_text(data, p, p + length, vdata, to, vbase[s] + vcap[s], arena.stack)
                        if done == JSON_NO_ROOM:
                            # The text's length is not known beforehand: ask for twice the arena.
                            has_room(start, max(2 * length, vcap[s] + 1), s, vcap, counters)
                            code = ROWS_TEXT
                            break
                        if done < 0:
                            code = ROWS_JSON
                            break
                        voff[s, r + 1] = done - vbase[s]
                        text += done - to
                        p += length
                    elif k == WIRE_TIME2:
                        fsp = wire1[c]
                        size = 3 + ((fsp + 1) >> 1)
                        if p + size > end:
                            code = ROWS_BOUNDS
                            break
                        # Whole and fraction are one two's complement number, moved up to be unsigned.
                        bits = big_endian(data, p, size) - (np.int64(0x800000) << (8 * (size - 3)))
                        negative = bits < 0
                        magnitude = -bits if negative else bits
                        shift = 8 * (size - 3)
                        micros = (magnitude & ((np.int64(1) << shift) - 1)) * _FRACTION[size - 3]
                        whole = magnitude >> shift
                        if not put_time(
                            negative, (whole >> 12) & 1023, (whole >> 6) & 63, whole & 63, micros, fsp, slot[c], r,
                            voff, vdata, vbase, vcap, counters,
                        ):  # fmt: skip
                            code = ROWS_TEXT
                            break
                        text += 10
                        p += size
                    elif k == WIRE_DATETIME:
                        if p + 8 > end:
                            code = ROWS_BOUNDS
                            break
                        packed = little_endian(data, p, 8)
                        date = packed // 1000000
                        clock = packed % 1000000
                        days = date_days(date // 10000, (date // 100) % 100, date % 100)
                        if days == NO_DATE:
                            counters[COUNT_ZERO_DATES] += 1
                            _null(c, r, slot, base, valid, has_null, voff, width, i8)
                        else:
                            i64[base[c] + r] = _wall_micros(days, clock // 10000, (clock // 100) % 100, clock % 100, 0)
                        p += 8
                    elif k == WIRE_TIMESTAMP:
                        if p + 4 > end:
                            code = ROWS_BOUNDS
                            break
                        instant = little_endian(data, p, 4) * 1000000
                        if instant == 0:
                            counters[COUNT_ZERO_DATES] += 1
                            _null(c, r, slot, base, valid, has_null, voff, width, i8)
                        else:
                            i64[base[c] + r] = instant
                        p += 4
                    elif k == WIRE_TIME:
                        if p + 3 > end:
                            code = ROWS_BOUNDS
                            break
                        clock = little_endian_signed(data, p, 3)
                        negative = clock < 0
                        clock = abs(clock)
                        if not put_time(
                            negative, clock // 10000, (clock // 100) % 100, clock % 100, 0, 0, slot[c], r, voff, vdata,
                            vbase, vcap, counters,
                        ):  # fmt: skip
                            code = ROWS_TEXT
                            break
                        text += 10
                        p += 3
                    elif k == WIRE_NUMBER:
                        if p + wire1[c] > end:
                            code = ROWS_BOUNDS
                            break
                        i64[base[c] + r] = little_endian(data, p, wire1[c])
                        p += wire1[c]
                    else:
                        code = ROWS_COLUMNS
                        break
                    c += 1
                if code != ROWS_END:
                    break
                op[r] = 1 + image if kind_of_event == 1 else (0 if kind_of_event == 0 else 3)
                row_event[r] = number
                row_number[r] = in_event + image
                r += 1
            if code != ROWS_END:
                counters[COUNT_ZERO_DATES] = zero_dates
                counters[COUNT_REPLACED] = replaced
                cursor[C_EVENT] = index
                cursor[C_AT] = row_at
                cursor[C_ROW_IN_EVENT] = in_event
                cursor[C_ROWS] = first
                cursor[C_TEXT] = text_before
                cursor[C_COLUMN] = c
                return code
            in_event += images
        events[number, E_ROWS] = in_event
        index += 1
        p = 0
    cursor[C_EVENT] = index
    cursor[C_AT] = 0
    cursor[C_ROWS] = r
    cursor[C_TEXT] = text
    return ROWS_END
