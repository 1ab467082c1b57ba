"""Compiled loops over concatenated change events: they find the parts of each event, and decode documents into rows.

`scan` reads the fields of each event's envelope and skips the documents. `document_rows` decodes the documents that the
caller lists, in the listed order. A change may have two documents; a deletion has only a key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mongodb.bson.code_loops import (
    AT,
    CODE_AT,
    DAMAGED,
    DATE,
    DELETE,
    DOCUMENT,
    DONE,
    E_AFTER,
    E_BEFORE,
    E_BEGIN,
    E_END,
    E_KEY,
    E_KIND,
    E_NAMESPACE,
    E_NAMESPACE_AT,
    E_SPLIT,
    E_TIME,
    E_TOKEN,
    E_TXN,
    E_WALL,
    F_AFTER,
    F_BEFORE,
    F_KEY,
    F_NAMESPACE,
    F_SPLIT,
    F_TIME,
    F_TOKEN,
    F_TXN,
    F_TYPE,
    F_WALL,
    FAILED,
    INSERT,
    INT64,
    NO_NAMESPACE,
    ON_MISMATCH_NULL,
    OTHER,
    REPLACE,
    REST_FULL,
    ROWS_FULL,
    STRING,
    TEXT_FULL,
    TIMESTAMP,
    UPDATE,
)
from raycdc.connectors.mongodb.bson.element_loops import container_end, name_end, value_end
from raycdc.connectors.mongodb.bson.walk_loops import FieldArrays, document_row, find_name, same_name
from raycdc.core.compiled import load
from raycdc.core.loops.compiling import helper, njit
from raycdc.formats.loops.code_loops import FULL, OK, ROWS


@helper
def _kind_of(data: Any, at: Any, end: Any) -> Any:
    """Return the kind of an event from its ``operationType`` in ``data[at:end]``, which begins with the length."""
    size = end - at - 5
    first = data[at + 4]
    if size == 6:
        if first == 105 and data[at + 5] == 110 and data[at + 9] == 116:  # insert
            return np.int64(INSERT)
        if first == 117 and data[at + 5] == 112 and data[at + 9] == 101:  # update
            return np.int64(UPDATE)
        if first == 100 and data[at + 5] == 101 and data[at + 9] == 101:  # delete
            return np.int64(DELETE)
    # "refineCollectionShardKey" and all other kinds differ in length; none of the kinds "reshard…" has seven
    # characters.
    if size == 7 and first == 114 and data[at + 6] == 112 and data[at + 10] == 101:  # replace
        return np.int64(REPLACE)
    return np.int64(OTHER)


@helper
def _event(data: Any, at: Any, last: Any, envelope: Any, namespaces: Any, event: Any) -> Any:
    """Read the envelope of one event into the row `event`. Returns `OK` or `DAMAGED`."""
    event[:] = 0
    event[E_BEGIN], event[E_END] = at, last
    event[E_WALL] = -1
    event[E_TXN] = -1
    event[E_NAMESPACE] = NO_NAMESPACE
    index = at + 4
    end = last - 1
    number = 0
    while index < end:
        kind = np.int64(data[index])
        name = index + 1
        field = envelope.guess[number] if number < len(envelope.guess) else np.int64(-1)
        hit = False
        stop = name
        if field >= 0:
            hit, stop = same_name(data, name, end, envelope, field)
        if not hit:
            stop = name_end(data, name, end)
            if stop < 0:
                return DAMAGED
            field = find_name(data, name, stop, end, envelope)
            if number < len(envelope.guess):
                envelope.guess[number] = field
        value = stop + 1
        over = value_end(data, kind, value, end)
        if over < 0:
            return DAMAGED
        if field == F_TYPE and kind == STRING:
            event[E_KIND] = _kind_of(data, value, over)
        elif field == F_TIME and kind == TIMESTAMP:
            event[E_TIME] = load(data, value, 64)
        elif field == F_WALL and kind == DATE:
            event[E_WALL] = load(data, value, 64)
        elif field == F_TXN and kind == INT64:
            event[E_TXN] = load(data, value, 64)
        elif kind == DOCUMENT:
            if field == F_NAMESPACE:
                event[E_NAMESPACE] = find_name(data, value + 4, over - 1, over, namespaces)
                event[E_NAMESPACE_AT] = value
            elif field == F_TOKEN:
                event[E_TOKEN] = value
            elif field == F_KEY:
                event[E_KEY] = value
            elif field == F_AFTER:
                event[E_AFTER] = value
            elif field == F_BEFORE:
                event[E_BEFORE] = value
            elif field == F_SPLIT:
                event[E_SPLIT] = value
        index = over
        number += 1
    return OK


@njit
def scan(data: Any, at: int, envelope: FieldArrays, namespaces: FieldArrays, events: Any) -> int:
    """Read the events from `at` on into rows of `events`, and return their number.

    ``envelope.state[AT]`` is where to continue. A damaged event ends the scan; ``state[CODE_AT]`` is then not `OK`.
    `namespaces` are the contents of the known ``ns`` documents.
    """
    state = envelope.state
    state[CODE_AT] = OK
    count = 0
    size = len(data)
    while at < size and count < len(events):
        last = container_end(data, at, size)
        if last < 0 or _event(data, at, last, envelope, namespaces, events[count]) != OK:
            state[CODE_AT] = DAMAGED
            break
        count += 1
        at = last
    state[AT] = at
    return count


@njit
def document_rows(
    data: Any,
    indexes: npt.NDArray[np.int64],
    at: int,
    stop: int,
    fields: FieldArrays,
    a: Any,
    key: int,
    whole: int,
    rest: int,
    on_type_mismatch: int,
) -> int:
    """Decode the documents at ``indexes[at:stop]`` into rows. Returns why it stopped, like `walk_loops.decode`.

    A negative index -n stands for a document at offset n that has only a key: its fields without a column are left out,
    and its rest column is NULL. ``state[AT]`` is the number of the index where to continue.
    """
    state = fields.state
    size = len(data)
    while at < stop:
        state[AT] = at
        row = a.counters[ROWS]
        if row == len(a.meta):
            return ROWS_FULL
        begin = indexes[at]
        alone = begin < 0
        if alone:
            begin = -begin
        last = container_end(data, begin, size)
        error = np.int64(DAMAGED)
        if last >= 0:
            rests = np.int64(-1) if alone else np.int64(rest)
            mismatch = np.int64(ON_MISMATCH_NULL) if alone else np.int64(on_type_mismatch)
            error = np.int64(document_row(data, begin, last, fields, a, row, key, whole, rests, mismatch))
        if error == FULL:
            return TEXT_FULL
        if error == -REST_FULL:
            return REST_FULL
        if error != OK:
            state[CODE_AT] = error
            return FAILED
        a.counters[ROWS] = row + 1
        at += 1
    state[AT] = at
    return DONE
