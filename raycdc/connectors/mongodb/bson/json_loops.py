"""Compiled loops that write BSON values as MongoDB Extended JSON v2, as relaxed or canonical text.

In a key, equal numbers have the same text (`number_loops`). The loop keeps its own stack, and checks every length,
because the bytes inside a document were not checked before. The form of each type is in the specification's table
("Extended JSON", mongodb/specifications).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mongodb.bson.code_loops import (
    ARRAY,
    AS_KEY,
    BAD_UTF8,
    BINARY,
    BOOLEAN,
    CANONICAL,
    CODE,
    CODE_WITH_SCOPE,
    DAMAGED,
    DATE,
    DB_POINTER,
    DECIMAL128,
    DEPTH_MAX,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    MIN_KEY,
    NULL,
    OBJECT_ID,
    OLD_BINARY,
    REGEX,
    STRING,
    SYMBOL,
    TIMESTAMP,
    TOO_DEEP,
    UNDEFINED,
)
from raycdc.connectors.mongodb.bson.element_loops import int32_at, name_end, value_end
from raycdc.connectors.mongodb.bson.number_loops import FLOATING, FRACTION, WHOLE, put_decimal, same_number
from raycdc.connectors.mongodb.bson.text_loops import (
    decimal128_text,
    is_finite,
    moment_text,
    number_text,
)
from raycdc.core.compiled import load
from raycdc.core.loops.byte_loops import base64_text, hex_text, put_word
from raycdc.core.loops.compiling import helper
from raycdc.core.loops.number_loops import integer_text
from raycdc.core.loops.string_loops import WIDEST, string_text
from raycdc.core.loops.utf8_loops import is_utf8
from raycdc.formats.loops.code_loops import FULL, OK

#: The room for the text around a value: the longest frame, the text of a number, and closing brackets.
ROOM = 640
#: The offset in this room at which a number is prepared, after the room for its longest text.
ASIDE = 400
_YEAR_10000_MS = 253402300800000


def _word(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).copy()


_TRUE, _FALSE, _NULL = _word("true"), _word("false"), _word("null")
_NUMBER_INT, _NUMBER_LONG = _word('{"$numberInt":"'), _word('{"$numberLong":"')
_NUMBER_DOUBLE, _NUMBER_DECIMAL = _word('{"$numberDouble":"'), _word('{"$numberDecimal":"')
_END_TEXT, _END_FRAME, _END_TWO = _word('"}'), _word("}"), _word("}}")
_OID, _DATE, _DATE_LONG = _word('{"$oid":"'), _word('{"$date":"'), _word('{"$date":{"$numberLong":"')
_END_DATE = _word('"}}')
_BINARY, _SUBTYPE = _word('{"$binary":{"base64":"'), _word('","subType":"')
_UNDEFINED, _MIN, _MAX = _word('{"$undefined":true}'), _word('{"$minKey":1}'), _word('{"$maxKey":1}')
_SYMBOL, _CODE, _SCOPE = _word('{"$symbol":'), _word('{"$code":'), _word(',"$scope":{')
_REGEX, _OPTIONS = _word('{"$regularExpression":{"pattern":'), _word(',"options":')
_POINTER, _POINTER_ID = _word('{"$dbPointer":{"$ref":'), _word(',"$id":{"$oid":"')
_END_POINTER = _word('"}}}')
_TIME, _INCREMENT = _word('{"$timestamp":{"t":'), _word(',"i":')


@helper
def quoted_text(data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Write a JSON string with its quotes; return the end."""
    return string_text(data, at, end, out, to, False)


@helper
def _string(data: Any, at: Any, out: Any, to: Any) -> Any:
    """Write a BSON string, which begins with its length. Returns (outcome, end in `out`)."""
    last = at + 3 + int32_at(data, at)
    if not is_utf8(data, at + 4, last):
        return BAD_UTF8, to
    return OK, quoted_text(data, at + 4, last, out, to)


@helper
def _double(bits: Any, canonical: Any, out: Any, to: Any) -> Any:
    framed = canonical or not is_finite(bits)
    if framed:
        to = put_word(out, to, _NUMBER_DOUBLE)
    to = number_text(bits, out, to)
    return put_word(out, to, _END_TEXT) if framed else to


@helper
def _integer(value: Any, short: Any, canonical: Any, out: Any, to: Any) -> Any:
    if not canonical:
        return integer_text(value, out, to)
    to = put_word(out, to, _NUMBER_INT) if short else put_word(out, to, _NUMBER_LONG)
    return put_word(out, integer_text(value, out, to), _END_TEXT)


@helper
def _number(data: Any, kind: Any, at: Any, spelling: Any, out: Any, to: Any) -> Any:
    """Write a number or a date, and return the end."""
    canonical = (spelling & CANONICAL) != 0
    if (spelling & AS_KEY) != 0 and kind != DATE:
        how, value, power = same_number(data, kind, at)
        if how == WHOLE:
            return _integer(value, -0x80000000 <= value <= 0x7FFFFFFF, canonical, out, to)
        if how == FLOATING:
            return _double(value, canonical, out, to)
        to = put_word(out, to, _NUMBER_DECIMAL)
        if how == FRACTION:
            at = put_decimal(value, power, out, to + ASIDE)
            return put_word(out, decimal128_text(out, at, out, to), _END_TEXT)
        return put_word(out, decimal128_text(data, at, out, to), _END_TEXT)
    if kind == DOUBLE:
        return _double(load(data, at, 64), canonical, out, to)
    if kind == INT32 or kind == INT64:
        value = int32_at(data, at) if kind == INT32 else load(data, at, 64)
        return _integer(value, kind == INT32, canonical, out, to)
    if kind == DECIMAL128:
        to = decimal128_text(data, at, out, put_word(out, to, _NUMBER_DECIMAL))
        return put_word(out, to, _END_TEXT)
    millis = load(data, at, 64)
    if not canonical and millis >= 0 and millis < _YEAR_10000_MS:
        return put_word(out, moment_text(millis, out, put_word(out, to, _DATE)), _END_TEXT)
    return put_word(out, integer_text(millis, out, put_word(out, to, _DATE_LONG)), _END_DATE)


