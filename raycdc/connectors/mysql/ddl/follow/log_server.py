"""The server whose log it is: how it reads statements, and what it can be asked about them."""

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

#: Asks the server for the table right after a place in the log; or says why that cannot be known (`resolver`).
Resolver = Callable[[TableId, BinlogOffset], Resolved | str]


@dataclass(frozen=True, slots=True)
class LogServer:
    """Everything that statements of a log mean by their server.

    `databases` are the defaults of databases as they are now, `collations` the server's by their numbers, with their
    sets. Each of the last seven may be missing: without `resolve` a statement that does not say its columns is refused,
    `led_to` tells what a change of rows that was logged as a statement makes run (`indirect`), `is_sequence` whether a
    name is a sequence's, `unlogged` why rows of a table are not in the log, `is_in_memory` whether they are gone when
    the server starts, `was_there` whether a table may have been there before a time of the log, and `repairs` whether
    REPAIR TABLE does anything to a table. Where it does not log `cascades`, a table that gets a foreign key with one is
    not followed.
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
        """What a database gets that the session creates without a word of it; None where the log does not say.

        The set is empty where the number of the session's collation is not known.
        """
        number = session.server_collation
        return self.collations.get(number, (charset_of_collation(number), "")) if number else None

    def looked_up(self, table: TableId, after: BinlogOffset, reason: str) -> Resolved | str:
        """The table as the server describes it, where that is as it was right `after` a statement.

        Else why the statement cannot be followed: the `reason` to ask, and why nobody knows; or a column of the table
        that cannot be read.
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
        """The first of the `tables` that the statement makes, or gives another engine, and of which rows are not in the
        log, and why they are not.
        """
        if self.unlogged is None or not may_end_logging(statement):
            return None
        return next(((table, why) for table in tables if (why := self.unlogged(table))), None)

    def was_there_before(self, item: DdlItem, ddl: CreateTable) -> bool:
        """Whether CREATE TABLE IF NOT EXISTS, which MySQL logs in any case, may have made no table: the log then has
        not all of its rows.
        """
        return ddl.if_not_exists and self.was_there(ddl.table, item.ts_ms)

    def successor(self, before: MySqlTable, after: BinlogOffset, reason: str) -> Shadow | str:
        """The table that took the place of `before`, of which nothing else is known; or why nobody can tell."""
        resolved = self.looked_up(before.id, after, reason)
        if isinstance(resolved, str):
            return resolved
        lineage = resolved.lineage(before)
        if isinstance(lineage, str):
            return f"{reason}, and {lineage}"
        return Shadow(before.id, resolved.table, filled=lineage.filled, computed=lineage.computed)
