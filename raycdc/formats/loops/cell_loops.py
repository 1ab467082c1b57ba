"""Writes values of JSON tokens into Arrow columns, compiled: numbers, decimals, dates, bytes, text.

`put_cell` is the only function that other modules call to write a value. `ArenaView` describes each column: its kind,
two parameters of the kind, and its *wire*, the format's representation of values for which JSON has no type. A value
that does not fit is an error; it is never rounded, cut or replaced by null. The layout of columns is described in
`raycdc.formats.decoding.arena`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import copy
from raycdc.core.loops.byte_loops import hex_digit
from raycdc.core.loops.calendar_loops import civil_date
from raycdc.core.loops.compiling import helper, inlined
from raycdc.core.loops.number_loops import date_text, digits_text, multiply_add, negate, tenth
from raycdc.formats.loops.code_loops import (
    AMBIGUOUS_DECIMAL,
    AMBIGUOUS_LABEL,
    C_BASE,
    C_HAS_NULL,
    C_KIND,
    C_P1,
    C_P2,
    C_SLOT,
    C_WIDE,
    C_WIRE,
    FULL,
    FULL_NEED,
    FULL_SLOT,
    HALF_SURROGATE,
    K_BIT,
    K_BOOL,
    K_BYTES,
    K_DATE,
    K_DECIMAL,
    K_FLOAT32,
    K_FLOAT64,
    K_INT,
    K_JSON,
    K_SET,
    K_TEXT,
    K_TIME,
    LABEL_BEGIN,
    LABEL_DIGITS,
    LABEL_ROOM,
    LABEL_STOP,
    NO_LABEL,
    NOT_BASE64,
    NOT_HEX,
    NOT_LATIN1,
    NULL_VALUE,
    OK,
    OUT_OF_RANGE,
    S_BASE,
    S_ROOM,
    TEXT_SLACK,
    TOO_PRECISE,
    WIRE_BASE64,
    WIRE_EITHER,
    WIRE_HEX,
    WIRE_LATIN1,
    WIRE_NANO_MOMENT,
    WIRE_NANO_TIME,
    WIRE_NUMBER,
    WIRE_ORDINAL,
    WIRE_SCALED,
    WIRE_TEXT,
    WIRE_VARIABLE,
    WRONG_KIND,
    ZERO_DATES,
)
from raycdc.formats.loops.number_loops import (
    base64_into,
    base64_length,
    base64_number,
    decimal_wire,
    fits,
    fits_float,
    simple_integer,
    to_bool,
    to_decimal,
    to_double,
    to_integer,
)
from raycdc.formats.loops.tape_loops import (
    ARRAY,
    AT,
    END,
    ESCAPED,
    INTEGER,
    KIND,
    NEXT,
    NULL,
    OBJECT,
    STRING,
    plain_text,
    unescape,
)
from raycdc.formats.loops.time_loops import to_micros, to_moment

_DAY_NS = 86_400_000_000_000
_UINT64_MAX = np.uint64(2**64 - 1)


@helper
def _bytes(data: Any, at: Any, end: Any, wire: Any, out: Any, to: Any) -> Any:
    """Write the bytes of a string. Returns (error, their end in `out`)."""
    if wire == WIRE_LATIN1:
        while at < end:
            byte = data[at]
            if byte < 0x80:
                out[to] = byte
                at += 1
            elif byte <= 0xC3:
                out[to] = ((byte & 3) << 6) | (data[at + 1] & 0x3F)
                at += 2
            else:
                return NOT_LATIN1, to
            to += 1
        return OK, to
    if wire == WIRE_HEX:
        if (end - at) % 2 != 0:
            return NOT_HEX, to
        while at < end:
            high = hex_digit(data[at])
            low = hex_digit(data[at + 1])
            if high < 0 or low < 0:
                return NOT_HEX, to
            out[to] = (high << 4) | low
            at += 2
            to += 1
        return OK, to
    length, stop = base64_length(data, at, end)
    if length < 0:
        return NOT_BASE64, to
    to = base64_into(data, at, stop, out, to)
    return (NOT_BASE64 if to < 0 else OK), to


@helper
def _time(data: Any, kind: Any, at: Any, end: Any, wire: Any, fraction: Any, out: Any, to: Any) -> Any:
    """Write a time of day or a duration, given as a number, as MySQL prints it. Returns (error, end)."""
    if kind != INTEGER:
        return WRONG_KIND, to
    error, micros = to_integer(data, kind, at, end)
    if error == OK:
        error, micros = to_micros(micros, wire)
    if error != OK:
        return error, to
    if micros < 0:
        out[to] = 45
        to += 1
        micros = -micros
    seconds = micros // 1_000_000
    micros %= 1_000_000
    hours = seconds // 3600
    width = 2
    limit = np.int64(100)
    while hours >= limit:
        width += 1
        limit *= 10
    to = digits_text(hours, width, out, to)
    out[to] = 58
    to = digits_text(seconds // 60 % 60, 2, out, to + 1)
    out[to] = 58
    to = digits_text(seconds % 60, 2, out, to + 1)
    if fraction == 0 and micros != 0:
        fraction = np.int64(6)
    if fraction > 0:
        out[to] = 46
        for _ in range(6 - fraction):
            if micros % 10 != 0:
                return TOO_PRECISE, to
            micros //= 10
        to = digits_text(micros, fraction, out, to + 1)
    return OK, to


@helper
def _nanos(data: Any, kind: Any, at: Any, end: Any, wire: Any, out: Any, to: Any) -> Any:
    """Write nanoseconds since 1970 or since midnight as text with nine fractional digits. Returns (error, end)."""
    if kind != INTEGER:
        return WRONG_KIND, to
    error, nanos = to_integer(data, kind, at, end)
    if error != OK:
        return error, to
    days = nanos // _DAY_NS
    nanos -= days * _DAY_NS
    if wire == WIRE_NANO_MOMENT:
        year, month, day = civil_date(days)
        to = date_text(year, month, day, out, to)
        out[to] = 32
        to += 1
    elif days != 0:
        return OUT_OF_RANGE, to
    seconds = nanos // 1_000_000_000
    to = digits_text(seconds // 3600, 2, out, to)
    out[to] = 58
    to = digits_text(seconds // 60 % 60, 2, out, to + 1)
    out[to] = 58
    to = digits_text(seconds % 60, 2, out, to + 1)
    out[to] = 46
    return OK, digits_text(nanos % 1_000_000_000, 9, out, to + 1)


@helper
def _bits(data: Any, kind: Any, at: Any, end: Any, wire: Any, bits: Any) -> Any:
    """Return (error, low word, high word) of a value of a BIT column."""
    if kind == STRING and wire == WIRE_BASE64:
        error, _, high, low = base64_number(data, at, end, False)
        value = np.int64(low)
        top = np.int64(high)
    else:
        error, value, top = to_decimal(data, kind, at, end, np.int64(20), np.int64(0))
    if error == OK and (top != 0 or (bits < 64 and (np.uint64(value) >> np.uint64(bits)) != np.uint64(0))):
        error = OUT_OF_RANGE
    return error, value, top


@helper
def _labels(tape: Any, token: Any, out: Any, to: Any) -> Any:
    """Write an array of labels, joined by commas. Returns (error, end)."""
    first = to
    label = token + 1
    last = np.int64(tape.tok[token, NEXT])
    while label < last:
        kind = tape.tok[label, KIND]
        if kind != STRING and kind != ESCAPED:
            return WRONG_KIND, to
        if to > first:
            out[to] = 44
            to += 1
        to = unescape(tape.data, np.int64(tape.tok[label, AT]), np.int64(tape.tok[label, END]), out, to)
        if to < 0:
            return HALF_SURROGATE, to
        label = np.int64(tape.tok[label, NEXT])
    return OK, to


@helper
def _find_label(a: Any, header: Any, count: Any, data: Any, at: Any, end: Any) -> Any:
    """Return the number of the label that is the given text, from 1 on; 0 if none is."""
    for number in range(1, count + 1):
        begin = a.label[header + number, LABEL_BEGIN]
        if a.label[header + number, LABEL_STOP] - begin != end - at:
            continue
        same = True
        for i in range(end - at):
            if a.labels[begin + i] != data[at + i]:
                same = False
                break
        if same:
            return np.int64(number)
    return np.int64(0)


@helper
def _put_label(a: Any, row: Any, out: Any, to: Any) -> Any:
    """Write a label. Returns its end."""
    for i in range(a.label[row, LABEL_BEGIN], a.label[row, LABEL_STOP]):
        out[to] = a.labels[i]
        to += 1
    return to


@helper
def _ordinal(a: Any, col: Any, data: Any, at: Any, end: Any, out: Any, to: Any) -> Any:
    """Write the labels of an ENUM's number or a SET's bits; a text that is no number is a label itself.

    Returns (error, end). It is an error if a number is also a label, and both readings give different values.
    """
    header = a.col[col, C_P1]
    count = a.col[col, C_P2]
    digits = at < end and (end - at == 1 or data[at] != 48)
    in_range = True
    number = np.uint64(0)
    for i in range(at, end):
        digits = digits and 48 <= data[i] <= 57
        if digits and in_range:
            digit = np.uint64(data[i] - 48)
            if number > (_UINT64_MAX - digit) // np.uint64(10):
                in_range = False
            number = number * np.uint64(10) + digit
    first = to
    if a.col[col, C_KIND] == K_SET:
        valid = digits and in_range and (count > 63 or number < np.uint64(1) << np.uint64(count))
        if valid:
            for bit in range(count):
                if (number >> np.uint64(bit)) & np.uint64(1):
                    if to > first:
                        out[to] = 44
                        to += 1
                    to = _put_label(a, header + 1 + bit, out, to)
    else:
        valid = digits and in_range and number <= np.uint64(count)
        if valid and number > np.uint64(0):
            to = _put_label(a, header + np.int64(number), out, to)
    if valid and (a.label[header, LABEL_DIGITS] == 0 or a.col[col, C_WIRE] == WIRE_NUMBER):
        return OK, to
    is_label = not digits or _find_label(a, header, count, data, at, end) > 0
    if valid and is_label:
        same = to - first == end - at
        for i in range(to - first):
            same = same and out[first + i] == data[at + i]
        return (OK if same else AMBIGUOUS_LABEL), to
    if valid:
        return OK, to
    if not is_label:
        return NO_LABEL, to
    copy(data, at, out, first, end - at)
    return OK, first + end - at


@helper
def _variable(tape: Any, token: Any, out: Any, to: Any) -> Any:
    """Write ``{"scale": 2, "value": "AQ=="}`` as decimal text. Returns (error, end)."""
    scale = np.int64(0)
    scaled = False
    error = WRONG_KIND
    negative = False
    high = np.uint64(0)
    low = np.uint64(0)
    key = token + 1
    last = np.int64(tape.tok[token, NEXT])
    while key < last:
        value = key + 1
        at = np.int64(tape.tok[value, AT])
        end = np.int64(tape.tok[value, END])
        first = tape.data[tape.tok[key, AT]]
        if first == 115:
            scale, scaled = simple_integer(tape.data, at, end)
        elif first == 118 and tape.tok[value, KIND] == STRING:
            error, negative, high, low = base64_number(tape.data, at, end, True)
        key = np.int64(tape.tok[value, NEXT])
    if error != OK or not scaled or scale < -64 or scale > 64:
        return (error if error != OK else OUT_OF_RANGE), to
    stop = to + 110
    at = stop
    if scale < 0 and (high != np.uint64(0) or low != np.uint64(0)):
        for _ in range(-scale):
            at -= 1
            out[at] = 48
    scale = max(scale, np.int64(0))
    written = np.int64(0)
    while high != np.uint64(0) or low != np.uint64(0) or written <= scale:
        high, low, rest = tenth(high, low)
        if written == scale and scale > 0:
            at -= 1
            out[at] = 46
        at -= 1
        out[at] = np.uint64(48) + rest
        written += 1
    if negative:
        at -= 1
        out[at] = 45
    for i in range(stop - at):
        out[to + i] = out[at + i]
    return OK, to + stop - at


@inlined
def put_null(a: Any, col: Any, row: Any) -> None:
    """Write a null: the value zero, or an empty text."""
    a.valid[col, row] = 0
    a.col[col, C_HAS_NULL] = 1
    if a.col[col, C_KIND] >= K_TEXT:
        slot = a.col[col, C_SLOT]
        a.voff[slot, row + 1] = a.voff[slot, row]
    elif a.col[col, C_WIDE] == 1:
        at = a.col[col, C_BASE] + 2 * row
        a.i64[at] = 0
        a.i64[at + 1] = 0
    else:
        a.i64[a.col[col, C_BASE] + row] = 0


@inlined
def _text(tape: Any, token: Any, kind: Any, wire: Any, fraction: Any, out: Any, to: Any) -> Any:
    """Write a value of a column that holds text. Returns (error, end)."""
    data = tape.data
    is_a = tape.tok[token, KIND]
    at = np.int64(tape.tok[token, AT])
    end = np.int64(tape.tok[token, END])
    is_string = is_a == STRING or is_a == ESCAPED
    if kind == K_BYTES:
        if not is_string:
            return WRONG_KIND, to
        return _bytes(data, at, end, wire, out, to)
    if kind == K_TIME and not is_string:
        return _time(data, is_a, at, end, wire, fraction, out, to)
    if kind == K_TEXT and (wire == WIRE_NANO_MOMENT or wire == WIRE_NANO_TIME):
        return _nanos(data, is_a, at, end, wire, out, to)
    if kind == K_SET and is_a == ARRAY:
        return _labels(tape, token, out, to)
    if kind == K_TEXT and wire == WIRE_VARIABLE and is_a == OBJECT:
        return _variable(tape, token, out, to)
    if kind == K_JSON and is_string and wire != WIRE_TEXT:
        # Include the quotes, which are still around the text in the buffer.
        at -= 1
        end += 1
    elif is_a == ESCAPED:
        to = unescape(data, at, end, out, to)
        return (HALF_SURROGATE if to < 0 else OK), to
    length = end - at
    if length <= 16:
        for i in range(length):
            out[to + i] = data[at + i]
    else:
        copy(data, at, out, to, length)
    return OK, to + length


# long: it dispatches over the kinds, because each layer of helpers costs compile time
@inlined
def put_cell(tape: Any, token: Any, a: Any, col: Any, row: Any) -> Any:
    """Write a token's value into a column.

    Returns `OK`, `FULL` (slot and need are in the counters), or an error.
    """
    if token < 0 or tape.tok[token, KIND] == NULL:
        put_null(a, col, row)
        return OK
    kind = a.col[col, C_KIND]
    wire = a.col[col, C_WIRE]
    p1 = a.col[col, C_P1]
    if kind <= K_BYTES and kind != K_TEXT and not plain_text(tape, token):
        return HALF_SURROGATE
    if kind >= K_TEXT:
        slot = a.col[col, C_SLOT]
        start = np.int64(a.voff[slot, row])
        need = start + TEXT_SLACK + np.int64(tape.tok[token, END] - tape.tok[token, AT])
        ordinal = wire == WIRE_ORDINAL or wire == WIRE_NUMBER
        if ordinal:
            need += a.label[p1, LABEL_ROOM]
        if need > a.slot[slot, S_ROOM]:
            a.counters[FULL_SLOT] = slot
            a.counters[FULL_NEED] = need
            return FULL
        to = a.slot[slot, S_BASE] + start
        token_kind = tape.tok[token, KIND]
        if ordinal and (token_kind == STRING or token_kind == INTEGER):
            at = np.int64(tape.tok[token, AT])
            error, end = _ordinal(a, col, tape.data, at, np.int64(tape.tok[token, END]), a.vdata, to)
        elif ordinal and token_kind != ESCAPED and token_kind != ARRAY:
            return WRONG_KIND
        else:
            error, end = _text(tape, token, kind, wire, p1, a.vdata, to)
        a.voff[slot, row + 1] = start + end - to
        return error
    data = tape.data
    is_a = np.int64(tape.tok[token, KIND])
    at = np.int64(tape.tok[token, AT])
    end = np.int64(tape.tok[token, END])
    value = np.int64(0)
    top = np.int64(0)
    if kind == K_INT:
        error, value = to_integer(data, is_a, at, end)
        limit = np.int64(1) << (8 * p1 - 1)
        if p1 < 8 and (value >= limit or value < -limit):
            return OUT_OF_RANGE if error == OK else error
    elif kind == K_DECIMAL:
        scale = a.col[col, C_P2]
        # A precision of 0 means an unsigned number of 64 bits.
        unsigned = p1 == 0
        if unsigned:
            p1 = np.int64(20)
        if is_a == STRING and wire == WIRE_EITHER:
            wire = np.int64(decimal_wire(data, at, end))
            if wire == WIRE_EITHER:
                return AMBIGUOUS_DECIMAL
        if is_a == STRING and (wire == WIRE_BASE64 or wire >= WIRE_SCALED):
            error, negative, high, low = base64_number(data, at, end, True)
            zeros = wire - WIRE_SCALED
            while zeros > 0 and error == OK:
                if not fits(high, low, np.int64(37)):
                    error = OUT_OF_RANGE
                high, low = multiply_add(high, low, 10, np.int64(0))
                zeros -= 1
            if error == OK and not fits(high, low, p1):
                error = OUT_OF_RANGE
            if negative:
                high, low = negate(high, low)
            value = np.int64(low)
            top = np.int64(high)
        else:
            error, value, top = to_decimal(data, is_a, at, end, p1, scale)
        if unsigned and error == OK and top != 0:
            error = OUT_OF_RANGE
    elif kind == K_FLOAT64 or kind == K_FLOAT32:
        error, number = to_double(data, is_a, at, end)
        if kind == K_FLOAT64:
            value = np.float64(number).view(np.int64)
        else:
            if error == OK:
                error = fits_float(number)
            value = np.int64(np.float32(number).view(np.int32))
    elif kind == K_BOOL:
        error, value = to_bool(data, is_a, at, end)
    elif kind == K_BIT:
        error, value, top = _bits(data, is_a, at, end, wire, p1)
    else:
        error, value = to_moment(data, is_a, at, end, wire, kind == K_DATE)
        if error == NULL_VALUE:
            a.counters[ZERO_DATES] += 1
            put_null(a, col, row)
            return OK
    if a.col[col, C_WIDE] == 1:
        at = a.col[col, C_BASE] + 2 * row
        a.i64[at] = value
        a.i64[at + 1] = top
    else:
        a.i64[a.col[col, C_BASE] + row] = value
    return error
