"""A coordinator and readers on a link that a test holds in its hand: nothing moves unless the test says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raycdc.errors import FencedError
from raycdc.model import TableId
from raycdc.model.rules.rate_limit import Until
from raycdc.source.protocol.api import EnumeratorStart
from raycdc.source.protocol.coordination import EnumeratorContext
from raycdc.source.protocol.coordinator import (
    CoordinatorEnvironment,
    CoordinatorSettings,
    RecoveryPoint,
    SourceCoordinator,
)
from raycdc.source.protocol.link import Link, SenderIdentity, read_packet
from raycdc.source.protocol.source_event import (
    AddSplits,
    EpochSealed,
    Heartbeat,
    Message,
    NoMoreSplits,
    ReaderRegistration,
    SealEpoch,
    SourceEvent,
    SourceEventWrapper,
)
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_events import ChunkOpened, ChunkPublished, ChunkVoided, CloseChunkRequest, Fate
from raycdc.source.snapshot.enumerator.incremental_enumerator import IncrementalSnapshotEnumerator, restore_or_create
from raycdc.source.snapshot.enumerator.snapshot_plan import (
    EnumeratorDialect,
    FailoverDialect,
    PlannedChunks,
    StartPoint,
    TablePlan,
)
from raycdc.source.split import OpenedAt, SnapshotSplit, StreamSplit
from raycdc.source.tables.table_life import SnapshotState
from raycdc.state.manifests.manifest import Manifest, Segment
from raycdc.state.opaque import PlannerState, Position, SealedSplit

TABLE = TableId("shop", "orders")
DOCUMENT = SchemaDocument.from_json({"fingerprint": "f1", "columns": [], "primary_key": ["id"]})
SETTINGS = CoordinatorSettings(
    epoch_interval_s=2, epoch_bytes_max=1000, epoch_bytes_idle=400, in_flight_max=2, reader_timeout_s=10
)


def segment(path: str, *, node: str = "here", flight: str = "") -> Segment:
    """A segment of the log's rows at `path`; what is in it does not matter."""
    return Segment(node, path, flight, TABLE, "f1", "stream", 0, "log", 0, 1, 1, 0)


class Store:
    """Manifests in memory."""

    def __init__(self) -> None:
        self.manifests: list[Manifest] = []
        self.documents: dict[str, dict[str, Any]] = {}

    def put_documents(self, documents: Mapping[str, dict[str, Any]]) -> None:
        self.documents.update(documents)

    def document(self, fingerprint: str) -> dict[str, Any]:
        return self.documents[fingerprint]

    def write_manifest(self, manifest: Manifest) -> None:
        self.manifests.append(manifest)


class OneTableDialect(EnumeratorDialect):
    """One table, cut at the given bounds; its log ends at `end`."""

    chunk_readers_max: int = 0
    failover: FailoverDialect | None = None

    def __init__(self, *cuts: int) -> None:
        self.cuts = cuts
        self.end = 100
        self.left_out: set[TableId] = set()

    def start_point(self) -> StartPoint:
        snapshot = SnapshotState("id", foldable=True, needs_null=False)
        return StartPoint(Position.from_json({"at": self.end}), self.end, (TablePlan(TABLE, "f1", DOCUMENT, snapshot),))

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        bounds: list[int | None] = [None, *self.cuts, None]
        ranges = itertools.pairwise(bounds)
        chunks = [SnapshotSplit(table, n, "id", low, high) for n, (low, high) in enumerate(ranges)]
        return PlannedChunks(tuple(chunks[first_index:]), None, len(chunks))

    def captures(self, table: TableId) -> bool:
        return table not in self.left_out

    def current_ordinal(self) -> int:
        return self.end


