"""The captured tables with the schemas by which the log is decoded, and further facts from the log.

`DroppedTables` are captured tables that were dropped, and may be created again. Their targets are emptied and keep
their columns. If a table with the same columns and key is created under the name, its rows in the log continue in the
same target. If its columns or key differ, the table is resnapshotted (`raycdc.source.tables.parking`), which gives
targets its columns. The new table is also resnapshotted if the old one was dropped during its snapshot, because chunks
of the old snapshot may still be requested. `all` goes into the checkpoint.

A restart of the server empties its tables in memory. The server logs this when it first opens such a table (MySQL
manual, "Replication and MEMORY Tables"). Newer servers write a TRUNCATE TABLE. Older servers write a statement that
deletes all rows, in a separate transaction; for a table in memory, this statement is treated as a TRUNCATE. A session
that logs statements may have written the same statement, which has the same effect.

`note_made` handles statements that create parked tables. These tables were never followed, and the log has all of their
rows. They are new to the state (`raycdc.source.selection`), and are probed like all tables to be resnapshotted. Cases
that need no probe are decided here, before the statement is followed.

`SchemaMismatches` are captured tables whose rows ceased to match their schema in the transaction that is being decoded.
Rows of a table whose table map does not match, or that are incomplete, are dropped from the start of that transaction
on, and the table is reported as parked between two transactions (`SchemaMismatches.take`).

`Sequences` are MariaDB's sequences: the log has their values as rows of a table of their name, which is never followed.
Their names come from CREATE SEQUENCE in the log; otherwise the server is queried when such rows are met. A name is
forgotten when a statement changes it.

`SnapshotChunkKeys` are the chunk keys of tables in their snapshot, which no statement may change, because chunks are
ranges of them. The log's fetcher thread checks statements against these keys. The reader's thread knows when a snapshot
is over, and counts the finished snapshots of each table; the counts go on when the log is opened again. If a snapshot
ends during the check of a statement, the table is resnapshotted without need.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.ddl.apply import AffectedTables, DdlDialect, RefusedStatement, parse_ddl
from raycdc.connectors.mysql.ddl.parse.statements import CreateTable
from raycdc.connectors.mysql.ddl.parse.tokens import begins_with
from raycdc.connectors.mysql.snapshot.keys import order_of
from raycdc.connectors.mysql.values.documents import document_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold
from raycdc.source.snapshot.key_intervals import ChunkKey, key_names
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import ParkTableUpdate, SchemaUpdate
from raycdc.source.tables.parked_tables import ParkedTables
from raycdc.source.tables.resnapshots import TableChange


class SchemaSetter(Protocol):
    """The part of the decoder that sets schemas."""

    def set_table(self, table: MySqlTable) -> None: ...

    def remove_table(self, table: TableId) -> None: ...

    def take_seq(self) -> int: ...


class FollowedTables(Mapping[TableId, MySqlTable]):
    """The followed tables and their schemas. The decoder gets every change. Used by the decoder's thread only."""

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
        """Return the decoder of the log."""
        assert self._decoder is not None, "a log is decoded before anything is said of it"
        return self._decoder

    def attach(self, decoder: SchemaSetter) -> None:
        """Set the `decoder` that gets every new schema."""
        self._decoder = decoder

    def put(self, table: MySqlTable) -> None:
        """Decode rows after this point with the schema `table`."""
        self._tables[table.id] = table
        self.decoder.set_table(table)

    def remove(self, table: TableId) -> None:
        """Stop following the table: its rows are not decoded any more."""
        self._tables.pop(table, None)
        self.decoder.remove_table(table)

    def doubt(self, table: TableId) -> MySqlTable | None:
        """Stop following a table whose rows do not match its schema, and return it.

        The decoder skips its rows already.
        """
        return self._tables.pop(table, None)

    def report(self, change: TableChange) -> None:
        """Add a change of a table by the last statement."""
        self._updates.append(change.update)
        self._rows += change.rows

    def report_truncated(self, rows: LogRows) -> None:
        """Add the rows that say that the last statement removed all rows of a table."""
        self._rows.append(rows)

    def untell(self, table: TableId) -> None:
        """Remove the changes of a table by the last statement, because it turned out that it cannot be followed."""
        self._updates = [update for update in self._updates if update.table != table]
        self._rows = [rows for rows in self._rows if rows.table != table]

    def take(self) -> tuple[tuple[SchemaUpdate, ...], tuple[LogRows, ...]]:
        """Return the changes of the last statement and the truncation rows, once.

        Both are empty for other statements.
        """
        taken = tuple(self._updates), tuple(self._rows)
        self._updates, self._rows = [], []
        return taken


