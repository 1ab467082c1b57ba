"""Gets a table's schema from the server after a statement that does not contain it, or that we do not understand.

The server only knows the table's *present* schema. That is the schema after the statement if no other one has changed
the table since, which the log proves: under a metadata lock on the table (as any SELECT has), which blocks such
statements, the schema and the end of the log are read; then the log from the statement to there is searched. Called by
`DdlHistory` in the log reader's thread, whose connection waits meanwhile, so the search is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import query, quote_name
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.ddl.apply import DdlDialect, affected_tables
from raycdc.connectors.mysql.ddl.defaults import catalogue_fill
from raycdc.connectors.mysql.ddl.dialect import dialect_of, dialect_of_session
from raycdc.connectors.mysql.ddl.parse.column import never_logged
from raycdc.connectors.mysql.ddl.parse.statement_text import mentions, shown
from raycdc.connectors.mysql.ddl.shape import ColumnLineage
from raycdc.connectors.mysql.log.startup import OpenLog, statements_between
from raycdc.connectors.mysql.server.catalog import constant_default, load_table
from raycdc.connectors.mysql.server.client import MySqlServerInfo, current_end, log_files
from raycdc.connectors.mysql.server.locks import wait_for_locks
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SourceError
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold

#: The longest part of the log between the statement and the end. It is read in seconds, before the server closes our
#: idle connection.
LOG_BYTES_MAX = 2 << 30
#: Seconds to wait for a statement that is changing the table right now.
_LOCK_WAIT_S = 10

_DEFAULTS = (
    "SELECT COLUMN_NAME, COLUMN_DEFAULT, EXTRA FROM information_schema.COLUMNS "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A table as the server describes it. `computed` has the columns whose default is not constant, with the reason."""

    table: MySqlTable
    computed: Mapping[str, str]

    def lineage(self, before: MySqlTable) -> ColumnLineage | str:
        """Return the origins of the columns, derived from their names; or why names are not sufficient."""
        old, new = ({mysql_fold(c.name): c for c in table.columns} for table in (before, self.table))
        added = [column for name, column in new.items() if name not in old]
        dropped = [column.name for name, column in old.items() if name not in new]
        if added and dropped:
            return f"whether {', '.join(dropped)} became {added[0].name} or went cannot be told"
        filled = {column.name: catalogue_fill(column) for column in added}
        unsure = {name: fill.unsure for name, fill in filled.items() if fill.unsure}
        computed = {name: why for name, why in self.computed.items() if name in filled}
        return ColumnLineage({}, {name: fill.value for name, fill in filled.items()}, unsure | computed)


class ServerResolver:
    """The resolver for one server, a `raycdc.connectors.mysql.ddl.follow.history.Resolver`."""

    def __init__(self, connect: Callable[[], Connection[Any]], info: MySqlServerInfo, open_log: OpenLog) -> None:
        self._connect = connect
        self._info = info
        self._open_log = open_log

    def __call__(self, table: TableId, after: BinlogOffset) -> Resolved | str:
        """Return the table right after the position `after`, or why it cannot be known for sure."""
        try:
            with closing(self._connect()) as connection:
                found, end = self._now(connection, table)
                if never_logged(found.table) is not None:
                    return "as it is now, its rows are not logged (give it a history of TIMESTAMP(6))"
                if (way := _bytes_between(log_files(connection, self._info), after, end)) > LOG_BYTES_MAX:
                    return f"it was {way >> 20} MiB of log ago, too far to prove that the table has not changed since"
            start = replace(after, by_gtid=False, skip_events=0, skip_rows=0)
            dialect = dialect_of(self._info)
            for item in statements_between(self._info, start, end, self._open_log):
                if _touches(item.statement, item.db, table, dialect_of_session(dialect, item.session)):
                    return f"the table has changed again since ({item.position}: {shown(item.statement)})"
        except (SourceError, pymysql.MySQLError) as cause:
            return f"the server cannot say how {table} looks: {cause}"
        return found

    def _now(self, connection: Connection[Any], table: TableId) -> tuple[Resolved, BinlogOffset]:
        """Return the table's present schema, and a position after all changes that led to it."""
        wait_for_locks(connection, _LOCK_WAIT_S)
        connection.begin()
        query(connection, f"SELECT 1 FROM {quote_name(table.db, table.table)} LIMIT 0")
        described = load_table(connection, table)
        computed = _computed(query(connection, _DEFAULTS, (table.db, table.table)), mariadb=self._info.is_mariadb)
        end = current_end(connection, self._info)
        connection.rollback()
        return Resolved(described, computed), end


def _touches(statement: str, db: str, table: TableId, dialect: DdlDialect) -> bool:
    affected = affected_tables(statement, db, dialect=dialect)
    named = table in affected.tables or table.db in affected.databases
    return named or (bool(affected.unread) and mentions(statement, table, db=db))


def _computed(rows: Any, *, mariadb: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, default, extra in rows:
        text, more = (None if v is None else v.decode() if isinstance(v, bytes) else str(v) for v in (default, extra))
        more = (more or "").upper()
        constant = constant_default(text, more, quoted=mariadb)
        null = text is None or (mariadb and text.upper() == "NULL")
        if "GENERATED" in more.replace("DEFAULT_GENERATED", "") or "AUTO_INCREMENT" in more:
            found[str(name)] = "a generated value"
        elif constant is None and (not null or "DEFAULT_GENERATED" in more):
            found[str(name)] = "an expression"
    return found


def _bytes_between(files: list[tuple[str, int]], start: BinlogOffset, end: BinlogOffset) -> int:
    between = sum(size for name, size in files if start.file <= name < end.file)
    return max(0, between - start.pos + end.pos)
