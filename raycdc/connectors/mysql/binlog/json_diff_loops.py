"""Compiled functions that apply a JSON diff of a partial update to a value in MySQL's binary JSON.

Called by `partial_update_loops`. A diff is an operation, a path and, except for a removal, a new value. The containers
on the path are rewritten, always in the large format; all other bytes are copied. Readers accept small and large
containers anywhere, and `json_text` prints the same text for both.

*Bounds*: every offset is checked against its container; damage returns `DIFF_CORRUPT`, a full buffer `DIFF_NO_ROOM`.
Formats: sql-common/json_binary.h; diffs: sql/json_diff.h; paths: sql-common/json_path.cc.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import little_endian
from raycdc.core.compiled import copy, helper

DIFF_NO_ROOM = -1
DIFF_CORRUPT = -2

REPLACE, INSERT, REMOVE = 0, 1, 2

_DEPTH_MAX = 101
#: The columns for each container on the path: start and end of its bytes, elements, number of the element, kind.
LEVELS_SHAPE = (_DEPTH_MAX, 5)
#: The longest key, whose length has two bytes.
KEY_BYTES = 65_536

_OBJECT_SMALL, _OBJECT_LARGE, _ARRAY_SMALL, _ARRAY_LARGE, _LITERAL = 0, 1, 2, 3, 4
_INT16, _UINT16, _INT32, _UINT32, _STRING, _OPAQUE = 5, 6, 7, 8, 12, 15


@helper
def _put(out: Any, at: Any, value: Any, width: Any) -> Any:
    for i in range(width):
        out[at + i] = (value >> (8 * i)) & 255


@helper
def _wide(kind: Any) -> Any:
    return 4 if kind == _OBJECT_LARGE or kind == _ARRAY_LARGE else 2


@helper
def _open(data: Any, kind: Any, start: Any, end: Any) -> Any:
    """Return (start, end, elements) of the container of this kind. The start is -1 if it is damaged."""
    wide = _wide(kind)
    if start + 2 * wide > end:
        return np.int64(-1), start, np.int64(0)
    count = little_endian(data, start, wide)
    size = little_endian(data, start + wide, wide)
    entry = (wide + 2 if kind <= _OBJECT_LARGE else 0) + 1 + wide
    if size > end - start or 2 * wide + count * entry > size:
        return np.int64(-1), start, np.int64(0)
    return start, start + size, count


@helper
def _in_entry(kind: Any, wide: Any) -> Any:
    if kind == _LITERAL or kind == _INT16 or kind == _UINT16:
        return True
    return wide == 4 and (kind == _INT32 or kind == _UINT32)


@helper
def _size(data: Any, kind: Any, at: Any, end: Any) -> Any:
    """Return the bytes of the value of type `kind` at `at` (without its type); -1 if it is damaged."""
    size = np.int64(8)
    if kind <= _ARRAY_LARGE:
        wide = _wide(kind)
        if at + 2 * wide > end:
            return np.int64(-1)
        size = little_endian(data, at + wide, wide)
    elif kind == _LITERAL:
        size = np.int64(1)
    elif kind == _INT16 or kind == _UINT16:
        size = np.int64(2)
    elif kind == _INT32 or kind == _UINT32:
        size = np.int64(4)
    elif kind == _STRING or kind == _OPAQUE:
        head = at + 1 if kind == _OPAQUE else at
        length = np.int64(0)
        shift = 0
        while True:
            if head >= end or shift > 28:
                return np.int64(-1)
            byte = np.int64(data[head])
            length |= (byte & 127) << shift
            shift += 7
            head += 1
            if byte < 128:
                break
        size = head + length - at
    elif kind > _OPAQUE:
        return np.int64(-1)
    return size if at + size <= end else np.int64(-1)


@helper
def _key_at(data: Any, start: Any, kind: Any, element: Any) -> Any:
    """Return (offset, length) of an object's key."""
    wide = _wide(kind)
    entry = start + 2 * wide + element * (wide + 2)
    return start + little_endian(data, entry, wide), little_endian(data, entry + wide, 2)


