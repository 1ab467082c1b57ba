"""The connector of a `SimDatabase`, for enumerator and readers.

Nothing here blocks: what a real connector does in a fetcher thread happens in `step`, one stage at a time, whenever
the simulation says, so that transactions fall between the stages of a SELECT.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.checkpoint.opaque import LogNotes, PlannerState, Position
from raycdc.errors import LogLostError, SourceError, SourceUnavailableError, TableLockedError
from raycdc.model import Column, RowKind, TableId, TableSchema
from raycdc.schema.events import EVENT_TYPES, CreateTableEvent, TruncateTableEvent, event_from_json
from raycdc.source.new_beginnings import TableLooks
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_key import ChunkKey
from raycdc.source.snapshot.hand_off import LogRows
from raycdc.source.snapshot.log_unit import (
    LogPlace,
    LogUnit,
    Progress,
    SchemaChange,
    SchemaUpdate,
    TableAltered,
    TableBegun,
    TableParked,
    TransactionPart,
    Transactions,
)
from raycdc.source.snapshot.snapshot_plan import EnumeratorDialect, PlannedChunks, ResumePoint, StartPoint, TablePlan
from raycdc.source.split import StreamSplit
from raycdc.source.table_life import Parking
from raycdc.testing.simulation.chunk_source import SimChunkSource
from raycdc.testing.simulation.chunks import all_chunks, sort_key, unread
from raycdc.testing.simulation.database import (
    VISIBLE_WITHIN_S,
    Change,
    Row,
    SimDatabase,
    SimTable,
    Transaction,
    Visibility,
    changelog_batch,
)
from raycdc.testing.simulation.place import SimPlace
from raycdc.testing.simulation.spool import Author, MemorySpool

#: Chunks planned per call.
PLANNED_AT_ONCE = 2
#: Looks for more of the log that a server may take to find a place by its transactions.
SEARCHES_MAX = 60
#: How long the log reader remembers dropped rows where nothing can be waited for.
RING_S = VISIBLE_WITHIN_S + 0.5


class SimEnumeratorDialect(EnumeratorDialect):
    """One that shares nothing between tables."""

    def __init__(self, database: SimDatabase) -> None:
        self._database = database

    def start_point(self) -> StartPoint:
        plans = []
        for table in self._database.tables.values():
            document = SchemaDocument.of(table.schema)
            plans.append(TablePlan(table.id, document.fingerprint, document, unread(table)))
        database = self._database
        position = SimPlace(database.end, database.server).sealed()
        return StartPoint(position, database.counted(database.end, database.server), tuple(plans))

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        if table in self._database.locked:
            raise TableLockedError(f"{table} is locked.")
        chunks = all_chunks(self._database.tables[table], end=self.current_ordinal())
        first = planner.to_json().get("next", 0)
        assert first == first_index, "planner and index parted"
        taken = chunks if chunks[0].as_of is not None else chunks[first : first + PLANNED_AT_ONCE]
        following = first + len(taken)
        more = PlannerState.from_json({"next": following}) if following < len(chunks) else None
        return PlannedChunks(tuple(taken), more, len(chunks))

    def locked_by(self, tables: Sequence[TableId]) -> dict[TableId, str]:
        # There may be no time for some.
        asked = tables[: self._database.locks_asked_max]
        return {table: "It is locked." if table in self._database.locked else "" for table in asked}

    def captures(self, table: TableId) -> bool:
        return True

    @property
    def chunk_readers_max(self) -> int:
        return self._database.chunk_readers_max

    @property
    def failover(self) -> SimFailoverDialect | None:
        return None

    def current_ordinal(self) -> int:
        return self._database.counted(self._database.end, self._database.server)


class SimFailoverDialect(SimEnumeratorDialect):
    """`raycdc.source.snapshot.snapshot_plan.FailoverDialect`: for runs in which servers take over from each other."""

    @property
    def failover(self) -> SimFailoverDialect:
        return self

    def resume_point(self, position: Position) -> ResumePoint | None:
        database = self._database
        before = SimPlace.of(position)
        if before.server == database.server:
            return None
        place = replace(before, server=database.server)
        # The beginning of the new server's log, as nobody knows where in it the place is.
        return ResumePoint(place.sealed(), database.counted(0, database.server), self.current_ordinal())


class SimKeyOrder:
    """`raycdc.source.snapshot.hand_off.KeyOrder`."""

    def __init__(self, database: SimDatabase) -> None:
        self._database = database

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None:
        """The tables of the simulation keep their keys."""

    def forget(self, table: TableId) -> None:
        """Nor is there anything to forget."""

    def bound(self, table: TableId, raw: Any) -> int:
        return sort_key(self._database.tables[table], raw)

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[int]) -> np.ndarray:
        known = self._database.tables[table]
        return np.array(
            [-1 if k is None else sum(b <= sort_key(known, k) for b in bounds) for k in keys.to_pylist()], np.int64
        )


#: The errors of a reading beside the log.
LOST = (SourceUnavailableError, SourceUnavailableError, SourceError)


def is_so(probability: float, chance: random.Random) -> bool:
    """Whether something happens; nothing is drawn for what cannot, so that histories without it stay as they are."""
    return probability > 0 and chance.random() < probability


class SimReaderDialect:
    """`raycdc.source.snapshot.incremental_reader.ReaderDialect` of one reader process."""

    lost_begin_again = True

    def __init__(self, database: SimDatabase, spool: MemorySpool, author: Author, chance: random.Random) -> None:
        self.ring_s = RING_S if database.visibility is Visibility.RING else 0.0
        self.chunks: SimChunkSource | None = None
        self.logs: list[SimLogSource] = []
        self._database = database
        self._spool = spool
        self._author = author
        self._random = chance

    @property
    def cut_off(self) -> bool:
        """Whether a connection led to a server that answers no more, which ends the process."""
        return any(source is not None and source.cut_off for source in (*self.logs, self.chunks))

    def open_log(self, split: StreamSplit) -> SimLogSource:
        log = SimLogSource(self._database, split, self._random)
        self.logs = [*(one for one in self.logs if not one.closed), log]
        return log

    def open_beside(self, split: StreamSplit) -> SimLogSource:
        if is_so(self._database.breaks, self._random):
            raise SourceUnavailableError("The server has no connection left.")
        if is_so(self._database.purges, self._random):
            raise LogLostError("The log is purged.")
        log = self.open_log(split)
        log.is_beside = True
        return log

    def open_chunks(self) -> SimChunkSource:
        self.chunks = SimChunkSource(self._database, self._spool, self._author)
        return self.chunks

    def key_order(self, split: StreamSplit) -> SimKeyOrder:
        return SimKeyOrder(self._database)

    def require_as_begun(self, split: StreamSplit) -> None:
        """The tables of the simulation are always captured as they were."""

    def is_settled(self, notes: LogNotes, up_to: int) -> bool:
        """Whether nothing is to be told later: so it is always."""
        return True


@dataclass(frozen=True, slots=True)
class SimLook:
    """How a table looked at `ordinal`."""

    table: SimTable
    schema: TableSchema
    ordinal: int


class SimLogSource:
    """`LogSource`: units of one or a few transactions, or parts of one; numbers rows from 0."""

    #: It has no wall clock.
    seen_ms: int | None = None

    def __init__(self, database: SimDatabase, split: StreamSplit, chance: random.Random) -> None:
        state = split.state
        place = SimPlace.of(state.position)
        ordinal, self._server = place.ordinal, place.server
        #: At another server than before the place is found anew, and said even if nothing follows.
        self._says_place = state.ordinal != database.counted(ordinal, self._server)
        #: Times nothing comes yet while a new server looks for the place in its log.
        self._searches = chance.randrange(SEARCHES_MAX) if self._says_place else 0
        #: The schemas in force, as far as the log says.
        self._in_force = {table: split.schemas[followed.schema].schema for table, followed in state.followed.items()}
        self._misfits: list[TableParked] = []
        self._parked = set(state.parked)
        self._looks = TableLooks(self._look, [table for table, parked in state.parked.items() if parked.again])
        self._database = database
        self._random = chance
        self._next = next((n for n, t in enumerate(database.log) if t.ordinal > ordinal), None)
        self._started_at = ordinal
        self._boundary = ordinal
        self._seq = 0
        self._rest: deque[list[Change]] = deque()
        self.closed = False
        self.is_beside = False

    @property
    def cut_off(self) -> bool:
        return bool(self._server != self._database.server)

    def poll(self) -> LogUnit | None:
        if self.cut_off:
            return None
        if self.is_beside and is_so(self._database.breaks, self._random):
            # One in three is nothing that passes by itself.
            raise self._random.choice(LOST)("The connection was lost.")
        if self._searches:
            self._searches -= 1
            return None
        # Parked tables are looked after now and then only: a real log is decoded some megabytes at a time.
        busy = bool(self._rest) or (bool(self._parked) and self._random.random() < self._database.log_silence)
        ready = [] if busy else self._looks.ready(self._boundary)
        if ready:
            return self._begin_again([look for _, look in ready if look is not None])
        if self._next is None:
            index = next((n for n, t in enumerate(self._database.log) if t.ordinal > self._started_at), None)
            self._next = index
        if self._next is None or self._next >= len(self._database.log):
            return self._said_place() if self._says_place else None
        if self._random.random() < self._database.log_silence:
            return None
        self._says_place = False
        if self._rest:
            return self._part(self._database.log[self._next])
        transaction = self._database.log[self._next]
        if transaction.ddl is not None:
            return self._schema_change(transaction)
        if len(transaction.changes) > 1 and self._random.random() < 0.7:
            cut = self._random.randrange(1, len(transaction.changes))
            self._rest.extend([transaction.changes[:cut], transaction.changes[cut:]])
            return self._part(transaction)
        return self._together(self._random.choice([1, 1, 2, 3]))

    def close(self) -> None:
        self.closed = True

    def _look(self, table: TableId) -> SimLook:
        return SimLook(self._database.tables[table], self._database.tables[table].schema, self._database.end)

    def _begin_again(self, looks: list[SimLook]) -> SchemaChange:
        updates, rows = [], []
        for look in looks:
            table, document = look.table.id, SchemaDocument.of(look.schema)
            self._parked.discard(table)
            self._in_force[table] = look.schema
            events = TruncateTableEvent(table), CreateTableEvent(table, look.schema)
            updates.append(TableBegun(table, events, document, unread(look.table)))
            rows.append(self._truncation(table, look.schema, None))
        place = LogPlace(self._at(self._boundary), self._counted(self._boundary))
        return SchemaChange(place, tuple(updates), tuple(rows))

    def _truncation(self, table: TableId, schema: TableSchema, position: str | None) -> LogRows:
        empty: Row = dict.fromkeys(column.name for column in schema.columns)
        batch = changelog_batch(schema, [(RowKind.TRUNCATE, empty, self._seq, position)])
        self._seq += 1
        return LogRows(table, batch, np.array([self._counted(self._boundary)], np.int64))

    def _said_place(self) -> LogUnit | None:
        if self._random.random() < self._database.log_silence:
            return None
        self._says_place = False
        return self._unit([], self._boundary, None, in_transaction=False)

    def _at(self, ordinal: int) -> Position:
        return SimPlace(ordinal, self._server).sealed()

    def _counted(self, ordinal: int) -> int:
        return self._database.counted(ordinal, self._server)

    def _part(self, transaction: Transaction) -> LogUnit:
        changes = self._rest.popleft()
        if self._rest:
            return self._unit(changes, self._boundary, transaction.event_ms, in_transaction=True)
        return self._after(transaction, changes)

    def _together(self, count: int) -> LogUnit:
        assert self._next is not None
        run = []
        for transaction in self._database.log[self._next : self._next + count]:
            if transaction.ddl is not None:
                break
            run.append(transaction)
        self._next += len(run) - 1
        return self._after(run[-1], [change for t in run for change in t.changes])

    def _after(self, transaction: Transaction, changes: list[Change]) -> LogUnit:
        assert self._next is not None
        self._next += 1
        self._boundary = transaction.ordinal
        return self._unit(changes, transaction.ordinal, transaction.event_ms, in_transaction=False)

    def _unit(
        self, changes: list[Change], ordinal: int, event_ms: int | None, *, in_transaction: bool
    ) -> TransactionPart | Transactions:
        by_table: dict[TableId, list[tuple[Change, int]]] = {}
        for change in changes:
            if not self._fits(change):
                continue
            by_table.setdefault(change.table, []).append((change, self._seq))
            self._seq += 2
        rows = []
        for table, entries in by_table.items():
            images: list[tuple[RowKind, Row, int, str | None]] = []
            ordinals = []
            for change, seq in entries:
                for n, (kind, row) in enumerate(change.images()):
                    images.append((kind, row, seq + n, str(change.ordinal)))
                    ordinals.append(self._counted(change.ordinal))
            rows.append(LogRows(table, changelog_batch(entries[0][0].schema, images), np.array(ordinals, np.int64)))
        place = LogPlace(self._at(ordinal), self._counted(ordinal), event_ms, event_ms)
        size = sum(r.batch.nbytes for r in rows)
        if in_transaction:
            return TransactionPart(place, tuple(rows), size)
        parked, self._misfits = tuple(self._misfits), []
        return Transactions(place, tuple(rows), parked, bytes=size)

    def _fits(self, change: Change) -> bool:
        """Whether a row can be decoded; the first one that cannot parks its table."""
        if change.table in self._parked:
            return False
        if change.schema == self._in_force[change.table]:
            return True
        self._parked.add(change.table)
        self._misfits.append(TableParked(change.table, Parking("misfit", self._at(self._boundary), 0)))
        return False

    def _schema_change(self, transaction: Transaction) -> LogUnit:
        assert transaction.ddl is not None
        assert self._next is not None
        table, schema, event = transaction.ddl
        self._next += 1
        self._boundary = transaction.ordinal
        if table not in self._parked:
            schema = self._in_force[table] = self._after_ddl(table, schema, event)
        document = SchemaDocument.of(schema)
        events = (event_from_json(event),) if event["type"] in EVENT_TYPES else ()
        update: SchemaUpdate = TableAltered(table, events, document)
        position = self._at(transaction.ordinal)
        place = LogPlace(position, self._counted(transaction.ordinal), transaction.event_ms)
        if table in self._parked:
            self._looks.touched(table, transaction.ordinal)
            return Progress(place)
        if event["type"] in ("rewrite", "puzzle"):
            again = event["type"] == "rewrite"
            update = TableParked(table, Parking(event["type"], position, 0, again=again))
            self._parked.add(table)
            if again:
                self._looks.want(table)
        rows: tuple[LogRows, ...] = ()
        if event["type"] == "truncate_table":
            rows = (self._truncation(table, schema, str(transaction.ordinal)),)
        return SchemaChange(place, (update,), rows)

    def _after_ddl(self, table: TableId, schema: TableSchema, event: dict[str, Any]) -> TableSchema:
        """The schema in force after a statement: what the log says, not what the server has."""
        known = self._in_force.get(table)
        if known is None:
            return schema
        columns = (Column.from_json(event["column"]),) if event["type"] == "add_column" else ()
        return TableSchema((*known.columns, *columns), known.primary_key)
