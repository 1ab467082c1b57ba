"""Waits on MySQL without GTIDs until everything that is in the log now is visible to SELECTs.

A server writes a transaction to its log first and makes it visible a moment later (group commit, a slow disk, a
semi-synchronous replica). With GTIDs the server can wait for that; without them this module checks which sessions are
committing. It needs only the privilege PROCESS; without it, a chunk waits for a fixed time (`visible_within`).

**The argument.** Let everything be in the log at time t that the log reader has passed. Take a transaction T of an
InnoDB table that is in the log at t and not visible at t.

1. T is in the list of read-write transactions (``information_schema.innodb_trx``) until it is visible: under one mutex,
   InnoDB takes it out of that list, and out of the list that read views copy. T has modified rows
   (``trx_rows_modified`` > 0), and modifies no more, because a transaction is logged as a whole, after its last change.
2. T's session is inside the statement that commits, and stays there until T is visible. Only then does the session
   begin another statement, sleep, or end. If T was prepared by XA and left by its session, T belongs to no session, and
   the session that executes XA COMMIT has no transaction of its own. The leader of a group commit does another
   session's work, but that session waits for the leader.

T is therefore visible as soon as, after t,

* its session was seen asleep, gone, or in another statement (`_busy_sessions`; typically after milliseconds); or
* a list of transactions that was made after t lacks T; or
* such a list shows T waiting for a row lock, without modified rows, or with a different number of modified rows than an
  earlier list made after t. Then the transaction in the list had not been logged at t.

A session that sleeps inside an open transaction, a report that runs for an hour and an UPDATE of a million rows
therefore delay no chunk. The server makes lists of transactions at most every 0.1 s, and shares them between all
queries (MySQL manual, "Persistence and Consistency of InnoDB Transaction and Locking Information"); a list counts only
if it shows our own transaction with the present query, because it was then made during that query. The list has
read-write transactions before read-only transactions like ours, so a list that was cut at its memory limit does not
count either.

Nothing here takes a lock; if no proof is found before the timeout, the wait has lasted for the timeout, which suffices
by itself.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.client import MySqlServerInfo
from raycdc.errors import SourceError, SourceUnavailableError

#: The beginning of statements of chunk readers. They commit nothing, however long they run.
CHUNK_MARK = "/* raycdc reads a chunk */"

#: The time in which only sessions are checked, which costs the server least.
_SESSIONS_FOR_S = 0.06
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.02
#: The pause before a new list of transactions. The server makes one only after 0.1 s without a query, so several
#: readers must not query in step.
_LIST_PAUSE_S = (0.11, 0.25)

#: The commands of sessions that do not commit: asleep, or reading the log.
_IDLE_COMMANDS = ("Sleep", "Daemon", "Binlog Dump", "Binlog Dump GTID")

_chance = secrets.SystemRandom()


@dataclass(frozen=True, slots=True)
class _Transaction:
    """One read-write transaction. `session` is 0 if it was prepared and left by its session."""

    session: int
    rows: int


class CommitWatch:
    """The wait on one connection until everything in the log is visible.

    `opened_at` positions must be the log reader's. `timeout_s` is `visible_within`: a transaction that has been in the
    log this long is visible.
    """

    def __init__(self, connection: Connection[Any], *, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._visible: BinlogOffset | None = None

    def wait(self, opened_at: BinlogOffset) -> None:
        """Wait until everything before `opened_at`, which the log reader has passed, is visible."""
        if self._visible is not None and opened_at <= self._visible:
            return
        wait_until_visible(self._connection, timeout_s=self._timeout_s)
        self._visible = opened_at


def sees_commits(connection: Connection[Any], info: MySqlServerInfo) -> bool:
    """Return True if this account may see other sessions and transactions on this MySQL server."""
    if info.is_mariadb:
        return False
    try:
        _require_process(connection)
    except SourceUnavailableError:
        raise
    except SourceError:
        return False
    return True


def wait_until_visible(connection: Connection[Any], *, timeout_s: float) -> bool:
    """Wait until the log at the time of the call is visible.

    Returns False if this is still unknown after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    try:
        _require_process(connection)
        decided = _wait_for_sessions_and_transactions(connection, deadline)
    except SourceUnavailableError:
        raise
    except SourceError:
        # Without PROCESS, only the timeout is left.
        decided = False
    if not decided:
        time.sleep(max(0.0, deadline - time.monotonic()))
    return decided


