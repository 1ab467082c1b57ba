"""A reader's chunks: what it asks for, when it reads and folds, and which files it may delete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from raycdc.connectors.kafka.events import CheckKeys
from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.protocol.api import Availability, ChunkSegments, InputStatus, ReaderOutput
from raycdc.source.protocol.source_event import (
    AddSplits,
    CheckpointComplete,
    EpochSealed,
    Heartbeat,
    Message,
    NoMoreSplits,
    Registered,
    RequestSplit,
    SealEpoch,
    SourceEvent,
    SourceEventWrapper,
)
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_events import (
    ChunkDelta,
    ChunkOpened,
    ChunkPublished,
    ChunkVoided,
    CloseChunkRequest,
    OpenChunkRequest,
)
from raycdc.source.snapshot.handoff.open_chunk import KeyOrder
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.source.snapshot.log.log_rows import LogRows, SpilledRows
from raycdc.source.snapshot.log.log_unit import LogSource, LogUnit
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.snapshot.reader.incremental_reader import IncrementalReader
from raycdc.source.split import OpenedAt, SnapshotSplit, StreamSplit
from raycdc.source.tables.table_life import CatchingUp, LeftAt
from raycdc.state.manifests.manifest import Segment
from raycdc.state.opaque import LogNotes, Position
from tests.protocol.pair import segment
from tests.support.simulation.network import NoThreads

TABLE = TableId("shop", "orders")
CHUNK = SnapshotSplit(TABLE, 0, "id", None, None)
DOCUMENT = SchemaDocument.from_json({"fingerprint": "f1", "columns": [], "primary_key": ["id"]})


class Chunks:
    """A chunk source that does what the test says when it says it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.results: list[ChunkSegments] = []
        self.deleted: list[str] = []

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> None:
        self.asked.append(f"read {split.index}.{split.attempt}")

    def fold(self, *, read: ChunkSegments, delta: Sequence[Segment], document: SchemaDocument) -> None:
        self.asked.append(f"fold {[s.path for s in (*read.segments, *delta)]}")

    def poll(self) -> ChunkSegments | None:
        return self.results.pop(0) if self.results else None

    def discard(self, segments: Sequence[Segment]) -> None:
        self.deleted.extend(segment.path for segment in segments)

    def close(self) -> None: ...


class Output:
    open_bytes = 0

    def __init__(self) -> None:
        self.released: list[str] = []

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        return ()

    def spill(self, rows: Sequence[LogRows]) -> SpilledRows:
        raise AssertionError("no rows are held")

    def discard(self, segments: Sequence[Segment]) -> None:
        self.release([segment.path for segment in segments])

    def release(self, paths: Sequence[str]) -> None:
        self.released.extend(paths)

    def close(self) -> None: ...


class ChunksDialect:
    ring_s = 0.0
    resnapshots_lost = False

    def __init__(self) -> None:
        self.chunks = Chunks()

    def open_chunks(self) -> Chunks:
        return self.chunks

    def open_log(self, split: StreamSplit) -> LogSource:
        raise AssertionError("no stream was given")

    def open_catch_up(self, split: StreamSplit) -> LogSource:
        return self.open_log(split)

    def key_order(self, split: StreamSplit) -> KeyOrder:
        raise AssertionError("no stream was given")

    def require_as_begun(self, split: StreamSplit) -> None: ...

    def is_complete(self, notes: LogNotes, up_to: int) -> bool:
        return True


