"""Compiled loops that decode concatenated documents into rows of Arrow column buffers (the arena).

The fields of a collection mostly come in the same order. The column at the same index in the previous document is
therefore tried first, and only a mismatch costs a lookup in the table of names. A document counts as a row only when
all of it is written. If a buffer lacks room, the document is decoded again after the buffer was enlarged. If a value
does not fit its column, decoding may stop before the document.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mongodb.bson.code_loops import (
    AS_FIELDS,
    AS_VALUE,
    AT,
    BAD_UTF8,
    CODE_AT,
    DAMAGED,
    DOCUMENT,
    DONE,
    ELEMENT_TYPE,
    FAILED,
    FAILED_COLUMN,
    FRESH,
    LOST,
    MET,
    MISMATCH,
    MISSING,
    NULL,
    ON_MISMATCH_FAIL,
    ON_MISMATCH_REST,
    OPEN,
    REST_FULL,
    ROWS_FULL,
    TEXT_FULL,
    TWICE,
    UNDEFINED,
)
from raycdc.connectors.mongodb.bson.element_loops import container_end, name_end, value_end
from raycdc.connectors.mongodb.bson.json_loops import ROOM, json_text, quoted_text
from raycdc.connectors.mongodb.bson.value_loops import is_own, put_any, put_value
from raycdc.core.compiled import copy
from raycdc.core.loops.compiling import helper, inlined, njit
from raycdc.core.loops.string_loops import WIDEST
from raycdc.core.loops.utf8_loops import is_utf8
from raycdc.formats.loops.cell_loops import put_null
from raycdc.formats.loops.code_loops import C_SLOT, C_WIRE, FULL, FULL_NEED, FULL_SLOT, OK, ROWS, S_BASE, S_ROOM


class FieldArrays(NamedTuple):
    """The table from a document's fields to columns, and the loop's memory.

    Column ``c`` takes the field whose name is ``names[spans[c, 0]:][:spans[c, 1]]``; if the length is -1, no field
    fills the column. `table` finds columns by a hash of the name (-1: free). `guess` has the column of each element of
    the previous document, by the element's index. `seen` has the document in which a column was last found. `rest` has
    the offsets of elements without a column. `stack` and `scratch` are work space, `state` has the entries named in
    `code_loops`.

    A value that a column cannot hold goes to the column ``others[c]`` of JSON (-1: there is none). `met` has the names
    and types of elements that went to the rest (-1: free; no entries: not wanted), and `fresh` has the ranges of the
    elements that were added since the last call.
    """

    names: npt.NDArray[np.uint8]
    spans: npt.NDArray[np.int64]
    table: npt.NDArray[np.int64]
    guess: npt.NDArray[np.int64]
    seen: npt.NDArray[np.int64]
    rest: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]
    met: npt.NDArray[np.int64]
    fresh: npt.NDArray[np.int64]
    stack: npt.NDArray[np.int64]
    scratch: npt.NDArray[np.uint8]
    state: npt.NDArray[np.int64]


@inlined
def same_name(data: Any, at: Any, end: Any, fields: Any, column: Any) -> Any:
    """Return whether the name at `at` is the column's, and where it ends."""
    length = fields.spans[column, 1]
    stop = at + length
    if length < 0 or stop >= end or data[stop] != 0:
        return False, stop
    first = fields.spans[column, 0]
    for i in range(length):
        if data[at + i] != fields.names[first + i]:
            return False, stop
    return True, stop


