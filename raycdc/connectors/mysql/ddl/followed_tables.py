"""The captured tables by which the log is decoded, each with the schema in force, and what the log says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.source.new_beginnings import TableChange
from raycdc.source.snapshot.log_rows import LogRows
from raycdc.source.snapshot.log_unit import SchemaUpdate


class SchemaSetter(Protocol):
    """The decoder, as far as schemas go."""

    def set_table(self, table: MySqlTable) -> None: ...

    def remove_table(self, table: TableId) -> None: ...

    def take_seq(self) -> int: ...


class FollowedTables(Mapping[TableId, MySqlTable]):
    """See the module's docstring. The decoder hears of every change; one thread, the decoder's."""

    def __init__(self, tables: Mapping[TableId, MySqlTable]) -> None:
        self._tables = dict(tables)
        self._decoder: SchemaSetter | None = None
        self._updates: list[SchemaUpdate] = []
        self._rows: list[LogRows] = []

    def __getitem__(self, table: TableId) -> MySqlTable:
        return self._tables[table]

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    @property
    def decoder(self) -> SchemaSetter:
        """The decoder of the log."""
        assert self._decoder is not None, "a log is decoded before anything is said of it"
        return self._decoder

    def attach(self, decoder: SchemaSetter) -> None:
        """`decoder` is told of every new schema."""
        self._decoder = decoder

    def put(self, table: MySqlTable) -> None:
        """Rows after this point have this schema."""
        self._tables[table.id] = table
        self.decoder.set_table(table)

    def remove(self, table: TableId) -> None:
        """The table is not followed any more: its rows are not decoded."""
        self._tables.pop(table, None)
        self.decoder.remove_table(table)

    def doubt(self, table: TableId) -> MySqlTable | None:
        """Rows of the table do not fit its schema, which it had so far; the decoder passes over them already."""
        return self._tables.pop(table, None)

    def tell(self, change: TableChange) -> None:
        """The log's version of a table at the last statement."""
        self._updates.append(change.update)
        self._rows += change.rows

    def tell_gone(self, rows: LogRows) -> None:
        """The last statement removed all rows of a table."""
        self._rows.append(rows)

    def untell(self, table: TableId) -> None:
        """The effect of the last statement on the table before it turned out that it cannot be followed."""
        self._updates = [update for update in self._updates if update.table != table]
        self._rows = [rows for rows in self._rows if rows.table != table]

    def take(self) -> tuple[tuple[SchemaUpdate, ...], tuple[LogRows, ...]]:
        """The changes of the last statement, and the rows that say it truncated, once; none for other statements."""
        taken = tuple(self._updates), tuple(self._rows)
        self._updates, self._rows = [], []
        return taken
