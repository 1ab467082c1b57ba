"""Opens MariaDB's consistent snapshots, and finds their positions in the log.

MariaDB knows the position of each snapshot exactly, but does not report it reliably: ``SHOW STATUS`` of a session
copies its position to ``binlog_snapshot_file`` and ``binlog_snapshot_position``, which are variables of the whole
server, and reads it back from there. A ``SHOW STATUS`` of another session in between (another chunk's, a monitoring
agent's) stores its own position instead: with three such sessions, in one of eighty answers on MariaDB 10.11. An answer
belongs to some session, perhaps not to ours. Two facts hold for a position of any session:

1. A reported position is visible to every snapshot that is opened afterwards.
2. A snapshot shows nothing that the log did not have when the snapshot was opened (``SHOW MASTER STATUS`` reads the log
   itself).

The position is therefore queried before the snapshot is opened, and the end of the log after it. If the two are equal,
the snapshot is at exactly that position.

The file and the position are two values. Around a rotation they may come from two sessions, and together name a
position after the end of the log. Such a pair is ignored.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import close_quietly, query
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.client import MySqlServerInfo, current_end
from raycdc.errors import SourceError

#: The time for further attempts to open a snapshot at a known position, while others commit during each attempt.
EXACT_WITHIN_S = 2.0
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class SnapshotPosition:
    """No row after `high` is visible in the snapshot. If `exact`, everything before it is visible."""

    high: BinlogOffset
    exact: bool


def open_snapshot(
    connection: Connection[Any], info: MySqlServerInfo, opened_at: BinlogOffset, *, exactly: bool, timeout_s: float
) -> SnapshotPosition:
    """Begin a transaction on MariaDB that sees everything up to `opened_at`.

    With `exactly`, it tries for up to `EXACT_WITHIN_S` to have the snapshot at one known position of the log. On a
    server where a commit falls into each attempt, the position stays inexact. Raises `SourceError` when `opened_at` is
    not visible within `timeout_s`.
    """
    retry_policy = time.monotonic() + EXACT_WITHIN_S if exactly else 0.0
    while True:
        wanted = max(opened_at, current_end(connection, info)) if exactly else opened_at
        shown = wait_until_visible(connection, info, wanted, timeout_s)
        query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        try:
            high = current_end(connection, info)
        except SourceError:
            close_quietly(connection)
            raise
        exact = shown == high
        if exact or time.monotonic() > retry_policy:
            return SnapshotPosition(high, exact)
        query(connection, "ROLLBACK")


def wait_until_visible(
    connection: Connection[Any], info: MySqlServerInfo, position: BinlogOffset, timeout_s: float
) -> BinlogOffset:
    """Wait until snapshots show everything up to `position`, and return how far they do. Not inside a transaction.

    Raises `SourceError` after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    while True:
        shown = _shown(connection, info)
        if shown >= position and shown <= current_end(connection, info):
            return shown
        if time.monotonic() > deadline:
            raise SourceError(
                f"{info.address} shows rows of {shown} only, while its log was read up to {position}, for "
                f"{timeout_s:g} s. Is this the server whose log is being read, and is no commit stuck on it?"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _shown(connection: Connection[Any], info: MySqlServerInfo) -> BinlogOffset:
    status = {str(name).lower(): value for name, value in query(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")}
    file = str(status.get("binlog_snapshot_file", ""))
    if not file:
        raise SourceError(f"{info.address} gives no binlog_snapshot_position. Is log_bin on?")
    return BinlogOffset(file, int(status["binlog_snapshot_position"]), server=info.identity)
