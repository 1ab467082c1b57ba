"""The source side of one generation, as the driver sees it: seals epochs, loses readers, hears of commits.

It is not the real coordinator, which `tests.support.simulation.world` plays; it has the same effects on the state, by
the same rules (`raycdc.source.tables.parking`), and reads the log itself in the place of its readers. Those must be
there for an epoch to be sealed, so a reader that nobody replaces stops the job. A table that begins, or begins again,
tells so in one epoch and has its rows in the next.
"""

from __future__ import annotations

import json
import random
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raycdc.model import TableId
from raycdc.model.evolution.events import AddColumnEvent, CreateTableEvent, SchemaChangeEvent, TruncateTableEvent
from raycdc.runtime.coordinator.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import CoordinatorLostError
from raycdc.source.protocol.api import TableProgress
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus, TableStatus
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.tables.parking import Refusal, with_refusals, with_requests
from raycdc.source.tables.table_life import CatchingUp, InSnapshot, Live, Parked, SnapshotState, TableState, Unknown
from raycdc.source.tables.table_requests import refusals_of, requests_of
from raycdc.state.manifests.manifest import STATE_NODE, STREAM_SPLIT_ID, Manifest, Segment, TableEpoch, seq_base
from raycdc.state.opaque import EnumeratorState
from raycdc.state.store import CheckpointStore
from tests.support.simulation.database import SimPosition
from tests.support.simulation.drivers.fibers import Fibers, FiberThreads, Process
from tests.support.simulation.drivers.log import Row, SourceLog

#: The maximum number of sealed epochs that wait for the sink.
IN_FLIGHT_MAX = 3
#: The maximum number of changes of one epoch.
CHANGES_MAX = 8

#: A changelog row in a segment's file: operation, and the row.
Entry = tuple[str, Row]
#: The rows of an open epoch, by their table and the kind of segment that they go to; and what it tells of tables.
Rows = dict[tuple[TableId, str], list[Entry]]
Tables = dict[TableId, TableEpoch]


@dataclass(frozen=True, slots=True)
class _Sealed:
    """An epoch that is not known to be committed."""

    epoch: int
    segments: tuple[Path, ...]


@dataclass(slots=True)
class SimSourceSide:
    """The source side, which every generation's coordinator uses.

    With `until_caught_up`, a run ends at the end of the log.
    """

    fibers: Fibers
    log: SourceLog
    chance: random.Random
    until_caught_up: bool = False


