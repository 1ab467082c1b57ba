"""Reads single events for the compiled passes: the meaning of statements, tagged GTIDs, and repeated table maps.

`query_kind` returns the meaning of a statement for its transaction. It recognises only complete texts that servers
write themselves: MySQL, sql/binlog.cc, and MariaDB, sql/log.cc (``binlog_savepoint_set``,
``binlog_savepoint_rollback``, ``binlog_rollback``). For any other statement that may concern a transaction the result
is `Q_ASK`, and `transaction_statements` uses the lexer.

`tagged_gtid` reads GTID_TAGGED events (MySQL 8.3 and newer). Their body is a message of MySQL's serialization library
(libs/mysql/serialization, readme.md): numbers of variable length, each field preceded by its id. A number of n + 1
bytes begins with n one-bits (low bits first), then a zero; the value is above them. Signed numbers have their sign in
the lowest bit. The fields of the event: 0 flags, 1 uuid (16 numbers), 2 transaction number, 3 tag, 4 last_committed, 5
sequence_number, 6 immediate_commit_timestamp, …

`find_map` finds repeated TABLE_MAP events by their bytes; `map_plans.TableMapRegistry` keeps the maps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import little_endian
from raycdc.core.compiled import helper, load, njit


@helper
def _word(data: Any, at: Any, end: Any, word: Any) -> Any:
    """Return True if the text begins with `word` (lower-case letters), in upper or lower case."""
    if end - at < len(word):
        return False
    for i in range(len(word)):
        if (data[at + i] | 0x20) != word[i]:
            return False
    return True


_BEGIN = np.frombuffer(b"begin", np.uint8).copy()
_COMMIT = np.frombuffer(b"commit", np.uint8).copy()
_ROLLBACK = np.frombuffer(b"rollback", np.uint8).copy()
_ROLLBACK_TO = np.frombuffer(b"rollback to ", np.uint8).copy()
_SAVEPOINT = np.frombuffer(b"savepoint ", np.uint8).copy()
_START = np.frombuffer(b"start", np.uint8).copy()
_RELEASE = np.frombuffer(b"release", np.uint8).copy()
_XA = np.frombuffer(b"xa ", np.uint8).copy()
_XA_START = np.frombuffer(b"xa start ", np.uint8).copy()
_XA_COMMIT = np.frombuffer(b"xa commit ", np.uint8).copy()
_XA_ROLLBACK = np.frombuffer(b"xa rollback ", np.uint8).copy()
_XA_END = np.frombuffer(b"xa end ", np.uint8).copy()

Q_OTHER = 0  # another statement, mostly DDL
Q_BEGIN = 1
Q_COMMIT = 2
Q_NOTHING = 3  # no effect on transactions or anything else
Q_BAD = 4  # damage
Q_XA_START = 5
Q_XA_FINISH = 6
Q_ROLLBACK = 7
Q_SAVEPOINT = 8
Q_ROLLBACK_TO = 9
Q_ASK = 10  # possibly about a transaction, with comments or in another form: the lexer must decide
Q_DOUBT = 11  # about a transaction, but in a form that no server writes (only `transaction_statements` returns this)


@helper
def _is_name(data: Any, at: Any, end: Any) -> Any:
    """Return True if the rest of the text is one name, quoted or not."""
    if at >= end:
        return False
    quote = data[at]
    if quote != 96 and quote != 34:
        for i in range(at, end):
            byte = data[i]
            letter = 97 <= (byte | 0x20) <= 122 or 48 <= byte <= 57
            if not (letter or byte == 95 or byte == 36 or byte >= 128):
                return False
        return True
    i = at + 1
    while i < end:
        if data[i] == quote:
            if i + 1 == end:
                return i > at + 1
            if data[i + 1] != quote:
                return False
            i += 1
        i += 1
    return False


@helper
def _about_transactions(data: Any, at: Any, end: Any) -> Any:
    """Return the meaning of a text that begins like a statement about transactions."""
    if _word(data, at, end, _SAVEPOINT) and _is_name(data, at + 10, end):
        return Q_SAVEPOINT
    if _word(data, at, end, _ROLLBACK):
        if end - at == 8:
            return Q_ROLLBACK
        return Q_ROLLBACK_TO if _word(data, at, end, _ROLLBACK_TO) and _is_name(data, at + 12, end) else Q_ASK
    if _word(data, at, end, _XA_START):
        return Q_XA_START
    if _word(data, at, end, _XA_COMMIT) or _word(data, at, end, _XA_ROLLBACK):
        return Q_XA_FINISH
    if _word(data, at, end, _XA_END):
        return Q_NOTHING
    return Q_ASK


@helper
def query_kind(data: Any, body: Any, end: Any) -> Any:
    """Return the meaning of a QUERY event for transactions.

    Body: thread(4) time(4) db_len(1) error(2) status_len(2) …
    """
    if body + 13 > end:
        return Q_BAD
    at = body + 13 + little_endian(data, body + 11, 2) + np.int64(data[body + 8]) + 1
    if at > end:
        return Q_BAD
    length = end - at
    if length == 0:
        return Q_NOTHING
    if length == 5 and _word(data, at, end, _BEGIN):
        return Q_BEGIN
    if length == 6 and _word(data, at, end, _COMMIT):
        return Q_COMMIT
    first = data[at] | 0x20
    if not 97 <= first <= 122:
        return Q_ASK
    if (
        _word(data, at, end, _SAVEPOINT[:9]) or _word(data, at, end, _ROLLBACK) or _word(data, at, end, _XA[:2])
        or _word(data, at, end, _BEGIN) or _word(data, at, end, _COMMIT) or _word(data, at, end, _START)
        or _word(data, at, end, _RELEASE)
    ):  # fmt: skip
        return _about_transactions(data, at, end)
    return Q_OTHER


_TAG_MAX = 32


@helper
def varying(data: Any, at: Any, end: Any) -> Any:
    """Return (unsigned value, offset after it). The offset is -1 if the number does not end before `end`."""
    if at < 0 or at >= end:
        return np.int64(0), np.int64(-1)
    first = np.int64(data[at])
    more = 0
    while more < 8 and (first >> more) & 1:
        more += 1
    if at + more + 1 > end:
        return np.int64(0), np.int64(-1)
    if more == 8:
        return little_endian(data, at + 1, 8), at + 9
    if more == 7:
        return little_endian(data, at + 1, 7), at + 8
    return little_endian(data, at, more + 1) >> (more + 1), at + more + 1


# long: it reads the fields of one message in their order, with a check of the bounds after each field
@helper
def tagged_gtid(data: Any, at: Any, end: Any, keys: Any, slot: Any) -> Any:
    """Return (transaction number or -1, commit time in µs or 0).

    Writes UUID and tag into the six words of ``keys[slot]``.
    """
    _, at = varying(data, at, end)  # version
    _, at = varying(data, at, end)  # size
    _, at = varying(data, at, end)  # last field that may not be ignored
    number = np.int64(-1)
    micros = np.int64(0)
    while at >= 0 and at < end:
        field, at = varying(data, at, end)
        if at < 0:
            break
        if field == 1:
            for i in range(16):
                byte, at = varying(data, at, end)
                if at < 0 or byte < 0 or byte > 255:
                    return np.int64(-1), micros
                keys[slot, i >> 3] |= byte << (8 * (i & 7))
        elif field == 2:
            value, at = varying(data, at, end)
            if at < 0 or value & 1:
                return np.int64(-1), micros
            number = value >> 1
        elif field == 3:
            size, at = varying(data, at, end)
            if at < 0 or size < 0 or size > _TAG_MAX or at + size > end:
                return np.int64(-1), micros
            for i in range(size):
                keys[slot, 2 + (i >> 3)] |= np.int64(data[at + i]) << (8 * (i & 7))
            at += size
        elif field == 6:
            micros, at = varying(data, at, end)
            if at < 0 or micros < 0:
                return np.int64(-1), np.int64(0)
            break
        else:
            _, at = varying(data, at, end)
    if at < 0:
        return np.int64(-1), micros
    return number, micros


@njit
def read_tagged_gtid(data: Any, at: Any, end: Any, keys: Any) -> Any:
    """Call `tagged_gtid` for Python, with the first line of `keys`."""
    return tagged_gtid(data, at, end, keys, 0)


@helper
def same_bytes(data: Any, at: Any, other: Any, start: Any, length: Any) -> Any:
    """Return True if `length` bytes are equal in both."""
    different = np.int64(0)
    whole = length & ~7
    for i in range(0, whole, 8):
        different |= load(data, at + i, 64) ^ load(other, start + i, 64)
    for i in range(whole, length):
        different |= np.int64(data[at + i] ^ other[start + i])
    return different == 0


@njit
def hash_bytes(data: Any, at: Any, length: Any) -> Any:
    """Return the FNV-1a hash, in 63 bits."""
    value = np.uint64(0xCBF29CE484222325)
    for i in range(length):
        value = (value ^ np.uint64(data[at + i])) * np.uint64(0x100000001B3)
    return np.int64(value >> np.uint64(1))


@helper
def slot_of(keys: Any, key: Any) -> Any:
    """Return the slot of `key` in an open-addressed table. Free slots hold -1; the size is a power of two."""
    mask = len(keys) - 1
    i = (key * 0x9E3779B1) & mask
    while keys[i] != key and keys[i] != -1:
        i = (i + 1) & mask
    return i


@njit
def find_map(data: Any, at: Any, length: Any, maps: Any, map_bytes: Any, map_keys: Any, map_values: Any) -> Any:
    """Return the number of the registered table map with exactly these bytes, or -1.

    `maps` has (offset, length) per map.
    """
    mask = len(map_keys) - 1
    key = hash_bytes(data, at, length)
    i = (key * 0x9E3779B1) & mask
    while map_keys[i] != -1:
        if map_keys[i] == key:
            number = map_values[i]
            if maps[number, 1] == length and same_bytes(data, at, map_bytes, maps[number, 0], length):
                return number
        i = (i + 1) & mask
    return np.int64(-1)
