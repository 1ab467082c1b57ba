"""Compiled functions that write one BSON value into one cell of an Arrow column.

`put_value` is the entry point. A value is written exactly or not at all: if a column cannot hold it exactly (a number
too great or with a fraction, a text instead of a number, an identifier of another type), the caller must handle that.
As for the server, equal numbers of different types are the same value; the sign of zero and the trailing zeros of a
decimal128 are kept only by columns of their own type and of JSON.

| column | takes |
|---|---|
| BOOLEAN | bool |
| integers | int, long, and a double that is whole |
| FLOAT64, FLOAT32 | double, and int and long that it holds exactly |
| DECIMAL | decimal128, int, long, a double that is whole |
| TIMESTAMP | date |
| DATE | date at midnight UTC |
| STRING | string and symbol; or only objectId, only UUID, or only decimal128, as the column says |
| BINARY | binData of the subtype the column says |
| JSON | everything |
| BINARY in the spelling BSON | everything, null and undefined too |

In all other columns, null, undefined and a missing field become NULL. `is_own` returns True for a value that the
column's type restores to the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mongodb.bson.code_loops import (
    AS_DECIMAL128,
    AS_OBJECT_ID,
    AS_STRING,
    AS_UUID,
    AS_VALUE,
    BAD_UTF8,
    BINARY,
    BOOLEAN,
    DATE,
    DECIMAL128,
    DOUBLE,
    INEXACT,
    INT32,
    INT64,
    MISMATCH,
    NULL,
    OBJECT_ID,
    OLD_BINARY,
    OUT_OF_RANGE,
    STRING,
    SYMBOL,
    UNDEFINED,
    UUID,
)
from raycdc.connectors.mongodb.bson.element_loops import int32_at
from raycdc.connectors.mongodb.bson.json_loops import json_text
from raycdc.connectors.mongodb.bson.text_loops import decimal128_text, uuid_text
from raycdc.core.compiled import copy, load
from raycdc.core.loops.byte_loops import hex_text
from raycdc.core.loops.compiling import helper, inlined
from raycdc.core.loops.number_loops import integer_text
from raycdc.core.loops.utf8_loops import is_utf8
from raycdc.formats.loops import code_loops as cells
from raycdc.formats.loops.cell_loops import put_null
from raycdc.formats.loops.code_loops import (
    C_BASE,
    C_KIND,
    C_P1,
    C_P2,
    C_SLOT,
    C_WIDE,
    C_WIRE,
    FULL,
    FULL_NEED,
    FULL_SLOT,
    K_BOOL,
    K_BYTES,
    K_DATE,
    K_DECIMAL,
    K_FLOAT32,
    K_FLOAT64,
    K_INT,
    K_JSON,
    K_MOMENT,
    K_TEXT,
    OK,
    S_BASE,
    S_ROOM,
)
from raycdc.formats.loops.number_loops import to_decimal
from raycdc.formats.loops.tape_loops import STRING as TEXT_TOKEN

_TWO_53 = np.int64(1 << 53)
_DAY_MS = 86_400_000
_MICROS_MAX_MS = np.int64(((1 << 63) - 1) // 1000)


@helper
def _whole(data: Any, kind: Any, at: Any) -> Any:
    """Return a whole number: (outcome, value)."""
    if kind == INT32:
        return OK, int32_at(data, at)
    if kind == INT64:
        return OK, load(data, at, 64)
    if kind == DOUBLE:
        number = np.int64(load(data, at, 64)).view(np.float64)
        if not (number >= -9007199254740992.0 and number <= 9007199254740992.0):
            return OUT_OF_RANGE, np.int64(0)
        value = np.int64(number)
        return (OK if np.float64(value) == number else INEXACT), value
    return MISMATCH, np.int64(0)


@helper
def _floating(data: Any, kind: Any, at: Any, single: Any) -> Any:
    """Return a floating-point number as its bits: (outcome, bits)."""
    if kind == DOUBLE:
        bits = np.int64(load(data, at, 64))
        if not single:
            return OK, bits
        number = bits.view(np.float64)
        narrow = np.float32(number)
        exact = np.float64(narrow) == number or np.isnan(number)
        return (OK if exact else INEXACT), np.int64(narrow.view(np.int32))
    if kind != INT32 and kind != INT64:
        return MISMATCH, np.int64(0)
    value = int32_at(data, at) if kind == INT32 else np.int64(load(data, at, 64))
    limit = np.int64(1 << 24) if single else _TWO_53
    if value > limit or value < -limit:
        return INEXACT, np.int64(0)
    if single:
        return OK, np.int64(np.float32(value).view(np.int32))
    return OK, np.float64(value).view(np.int64)


@helper
def _decimal(data: Any, kind: Any, at: Any, precision: Any, scale: Any, scratch: Any) -> Any:
    """Return a decimal, converted by way of its text: (outcome, low word, high word)."""
    if kind == DECIMAL128:
        end = decimal128_text(data, at, scratch, np.int64(0))
    else:
        error, value = _whole(data, kind, at)
        if error != OK:
            return error, np.int64(0), np.int64(0)
        end = integer_text(value, scratch, np.int64(0))
    error, low, high = to_decimal(scratch, TEXT_TOKEN, np.int64(0), end, precision, scale)
    if error == OK:
        return OK, low, high
    if error == cells.TOO_PRECISE:
        return INEXACT, low, high
    return (OUT_OF_RANGE if error == cells.OUT_OF_RANGE else MISMATCH), low, high


@helper
def _moment(data: Any, at: Any, days: Any) -> Any:
    """Return a date as microseconds or days: (outcome, value)."""
    millis = np.int64(load(data, at, 64))
    if days:
        value = millis // _DAY_MS
        if value > 2147483647 or value < -2147483648:
            return OUT_OF_RANGE, value
        return (OK if value * _DAY_MS == millis else INEXACT), value
    if millis > _MICROS_MAX_MS or millis < -_MICROS_MAX_MS:
        return OUT_OF_RANGE, millis
    return OK, millis * 1000


@helper
def _text(data: Any, kind: Any, at: Any, end: Any, wire: Any, out: Any, to: Any) -> Any:
    """Write a value of a text column. Returns (outcome, end in `out`)."""
    if wire == AS_STRING:
        if kind != STRING and kind != SYMBOL:
            return MISMATCH, to
        if not is_utf8(data, at + 4, end - 1):
            return BAD_UTF8, to
        copy(data, at + 4, out, to, end - at - 5)
        return OK, to + end - at - 5
    if wire == AS_OBJECT_ID:
        return (OK, hex_text(data, at, np.int64(12), out, to)) if kind == OBJECT_ID else (MISMATCH, to)
    if wire == AS_UUID:
        if kind != BINARY or data[at + 4] != UUID or end - at != 21:
            return MISMATCH, to
        return OK, uuid_text(data, at + 5, out, to)
    if wire == AS_DECIMAL128 and kind == DECIMAL128:
        return OK, decimal128_text(data, at, out, to)
    return MISMATCH, to


@helper
def _bytes(data: Any, kind: Any, at: Any, end: Any, subtype: Any, out: Any, to: Any) -> Any:
    """Write binary data of one subtype. Returns (outcome, end in `out`)."""
    if kind != BINARY or data[at + 4] != subtype:
        return MISMATCH, to
    first = at + 9 if subtype == OLD_BINARY else at + 5
    copy(data, first, out, to, end - first)
    return OK, to + end - first


@helper
def _value(data: Any, kind: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Write a value after the byte of its type, and return the end."""
    out[to] = kind
    copy(data, at, out, to + 1, end - at)
    return to + 1 + end - at


