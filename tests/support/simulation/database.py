"""A scripted database: tables, a totally ordered log of transactions, and SELECTs that lag behind the log.

The log shows a transaction to its readers before SELECTs see it, as real servers do. Two transactions that touch one
row never overlap (row locks are held until a transaction is visible), so touching a row makes its earlier changes
visible first. Everything is driven by calls and a seeded `random.Random`; nothing here knows a clock or a thread.

Where the log of the simulated database stands: an ordinal, as the server that wrote it counts.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from raycdc.model import Column, LogicalType, RowKind, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.model.evolution.events import AddColumnEvent, CreateTableEvent, TruncateTableEvent, event_to_json
from raycdc.state.opaque import Position

Row = dict[str, int | str | None]
RowKey = tuple[Any, ...]

#: The values of keys and groups; few, so that transactions meet.
KEYS = 24
#: Statements after which a table's earlier rows are unknown.
UNTOLD = ("rewrite", "drop_table", "create_table", "replace_table", "rename_away", "rename_back")
#: The maximum number of columns that a table gets by statements with rows.
FILLED_COLUMNS_MAX = 16
#: The maximum delay, in virtual seconds, until a transaction is visible after it was logged.
VISIBLE_WITHIN_S = 6.0


class Visibility(Enum):
    """The knowledge that a SELECT has of the log: which transactions it sees, and at which position."""

    #: MariaDB: transactions become visible in log order, and a SELECT sees those up to one place. It knows that nothing
    #: behind the log's end of that moment is among them.
    SNAPSHOT = "snapshot"
    #: MySQL with GTIDs: in any order, but one can wait until everything up to a position is visible.
    WAIT = "wait"
    #: MySQL without: in any order and nothing to wait for; only the lag is bounded.
    RING = "ring"


class TableKind(Enum):
    """The kinds of tables that differ in their hand-off."""

    #: Chunked by its primary key.
    PLAIN = "plain"
    #: Chunked by a nullable column outside its primary key, so that rows move between chunks under one key.
    MOVING = "moving"
    #: Chunked by the first of two primary-key columns, in descending order (the server's order is not Python's).
    COMPOSITE = "composite"
    #: No key at all: one chunk.
    KEYLESS = "keyless"
    #: As the moving one, and all its chunks are read as of one place of the log; its changes are of its primary key.
    AS_OF = "as-of"


#: The primary key and the chunk key of each kind.
KEYS_OF: dict[TableKind, tuple[tuple[str, ...], str | None]] = {
    TableKind.PLAIN: (("id",), "id"),
    TableKind.MOVING: (("id",), "grp"),
    TableKind.COMPOSITE: (("grp", "id"), "grp"),
    TableKind.KEYLESS: ((), None),
    TableKind.AS_OF: (("id",), "grp"),
}


@dataclass(frozen=True, slots=True)
class SimRowChange:
    """One row change; its images are complete. `ordinal` is its place in the log's total order."""

    table: TableId
    schema: TableSchema
    before: Row | None
    after: Row | None
    before_key: RowKey | None
    after_key: RowKey | None
    ordinal: int

    def images(self) -> Iterator[tuple[RowKind, Row]]:
        """Return the changelog rows of the change."""
        if self.before is not None:
            yield (RowKind.DELETE if self.after is None else RowKind.UPDATE_BEFORE), self.before
        if self.after is not None:
            yield (RowKind.INSERT if self.before is None else RowKind.UPDATE_AFTER), self.after


@dataclass(slots=True)
class Transaction:
    """A transaction, or one schema change (`ddl`), or one `with_rows` of its transaction, if there are any.

    `ordinal` is where the log stands after it; `removed` are the rows that the statement took away.
    """

    ordinal: int
    changes: list[SimRowChange]
    ddl: tuple[TableId, TableSchema, dict[str, Any]] | None
    event_ms: int
    visible_by_s: float
    visible: bool = False
    with_rows: bool = False
    removed: dict[RowKey, Row] = field(default_factory=dict)


