"""``raycdc inspect ddl``: what the DDL parser makes of a file of statements, for people and for tests from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raycdc.connectors.mysql.ddl import DdlDialect, Refused, TableDdl, apply_ddl, parse_ddl
from raycdc.connectors.mysql.ddl_alter import events_of_unknown
from raycdc.connectors.mysql.ddl_statements import AlterTable, DropDatabase, DropTable, RenameTable, TruncateTable
from raycdc.connectors.mysql.ddl_tokens import split_statements
from raycdc.connectors.mysql.types import MySqlTable
from raycdc.errors import ConfigError, DataError, ExitCode, SchemaError
from raycdc.model import TableId
from raycdc.schema import (
    DropTableEvent,
    RenameTableEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
    event_to_json,
)


def print_ddl(path: Path, *, tables: bool) -> int:
    """Print the events of every statement, or with `tables` the tables that result, as JSON lines.

    A refused statement is a line of its own and the rest goes on; with `tables` it comes before the tables.
    """
    try:
        script = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as cause:
        raise DataError(f"{path}: not UTF-8 text at byte {cause.start}: {cause.reason}") from cause
    except OSError as cause:
        raise ConfigError(f"{path} cannot be read: {cause.strerror}") from cause
    catalogue = _Catalogue()
    for statement, _ in split_statements(script):
        for line in catalogue.run(statement):
            if not tables or line["type"] == "refused":
                _print(line)
    if tables:
        for table in catalogue.tables.values():
            _print(_described(table))
    return int(ExitCode.DONE)


class _Catalogue:
    """The tables as the statements so far leave them. There is no default database: its name is empty."""

    def __init__(self) -> None:
        self.tables: dict[TableId, MySqlTable] = {}

    def run(self, statement: str) -> list[dict[str, Any]]:
        """The events of `statement` as JSON, or one line that says why it is refused."""
        parsed = parse_ddl(statement, "")
        if isinstance(parsed, Refused):
            return [_refused(statement, parsed.reason)]
        before = dict(self.tables)
        lines: list[dict[str, Any]] = []
        try:
            for ddl in parsed:
                lines += [event_to_json(event) for event in self._apply(ddl)]
        except SchemaError as error:
            self.tables = before
            return [_refused(statement, str(error))]
        return lines

    def _apply(self, ddl: TableDdl) -> list[SchemaChangeEvent]:
        if isinstance(ddl, DropDatabase):
            dropped = [table for table in self.tables if table.db == ddl.db]
            return [event for table in dropped for event in self._apply_to(table, ddl)]
        return self._apply_to(ddl.table, ddl)

    def _apply_to(self, name: TableId, ddl: TableDdl) -> list[SchemaChangeEvent]:
        if name not in self.tables:
            unknown = _events_of_unknown(ddl)
            if unknown is not None:
                return unknown
        applied = apply_ddl(self.tables.get(name), ddl, lookup=self.tables.get)
        self.tables.pop(name, None)
        if applied.table is not None:
            if applied.table.id in self.tables:
                raise SchemaError(f"{name} takes the name of {applied.table.id}, which exists")
            self.tables[applied.table.id] = applied.table
        return list(applied.events)


def _events_of_unknown(ddl: TableDdl) -> list[SchemaChangeEvent] | None:
    """What a statement about a table that no statement before it created says by itself; None where that is all."""
    match ddl:
        case AlterTable():
            return list(events_of_unknown(ddl, DdlDialect()))
        case RenameTable(table, new_table):
            return [RenameTableEvent(table, new_table)]
        case TruncateTable(table):
            return [TruncateTableEvent(table)]
        case DropTable(table):
            return [DropTableEvent(table)]
        case _:
            return None


def _refused(statement: str, reason: str) -> dict[str, Any]:
    return {"type": "refused", "statement": statement, "reason": reason}


def _described(table: MySqlTable) -> dict[str, Any]:
    columns = [{"name": c.name, "type": c.column_type, "nullable": c.nullable} for c in table.columns]
    return {
        "db": table.id.db,
        "table": table.id.table,
        "columns": columns,
        "primary_key": list(table.primary_key),
    }


def _print(line: dict[str, Any]) -> None:
    print(json.dumps(line, ensure_ascii=False))