#: The number of tables remembered. If a forgotten name is used again, the new table counts as the first of that name.
DROPPED_MAX = 4096


class DroppedTables:
    """The dropped tables by name, with the fingerprint of their last schema.

    The fingerprint is empty if a new table of that name must always be resnapshotted.
    """

    def __init__(self, dropped: Mapping[TableId, str]) -> None:
        self._dropped = dict(dropped)
        self.changed = False

    def all(self) -> Mapping[TableId, str]:
        """Return the present tables and fingerprints."""
        return dict(self._dropped)

    def add(self, table: MySqlTable, *, read: bool) -> None:
        """Add a dropped table. `read` is True if its snapshot was complete."""
        self._dropped.pop(table.id, None)
        self._dropped[table.id] = document_of(table).fingerprint if read else ""
        while len(self._dropped) > DROPPED_MAX:
            del self._dropped[next(iter(self._dropped))]
        self.changed = True

    def differs(self, table: MySqlTable) -> bool:
        """Return True if the created `table` differs from the dropped one of its name.

        An equal table continues in the target of the dropped one, and is forgotten here.
        """
        if self._dropped.get(table.id) == document_of(table).fingerprint:
            self.forget(table.id)
        return table.id in self._dropped

    def refused(self, table: TableId) -> None:
        """Note that the created table is not followed. Until it is resnapshotted, the target belongs to the dropped
        table.

        No other table continues in that target either.
        """
        if self._dropped.get(table):
            self._dropped[table] = ""
            self.changed = True

    def forget(self, table: TableId) -> None:
        """Forget a table that was resnapshotted."""
        self.changed = self._dropped.pop(table, None) is not None or self.changed


_NAME = r"`((?:[^`]|``)+)`"
#: The exact statement that servers write. Any other text is an ordinary change of rows.
_EMPTIES = re.compile(rf"DELETE FROM {_NAME}\.{_NAME}(?: /\* generated by server[^*]*\*/)?")


def emptied_by_server(statement: str) -> TableId | None:
    """Return the table that a server emptied by this statement; None for all other statements."""
    parts = _EMPTIES.fullmatch(statement)
    return None if parts is None else TableId(*(name.replace("``", "`") for name in parts.groups()))


def as_truncation(
    item: DdlItem, followed: Container[TableId], is_in_memory: Callable[[TableId], bool]
) -> DdlItem | None:
    """Return the statement as the TRUNCATE TABLE that newer servers write; None if it is not such a statement.

    The result is also None if the table is not followed or not in memory, or if rows precede the statement in its
    transaction, because the server's statement is always the first.
    """
    table = emptied_by_server(item.statement)
    if table is None or table not in followed or item.after_rows or not is_in_memory(table):
        return None
    names = item.statement.removeprefix("DELETE FROM ")
    return replace(item, statement=f"TRUNCATE TABLE {names}")


def note_made(
    parked: ParkedTables[Any],
    item: DdlItem,
    affected: AffectedTables,
    dialect: DdlDialect,
    was_there: Callable[[DdlItem, CreateTable], bool],
) -> None:
    """Mark the tables that the statement creates as not parked any more.

    `was_there` are tables that the state considers new only because they were not visible before.
    """
    waiting = [table for table in affected.tables if parked.awaits(table, certain=True)]
    if not waiting or not begins_with("CREATE", item.statement):
        return
    parsed = parse_ddl(item.statement, item.db, dialect=dialect)
    for ddl in () if isinstance(parsed, RefusedStatement) else parsed:
        # IF NOT EXISTS creates no table if one exists.
        if (
            isinstance(ddl, CreateTable)
            and parked.awaits(ddl.table, certain=not ddl.if_not_exists)
            and not was_there(item, ddl)
        ):
            parked.made(ddl.table)


