"""Keeps the tables and databases that result from a sequence of statements, from an empty server or from known tables.

Used by ``inspect ddl`` and by the tests that compare the parser with real servers. A statement takes effect as a whole
or not at all: a refused statement changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from raycdc.connectors.mysql.ddl.alter import events_of_unknown
from raycdc.connectors.mysql.ddl.apply import DdlDialect, RefusedStatement, TableDdl, apply_ddl, parse_ddl
from raycdc.connectors.mysql.ddl.parse.statements import (
    AlterTable,
    CreateOrAlterDatabase,
    CreateTable,
    DropDatabase,
    DropTable,
    RenameTable,
    TemporaryTable,
    TruncateTable,
    with_defaults,
)
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.model.evolution import DropTableEvent, RenameTableEvent, SchemaChangeEvent, TruncateTableEvent

#: A character set and a collation. An empty collation is the set's default collation.
CharsetDefault = tuple[str, str]


class DdlCatalogue:
    """The tables and databases after the statements so far; see the module's docstring.

    `server_charset` applies to a database without a default.
    """

    def __init__(
        self,
        dialect: DdlDialect | None = None,
        *,
        tables: Mapping[TableId, MySqlTable] | None = None,
        databases: Mapping[str, CharsetDefault] | None = None,
        server_charset: CharsetDefault = ("utf8mb4", ""),
    ) -> None:
        self.dialect = dialect or DdlDialect()
        self.tables = dict(tables or {})
        self.databases = dict(databases or {})
        self._server_charset = server_charset
        #: A temporary table hides a table of the same name, and has no other effect here.
        self._temporary: set[TableId] = set()

    def run(
        self, statement: str, db: str, *, dialect: DdlDialect | None = None
    ) -> tuple[SchemaChangeEvent, ...] | RefusedStatement:
        """Run `statement` with `db` as the session's database. Returns its events, or why it is refused."""
        parsed = parse_ddl(statement, db, dialect=dialect or self.dialect)
        if isinstance(parsed, RefusedStatement):
            return parsed
        before = dict(self.tables), dict(self.databases), set(self._temporary)
        events: list[SchemaChangeEvent] = []
        try:
            for ddl in parsed:
                events += self._apply(with_defaults(ddl, self._charset_of), dialect or self.dialect)
        except SchemaError as error:
            self.tables, self.databases, self._temporary = before
            return RefusedStatement(statement, str(error))
        return tuple(events)

    def _charset_of(self, db: str) -> CharsetDefault:
        return self.databases.get(db, self._server_charset)

    def _apply(self, ddl: TableDdl, dialect: DdlDialect) -> list[SchemaChangeEvent]:
        match ddl:
            case CreateOrAlterDatabase(db, charset, collation):
                if ddl.created and ddl.if_not_exists and db in self.databases:
                    return []
                dropped = self._drop_database(DropDatabase(db), dialect) if ddl.or_replace else []
                self.databases[db] = (charset, collation) if charset else self.databases.get(db, self._server_charset)
                return dropped
            case DropDatabase():
                return self._drop_database(ddl, dialect)
            case TemporaryTable(table, created):
                (self._temporary.add if created else self._temporary.discard)(table)
                return []
            case DropTable(table) if table in self._temporary:
                self._temporary.discard(table)
                return []
            case _ if ddl.table in self._temporary and not isinstance(ddl, CreateTable):
                return []
            case _:
                return self._apply_to(ddl.table, ddl, dialect)

    def _drop_database(self, ddl: DropDatabase, dialect: DdlDialect) -> list[SchemaChangeEvent]:
        self.databases.pop(ddl.db, None)
        dropped = [table for table in self.tables if table.db == ddl.db]
        return [event for table in dropped for event in self._apply_to(table, ddl, dialect)]

    def _apply_to(self, name: TableId, ddl: TableDdl, dialect: DdlDialect) -> list[SchemaChangeEvent]:
        if name not in self.tables:
            unknown = _events_of_unknown(ddl, dialect)
            if unknown is not None:
                return unknown
        applied = apply_ddl(
            self.tables.get(name),
            ddl,
            find_table=self.tables.get,
            dialect=dialect,
            default_charset=self.databases.get(name.db, self._server_charset),
        )
        self.tables.pop(name, None)
        if applied.table is not None:
            if applied.table.id in self.tables and applied.table.id != name:
                raise SchemaError(f"{name} takes the name of {applied.table.id}, which exists")
            self.tables[applied.table.id] = applied.table
        return list(applied.events)


def _events_of_unknown(ddl: TableDdl, dialect: DdlDialect) -> list[SchemaChangeEvent] | None:
    """Return the events of a statement for a table that no earlier statement created.

    None if the statement does not determine them.
    """
    match ddl:
        case AlterTable():
            return list(events_of_unknown(ddl, dialect))
        case RenameTable(table, new_table):
            return [] if ddl.if_exists else [RenameTableEvent(table, new_table)]
        case TruncateTable(table):
            return [TruncateTableEvent(table)]
        case DropTable(table):
            return [DropTableEvent(table)]
        case _:
            return None