@helper
def _put_text(data: Any, kind: Any, at: Any, end: Any, a: Any, col: Any, row: Any, stack: Any) -> Any:
    slot = a.col[col, C_SLOT]
    start = np.int64(a.voff[slot, row])
    base = a.slot[slot, S_BASE]
    limit = base + a.slot[slot, S_ROOM]
    to = base + start
    wire = a.col[col, C_WIRE]
    if a.col[col, C_KIND] == K_JSON:
        error, over = json_text(data, kind, at, end, wire, a.vdata, to, limit, stack)
        if error == FULL:
            a.counters[FULL_SLOT] = slot
            a.counters[FULL_NEED] = over - base
    else:
        need = to + cells.TEXT_SLACK + end - at
        if need > limit:
            a.counters[FULL_SLOT] = slot
            a.counters[FULL_NEED] = need - base
            return FULL
        if wire == AS_VALUE:
            error, over = OK, _value(data, kind, at, end, a.vdata, to)
        elif a.col[col, C_KIND] == K_BYTES:
            error, over = _bytes(data, kind, at, end, wire, a.vdata, to)
        else:
            error, over = _text(data, kind, at, end, wire, a.vdata, to)
    if error == OK:
        a.voff[slot, row + 1] = over - base
    return error


@helper
def put_any(data: Any, kind: Any, at: Any, end: Any, a: Any, col: Any, row: Any, stack: Any) -> Any:
    """Write a value of any type into a column that takes all, null too because a key cannot be NULL.

    Returns `MISMATCH` for any other column.
    """
    takes = a.col[col, C_KIND] == K_JSON or a.col[col, C_WIRE] == AS_VALUE
    return _put_text(data, kind, at, end, a, col, row, stack) if takes else MISMATCH


