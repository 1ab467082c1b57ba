"""Compiled loops that find the ends of transactions, before any of their rows is decoded.

Called by `whole_transactions`. `scan_ahead` reads only the headers of most events. It stops at events that Python must
handle: a format, and a statement that only the lexer understands or that rolls back rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.binlog.event_loops import (
    Q_ASK,
    Q_NOTHING,
    Q_ROLLBACK,
    Q_ROLLBACK_TO,
    Q_SAVEPOINT,
    query_kind,
)
from raycdc.connectors.mysql.binlog.index_loops import (
    ANONYMOUS_GTID,
    COMPRESSED_FIRST,
    COMPRESSED_LAST,
    FORMAT_DESCRIPTION,
    GTID,
    GTID_TAGGED,
    HEADER_BYTES,
    MARIADB_GTID,
    QUERY,
    TABLE_MAP,
    TX_NONE,
    after_event,
    event_length,
    is_row_event,
)
from raycdc.connectors.mysql.values.arena_loops import little_endian
from raycdc.core.compiled import helper, njit

# The indices into the state of `scan_ahead`.
L_TX = 0  # the transaction state, one of TX_…
L_CHECKSUM = 1  # bytes of checksum after each event
L_MEANING = 2  # the meaning of the statement at which the walk continues, one of Q_…; -1: not known
L_EVENTS = 3  # the number of the open transaction's events in the log, without events that belong to the dump
L_STOPS = 4  # 1: the walk ends at the first boundary
L_SIZE = 5

ROWS_QUERY, ANNOTATE_ROWS, PARTIAL_ROW_DATA = 29, 160, 172

AHEAD_END = 0  # all events are seen
AHEAD_STATEMENT = 1  # a statement, or a part of a split row event, for Python; set L_MEANING and call again there
AHEAD_FORMAT = 2  # a format description: not yet counted
AHEAD_DAMAGE = 3  # damage: no event can begin here
AHEAD_BOUNDARY = 4  # the first boundary, if L_STOPS is set; L_EVENTS is not reset


@helper
def _is_of_the_log(data: Any, at: Any) -> Any:
    """Return True if the event has a position; events that the server creates for the dump have none."""
    return little_endian(data, at + 13, 4) != 0


@njit
def scan_ahead(data: Any, at: Any, end: Any, state: Any) -> Any:
    """Walk complete events from `at`. Return (AHEAD_…, offset, offset after the last boundary or -1).

    The offset is after the last event that was counted.
    """
    boundary = np.int64(-1)
    while at < end:
        length = event_length(data, at, end)
        if length <= 0 or length < HEADER_BYTES + state[L_CHECKSUM]:
            return AHEAD_DAMAGE, at, boundary
        kind = np.int64(data[at + 4])
        if kind == FORMAT_DESCRIPTION:
            return AHEAD_FORMAT, at, boundary
        meaning = np.int64(Q_NOTHING)
        body_end = at + length - state[L_CHECKSUM]
        if kind == QUERY or kind == COMPRESSED_FIRST:
            meaning = state[L_MEANING]
            state[L_MEANING] = -1
            if meaning < 0:
                meaning = query_kind(data, at + HEADER_BYTES, body_end) if kind == QUERY else np.int64(Q_ASK)
                if meaning == Q_ASK or meaning == Q_ROLLBACK or meaning == Q_ROLLBACK_TO:
                    return AHEAD_STATEMENT, at, boundary
            kind = np.int64(QUERY)
        elif kind == PARTIAL_ROW_DATA:
            if state[L_MEANING] < 0:
                return AHEAD_STATEMENT, at, boundary
            state[L_MEANING] = -1
        state[L_TX] = after_event(state[L_TX], kind, meaning, data, at, body_end)
        if _is_of_the_log(data, at):
            state[L_EVENTS] += 1
        at += length
        if state[L_TX] == TX_NONE:
            if state[L_STOPS] != 0:
                return AHEAD_BOUNDARY, at, boundary
            state[L_EVENTS] = 0
            boundary = at
    return AHEAD_END, at, boundary


@njit
def first_of_a_transaction(data: Any, at: Any, end: Any) -> Any:
    """Return the offset of the first event from `at` on that may begin a transaction; `end` if there is none."""
    while at < end:
        length = event_length(data, at, end)
        if length <= 0:
            return end
        kind = np.int64(data[at + 4])
        if (
            kind == GTID or kind == ANONYMOUS_GTID or kind == GTID_TAGGED or kind == MARIADB_GTID or kind == QUERY
            or kind == COMPRESSED_FIRST or is_row_event(kind)
        ):  # fmt: skip
            return at
        at += length
    return end


@njit
def next_savepoint(data: Any, at: Any, end: Any, checksum: Any, in_statement: Any) -> Any:
    """Find the first statement from `at` on that may be a SAVEPOINT; return (offset, events before it, in_statement).

    `in_statement` is 1 inside a statement that writes rows. A statement begins with a table map. It ends with rows that
    have the flag STMT_END_F, or where another statement begins.
    """
    count = np.int64(0)
    while at < end:
        length = event_length(data, at, end)
        if length <= 0:
            return end, count, in_statement
        kind = np.int64(data[at + 4])
        if kind == COMPRESSED_FIRST:
            return at, count, in_statement
        if kind == QUERY:
            meaning = query_kind(data, at + HEADER_BYTES, at + length - checksum)
            if meaning == Q_SAVEPOINT or meaning == Q_ASK:
                return at, count, in_statement
        elif kind == TABLE_MAP:
            in_statement = 1
        elif is_row_event(kind) or COMPRESSED_FIRST < kind <= COMPRESSED_LAST:
            # table_id(6) flags(2): 1 is STMT_END_F.
            in_statement = 1 - (np.int64(data[at + HEADER_BYTES + 6]) & 1) if length > HEADER_BYTES + 6 else 0
        elif kind == ANNOTATE_ROWS or kind == ROWS_QUERY:
            in_statement = 0
        if _is_of_the_log(data, at):
            count += 1
        at += length
    return at, count, in_statement


@njit
def some_events(data: Any, at: Any, end: Any, bytes_max: Any, count_max: Any) -> Any:
    """Return (offset, count) after `bytes_max` bytes or `count_max` events of the log.

    At least one event is included.
    """
    first, count = at, np.int64(0)
    while at < end and count < count_max:
        length = event_length(data, at, end)
        if length <= 0:
            return end, count
        if at > first and at + length - first > bytes_max:
            break
        if _is_of_the_log(data, at):
            count += 1
        at += length
    return at, count
