"""What a statement in the binlog means to transactions, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.compiled import helper
from raycdc.connectors.mysql.values.arena_loops import little_endian


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
_XA_COMMIT = np.frombuffer(b"xa commit", np.uint8).copy()
_XA_ROLLBACK = np.frombuffer(b"xa rollback", np.uint8).copy()
_XA_END = np.frombuffer(b"xa end", np.uint8).copy()

Q_OTHER = 0
Q_BEGIN = 1
Q_END = 2
Q_IGNORED = 3
Q_BAD = 4
Q_XA_START = 5
Q_XA_FINISH = 6


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
        return Q_XA_START
    if _word(data, at, end, _XA_COMMIT) or _word(data, at, end, _XA_ROLLBACK):
        return Q_XA_FINISH
    return Q_IGNORED if _word(data, at, end, _XA_END) else Q_OTHER
