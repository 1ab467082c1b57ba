"""Tables whose names come and go: dropped, made again as they were or otherwise, replaced, renamed away and back.

| statement | in the log | the rows |
|---|---|---|
| `drop` | drop_table | are gone |
| `make_again` | create_table | none; the columns and the key are those that were dropped, or others |
| `replace` | replace_table: a drop and a creation in one statement | the same |
| `rename_away` | rename_away: nobody captures the new name | are there, and change without the log's knowledge |
| `rename_back` | rename_back | come back, as they are by now |
| `renew` | renew: something in the table makes its connector read it anew at once | stay |

All wait for what is invisible, as a metadata lock makes them do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.model.evolution.events import CreateTableEvent, DropTableEvent, event_to_json
from tests.support.simulation.database import FILLED_COLUMNS_MAX, SimDatabase, SimTable, TableKind

#: Kinds of which a table made again may be another; one that is read as of one place stays such a table.
OTHERS = (TableKind.PLAIN, TableKind.MOVING, TableKind.COMPOSITE, TableKind.KEYLESS)


class TableNames:
    """Changes the names of tables; see the module's docstring. For an unused name, its last table is known."""

    def __init__(self, database: SimDatabase, chance: random.Random) -> None:
        self._database, self._random = database, chance
        #: The names of dropped tables, and those of renamed tables.
        self.dropped: dict[TableId, SimTable] = {}
        self.away: dict[TableId, SimTable] = {}

    def step(self, aimed: Sequence[TableId], *, now_s: float) -> str:
        """One statement, about one of the `aimed` tables where that can be, or two of which nobody sees the first
        alone. What happened.
        """
        database = self._database
        free = [*self.dropped, *(name for name in self.away if name not in self.dropped)]
        if free and (not database.tables or self._random.random() < 0.5):
            return self._come(self._random.choice(free), now_s)
        present = [table for table in database.tables if table not in database.locked]
        likely = [table for table in aimed if table in present]
        if likely and self._random.random() < 0.6:
            present = likely
        if not present:
            return "nothing, as all tables are locked"
        table = database.tables[self._random.choice(present)]
        dice = self._random.random()
        if dice < 0.5:
            self.drop(table, now_s=now_s)
            again = f", {self._come(table.id, now_s)}" if self._random.random() < 0.4 else ""
            return f"drop {table.id}{again}"
        if dice < 0.65:
            return self.replace(table, now_s=now_s)
        if dice < 0.85:
            self.rename_away(table, now_s=now_s)
            again = f", {self._come(table.id, now_s)}" if self._random.random() < 0.3 else ""
            return f"rename {table.id} away{again}"
        self.renew(table, now_s=now_s)
        return f"renew {table.id}"

    def _come(self, name: TableId, now_s: float) -> str:
        if name in self.away and (name not in self.dropped or self._random.random() < 0.5):
            self.rename_back(name, now_s=now_s)
            return f"rename {name} back"
        return self.make_again(name, now_s=now_s)

    def drop(self, table: SimTable, *, now_s: float) -> None:
        """DROP TABLE."""
        self._take_name(table)
        self.dropped[table.id] = table
        removed, table.rows, table.seen = table.rows, {}, {}
        self._database.state(table, event_to_json(DropTableEvent(table.id)), now_s=now_s, removed=removed)

    def make_again(self, name: TableId, *, now_s: float) -> str:
        """CREATE TABLE of a name that another table had."""
        made = self._made(self.dropped.pop(name) if name in self.dropped else self._database.shapes[name])
        event = event_to_json(CreateTableEvent(name, made.schema))
        self._database.state(made, event, now_s=now_s)
        return f"make {name} again, {made.kind.value} with {len(made.schema.columns)} columns"

    def replace(self, table: SimTable, *, now_s: float) -> str:
        """CREATE OR REPLACE TABLE."""
        self._take_name(table)
        made = self._made(table)
        event: dict[str, Any] = {"type": "replace_table"}
        self._database.state(made, event, now_s=now_s, removed=table.rows)
        return f"replace {table.id} by {made.kind.value} with {len(made.schema.columns)} columns"

    def rename_away(self, table: SimTable, *, now_s: float) -> None:
        """RENAME TABLE to a name that is not captured."""
        self._take_name(table)
        self.away[table.id] = table
        self._database.state(table, {"type": "rename_away"}, now_s=now_s, removed=dict(table.rows))

    def rename_back(self, name: TableId, *, now_s: float) -> None:
        """The table has its name again; its rows were changed meanwhile."""
        table = self._database.tables[name] = self._database.shapes[name] = self.away.pop(name)
        self.dropped.pop(name, None)
        for key, row in list(table.rows.items()):
            table.rows[key] = table.seen[key] = {**row, "val": self._database.unique()}
        self._database.state(table, {"type": "rename_back"}, now_s=now_s)

    def renew(self, table: SimTable, *, now_s: float) -> None:
        """A row comes that has something new, for which its connector has the table begin again, with a column more."""
        self._database.settle(now_s=float("inf"))
        if len(table.schema.columns) < FILLED_COLUMNS_MAX:
            column = Column(f"extra{len(table.schema.columns)}", LogicalType(TypeKind.INT64))
            self._database.add_to(table, column, None)
        self._database.state(table, {"type": "renew"}, now_s=now_s)

    def _take_name(self, table: SimTable) -> None:
        self._database.settle(now_s=float("inf"))
        del self._database.tables[table.id]
        if self._database.troubled is table:
            self._database.troubled = None

    def _made(self, before: SimTable) -> SimTable:
        """A table under the name of `before`, with its columns and key, or with others."""
        others = [kind for kind in OTHERS if kind is not before.kind and before.kind is not TableKind.AS_OF]
        alike = self._random.random() < 0.5
        made = self._database.create(before.id, before.kind if alike or not others else self._random.choice(others))
        if alike:
            made.schema = before.schema
        elif self._random.random() < 0.5:
            column = Column("extra3", LogicalType(TypeKind.INT64), default=self._random.choice([None, "5"]))
            self._database.add_to(made, column, None)
        return made
