"""Finds which session has a target of a database locked.

If a statement has waited for minutes, the sink uses this module to name the session in a message, and to decide if only
this target is blocked. The queries wait for no lock, or for one second (MySQL and MariaDB).

| server | query |
|---|---|
| PostgreSQL | `pg_locks` and `pg_stat_activity`, which every account may read, but without statement and time |
| MySQL, MariaDB | a DELETE of no row, which any LOCK TABLES blocks; then `performance_schema.metadata_locks`, or \
MariaDB's plugin metadata_lock_info, if the account may read them |
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

from raycdc.clients.mysql import quote_name
from raycdc.clients.postgres import quote
from raycdc.errors import SinkError, SinkLockedError
from raycdc.model import TableId

_HOLDERS_SHOWN = 3
#: The PostgreSQL locks that prevent writes by other sessions (its manual's table of conflicting lock modes).
_NOBODY_WRITES = ("ShareLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock")
#: The query finds sessions that only read, too, because they delay a change of the columns. It leaves out the sessions
#: of raycdc, because they end by themselves.
_OF_POSTGRES = """
SELECT DISTINCT a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), l.mode,
  coalesce(extract(epoch FROM now() - a.xact_start), -1)::bigint
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.relation = to_regclass($1) AND l.granted AND a.pid <> pg_backend_pid() AND a.application_name <> 'raycdc'
  AND a.backend_type = 'client backend'
ORDER BY 5 DESC, 1"""
_OF_MYSQL = (
    """SELECT DISTINCT t.PROCESSLIST_ID, t.PROCESSLIST_USER
    FROM performance_schema.metadata_locks l JOIN performance_schema.threads t ON t.THREAD_ID = l.OWNER_THREAD_ID
    WHERE l.OBJECT_TYPE = 'TABLE' AND l.OBJECT_SCHEMA = %s AND l.OBJECT_NAME = %s AND l.LOCK_STATUS = 'GRANTED'
    AND t.PROCESSLIST_ID <> CONNECTION_ID() ORDER BY 1""",
    """SELECT DISTINCT p.ID, p.USER
    FROM information_schema.METADATA_LOCK_INFO l JOIN information_schema.PROCESSLIST p ON p.ID = l.THREAD_ID
    WHERE l.TABLE_SCHEMA = %s AND l.TABLE_NAME = %s AND p.ID <> CONNECTION_ID() ORDER BY 1""",
)


class QueryRunner(Protocol):
    """The part of a `database.DatabaseSession` that runs statements."""

    def run(self, statement: str, *arguments: Any) -> None: ...

    def rows(self, statement: str, *arguments: Any) -> list[tuple[Any, ...]]: ...

    def rollback(self) -> None: ...


def record_held(end: str) -> str:
    """Return a sentence about a target whose record is locked, so that no other session can commit to it.

    `end` is the statement that ends a session.
    """
    return (
        "It is locked by another session, which has its record in raycdc_commit: a driver that was replaced and is "
        f"still at work, or a statement of somebody's. {end} ends a session."
    )


def postgres_holders(session: QueryRunner, target: TableId, *, wholly: bool) -> str:
    """Return a sentence about who has `target` locked; empty if it is free.

    If `wholly` is True, only locks that prevent all writes count.
    """
    found = [
        f"session {pid} of {user}{f' ({name})' if name else ''}{f', for {seconds} s' if seconds >= 0 else ''} ({mode})"
        for pid, user, name, mode, seconds in session.rows(_OF_POSTGRES, quote(target.db, target.table))
        if mode in _NOBODY_WRITES or not wholly
    ]
    if not found:
        return ""
    return f"It is locked by {'; '.join(found[:_HOLDERS_SHOWN])}. SELECT pg_terminate_backend(pid) ends a session."


def mysql_holders(session: QueryRunner, target: TableId, *, wholly: bool) -> str:
    """Return the sentence of `postgres_holders` for MySQL and MariaDB. Row locks are found only if the server lists
    them.
    """
    locked = False
    session.run("SET SESSION lock_wait_timeout = 1")
    try:
        session.run(f"DELETE FROM {quote_name(target.db, target.table)} WHERE FALSE")
    except SinkLockedError:
        locked = True
    session.rollback()
    if wholly and not locked:
        return ""
    found = list[str]()
    for statement in _OF_MYSQL:
        # The server may not have this table, or the account may not read it.
        with suppress(SinkError):
            found += [
                f"session {number} of {user}" for number, user in session.rows(statement, target.db, target.table)
            ]
    if not (found or locked):
        return ""
    who = "; ".join(found[:_HOLDERS_SHOWN]) or "another session (SHOW FULL PROCESSLIST lists them)"
    return f"It is locked by {who}. KILL ends a session."
