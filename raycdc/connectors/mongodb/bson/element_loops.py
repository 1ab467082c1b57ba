"""Compiled functions for elements of a BSON document: they find the ends of names and values, and check UTF-8.

The bytes are not trusted: every length is compared with the remaining bytes of its container.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mongodb.bson.code_loops import (
    ARRAY,
    BINARY,
    BOOLEAN,
    CODE,
    CODE_WITH_SCOPE,
    DATE,
    DB_POINTER,
    DECIMAL128,
    DOCUMENT,
    DOUBLE,
    INT32,
    INT64,
    MAX_KEY,
    MIN_KEY,
    NULL,
    OBJECT_ID,
    OLD_BINARY,
    REGEX,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UNDEFINED,
)
from raycdc.core.compiled import load
from raycdc.core.loops.compiling import helper, inlined


@inlined
def int32_at(data: Any, at: Any) -> Any:
    """Return the signed number of four bytes at `at`."""
    return (load(data, at, 32) << 32) >> 32


@inlined
def name_end(data: Any, at: Any, end: Any) -> Any:
    """Return the position of the NUL that ends the name at `at`, or -1 if there is none before `end`."""
    while at < end:
        if data[at] == 0:
            return at
        at += 1
    return np.int64(-1)


@inlined
def _string_end(data: Any, at: Any, end: Any) -> Any:
    """Return the offset after a length-prefixed string and its NUL; -1 if it is damaged."""
    if end - at < 5:
        return np.int64(-1)
    length = int32_at(data, at)
    if length < 1 or length > end - at - 4 or data[at + 3 + length] != 0:
        return np.int64(-1)
    return at + 4 + length


@inlined
def container_end(data: Any, at: Any, end: Any) -> Any:
    """Return the offset after the document or array at `at`; -1 if its length is impossible."""
    if end - at < 5:
        return np.int64(-1)
    length = int32_at(data, at)
    if length < 5 or length > end - at or data[at + length - 1] != 0:
        return np.int64(-1)
    return at + length


@helper
def _rare_end(data: Any, kind: Any, at: Any, end: Any) -> Any:
    """Return `value_end` of the rare types."""
    if kind == UNDEFINED or kind == MIN_KEY or kind == MAX_KEY:
        return at
    if kind == TIMESTAMP:
        return at + 8 if end - at >= 8 else np.int64(-1)
    if kind == REGEX:
        middle = name_end(data, at, end)
        if middle < 0:
            return middle
        last = name_end(data, middle + 1, end)
        return last if last < 0 else last + 1
    if kind == DB_POINTER:
        last = _string_end(data, at, end)
        return last + 12 if last >= 0 and end - last >= 12 else np.int64(-1)
    if kind == CODE or kind == SYMBOL:
        return _string_end(data, at, end)
    if kind == CODE_WITH_SCOPE:
        if end - at < 14:
            return np.int64(-1)
        length = int32_at(data, at)
        if length < 14 or length > end - at:
            return np.int64(-1)
        scope = _string_end(data, at + 4, at + length)
        if scope < 0 or container_end(data, scope, at + length) != at + length:
            return np.int64(-1)
        return at + length
    return np.int64(-1)


@inlined
def value_end(data: Any, kind: Any, at: Any, end: Any) -> Any:
    """Return the offset after the value at `at`; -1 for an unknown type or a length that leads beyond `end`.

    The content of a document or an array is not checked.
    """
    if kind == INT32:
        last = at + 4
    elif kind == DOUBLE or kind == INT64 or kind == DATE:
        last = at + 8
    elif kind == STRING:
        return _string_end(data, at, end)
    elif kind == OBJECT_ID:
        last = at + 12
    elif kind == BOOLEAN:
        last = at + 1
        if at < end and data[at] > 1:
            return np.int64(-1)
    elif kind == NULL:
        last = at
    elif kind == DOCUMENT or kind == ARRAY:
        return container_end(data, at, end)
    elif kind == DECIMAL128:
        last = at + 16
    elif kind == BINARY:
        if end - at < 5:
            return np.int64(-1)
        length = int32_at(data, at)
        if length < 0 or length > end - at - 5:
            return np.int64(-1)
        if data[at + 4] == OLD_BINARY and (length < 4 or int32_at(data, at + 5) != length - 4):
            return np.int64(-1)
        last = at + 5 + length
    else:
        return _rare_end(data, kind, at, end)
    return last if last <= end else np.int64(-1)
