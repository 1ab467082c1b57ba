"""Keeps the tables and databases that result from a sequence of statements, from an empty server or from known tables.

Used by ``inspect ddl`` and by the tests that compare the parser with real servers. A statement takes effect as a whole
or not at all: a refused statement changes nothing.

`events_of_statement` returns the schema changes of a statement inside a message (Canal's ``sql``, Maxwell's, Debezium's
``ddl``). Unlike in a log, no table is known: types and names come from the statement. The plug-in names this function
(`raycdc.plugins.Plugin.statements`), and it is passed to sources that read such messages
(`raycdc.source.connector.SourceContext`).
"""

from __future__ import annotations

from collections.abc import Mapping

from raycdc.connectors.mysql.ddl.alter import events_of_unknown, inherit, server_column
from raycdc.connectors.mysql.ddl.apply import (
    RefusedStatement,
    TableDdl,
    affected_tables,
    apply_ddl,
    parse_ddl,
)
from raycdc.connectors.mysql.ddl.defaults import fill_of
from raycdc.connectors.mysql.ddl.parse.statements import (
    AddColumn,
    AlterTable,
    CreateOrAlterDatabase,
    CreateTable,
    DdlDialect,
    DropColumn,
    DropDatabase,
    DropTable,
    RenameTable,
    RowsUnlogged,
    TemporaryTable,
    TruncateTable,
    with_defaults,
)
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError, StatementError
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold
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


_DIALECT = DdlDialect(version=99_999)


def events_of_statement(statement: str, default_db: str) -> tuple[SchemaChangeEvent, ...]:
    """Return the elementary changes of `statement`, run with `default_db`; empty if it changes no table.

    Raises `StatementError` with the reason and the affected tables if it is not understood, or has further effects.
    """
    try:
        return _events(statement, default_db)
    except SchemaError as cause:
        affected = affected_tables(statement, default_db, dialect=_DIALECT)
        tables = tuple((table.db, table.table) for table in affected.tables)
        raise StatementError(str(cause), tables=tables, databases=affected.databases) from cause


def _events(statement: str, default_db: str) -> tuple[SchemaChangeEvent, ...]:
    parsed = parse_ddl(statement, default_db, dialect=_DIALECT)
    if isinstance(parsed, RefusedStatement):
        raise SchemaError(parsed.reason)
    replaced: list[SchemaChangeEvent] = []
    for ddl in parsed:
        match ddl:
            case DropDatabase(db) | CreateOrAlterDatabase(db, or_replace=True):
                raise SchemaError(f"all tables of {db} are dropped at once")
            case CreateTable(table, or_replace=True):
                replaced.append(DropTableEvent(table))
            case AlterTable():
                _check(ddl)
    answer = DdlCatalogue(_DIALECT).run(statement, default_db)
    if isinstance(answer, RefusedStatement):
        raise SchemaError(answer.reason)
    return (*replaced, *answer)


def _check(ddl: AlterTable) -> None:
    dropped = {mysql_fold(action.name) for action in ddl.actions if isinstance(action, DropColumn)}
    for action in ddl.actions:
        if isinstance(action, RowsUnlogged):
            raise SchemaError(action.why)
        if not isinstance(action, AddColumn):
            continue
        column = action.definition
        if column.computed:
            raise SchemaError(f"the rows that exist get {column.computed} in the new column {column.name!r}")
        unsure = fill_of(server_column(inherit(column, MySqlTable(ddl.table, ())), _DIALECT), column, _DIALECT).unsure
        if unsure:
            raise SchemaError(f"the rows that exist get {unsure} in the new column {column.name!r}")
        if mysql_fold(column.name) in dropped:
            raise SchemaError(f"the rows that exist lose their value in {column.name!r}, which is dropped and added")