@helper
def _compare(data: Any, at: Any, length: Any, key: Any, key_length: Any) -> Any:
    """Compare two keys as objects order them: by length, then by bytes.

    Return a negative number, 0 or a positive one.
    """
    if length != key_length:
        return length - key_length
    for i in range(length):
        if data[at + i] != key[i]:
            return np.int64(data[at + i]) - np.int64(key[i])
    return np.int64(0)


@helper
def _find(data: Any, start: Any, stop: Any, kind: Any, count: Any, key: Any, key_length: Any) -> Any:
    """Return the number of the element with this key or of the first greater one, and a flag if it is equal.

    The number is -1 if the object is damaged.
    """
    for element in range(count):
        at, length = _key_at(data, start, kind, element)
        if at + length > stop:
            return np.int64(-1), False
        order = _compare(data, at, length, key, key_length)
        if order == 0:
            return np.int64(element), True
        if order > 0:
            return np.int64(element), False
    return np.int64(count), False


@helper
def _element(data: Any, start: Any, stop: Any, kind: Any, count: Any, element: Any) -> Any:
    """Return (type, offset, size) of an element's value. The size is -1 if it is damaged."""
    wide = _wide(kind)
    values = start + 2 * wide + (count * (wide + 2) if kind <= _OBJECT_LARGE else 0)
    entry = values + element * (1 + wide)
    child = np.int64(data[entry])
    if _in_entry(child, wide):
        return child, entry + 1, _size(data, child, entry + 1, entry + 1 + wide)
    at = start + little_endian(data, entry + 1, wide)
    if at < values or at >= stop:
        return child, at, np.int64(-1)
    return child, at, _size(data, child, at, stop)


@helper
def _escaped(data: Any, at: Any, end: Any, key: Any, used: Any) -> Any:
    """Decode one escape sequence of a quoted key, after its backslash.

    Return (offset after it or -1, bytes of the key).
    """
    if at >= end:
        return np.int64(-1), used
    byte: Any = np.int64(data[at])
    at += 1
    if byte == 117:  # u
        if at + 4 > end:
            return np.int64(-1), used
        point = np.int64(0)
        for i in range(4):
            digit = np.int64(data[at + i]) | 32
            if 48 <= digit <= 57:
                point = point * 16 + digit - 48
            elif 97 <= digit <= 102:
                point = point * 16 + digit - 87
            else:
                return np.int64(-1), used
        at += 4
        if point < 128:
            key[used] = point
            return at, used + 1
        if point < 2048:
            key[used] = 192 | (point >> 6)
            key[used + 1] = 128 | (point & 63)
            return at, used + 2
        key[used] = 224 | (point >> 12)
        key[used + 1] = 128 | ((point >> 6) & 63)
        key[used + 2] = 128 | (point & 63)
        return at, used + 3
    if byte == 98:
        byte = 8
    elif byte == 102:
        byte = 12
    elif byte == 110:
        byte = 10
    elif byte == 114:
        byte = 13
    elif byte == 116:
        byte = 9
    key[used] = byte
    return at, used + 1


@helper
def _member(path: Any, at: Any, end: Any, key: Any) -> Any:
    """Decode the key of a leg ``.name`` or ``."name"`` after its dot.

    Return (offset after the leg or -1, bytes of the key).
    """
    used = np.int64(0)
    if at < end and path[at] == 34:
        at += 1
        while True:
            if at >= end or used + 4 > KEY_BYTES:
                return np.int64(-1), used
            byte = path[at]
            at += 1
            if byte == 34:
                return at, used
            if byte == 92:
                at, used = _escaped(path, at, end, key, used)
                if at < 0:
                    return at, used
            else:
                key[used] = byte
                used += 1
    while at < end and path[at] != 46 and path[at] != 91:
        if used + 4 > KEY_BYTES:
            return np.int64(-1), used
        key[used] = path[at]
        used += 1
        at += 1
    return at, used


@helper
def _cell(path: Any, at: Any, end: Any, count: Any) -> Any:
    """Decode the index of a leg ``[5]``, ``[last]`` or ``[last-2]`` after its bracket.

    Return (offset after it or -1, index).
    """
    from_last = False
    index = np.int64(0)
    digits = 0
    while at < end and path[at] != 93:
        byte = np.int64(path[at])
        if 48 <= byte <= 57:
            index = index * 10 + byte - 48
            digits += 1
            if digits > 10:
                return np.int64(-1), index
        elif byte == 108:
            from_last = True
        at += 1
    if at >= end:
        return np.int64(-1), index
    return at + 1, count - 1 - index if from_last else index


