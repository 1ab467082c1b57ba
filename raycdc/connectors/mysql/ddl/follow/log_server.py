"""The server of the log: how it reads statements, and the queries about them that it can answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import SessionState
from raycdc.connectors.mysql.ddl.follow.database_defaults import CharsetDefault
from raycdc.connectors.mysql.ddl.follow.indirect import SqlText, Ways
from raycdc.connectors.mysql.ddl.follow.resolver import Resolved
from raycdc.connectors.mysql.ddl.parse.statement_text import may_end_logging
from raycdc.connectors.mysql.ddl.parse.statements import CreateTable, DdlDialect
from raycdc.connectors.mysql.ddl.shadows import Shadow
from raycdc.connectors.mysql.values.charsets import charset_of_collation
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import TableId

#: A query for the table right after a position of the log. Returns the reason if the answer cannot be known
#: (`resolver`).
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
