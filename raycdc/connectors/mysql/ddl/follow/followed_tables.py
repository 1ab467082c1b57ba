"""The captured tables by which the log is decoded, each with the schema in force, and what the log says of them.

Captured tables that were dropped, and of which a table of the same name may be made anew.

Their targets are emptied and keep their columns. A new table with those very columns and that key goes on there with
the log; one with others begins again (`raycdc.source.tables.parking`), by which targets get its columns, and so does
one whose predecessor went in the middle of its snapshot: chunks of that may still be asked for. `all` goes into the
checkpoint.

Tables in memory, which a server empties by itself: their rows are gone when it starts, and it says so when it first
opens them (MySQL manual, "Replication and MEMORY Tables").

Newer servers write a TRUNCATE TABLE, older ones a statement that deletes all rows, in a transaction of its own; it is
taken for the same, of a table in memory alone. A session that logs statements may have written it, too, which changes
nothing: all rows of the table are gone behind it.

Parked tables that nobody followed yet, and the statements that make them: the log tells all of their rows.

They are new to the state (`raycdc.source.selection`), and are looked at as all tables that begin again. What a look is
not needed for is decided here, before the statement is followed.

Captured tables whose rows stopped to fit in a transaction that is being decoded; `history` decides which.

Rows of a table whose table map does not fit, or that are not whole, are not believed from the start of that transaction
on. Between two transactions the table is said to be parked (`SchemaMismatches.take`).

MariaDB's sequences: the log has their values as rows of a table of their name, which no pipeline follows.

Which names these are, the log says where it has their CREATE SEQUENCE; else the server is asked where such rows are
met. It is forgotten where a statement is about the name.

The chunk keys of tables in their snapshot, which no statement may change, because chunks are ranges of them.

The log's fetcher thread asks, ahead of the reader's, which knows when a snapshot is over and says so by counting: the
first, second … snapshot of a table since it has the log. It goes on counting when the log is opened anew, for tables
that join it. Where a snapshot ends while it is asked, the table is taken for one that is still in it, and begins again
without need.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.ddl.apply import AffectedTables, DdlDialect, RefusedStatement, parse_ddl
from raycdc.connectors.mysql.ddl.parse.statement_text import begins_with
from raycdc.connectors.mysql.ddl.parse.statements import CreateTable
from raycdc.connectors.mysql.snapshot.keys import order_of
from raycdc.connectors.mysql.values.documents import document_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.source.snapshot.key_intervals import ChunkKey, key_names
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import ParkTableUpdate, SchemaUpdate
from raycdc.source.tables.parked_tables import ParkedTables
from raycdc.source.tables.resnapshots import TableChange


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

    def report(self, change: TableChange) -> None:
        """The log's version of a table at the last statement."""
        self._updates.append(change.update)
        self._rows += change.rows

    def report_truncated(self, rows: LogRows) -> None:
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


#: Tables remembered. Of an older one a new table is taken for the first of its name.
DROPPED_MAX = 4096


class DroppedTables:
    """By name the fingerprint of the schema when it was dropped; empty where a new one begins again in any case."""

    def __init__(self, dropped: Mapping[TableId, str]) -> None:
        self._dropped = dict(dropped)
        self.changed = False

    def all(self) -> Mapping[TableId, str]:
        """The tables and fingerprints as of now."""
        return dict(self._dropped)

    def add(self, table: MySqlTable, *, read: bool) -> None:
        """`table` was dropped, after its snapshot was `read` or in the middle of it."""
        self._dropped.pop(table.id, None)
        self._dropped[table.id] = document_of(table).fingerprint if read else ""
        while len(self._dropped) > DROPPED_MAX:
            del self._dropped[next(iter(self._dropped))]
        self.changed = True

    def differs(self, table: MySqlTable) -> bool:
        """Whether `table`, which was made, is another one than that which was dropped under its name. The same one goes
        on there, and nothing is remembered.
        """
        if self._dropped.get(table.id) == document_of(table).fingerprint:
            self.forget(table.id)
        return table.id in self._dropped

    def refused(self, table: TableId) -> None:
        """The table that was made is not followed: as long as it has not begun again, its target is the dropped one's,
        and no other one goes on there, either.
        """
        if self._dropped.get(table):
            self._dropped[table] = ""
            self.changed = True

    def forget(self, table: TableId) -> None:
        """The table has begun again, whatever it was."""
        self.changed = self._dropped.pop(table, None) is not None or self.changed


_NAME = r"`((?:[^`]|``)+)`"
#: As servers write it, byte by byte; whatever is not exactly so is a change of rows like any other.
_EMPTIES = re.compile(rf"DELETE FROM {_NAME}\.{_NAME}(?: /\* generated by server[^*]*\*/)?")


def emptied_by_server(statement: str) -> TableId | None:
    """The table of a statement as servers write it for one that they emptied; None for all others."""
    parts = _EMPTIES.fullmatch(statement)
    return None if parts is None else TableId(*(name.replace("``", "`") for name in parts.groups()))