# long: it writes the key entries and the value entries together, because both share the computed sizes and offsets
@helper
def _rebuild(
    data: Any, levels: Any, level: Any, operation: Any, key: Any, key_length: Any,
    value: Any, value_at: Any, value_end: Any, out: Any, to: Any,
) -> Any:  # fmt: skip
    """Write the container of `level` with its element replaced, inserted or removed. Returns the end or DIFF_…."""
    start = levels[level, 0]
    stop = levels[level, 1]
    count = levels[level, 2]
    changed = levels[level, 3]
    kind = levels[level, 4]
    is_object = kind <= _OBJECT_LARGE
    after = count + 1 if operation == INSERT else (count - 1 if operation == REMOVE else count)
    # If the element's entry grows, its value grows by 3 bytes at most. Keys only move.
    need = 2 * (stop - start) + after * 16 + key_length + (value_end - value_at) + 32
    if to + need > len(out):
        return np.int64(DIFF_NO_ROOM)
    out[to] = _OBJECT_LARGE if is_object else _ARRAY_LARGE
    base = to + 1
    keys = base + 8
    values = keys + (after * 6 if is_object else 0)
    at = values + after * 5
    _put(out, base, after, 4)
    if is_object:
        source = np.int64(0)
        for element in range(after):
            if operation == INSERT and element == changed:
                _put(out, keys + element * 6, at - base, 4)
                _put(out, keys + element * 6 + 4, key_length, 2)
                copy(key, 0, out, at, key_length)
                at += key_length
                continue
            if operation == REMOVE and source == changed:
                source += 1
            found, length = _key_at(data, start, kind, source)
            if found + length > stop or at + length > len(out):
                return np.int64(DIFF_CORRUPT)
            _put(out, keys + element * 6, at - base, 4)
            _put(out, keys + element * 6 + 4, length, 2)
            copy(data, found, out, at, length)
            at += length
            source += 1
    source = np.int64(0)
    for element in range(after):
        entry = values + element * 5
        for i in range(5):
            out[entry + i] = 0
        if operation != REMOVE and element == changed:
            child = np.int64(value[value_at])
            size = value_end - value_at - 1
            if _in_entry(child, 4):
                if size > 4:
                    return np.int64(DIFF_CORRUPT)
                out[entry] = child
                copy(value, value_at + 1, out, entry + 1, size)
            else:
                if at + size > len(out):
                    return np.int64(DIFF_NO_ROOM)
                out[entry] = child
                _put(out, entry + 1, at - base, 4)
                copy(value, value_at + 1, out, at, size)
                at += size
            if operation == REPLACE:
                source += 1
            continue
        if operation == REMOVE and source == changed:
            source += 1
        child, found, size = _element(data, start, stop, kind, count, source)
        if size < 0:
            return np.int64(DIFF_CORRUPT)
        out[entry] = child
        if _in_entry(child, 4):
            copy(data, found, out, entry + 1, size)
        else:
            if at + size > len(out):
                return np.int64(DIFF_NO_ROOM)
            _put(out, entry + 1, at - base, 4)
            copy(data, found, out, at, size)
            at += size
        source += 1
    _put(out, base + 4, at - base, 4)
    return np.int64(at)


@helper
def _back(
    data: Any, levels: Any, depth: Any, act: Any, key: Any, key_length: Any,
    value: Any, value_at: Any, value_end: Any, one: Any, other: Any,
) -> Any:  # fmt: skip
    """Rebuild the containers from the innermost to the outermost. Each is the new value in the next one."""
    end = _rebuild(data, levels, depth - 1, act, key, key_length, value, value_at, value_end, one, np.int64(0))
    level = depth - 2
    in_one = True
    while level >= 0 and end >= 0:
        if in_one:
            end = _rebuild(data, levels, level, REPLACE, key, np.int64(0), one, np.int64(0), end, other, np.int64(0))
        else:
            end = _rebuild(data, levels, level, REPLACE, key, np.int64(0), other, np.int64(0), end, one, np.int64(0))
        in_one = not in_one
        level -= 1
    if end >= 0 and not in_one:
        if end > len(one):
            return np.int64(DIFF_NO_ROOM)
        copy(other, 0, one, 0, end)
    return np.int64(end)


