"""Tables that other sessions have locked: waited for only for a moment, and told with who has them.

A SELECT waits for ``LOCK TABLES t WRITE``, for a statement that changes the table and itself waits for a long
transaction, and for ``FLUSH TABLES`` that waits for a long SELECT. The server would let it wait for a day (MariaDB) or
a year (MySQL); a session of ours says how long, and gets error 1205 then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import WAITS_BRIEFLY, close_quietly, is_of_locked_table, query, quote_name
from raycdc.connectors.mysql.ddl.parse.statement_text import shown
from raycdc.errors import SourceError, SourceUnavailableError, TableLockedError
from raycdc.model import TableId

#: So long a question about one table waits for its lock: what may be planned of it is no reason to hold up all others.
PLANNING_WAIT_S = 1
#: So long the SELECT of a chunk waits: for most statements that lock a table, and not for a maintenance.
READING_WAIT_S = 5
#: So long `locked_by` asks about one table after another.
_ASKING_S = 10.0
_HOLDERS_SHOWN = 3
#: Whoever has a lock of the table, or waits for one that lets no SELECT pass. The first is there where
#: performance_schema is on, the second with MariaDB's plugin metadata_lock_info; each needs a privilege. The last one
#: is seen by accounts with PROCESS, and knows only statements.
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
    """So long from here on; None: as the server does."""
    wait, briefly = ("DEFAULT", "NULL") if seconds is None else (seconds, 1)
    query(connection, f"SET SESSION lock_wait_timeout = {wait}, {WAITS_BRIEFLY} = {briefly}")


@contextmanager
def short_lock_waits(connection: Connection[Any]) -> Iterator[None]:
    """Inside, nobody is waited for who has a table locked, or only for a moment."""
    wait_for_locks(connection, PLANNING_WAIT_S)
    try:
        yield
    finally:
        with suppress(SourceError):  # of a connection that is no good any more: that is told already
            wait_for_locks(connection)


def connect_briefly(connect: Callable[[], Connection[Any]], *, seconds: int) -> Connection[Any]:
    """A connection whose statements wait so long for locks."""
    connection = connect()
    try:
        wait_for_locks(connection, seconds)
    except BaseException:
        close_quietly(connection)
        raise
    return connection


def locked_error(table: TableId) -> TableLockedError:
    """The error for a table that is locked."""
    return TableLockedError(
        f"Another session has {table} locked, so nothing of it can be read now. SHOW FULL PROCESSLIST lists the "
        "sessions; wait, or end that one (KILL)."
    )


def locked_by(connection: Connection[Any], tables: Sequence[TableId]) -> Mapping[TableId, str]:
    """`EnumeratorDialect.locked_by`, in a session that does not wait long."""
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
            continue  # Whatever is wrong with it is said where it is read.
        if time.monotonic() > deadline:
            break
    return answers


def _holders(connection: Connection[Any], table: TableId) -> str:
    """Who has the table locked, in words, as far as the server says it to this account."""
    for sql in _HOLDERS:
        try:
            found = query(connection, sql, {"db": table.db, "table": table.table})
        except SourceUnavailableError:
            raise
        except SourceError:
            continue  # of a server that has not what is asked for, or says it to others only
        if found:
            return ", ".join(_session(*row) for row in found[:_HOLDERS_SHOWN])
    return "another session (SHOW FULL PROCESSLIST lists them)"


def _session(number: object, user: object, statement: object) -> str:
    text = statement.decode("utf-8", "replace") if isinstance(statement, bytes) else str(statement or "")
    does = f": {shown(text)}" if text else ""
    return f"session {number} of {user}{does}"
