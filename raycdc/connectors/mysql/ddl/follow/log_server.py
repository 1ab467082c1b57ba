"""The server of the log: how it reads statements, and the queries about them that it can answer.

`ServerResolver` gets a table's schema from the server after a statement that does not contain it, or that we do not
understand. The server only knows the table's *present* schema. That is the schema right after the statement if no later
statement has changed the table. The log proves this: the resolver takes a metadata lock on the table, as any SELECT
does, which blocks such statements. Under the lock it reads the schema and the end of the log. Then it searches the log
from the statement to this end.

`DdlHistory` calls the resolver in the log reader's thread. The log's connection waits meanwhile, so the search is
limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import query, quote_name
from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import SessionState, dialect_of, dialect_of_session
from raycdc.connectors.mysql.ddl.apply import affected_tables
from raycdc.connectors.mysql.ddl.defaults import catalogue_fill
from raycdc.connectors.mysql.ddl.follow.history_state import CharsetDefault
from raycdc.connectors.mysql.ddl.follow.indirect import SqlText, Ways
from raycdc.connectors.mysql.ddl.parse.column import never_logged
from raycdc.connectors.mysql.ddl.parse.statements import CreateTable, DdlDialect
from raycdc.connectors.mysql.ddl.parse.tokens import may_end_logging, mentions, shown
from raycdc.connectors.mysql.ddl.shadows import Shadow
from raycdc.connectors.mysql.ddl.shape import ColumnLineage
from raycdc.connectors.mysql.log.startup import OpenLog, statements_between
from raycdc.connectors.mysql.server.catalog import constant_default, load_table
from raycdc.connectors.mysql.server.client import MySqlServerInfo, current_end, log_files
from raycdc.connectors.mysql.server.locks import wait_for_locks
from raycdc.connectors.mysql.values.charsets import charset_of_collation
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError, SourceError
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
            return f"whether {', '.join(dropped)} became {added[0].name} or was dropped is unknown"
        filled = {column.name: catalogue_fill(column) for column in added}
        unsure = {name: fill.unsure for name, fill in filled.items() if fill.unsure}
        computed = {name: why for name, why in self.computed.items() if name in filled}
        return ColumnLineage({}, {name: fill.value for name, fill in filled.items()}, unsure | computed)


class ServerResolver:
    """The resolver for one server, a `Resolver`."""

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
                    return f"it was {way >> 20} MiB of log ago, too long to prove that the table has not changed since"
            start = replace(after, by_gtid=False, skip_events=0, skip_rows=0)
            dialect = dialect_of(self._info)
            for item in statements_between(self._info, start, end, self._open_log):
                if _touches(item.statement, item.db, table, dialect_of_session(dialect, item.session)):
                    return f"the table has changed again since ({item.position}: {shown(item.statement)})"
        except (SourceError, pymysql.MySQLError) as cause:
            return f"the server cannot describe {table}: {cause}"
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


#: A query for the table right after a position of the log. Returns the reason if the answer cannot be known
#: (`ServerResolver`).
Resolver = Callable[[TableId, BinlogOffset], Resolved | str]


@dataclass(frozen=True, slots=True)
class LogServer:
    """The server-dependent meaning of a log's statements.

    `databases` are the present defaults of databases, `collations` the server's collations and their sets by number.
    The following functions may be missing: `resolve` describes a table (without it, a statement that does not name its
    columns is refused); `led_to` finds indirect effects of a change of rows that was logged as a statement
    (`indirect`); `is_sequence` returns True for the name of a sequence; `unlogged` returns why a table's rows are not
    in the log; `is_in_memory` returns True if rows are lost when the server starts; `was_there` returns True if a table
    may have existed before a time of the log; `repairs` returns True if REPAIR TABLE may change rows. If the server
    does not log `cascades`, a table that gets a foreign key with a cascade is not followed.
    """

    dialect: DdlDialect
    default_charset: CharsetDefault
    databases: Mapping[str, CharsetDefault] | None = None
    collations: Mapping[int, CharsetDefault] = field(default_factory=dict)
    cascades: bool = True
    resolve: Resolver | None = None
    led_to: Callable[[SqlText], Ways] | None = None
    is_sequence: Callable[[TableId], bool] | None = None
    unlogged: Callable[[TableId], str] | None = None
    is_in_memory: Callable[[TableId], bool] = lambda _: False
    was_there: Callable[[TableId, int], bool] = lambda _, __: False
    repairs: Callable[[TableId], bool] = lambda _: True

    def default_of(self, session: SessionState) -> CharsetDefault | None:
        """Return the default of a database that the session creates without naming one; None if the log does not have
        it.

        The set is empty if the session's collation is unknown.
        """
        number = session.server_collation
        return self.collations.get(number, (charset_of_collation(number), "")) if number else None

    def looked_up(self, table: TableId, after: BinlogOffset, reason: str) -> Resolved | str:
        """Return the table from the server if it is still as it was right `after` a statement.

        Otherwise return why the statement cannot be followed: the `reason` for the query and why it failed, or a column
        of the table that cannot be read.
        """
        if self.resolve is None:
            return reason
        resolved = self.resolve(table, after)
        if isinstance(resolved, str):
            return f"{reason}, and {resolved}"
        treated = self.dialect.types.treat_table(resolved.table)
        try:
            treated.schema()
        except SchemaError as cause:
            return str(cause)
        return replace(resolved, table=treated)

    def first_unlogged(self, statement: str, tables: Iterable[TableId]) -> tuple[TableId, str] | None:
        """Return the first created or re-engined table of `tables` whose rows are not logged, and the reason."""
        if self.unlogged is None or not may_end_logging(statement):
            return None
        return next(((table, why) for table in tables if (why := self.unlogged(table))), None)

    def was_there_before(self, item: DdlItem, ddl: CreateTable) -> bool:
        """Return True if CREATE TABLE IF NOT EXISTS may have created no table. MySQL logs it in any case.

        The log then lacks some of the table's rows.
        """
        return ddl.if_not_exists and self.was_there(ddl.table, item.ts_ms)

    def successor(self, before: MySqlTable, after: BinlogOffset, reason: str) -> Shadow | str:
        """Return the table that replaced `before` under its name; the reason if it is unknown."""
        resolved = self.looked_up(before.id, after, reason)
        if isinstance(resolved, str):
            return resolved
        lineage = resolved.lineage(before)
        if isinstance(lineage, str):
            return f"{reason}, and {lineage}"
        return Shadow(before.id, resolved.table, filled=lineage.filled, computed=lineage.computed)
