"""The source: tables with one log, of which every place can be looked at again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind

Row = dict[str, int | None]

#: The number of keys of a table: few, so that each changes often.
KEYS = 6
#: The maximum number of columns that a table gets.
COLUMNS_MAX = 5


@dataclass(frozen=True, slots=True)
class SimLogChange:
    """One row's change, or a new column."""

    ordinal: int
    table: TableId
    before: Row | None = None
    after: Row | None = None
    column: str = ""


class SourceLog:
    """The source; see the module's docstring."""

    def __init__(self, chance: random.Random, tables: int) -> None:
        self.tables = [TableId("shop", f"t{number}") for number in range(tables)]
        self.changes: list[SimLogChange] = []
        self._chance = chance

    @property
    def end(self) -> int:
        return len(self.changes)

    def change(self) -> None:
        """Insert, update or delete a row of some table."""
        table = self._chance.choice(self.tables)
        rows, key = self.rows(table, self.end), self._chance.randrange(KEYS)
        before = rows.get(key)
        after: Row | None = dict.fromkeys(self.columns(table, self.end)) | {"id": key, "val": self.end + 1}
        if before is not None and self._chance.random() < 0.3:
            after = None
        self.changes.append(SimLogChange(self.end + 1, table, before, after))

    def add_column(self) -> None:
        """Add a column to a table, which is NULL in all existing rows."""
        table = self._chance.choice(self.tables)
        count = len(self.columns(table, self.end))
        if count < COLUMNS_MAX:
            self.changes.append(SimLogChange(self.end + 1, table, column=f"more{count}"))

    def between(self, begin: int, end: int) -> list[SimLogChange]:
        """Return the changes of the log after `begin`, up to `end`."""
        return self.changes[begin:end]

    def columns(self, table: TableId, ordinal: int) -> list[str]:
        added = [c.column for c in self.changes[:ordinal] if c.table == table and c.column]
        return ["id", "val", *added]

    def schema(self, table: TableId, ordinal: int) -> TableSchema:
        columns = (Column(n, LogicalType(TypeKind.INT64), nullable=n != "id") for n in self.columns(table, ordinal))
        return TableSchema(tuple(columns), ("id",))

    def rows(self, table: TableId, ordinal: int) -> dict[int, Row]:
        """Return the rows of the table at a position of the log, by key."""
        rows: dict[int, Row] = {}
        for change in self.changes[:ordinal]:
            if change.table != table:
                continue
            if change.column:
                rows = {key: {**row, change.column: None} for key, row in rows.items()}
            elif change.after is not None:
                rows[int(change.after["id"] or 0)] = change.after
            elif change.before is not None:
                del rows[int(change.before["id"] or 0)]
        return rows
