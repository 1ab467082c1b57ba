"""The compiled pass over raw binlog events: transactions, positions, GTIDs and the list of row events to decode.

Called by `binlog_decoder.BinlogDecoder` with a buffer of complete events. It recognises repeated TABLE_MAP events by
their bytes, so that a feed costs Python work per *new* table map, DDL and file, not per event. It returns where it
stopped and why (``STOP_…``); Python handles that one event and calls again.

Event layouts: MySQL Internals manual, "Binary Log Event Structure"; MariaDB knowledge base, "Replication Protocol".
All multi-byte integers of event headers are little endian. Offsets below are from the start of an event:
0 timestamp(4), 4 type(1), 5 server_id(4), 9 event_length(4), 13 end_log_pos(4), 17 flags(2), 19 body.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.compiled import helper, load, njit
from raycdc.connectors.mysql.arena_loops import little_endian

HEADER_BYTES = 19

# Event types.
QUERY = 2
STOP = 3
ROTATE = 4
FORMAT_DESCRIPTION = 15
XID = 16
TABLE_MAP = 19
INCIDENT = 26
HEARTBEAT = 27
GTID = 33
ANONYMOUS_GTID = 34
XA_PREPARE = 38
HEARTBEAT_V2 = 41
MARIADB_GTID = 162

# Indices into the state vector, which survives from feed to feed.
S_TX = 0  # one of TX_…
S_CHECKSUM = 1  # bytes of checksum after each event: 0 or 4
S_POS = 2  # end of the last event, 64 bits
S_TX_POS = 3  # end of the last complete transaction
S_TX_MS = 4  # commit time of the open transaction in ms, 0 when the log does not say
S_GTID_SLOT = 5  # GTID of the open transaction: slot (-1: anonymous) and number
S_GTID_NUMBER = 6
S_LAST_MS = 7  # time of the last event that has one
S_GTIDS = 8  # slots in use
S_RUNS = 9  # entries of `runs` in use
S_TABLE_IDS = 10  # entries of the table id hash in use
S_ERROR = 11  # detail of STOP_ERROR: one of ERROR_…
S_VERIFY = 12  # 1: check each event's CRC32
S_GTID_SERVER = 13  # MariaDB: server id of the open transaction
S_TX_ROWS = 14  # row events of wanted tables in the open transaction
S_PASS_QUERY = 15  # 1: do not stop at a statement
S_SIZE = 16

TX_NONE = 0  # between transactions
TX_GTID = 1  # a GTID came: one statement follows, or BEGIN
TX_OPEN = 2  # inside BEGIN … COMMIT

STOP_END = 0  # all events are consumed
STOP_FULL = 1  # `events` is full
STOP_MAP = 2  # a TABLE_MAP not seen before; call again at the same place once it is registered
STOP_QUERY = 3  # a statement (DDL, mostly), not yet counted; S_PASS_QUERY lets it through
STOP_EVENT = 4  # an event for Python (rotate, format description, unknown type); not yet counted
STOP_GTIDS = 5  # `runs` or the GTID slots are full; call again at the same place
STOP_TABLE_IDS = 6  # the table id hash is full; call again at the same place
STOP_ERROR = 7  # damage; S_ERROR says which

ERROR_LENGTH = 1
ERROR_CHECKSUM = 2
ERROR_TABLE_ID = 3
ERROR_BODY = 4

# Columns of `events`, one line per row event of a wanted table.
E_AT = 0  # start of the body
E_END = 1  # end of the body (checksum excluded)
E_OP = 2  # 0 insert, 1 update, 2 delete
E_V2 = 3
E_MAP = 4  # number of the table map
E_MS = 5  # commit time, ms
E_POS = 6  # end position in the file
E_ROWS = 7  # filled in by the row loop
E_SIZE = 8


def crc_tables() -> Any:
    """Tables of CRC-32 (IEEE 802.3) for eight bytes at a time (Intel, "slicing-by-8")."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0xEDB88320 if value & 1 else value >> 1
        tables[0, byte] = value
    for byte in range(256):
        for k in range(1, 8):
            before = int(tables[k - 1, byte])
            tables[k, byte] = (before >> 8) ^ int(tables[0, before & 0xFF])
    return tables


_CRC = crc_tables()