@dataclass(slots=True)
class SimTable:
    """A table as the server has it (`rows`) and as a SELECT sees it (`seen`)."""

    id: TableId
    kind: TableKind
    schema: TableSchema
    key: str | None
    rows: dict[RowKey, Row] = field(default_factory=dict)
    seen: dict[RowKey, Row] = field(default_factory=dict)
    #: Tables that had this name before: a schema change tool replaces a table by another one with the same rows.
    predecessors: int = 0
    #: Rows that this one was filled with last: a snapshot of before does not show them.
    filled_last: frozenset[RowKey] = frozenset()
    #: The number of tables that were created before this one.
    number: int = 0

    @property
    def descending(self) -> bool:
        return self.kind is TableKind.COMPOSITE

    @property
    def key_movable(self) -> bool:
        return self.key is not None and self.key not in self.schema.primary_key

    def as_planned(self, schema: TableSchema, key: Any) -> SimTable:
        """The table as a plan of its chunks knows it, which another one of its name may have taken the place of."""
        if self.kind is TableKind.AS_OF:
            kind = TableKind.AS_OF
        elif not schema.primary_key:
            kind = TableKind.KEYLESS
        elif len(schema.primary_key) > 1:
            kind = TableKind.COMPOSITE
        else:
            kind = TableKind.MOVING if key == KEYS_OF[TableKind.MOVING][1] else TableKind.PLAIN
        return SimTable(self.id, kind, schema, KEYS_OF[kind][1])