class Harness:
    """A registered reader that has one chunk."""

    def __init__(self, *, chunks_at_once: int = 1) -> None:
        self.said: list[Message] = []
        self.dialect = ChunksDialect()
        self.chunks = self.dialect.chunks
        self.output = Output()
        context = ReaderContext(
            cast("ReaderOutput", self.output),
            send=self.said.append,
            availability=Availability(),
            now_s=lambda: 0.0,
            epoch_bytes_max=1000,
            threads=NoThreads(),
        )
        self.reader = IncrementalReader(context, self.dialect, chunks_at_once=chunks_at_once)
        self.reader.handle(Registered(1))
        self.reader.handle(AddSplits((CHUNK,)))

    def event(self, event: SourceEvent) -> None:
        self.reader.handle(SourceEventWrapper(event))

    def open(self, split: SnapshotSplit = CHUNK) -> None:
        self.event(ChunkOpened(split.chunk_id, OpenedAt(Position.unknown()), DOCUMENT))

    def void(self, split: SnapshotSplit = CHUNK) -> None:
        self.event(ChunkVoided(split.chunk_id, "a test says so"))

    def finish(self, path: str) -> None:
        """The background is done with a read or a fold, which wrote `path`."""
        self.chunks.results.append(ChunkSegments(CHUNK, 7, exact=False, segments=(segment(path),), log_end=9))
        assert self.reader.poll_next() is InputStatus.MORE_AVAILABLE

    def closed_with(self) -> list[list[str]]:
        events = [m.event for m in self.said if isinstance(m, SourceEventWrapper)]
        return [[s.path for s in e.segments] for e in events if isinstance(e, CloseChunkRequest)]

    def requests(self) -> int:
        return sum(isinstance(message, RequestSplit) for message in self.said)


def test_a_chunk_is_read_only_when_the_log_reader_has_opened_it() -> None:
    harness = Harness()
    assert harness.chunks.asked == []
    harness.open()
    assert harness.chunks.asked == ["read 0.0"]
    harness.finish("chunk")
    assert harness.closed_with() == [["chunk"]]


def test_a_folded_chunk_is_closed_again_with_what_folding_wrote() -> None:
    harness = Harness()
    harness.open()
    harness.finish("chunk")
    harness.event(ChunkDelta(CHUNK.chunk_id, (segment("delta"),)))
    assert harness.chunks.asked[-1] == "fold ['chunk', 'delta']"
    harness.finish("folded")
    assert harness.closed_with() == [["chunk"], ["folded"]]


def test_a_published_chunk_is_never_deleted_by_its_reader() -> None:
    harness = Harness()
    harness.open()
    harness.finish("chunk")
    harness.event(ChunkPublished(CHUNK.chunk_id))
    harness.void()
    assert harness.chunks.deleted == []


def test_a_voided_chunk_is_deleted() -> None:
    harness = Harness()
    harness.open()
    harness.finish("chunk")
    harness.void()
    assert harness.chunks.deleted == ["chunk"]


def test_a_chunk_voided_while_it_was_read_is_deleted_when_it_arrives() -> None:
    harness = Harness()
    harness.open()
    harness.void()
    harness.finish("chunk")
    assert harness.chunks.deleted == ["chunk"]
    assert harness.closed_with() == []


def test_a_chunk_voided_while_it_is_folded_keeps_what_the_fold_reads() -> None:
    harness = Harness()
    harness.open()
    harness.finish("chunk")
    harness.event(ChunkDelta(CHUNK.chunk_id, (segment("delta"),)))
    harness.void()
    assert harness.chunks.deleted == []
    harness.finish("folded")
    assert harness.chunks.deleted == ["folded"]


def test_events_of_another_attempt_are_not_meant_for_this_one() -> None:
    harness = Harness()
    another = replace(CHUNK, attempt=1)
    harness.open(another)
    harness.void(another)
    assert harness.chunks.asked == []
    harness.open()
    assert harness.chunks.asked == ["read 0.0"]


@pytest.mark.parametrize("chunks_at_once", [1, 3])
def test_a_reader_asks_for_one_chunk_more_than_it_reads_and_again_when_one_is_done(chunks_at_once: int) -> None:
    harness = Harness(chunks_at_once=chunks_at_once)
    assert harness.requests() == chunks_at_once + 1
    harness.void()
    assert harness.requests() == chunks_at_once + 2
    harness.reader.handle(NoMoreSplits())
    assert harness.reader.poll_next() is InputStatus.END_OF_INPUT


