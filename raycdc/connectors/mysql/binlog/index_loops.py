"""The compiled pass over raw binlog events: transactions, positions, GTIDs and the list of row events to decode.

`decoder.BinlogDecoder` calls `index_events` with a buffer of complete events. Repeated TABLE_MAP events are recognised
by their bytes, so that Python code runs for each *new* table map, DDL and file only, and not for each event.
`index_events` returns where and why it stopped (``STOP_…``). Python then handles the event at this place, and calls
again.

Event layouts: MySQL Internals manual, "Binary Log Event Structure"; MariaDB knowledge base, "Replication Protocol".
All multi-byte integers of event headers are little endian. Offsets below are from the start of an event:
0 timestamp(4), 4 type(1), 5 server_id(4), 9 event_length(4), 13 end_log_pos(4), 17 flags(2), 19 body.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.binlog.event_loops import (
    Q_ASK,
    Q_BAD,
    Q_BEGIN,
    Q_COMMIT,
    Q_NOTHING,
    Q_OTHER,
    Q_ROLLBACK,
    Q_ROLLBACK_TO,
    Q_XA_FINISH,
    Q_XA_START,
    find_map,
    query_kind,
    same_bytes,
    slot_of,
    tagged_gtid,
)
from raycdc.connectors.mysql.binlog.wire.packet_loops import crc32
from raycdc.connectors.mysql.values.arena_loops import little_endian
from raycdc.core.compiled import helper, njit

HEADER_BYTES = 19

# Event types.
QUERY = 2
STOP = 3
ROTATE = 4
FORMAT_DESCRIPTION = 15
XID = 16
EXECUTE_LOAD_QUERY = 18
TABLE_MAP = 19
INCIDENT = 26
HEARTBEAT = 27
GTID = 33
ANONYMOUS_GTID = 34
XA_PREPARE = 38
PARTIAL_UPDATE_ROWS = 39
TRANSACTION_PAYLOAD = 40
HEARTBEAT_V2 = 41
GTID_TAGGED = 42
MARIADB_GTID = 162
MARIADB_GTID_LIST = 163
#: MariaDB's QUERY_COMPRESSED, then WRITE, UPDATE and DELETE_ROWS_COMPRESSED in version 1 and 2.
COMPRESSED_FIRST = 165
COMPRESSED_LAST = 171

#: Flag (of its lower byte) of an event that the server made for the dump.
ARTIFICIAL = 0x20

# Indices into the state vector, which survives from feed to feed.
S_TX = 0  # the transaction state, one of TX_…
S_CHECKSUM = 1  # bytes of checksum after each event: 0 or 4
S_POS = 2  # end of the last event, 64 bits
S_TX_POS = 3  # end of the last complete transaction
S_TX_MS = 4  # commit time of the open transaction in ms, 0 when the log does not say
S_GTID_SLOT = 5  # the slot of the open transaction's GTID (-1: anonymous), and its number
S_GTID_NUMBER = 6
S_LAST_MS = 7  # time of the last event that has one
S_GTIDS = 8  # slots in use
S_RUNS = 9  # entries of `runs` in use
S_TABLE_IDS = 10  # entries of the table id hash in use
S_ERROR = 11  # the detail of STOP_ERROR: one of ERROR_…
S_VERIFY = 12  # 1: check each event's CRC32
S_GTID_SERVER = 13  # MariaDB: server id of the open transaction
S_TX_ROWS = 14  # row events of wanted tables in the open transaction
S_PASS = 15  # 1: count the event without stopping at it or listing it
S_XA = 16  # 1: inside an XA transaction that may be prepared: Python keeps the rows
S_SKIP = 17  # the number of the next events whose rows are left out
S_SEEK = 18  # 1: heartbeats have the server's position (it skips transactions that we have)
S_EXACT = 19  # 1: each event ends at its recorded position, as in a complete file
S_STRIPPED = 20  # 1: events have no checksums any more, and several may end at one position
S_TX_LENGTH = 21  # bytes of the event that ends at S_TX_POS; 0: not known
S_TX_CRC = 22  # the CRC32 of that event, without its checksum
S_MEANING = 23  # the meaning of the counted statement, one of Q_…, if the lexer decided it; else -1
S_ALTER = 24  # MariaDB: the phase of a two-phase ALTER in the open transaction, one of ALTER_…
S_TAKEN_BACK = 25  # 1: a later ROLLBACK rolls the rows back
S_FORESEEN = 26  # 1: the caller knows which rows are rolled back, so that a ROLLBACK of rows is no error
S_SIZE = 27

ALTER_NONE = 0
ALTER_START = 1  # the statement follows, and has no effect yet
ALTER_COMMIT = 2  # the same statement follows, with its effect
ALTER_ROLLBACK = 3  # the same statement follows, and has no effect

TX_NONE = 0  # between transactions
TX_GTID = 1  # a GTID came: one statement follows, or BEGIN
TX_OPEN = 2  # inside BEGIN … COMMIT

STOP_END = 0  # all events are consumed
STOP_FULL = 1  # `events` is full
STOP_MAP = 2  # a TABLE_MAP not seen before; call again at the same offset when it is registered
STOP_QUERY = 3  # a statement (DDL, mostly, or LOAD DATA), not yet counted; S_PASS lets it through
STOP_EVENT = 4  # an event for Python (rotate, format description, unknown type); not yet counted
STOP_GTIDS = 5  # `runs` or the GTID slots are full; call again at the same offset
STOP_TABLE_IDS = 6  # the table id hash is full; call again at the same offset
STOP_ERROR = 7  # damage; S_ERROR says which
STOP_COMPRESSED = 8  # a compressed event, which contains others; not yet counted
STOP_PARTIAL = 9  # an update of a wanted table that logs JSON values as differences; not yet counted
STOP_XA = 10  # an event of an XA transaction; not yet counted, S_PASS lets it through
STOP_JUMP = 11  # an event or heartbeat of a dump by GTID after a jump; S_POS must be set first

ERROR_LENGTH = 1
ERROR_CHECKSUM = 2
ERROR_TABLE_ID = 3
ERROR_BODY = 4
ERROR_POSITION = 5
ERROR_TAKEN_BACK = 6  # listed or emitted rows were rolled back: the caller did not look ahead (`S_FORESEEN`)

# Columns of `events`, one line per row event of a wanted table.
E_AT = 0  # start of the body
E_END = 1  # end of the body (checksum excluded)
E_OP = 2  # 0 insert, 1 update, 2 delete
E_V2 = 3
E_MAP = 4  # number of the table map
E_MS = 5  # commit time, ms
E_POS = 6  # end position in the file
E_ROWS = 7  # filled in by the row loop
E_FROM = 8  # the end of the previous transaction
E_SIZE = 9


@helper
def event_length(data: Any, at: Any, end: Any) -> Any:
    """Return the length of the event at `at`; 0 if it is not complete before `end`, -1 if it cannot be an event."""
    if at + HEADER_BYTES > end:
        return 0
    length = little_endian(data, at + 9, 4)
    if length < HEADER_BYTES:
        return -1
    return length if at + length <= end else 0


@njit
def complete_events(data: Any, at: Any, end: Any) -> Any:
    """Return the offset after the last complete event, and the length of the incomplete one (0: unknown, -1:
    impossible).
    """
    while True:
        length = event_length(data, at, end)
        if length <= 0:
            if length == 0 and at + HEADER_BYTES <= end:
                return at, little_endian(data, at + 9, 4)
            return at, length
        at += length


@helper
def has_position(kind: Any, flags: Any) -> Any:
    """Return True for events that only report the server's position.

    They are heartbeats, and the list of GTIDs that MariaDB sends after it skipped transactions.
    """
    return kind == HEARTBEAT or kind == HEARTBEAT_V2 or (kind == MARIADB_GTID_LIST and (flags & ARTIFICIAL) != 0)


@njit
def event_ending_at(data: Any, position: Any) -> Any:
    """Return (offset, length) of the last event that ends at byte `position` (32 bits) of its file.

    The length is 0 for none.
    """
    at, end = 0, len(data)
    found, found_length = 0, 0
    while True:
        length = event_length(data, at, end)
        if length <= 0:
            return found, found_length
        if little_endian(data, at + 13, 4) == position and not has_position(data[at + 4], data[at + 17]):
            found, found_length = at, length
        at += length


@helper
def is_row_event(kind: Any) -> Any:
    """Return True for WRITE, UPDATE and DELETE_ROWS in versions 1 and 2, and for PARTIAL_UPDATE_ROWS."""
    return 23 <= kind <= 25 or 30 <= kind <= 32 or kind == PARTIAL_UPDATE_ROWS


@helper
def after_event(tx: Any, kind: Any, meaning: Any, data: Any, at: Any, end: Any) -> Any:
    """Return the transaction state after the event at `at`. All other code uses this function.

    `meaning` is the meaning of a QUERY event (Q_…). Statements that are not listed do not end a transaction: SAVEPOINT,
    ROLLBACK TO and XA END are within it.
    """
    if kind == QUERY:
        if meaning == Q_BEGIN or meaning == Q_XA_START:
            return TX_OPEN
        if meaning == Q_COMMIT or meaning == Q_ROLLBACK or meaning == Q_XA_FINISH:
            return TX_NONE
        # A statement outside a transaction, possibly with comments only.
        return TX_NONE if tx == TX_GTID and (meaning == Q_OTHER or meaning == Q_NOTHING) else tx
    if kind == XID or kind == XA_PREPARE or kind == TRANSACTION_PAYLOAD:
        return TX_NONE
    if kind == GTID or kind == ANONYMOUS_GTID or kind == GTID_TAGGED:
        return TX_GTID
    if kind == MARIADB_GTID:
        # Flags (1) follow sequence (8) and domain (4); bit 0 is FL_STANDALONE: one statement without COMMIT.
        if at + HEADER_BYTES + 13 > end:
            return tx
        return TX_GTID if data[at + HEADER_BYTES + 12] & 1 else TX_OPEN
    if is_row_event(kind):
        return TX_OPEN
    return tx


@njit
def last_boundary(data: Any, start: Any, end: Any, tx: Any, checksum: Any) -> Any:
    """Return the offset after the last event that leaves no transaction open; `start` if there is none.

    Statements that only the lexer understands do not begin or end a transaction here, so the boundary may be too early.
    """
    at = start
    found = start
    while True:
        length = event_length(data, at, end)
        if length <= 0:
            return found
        kind = data[at + 4]
        if kind == FORMAT_DESCRIPTION and length > HEADER_BYTES + 5:
            checksum = 4 if data[at + length - 5] == 1 else 0
        body_end = at + length - checksum
        meaning = query_kind(data, at + HEADER_BYTES, body_end) if kind == QUERY else Q_NOTHING
        tx = after_event(tx, kind, meaning, data, at, body_end)
        at += length
        if tx == TX_NONE:
            found = at


@helper
def _commit(state: Any, gtid_first: Any, gtid_last: Any, runs: Any, mariadb: Any) -> Any:
    """Add the open transaction's GTID to the executed set: runs of MySQL numbers, or MariaDB's last per domain."""
    slot = state[S_GTID_SLOT]
    if slot >= 0:
        number = state[S_GTID_NUMBER]
        if mariadb:
            gtid_first[slot] = state[S_GTID_SERVER]
        elif gtid_last[slot] == 0:
            gtid_first[slot] = number
        elif number != gtid_last[slot] + 1:
            run = state[S_RUNS]
            runs[run, 0] = slot
            runs[run, 1] = gtid_first[slot]
            runs[run, 2] = gtid_last[slot]
            state[S_RUNS] = run + 1
            gtid_first[slot] = number
        gtid_last[slot] = number
    state[S_GTID_SLOT] = -1
    state[S_TX_MS] = 0
    state[S_TX_ROWS] = 0
    state[S_XA] = 0
    state[S_ALTER] = ALTER_NONE


@helper
def alter_phase(data: Any, body: Any, end: Any) -> Any:
    """Return the ALTER_… phase of a MariaDB GTID event (sql/log_event.cc, ``Gtid_log_event``).

    sequence(8) domain(4) flags(1) [2: commit id(8)] [64, 128: format(4) gtrid_length(1) bqual_length(1) gtrid bqual]
    extra_flags(1) …. If there are no extra flags, the event ends or is padded with zeros.
    """
    flags = data[body + 12]
    at = body + 13
    if flags & 2:
        at += 8
    if flags & 192:
        if at + 6 > end:
            return ALTER_NONE
        at += 6 + np.int64(data[at + 4]) + np.int64(data[at + 5])
    if at >= end:
        return ALTER_NONE
    extra = data[at]
    if extra & 2:
        return ALTER_START
    if extra & 4:
        return ALTER_COMMIT
    return ALTER_ROLLBACK if extra & 8 else ALTER_NONE


@helper
def _begin_gtid(kind: Any, data: Any, body: Any, end: Any, state: Any, gtid_keys: Any) -> Any:
    """Set the GTID and commit time of the transaction that begins. Returns 0, STOP_GTIDS or STOP_ERROR."""
    state[S_TX_MS] = 0
    state[S_GTID_SLOT] = -1
    count = state[S_GTIDS]
    if count == len(gtid_keys):
        return STOP_GTIDS
    # The key is built in the slot after the last one, and stays there if it is new.
    for word in range(6):
        gtid_keys[count, word] = 0
    number = np.int64(0)
    if kind == MARIADB_GTID:
        if body + 13 > end:
            return STOP_ERROR
        gtid_keys[count, 0] = little_endian(data, body + 8, 4)
        number = little_endian(data, body, 8)
        state[S_ALTER] = alter_phase(data, body, end)
    elif kind == GTID_TAGGED:
        number, micros = tagged_gtid(data, body, end, gtid_keys, count)
        if number < 0:
            return STOP_ERROR
        state[S_TX_MS] = micros // 1000
    else:
        # flags(1) uuid(16) number(8) [2 (1) last_committed(8) sequence_number(8) immediate_commit_timestamp(7) …]
        if body + 25 > end:
            return STOP_ERROR
        gtid_keys[count, 0] = little_endian(data, body + 1, 8)
        gtid_keys[count, 1] = little_endian(data, body + 9, 8)
        number = little_endian(data, body + 17, 8)
        if body + 49 <= end and data[body + 25] == 2:
            state[S_TX_MS] = (little_endian(data, body + 42, 7) & ((1 << 55) - 1)) // 1000
        if kind == ANONYMOUS_GTID:
            return 0
    slot = 0
    while slot < count and not _same_key(gtid_keys, slot, count):
        slot += 1
    if slot == count:
        state[S_GTIDS] = count + 1
    state[S_GTID_SLOT] = slot
    state[S_GTID_NUMBER] = number
    if kind == MARIADB_GTID:
        state[S_GTID_SERVER] = little_endian(data, body - HEADER_BYTES + 5, 4)
    return 0


@helper
def _same_key(keys: Any, one: Any, other: Any) -> Any:
    return (
        keys[one, 0] == keys[other, 0] and keys[one, 1] == keys[other, 1] and keys[one, 2] == keys[other, 2]
        and keys[one, 3] == keys[other, 3] and keys[one, 4] == keys[other, 4] and keys[one, 5] == keys[other, 5]
    )  # fmt: skip


@helper
def _follows(position: Any, length: Any, state: Any) -> Any:
    """Return True if an event may end at `position` (32 bits) here: bytes are neither repeated nor missing."""
    last = state[S_POS] & 0xFFFFFFFF
    if state[S_STRIPPED] != 0:
        return position >= last or last - position > 0x80000000
    if state[S_EXACT] != 0:
        return position == ((last + length) & 0xFFFFFFFF)
    return position > last or last - position > 0x80000000


@helper
def _ignored(kind: Any) -> Any:
    """Return True for events that are IGNORED in `event_types`: they have no rows and do not change positions."""
    return (
        kind == 3 or kind == 5 or kind == 9 or kind == 11 or kind == 13 or kind == 14 or kind == 17 or kind == 27
        or kind == 28 or kind == 29 or kind == 35 or kind == 36 or kind == 37 or kind == 41 or kind == 160
        or kind == 161 or kind == 163
    )  # fmt: skip


# long: one compiled loop has a branch for each event type; split into functions, it took a tenth more time
@njit
def index_events(
    data: Any, at: Any, end: Any, mariadb: Any, state: Any, events: Any, count: Any, maps: Any, map_wanted: Any,
    map_bytes: Any, map_keys: Any, map_values: Any, id_keys: Any, id_values: Any, gtid_keys: Any, gtid_first: Any,
    gtid_last: Any, runs: Any,
) -> Any:  # fmt: skip
    """Walk complete events from `at`. Returns (STOP_…, offset of the stopping event, its length, events listed)."""
    while at < end:
        length = event_length(data, at, end)
        if length <= 0:
            state[S_ERROR] = ERROR_LENGTH
            return STOP_ERROR, at, 0, count
        kind = np.int64(data[at + 4])
        if kind == FORMAT_DESCRIPTION:
            return STOP_EVENT, at, length, count
        body = at + HEADER_BYTES
        body_end = at + length - state[S_CHECKSUM]
        if body_end < body:
            state[S_ERROR] = ERROR_LENGTH
            return STOP_ERROR, at, 0, count
        if state[S_VERIFY] != 0 and state[S_CHECKSUM] == 4:
            if np.int64(crc32(data, at, body_end)) != little_endian(data, body_end, 4):
                state[S_ERROR] = ERROR_CHECKSUM
                return STOP_ERROR, at, length, count
        # Artificial events (position 0) and heartbeats are not in the log. Positions wrap at 4 GiB. A dump by GTID
        # jumps between transactions. In a larger file, only Python can find out how far (`file_offsets`).
        position = little_endian(data, at + 13, 4)
        beat = has_position(kind, data[at + 17])
        if state[S_SEEK] != 0 and position != 0 and state[S_TX] == TX_NONE and state[S_STRIPPED] == 0:
            if position != ((state[S_POS] + (0 if beat else length)) & 0xFFFFFFFF):
                return STOP_JUMP, at, length, count
        if position != 0 and not beat:
            if not _follows(position, length, state):
                state[S_ERROR] = ERROR_POSITION
                return STOP_ERROR, at, length, count
            position |= state[S_POS] & ~np.int64(0xFFFFFFFF)
            if position < state[S_POS]:
                position += np.int64(1) << 32
        if state[S_RUNS] + 1 >= len(runs):
            return STOP_GTIDS, at, length, count
        is_rows = is_row_event(kind)
        meaning = np.int64(Q_NOTHING)
        if state[S_XA] != 0 and state[S_PASS] == 0:
            if (is_rows and state[S_TAKEN_BACK] == 0) or kind == TABLE_MAP or kind == XA_PREPARE:
                return STOP_XA, at, length, count
        if is_rows:
            if body + 8 > body_end:
                state[S_ERROR] = ERROR_BODY
                return STOP_ERROR, at, length, count
            table_id = little_endian(data, body, 6)
            # The dummy id ends a statement whose tables are all filtered out on the server.
            if state[S_PASS] == 0 and state[S_TAKEN_BACK] == 0 and (table_id != 0xFFFFFF or body_end - body > 12):
                slot = slot_of(id_keys, table_id)
                if id_keys[slot] != table_id:
                    state[S_ERROR] = ERROR_TABLE_ID
                    return STOP_ERROR, at, length, count
                number = id_values[slot]
                if map_wanted[number] and state[S_SKIP] == 0:
                    if kind == PARTIAL_UPDATE_ROWS:
                        return STOP_PARTIAL, at, length, count
                    if count == len(events):
                        return STOP_FULL, at, length, count
                    events[count, E_AT] = body
                    events[count, E_END] = body_end
                    events[count, E_OP] = (kind - 23) if kind < 30 else (kind - 30)
                    events[count, E_V2] = 1 if kind >= 30 else 0
                    events[count, E_MAP] = number
                    seconds = little_endian(data, at, 4)
                    events[count, E_MS] = state[S_TX_MS] if state[S_TX_MS] > 0 else seconds * 1000
                    events[count, E_ROWS] = 0
                    events[count, E_FROM] = state[S_TX_POS]
                    count += 1
                    state[S_TX_ROWS] += 1
        elif kind == TABLE_MAP:
            if body + 8 > body_end:
                state[S_ERROR] = ERROR_BODY
                return STOP_ERROR, at, length, count
            if state[S_PASS] == 0:
                table_id = little_endian(data, body, 6)
                size = body_end - body - 8
                slot = slot_of(id_keys, table_id)
                number = id_values[slot] if id_keys[slot] == table_id else np.int64(-1)
                if (
                    number < 0
                    or maps[number, 1] != size
                    or not same_bytes(data, body + 8, map_bytes, maps[number, 0], size)
                ):
                    number = find_map(data, body + 8, size, maps, map_bytes, map_keys, map_values)
                    if number < 0:
                        return STOP_MAP, at, length, count
                    if id_keys[slot] != table_id:
                        if state[S_TABLE_IDS] * 2 >= len(id_keys):
                            return STOP_TABLE_IDS, at, length, count
                        state[S_TABLE_IDS] += 1
                        id_keys[slot] = table_id
                    id_values[slot] = number
        elif kind == GTID or kind == ANONYMOUS_GTID or kind == MARIADB_GTID or kind == GTID_TAGGED:
            # MariaDB marks a transaction that will be prepared with FL_PREPARED_XA (64) instead of XA START.
            if kind == MARIADB_GTID and state[S_PASS] == 0 and body + 13 <= body_end and data[body + 12] & 64:
                return STOP_XA, at, length, count
            code = _begin_gtid(kind, data, body, body_end, state, gtid_keys)
            if code != 0:
                state[S_ERROR] = ERROR_BODY
                return code, at, length, count
        elif kind == QUERY:
            meaning = state[S_MEANING] if state[S_MEANING] >= 0 else query_kind(data, body, body_end)
            if meaning == Q_BAD:
                state[S_ERROR] = ERROR_BODY
                return STOP_ERROR, at, length, count
            if meaning == Q_ROLLBACK or meaning == Q_ROLLBACK_TO:
                if state[S_TX_ROWS] > 0 and state[S_FORESEEN] == 0:
                    state[S_ERROR] = ERROR_TAKEN_BACK
                    return STOP_ERROR, at, length, count
            if state[S_PASS] == 0:
                if meaning == Q_ASK:
                    return STOP_QUERY, at, length, count
                if meaning == Q_OTHER and state[S_ALTER] != ALTER_START and state[S_ALTER] != ALTER_ROLLBACK:
                    return STOP_QUERY, at, length, count
                if meaning == Q_XA_START or meaning == Q_XA_FINISH:
                    return STOP_XA, at, length, count
                if state[S_XA] != 0 and (meaning == Q_ROLLBACK or meaning == Q_COMMIT):
                    return STOP_XA, at, length, count
        elif kind == EXECUTE_LOAD_QUERY:
            if state[S_PASS] == 0:
                return STOP_QUERY, at, length, count
        elif kind == TRANSACTION_PAYLOAD or COMPRESSED_FIRST <= kind <= COMPRESSED_LAST:
            return STOP_COMPRESSED, at, length, count
        elif kind != XID and kind != XA_PREPARE and not _ignored(kind):
            return STOP_EVENT, at, length, count
        before = state[S_TX]
        state[S_TX] = after_event(before, kind, meaning, data, at, body_end)
        seconds = little_endian(data, at, 4)
        if position != 0 and not beat:
            state[S_POS] = position
        if state[S_SKIP] > 0 and ((position != 0 and not beat) or state[S_STRIPPED] != 0):
            state[S_SKIP] -= 1
        if is_rows and count > 0 and events[count - 1, E_AT] == body:
            events[count - 1, E_POS] = state[S_POS]
        if seconds != 0:
            state[S_LAST_MS] = state[S_TX_MS] if state[S_TX_MS] > 0 else seconds * 1000
        if state[S_TX] == TX_NONE:
            if before != TX_NONE:
                _commit(state, gtid_first, gtid_last, runs, mariadb)
            state[S_TX_POS] = state[S_POS]
            if position != 0 and not beat:
                if state[S_STRIPPED] != 0:
                    state[S_TX_LENGTH] = 0
                else:
                    state[S_TX_LENGTH] = length
                    if state[S_CHECKSUM] == 4:
                        state[S_TX_CRC] = little_endian(data, body_end, 4)
                    else:
                        state[S_TX_CRC] = np.int64(crc32(data, at, body_end))
        at += length
    return STOP_END, at, 0, count