@helper
def _binary(data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Write binary data with its subtype; the old binary subtype without its second length."""
    first = at + 9 if data[at + 4] == OLD_BINARY else at + 5
    to = base64_text(data, first, end, out, put_word(out, to, _BINARY))
    to = hex_text(data, at + 4, 1, out, put_word(out, to, _SUBTYPE))
    return put_word(out, to, _END_DATE)


@helper
def _rare(data: Any, kind: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Write a value of a rare type. Returns (outcome, end)."""
    error = OK
    if kind == UNDEFINED:
        return OK, put_word(out, to, _UNDEFINED)
    if kind == TIMESTAMP:
        to = integer_text(load(data, at + 4, 32), out, put_word(out, to, _TIME))
        to = integer_text(load(data, at, 32), out, put_word(out, to, _INCREMENT))
        return OK, put_word(out, to, _END_TWO)
    if kind == REGEX:
        middle = name_end(data, at, end)
        if not is_utf8(data, at, middle) or not is_utf8(data, middle + 1, end - 1):
            return BAD_UTF8, to
        to = quoted_text(data, at, middle, out, put_word(out, to, _REGEX))
        to = quoted_text(data, middle + 1, end - 1, out, put_word(out, to, _OPTIONS))
        return OK, put_word(out, to, _END_TWO)
    if kind == DB_POINTER:
        error, to = _string(data, at, out, put_word(out, to, _POINTER))
        to = hex_text(data, end - 12, 12, out, put_word(out, to, _POINTER_ID))
        return error, put_word(out, to, _END_POINTER)
    if kind == CODE or kind == SYMBOL:
        to = put_word(out, to, _CODE) if kind == CODE else put_word(out, to, _SYMBOL)
        error, to = _string(data, at, out, to)
        return error, put_word(out, to, _END_FRAME)
    return OK, (put_word(out, to, _MIN) if kind == MIN_KEY else put_word(out, to, _MAX))


@helper
def _scalar(data: Any, kind: Any, at: Any, end: Any, spelling: Any, out: Any, to: Any) -> Any:
    """Write a value that contains no other values. Returns (outcome, end)."""
    if kind == STRING:
        return _string(data, at, out, to)
    if kind == OBJECT_ID:
        return OK, put_word(out, hex_text(data, at, 12, out, put_word(out, to, _OID)), _END_TEXT)
    if kind == INT32 or kind == INT64 or kind == DOUBLE or kind == DATE or kind == DECIMAL128:
        return OK, _number(data, kind, at, spelling, out, to)
    if kind == NULL:
        return OK, put_word(out, to, _NULL)
    if kind == BOOLEAN:
        return OK, (put_word(out, to, _TRUE) if data[at] == 1 else put_word(out, to, _FALSE))
    if kind == BINARY:
        return OK, _binary(data, at, end, out, to)
    return _rare(data, kind, at, end, out, to)


@helper
def json_text(data: Any, kind: Any, at: Any, end: Any, spelling: Any, out: Any, to: Any, limit: Any, stack: Any) -> Any:
    """Write the value in ``data[at:end]``, which `value_end` has measured. Returns (outcome, end of its text).

    With `FULL`, the returned end is beyond `limit`, and the text needs at least this much room.
    """
    depth = np.int64(0)
    first = True
    while True:
        nested = kind == DOCUMENT or kind == ARRAY
        need = to + ROOM if nested else to + ROOM + WIDEST * (end - at)
        if need > limit:
            return FULL, need
        if nested or kind == CODE_WITH_SCOPE:
            if depth == DEPTH_MAX:
                return TOO_DEEP, to
            flag = np.int64(1 if kind == ARRAY else 0)
            if kind == CODE_WITH_SCOPE:
                error, to = _string(data, at + 4, out, put_word(out, to, _CODE))
                if error != OK:
                    return error, to
                to = put_word(out, to, _SCOPE)
                at += 8 + int32_at(data, at + 4)
                flag = np.int64(2)
            else:
                out[to] = 91 if kind == ARRAY else 123
                to += 1
            stack[depth, 0] = end - 1
            stack[depth, 1] = flag
            depth += 1
            at += 4
            first = True
        else:
            error, to = _scalar(data, kind, at, end, spelling, out, to)
            if error != OK:
                return error, to
            at = end
            first = False
        while depth > 0 and at == stack[depth - 1, 0]:
            depth -= 1
            out[to] = 93 if stack[depth, 1] == 1 else 125
            to += 1
            if stack[depth, 1] == 2:
                out[to] = 125
                to += 1
            at += 1
            first = False
        if depth == 0:
            return OK, to
        last = stack[depth - 1, 0]
        kind = np.int64(data[at])
        name = at + 1
        stop = name_end(data, name, last)
        if stop < 0:
            return DAMAGED, to
        end = value_end(data, kind, stop + 1, last)
        if end < 0:
            return DAMAGED, to
        if not first:
            out[to] = 44
            to += 1
        if stack[depth - 1, 1] != 1:
            if to + ROOM + WIDEST * (stop - name) > limit:
                return FULL, to + ROOM + WIDEST * (stop - name)
            if not is_utf8(data, name, stop):
                return BAD_UTF8, to
            to = quoted_text(data, name, stop, out, to)
            out[to] = 58
            to += 1
        at = stop + 1
