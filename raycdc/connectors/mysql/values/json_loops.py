"""Compiled loops that convert MySQL's binary JSON to the text that the server prints.

`json_text` is called for each JSON value of a row event. It has an explicit stack instead of recursion, because the
server allows 100 levels. All offsets are checked against the value's end, so damaged values give `JSON_CORRUPT`.

Format: MySQL source, sql-common/json_binary.h ("This file specifies the interface for serializing JSON values").
Text: sql-common/json_dom.cc, ``wrapper_to_string``: ``", "`` and ``": "`` between elements, temporal values with six
fractional digits, other MySQL types as ``base64:typeN:…``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import little_endian, little_endian_signed
from raycdc.connectors.mysql.values.number_loops import decimal_bytes, decimal_text
from raycdc.core.compiled import helper, inlined
from raycdc.core.loops.byte_loops import base64_text
from raycdc.core.loops.number_loops import INTEGER_TEXT_MAX, date_text, digits_text, integer_text, number_text
from raycdc.core.loops.string_loops import WIDEST, string_size, string_text
from raycdc.formats.loops.double_loops import DOUBLE_TEXT_MAX, server_double_text

JSON_NO_ROOM = -1
JSON_CORRUPT = -2

_DEPTH_MAX = 101  # JSON_DOCUMENT_MAX_DEPTH, plus one for the value itself
STACK_SHAPE = (_DEPTH_MAX, 5)

_LITERALS = np.frombuffer(b"null\0true\0false", np.uint8).copy()
_OPAQUE_HEAD = np.frombuffer(b'"base64:type', np.uint8).copy()

# The types of values.
_OBJECT_SMALL, _OBJECT_LARGE, _ARRAY_SMALL, _ARRAY_LARGE, _LITERAL = 0, 1, 2, 3, 4
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING, _OPAQUE = 5, 6, 7, 8, 9, 10, 11, 12, 15


@inlined
def _copy(source: Any, at: Any, length: Any, out: Any, to: Any, limit: Any) -> Any:
    if to + length > limit:
        return JSON_NO_ROOM
    for i in range(length):
        out[to + i] = source[at + i]
    return to + length


@helper
def _unsigned(value: Any, out: Any, to: Any, limit: Any) -> Any:
    """Write the digits of an unsigned 64-bit number."""
    if to + INTEGER_TEXT_MAX > limit:
        return JSON_NO_ROOM
    return number_text(value, 1, out, to)


@helper
def _signed(value: Any, out: Any, to: Any, limit: Any) -> Any:
    if to + INTEGER_TEXT_MAX > limit:
        return JSON_NO_ROOM
    return integer_text(value, out, to)


@helper
def _string(source: Any, at: Any, length: Any, out: Any, to: Any, limit: Any) -> Any:
    """Write a quoted string, escaped like the server does (json_dom.cc, ``double_quote``)."""
    # Counting the bytes is a second pass, and only needed if the widest text does not fit.
    if to + WIDEST * length + 2 > limit and to + string_size(source, at, at + length, True) > limit:
        return JSON_NO_ROOM
    return string_text(source, at, at + length, out, to, True)


@helper
def _variable_length(source: Any, at: Any, end: Any) -> Any:
    """Return (length, offset after it) of seven bits per byte, low bits first. The length is -1 if it is damaged."""
    length = np.int64(0)
    for i in range(5):
        if at + i >= end:
            return np.int64(-1), at
        length |= np.int64(source[at + i] & 0x7F) << (7 * i)
        if source[at + i] < 128:
            at += i + 1
            return (length if at + length <= end else np.int64(-1)), at
    return np.int64(-1), at


@helper
def _temporal(source: Any, at: Any, kind: Any, out: Any, to: Any, limit: Any) -> Any:
    """Write a packed DATE (10), TIME (11), DATETIME (12) or TIMESTAMP (7), quoted."""
    if to + 32 > limit:
        return JSON_NO_ROOM
    packed = little_endian(source, at, 8)
    out[to] = 34
    to += 1
    if packed < 0:
        packed = -packed
        out[to] = 45
        to += 1
    micros = packed & 0xFFFFFF
    whole = packed >> 24
    if kind != 11:
        days = whole >> 17
        month = days >> 5
        to = date_text(month // 13, month % 13, days & 31, out, to)
        if kind != 10:
            out[to] = 32
            to += 1
        whole &= 0x1FFFF
    if kind != 10:
        hours = (whole >> 12) & 1023
        to = digits_text(hours, 3 if hours > 99 else 2, out, to)
        out[to] = 58
        to = digits_text((whole >> 6) & 63, 2, out, to + 1)
        out[to] = 58
        to = digits_text(whole & 63, 2, out, to + 1)
        out[to] = 46
        to = digits_text(micros, 6, out, to + 1)
    out[to] = 34
    return to + 1


@helper
def _opaque(source: Any, at: Any, end: Any, out: Any, to: Any, limit: Any) -> Any:
    """Write a value of a MySQL type: decimals and temporals in their form, any other as base64.

    The value has type (1), length, bytes.
    """
    if at + 1 > end:
        return JSON_CORRUPT
    kind = np.int64(source[at])
    length, start = _variable_length(source, at + 1, end)
    if length < 0:
        return JSON_CORRUPT
    if kind == 246:
        if length < 2:
            return JSON_CORRUPT
        precision = np.int64(source[start])
        scale = np.int64(source[start + 1])
        if precision > 65 or scale > precision or length != 2 + decimal_bytes(precision, scale):
            return JSON_CORRUPT
        if to + precision + 13 > limit:
            return JSON_NO_ROOM
        return decimal_text(source, start + 2, precision, scale, out, to)
    if kind == 7 or kind == 10 or kind == 11 or kind == 12:
        if length != 8:
            return JSON_CORRUPT
        return _temporal(source, start, kind, out, to, limit)
    if to + len(_OPAQUE_HEAD) + 8 + (length + 2) // 3 * 4 > limit:
        return JSON_NO_ROOM
    to = _copy(_OPAQUE_HEAD, 0, len(_OPAQUE_HEAD), out, to, limit)
    to = _unsigned(np.uint64(kind), out, to, limit)
    out[to] = 58
    to += 1
    to = base64_text(source, start, start + length, out, to)
    out[to] = 34
    return to + 1


@helper
def _scalar(source: Any, kind: Any, at: Any, end: Any, out: Any, to: Any, limit: Any, point_zero: Any) -> Any:
    """Write a value that is neither object nor array, whose bytes begin at `at`."""
    if kind == _STRING:
        length, start = _variable_length(source, at, end)
        if length < 0:
            return JSON_CORRUPT
        return _string(source, start, length, out, to, limit)
    if kind == _OPAQUE:
        return _opaque(source, at, end, out, to, limit)
    width = 8
    if kind == _LITERAL:
        width = 1
    elif kind == _INT16 or kind == _UINT16:
        width = 2
    elif kind == _INT32 or kind == _UINT32:
        width = 4
    if at + width > end:
        return JSON_CORRUPT
    if kind == _LITERAL:
        literal = source[at]
        if literal > 2:
            return JSON_CORRUPT
        return _copy(_LITERALS, 5 * literal, 5 if literal == 2 else 4, out, to, limit)
    if kind == _INT16 or kind == _INT32 or kind == _INT64:
        return _signed(little_endian_signed(source, at, width), out, to, limit)
    if kind == _UINT16 or kind == _UINT32 or kind == _UINT64:
        return _unsigned(np.uint64(little_endian(source, at, width)), out, to, limit)
    if kind == _DOUBLE:
        if to + DOUBLE_TEXT_MAX > limit:
            return JSON_NO_ROOM
        return server_double_text(little_endian(source, at, 8), out, to, point_zero)
    return JSON_CORRUPT


@inlined
def _inline(kind: Any, wide: Any) -> Any:
    """Return True if a value of this type is in its entry instead of at an offset."""
    if kind == _LITERAL or kind == _INT16 or kind == _UINT16:
        return True
    return wide == 4 and (kind == _INT32 or kind == _UINT32)


# long: it is one loop over the open containers, and a helper function would need the whole state as arguments
@helper
def json_text(data: Any, at: Any, end: Any, out: Any, to: Any, limit: Any, stack: Any, point_zero: Any) -> Any:
    """Write the JSON value in ``data[at:end]`` as text into ``out[to:limit]``.

    `stack` has the shape `STACK_SHAPE`: for each open container, its start, end, number of elements, next element and
    type. With `point_zero`, doubles without a fraction end in ``.0``, as since MySQL 8.0. Returns the end of the text,
    `JSON_NO_ROOM` or `JSON_CORRUPT`. An empty value is the server's ``null`` (``INSERT IGNORE`` of a NULL into a NOT
    NULL column).
    """
    if at >= end:
        return _copy(_LITERALS, 0, 4, out, to, limit)
    kind = np.int64(data[at])
    if kind > _ARRAY_LARGE:
        return _scalar(data, kind, at + 1, end, out, to, limit, point_zero)
    depth = 0
    start = at + 1
    stop = end
    while True:
        # Open the container of type `kind` with the bytes start..stop.
        wide = 4 if kind == _OBJECT_LARGE or kind == _ARRAY_LARGE else 2
        is_object = kind <= _OBJECT_LARGE
        if depth == _DEPTH_MAX or start + 2 * wide > stop:
            return JSON_CORRUPT
        count = little_endian(data, start, wide)
        size = little_endian(data, start + wide, wide)
        entries = (wide + 2 if is_object else 0) + 1 + wide
        if size > stop - start or 2 * wide + count * entries > size:
            return JSON_CORRUPT
        if to + 2 > limit:
            return JSON_NO_ROOM
        out[to] = 123 if is_object else 91
        to += 1
        stack[depth, 0] = start
        stack[depth, 1] = start + size
        stack[depth, 2] = count
        stack[depth, 3] = 0
        stack[depth, 4] = kind
        depth += 1
        descend = False
        while not descend:
            start = stack[depth - 1, 0]
            stop = stack[depth - 1, 1]
            count = stack[depth - 1, 2]
            element = stack[depth - 1, 3]
            kind = stack[depth - 1, 4]
            wide = 4 if kind == _OBJECT_LARGE or kind == _ARRAY_LARGE else 2
            is_object = kind <= _OBJECT_LARGE
            if to + 4 > limit:
                return JSON_NO_ROOM
            if element == count:
                out[to] = 125 if is_object else 93
                to += 1
                depth -= 1
                if depth == 0:
                    return to
                continue
            stack[depth - 1, 3] = element + 1
            if element > 0:
                out[to] = 44
                out[to + 1] = 32
                to += 2
            values = start + 2 * wide
            if is_object:
                key = values + element * (wide + 2)
                values += count * (wide + 2)
                key_at = start + little_endian(data, key, wide)
                key_length = little_endian(data, key + wide, 2)
                if key_at + key_length > stop:
                    return JSON_CORRUPT
                to = _string(data, key_at, key_length, out, to, limit)
                if to < 0:
                    return to
                if to + 2 > limit:
                    return JSON_NO_ROOM
                out[to] = 58
                out[to + 1] = 32
                to += 2
            entry = values + element * (1 + wide)
            child = np.int64(data[entry])
            if _inline(child, wide):
                to = _scalar(data, child, entry + 1, entry + 1 + wide, out, to, limit, point_zero)
            else:
                offset = little_endian(data, entry + 1, wide)
                if offset < 2 * wide or start + offset >= stop:
                    return JSON_CORRUPT
                if child <= _ARRAY_LARGE:
                    start += offset
                    kind = child
                    descend = True
                else:
                    to = _scalar(data, child, start + offset, stop, out, to, limit, point_zero)
            if to < 0:
                return to
