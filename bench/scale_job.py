"""A job without servers, rows or processes: the real coordinator with its state on disk, and real readers with an
invented log and invented chunks. Its time is the cost of coordination alone.

All readers run in the calling thread, one after the other, so that times are those of one core without waiting.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.core.startup_tuning import collect_seldom, without_collection
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.runtime.coordinator.coordinator_host import CoordinatorHost, CoordinatorStart
from raycdc.source.protocol.api import Availability, ChunkSegments, EnumeratorStart, InputStatus
from raycdc.source.protocol.coordinator import CoordinatorSettings
from raycdc.source.protocol.link import Link, SenderIdentity, read_packet
from raycdc.source.protocol.source_event import ReaderRegistration
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.incremental_enumerator import restore_or_create
from raycdc.source.snapshot.enumerator.snapshot_plan import PLANNED_AHEAD, PlannedChunks, StartPoint, TablePlan
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.source.snapshot.log.log_rows import LogRows, SpilledRows
from raycdc.source.snapshot.log.log_unit import LogPosition, LogTransactions, LogUnit
from raycdc.source.snapshot.reader.incremental_reader import IncrementalReader
from raycdc.source.split import OpenedAt, SnapshotSplit, StreamSplit
from raycdc.source.tables.table_life import SnapshotState
from raycdc.state.manifests.manifest import Segment, seq_base
from raycdc.state.opaque import PlannerState, Position
from raycdc.state.store import CheckpointStore, CommitRecord

#: The number of tables with different columns; all others have the schema of one of these.
SCHEMAS = 10
#: The number of keys of a chunk.
CHUNK_KEYS = 1000

_BATCH = pa.record_batch({"id": pa.array([1], pa.int64()), "_op": pa.array([0], pa.int8())})
_PLACE = np.array([0], np.int64)


def name_of(number: int) -> TableId:
    return TableId("tenants", f"orders_of_tenant_{number:06d}")


def document_of(number: int) -> SchemaDocument:
    return _document(number % SCHEMAS)


@cache
def _document(number: int) -> SchemaDocument:
    columns = ["id", *(f"column_{n}" for n in range(number + 5))]
    made = tuple(Column(name, LogicalType(TypeKind.INT64), nullable=name != "id") for name in columns)
    return SchemaDocument.of(TableSchema(made, ("id",)))


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the job. `chunks` are those of one more table, which is read while the others are live."""

    tables: int
    readers: int
    chunks: int = 0


class Numbers:
    """A `KeyOrder` of integers."""

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None: ...

    def forget(self, table: TableId) -> None: ...

    def bound(self, table: TableId, raw: Any) -> int:
        return int(raw)

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[int]) -> np.ndarray:
        found: np.ndarray = np.searchsorted(np.asarray(bounds), keys.to_numpy(), side="right")
        return found


class Output:
    """Makes segments that have a name and no content."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._tables: dict[TableId, str] = {}
        self._published: list[Segment] = []

    @property
    def open_bytes(self) -> int:
        return len(self._tables) + len(self._published)

    def collect(self, table: TableId, *, fingerprint: str, **_: Any) -> None:
        self._tables[table] = fingerprint

    def publish(self, segments: Sequence[Segment]) -> None:
        self._published += segments

    def spill(self, rows: Sequence[LogRows]) -> SpilledRows:
        raise AssertionError("there is room in memory")

    def write_delta(self, rows: Iterable[LogRows], *, fingerprint: str, split_id: str) -> tuple[Segment, ...]:
        raise AssertionError("no chunk is folded")

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        log = [
            segment_of(f"{epoch:010d}-{table}-log", self._node, table, fingerprint, base=seq_base(epoch, log=True))
            for table, fingerprint in self._tables.items()
        ]
        cut = (*self._published, *log)
        self._tables, self._published = {}, []
        return cut

    def release(self, paths: Sequence[str]) -> None: ...

    def discard(self, segments: Sequence[Segment]) -> None: ...

    def close(self) -> None: ...


def segment_of(name: str, node: str, table: TableId, fingerprint: str, *, base: int = 0) -> Segment:
    kind = "log" if base else "snapshot"
    return Segment(node, f"/spool/{name}", "", table, fingerprint, "stream", 0, kind, base, 1, 1000, 1)


class Log:
    """A `LogSource` of given units."""

    seen_ms: int | None = None

    def __init__(self) -> None:
        self.units: deque[LogUnit] = deque()

    def poll(self) -> LogUnit | None:
        return self.units.popleft() if self.units else None

    def close(self) -> None: ...


class Chunks:
    """A `ChunkSource` that has read each chunk immediately."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._done: deque[ChunkSegments] = deque()

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> None:
        place = int(opened_at.position.to_json()["at"])
        made = segment_of(f"{split.split_id}-{split.attempt}", self._node, split.table, document.fingerprint)
        self._done.append(ChunkSegments(split, high=place, exact=True, segments=(made,), log_end=place))

    def fold(self, *, read: ChunkSegments, delta: Sequence[Segment], document: SchemaDocument) -> None:
        raise AssertionError("nothing was held")

    def poll(self) -> ChunkSegments | None:
        return self._done.popleft() if self._done else None

    def discard(self, segments: Sequence[Segment]) -> None: ...

    def close(self) -> None: ...