@helper
def is_own(data: Any, kind: Any, at: Any, a: Any, col: Any) -> Any:
    """Return True if the value is of the column's own type, and not only equal to one."""
    wants = a.col[col, C_KIND]
    if wants == K_INT:
        return kind == (INT32 if a.col[col, C_P1] == 4 else INT64)
    if wants == K_FLOAT64:
        return kind == DOUBLE
    if wants == K_FLOAT32:
        if kind != DOUBLE:
            return False
        bits = np.int64(load(data, at, 64))
        return np.float64(np.float32(bits.view(np.float64))).view(np.int64) == bits
    if wants == K_DECIMAL:
        if kind != DECIMAL128:
            return False
        top = np.int64(load(data, at + 8, 64))
        # The value must have as many digits after the point as the column, and must not be a zero with a sign.
        scaled = (top >> 61) & 3 != 3 and ((top >> 49) & 0x3FFF) == 6176 - a.col[col, C_P2]
        return scaled and (top >= 0 or (top & 0x1FFFFFFFFFFFF) != 0 or load(data, at, 64) != 0)
    return kind != SYMBOL


@inlined
def put_value(data: Any, kind: Any, at: Any, end: Any, a: Any, col: Any, row: Any, stack: Any, scratch: Any) -> Any:
    """Write the value in ``data[at:end]``, which `value_end` has measured, into a cell.

    Returns `OK`, `FULL`, or the reason why the value was not written.
    """
    if (kind == NULL or kind == UNDEFINED) and a.col[col, C_WIRE] != AS_VALUE:
        put_null(a, col, row)
        return OK
    wants = a.col[col, C_KIND]
    if wants >= K_TEXT:
        return _put_text(data, kind, at, end, a, col, row, stack)
    p1 = a.col[col, C_P1]
    value = np.int64(0)
    top = np.int64(0)
    if wants == K_INT:
        error, value = _whole(data, kind, at)
        limit = np.int64(1) << (8 * p1 - 1)
        if error == OK and p1 < 8 and (value >= limit or value < -limit):
            error = OUT_OF_RANGE
    elif wants == K_FLOAT64 or wants == K_FLOAT32:
        error, value = _floating(data, kind, at, wants == K_FLOAT32)
    elif wants == K_MOMENT or wants == K_DATE:
        error = MISMATCH
        if kind == DATE:
            error, value = _moment(data, at, wants == K_DATE)
    elif wants == K_BOOL:
        error = OK if kind == BOOLEAN else MISMATCH
        if kind == BOOLEAN:
            value = np.int64(data[at])
    elif wants == K_DECIMAL:
        error, value, top = _decimal(data, kind, at, p1, a.col[col, C_P2], scratch)
    else:
        error = MISMATCH
    if error != OK:
        return error
    if a.col[col, C_WIDE] == 1:
        index = a.col[col, C_BASE] + 2 * row
        a.i64[index] = value
        a.i64[index + 1] = top
    else:
        a.i64[a.col[col, C_BASE] + row] = value
    return OK
