"""The connector of a `SimDatabase`, for enumerator and readers.

Nothing here blocks: what a real connector does in a fetcher thread happens in `step`, one stage at a time, whenever
the simulation says, so that transactions fall between the stages of a SELECT.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.errors import LogLostError, SourceUnavailableError, TableLockedError
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.snapshot_plan import (
    EnumeratorDialect,
    PlannedChunks,
    ResumePoint,
    StartPoint,
    TablePlan,
)
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.source.split import StreamSplit
from raycdc.source.tables.table_life import AsOf, InSnapshot
from raycdc.state.opaque import LogNotes, PlannerState, Position
from tests.support.simulation.chunk_source import SimChunkSource, all_chunks, sort_key, unread
from tests.support.simulation.database import VISIBLE_WITHIN_S, SimDatabase, SimPosition, SimTable, Visibility
from tests.support.simulation.log_source import SimLogSource, is_so
from tests.support.simulation.state import Author, MemorySpool

#: Chunks planned per call.
PLANNED_AT_ONCE = 2
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
        position = SimPosition(database.end, database.server).sealed()
        return StartPoint(position, database.counted(database.end, database.server), tuple(plans))

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        if table in self._database.locked:
            raise TableLockedError(f"{table} is locked.")
        asked = planner.to_json()
        known = self._database.shapes[table]
        # The table may be no more, or another one, since its document was made.
        known = known.as_planned(document.schema, asked["key"]) if "key" in asked else known
        chunks = all_chunks(known, end=self.current_ordinal())
        first = asked.get("next", 0)
        assert first == first_index, "planner and index parted"
        taken = chunks if chunks[0].as_of is not None else chunks[first : first + PLANNED_AT_ONCE]
        following = first + len(taken)
        more = PlannerState.from_json({**asked, "next": following}) if following < len(chunks) else None
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
    """`raycdc.source.snapshot.enumerator.snapshot_plan.FailoverDialect`: for runs in which servers take over from each
    other.
    """

    @property
    def failover(self) -> SimFailoverDialect:
        return self

    def resume_point(self, position: Position) -> ResumePoint | None:
        database = self._database
        before = SimPosition.of(position)
        if before.server == database.server:
            return None
        place = replace(before, server=database.server)
        # The beginning of the new server's log, as nobody knows where in it the place is.
        return ResumePoint(place.sealed(), database.counted(0, database.server), self.current_ordinal())


class SimKeyOrder:
    """`raycdc.source.snapshot.handoff.hand_off.KeyOrder`; counts snapshots as MySQL's does."""

    def __init__(self, database: SimDatabase, split: StreamSplit) -> None:
        self._database = database
        self._tables: dict[TableId, SimTable] = {}
        self._used: Counter[TableId] = Counter()
        #: How many times `use` was said of a table until it was forgotten.
        self.over: dict[TableId, int] = {}
        for table, state in split.state.followed.items():
            if isinstance(state, InSnapshot | AsOf):
                self.use(table, state.snapshot.key, split.schemas[state.schema])

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None:
        self._used[table] += 1
        self._tables[table] = self._database.shapes[table].as_planned(document.schema, key)

    def forget(self, table: TableId) -> None:
        self._tables.pop(table, None)
        self.over[table] = self._used[table]

    def bound(self, table: TableId, raw: Any) -> int:
        return sort_key(self._tables[table], raw)

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[int]) -> np.ndarray:
        known = self._tables[table]
        return np.array(
            [-1 if k is None else sum(b <= sort_key(known, k) for b in bounds) for k in keys.to_pylist()], np.int64
        )


class SimReaderDialect:
    """`raycdc.source.snapshot.reader.incremental_reader.ReaderDialect` of one reader process."""

    resnapshots_lost = True

    def __init__(self, database: SimDatabase, spool: MemorySpool, author: Author, chance: random.Random) -> None:
        self.ring_s = RING_S if database.visibility is Visibility.RING else 0.0
        self.chunks: SimChunkSource | None = None
        self.logs: list[SimLogSource] = []
        self._order: SimKeyOrder | None = None
        self._database = database
        self._spool = spool
        self._author = author
        self._random = chance

    @property
    def cut_off(self) -> bool:
        """Whether a connection led to a server that answers no more, which ends the process."""
        return any(source is not None and source.cut_off for source in (*self.logs, self.chunks))

    def open_log(self, split: StreamSplit) -> SimLogSource:
        log = SimLogSource(self._database, split, self._random, {} if self._order is None else self._order.over)
        self.logs = [*(one for one in self.logs if not one.closed), log]
        return log

    def open_catch_up(self, split: StreamSplit) -> SimLogSource:
        if is_so(self._database.breaks, self._random):
            raise SourceUnavailableError("The server has no connection left.")
        if is_so(self._database.purges, self._random):
            raise LogLostError("The log is purged.")
        others = self.logs
        log = self.open_log(split)
        log.history.is_beside = True
        for other in others:
            other.beside = log
        return log

    def open_chunks(self) -> SimChunkSource:
        self.chunks = SimChunkSource(self._database, self._spool, self._author)
        return self.chunks

    def key_order(self, split: StreamSplit) -> SimKeyOrder:
        self._order = SimKeyOrder(self._database, split)
        return self._order

    def require_as_begun(self, split: StreamSplit) -> None:
        """The tables of the simulation are always captured as they were."""

    def is_complete(self, notes: LogNotes, up_to: int) -> bool:
        """Whether nothing is to be told later: so it is always."""
        return True