@dataclass(frozen=True, slots=True)
class SchemaMismatch:
    """A table whose rows do not match its schema.

    `described` is the schema of the rows up to `ordinal`; None if the table was unknown.
    """

    update: ParkTableUpdate
    described: MySqlTable | None
    ordinal: int


class SchemaMismatches:
    """The mismatching tables; see the module's docstring. Used by the decoder's thread only."""

    def __init__(self) -> None:
        self._tables: dict[TableId, SchemaMismatch] = {}
        #: Tables that have ended according to the log, although rows of them came.
        self.alive: set[TableId] = set()

    def __contains__(self, table: object) -> bool:
        return table in self._tables

    def add(self, mismatch: SchemaMismatch) -> None:
        """Park the table of `mismatch` from the end of the previous transaction on."""
        self._tables[mismatch.update.table] = mismatch

    def schema(self, table: TableId) -> MySqlTable | None:
        """Return the schema of the valid rows before the mismatch."""
        mismatch = self._tables.get(table)
        return None if mismatch is None else mismatch.described

    def believed_up_to(self, table: TableId) -> int | None:
        """Return the ordinal up to which rows of `table` are valid; None: all are valid."""
        mismatch = self._tables.get(table)
        return None if mismatch is None else mismatch.ordinal

    def take_alive(self) -> list[TableId]:
        """Return the tables in `alive`, once."""
        alive, self.alive = sorted(self.alive), set()
        return alive

    def take(self, ts_ms: int) -> tuple[ParkTableUpdate, ...]:
        """Return the updates that park tables, once. Called between two transactions.

        The last transaction was committed at `ts_ms`.
        """
        mismatches, self._tables = self._tables, {}
        updates = [mismatch.update for mismatch in mismatches.values()]
        return tuple(replace(update, parking=replace(update.parking, ts_ms=ts_ms)) for update in updates)


_log = logging.getLogger(__name__)


class Sequences:
    """The known sequences. `ask` queries the server if a name is a sequence; None: not possible."""

    def __init__(self, ask: Callable[[TableId], bool] | None = None) -> None:
        self._ask = ask
        self._known: set[TableId] = set()
        self._reported: set[TableId] = set()

    def __contains__(self, table: object) -> bool:
        return table in self._known

    def met(self, table: TableId) -> bool:
        """Return True if an unknown `table` is a sequence. Its first rows are logged once."""
        if self._ask is None or not self._ask(table):
            return False
        self._known.add(table)
        if table not in self._reported:
            self._reported.add(table)
            _log.warning("%s is a sequence, which has no rows to follow: it is left out", table)
        return True

    def note_statement(self, affected: AffectedTables) -> None:
        """Forget names that a statement changed, and note the sequences that it created."""
        self._known.difference_update(affected.tables, affected.dropped_sequences)
        self._known.update(affected.made_sequences)


class SnapshotChunkKeys:
    """The chunk keys of tables in their snapshot.

    `keys` are the chunk keys of snapshots under way when the log is opened, None for a table that is one chunk. `over`
    has the present number of finished snapshots of each table.
    """

    def __init__(
        self, keys: Mapping[TableId, ChunkKey | None] | None = None, over: Mapping[TableId, int] | None = None
    ) -> None:
        self._keys = dict(keys or {})
        self._over = {} if over is None else over
        self._begun = Counter(dict(self._over))
        self._begun.update(self._keys.keys())

    def begin(self, table: TableId, key: ChunkKey | None) -> None:
        """Record that the next snapshot of `table` begins, cut by `key`."""
        self._keys[table] = key
        self._begun[table] += 1

    def under_way(self, table: TableId) -> bool:
        """Return True if the table is known to be in its snapshot."""
        return table in self._keys and self._over.get(table, 0) < self._begun[table]

    def changed(self, before: MySqlTable, after: MySqlTable, reassigned: Collection[str] = ()) -> str | None:
        """Return the chunk-key column that the statement changes, if its table is in a snapshot; otherwise None.

        A name in `reassigned` (as `mysql_fold` returns it) is another column in `after`.
        """
        key = self._keys.get(before.id)
        if key is None or not self.under_way(before.id):
            return None
        return next(
            (
                name
                for name in key_names(key)
                if mysql_fold(name) in reassigned or order_of(before, name) != order_of(after, name)
            ),
            None,
        )
