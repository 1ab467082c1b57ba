"""Compiled functions for keys of messages: they find messages that may be tombstones, and hash the field names of
keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.core.compiled import copy, load
from raycdc.core.loops.compiling import helper, njit
from raycdc.formats.loops.envelope_loops import KEY_BEGIN, KEY_STOP

_NULL_TEXT = np.frombuffer(b"null", np.uint8).copy()
_PAYLOAD = np.frombuffer(b'"payload"', np.uint8).copy()


@helper
def _ends_in(data: Any, at: Any, end: Any, text: Any) -> Any:
    """Return the position in ``data[at:end]`` at which its end, without trailing blanks, equals `text`; -1 if the
    end differs.
    """
    while end > at and (data[end - 1] == 32 or data[end - 1] == 10 or data[end - 1] == 13 or data[end - 1] == 9):
        end -= 1
    begin = end - len(text)
    if begin < at:
        return np.int64(-1)
    for i in range(len(text)):
        if data[begin + i] != text[i]:
            return np.int64(-1)
    return np.int64(begin)


@njit
def may_be_tombstones(data: Any, offsets: Any, out: Any) -> Any:
    """Set ``out[i]`` to 1 for values that are empty, ``null``, or end in ``"payload": null}``."""
    for message in range(len(out)):
        at = offsets[message]
        end = offsets[message + 1]
        if at == end:
            out[message] = 1
            continue
        while end > at and (data[end - 1] <= 32 or data[end - 1] == 125):
            end -= 1
        begin = _ends_in(data, at, end, _NULL_TEXT)
        if begin < 0:
            continue
        while begin > at and data[begin - 1] <= 32:
            begin -= 1
        if begin == at or (data[begin - 1] == 58 and _ends_in(data, at, begin - 1, _PAYLOAD) >= 0):
            out[message] = 1


@njit
def copy_keys(keys: Any, offsets: Any, wanted: Any, info: Any, data: Any, at: Any) -> Any:
    """Copy the keys of the `wanted` messages into the work buffer from `at` on, and note where they are."""
    for message in range(len(info)):
        length = offsets[message + 1] - offsets[message]
        if wanted[message] == 0 or length == 0:
            continue
        copy(keys, offsets[message], data, at, length)
        info[message, KEY_BEGIN] = at
        info[message, KEY_STOP] = at + length
        at += length
    return at


@njit
def key_names(data: Any, info: Any, out: Any) -> Any:
    """Set ``out[i]`` to a hash of the field names in the key of each message: 0 if the key is no object.

    The names are those of the outermost object, and of the object that is its ``payload``. The key is not validated: a
    key that is no JSON has an arbitrary hash.
    """
    for message in range(len(info)):
        at = info[message, KEY_BEGIN]
        end = info[message, KEY_STOP]
        value = np.int64(0)
        depth = 0
        inside = False  # in the payload
        payload = False  # the name before was `payload`
        expects_name = False
        while at < end:
            byte = data[at]
            at += 1
            if byte == 34:
                begin = at
                while at < end and data[at] != 34:
                    at += 2 if data[at] == 92 else 1
                if expects_name and (depth == 1 or (depth == 2 and inside)):
                    if value == 0:
                        value = np.int64(1469598103934665603)
                    for i in range(begin, min(at, end)):
                        value = (value ^ np.int64(data[i])) * np.int64(1099511628211)
                    value = (value ^ np.int64(256 + depth)) * np.int64(1099511628211)
                    if depth == 1:
                        payload = at - begin == 7 and load(data, begin, 32) == 0x6C796170
                expects_name = False
                at += 1
            elif byte == 123:
                depth += 1
                inside = inside or (depth == 2 and payload)
                expects_name = True
            elif byte == 125:
                depth -= 1
                if depth == 1:
                    inside = False
            elif byte == 91:
                depth += 100  # names in arrays do not count
            elif byte == 93:
                depth -= 100
            elif byte == 44:
                expects_name = True
            elif depth == 0 and byte > 32:
                break
        out[message] = value