class Dialect:
    """Both sides of an invented connector: live tables, and one with chunks if the shape has any."""

    ring_s = 0.0
    chunk_readers_max = 0

    def __init__(self, shape: Shape, node: str = "") -> None:
        self.shape = shape
        self.log = Log()
        self._node = node

    def start_point(self) -> StartPoint:
        plans = [
            TablePlan(name_of(n), document_of(n).fingerprint, document_of(n), None) for n in range(self.shape.tables)
        ]
        if self.shape.chunks:
            document = document_of(0)
            cut = SnapshotState("id", foldable=True, needs_null=False)
            plans.append(TablePlan(TableId("tenants", "large"), document.fingerprint, document, cut))
        return StartPoint(Position.from_json({"at": 1}), 1, tuple(plans))

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        last = self.shape.chunks - 1
        indexes = range(first_index, min(first_index + PLANNED_AHEAD, last + 1))
        splits = [
            SnapshotSplit(
                table,
                index,
                "id",
                index * CHUNK_KEYS if index else None,
                (index + 1) * CHUNK_KEYS if index < last else None,
            )
            for index in indexes
        ]
        done = not splits or splits[-1].index == last
        return PlannedChunks(tuple(splits), None if done else planner, self.shape.chunks)

    def current_ordinal(self) -> int:
        return 1

    def captures(self, table: TableId) -> bool:
        return True

    def open_log(self, split: StreamSplit) -> Log:
        return self.log

    def open_chunks(self) -> Chunks:
        return Chunks(self._node)

    def key_order(self, split: StreamSplit) -> Numbers:
        return Numbers()


class Connector:
    """The part of a `Source` that a coordinator needs."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def create_enumerator(self, context: Any, start: EnumeratorStart) -> Any:
        return restore_or_create(context, self._dialect, start)

    def acknowledge(self, positions: Any) -> None: ...


@dataclass(slots=True)
class Spent:
    """CPU seconds of the calling thread, by their purpose."""

    coordinator_s: float = 0.0
    readers_s: float = 0.0


@dataclass(slots=True)
class Reader:
    """A real reader with a real link, moved by `Job`."""

    number: int
    link: Link
    dialect: Dialect
    reader: IncrementalReader = field(init=False)
    unsent: bool = True

    def __post_init__(self) -> None:
        context = ReaderContext(
            Output(f"node-{self.number % 10}"),
            send=self._send,
            availability=Availability(),
            now_s=time.monotonic,
            epoch_bytes_max=1 << 40,
            threads=None,  # type: ignore[arg-type]  # no thread fetches anything here
        )
        self.reader = IncrementalReader(context, self.dialect)
        self.link.send(ReaderRegistration(f"node-{self.number % 10}", self.number + 1, ""))

    def _send(self, message: Any) -> None:
        self.link.send(message)
        self.unsent = True

    def beat(self) -> None:
        self._send(self.reader.heartbeat())

    def work(self) -> None:
        while self.reader.poll_next() is InputStatus.MORE_AVAILABLE:
            continue


class Driver:
    """The process of `bench.scale_driver`, and its largest size so far."""

    def __init__(self, state: Path) -> None:
        command = [sys.executable, "-m", "bench.scale_driver", str(state)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.peak_bytes = 0

    def read_after(self, committed: int) -> tuple[int, float]:
        """Return the epoch after `committed`, and the seconds to read it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{committed}\n")
        self._process.stdin.flush()
        epoch, took_s, self.peak_bytes = json.loads(self._process.stdout.readline())
        return epoch, took_s

    def close(self) -> None:
        self._process.communicate()