@helper
def name_hash(data: Any, at: Any, end: Any) -> Any:
    """Return the FNV-1a hash of a name."""
    value = np.uint64(0xCBF29CE484222325)
    for i in range(at, end):
        value = (value ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return np.int64(value >> np.uint64(33))


@helper
def find_name(data: Any, at: Any, stop: Any, end: Any, fields: Any) -> Any:
    """Return the column of the name in ``data[at:stop]``, or -1."""
    size = len(fields.table)
    index = name_hash(data, at, stop) % size
    while fields.table[index] >= 0:
        column = fields.table[index]
        found, over = same_name(data, at, end, fields, column)
        if found and over == stop:
            return column
        index = (index + 1) % size
    return np.int64(-1)


@njit
def enter(fields: FieldArrays) -> None:
    """Enter the columns into the table of names, which is empty and has more places than there are columns."""
    size = len(fields.table)
    for column in range(len(fields.spans)):
        length = fields.spans[column, 1]
        if length >= 0:
            first = fields.spans[column, 0]
            index = name_hash(fields.names, first, first + length) % size
            while fields.table[index] >= 0:
                index = (index + 1) % size
            fields.table[index] = column


@helper
def _room(a: Any, slot: Any, to: Any, size: Any) -> Any:
    """Return True if `size` bytes fit after `to`; otherwise note the needed size."""
    need = to + size
    if need <= a.slot[slot, S_BASE] + a.slot[slot, S_ROOM]:
        return True
    a.counters[FULL_SLOT] = slot
    a.counters[FULL_NEED] = need - a.slot[slot, S_BASE]
    return False


@helper
def _put_fields(data: Any, fields: Any, count: Any, last: Any, a: Any, column: Any, row: Any) -> Any:
    """Write the noted elements, which have no column, into a cell as one document in BSON."""
    slot = a.col[column, C_SLOT]
    base = a.slot[slot, S_BASE]
    to = base + np.int64(a.voff[slot, row])
    size = np.int64(5)
    for i in range(count):
        at = fields.rest[i]
        size += value_end(data, np.int64(data[at]), name_end(data, at + 1, last) + 1, last) - at
    if not _room(a, slot, to, size):
        return FULL
    for i in range(4):
        a.vdata[to + i] = (size >> (8 * i)) & 0xFF
    to += 4
    for i in range(count):
        at = fields.rest[i]
        over = value_end(data, np.int64(data[at]), name_end(data, at + 1, last) + 1, last)
        copy(data, at, a.vdata, to, over - at)
        to += over - at
    a.vdata[to] = 0
    a.voff[slot, row + 1] = to + 1 - base
    return OK


@helper
def _note(data: Any, index: Any, stop: Any, over: Any, fields: Any) -> Any:
    """Add the element at `index`, whose name ends at `stop`, to `met`, unless that is full."""
    state = fields.state
    size = len(fields.met)
    if state[FRESH] == len(fields.fresh) or 2 * state[MET] >= size:
        return
    one = (name_hash(data, index + 1, stop) << 8) | np.int64(data[index])
    free = one % size
    while fields.met[free] >= 0:
        if fields.met[free] == one:
            return
        free = (free + 1) % size
    fields.met[free] = one
    fields.fresh[state[FRESH], 0] = index
    fields.fresh[state[FRESH], 1] = over
    state[FRESH] += 1
    state[MET] += 1


@helper
def _put_rest(data: Any, fields: Any, count: Any, last: Any, a: Any, column: Any, row: Any) -> Any:
    """Write the noted elements, which have no column, into a cell as one document."""
    if a.col[column, C_WIRE] == AS_FIELDS:
        return _put_fields(data, fields, count, last, a, column, row)
    slot = a.col[column, C_SLOT]
    base = a.slot[slot, S_BASE]
    limit = base + a.slot[slot, S_ROOM]
    to = base + np.int64(a.voff[slot, row])
    wire = a.col[column, C_WIRE]
    for i in range(count):
        at = fields.rest[i]
        name = at + 1
        stop = name_end(data, name, last)
        need = to + ROOM + WIDEST * (stop - name)
        if need > limit:
            a.counters[FULL_SLOT] = slot
            a.counters[FULL_NEED] = need - base
            return FULL
        if not is_utf8(data, name, stop):
            return BAD_UTF8
        a.vdata[to] = 123 if i == 0 else 44
        to = quoted_text(data, name, stop, a.vdata, to + 1)
        a.vdata[to] = 58
        kind = np.int64(data[at])
        over = value_end(data, kind, stop + 1, last)
        error, to = json_text(data, kind, stop + 1, over, wire, a.vdata, to + 1, limit, fields.stack)
        if error != OK:
            fields.state[ELEMENT_TYPE] = kind
            if error == FULL:
                a.counters[FULL_SLOT] = slot
                a.counters[FULL_NEED] = to - base
            return error
    a.vdata[to] = 125
    a.voff[slot, row + 1] = to + 1 - base
    return OK


@helper
def _put_whole(data: Any, at: Any, last: Any, fields: Any, a: Any, column: Any, row: Any) -> Any:
    """Write the whole document into a cell."""
    slot = a.col[column, C_SLOT]
    base = a.slot[slot, S_BASE]
    to = base + np.int64(a.voff[slot, row])
    if a.col[column, C_WIRE] == AS_FIELDS:
        if not _room(a, slot, to, last - at):
            return FULL
        copy(data, at, a.vdata, to, last - at)
        a.voff[slot, row + 1] = to + last - at - base
        return OK
    limit = base + a.slot[slot, S_ROOM]
    kind = np.int64(DOCUMENT)
    error, to = json_text(data, kind, at, last, a.col[column, C_WIRE], a.vdata, to, limit, fields.stack)
    if error == OK:
        a.voff[slot, row + 1] = to - base
    elif error == FULL:
        a.counters[FULL_SLOT] = slot
        a.counters[FULL_NEED] = to - base
    return error


# long: it is one pass over the elements, with a branch for each treatment of an element
@inlined
def document_row(
    data: Any, at: Any, last: Any, fields: Any, a: Any, row: Any, key: Any, whole: Any, rest: Any, on_type_mismatch: Any
) -> Any:
    """Decode one document into one row: return `OK`, `FULL`, `REST_FULL` negated, or an error code.

    `FieldArrays.state` has the offset and the column of the error.
    """
    state = fields.state
    state[OPEN] += 1
    mark = state[OPEN]
    state[FAILED_COLUMN] = -1
    index = at + 4
    end = last - 1
    number = 0
    noted = np.int64(0)
    lost = np.int64(0)
    exact = rest >= 0 and a.col[rest, C_WIRE] == AS_FIELDS
    while index < end:
        kind = np.int64(data[index])
        state[ELEMENT_TYPE] = kind
        name = index + 1
        column = fields.guess[number] if number < len(fields.guess) else np.int64(-1)
        hit = False
        stop = name
        if column >= 0:
            hit, stop = same_name(data, name, end, fields, column)
        if not hit:
            stop = name_end(data, name, end)
            if stop < 0:
                return DAMAGED
            column = find_name(data, name, stop, end, fields)
            if number < len(fields.guess):
                fields.guess[number] = column
        value = stop + 1
        over = value_end(data, kind, value, end)
        if over < 0:
            return DAMAGED
        spare = column < 0
        again = False
        if column >= 0:
            error = np.int64(TWICE)
            again = fields.seen[column] == mark
            if not again:
                fields.seen[column] = mark
                null = kind == NULL or kind == UNDEFINED
                strict = exact and column != key and a.col[column, C_WIRE] != AS_VALUE
                if null and column == key:
                    error = np.int64(put_any(data, kind, value, over, a, column, row, fields.stack))
                elif strict and (null or not is_own(data, kind, value, a, column)):
                    error = np.int64(MISMATCH)
                else:
                    error = np.int64(put_value(data, kind, value, over, a, column, row, fields.stack, fields.scratch))
            if error != OK:
                if error == FULL:
                    return FULL
                state[FAILED_COLUMN] = column
                if error == DAMAGED or column == key or on_type_mismatch == ON_MISMATCH_FAIL:
                    return error
                other = fields.others[column]
                if not again:
                    put_null(a, column, row)
                    if other >= 0:
                        error = np.int64(put_any(data, kind, value, over, a, other, row, fields.stack))
                        if error == FULL:
                            return FULL
                        if error == OK:
                            fields.seen[other] = mark
                spare = error != OK
                if spare and on_type_mismatch != ON_MISMATCH_REST:
                    lost += 1
        if spare and rest >= 0:
            if not again and kind != NULL and kind != UNDEFINED:
                _note(data, index, stop, over, fields)
            if noted == len(fields.rest):
                return -REST_FULL
            fields.rest[noted] = index
            noted += 1
        index = over
        number += 1
    if fields.seen[key] != mark:
        state[FAILED_COLUMN] = key
        return MISSING
    for column in range(len(fields.spans)):
        if fields.seen[column] != mark and column != whole and column != rest:
            put_null(a, column, row)
    state[ELEMENT_TYPE] = DOCUMENT
    if whole >= 0:
        state[FAILED_COLUMN] = whole
        error = np.int64(_put_whole(data, at, last, fields, a, whole, row))
        if error != OK:
            return error
    if rest >= 0:
        state[FAILED_COLUMN] = rest
        if noted == 0:
            put_null(a, rest, row)
        else:
            error = np.int64(_put_rest(data, fields, noted, end, a, rest, row))
            if error != OK:
                return error
    state[LOST] += lost
    return OK


@njit
def decode(
    data: Any, at: int, stop: int, fields: FieldArrays, a: Any, key: int, whole: int, rest: int, on_type_mismatch: int
) -> int:
    """Decode documents from `at` on into rows, until one begins at `stop` or later; return why it stopped.

    `key`, `whole` and `rest` are the columns of the key, the whole document and all fields without a column (-1: none).
    ``state[AT]`` is where to continue; after `FAILED`, ``state[CODE_AT]`` is the error of the document there.
    """
    state = fields.state
    while at < stop:
        state[AT] = at
        row = a.counters[ROWS]
        if row == len(a.meta):
            return ROWS_FULL
        last = container_end(data, at, len(data))
        error = np.int64(DAMAGED)
        if last >= 0:
            error = np.int64(document_row(data, at, last, fields, a, row, key, whole, rest, on_type_mismatch))
        if error == FULL:
            return TEXT_FULL
        if error == -REST_FULL:
            return REST_FULL
        if error != OK:
            state[CODE_AT] = error
            return FAILED
        a.counters[ROWS] = row + 1
        at = last
    state[AT] = at
    return DONE