class SimCoordinator:
    """A coordinator as a `raycdc.runtime.launcher.CoordinatorHandle`."""

    pid = 1

    def __init__(self, process: Process, world: SimSourceSide, store: CheckpointStore, start: CoordinatorStart) -> None:
        self.process = process
        self.generation = start.generation
        #: The incarnation of each reader that has registered.
        self.readers: dict[int, int] = {}
        #: The readers that were found silent.
        self.lost: list[tuple[int, int, str]] = []
        #: True if no message between it and the driver arrives any more.
        self.cut_off = False
        self._threads = FiberThreads(world.fibers, process)
        self._store = store
        self._source = world.log
        self._random = world.chance
        self._until_caught_up = world.until_caught_up
        self._error: BaseException | None = None
        self._final: int | None = None
        self._committed = start.committed
        last = store.last_manifest()
        self._next = store.next_epoch()
        record = store.last_commit()
        self._stream = with_requests(_stream(last), requests_of(store))
        self._stream = with_refusals(self._stream, refusals_of(record.parked) if record else ())
        self._before = {} if last is None else last.to_splits
        self._sealed = [_sealed(manifest) for manifest in store.manifests(start.committed)]
        self._threads.start(self._run, "coordinator")

    def __repr__(self) -> str:
        return f"SimCoordinator({self.process}, generation={self.generation}, readers={self.readers})"

    # -- what the driver calls

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        self._check()
        self._threads.wait_for(lambda: self._after(after) is not None or self._error is not None, wait_s)
        self._check()
        return self._after(after), self._final

    def epoch_committed(self, epoch: int) -> None:
        self._check()
        self._committed = max(self._committed, epoch)
        for sealed in [s for s in self._sealed if s.epoch <= epoch]:
            for path in sealed.segments:
                path.unlink(missing_ok=True)
        self._sealed = [s for s in self._sealed if s.epoch > epoch]

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        self._check()
        self._stream = with_refusals(self._stream, refusals)

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        raise AssertionError("no reader here speaks")

    def reader_lost(self, subtask_id: int, incarnation: int, reason: str) -> None:
        self._check()
        if self.readers.get(subtask_id) == incarnation:
            del self.readers[subtask_id]

    def take_lost(self) -> list[tuple[int, int, str]]:
        self._check()
        lost, self.lost = self.lost, []
        return lost

    def retire(self, subtask_id: int) -> bool:
        self._check()
        self.readers.pop(subtask_id, None)
        return True

    def status(self, *, tables: bool) -> JobStatus:
        self._check()
        readers = tuple(ReaderStatus(s, incarnation, 0, STATE_NODE) for s, incarnation in self.readers.items())
        states = {table: self._stream[table] for table in self._source.tables}
        found = {
            table: TableStatus(TableProgress("snapshot" if _is_to_be_read(state) else "stream"))
            for table, state in states.items()
            if tables
        }
        return JobStatus(self.generation, self._next - 1, self._committed, found, readers=readers)

    def stop(self) -> None:
        self._until_caught_up = True

    def shutdown_readers(self, reason: str) -> None:
        self.readers.clear()

    def close(self) -> None:
        if not self.cut_off:
            self.process.alive = False

    def _check(self) -> None:
        if self.cut_off or not self.process.alive:
            raise CoordinatorLostError("no answer")
        if self._error is not None:
            raise self._error

    def _after(self, after: int) -> int | None:
        return next((sealed.epoch for sealed in self._sealed if sealed.epoch > after), None)

    # -- what it does by itself

    def _run(self) -> None:
        try:
            while self._final is None:
                self._threads.wait(threading.Event(), self._random.uniform(0.05, 0.8))
                if len(self._sealed) < IN_FLIGHT_MAX and self.readers and not self.lost:
                    self._seal()
        except Exception as error:  # noqa: BLE001 - raised again by whoever asks
            self._error = error

    def _seal(self) -> None:
        """Seal the next epoch, if there is anything to seal."""
        begin = self._stream.ordinal
        tables: Tables = {}
        rows: Rows = {}
        stream = self._stream
        for table in self._source.tables:
            match stream[table]:
                case InSnapshot() as state:
                    rows[table, "snapshot"] = [("+I", row) for row in self._source.rows(table, begin).values()]
                    stream = _with(stream, table, Live(state.schema, announced=True, incarnation=state.incarnation))
                case Parked(again=True) | CatchingUp():
                    # This coordinator cannot read behind its place, and begins a table that is to go on anew.
                    stream = self._begin(stream, table, rows, tables)
                case Unknown() if self._random.random() < 0.6:
                    stream = self._begin(stream, table, rows, tables)
                case _:
                    pass
        live = {t for t, state in stream.followed.items() if isinstance(state, Live)}
        # Nor may the columns of a snapshot that this epoch has.
        read = {table: TableEpoch("", snapshot=True) for table, kind in rows if kind == "snapshot"}
        end = self._end(begin, {**tables, **read})
        for change in self._source.between(begin, end):
            if change.table not in live:
                continue
            if change.column:
                column = self._source.schema(change.table, change.ordinal).columns[-1]
                event = AddColumnEvent(change.table, column)
                told = tables.get(change.table)
                tables[change.table] = TableEpoch("", snapshot=False, changes=(*(told.changes if told else ()), event))
            else:
                rows.setdefault((change.table, "log"), []).extend(_entries(change.before, change.after))
        reading = any(_is_to_be_read(stream[table]) for table in self._source.tables)
        final = self._until_caught_up and end == self._source.end and not reading
        if not rows and not tables and end == begin and not final:
            return
        self._write(replace(stream, ordinal=end, position=SimPosition(end).sealed()), tables, rows, final=final)

    def _begin(
        self,
        stream: StreamState,
        table: TableId,
        rows: Rows,
        tables: Tables,
    ) -> StreamState:
        """Begin the table: this epoch empties its target, and the next has its rows."""
        schema = self._source.schema(table, stream.ordinal)
        known = stream.named(str(table))
        again = isinstance(known, Parked | CatchingUp) and known.announced
        events: list[SchemaChangeEvent] = [CreateTableEvent(table, schema)]
        if again:
            events.insert(0, TruncateTableEvent(table))
        if again:
            rows[table, "log"] = [("T", dict.fromkeys(c.name for c in schema.columns))]
        tables[table] = TableEpoch(schema.fingerprint(), snapshot=True, changes=tuple(events))
        number = stream.changes + 1 if again else 0
        snapshot = SnapshotState("id", foldable=True, needs_null=False)
        state = InSnapshot(schema.fingerprint(), announced=True, incarnation=number, snapshot=snapshot)
        return replace(_with(stream, table, state), changes=max(stream.changes, number))

    def _end(self, begin: int, tables: Tables) -> int:
        """Return where the epoch ends: before a new column of a table with rows in it, because all of these have one
        schema.
        """
        end = min(self._source.end, begin + self._random.randint(1, CHANGES_MAX))
        fixed = {table for table, told in tables.items() if told.snapshot}
        for change in self._source.between(begin, end):
            if not change.column:
                fixed.add(change.table)
            elif change.table in fixed:
                return change.ordinal - 1
        return end

    def _write(
        self,
        stream: StreamState,
        tables: Tables,
        rows: Rows,
        *,
        final: bool,
    ) -> None:
        epoch, segments = self._next, []
        at = dict.fromkeys(self._source.tables, stream.ordinal)
        for table, told in tables.items():
            if told.snapshot:
                at[table] = self._stream.ordinal
        for (table, kind), entries in rows.items():
            if entries:
                schema = self._source.schema(table, at[table]).fingerprint()
                segments.append(self._segment(table, kind, entries, epoch, schema))
            tables.setdefault(table, TableEpoch("", snapshot=False))
        for table, told in tables.items():
            schema = self._store.put_schema(self._source.schema(table, at[table]))
            tables[table] = replace(told, schema=schema)
        manifest = Manifest(
            epoch=epoch,
            generation=self.generation,
            created_ms=int(self._threads.now_s() * 1000),
            from_splits=self._before,
            to_splits={STREAM_SPLIT_ID: stream.sealed()},
            enumerator=EnumeratorState.from_json({}),
            segments=tuple(segments),
            tables=tables,
            final=final,
        )
        self._store.write_manifest(manifest)
        # Whoever was refused meanwhile waits from the next epoch on.
        refused = self._stream.parked.keys() - stream.parked.keys()
        self._stream = with_refusals(stream, [_refusal(t, self._stream.parked[t]) for t in sorted(refused, key=str)])
        self._next, self._before = epoch + 1, manifest.to_splits
        self._sealed.append(_sealed(manifest))
        self._final = epoch if final else None
        if (base := self._store.manifest_files.take_due()) is not None:
            base()

    def _segment(self, table: TableId, kind: str, entries: list[Entry], epoch: int, schema: str) -> Segment:
        name = f"{epoch:06d}-{table}-{kind}-{self.generation}"
        content = json.dumps(entries).encode()
        path = self._store.spool / name
        path.write_bytes(content)
        base = seq_base(epoch, log=kind == "log")
        return Segment(
            STATE_NODE,
            str(path),
            "",
            table,
            schema,
            "s",
            0,
            kind,
            base,
            len(entries),
            len(content),
            zlib.crc32(content),
        )


def _is_to_be_read(state: TableState) -> bool:
    return isinstance(state, InSnapshot | CatchingUp | Unknown) or (isinstance(state, Parked) and state.again)


def _refusal(table: TableId, parked: Parked) -> Refusal:
    return Refusal(table, parked.incarnation, parked.reason, parked.position, parked.ts_ms)


def _entries(before: Row | None, after: Row | None) -> list[Entry]:
    if before is None:
        assert after is not None
        return [("+I", after)]
    return [("-D", before)] if after is None else [("-U", before), ("+U", after)]


def _stream(last: Manifest | None) -> StreamState:
    return stream_of(last) or StreamState(SimPosition(0).sealed(), 0)


def _with(stream: StreamState, table: TableId, state: InSnapshot | Live) -> StreamState:
    parked = {name: entry for name, entry in stream.parked.items() if name != table}
    others = {name: entry for name, entry in stream.catching_up.items() if name != table}
    return replace(stream, followed={**stream.followed, table: state}, parked=parked, catching_up=others)


def _sealed(manifest: Manifest) -> _Sealed:
    return _Sealed(manifest.epoch, tuple(Path(segment.path) for segment in manifest.segments))
