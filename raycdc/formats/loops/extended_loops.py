"""Compiled functions for MongoDB's extended JSON: they recognise values of types that JSON lacks, and find the value
inside.

Only objects that exactly have a known form are unwrapped: ``{"$oid": "…"}`` is an object id, but ``{"$price": 5}``,
``{"$ref": …, "$id": …}`` and ``{"$minKey": 1}`` are ordinary objects. Reference: "MongoDB Extended JSON (v2)", in
canonical and relaxed form, and version 1's ``{"$binary": "…", "$type": "…"}``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.loops.compiling import helper
from raycdc.formats.loops.tape_loops import AT, END, ESCAPED, FRACTION, INTEGER, KIND, NEXT, OBJECT, STRING

#: The forms: no known one, texts, numbers, a moment, bytes.
FORM_NONE, FORM_OBJECT_ID, FORM_UUID, FORM_SYMBOL, FORM_CODE = range(5)
FORM_INTEGER, FORM_DOUBLE, FORM_DECIMAL, FORM_DATE, FORM_BINARY = range(5, 10)


def _name(text: str) -> Any:
    return np.frombuffer(text.encode(), np.uint8).copy()


_OID, _UUID, _SYMBOL, _CODE = _name("$oid"), _name("$uuid"), _name("$symbol"), _name("$code")
_INT, _LONG, _DOUBLE = _name("$numberInt"), _name("$numberLong"), _name("$numberDouble")
_DECIMAL, _DATE, _BINARY = _name("$numberDecimal"), _name("$date"), _name("$binary")
_TYPE, _BASE64, _SUBTYPE = _name("$type"), _name("base64"), _name("subType")


@helper
def _is(tape: Any, key: Any, name: Any) -> Any:
    at = np.int64(tape.tok[key, AT])
    if np.int64(tape.tok[key, END]) - at != len(name):
        return False
    for i in range(len(name)):
        if tape.data[at + i] != name[i]:
            return False
    return True


@helper
def _is_integer(tape: Any, token: Any) -> Any:
    """Return True for an integer, also as digits in a text, which are an integer's token afterwards."""
    if tape.tok[token, KIND] == INTEGER:
        return True
    at = np.int64(tape.tok[token, AT])
    end = np.int64(tape.tok[token, END])
    if tape.tok[token, KIND] != STRING:
        return False
    first = at + 1 if at < end and tape.data[at] == 45 else at
    if first >= end or end - first > 19:
        return False
    for i in range(first, end):
        if not 48 <= tape.data[i] <= 57:
            return False
    tape.tok[token, KIND] = INTEGER
    return True


@helper
def _binary(tape: Any, value: Any, last: Any) -> Any:
    """Return the token of the base64 text in `value`, the value of ``$binary``; -1 if `value` has a different form."""
    after = np.int64(tape.tok[value, NEXT])
    if tape.tok[value, KIND] == STRING:
        plain = after == last
        typed = after < last and _is(tape, after, _TYPE) and np.int64(tape.tok[after + 1, NEXT]) == last
        return value if plain or typed else np.int64(-1)
    if tape.tok[value, KIND] != OBJECT or after != last or after != value + 5:
        return np.int64(-1)
    first = value + 1
    second = value + 3
    if _is(tape, first, _BASE64) and _is(tape, second, _SUBTYPE):
        return first + 1
    return second + 1 if _is(tape, second, _BASE64) and _is(tape, first, _SUBTYPE) else np.int64(-1)


@helper
def extended_form(tape: Any, token: Any) -> Any:
    """Return the form of a value (`FORM_NONE` for plain JSON), and the token of the value inside, or `token` itself."""
    if tape.tok[token, KIND] != OBJECT or np.int64(tape.tok[token, NEXT]) <= token + 2:
        return FORM_NONE, token
    key = token + 1
    at = np.int64(tape.tok[key, AT])
    if tape.data[at] != 36:
        return FORM_NONE, token
    value = key + 1
    last = np.int64(tape.tok[token, NEXT])
    if _is(tape, key, _BINARY):
        inner = _binary(tape, value, last)
        return (FORM_BINARY, inner) if inner >= 0 and tape.tok[inner, KIND] == STRING else (FORM_NONE, token)
    if np.int64(tape.tok[value, NEXT]) != last:
        return FORM_NONE, token
    kind = tape.tok[value, KIND]
    if _is(tape, key, _DATE):
        if kind == OBJECT and np.int64(tape.tok[value, NEXT]) == value + 3 and _is(tape, value + 1, _LONG):
            return (FORM_DATE, value + 2) if _is_integer(tape, value + 2) else (FORM_NONE, token)
        return (FORM_DATE, value) if kind == STRING or kind == INTEGER else (FORM_NONE, token)
    if kind == STRING and _is(tape, key, _OID):
        return FORM_OBJECT_ID, value
    if kind == STRING and _is(tape, key, _UUID):
        return FORM_UUID, value
    if kind == STRING or kind == ESCAPED:
        if _is(tape, key, _SYMBOL):
            return FORM_SYMBOL, value
        if _is(tape, key, _CODE):
            return FORM_CODE, value
    if kind == STRING or kind == INTEGER or kind == FRACTION:
        if _is(tape, key, _LONG) or _is(tape, key, _INT):
            return FORM_INTEGER, value
        if _is(tape, key, _DOUBLE):
            return FORM_DOUBLE, value
        if _is(tape, key, _DECIMAL):
            return FORM_DECIMAL, value
    return FORM_NONE, token
