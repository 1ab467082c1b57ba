"""The server whose log it is: how it reads statements, and what it can be asked about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.ddl.database_defaults import CharsetDefault
from raycdc.connectors.mysql.ddl.refusal import refusal
from raycdc.connectors.mysql.ddl.resolver import Resolved
from raycdc.connectors.mysql.ddl.shadows import Shadow
from raycdc.connectors.mysql.ddl.statements import DdlDialect
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId

#: Asks the server for the table right after a place in the log; or says why that cannot be known (`resolver`).
Resolver = Callable[[TableId, BinlogOffset], Resolved | str]


@dataclass(frozen=True, slots=True)
class LogServer:
    """Everything that statements of a log mean by their server.

    `databases` are the defaults of databases as they are now. Each of the last three may be missing: without `resolve`
    a statement that does not say its columns is refused, `led_to` tells what a change of rows that was logged as a
    statement makes run (`indirect`), `is_sequence` whether a name is a sequence's. Where it does not log `cascades`, a
    table that gets a foreign key with one is not followed.
    """

    dialect: DdlDialect
    default_charset: CharsetDefault
    databases: Mapping[str, CharsetDefault] | None = None
    cascades: bool = True
    resolve: Resolver | None = None
    led_to: Callable[[str], str | None] | None = None
    is_sequence: Callable[[TableId], bool] | None = None

    def looked_up(self, item: DdlItem, table: TableId, reason: str) -> Resolved:
        """The table as the server describes it, where that is as it was after the statement.

        Raises `RefusedStatementError` where nobody knows, for that and for the `reason` to ask.
        """
        if self.resolve is None:
            raise refusal(item, reason)
        resolved = self.resolve(table, item.position)
        if isinstance(resolved, str):
            raise refusal(item, f"{reason}, and {resolved}")
        return replace(resolved, table=self.dialect.types.treat_table(resolved.table))

    def successor(self, item: DdlItem, before: MySqlTable, reason: str) -> Shadow:
        """The table that took the place of `before`, of which nothing else is known."""
        resolved = self.looked_up(item, before.id, reason)
        origins = resolved.origins(before)
        if isinstance(origins, str):
            raise refusal(item, f"{reason}, and {origins}")
        return Shadow(before.id, resolved.table, filled=origins.filled, computed=origins.computed)
