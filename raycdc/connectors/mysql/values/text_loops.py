"""Compiled loops that write one column of text or bytes, from the log or a result set, into its buffer in the arena.

``at``, ``size`` and ``first`` are as in `number_loops`; NULL is an empty text. Each function checks the room that it
may need before it writes. A column that returns `COLUMN_FULL` is written again from the block's first row.

`address_text` writes MariaDB's UUID, INET4 and INET6 as the server prints them. The log holds their bytes in the order
of the text, without trailing zero bytes (MariaDB, sql/sql_type_fixedbin.h). INET6 is as the server prints it: the first
of the longest runs of zero groups becomes ``::``, even a run of one group (RFC 5952 requires two), and an embedded IPv4
address is written with dots (sql/sql_type_inet.cc, ``Inet6::to_string``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import (
    COLUMN_DONE,
    COLUMN_FULL,
    COLUMN_JSON,
    COLUMN_LABEL,
    COLUMN_VALUE,
    FAILED_ROW,
    has_room,
    little_endian,
)
from raycdc.connectors.mysql.values.geojson_loops import geojson_text
from raycdc.connectors.mysql.values.json_loops import JSON_NO_ROOM, json_text
from raycdc.connectors.mysql.values.number_loops import decimal_text
from raycdc.core.compiled import copy, helper, inlined
from raycdc.core.loops.byte_loops import HEX
from raycdc.core.loops.number_loops import number_text

ADDRESS_UUID = 0
ADDRESS_INET4 = 1
ADDRESS_INET6 = 2

ADDRESS_TEXT_MAX = 48


@inlined
def _byte(data: Any, at: Any, size: Any, index: Any) -> Any:
    return np.int64(data[at + index]) if index < size else np.int64(0)


@helper
def _dotted(data: Any, at: Any, size: Any, index: Any, out: Any, to: Any) -> Any:
    for i in range(4):
        if i > 0:
            out[to] = 46
            to += 1
        to = number_text(_byte(data, at, size, index + i), 1, out, to)
    return to


@inlined
def _group(data: Any, at: Any, size: Any, group: Any) -> Any:
    return (_byte(data, at, size, 2 * group) << 8) | _byte(data, at, size, 2 * group + 1)


@helper
def _inet6(data: Any, at: Any, size: Any, out: Any, to: Any) -> Any:
    best, best_length = np.int64(-1), np.int64(0)
    run = np.int64(0)
    for index in range(8):
        run = run + 1 if _group(data, at, size, index) == 0 else np.int64(0)
        if run > best_length:
            best, best_length = index - run + 1, run
    group: Any = np.int64(0)
    while group < 8:
        if group == best:
            out[to] = 58
            out[to + 1] = 58
            to += 2
            group += best_length
            continue
        # ::1.2.3.4 and ::ffff:1.2.3.4 have an IPv4 part, unless the address is too small for one.
        embeds = (group == 6 and best_length == 6) or (
            group == 6 and best_length == 5 and _group(data, at, size, 5) == 0xFFFF
        )
        if embeds and best == 0:
            return _dotted(data, at, size, 12, out, to)
        value = _group(data, at, size, group)
        shift = 12
        while shift > 0 and (value >> shift) == 0:
            shift -= 4
        while shift >= 0:
            out[to] = HEX[(value >> shift) & 15]
            to += 1
            shift -= 4
        group += 1
        if group < 8 and group != best:
            out[to] = 58
            to += 1
    return to


@helper
def address_text(data: Any, at: Any, size: Any, form: Any, out: Any, to: Any) -> Any:
    """Write the address of `size` bytes at `at` into ``out[to:]`` (room for ADDRESS_TEXT_MAX); returns the end."""
    if form == ADDRESS_INET4:
        return _dotted(data, at, size, 0, out, to)
    if form == ADDRESS_INET6:
        return _inet6(data, at, size, out, to)
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            out[to] = 45
            to += 1
        byte = _byte(data, at, size, i)
        out[to] = HEX[byte >> 4]
        out[to + 1] = HEX[byte & 15]
        to += 2
    return to


#: Short values are copied in one move of this many bytes, if that stays inside both buffers.
_MOVE = 32

#: The printed form of a JSON value or geometry is at most this many times as long as its binary form, plus this many
#: bytes.
JSON_GROWTH = 8
JSON_MORE = 512


@helper
def put_texts(
    data: Any, at: Any, size: Any, count: Any, pad: Any, slot: Any, first: Any, voff: Any, vdata: Any, vbase: Any,
    vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write the values unchanged; shorter ones are padded with zero bytes to `pad`."""
    total = np.int64(0)
    for i in range(count):
        if at[i] >= 0:
            total += max(np.int64(size[i]), pad)
    start = np.int64(voff[slot, first])
    if not has_room(start, total, slot, vcap, counters):
        return COLUMN_FULL
    base = vbase[slot]
    out = base + start
    last_in = len(data) - _MOVE
    last_out = base + vcap[slot] - _MOVE
    for i in range(count):
        a = at[i]
        if a >= 0:
            length = np.int64(size[i])
            if length <= _MOVE and a <= last_in and out <= last_out:
                copy(data, a, vdata, out, _MOVE)
            else:
                copy(data, a, vdata, out, length)
            out += length
            for _ in range(length, pad):
                vdata[out] = 0
                out += 1
        voff[slot, first + i + 1] = out - base
    return COLUMN_DONE


