"""The meaning of a binlog statement for transactions, compiled.

Only texts that servers write themselves are recognised here, each as a whole: MySQL, sql/binlog.cc, and MariaDB,
sql/log.cc (``binlog_savepoint_set``, ``binlog_savepoint_rollback``, ``binlog_rollback``). For any other statement that
may concern a transaction the result is `Q_ASK`, and `transaction_statements` uses the lexer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.values.arena_loops import little_endian
from raycdc.core.compiled import helper


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
