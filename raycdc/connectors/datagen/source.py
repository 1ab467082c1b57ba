"""The generated source: a minimal implementation of `raycdc.source.connector.IncrementalSource`.

| class | role | runs in |
|---|---|---|
| `DatagenSource` | the source: checks, tables, acknowledgements, and creation of the other four | every process |
| `DatagenDialect` | finds and cuts tables, gives the start and end of the log | the coordinator |
| `DatagenLog` | the log, in units of some transactions | the reader of the log, in a fetcher's thread |
| `DatagenChunks` | one chunk after the other | every reader, in a fetcher's thread |
| `DatagenKeyOrder` | which chunk a key of the log belongs to | the reader of the log |
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from raycdc.config.checks import CheckResult
from raycdc.connectors.datagen.generator import ABSENT, GeneratedChanges, Generator, Numbers
from raycdc.connectors.datagen.plugin import DatagenSourceConfig
from raycdc.errors import LogLostError, SourceUnavailableError
from raycdc.model import RowKind, TableId, TableSchema, as_inserts, changelog_schema
from raycdc.model.batch import BATCH_ROWS_MAX
from raycdc.source.connector import (
    IncrementalSource,
    Restart,
    SourceContext,
    SourceFindings,
    SourceTable,
)
from raycdc.source.protocol.api import EnumeratorStart, SplitEnumerator, SplitEnumeratorContext
from raycdc.source.reader.fetcher_manager import Sequential, ThreadingModel
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.selection import TableSelection
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect, PlannedChunks, StartPoint, TablePlan
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    LogPosition,
    LogTransactions,
    LogUnit,
    ParkTableUpdate,
    SchemaChange,
    SchemaUpdate,
)
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.snapshot.reader.reading import HighWatermark
from raycdc.source.split import OpenedAt, SnapshotSplit, StreamSplit
from raycdc.source.tables.parked_tables import ParkedTables, ParkingSetup
from raycdc.source.tables.resnapshots import (
    FollowableTable,
    StatementPosition,
    TableVersion,
    UnfollowableTable,
    begin,
    unread,
)
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.state.opaque import PlannerState, Position

#: The number of transactions in one unit of the log: some hundred kilobytes.
_UNIT = 5_000
#: The longest wait of the log's thread while the log is quiet, in seconds.
_IDLE_S = 0.05


@dataclass(frozen=True, slots=True)
class DatagenPosition:
    """A position of the log: the number of transactions read, which is also the ordinal, and the time when the log
    began.
    """

    transactions: int
    began_ms: int

    @classmethod
    def of(cls, position: Position) -> DatagenPosition:
        """Return the inverse of `sealed`."""
        return cls(**position.to_json())

    def sealed(self) -> Position:
        """Return the position in the form in which states hold it."""
        return Position.from_json(asdict(self))


class DatagenSource(IncrementalSource[DatagenSourceConfig]):
    """The generated source; see the module's docstring."""

    def __init__(self, config: DatagenSourceConfig, context: SourceContext | None = None) -> None:
        super().__init__(config, context)
        self._generator = Generator(config)
        self._tables = tuple(map(TableId.parse, config.tables))
        self._began_ms = 0

    def __repr__(self) -> str:
        return f"DatagenSource({', '.join(self.config.tables)}, seed={self.config.seed})"

    @property
    def ring_s(self) -> float:
        return 0.0  # A chunk reports exactly the transactions that its rows include.

    def check(self, last: Manifest | None, *, names_reported: bool) -> SourceFindings:
        text = f"Rows are generated with seed {self.config.seed}: {', '.join(self.config.tables)}."
        return SourceFindings([CheckResult("connection", text, ok=True)], self._tables)

    def preflight(self, last: Manifest | None) -> None:
        if (state := stream_of(last)) is not None:
            _require_kept(self.config.faults.acknowledged, DatagenPosition.of(state.position))

    def tables(self) -> dict[TableId, SourceTable]:
        chunks = -(-self._generator.keys // self.config.chunk_rows)
        return {table: SourceTable(self._generator.schema(0), self.config.rows, chunks) for table in self._tables}

    def selection(self) -> TableSelection:
        return TableSelection("source.tables", self._tables, self._tables, self._tables)

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        if self.config.faults.acknowledged and STREAM_SPLIT_ID in positions:
            path = Path(self.config.faults.acknowledged)
            written = path.with_suffix(".new")
            written.write_text(json.dumps(positions[STREAM_SPLIT_ID].to_json()))
            written.replace(path)

    def restart(self, last: Manifest) -> Restart | None:
        state = stream_of(last)
        if state is None:
            return None
        began_ms = DatagenPosition.of(state.position).began_ms
        end = self._generator.end(began_ms)
        return Restart(DatagenPosition(end, began_ms).sealed(), end, self.config.tables)

    def create_enumerator(self, context: SplitEnumeratorContext, start: EnumeratorStart) -> SplitEnumerator:
        state = stream_of(start.last)
        # A real server has its own clock. Here, the state must have the time when the log began.
        now_ms = time.time_ns() // 1_000_000
        self._began_ms = now_ms if state is None else DatagenPosition.of(state.position).began_ms
        return super().create_enumerator(context, start)

    def enumerator_dialect(self) -> DatagenDialect:
        return DatagenDialect(self.config, self.context, self._began_ms)

    def log_reader(self, split: StreamSplit) -> DatagenLog:
        _require_kept(self.config.faults.acknowledged, DatagenPosition.of(split.state.position))
        return DatagenLog(self.config, self.context, split)

    def chunk_reader(self) -> DatagenChunks:
        return DatagenChunks(self.config)

    def threading(self, fetchers: int) -> ThreadingModel:
        return Sequential()  # Generating rows never waits, so a second thread would not help.

    def key_order(self, split: StreamSplit) -> DatagenKeyOrder:
        return DatagenKeyOrder()


class DatagenDialect(EnumeratorDialect):
    """The enumerator's dialect: finds and cuts tables, and gives the start and the end of the log."""

    #: There is no limit: every reader may read chunks.
    chunk_readers_max = 0
    #: No other server can take over.
    failover = None

    def __init__(self, config: DatagenSourceConfig, context: SourceContext, began_ms: int) -> None:
        self._config = config
        self._rules = context.rules
        self._generator = Generator(config)
        self._began_ms = began_ms

    def start_point(self) -> StartPoint:
        schema = self._generator.schema(0)
        document = SchemaDocument.of(schema)
        tables = map(TableId.parse, self._config.tables)
        plans = tuple(
            TablePlan(table, document.fingerprint, document, unread("id"), self._rules.refusal(table, schema))
            for table in tables
        )
        return StartPoint(DatagenPosition(0, self._began_ms).sealed(), 0, plans, parks=self._rules.parks)

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        cuts = [None, *range(self._config.chunk_rows, self._generator.keys, self._config.chunk_rows), None]
        splits = tuple(SnapshotSplit(table, first_index + n, "id", *each) for n, each in enumerate(pairwise(cuts)))
        return PlannedChunks(splits, None, len(splits), rows=self._config.rows)

    def current_ordinal(self) -> int:
        return self._generator.end(self._began_ms)

    def captures(self, table: TableId) -> bool:
        return self._config.captures(table)


class DatagenLog:
    """The log as a `raycdc.source.snapshot.reader.reading.BlockingLog`."""

    def __init__(self, config: DatagenSourceConfig, context: SourceContext, split: StreamSplit) -> None:
        self._config = config
        self._generator = Generator(config)
        start = DatagenPosition.of(split.state.position)
        self._began_ms = start.began_ms
        self._first = self._next = start.transactions
        self._versions = {table: self._versions_of(table) for table in split.state.followed}
        parked = {table: state for table, state in split.state.parked.items() if config.captures(table)}
        terms = ParkingSetup(parked, self._probe_table, context.rules)
        self._parked = ParkedTables(terms, followed=split.state.followed)
        self._woken = threading.Event()

    def fetch(self) -> LogUnit | None:
        _maybe_disconnect(self._config)
        if self._parked.waiting:
            return self._resnapshot_parked()
        # Read once, because the log may grow at any time.
        end = self._generator.end(self._began_ms)
        if self._next >= end:
            self._woken.wait(_IDLE_S)
            return None
        unit = max(1, self._config.rate_limit.rows_at_once(_UNIT * len(self._versions)) // max(1, len(self._versions)))
        last = min(end, self._next + min(unit, _UNIT), self._generator.next_alter(self._next))
        return self._changes(last) if last > self._next else self._alter()

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _changes(self, last: int) -> LogUnit:
        rows = []
        for table, versions in self._versions.items():
            changes = self._generator.changes(table, self._next, last, versions)
            batch = self._batch(table, changes)
            rows.append(LogRows(table, batch, changes.transactions + 1))
        self._next = last
        size = sum(each.batch.nbytes for each in rows)
        return LogTransactions(self._log_position(), tuple(each for each in rows if each.ordinals.size), bytes=size)

    def _batch(self, table: TableId, changes: GeneratedChanges) -> pa.RecordBatch:
        values = self._generator.columns(table, changes.keys, changes.versions, self._next)
        # Each transaction has four numbers: 0 for a truncation, 1 for the row before the change, 2 for the row after
        # it, and 3 is unused.
        is_after = np.isin(changes.kinds, (RowKind.UPDATE_AFTER, RowKind.INSERT))
        numbers = (changes.transactions - self._first) * 4 + 1 + is_after
        times = [self._generator.time_ms(self._began_ms, n) for n in changes.transactions.tolist()]
        places = [f"{n}:{int(after)}" for n, after in zip(changes.transactions.tolist(), is_after, strict=True)]
        meta = [pa.array(changes.kinds), pa.array(numbers), pa.array(times, pa.int64()), pa.array(places, pa.string())]
        schema = changelog_schema(self._generator.schema(self._next))
        return pa.RecordBatch.from_arrays([*values, *meta], schema=schema)

    def _alter(self) -> LogUnit:
        """Return the unit that alters all tables. A table whose targets cannot follow is parked."""
        before, after = self._generator.schema(self._next), self._generator.schema(self._next + 1)
        updates: list[SchemaUpdate] = []
        for table in list(self._versions):
            event = self._generator.alteration(table, self._next)
            if why := self._parked.objection(table, before, after, [event]):
                del self._versions[table]
                updates.append(self._parked.park(table, why, self._here()))
            else:
                updates.append(AlterTableUpdate(table, (event,), SchemaDocument.of(after)))
        self._next += 1
        return SchemaChange(self._log_position(), tuple(updates))

    def _resnapshot_parked(self) -> LogUnit:
        """Return the unit that resnapshots parked tables: targets are emptied, and all chunks are read.

        A table that still cannot be followed stays parked.
        """
        updates: list[SchemaUpdate] = []
        truncations: list[LogRows] = []
        for table, probe in self._parked.take_probed(self._here()):
            match probe:
                case ParkTableUpdate():
                    updates.append(probe)
                case FollowableTable(schema, _, snapshot):
                    self._parked.follow(table)
                    self._versions[table] = self._versions_of(table)
                    version = TableVersion(schema, SchemaDocument.of(schema))
                    number = (self._next - self._first) * 4
                    change = begin(table, version, snapshot, self._here(), seq=number)
                    updates.append(change.update)
                    truncations += change.rows
        return SchemaChange(self._log_position(), tuple(updates), tuple(truncations))

    def _probe_table(self, table: TableId) -> FollowableTable[TableSchema] | UnfollowableTable:
        """Return the present form of a table. A real connector would query its server."""
        schema = self._generator.schema(self._next)
        if why := self._parked.objection(table, None, schema, ()):
            return UnfollowableTable(why, self._next)
        return FollowableTable(schema, self._next, unread("id"))

    def _here(self) -> StatementPosition:
        return StatementPosition(self._position(), self._next, self._generator.time_ms(self._began_ms, self._next))

    def _log_position(self) -> LogPosition:
        """Return the present position of the log."""
        event_ms = self._generator.time_ms(self._began_ms, self._next)
        return LogPosition(self._position(), self._next, event_ms, time.time_ns() // 1_000_000)

    def _position(self) -> Position:
        return DatagenPosition(self._next, self._began_ms).sealed()

    def _versions_of(self, table: TableId) -> Numbers:
        return self._generator.versions(table, 0, self._generator.keys, self._next)


class DatagenChunks:
    """The reader of chunks, a `raycdc.source.snapshot.reader.reading.ChunkReader`."""

    def __init__(self, config: DatagenSourceConfig) -> None:
        self._config = config
        self._generator = Generator(config)
        self._seen = 0
        self._woken = threading.Event()

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        opened = DatagenPosition.of(opened_at.position)
        end = self._generator.end(opened.began_ms)
        # Read the latest rows for which the table still has the form in `document`.
        self._seen = max(opened.transactions, min(end, self._generator.next_alter(opened.transactions)))
        schema, read_ms = changelog_schema(document.schema), time.time_ns() // 1_000_000
        upper = self._generator.keys if split.upper is None else split.upper
        rows = 0
        at_once = self._config.rate_limit.rows_at_once(BATCH_ROWS_MAX)
        for lower in range(split.lower or 0, upper, at_once):
            _maybe_disconnect(self._config)
            beyond = min(upper, lower + at_once)
            versions = self._generator.versions(split.table, lower, beyond, self._seen)
            there = versions != ABSENT
            keys = np.arange(lower, beyond, dtype=np.int64)[there]
            values = self._generator.columns(split.table, keys, versions[there], self._seen)
            plain = pa.RecordBatch.from_arrays(values, schema=document.schema.arrow())
            if slow := self._config.faults.chunk_rows_per_second:
                self._woken.wait(plain.num_rows / slow)
            yield as_inserts(plain, schema, first=rows, read_ms=read_ms)
            rows += plain.num_rows

    def high_watermark(self) -> HighWatermark:
        return HighWatermark(self._seen, exact=True, log_end=self._seen)

    def log_end(self, opened_at: OpenedAt) -> HighWatermark:
        end = self._generator.end(DatagenPosition.of(opened_at.position).began_ms)
        return HighWatermark(end, exact=False, log_end=end)

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Do nothing: nothing is open."""


class DatagenKeyOrder:
    """The order of keys (`raycdc.source.snapshot.handoff.hand_off.KeyOrder`): they are whole numbers in every table."""

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None:
        """Do nothing, because no table is remembered."""

    def forget(self, table: TableId) -> None:
        """Do nothing, because no table is remembered."""

    def bound(self, table: TableId, raw: int) -> int:
        return raw

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[int]) -> Numbers:
        cells: Numbers = np.searchsorted(np.array(bounds, np.int64), keys.to_numpy(zero_copy_only=False), side="right")
        return cells


def _require_kept(path: str | None, position: DatagenPosition) -> None:
    """Raise `LogLostError` if a position before the acknowledged one is requested."""
    if path is None or not Path(path).exists():
        return
    kept = json.loads(Path(path).read_text())["transactions"]
    if kept > position.transactions:
        raise LogLostError(
            f"The log begins at transaction {kept}, up to which all was acknowledged ({path}), and the state is at "
            f"{position.transactions}: it is an older one. Use the newest state, or take new snapshots with "
            'pipeline.on_log_lost = "resnapshot".'
        )


def _maybe_disconnect(config: DatagenSourceConfig) -> None:
    # The faults do not depend on the seed. Otherwise a restarted run would meet the same fault again and again.
    if config.faults.disconnects and random.random() < config.faults.disconnects:  # noqa: S311 - no secret
        raise SourceUnavailableError("A deliberate fault (source.faults.disconnects): the connection is lost.")