class FakeReader:
    """The reader's end of a link, without a reader behind it: the test says what it sends."""

    def __init__(self, job: Job, subtask: int, incarnation: int, generation: int) -> None:
        self.job = job
        self.subtask = subtask
        self.incarnation = incarnation
        self.link = Link(SenderIdentity(generation, incarnation))
        self.got: list[Message] = []

    def send(self, *messages: Message) -> FakeReader:
        """Send and take in the answer."""
        for message in messages:
            self.link.send(message)
        return self.exchange()

    def exchange(self) -> FakeReader:
        self.job.coordinator.receive(self.subtask, self.link.packet(), now_s=self.job.now_s)
        answer = self.job.coordinator.readers.outgoing(self.subtask, self.incarnation)
        if answer is None:
            raise FencedError("replaced")
        self.got.extend(self.link.receive(read_packet(answer)))
        return self

    def register(self) -> FakeReader:
        return self.send(ReaderRegistration("here", 100 + self.subtask, ""))

    def event(self, event: SourceEvent) -> FakeReader:
        return self.send(SourceEventWrapper(event))

    def opened(self, split: SnapshotSplit) -> FakeReader:
        return self.event(ChunkOpened(split.chunk_id, OpenedAt(Position.unknown()), DOCUMENT))

    def closed(self, split: SnapshotSplit, *segments: Segment, high: int = 100) -> FakeReader:
        return self.event(CloseChunkRequest(split.chunk_id, high, high, exact=True, segments=segments))

    def published(self, split: SnapshotSplit) -> FakeReader:
        return self.event(ChunkPublished(split.chunk_id))

    def voided(self, split: SnapshotSplit, reason: str, fate: Fate = Fate.READ_AGAIN) -> FakeReader:
        return self.event(ChunkVoided(split.chunk_id, reason, fate))

    def take(self, kind: type[Any]) -> list[Any]:
        """Messages of a kind received since the last time, oldest first; the rest stays."""
        self.exchange()
        found = [message for message in self.got if isinstance(message, kind)]
        self.got = [message for message in self.got if not isinstance(message, kind)]
        return found

    def chunks(self) -> list[SnapshotSplit]:
        """Chunks given to this reader since the last look."""
        splits = [s for m in self.take(AddSplits) for s in m.splits]
        self.got.extend(AddSplits((s,)) for s in splits if isinstance(s, StreamSplit))
        return [s for s in splits if isinstance(s, SnapshotSplit)]

    def stream(self) -> StreamSplit | None:
        """The stream, if it was given to this reader since the last look."""
        splits = [s for m in self.take(AddSplits) for s in m.splits]
        self.got.extend(AddSplits((s,)) for s in splits if isinstance(s, SnapshotSplit))
        return next((s for s in splits if isinstance(s, StreamSplit)), None)

    def events(self) -> list[type[SourceEvent]]:
        """Types of connector events received since the last look."""
        return [type(m.event) for m in self.take(SourceEventWrapper)]

    def is_finished(self) -> bool:
        return bool(self.take(NoMoreSplits))

    def asked_to_seal(self) -> list[int]:
        return [m.epoch for m in self.take(SealEpoch)]

    def sealed(self, epoch: int, *, at: int | None = None, finished: Sequence[SnapshotSplit] = ()) -> FakeReader:
        """Report an epoch; `at` is where the stream got, if this reader has it."""
        splits = {} if at is None else {"stream": SealedSplit.from_json(self.job.stream_state(at))}
        names = tuple(split.split_id for split in finished)
        return self.send(EpochSealed(epoch, splits, (), {}, {}, names, None, end_of_input=False))


class Job:
    """A coordinator with the real enumerator over a `OneTableDialect`; asynchronous calls are done at once."""

    def __init__(
        self,
        *,
        cuts: Sequence[int] = (),
        generation: int = 1,
        until: Until | None = None,
        store: Store | None = None,
        settings: CoordinatorSettings = SETTINGS,
    ) -> None:
        self.now_s = 0.0
        self.generation = generation
        self.store = store or Store()
        self.dialect = OneTableDialect(*cuts)
        self.enumerator: IncrementalSnapshotEnumerator | None = None
        last = self.store.manifests[-1] if self.store.manifests else None
        self.coordinator = SourceCoordinator(
            lambda context: self._enumerator(context, until, last),
            recovered=RecoveryPoint(generation, last, 0, last.epoch + 1 if last else 1),
            settings=settings,
            surroundings=CoordinatorEnvironment(self.store, self._call, lambda: int(self.now_s * 1000)),
        )
        self.coordinator.start()

    def _enumerator(
        self, context: EnumeratorContext, until: Until | None, last: Manifest | None
    ) -> IncrementalSnapshotEnumerator:
        return restore_or_create(
            context,
            self.dialect,
            EnumeratorStart(until, last, lambda name: SchemaDocument.from_json(self.store.document(name))),
        )

    def _call(self, call: Callable[[], Any], handler: Callable[[Any], None], _after_s: float) -> None:
        self._calls = [*getattr(self, "_calls", []), (call, handler)]

    def work(self) -> None:
        """Do what the enumerator asked to be done in the background, and what follows from it."""
        while calls := getattr(self, "_calls", []):
            self._calls = []
            for call, handler in calls:
                handler(call())

    def reader(self, subtask: int, incarnation: int = 1) -> FakeReader:
        """A reader that has registered."""
        made = FakeReader(self, subtask, incarnation, self.generation).register()
        self.work()
        return made

    def stream_state(self, at: int) -> Mapping[str, Any]:
        return {"version": 1, "position": {"at": at}, "ordinal": at, "tables": {}}

    def begin_seal(self) -> None:
        """Make an epoch due and begin to seal it."""
        for reader in self.coordinator.readers.registered.values():
            reader.heartbeat = Heartbeat(SETTINGS.epoch_bytes_idle)
        self.now_s += SETTINGS.epoch_interval_s
        self.coordinator.tick(now_s=self.now_s)

    def lose(self, reader: FakeReader) -> None:
        self.coordinator.reader_lost(reader.subtask, reader.incarnation, "killed")
