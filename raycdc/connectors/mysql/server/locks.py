"""Handles tables that other sessions have locked: our waits are short, and errors name the owner of the lock.

A SELECT waits for ``LOCK TABLES t WRITE``, for a statement that changes the table and itself waits for a long
transaction, and for ``FLUSH TABLES`` that waits for a long SELECT. By default a SELECT waits for a day (MariaDB) or a
year (MySQL). Our sessions set a timeout, after which the server returns error 1205.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import WAITS_BRIEFLY, close_quietly, is_of_locked_table, query, quote_name
from raycdc.connectors.mysql.ddl.parse.tokens import shown
from raycdc.errors import SourceError, SourceUnavailableError, TableLockedError
from raycdc.model import TableId

#: The lock timeout of a query about one table, whose planning must not delay all others.
PLANNING_WAIT_S = 1
#: The lock timeout of a chunk's SELECT: long enough for most statements that lock a table, too short for maintenance.
READING_WAIT_S = 5
#: The time limit of `locked_by` for all tables.
_ASKING_S = 10.0
_HOLDERS_SHOWN = 3
#: The sessions that have a lock of the table, or wait for one that blocks SELECTs. The first query works with
#: performance_schema, the second with MariaDB's plugin metadata_lock_info; each needs a privilege. The last one needs
#: PROCESS, and knows only statements.
_HOLDERS = (
    """SELECT DISTINCT t.PROCESSLIST_ID, t.PROCESSLIST_USER, t.PROCESSLIST_INFO
    FROM performance_schema.metadata_locks l JOIN performance_schema.threads t ON t.THREAD_ID = l.OWNER_THREAD_ID
    WHERE l.OBJECT_TYPE = 'TABLE' AND l.OBJECT_SCHEMA = %(db)s AND l.OBJECT_NAME = %(table)s
    AND (l.LOCK_STATUS = 'GRANTED' OR l.LOCK_TYPE IN ('EXCLUSIVE', 'SHARED_NO_READ_WRITE'))
    AND t.PROCESSLIST_ID <> CONNECTION_ID() ORDER BY 1""",
    """SELECT DISTINCT p.ID, p.USER, p.INFO
    FROM information_schema.METADATA_LOCK_INFO l JOIN information_schema.PROCESSLIST p ON p.ID = l.THREAD_ID
    WHERE l.TABLE_SCHEMA = %(db)s AND l.TABLE_NAME = %(table)s AND p.ID <> CONNECTION_ID() ORDER BY 1""",
    """SELECT ID, USER, INFO FROM information_schema.PROCESSLIST
    WHERE LOCATE(%(table)s, INFO) > 0 AND (DB = %(db)s OR LOCATE(%(db)s, INFO) > 0)
    AND STATE LIKE '%%lock%%' AND INFO NOT LIKE 'SELECT%%' AND ID <> CONNECTION_ID() ORDER BY 1""",
)


def wait_for_locks(connection: Connection[Any], seconds: int | None = None) -> None:
    """Set the session's lock timeout; None: the server's default."""
    wait, briefly = ("DEFAULT", "NULL") if seconds is None else (seconds, 1)
    query(connection, f"SET SESSION lock_wait_timeout = {wait}, {WAITS_BRIEFLY} = {briefly}")


@contextmanager
def short_lock_waits(connection: Connection[Any]) -> Iterator[None]:
    """Use a short lock timeout inside the block."""
    wait_for_locks(connection, PLANNING_WAIT_S)
    try:
        yield
    finally:
        with suppress(SourceError):  # a broken connection, which is already reported
            wait_for_locks(connection)


def connect_briefly(connect: Callable[[], Connection[Any]], *, seconds: int) -> Connection[Any]:
    """Return a connection whose statements have this lock timeout."""
    connection = connect()
    try:
        wait_for_locks(connection, seconds)
    except BaseException:
        close_quietly(connection)
        raise
    return connection


def locked_error(table: TableId) -> TableLockedError:
    """Return the error for a locked table."""
    return TableLockedError(
        f"Another session has {table} locked, so nothing of it can be read now. SHOW FULL PROCESSLIST lists the "
        "sessions; wait, or end that one (KILL)."
    )


def locked_by(connection: Connection[Any], tables: Sequence[TableId]) -> Mapping[TableId, str]:
    """Return the locked tables with the owners of their locks (`EnumeratorDialect.locked_by`), in a session with short
    waits.
    """
    answers: dict[TableId, str] = {}
    deadline = time.monotonic() + _ASKING_S
    for table in tables:
        answers[table] = ""
        try:
            query(connection, f"SELECT 1 FROM {quote_name(table.db, table.table)} LIMIT 0")
        except SourceUnavailableError as error:
            if not is_of_locked_table(error.__cause__):
                raise
            answers[table] = (
                f"It is locked at the source by {_holders(connection, table)}, so nothing of it can be read. The other "
                "tables go on; it is read as soon as the lock is gone. One that should not be there ends with its "
                "session (KILL)."
            )
        except SourceError:
            continue  # Any other error will be reported when the table is read.
        if time.monotonic() > deadline:
            break
    return answers


def _holders(connection: Connection[Any], table: TableId) -> str:
    """Return the sessions that have locked the table, as far as the server shows them to this account."""
    for sql in _HOLDERS:
        try:
            found = query(connection, sql, {"db": table.db, "table": table.table})
        except SourceUnavailableError:
            raise
        except SourceError:
            continue  # a server without this table, or an account that may not read it
        if found:
            return ", ".join(_session(*row) for row in found[:_HOLDERS_SHOWN])
    return "another session (SHOW FULL PROCESSLIST lists them)"


def _session(number: object, user: object, statement: object) -> str:
    text = statement.decode("utf-8", "replace") if isinstance(statement, bytes) else str(statement or "")
    does = f": {shown(text)}" if text else ""
    return f"session {number} of {user}{does}"
