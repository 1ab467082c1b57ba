"""Continues reading at a different server than the one whose log was read before.

Called before a log is assigned to a reader (`enumerator_dialect`) and before a run (`source.preflight`). A file and a
byte mean nothing on another server, but both servers have the same transactions, by GTID. The new server must have
executed everything that was read (executed ⊇ ours), and must still have everything that was not read (ours ⊇ purged).
Reading continues at the beginning of the new server's log, `by_gtid`. Transactions that were read may be anywhere in
this log, because the new server has a different commit order. The server skips these transactions. Positions of the two
servers are never compared: chunks that are open are read again, and published chunks need no position any more.

*Limit:* a log is recognised by its mark (`LogMark`) only at the server that wrote it. Between two servers, only the
numbers of GTIDs are compared. Suppose that the old server was reset and used the same GTIDs again, and was then
replaced by a server that has these new transactions: this is not detected.
"""

from __future__ import annotations

import re
import time
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import address_of, query_one
from raycdc.connectors.mysql.binlog.positions.gtid import MariaDbGtidSet
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.client import MySqlServerInfo, current_end, ensure_available, log_files
from raycdc.connectors.mysql.server.mariadb_log import listed_before
from raycdc.connectors.mysql.snapshot.consistent import wait_until_visible
from raycdc.errors import LogLostError, SourceUnavailableError
from raycdc.state.codec import NEW_STATE

#: The wait for a replica that takes over: it has all of the old server's transactions, but may still be applying the
#: last ones.
CATCH_UP_S = 10.0
_VISIBLE_WITHIN_S = 60.0
_PAUSE_S = 0.05
_MARIADB_GTID = re.compile(r"(?<!\d)(\d+)-(\d+)-(\d+)")


def resume_position(
    connection: Connection[Any], info: MySqlServerInfo, offset: BinlogOffset, *, catch_up_s: float = CATCH_UP_S
) -> BinlogOffset:
    """Return the position at which reading continues at this server.

    This is `offset` at the server of `offset`, and the position after the same transactions at a different server.

    Blocks up to `catch_up_s` for a replica that is behind. Raises `LogLostError` naming the missing transactions.
    """
    if not is_elsewhere(info, offset):
        ensure_available(connection, info, offset)
        return offset
    mariadb_position = ":" not in offset.gtid_set
    if not info.gtid_mode or not offset.gtid_set or mariadb_position != info.is_mariadb:
        raise LogLostError(
            f"{offset} is a position of the server {offset.server}, and {info.address} is {info.identity}: without "
            f"GTIDs of the same kind on both, positions of two servers cannot be compared. Point source.host at the "
            f'old one, or set startup.mode = "initial" and {NEW_STATE}.'
        )
    if info.is_mariadb:
        _require_mariadb_history(connection, info, offset, catch_up_s)
        # Chunks wait until the log reader's position is visible, and that is the beginning of the log at first.
        wait_until_visible(connection, info, current_end(connection, info), _VISIBLE_WITHIN_S)
    else:
        _require_mysql_history(connection, info, offset, catch_up_s)
    oldest, _ = log_files(connection, info)[0]
    return BinlogOffset(oldest, 4, offset.gtid_set, server=info.identity, by_gtid=True, prepared=offset.prepared)


def is_elsewhere(info: MySqlServerInfo, offset: BinlogOffset) -> bool:
    """Return True if `offset` is a position in the log of another server than `info`."""
    return info.owner.is_another(offset.server)


def require_same_server(connection: Connection[Any], info: MySqlServerInfo, offset: BinlogOffset) -> None:
    """Raise `SourceUnavailableError` if this is not the server of `offset`.

    The enumerator then finds the position on the server that answers now.
    """
    if is_elsewhere(info, offset):
        raise SourceUnavailableError(
            f"{address_of(connection)} is the server {info.identity} now, and the log is read from {offset.server}: "
            "positions of the two cannot be compared. If this repeats, source.host leads to several servers at a time."
        )


def _require_mysql_history(
    connection: Connection[Any], info: MySqlServerInfo, offset: BinlogOffset, catch_up_s: float
) -> None:
    query_one(connection, "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)", (offset.gtid_set, catch_up_s))
    row = query_one(
        connection,
        "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed), GTID_SUBTRACT(@@GLOBAL.gtid_purged, %s)",
        (offset.gtid_set, offset.gtid_set),
    )
    missing, purged = (str(value or "").replace("\n", "") for value in row or ("", ""))
    _refuse(info, offset, missing=missing, purged=purged)


def _require_mariadb_history(
    connection: Connection[Any], info: MySqlServerInfo, offset: BinlogOffset, catch_up_s: float
) -> None:
    """Check MariaDB's transactions per domain.

    Gtid_binlog_state has all logged transactions, and the oldest file shows which of them are purged.
    """
    ours = MariaDbGtidSet.parse(offset.gtid_set).last
    deadline = time.monotonic() + catch_up_s
    while True:
        row = query_one(connection, "SELECT @@GLOBAL.gtid_binlog_state")
        logged = {(int(d), int(s)): int(n) for d, s, n in _MARIADB_GTID.findall(str(row[0] if row else ""))}
        missing = {d: last for d, last in ours.items() if logged.get((d, last[0]), 0) < last[1]}
        if not missing or time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_S)
    oldest, _ = log_files(connection, info)[0]
    before = listed_before(connection, oldest)
    purged = [f"{d}-{s}-{n}" for d, s, n in before if ours.get(d, (0, 0))[1] < n]
    _refuse(info, offset, missing=str(MariaDbGtidSet(missing)), purged=f"up to {', '.join(purged)}" if purged else "")


def _refuse(info: MySqlServerInfo, offset: BinlogOffset, *, missing: str, purged: str) -> None:
    snapshot = f'set startup.mode = "initial" and {NEW_STATE}'
    if missing:
        raise LogLostError(
            f"{info.address} ({info.identity}) has not executed the transactions {missing}, which were read from the "
            f"server {offset.server} before {offset}: it is no replica of that server, has not caught up, or the "
            f"transactions were lost when it took over. Point source.host at a server that has them, or {snapshot}."
        )
    if purged:
        raise LogLostError(
            f"{info.address} ({info.identity}) cannot take over from the server {offset.server} any more: the "
            f"transactions "
            f"{purged} come after {offset} and are purged. Point source.host at a server that still has them, or "
            f"{snapshot}."
        )