# long: it follows the path inwards and writes the result outwards, and both directions share the list of containers
@helper
def apply_diff(
    data: Any, at: Any, end: Any, operation: Any, path: Any, path_at: Any, path_end: Any,
    value: Any, value_at: Any, value_end: Any, levels: Any, key: Any, one: Any, other: Any,
) -> Any:  # fmt: skip
    """Apply a diff to the value in ``data[at:end]`` (type byte first). Returns the end of the result, or DIFF_….

    The result is at the beginning of the work buffer `one`. `data`, `path` and `value` must not share memory with the
    work buffers `one` and `other`.
    """
    if at >= end or path_at >= path_end or path[path_at] != 36:
        return np.int64(DIFF_CORRUPT)
    p = path_at + 1
    depth = 0
    key_length = np.int64(0)
    act = operation
    while p < path_end:
        kind = np.int64(data[at]) if depth == 0 else levels[depth, 4]
        last_leg = False
        if kind > _ARRAY_LARGE:
            # A path treats a scalar as an array of one element.
            if path[p] != 91:
                return np.int64(DIFF_CORRUPT)
            p, cell = _cell(path, p + 1, path_end, np.int64(1))
            if p < 0 or cell != 0:
                return np.int64(DIFF_CORRUPT)
            continue
        if depth >= _DEPTH_MAX - 1:
            return np.int64(DIFF_CORRUPT)
        if depth == 0:
            start, stop, count = _open(data, kind, at + 1, end)
        else:
            start, stop, count = levels[depth, 0], levels[depth, 1], levels[depth, 2]
        if start < 0:
            return np.int64(DIFF_CORRUPT)
        is_object = kind <= _OBJECT_LARGE
        found = False
        if path[p] == 46 and is_object:
            p, key_length = _member(path, p + 1, path_end, key)
            if p < 0:
                return np.int64(DIFF_CORRUPT)
            element, found = _find(data, start, stop, kind, count, key, key_length)
            if element < 0:
                return np.int64(DIFF_CORRUPT)
        elif path[p] == 91 and not is_object:
            p, element = _cell(path, p + 1, path_end, count)
            if p < 0 or element < 0:
                return np.int64(DIFF_CORRUPT)
            found = element < count
        elif path[p] == 91:
            p, cell = _cell(path, p + 1, path_end, np.int64(1))
            if p < 0 or cell != 0:
                return np.int64(DIFF_CORRUPT)
            continue
        else:
            return np.int64(DIFF_CORRUPT)
        last_leg = p >= path_end
        if last_leg and operation == INSERT:
            if is_object and found:
                act = REPLACE
            else:
                element = min(element, count)
        elif not found:
            return np.int64(DIFF_CORRUPT)
        levels[depth, 0] = start
        levels[depth, 1] = stop
        levels[depth, 2] = count
        levels[depth, 3] = element
        levels[depth, 4] = kind
        depth += 1
        if not last_leg:
            child, child_at, size = _element(data, start, stop, kind, count, element)
            if size < 0:
                return np.int64(DIFF_CORRUPT)
            levels[depth, 4] = child
            if child <= _ARRAY_LARGE:
                inner, inner_stop, inner_count = _open(data, child, child_at, stop)
                if inner < 0:
                    return np.int64(DIFF_CORRUPT)
                levels[depth, 0] = inner
                levels[depth, 1] = inner_stop
                levels[depth, 2] = inner_count
    if depth == 0:
        # The whole value is replaced.
        size = value_end - value_at
        if operation != REPLACE:
            return np.int64(DIFF_CORRUPT)
        if size > len(one):
            return np.int64(DIFF_NO_ROOM)
        copy(value, value_at, one, 0, size)
        return np.int64(size)
    return _back(data, levels, depth, act, key, key_length, value, value_at, value_end, one, other)