class SimDatabase:
    """The database; see the module's docstring."""

    def __init__(self, chance: random.Random, *, visibility: Visibility, kinds: list[TableKind]) -> None:
        self.visibility = visibility
        self.tables: dict[TableId, SimTable] = {}
        #: The last table of each name.
        self.shapes: dict[TableId, SimTable] = {}
        #: True if targets keep the rows of dropped tables (`pipeline.left_out`).
        self.keeps_dropped = False
        #: The kinds of the tables of each name, in their order.
        self.kinds: dict[TableId, list[TableKind]] = {}
        self._made = 0
        self.log: list[Transaction] = []
        #: The probability that a poll of the log finds nothing yet.
        self.log_silence = 0.2
        #: How often a catch-up stream is lost or cannot be opened, and how often the log before it is purged.
        self.breaks = self.purges = 0.0
        #: How often a unit of the log ends within a transaction that follows complete ones.
        self.stretches = 0.0
        #: How often the log has nothing while a catch-up stream is open.
        self.overtaken = 0.0
        #: The number of readers that may read chunks; 0: all.
        self.chunk_readers_max = 0
        self._random = chance
        self._unique = 0
        self._invisible: list[Transaction] = []
        #: The table that the last statement was about that could not be followed.
        self.troubled: SimTable | None = None
        #: Tables that got a column without the log's knowledge: only of these a row may not fit.
        self.unlogged: set[TableId] = set()
        #: Tables that can be neither planned nor read now; those that are read as of one place can be read.
        self.locked: set[TableId] = set()
        self.locks_asked_max = 2
        #: Which server answers, and where the log of each begins: they count its ordinals from there.
        self.server = 0
        self.fails_over = False
        self._begins: list[int] = [0]
        for number, kind in enumerate(kinds):
            self.create(TableId("shop", f"{kind.value}{number}"), kind)

    @property
    def end(self) -> int:
        """Return the end of the log."""
        return self.log[-1].ordinal if self.log else 0

    def fail_over(self, begin: int) -> None:
        """Another server answers from now on; every other one's log begins at `begin`, or has numbers of its own."""
        self.server += 1
        self._begins.append(begin if self.server % 2 else -100_000 * self.server)

    def counted(self, ordinal: int, server: int) -> int:
        """Return the ordinal as `server` counts it.

        Ordinals ascend, and those of different servers are not comparable.
        """
        return ordinal - self._begins[server]

    @property
    def all_visible_up_to(self) -> int:
        """Return the greatest position before which every transaction is visible."""
        return self._before(self._invisible[0]) if self._invisible else self.end

    def changed_since(self, ordinal: int, table: TableId) -> bool:
        """Whether the log has a statement about `table` behind `ordinal` that a SELECT fails by.

        One that puts another table in its place is none: servers do not notice.
        """
        behind = itertools.takewhile(lambda transaction: transaction.ordinal > ordinal, reversed(self.log))
        statements = (transaction.ddl for transaction in behind if transaction.ddl is not None)
        return any(changed == table and event["type"] != "swap" for changed, _, event in statements)

    def rows_at(self, table: SimTable, ordinal: int) -> list[Row] | None:
        """Return the table's rows at that position, visible or not; None if they are not known any more."""
        rows = dict(table.rows)
        for transaction in reversed(self.log):
            if transaction.ordinal <= ordinal:
                break
            statement = "" if transaction.ddl is None or transaction.ddl[0] != table.id else transaction.ddl[2]["type"]
            if statement in UNTOLD:
                return None
            if statement == TruncateTableEvent.type:
                rows = dict(transaction.removed)
            for change in reversed([change for change in transaction.changes if change.table == table.id]):
                if change.after_key is not None:
                    del rows[change.after_key]
                if change.before_key is not None and change.before is not None:
                    rows[change.before_key] = change.before
        return list(rows.values())

    # -- workload ---------------------------------------------------------------------------------------------------

    def transaction(self, *, now_s: float, size: int) -> None:
        """Make a transaction of up to `size` random changes on any tables."""
        changes: list[SimRowChange] = []
        ordinal = self.end
        for _ in range(size):
            ordinal += 1
            change = self._random_change(ordinal)
            self._settle_rows(change)
            _apply(self.tables[change.table].rows, change)
            changes.append(change)
        self._append(Transaction(ordinal + 1, changes, None, int(now_s * 1000), self._deadline(now_s)))

    def add_column(self, *, now_s: float) -> None:
        """ALTER TABLE … ADD COLUMN on a random table; waits for what is invisible, as the metadata lock does.

        Often the one whose last statement could not be followed, as it may begin again just then.
        """
        table = self.troubled if self.troubled is not None and self._random.random() < 0.7 else None
        table = table or self._random.choice(list(self.tables.values()))
        if len(table.schema.columns) >= 6:
            return
        self.settle(now_s=float("inf"))
        default = self._random.choice([None, 7])
        name = f"extra{len(table.schema.columns)}"
        column = Column(name, LogicalType(TypeKind.INT64), default=None if default is None else str(default))
        self.add_to(table, column, default)
        event = event_to_json(AddColumnEvent(table.id, column))
        self._append(Transaction(self.end + 1, [], (table.id, table.schema, event), int(now_s * 1000), now_s))
        self.settle(now_s=float("inf"))

    def truncate(self, *, now_s: float) -> None:
        """TRUNCATE TABLE of a random table; waits for what is invisible, as the metadata lock does."""
        table = self._random.choice(list(self.tables.values()))
        self.settle(now_s=float("inf"))
        removed = dict(table.rows)
        table.rows.clear()
        table.seen.clear()
        self.state(table, event_to_json(TruncateTableEvent(table.id)), now_s=now_s, removed=removed)

    def swap(self, among: list[TableId], *, now_s: float) -> None:
        """RENAME of a schema change tool: a table that was filled with the same rows takes the place of one."""
        table = self.tables[self._random.choice(among)]
        self.settle(now_s=float("inf"))
        table.predecessors += 1
        table.filled_last = frozenset(key for key in table.rows if self._random.random() < 0.5)
        self._append(
            Transaction(self.end + 1, [], (table.id, table.schema, {"type": "swap"}), int(now_s * 1000), now_s)
        )
        self.settle(now_s=float("inf"))

    def rewrite(self, *, now_s: float) -> None:
        """Make a statement that changes every row of a random table, of which the log has only the text."""
        table = self._random.choice(list(self.tables.values()))
        self.settle(now_s=float("inf"))
        for key, row in table.rows.items():
            table.rows[key] = table.seen[key] = {**row, "val": self.unique()}
        self._cannot_be_followed(table, "rewrite", now_s=now_s)

    def add_unlogged_column(self, *, now_s: float) -> None:
        """Add a column without a statement in the log, and change a row that has it."""
        table = self._random.choice(list(self.tables.values()))
        if len(table.schema.columns) >= 6:
            return
        self.settle(now_s=float("inf"))
        self.unlogged.add(table.id)
        column = Column(f"extra{len(table.schema.columns)}", LogicalType(TypeKind.INT64))
        self.add_to(table, column, None)
        ordinal = self.end + 1
        change = self._keyed(table, ordinal) if table.schema.primary_key else self._keyless(table, ordinal)
        _apply(table.rows, change)
        self._append(Transaction(ordinal + 1, [change], None, int(now_s * 1000), now_s))
        self.settle(now_s=float("inf"))

    def add_to(self, table: SimTable, column: Column, default: int | None) -> None:
        """Every row has the column, too; the caller says so in the log."""
        table.schema = TableSchema((*table.schema.columns, column), table.schema.primary_key)
        for rows in (table.rows, table.seen):
            for key, row in rows.items():
                rows[key] = {**row, column.name: default}

    def puzzle(self, *, now_s: float, table: SimTable | None = None) -> None:
        """Make a statement that cannot be followed, on the table or a random one."""
        table = table or self._random.choice(list(self.tables.values()))
        self.settle(now_s=float("inf"))
        self._cannot_be_followed(table, "puzzle", now_s=now_s)

    def state(
        self, table: SimTable, event: dict[str, Any], *, now_s: float, removed: dict[RowKey, Row] | None = None
    ) -> None:
        """Write a statement about the table to the log, visible immediately."""
        statement = table.id, table.schema, event
        self._append(Transaction(self.end + 1, [], statement, int(now_s * 1000), now_s, removed=removed or {}))
        self.settle(now_s=float("inf"))

    def _cannot_be_followed(self, table: SimTable, kind: str, *, now_s: float) -> None:
        self.troubled = table
        self.state(table, {"type": kind}, now_s=now_s)

    def create_table(self, *, now_s: float) -> None:
        """CREATE TABLE of one more table, followed from here on without a snapshot."""
        table = self.create(TableId("shop", f"late{len(self.shapes)}"), TableKind.PLAIN)
        event = event_to_json(CreateTableEvent(table.id, table.schema))
        self._append(Transaction(self.end + 1, [], (table.id, table.schema, event), int(now_s * 1000), now_s))

    def fill(self, *, now_s: float) -> None:
        """A statement and rows in one transaction: CREATE TABLE … SELECT, or a new column and rows that have it."""
        creates = len(self.tables) < 4 and self._random.random() < 0.3
        table = self.create(TableId("shop", f"late{len(self.shapes)}"), TableKind.PLAIN) if creates else None
        if table is None:
            others = [one for one in self.tables.values() if len(one.schema.columns) < FILLED_COLUMNS_MAX]
            if not others:
                return
            table = self._random.choice(others)
        self.settle(now_s=float("inf"))
        if creates:
            event = event_to_json(CreateTableEvent(table.id, table.schema))
        else:
            column = Column(f"extra{len(table.schema.columns)}", LogicalType(TypeKind.INT64))
            self.add_to(table, column, None)
            event = event_to_json(AddColumnEvent(table.id, column))
        ordinal, changes = self.end + 1, []
        for _ in range(self._random.choice([0, 1, 2, 4])):
            ordinal += 1
            change = self._keyed(table, ordinal) if table.schema.primary_key else self._keyless(table, ordinal)
            _apply(table.rows, change)
            changes.append(change)
        statement = table.id, table.schema, event
        self._append(Transaction(ordinal + 1, changes, statement, int(now_s * 1000), now_s, with_rows=True))
        self.settle(now_s=float("inf"))

    # -- visibility -------------------------------------------------------------------------------------------------

    def reveal(self) -> None:
        """Let one more transaction become visible."""
        if self._invisible:
            last = 0 if self.visibility is Visibility.SNAPSHOT else len(self._invisible) - 1
            self._show(self._invisible[self._random.randint(0, last)])

    def settle(self, *, now_s: float) -> None:
        """Let all transactions become visible that are due."""
        for transaction in [t for t in self._invisible if t.visible_by_s <= now_s]:
            self._show(transaction)

    def _show(self, transaction: Transaction) -> None:
        before = [transaction]
        if self.visibility is Visibility.SNAPSHOT:
            before = self._invisible[: self._invisible.index(transaction) + 1] if not transaction.visible else []
        for each in before:
            self._invisible.remove(each)
            each.visible = True
            for change in each.changes:
                _apply(self.tables[change.table].seen, change)

    def _settle_rows(self, change: SimRowChange) -> None:
        touched = {(change.table, change.before_key), (change.table, change.after_key)}
        for other in list(self._invisible):
            if not other.visible and any(
                (c.table, key) in touched
                for c in other.changes
                for key in (c.before_key, c.after_key)
                if key is not None
            ):
                self._show(other)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def unique(self) -> int:
        self._unique += 1
        return self._unique

    def create(self, table_id: TableId, kind: TableKind) -> SimTable:
        """Create an empty table; the caller writes the statement to the log."""
        columns = (
            Column("id", LogicalType(TypeKind.INT64), nullable=kind is TableKind.KEYLESS),
            Column("grp", LogicalType(TypeKind.INT64), nullable=kind is not TableKind.COMPOSITE),
            Column("val", LogicalType(TypeKind.INT64)),
        )
        primary_key, key = KEYS_OF[kind]
        self._made += 1
        self.kinds.setdefault(table_id, []).append(kind)
        schema = TableSchema(columns, primary_key)
        table = self.tables[table_id] = self.shapes[table_id] = SimTable(table_id, kind, schema, key, number=self._made)
        return table

    def _random_change(self, ordinal: int) -> SimRowChange:
        table = self._random.choice(list(self.tables.values()))
        if table.kind is TableKind.KEYLESS and self._random.random() < 0.7:
            table = self._random.choice(list(self.tables.values()))
        return self._keyless(table, ordinal) if not table.schema.primary_key else self._keyed(table, ordinal)

    def _keyless(self, table: SimTable, ordinal: int) -> SimRowChange:
        if table.rows and self._random.random() < 0.4:
            key = self._random.choice(list(table.rows))
            after = None if self._random.random() < 0.5 else {**table.rows[key], "val": self.unique()}
            return self._change(table, table.rows[key], after, key, None if after is None else key, ordinal)
        row = self._row(table, self._random.randrange(4), None)
        return self._change(table, None, row, None, (self.unique(),), ordinal)

    def _keyed(self, table: SimTable, ordinal: int) -> SimRowChange:
        row = self._row(table, self._random.randrange(KEYS), self._group(table))
        key = _key(table, row)
        before = table.rows.get(key)
        dice = self._random.random()
        if before is None and table.rows and dice < 0.5:
            key = self._random.choice(list(table.rows))
            before = table.rows[key]
        if before is None:
            return self._change(table, None, row, None, key, ordinal)
        if dice < 0.25:
            return self._change(table, before, None, key, None, ordinal)
        after = {**before, "val": self.unique()}
        if dice > 0.75:
            after["grp"] = row["grp"]
        if dice > 0.9:
            after["id"] = row["id"]
        after_key = _key(table, after)
        if after_key != key and after_key in table.rows:
            return self._change(table, before, None, key, None, ordinal)
        return self._change(table, before, after, key, after_key, ordinal)

    def _group(self, table: SimTable) -> int | None:
        if table.kind in (TableKind.MOVING, TableKind.AS_OF) and self._random.random() < 0.2:
            return None
        return self._random.randrange(KEYS)

    def _row(self, table: SimTable, identity: int, group: int | None) -> Row:
        row: Row = {"id": identity, "grp": group, "val": self.unique()}
        for column in table.schema.columns[3:]:
            row[column.name] = self._random.choice([None, 1])
        return row

    def _change(
        self,
        table: SimTable,
        before: Row | None,
        after: Row | None,
        before_key: RowKey | None,
        after_key: RowKey | None,
        ordinal: int,
    ) -> SimRowChange:
        return SimRowChange(table.id, table.schema, before, after, before_key, after_key, ordinal)

    def _append(self, transaction: Transaction) -> None:
        self.log.append(transaction)
        self._invisible.append(transaction)

    def _deadline(self, now_s: float) -> float:
        return now_s + self._random.uniform(0, VISIBLE_WITHIN_S)

    def _before(self, transaction: Transaction) -> int:
        index = self.log.index(transaction)
        return self.log[index - 1].ordinal if index else 0