class Job:
    """A coordinator and its readers, with a state in `folder`. `spent` grows while they are moved."""

    def __init__(self, folder: Path, shape: Shape, *, interval_s: float = 3600.0) -> None:
        self.shape = shape
        self.spent = Spent()
        self.place = 1
        self.store = CheckpointStore(folder / "state", pipeline="scale")
        self.driver = Driver(folder / "state")
        generation = self.store.generations.next()
        self.store.manifest_files.epochs.take_over(generation)
        self.generation = generation
        record = self.store.last_commit()
        self.committed = record.epoch if record else 0
        collect_seldom()  # The same settings as in the coordinator's actor.
        with without_collection():
            self.host = self._coordinator(interval_s)
        self.readers = [
            Reader(number, Link(SenderIdentity(generation, 1)), Dialect(shape, f"node-{number % 10}"))
            for number in range(shape.readers)
        ]

    def _coordinator(self, interval_s: float) -> CoordinatorHost:
        """Create the coordinator like `raycdc.runtime.launcher`."""
        begin = EnumeratorStart(
            None,
            self.store.last_manifest(),
            lambda name: SchemaDocument.from_json(self.store.document(name)),
        )
        connector: Any = Connector(Dialect(self.shape))
        return CoordinatorHost(
            self.store,
            connector,
            start=CoordinatorStart(self.generation, self.committed),
            begin=begin,
            settings=CoordinatorSettings(
                epoch_interval_s=interval_s,
                epoch_bytes_max=1 << 40,
                epoch_bytes_idle=1 << 40,
                # All readers run in one thread, which may be busy with one of them.
                reader_timeout_s=3600.0,
                progress_timeout_s=3600.0,
            ),
        )

    def exchange(self, reader: Reader) -> bool:
        """Make one call of a reader to the coordinator, and process the answer. Return True if it had messages."""
        begun = time.thread_time()
        packet = reader.link.packet()
        reader.unsent = False
        called = time.thread_time()
        answer = self.host.exchange(reader.number, 1, packet, wait_s=0.0)
        answered = time.thread_time()
        messages = reader.link.receive(read_packet(answer))
        for message in messages:
            reader.reader.handle(message)
        reader.work()
        self.spent.coordinator_s += answered - called
        self.spent.readers_s += time.thread_time() - answered + called - begun
        return bool(messages)

    def register(self) -> None:
        """Register all readers, and give them their splits."""
        for reader in self.readers:
            self.exchange(reader)
        self.settle(lambda: bool(self.log_readers()))

    def log_readers(self) -> list[Reader]:
        return [reader for reader in self.readers if reader.reader._log is not None]

    @property
    def log(self) -> Reader:
        """Return the reader that has the log."""
        return self.log_readers()[0]

    def settle(self, done: Callable[[], bool], *, limit_s: float = 600.0) -> None:
        """Move all readers until `done` returns True."""
        deadline_s = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the job does not come to rest: {self.host.status()}")
            came = sum(self.exchange(reader) for reader in self.readers)
            if not came:
                time.sleep(0.002)

    def change(self, tables: Sequence[int]) -> None:
        """Add a transaction to the log, with a row in each of these tables."""
        self.place += 1
        rows = tuple(LogRows(name_of(number), _BATCH, _PLACE + self.place) for number in tables)
        self.log.dialect.log.units.append(
            LogTransactions(LogPosition(Position.from_json({"at": self.place}), self.place), rows)
        )
        self.log.work()

    def ask_for_seal(self) -> None:
        """Make the next tick seal."""
        with self.host._condition:
            self.host._core._timer._last_s = -1e9
        self.log.beat()
        self.exchange(self.log)

    def sealed(self) -> int:
        """Wait for the next epoch."""
        found: list[int] = []

        def look() -> bool:
            epoch, _ = self.host.next_sealed(self.committed, wait_s=0.0)
            found.extend([] if epoch is None else [epoch])
            return bool(found)

        self.settle(look)
        return found[0]

    def read_and_commit(self, epoch: int) -> float:
        """Do the driver's part of an epoch: read the manifest, and write a record. Return the seconds to read."""
        read, took_s = self.driver.read_after(self.committed)
        assert read == epoch
        self.store.write_commit(CommitRecord(epoch, self.generation, 0, {}))
        self.host.epoch_committed(epoch)
        self.committed = epoch
        return took_s

    def close(self) -> None:
        self.host.close()
        self.driver.close()
