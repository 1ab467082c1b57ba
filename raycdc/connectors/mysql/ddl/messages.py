"""The schema changes of a statement inside a message (Canal's ``sql``, Maxwell's, Debezium's ``ddl``).

Unlike in a log, no table is known: types and names are those of the statement. The plug-in names this function
(`raycdc.plugins.Plugin.statements`), and it is passed to sources that read such messages
(`raycdc.source.connector.SourceContext`).
"""

from __future__ import annotations

from raycdc.connectors.mysql.ddl.alter import inherit, server_column
from raycdc.connectors.mysql.ddl.apply import RefusedStatement, affected_tables, parse_ddl
from raycdc.connectors.mysql.ddl.catalogue import DdlCatalogue
from raycdc.connectors.mysql.ddl.defaults import fill_of
from raycdc.connectors.mysql.ddl.parse.statements import (
    AddColumn,
    AlterTable,
    CreateOrAlterDatabase,
    CreateTable,
    DdlDialect,
    DropColumn,
    DropDatabase,
    RowsUnlogged,
)
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError, StatementError
from raycdc.model.column_names import mysql_fold
from raycdc.model.evolution import DropTableEvent, SchemaChangeEvent

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
