"""The schemas in force while the log is decoded: each DDL applied at its place, or refused by name.

Called by the decoder at each statement of the log, before any row after it is decoded; the log reader fetches what
came of it. A table whose rows a statement rewrites without logging them cannot be followed: the job stops there with
the statement in the message, and nothing after it is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from raycdc.connectors.mysql.binlog_events import DdlItem
from raycdc.connectors.mysql.ddl import AppliedDdl, DdlDialect, Refused, TableDdl, apply_ddl, parse_ddl, touched_tables
from raycdc.connectors.mysql.ddl_statements import CreateTable, Database, DropDatabase, TemporaryTable
from raycdc.connectors.mysql.documents import document_of
from raycdc.connectors.mysql.types import MySqlTable
from raycdc.errors import DataError, SchemaError
from raycdc.model import TableId
from raycdc.model.selector import TableSelector
from raycdc.schema import (
    AddColumnEvent,
    AlterTableCommentEvent,
    CreateTableEvent,
    SchemaChangeEvent,
    event_to_json,
)
from raycdc.source.api import SchemaUpdate

#: Changes that are carried through to the sink; others stop the job by name. TRUNCATE is none of them: a changelog
#: target has no row for it yet, and would lose it in silence.
FOLLOWED = (CreateTableEvent, AddColumnEvent, AlterTableCommentEvent)

_DML = re.compile(r"\s*(?:/\*.*?\*/\s*)*(INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|WITH)\b", re.IGNORECASE | re.DOTALL)
_STATEMENT_SHOWN = 500


class SchemaSetter(Protocol):
    """The decoder, as far as schemas go."""

    def set_table(self, table: MySqlTable) -> None: ...

    def remove_table(self, table: TableId) -> None: ...


class DdlHistory:
    """See the module's docstring. One thread: the decoder's."""

    def __init__(
        self,
        tables: Mapping[TableId, MySqlTable],
        *,
        selector: TableSelector,
        dialect: DdlDialect,
        default_charset: tuple[str, str],
    ) -> None:
        self._tables = dict(tables)
        self._selector = selector
        self._dialect = dialect
        self._default_charset = default_charset
        self._decoder: SchemaSetter | None = None
        self._updates: list[SchemaUpdate] = []

    def attach(self, decoder: SchemaSetter) -> None:
        """`decoder` is told of every new schema."""
        self._decoder = decoder

    def table(self, table: TableId) -> MySqlTable | None:
        """The schema in force, as far as the log was decoded."""
        return self._tables.get(table)

    def take_updates(self) -> tuple[SchemaUpdate, ...]:
        """What the last statement changed, once; empty for statements that concern no captured table."""
        updates, self._updates = tuple(self._updates), []
        return updates

    def on_ddl(self, item: DdlItem) -> None:
        """Apply a statement. Raises `SchemaError` or `DataError` naming it and its position."""
        if _DML.match(item.statement):
            self._check_dml(item)
            return
        touched = touched_tables(item.statement, item.db, dialect=self._dialect)
        captured = [t for t in touched.tables if self._captures(t)]
        if not captured and not any(t.db in touched.databases for t in self._tables):
            return
        parsed = parse_ddl(item.statement, item.db, dialect=self._dialect)
        if isinstance(parsed, Refused):
            raise self._refusal(item, parsed.reason)
        for ddl in parsed:
            self._apply(item, ddl)

    def _captures(self, table: TableId) -> bool:
        return table in self._tables or self._selector.matches(table)

    def _apply(self, item: DdlItem, ddl: TableDdl) -> None:
        if isinstance(ddl, Database | TemporaryTable):
            return
        if isinstance(ddl, DropDatabase):
            raise self._refusal(item, f"it drops captured tables of {ddl.db}")
        if not self._captures(ddl.table):
            if isinstance(ddl, CreateTable):
                return
            raise self._refusal(item, f"it concerns {ddl.table} and captured tables in one statement")
        try:
            applied = apply_ddl(
                self._tables.get(ddl.table),
                ddl,
                lookup=self._tables.get,
                dialect=self._dialect,
                default_charset=self._default_charset,
            )
        except SchemaError as cause:
            raise self._refusal(item, str(cause)) from cause
        if applied.rewrites is not None:
            raise self._refusal(item, applied.rewrites)
        self._take(item, ddl.table, applied)

    def _take(self, item: DdlItem, table: TableId, applied: AppliedDdl) -> None:
        for event in applied.events:
            if not isinstance(event, FOLLOWED):
                raise self._refusal(item, f"{event.type} is not followed")
        if applied.table is None or applied.table == self._tables.get(table):
            return
        self._tables[table] = applied.table
        assert self._decoder is not None
        self._decoder.set_table(applied.table)
        self._update(table, applied.table, applied.events)

    def _update(self, table: TableId, now: MySqlTable, events: tuple[SchemaChangeEvent, ...]) -> None:
        document = document_of(now)
        changes = tuple(event_to_json(event) for event in events)
        self._updates.append(SchemaUpdate(table, changes, document["fingerprint"], document))

    def _check_dml(self, item: DdlItem) -> None:
        """A change of rows that was logged as a statement names a captured table: its rows are not in the log."""
        for table in self._tables:
            if re.search(rf"(?<![\w$]){re.escape(table.table)}(?![\w$])", item.statement, re.IGNORECASE):
                raise DataError(
                    f"{item.position}: a change that may concern {table} was logged as a statement, not as rows: "
                    f"{_shown(item.statement)}\nSet binlog_format = ROW for every session on the source, then take a "
                    'new snapshot (startup.mode = "initial" with a new pipeline.state).'
                )

    def _refusal(self, item: DdlItem, reason: str) -> SchemaError:
        return SchemaError(
            f"{item.position}: this statement cannot be followed: {reason}.\n  {_shown(item.statement)}\n"
            "Nothing after it was passed on. Leave the table out (source.exclude), or take a new snapshot "
            "(a new pipeline.state)."
        )


def _shown(statement: str) -> str:
    text = " ".join(statement.split())
    return text if len(text) <= _STATEMENT_SHOWN else f"{text[:_STATEMENT_SHOWN]}…"