def changelog_batch(schema: TableSchema, rows: list[tuple[RowKind, Row, int, str | None]]) -> pa.RecordBatch:
    """Return changelog rows of (kind, values, `_seq`, `_pos`) as a batch."""
    columns: dict[str, list[Any]] = {c.name: [row[c.name] for _, row, _, _ in rows] for c in schema.columns}
    columns["_op"] = [int(kind) for kind, _, _, _ in rows]
    columns["_seq"] = [seq for _, _, seq, _ in rows]
    columns["_ts_ms"] = [0] * len(rows)
    columns["_pos"] = [position for _, _, _, position in rows]
    arrow = changelog_schema(schema)
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in arrow], schema=arrow)


def _key(table: SimTable, row: Row) -> RowKey:
    return tuple(row[name] for name in table.schema.primary_key)


def _apply(rows: dict[RowKey, Row], change: SimRowChange) -> None:
    if change.before_key is not None:
        del rows[change.before_key]
    if change.after_key is not None and change.after is not None:
        rows[change.after_key] = change.after


@dataclass(frozen=True, slots=True)
class SimPosition:
    """A position: the first `ordinal` transactions of the log of `server` were read."""

    ordinal: int
    server: int = 0

    @classmethod
    def of(cls, position: Position) -> SimPosition:
        return cls(**position.to_json())

    def sealed(self) -> Position:
        return Position.from_json({"ordinal": self.ordinal, "server": self.server})
