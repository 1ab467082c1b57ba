"""The schemas in force while the log is decoded: each DDL applied at its place, or refused by name.

Called by the decoder at each statement of the log, before any row after it is decoded; the log reader fetches what
came of it. A table whose rows a statement rewrites without logging them cannot be followed: the job stops there with
the statement in the message, and nothing after it is passed on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import pyarrow as pa

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.offset import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.ddl.apply import (
    AppliedDdl,
    DdlDialect,
    Refused,
    TableDdl,
    apply_ddl,
    parse_ddl,
    touched_tables,
)
from raycdc.connectors.mysql.ddl.dialect import dialect_of_session
from raycdc.connectors.mysql.ddl.statements import CreateTable, Database, DropDatabase, DropTable, TemporaryTable
from raycdc.connectors.mysql.values.documents import document_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, SchemaError
from raycdc.model import RowKind, TableId, changelog_schema
from raycdc.model.selector import TableSelector
from raycdc.schema import (
    AddColumnEvent,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterTableCommentEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    RenameColumnEvent,
    TruncateTableEvent,
    event_to_json,
)
from raycdc.source.api import SchemaUpdate
from raycdc.source.hand_off import LogRows

#: Changes that are carried through to the sink, which does with them what ``pipeline.schema_change`` says; others (a
#: new primary key, a new name of the table) stop the job by name.
FOLLOWED = (
    CreateTableEvent,
    AddColumnEvent,
    DropColumnEvent,
    RenameColumnEvent,
    AlterColumnTypeEvent,
    AlterColumnPositionEvent,
    AlterTableCommentEvent,
    TruncateTableEvent,
    DropTableEvent,
)

_CREATES = re.compile(r"\s*(?:/\*.*?\*/\s*)*CREATE\b", re.IGNORECASE | re.DOTALL)
_DML = re.compile(r"\s*(?:/\*.*?\*/\s*)*(INSERT|UPDATE|DELETE|REPLACE|LOAD|CALL|WITH)\b", re.IGNORECASE | re.DOTALL)
_STATEMENT_SHOWN = 500


class SchemaSetter(Protocol):
    """The decoder, as far as schemas go."""

    def set_table(self, table: MySqlTable) -> None: ...

    def remove_table(self, table: TableId) -> None: ...

    def take_seq(self) -> int: ...


class Resolver(Protocol):
    """Asks the server how a table looks that a statement does not say; see `ddl_resolver`."""

    def __call__(self, table: TableId, after: BinlogOffset) -> MySqlTable | str:
        """The table right after `after`, or why that cannot be known for sure."""


class DdlHistory:
    """See the module's docstring. One thread: the decoder's.

    `databases` are the defaults of databases; `resolve` may be missing, then what does not say its columns is refused.
    """

    def __init__(
        self,
        tables: Mapping[TableId, MySqlTable],
        *,
        selector: TableSelector,
        dialect: DdlDialect,
        default_charset: tuple[str, str],
        databases: Mapping[str, tuple[str, str]] | None = None,
        resolve: Resolver | None = None,
    ) -> None:
        self._tables = dict(tables)
        self._selector = selector
        self._dialect = dialect
        self._default_charset = default_charset
        self._databases = dict(databases or {})
        self._resolve = resolve
        self._decoder: SchemaSetter | None = None
        self._updates: list[SchemaUpdate] = []
        self._rows: list[LogRows] = []

    def attach(self, decoder: SchemaSetter) -> None:
        """`decoder` is told of every new schema."""
        self._decoder = decoder

    def table(self, table: TableId) -> MySqlTable | None:
        """The schema in force, as far as the log was decoded."""
        return self._tables.get(table)

    def take_updates(self) -> tuple[tuple[SchemaUpdate, ...], tuple[LogRows, ...]]:
        """What the last statement changed, and the rows that say it truncated, once; nothing for other statements."""
        taken = tuple(self._updates), tuple(self._rows)
        self._updates, self._rows = [], []
        return taken

    def on_ddl(self, item: DdlItem) -> None:
        """Apply a statement. Raises `SchemaError` or `DataError` naming it and its position."""
        if _DML.match(item.statement):
            self._check_dml(item)
            return
        dialect = dialect_of_session(self._dialect, item.session)
        touched = touched_tables(item.statement, item.db, dialect=dialect)
        captured = [t for t in touched.tables if self._captures(t)]
        if not captured and not touched.defaults and not any(t.db in touched.databases for t in self._tables):
            return
        parsed = parse_ddl(item.statement, item.db, dialect=dialect)
        if isinstance(parsed, Refused):
            self._refused(item, parsed.reason, captured)
            return
        for ddl in parsed:
            self._apply(item, ddl, dialect)

    def _captures(self, table: TableId) -> bool:
        return table in self._tables or self._selector.matches(table)

    def _apply(self, item: DdlItem, ddl: TableDdl, dialect: DdlDialect) -> None:
        match ddl:
            case TemporaryTable():
                return
            case Database(db, charset, collation):
                if ddl.or_replace:
                    self._drop_database(item, db)
                if not (ddl.if_not_exists and db in self._databases):
                    known = self._databases.get(db, self._default_charset)
                    self._databases[db] = (charset, collation) if charset else known
                return
            case DropDatabase(db):
                self._databases.pop(db, None)
                self._drop_database(item, db)
                return
        if not self._captures(ddl.table):
            if isinstance(ddl, CreateTable | DropTable):
                return
            raise self._refusal(item, f"it concerns {ddl.table} and captured tables in one statement")
        try:
            applied = apply_ddl(
                self._tables.get(ddl.table),
                ddl,
                lookup=self._tables.get,
                dialect=dialect,
                default_charset=self._databases.get(ddl.table.db, self._default_charset),
            )
        except SchemaError as cause:
            self._refused(item, str(cause), [ddl.table] if isinstance(ddl, CreateTable) else [])
            return
        if applied.rewrites is not None:
            raise self._refusal(item, applied.rewrites)
        self._take(item, ddl.table, applied)

    def _drop_database(self, item: DdlItem, db: str) -> None:
        for table in [t for t in self._tables if t.db == db]:
            self._take(item, table, AppliedDdl(None, (DropTableEvent(table),)))

    def _refused(self, item: DdlItem, reason: str, captured: list[TableId]) -> None:
        """A table that is created in a way we cannot read may be looked up; anything else ends here."""
        new = len(captured) == 1 and captured[0] not in self._tables and _CREATES.match(item.statement)
        if self._resolve is None or not new:
            raise self._refusal(item, reason)
        found = self._resolve(captured[0], item.position)
        if isinstance(found, str):
            raise self._refusal(item, f"{reason}, and {found}")
        self._take(item, found.id, AppliedDdl(found, (CreateTableEvent(found.id, found.schema()),)))

    def _take(self, item: DdlItem, table: TableId, applied: AppliedDdl) -> None:
        for event in applied.events:
            if not isinstance(event, FOLLOWED):
                raise self._refusal(item, f"{event.type} is not followed")
        before, now = self._tables.get(table), applied.table
        emptied = any(isinstance(event, TruncateTableEvent | DropTableEvent) for event in applied.events)
        if before is None and now is None:
            return
        if now == before and not applied.events:
            return
        assert self._decoder is not None
        events = tuple(event_to_json(event) for event in applied.events)
        if before is not None and any(isinstance(event, DropTableEvent) for event in applied.events):
            del self._tables[table]
            self._decoder.remove_table(table)
            self._updates.append(SchemaUpdate(table, events if now is None else events[:1], None, None))
            events = events[1:]
        if now is not None:
            if now != before:
                self._tables[table] = now
                self._decoder.set_table(now)
            document = document_of(now)
            self._updates.append(SchemaUpdate(table, events, document["fingerprint"], document))
        if emptied:
            self._truncation(item, now or before, self._decoder.take_seq())

    def _truncation(self, item: DdlItem, table: MySqlTable | None, seq: int) -> None:
        """The changelog row that says that all rows are gone: null in every column."""
        assert table is not None
        schema = changelog_schema(table.schema())
        meta = {
            "_op": int(RowKind.TRUNCATE),
            "_seq": seq,
            "_ts_ms": item.ts_ms,
            "_pos": f"{item.position.file}:{item.position.pos}:0",
        }
        arrays = [pa.array([meta[field.name]] if field.name in meta else [None], field.type) for field in schema]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        self._rows.append(LogRows(table.id, batch, np.array([ordinal_of(item.position)], np.int64)))

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