def _require_process(connection: Connection[Any]) -> None:
    """Raise `SourceError` without PROCESS. The list of sessions would then have only our own, without an error."""
    query(connection, "SELECT COUNT(*) FROM information_schema.innodb_cmp")


def _wait_for_sessions_and_transactions(connection: Connection[Any], deadline: float) -> bool:
    busy = _busy_sessions(connection)
    probe_closer = time.monotonic() + _SESSIONS_FOR_S
    pause = _FIRST_PAUSE_S
    while busy and time.monotonic() < min(probe_closer, deadline):
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        busy = _still_busy(connection, busy)
    first: dict[str, _Transaction] | None = None
    while busy and time.monotonic() < deadline:
        listed = _transactions(connection)
        if listed is not None:
            first = listed if first is None else first
            pending = _unchanged(first, listed)
            busy = _still_busy(connection, busy)
            if not _may_commit(pending, listed, busy):
                return True
        time.sleep(_chance.uniform(*_LIST_PAUSE_S))
        busy = _still_busy(connection, busy)
    return not busy


def _unchanged(first: dict[str, _Transaction], listed: dict[str, _Transaction]) -> list[_Transaction]:
    """Return the transactions in both lists that have modified no row in between."""
    return [now for name, now in listed.items() if name in first and first[name].rows == now.rows]


def _may_commit(pending: list[_Transaction], listed: dict[str, _Transaction], busy: dict[int, int | None]) -> bool:
    """Return True if a session in `busy` may be committing one of the `pending` transactions."""
    if any(transaction.session in busy for transaction in pending):
        return True
    without_own = set(busy) - {transaction.session for transaction in listed.values()}
    return bool(without_own) and any(transaction.session == 0 for transaction in pending)


def _busy_sessions(connection: Connection[Any]) -> dict[int, int | None]:
    """Return the sessions that may be inside a commit, each with a checksum of its statement.

    The command is not compared, because it changes at once if a session is killed inside its commit, and the commit
    still happens.
    """
    rows = query(
        connection,
        "SELECT ID, CRC32(INFO) FROM information_schema.PROCESSLIST "
        "WHERE COMMAND NOT IN %s AND ID <> CONNECTION_ID() AND (INFO IS NULL OR INFO NOT LIKE %s)",
        (_IDLE_COMMANDS, f"SELECT {CHUNK_MARK}%"),
    )
    return {int(session): None if statement is None else int(statement) for session, statement in rows}


def _still_busy(connection: Connection[Any], before: dict[int, int | None]) -> dict[int, int | None]:
    """Return the sessions in `before` that are still in the same statement, as far as is visible."""
    if not before:
        return before
    now = _busy_sessions(connection)
    return {session: statement for session, statement in before.items() if now.get(session, "gone") == statement}


def _transactions(connection: Connection[Any]) -> dict[str, _Transaction] | None:
    """Return the transactions that have modified rows and wait for no lock, by id; None if the list is an older one."""
    mark = f"{time.monotonic_ns()}-{secrets.token_hex(8)}"
    query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        rows = query(
            connection,
            f"SELECT /* {mark} */ trx_id, trx_mysql_thread_id, trx_rows_modified, trx_state, trx_query, "
            "CONNECTION_ID() FROM information_schema.innodb_trx",
        )
    finally:
        query(connection, "ROLLBACK")
    if not any(session == ours and mark in str(text or "") for _, session, _, _, text, ours in rows):
        return None
    return {
        str(name): _Transaction(int(session), int(changed))
        for name, session, changed, state, _, _ in rows
        if int(changed) > 0 and state != "LOCK WAIT"
    }