@helper
def crc32(data: Any, at: Any, end: Any) -> Any:
    """CRC-32 of ``data[at:end]`` as zlib gives it."""
    value = np.uint32(0xFFFFFFFF)
    while at + 8 <= end:
        word = load(data, at, 64)
        low = np.uint32(word) ^ value
        high = np.uint32(word >> 32)
        value = (
            _CRC[7, low & np.uint32(0xFF)]
            ^ _CRC[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _CRC[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _CRC[4, low >> np.uint32(24)]
            ^ _CRC[3, high & np.uint32(0xFF)]
            ^ _CRC[2, (high >> np.uint32(8)) & np.uint32(0xFF)]
            ^ _CRC[1, (high >> np.uint32(16)) & np.uint32(0xFF)]
            ^ _CRC[0, high >> np.uint32(24)]
        )
        at += 8
    while at < end:
        value = (value >> np.uint32(8)) ^ _CRC[0, (value ^ data[at]) & np.uint32(0xFF)]
        at += 1
    return value ^ np.uint32(0xFFFFFFFF)


@helper
def event_length(data: Any, at: Any, end: Any) -> Any:
    """Length of the event at `at`; 0 when it is not complete before `end`, -1 when it cannot be an event."""
    if at + HEADER_BYTES > end:
        return 0
    length = little_endian(data, at + 9, 4)
    if length < HEADER_BYTES:
        return -1
    return length if at + length <= end else 0


@njit
def complete_events(data: Any, at: Any, end: Any) -> Any:
    """(offset after the last complete event, length of the incomplete one or 0 if unknown, -1 if impossible)."""
    while True:
        length = event_length(data, at, end)
        if length <= 0:
            if length == 0 and at + HEADER_BYTES <= end:
                return at, little_endian(data, at + 9, 4)
            return at, length
        at += length


@helper
def _word(data: Any, at: Any, end: Any, word: Any) -> Any:
    """Whether the text begins with `word` (lower case letters), in either case."""
    if end - at < len(word):
        return False
    for i in range(len(word)):
        if (data[at + i] | 0x20) != word[i]:
            return False
    return True


_BEGIN = np.frombuffer(b"begin", np.uint8).copy()
_COMMIT = np.frombuffer(b"commit", np.uint8).copy()
_ROLLBACK = np.frombuffer(b"rollback", np.uint8).copy()
_SAVEPOINT = np.frombuffer(b"savepoint ", np.uint8).copy()
_XA_START = np.frombuffer(b"xa start", np.uint8).copy()
_XA = np.frombuffer(b"xa ", np.uint8).copy()

Q_OTHER = 0
Q_BEGIN = 1
Q_END = 2
Q_IGNORED = 3
Q_BAD = 4
Q_XA = 5


@helper
def query_kind(data: Any, body: Any, end: Any) -> Any:
    """What a QUERY event means to transactions. Body: thread(4) time(4) db_len(1) error(2) status_len(2) …"""
    if body + 13 > end:
        return Q_BAD
    at = body + 13 + little_endian(data, body + 11, 2) + np.int64(data[body + 8]) + 1
    if at > end:
        return Q_BAD
    length = end - at
    if length == 5 and _word(data, at, end, _BEGIN):
        return Q_BEGIN
    if length == 6 and _word(data, at, end, _COMMIT):
        return Q_END
    if _word(data, at, end, _ROLLBACK):
        return Q_END if length == 8 else Q_IGNORED
    if _word(data, at, end, _SAVEPOINT) or (length > 0 and data[at] == 35):
        return Q_IGNORED
    if _word(data, at, end, _XA_START):
        return Q_BEGIN
    return Q_XA if _word(data, at, end, _XA) else Q_OTHER


@helper
def after_event(tx: Any, kind: Any, data: Any, at: Any, end: Any) -> Any:
    """The transaction state after the event at `at`; the one place that knows how transactions begin and end."""
    if kind == QUERY:
        meaning = query_kind(data, at + HEADER_BYTES, end)
        if meaning == Q_BEGIN:
            return TX_OPEN
        if meaning == Q_END or (tx == TX_GTID and (meaning == Q_OTHER or meaning == Q_XA)):
            return TX_NONE
        return tx
    if kind == XID or kind == XA_PREPARE:
        return TX_NONE
    if kind == GTID or kind == ANONYMOUS_GTID:
        return TX_GTID
    if kind == MARIADB_GTID:
        # Flags (1) follow sequence (8) and domain (4); bit 0 is FL_STANDALONE: one statement without COMMIT.
        if at + HEADER_BYTES + 13 > end:
            return tx
        return TX_GTID if data[at + HEADER_BYTES + 12] & 1 else TX_OPEN
    if 23 <= kind <= 25 or 30 <= kind <= 32:
        return TX_OPEN
    return tx


@njit
def last_boundary(data: Any, start: Any, end: Any, tx: Any, checksum: Any) -> Any:
    """Offset after the last event that leaves no transaction open; `start` when there is none."""
    at = start
    found = start
    while True:
        length = event_length(data, at, end)
        if length <= 0:
            return found
        kind = data[at + 4]
        if kind == FORMAT_DESCRIPTION and length > HEADER_BYTES + 5:
            checksum = 4 if data[at + length - 5] == 1 else 0
        tx = after_event(tx, kind, data, at, at + length - checksum)
        at += length
        if tx == TX_NONE:
            found = at


@helper
def _same(data: Any, at: Any, other: Any, start: Any, length: Any) -> Any:
    different = np.int64(0)
    whole = length & ~7
    for i in range(0, whole, 8):
        different |= load(data, at + i, 64) ^ load(other, start + i, 64)
    for i in range(whole, length):
        different |= np.int64(data[at + i] ^ other[start + i])
    return different == 0


@njit
def hash_bytes(data: Any, at: Any, length: Any) -> Any:
    """FNV-1a, 63 bits."""
    value = np.uint64(0xCBF29CE484222325)
    for i in range(length):
        value = (value ^ np.uint64(data[at + i])) * np.uint64(0x100000001B3)
    return np.int64(value >> np.uint64(1))


@helper
def _slot_of(keys: Any, key: Any) -> Any:
    """Slot of `key` in an open-addressed table whose free slots hold -1 (its size is a power of two)."""
    mask = len(keys) - 1
    i = (key * 0x9E3779B1) & mask
    while keys[i] != key and keys[i] != -1:
        i = (i + 1) & mask
    return i


@njit
def find_map(data: Any, at: Any, length: Any, maps: Any, map_bytes: Any, map_keys: Any, map_values: Any) -> Any:
    """Number of the registered table map with exactly these bytes, or -1. `maps` has (offset, length) per map."""
    mask = len(map_keys) - 1
    key = hash_bytes(data, at, length)
    i = (key * 0x9E3779B1) & mask
    while map_keys[i] != -1:
        if map_keys[i] == key:
            number = map_values[i]
            if maps[number, 1] == length and _same(data, at, map_bytes, maps[number, 0], length):
                return number
        i = (i + 1) & mask
    return np.int64(-1)


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


@helper
def _begin_gtid(kind: Any, data: Any, body: Any, end: Any, state: Any, gtid_keys: Any) -> Any:
    """Note the GTID and commit time of the transaction that begins; returns 0, STOP_GTIDS or STOP_ERROR."""
    state[S_TX_MS] = 0
    state[S_GTID_SLOT] = -1
    if kind == MARIADB_GTID:
        if body + 13 > end:
            return STOP_ERROR
        low = little_endian(data, body + 8, 4)
        high = np.int64(0)
        number = little_endian(data, body, 8)
    else:
        # flags(1) uuid(16) number(8) [2 (1) last_committed(8) sequence_number(8) immediate_commit_timestamp(7) …]
        if body + 25 > end:
            return STOP_ERROR
        low = little_endian(data, body + 1, 8)
        high = little_endian(data, body + 9, 8)
        number = little_endian(data, body + 17, 8)
        if body + 49 <= end and data[body + 25] == 2:
            state[S_TX_MS] = (little_endian(data, body + 42, 7) & ((1 << 55) - 1)) // 1000
        if kind == ANONYMOUS_GTID:
            return 0
    count = state[S_GTIDS]
    slot = 0
    while slot < count and (gtid_keys[slot, 0] != low or gtid_keys[slot, 1] != high):
        slot += 1
    if slot == count:
        if count == len(gtid_keys):
            return STOP_GTIDS
        gtid_keys[slot, 0] = low
        gtid_keys[slot, 1] = high
        state[S_GTIDS] = count + 1
    state[S_GTID_SLOT] = slot
    state[S_GTID_NUMBER] = number
    if kind == MARIADB_GTID:
        state[S_GTID_SERVER] = little_endian(data, body - HEADER_BYTES + 5, 4)
    return 0


@helper
def _ignored(kind: Any) -> Any:
    """Events that neither carry rows nor matter to positions.

    STOP, INTVAR, RAND, USER_VAR, heartbeats, IGNORABLE, ROWS_QUERY, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE;
    MariaDB: ANNOTATE_ROWS, BINLOG_CHECKPOINT, GTID_LIST.
    """
    return (
        kind == 3 or kind == 5 or kind == 13 or kind == 14 or kind == 27 or kind == 28 or kind == 29
        or kind == 35 or kind == 36 or kind == 37 or kind == 41 or kind == 160 or kind == 161 or kind == 163
    )  # fmt: skip


# long: one event type after the other, in one compiled walk
@njit
def index_events(
    data: Any, at: Any, end: Any, mariadb: Any, state: Any, events: Any, count: Any, maps: Any, map_wanted: Any,
    map_bytes: Any, map_keys: Any, map_values: Any, id_keys: Any, id_values: Any, gtid_keys: Any, gtid_first: Any,
    gtid_last: Any, runs: Any,
) -> Any:  # fmt: skip
    """Walk complete events from `at`; returns (STOP_…, offset of the stopping event, its length, events listed)."""
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
        if state[S_RUNS] + 1 >= len(runs):
            return STOP_GTIDS, at, length, count
        is_rows = 23 <= kind <= 25 or 30 <= kind <= 32
        if is_rows:
            if body + 8 > body_end:
                state[S_ERROR] = ERROR_BODY
                return STOP_ERROR, at, length, count
            table_id = little_endian(data, body, 6)
            # The dummy id ends a statement whose tables are all filtered out on the server.
            if table_id != 0xFFFFFF or body_end - body > 12:
                slot = _slot_of(id_keys, table_id)
                if id_keys[slot] != table_id:
                    state[S_ERROR] = ERROR_TABLE_ID
                    return STOP_ERROR, at, length, count
                number = id_values[slot]
                if map_wanted[number]:
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
                    count += 1
                    state[S_TX_ROWS] += 1
        elif kind == TABLE_MAP:
            if body + 8 > body_end:
                state[S_ERROR] = ERROR_BODY
                return STOP_ERROR, at, length, count
            table_id = little_endian(data, body, 6)
            size = body_end - body - 8
            slot = _slot_of(id_keys, table_id)
            number = id_values[slot] if id_keys[slot] == table_id else np.int64(-1)
            if number < 0 or maps[number, 1] != size or not _same(data, body + 8, map_bytes, maps[number, 0], size):
                number = find_map(data, body + 8, size, maps, map_bytes, map_keys, map_values)
                if number < 0:
                    return STOP_MAP, at, length, count
                if id_keys[slot] != table_id:
                    if state[S_TABLE_IDS] * 2 >= len(id_keys):
                        return STOP_TABLE_IDS, at, length, count
                    state[S_TABLE_IDS] += 1
                    id_keys[slot] = table_id
                id_values[slot] = number
        elif kind == GTID or kind == ANONYMOUS_GTID or kind == MARIADB_GTID:
            code = _begin_gtid(kind, data, body, body_end, state, gtid_keys)
            if code != 0:
                state[S_ERROR] = ERROR_BODY
                return code, at, length, count
        elif kind == QUERY:
            meaning = query_kind(data, body, body_end)
            if meaning == Q_BAD:
                state[S_ERROR] = ERROR_BODY
                return STOP_ERROR, at, length, count
            if meaning == Q_OTHER and state[S_PASS_QUERY] == 0:
                return STOP_QUERY, at, length, count
        elif kind == XA_PREPARE:
            # Body: one_phase(1) …; rows of a two-phase transaction may still be rolled back.
            if state[S_TX_ROWS] > 0 and (body >= body_end or data[body] == 0):
                return STOP_EVENT, at, length, count
        elif kind != XID and not _ignored(kind):
            return STOP_EVENT, at, length, count
        before = state[S_TX]
        state[S_TX] = after_event(before, kind, data, at, body_end)
        seconds = little_endian(data, at, 4)
        position = little_endian(data, at + 13, 4)
        # Artificial events (position 0) and heartbeats are not in the log. Positions wrap at 4 GiB.
        if position != 0 and kind != HEARTBEAT and kind != HEARTBEAT_V2:
            position |= state[S_POS] & ~np.int64(0xFFFFFFFF)
            if position < state[S_POS]:
                position += np.int64(1) << 32
            state[S_POS] = position
        if is_rows and count > 0 and events[count - 1, E_AT] == body:
            events[count - 1, E_POS] = state[S_POS]
        if seconds != 0:
            state[S_LAST_MS] = state[S_TX_MS] if state[S_TX_MS] > 0 else seconds * 1000
        if state[S_TX] == TX_NONE:
            if before != TX_NONE:
                _commit(state, gtid_first, gtid_last, runs, mariadb)
            state[S_TX_POS] = state[S_POS]
        at += length
    return STOP_END, at, 0, count
