"""The tables of a log reader's open epoch. Owned by `raycdc.source.snapshot.log_reader`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raycdc.checkpoint.manifest import TableEpoch
from raycdc.model import TableId
from raycdc.schema.events import CreateTableEvent, SchemaChangeEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.table_life import Parked, TableLives, Unknown, is_announced, reading


class EpochTables:
    """The tables that the open epoch names, with the schema changes that it begins with.

    `documents` are all schemas by fingerprint; those known at the start count as reported.
    """

    def __init__(self, lives: TableLives, documents: Mapping[str, SchemaDocument]) -> None:
        self._lives = lives
        self.documents = dict(documents)
        #: Tables that the open epoch names, and the schema of their rows in it.
        self._touched: dict[TableId, str] = {}
        self._unreported: dict[str, SchemaDocument] = {}
        self._changes: dict[TableId, list[SchemaChangeEvent]] = {}

    def __contains__(self, table: object) -> bool:
        """Whether the open epoch names the table."""
        return table in self._touched

    def document(self, table: TableId) -> SchemaDocument:
        """The schema in force."""
        return self.documents[self._schema_of(table)]

    def know(self, fingerprint: str, document: SchemaDocument) -> None:
        """A schema is in force from here on: the next report has it, unless one before had."""
        if fingerprint not in self.documents:
            self._unreported[fingerprint] = document
        self.documents[fingerprint] = document

    def touch(self, table: TableId) -> None:
        """The open epoch has something of the table; a table's first epoch carries its CreateTableEvent."""
        if not is_announced(self._lives[table]) and table not in self._changes:
            self._changes[table] = [CreateTableEvent(table, self.document(table).schema, comment=None)]
        self._touched[table] = self._schema_of(table)

    def note_changes(self, table: TableId, changes: Iterable[SchemaChangeEvent]) -> None:
        """Schema changes that the open epoch begins with."""
        self._changes.setdefault(table, []).extend(changes)

    def has_news(self) -> bool:
        """Whether a table is still to be announced."""
        return bool(self._lives.news.unannounced)

    def report(self) -> tuple[dict[str, TableEpoch], dict[str, SchemaDocument]]:
        """The tables of the open epoch for `EpochSealed`, and the schemas that the epoch is the first to name.

        Every table is told of, with rows or without: an empty table has an empty target.
        """
        for table in self._lives.news.unannounced:
            if table not in self._touched:
                self.touch(table)
        tables = {
            str(table): TableEpoch(schema, reading(self._lives[table]) is not None, tuple(self._changes.get(table, ())))
            for table, schema in self._touched.items()
        }
        schemas, self._unreported = self._unreported, {}
        for table in self._touched:
            if not isinstance(self._lives[table], Parked):
                self._lives.announced(table)
        return tables, schemas

    def begin_epoch(self) -> None:
        """A cut was made: what it said is said."""
        self._changes.clear()
        self._touched.clear()

    def _schema_of(self, table: TableId) -> str:
        state = self._lives[table]
        assert not isinstance(state, Unknown), f"{table} is not known"
        assert state.schema is not None, f"{table} was never followed"
        return state.schema