@helper
def put_enums(
    data: Any, at: Any, count: Any, width: Any, first_label: Any, labels: Any, loff: Any, ldata: Any, slot: Any,
    first: Any, voff: Any, vdata: Any, vbase: Any, vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write an ENUM from its number. Label 0 is the empty text of the error value."""
    total = np.int64(0)
    for i in range(count):
        if at[i] >= 0:
            label = little_endian(data, at[i], width)
            if label >= labels:
                counters[FAILED_ROW] = i
                return COLUMN_LABEL
            total += loff[first_label + label + 1] - loff[first_label + label]
    start = np.int64(voff[slot, first])
    if not has_room(start, total, slot, vcap, counters):
        return COLUMN_FULL
    base = vbase[slot]
    out = base + start
    for i in range(count):
        if at[i] >= 0:
            label = first_label + little_endian(data, at[i], width)
            length = loff[label + 1] - loff[label]
            copy(ldata, loff[label], vdata, out, length)
            out += length
        voff[slot, first + i + 1] = out - base
    return COLUMN_DONE


@helper
def put_sets(
    data: Any, at: Any, count: Any, width: Any, first_label: Any, labels: Any, loff: Any, ldata: Any, slot: Any,
    first: Any, voff: Any, vdata: Any, vbase: Any, vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write a SET from its bits: the labels of the set bits, in definition order, joined by commas."""
    total = np.int64(0)
    for i in range(count):
        if at[i] >= 0:
            bits = little_endian(data, at[i], width)
            if labels < 64 and (bits >> labels) != 0:
                counters[FAILED_ROW] = i
                return COLUMN_LABEL
            for j in range(labels):
                if (bits >> j) & 1:
                    total += loff[first_label + j + 1] - loff[first_label + j] + 1
    start = np.int64(voff[slot, first])
    if not has_room(start, total, slot, vcap, counters):
        return COLUMN_FULL
    base = vbase[slot]
    out = base + start
    for i in range(count):
        if at[i] >= 0:
            bits = little_endian(data, at[i], width)
            begin = out
            for j in range(labels):
                if (bits >> j) & 1:
                    if out > begin:
                        vdata[out] = 44
                        out += 1
                    length = loff[first_label + j + 1] - loff[first_label + j]
                    copy(ldata, loff[first_label + j], vdata, out, length)
                    out += length
        voff[slot, first + i + 1] = out - base
    return COLUMN_DONE


@helper
def put_json(
    data: Any, at: Any, size: Any, count: Any, geometry: Any, point_zero: Any, stack: Any, slot: Any, first: Any,
    voff: Any, vdata: Any, vbase: Any, vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write MySQL's binary JSON as the text that the server prints, or geometries as GeoJSON."""
    base = vbase[slot]
    out = base + np.int64(voff[slot, first])
    limit = base + vcap[slot]
    for i in range(count):
        if at[i] >= 0:
            length = np.int64(size[i])
            most = out + JSON_GROWTH * length + JSON_MORE
            if geometry:
                done = geojson_text(data, at[i], at[i] + length, vdata, out, min(limit, most), stack)
            else:
                done = json_text(data, at[i], at[i] + length, vdata, out, min(limit, most), stack, point_zero)
            if done == JSON_NO_ROOM and most > limit:
                # The text's length is not known before; most texts are less than twice as long as the binary form.
                wanted = max(2 * (limit - base), out - base + 2 * length + JSON_MORE)
                has_room(np.int64(0), min(wanted, most - base), slot, vcap, counters)
                return COLUMN_FULL
            if done < 0:
                counters[FAILED_ROW] = i
                return COLUMN_JSON
            out = done
        voff[slot, first + i + 1] = out - base
    return COLUMN_DONE


@helper
def put_decimal_texts(
    data: Any, at: Any, count: Any, precision: Any, scale: Any, slot: Any, first: Any, voff: Any, vdata: Any,
    vbase: Any, vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write DECIMALs of a row event with more digits than decimal128 holds, as the server prints them."""
    start = np.int64(voff[slot, first])
    if not has_room(start, count * (precision + 13), slot, vcap, counters):
        return COLUMN_FULL
    base = vbase[slot]
    out = base + start
    for i in range(count):
        if at[i] >= 0:
            out = decimal_text(data, at[i], precision, scale, vdata, out)
        voff[slot, first + i + 1] = out - base
    return COLUMN_DONE


@helper
def put_addresses(
    data: Any, at: Any, size: Any, count: Any, form: Any, slot: Any, first: Any, voff: Any, vdata: Any, vbase: Any,
    vcap: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write MariaDB's UUID, INET4 and INET6 of a row event, which lack their trailing zero bytes."""
    start = np.int64(voff[slot, first])
    if not has_room(start, count * ADDRESS_TEXT_MAX, slot, vcap, counters):
        return COLUMN_FULL
    base = vbase[slot]
    out = base + start
    for i in range(count):
        if at[i] >= 0:
            if size[i] > 16:
                counters[FAILED_ROW] = i
                return COLUMN_VALUE
            out = address_text(data, at[i], np.int64(size[i]), form, vdata, out)
        voff[slot, first + i + 1] = out - base
    return COLUMN_DONE