def as_truncation(
    item: DdlItem, followed: Container[TableId], is_in_memory: Callable[[TableId], bool]
) -> DdlItem | None:
    """The statement as the TRUNCATE TABLE that newer servers write; None where it is none, or of a table that is not
    followed, or not in memory. Behind rows of its transaction it is not the server's.
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
    """The tables that the statement makes are not parked any more, and as good as unknown.

    `was_there` of those that the state takes for new, as nobody showed them to it.
    """
    waiting = [table for table in affected.tables if parked.awaits(table, certain=True)]
    if not waiting or not begins_with("CREATE", item.statement):
        return
    parsed = parse_ddl(item.statement, item.db, dialect=dialect)
    for ddl in () if isinstance(parsed, RefusedStatement) else parsed:
        # IF NOT EXISTS makes none where there is one.
        if (
            isinstance(ddl, CreateTable)
            and parked.awaits(ddl.table, certain=not ddl.if_not_exists)
            and not was_there(item, ddl)
        ):
            parked.made(ddl.table)


@dataclass(frozen=True, slots=True)
class SchemaMismatch:
    """`described` is the schema of the rows before, None of a table that was not known; they end at `ordinal`."""

    update: ParkTableUpdate
    described: MySqlTable | None
    ordinal: int


class SchemaMismatches:
    """See the module's docstring. One thread: the decoder's."""

    def __init__(self) -> None:
        self._tables: dict[TableId, SchemaMismatch] = {}
        #: Tables that have ended, by what the log said, and of which rows came all the same.
        self.alive: set[TableId] = set()

    def __contains__(self, table: object) -> bool:
        return table in self._tables

    def add(self, mismatch: SchemaMismatch) -> None:
        """Its table is parked from the end of the transaction before."""
        self._tables[mismatch.update.table] = mismatch

    def schema(self, table: TableId) -> MySqlTable | None:
        """The schema of the rows that are still believed."""
        mismatch = self._tables.get(table)
        return None if mismatch is None else mismatch.described

    def believed_up_to(self, table: TableId) -> int | None:
        """The ordinal after which rows of `table` are not to be believed; None: all are."""
        mismatch = self._tables.get(table)
        return None if mismatch is None else mismatch.ordinal

    def take_alive(self) -> list[TableId]:
        """The tables that are `alive`, once."""
        alive, self.alive = sorted(self.alive), set()
        return alive

    def take(self, ts_ms: int) -> tuple[ParkTableUpdate, ...]:
        """Between two transactions, the last of which was committed at `ts_ms`: the tables that are parked, once."""
        mismatches, self._tables = self._tables, {}
        updates = [mismatch.update for mismatch in mismatches.values()]
        return tuple(replace(update, parking=replace(update.parking, ts_ms=ts_ms)) for update in updates)


_log = logging.getLogger(__name__)


class Sequences:
    """`ask` the server whether a name is a sequence's; None: nobody can be asked."""

    def __init__(self, ask: Callable[[TableId], bool] | None = None) -> None:
        self._ask = ask
        self._known: set[TableId] = set()
        self._reported: set[TableId] = set()

    def __contains__(self, table: object) -> bool:
        return table in self._known

    def met(self, table: TableId) -> bool:
        """Whether rows of a `table` of which no schema is known are a sequence's; says so once."""
        if self._ask is None or not self._ask(table):
            return False
        self._known.add(table)
        if table not in self._reported:
            self._reported.add(table)
            _log.warning("%s is a sequence, which has no rows to follow: it is left out", table)
        return True

    def note_statement(self, affected: AffectedTables) -> None:
        """A statement names these: one may be a table from here on, and one that is created is none."""
        self._known.difference_update(affected.tables, affected.dropped_sequences)
        self._known.update(affected.made_sequences)


class SnapshotChunkKeys:
    """`keys` are those of snapshots under way where the log is opened, None for a table that is one chunk; `over` says
    how many snapshots of a table are over, live.
    """

    def __init__(
        self, keys: Mapping[TableId, ChunkKey | None] | None = None, over: Mapping[TableId, int] | None = None
    ) -> None:
        self._keys = dict(keys or {})
        self._over = {} if over is None else over
        self._begun = Counter(dict(self._over))
        self._begun.update(self._keys.keys())

    def begin(self, table: TableId, key: ChunkKey | None) -> None:
        """The next snapshot of `table` begins, cut by `key`."""
        self._keys[table] = key
        self._begun[table] += 1

    def under_way(self, table: TableId) -> bool:
        """Whether the table is in its snapshot, as far as is known."""
        return table in self._keys and self._over.get(table, 0) < self._begun[table]

    def changed(self, before: MySqlTable, after: MySqlTable) -> str | None:
        """The column by which a table in its snapshot phase is cut, and which is another one afterwards; None: none."""
        key = self._keys.get(before.id)
        if key is None or not self.under_way(before.id):
            return None
        return next((name for name in key_names(key) if order_of(before, name) != order_of(after, name)), None)