def test_a_seal_is_answered_once_and_a_repeated_one_is_not() -> None:
    harness = Harness()
    for _ in range(2):
        harness.reader.handle(SealEpoch(1))
        harness.reader.poll_next()
    reports = [m for m in harness.said if isinstance(m, EpochSealed)]
    assert [(m.epoch, m.splits, m.segments) for m in reports] == [(1, {}, ())]


def test_segments_the_sink_holds_are_released() -> None:
    harness = Harness()
    harness.reader.handle(CheckpointComplete(1, ("a", "b")))
    assert harness.output.released == ["a", "b"]


@pytest.mark.parametrize("message", [RequestSplit(), Heartbeat()])
def test_a_message_that_is_not_for_a_reader_is_named(message: Message) -> None:
    with pytest.raises(ProtocolError, match=type(message).__name__):
        Harness().reader.handle(message)


def test_an_unknown_event_is_named() -> None:
    with pytest.raises(ProtocolError, match="does not know the event CheckKeys"):
        Harness().event(CheckKeys())


class QuietLog:
    """`LogSource` and `KeyOrder` of a log in which nothing happens."""

    seen_ms: int | None = None

    def poll(self) -> LogUnit | None:
        return None

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None: ...

    def close(self) -> None: ...


class QuietDialect(ChunksDialect):
    ring_s = 10.0

    def open_log(self, split: StreamSplit) -> LogSource:
        return QuietLog()

    def key_order(self, split: StreamSplit) -> KeyOrder:
        return cast("KeyOrder", QuietLog())


def test_the_reader_wakes_when_a_chunk_may_be_opened_that_waits_for_a_time() -> None:
    said: list[Message] = []
    availability = Availability()
    now_s = 3.0
    context = ReaderContext(
        cast("ReaderOutput", Output()),
        send=said.append,
        availability=availability,
        now_s=lambda: now_s,
        epoch_bytes_max=1000,
        threads=NoThreads(),
    )
    snapshot = {"key": "id", "foldable": True, "needs_null": False, "null_closed": False, "closed": []}
    tables = {str(TABLE): {"schema": "f1", "announced": True, "snapshot": snapshot}}
    state = StreamState.from_json({"version": 1, "position": {"at": 100}, "ordinal": 100, "tables": tables})
    reader = IncrementalReader(context, QuietDialect())
    reader.handle(Registered(1))
    reader.handle(AddSplits((StreamSplit(state, {"f1": DOCUMENT}),)))
    reader.handle(SourceEventWrapper(OpenChunkRequest(CHUNK)))
    dues_s = []
    for now_s in (3.0, 13.0):  # noqa: B007 - the clock of the reader
        availability.begin()
        assert reader.poll_next() is InputStatus.NOTHING_AVAILABLE
        dues_s.append(availability.due_s)
    assert dues_s == [13.0, None]  # `ring_s` after the log was begun.
    assert any(isinstance(m, SourceEventWrapper) and isinstance(m.event, ChunkOpened) for m in said)


class CountedDialect(QuietDialect):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.orders, self.judged = 0, 0

    def key_order(self, split: StreamSplit) -> KeyOrder:
        self.orders += 1
        return super().key_order(split)

    def require_as_begun(self, split: StreamSplit) -> None:
        self.judged += 1


def test_a_reading_beside_the_log_compares_no_keys_and_is_judged_for_its_tables() -> None:
    """What a source counts for the log's keys stays as it is."""
    context = ReaderContext(
        cast("ReaderOutput", Output()),
        send=lambda _: None,
        availability=Availability(),
        now_s=lambda: 0.0,
        epoch_bytes_max=1000,
        threads=NoThreads(),
    )
    here = Position.from_json({"at": 100})
    left = CatchingUp("f1", True, Position.from_json({"at": 1}), LeftAt(0, 1))
    dialect = CountedDialect()
    reader = IncrementalReader(context, dialect)
    reader.handle(Registered(1))
    reader.handle(AddSplits((StreamSplit(StreamState(here, 100, catching_up={TABLE: left}), {"f1": DOCUMENT}),)))
    assert (dialect.orders, dialect.judged) == (1, 1)
