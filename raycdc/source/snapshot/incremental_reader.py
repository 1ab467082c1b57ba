"""The source reader for incremental snapshots: chunks, and in one of the readers also the log.

One class, no thread of its own: the shell (`raycdc.runtime.reader_worker`, or a simulation) calls `handle` with each
message and `poll_next` until it answers NOTHING_AVAILABLE. What blocks (sockets, SELECTs) is behind `LogSource` and
`ChunkSource`, which run in fetcher threads and are polled.

A chunk's life here: `AddSplits` → `OpenChunk` sent → `ChunkOpened` arrives → read in the background → `CloseChunk`
sent with finished segments → `ChunkDelta` maybe arrives → folded, `CloseChunk` again → `ChunkPublished` (its segments
belong to the log reader's epoch now) or `ChunkVoided` (its segments are deleted).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from raycdc.errors import ProtocolError
from raycdc.failpoints import reach
from raycdc.source.protocol.api import ChunkRead, ChunkSource, InputStatus, ReaderOutput
from raycdc.source.protocol.source_event import (
    AddSplits,
    CheckpointComplete,
    EpochSealed,
    Heartbeat,
    Message,
    NoMoreSplits,
    Registered,
    RemoveSplits,
    RequestSplit,
    SealEpoch,
    SourceEvent,
    SourceEventWrapper,
    SplitsAdded,
    SplitsRemoved,
)
from raycdc.source.snapshot.chunk_events import (
    ChunkDelta,
    ChunkMisfit,
    ChunkOpened,
    ChunkPublished,
    ChunkReaderEvent,
    ChunkVoided,
    CloseChunk,
    DiscardSegments,
    LogEvent,
    OpenChunk,
)
from raycdc.source.snapshot.hand_off import KeyOrder
from raycdc.source.snapshot.log_reader import LogReader, LogReport
from raycdc.source.snapshot.log_unit import LogSource
from raycdc.source.split import STREAM_SPLIT_ID, ChunkId, PartitionSplit, SnapshotSplit, SourceSplit, StreamSplit

#: Chunks a reader works at: one being read, one being opened, so that the handshake overlaps the SELECT.
CHUNKS_IN_FLIGHT = 2


class ReaderDialect(Protocol):
    """What a connector gives its readers. Opening may not block; errors surface through ``poll``."""

    @property
    def ring_s(self) -> float:
        """Seconds of dropped rows to remember as the server cannot say when they become visible; 0 where it can."""

    def open_log(self, split: StreamSplit) -> LogSource: ...

    def open_chunks(self) -> ChunkSource: ...

    def key_order(self, split: StreamSplit) -> KeyOrder: ...


@dataclass(slots=True)
class _Chunk:
    split: SnapshotSplit
    document: Mapping[str, Any] | None = None
    read: ChunkRead | None = None
    folding: bool = False


class IncrementalReader:
    """See the module's docstring. `send` takes messages for the coordinator; `now_s` is a monotonic clock."""

    def __init__(
        self,
        *,
        dialect: ReaderDialect,
        output: ReaderOutput,
        send: Callable[[Message], None],
        now_s: Callable[[], float],
        epoch_bytes_max: int,
        parking: bool = True,
        held_bytes_max: int | None = None,
    ) -> None:
        """`held_bytes_max`: see `LogReader`."""
        self._held_bytes_max = held_bytes_max
        self._parking = parking
        self._dialect = dialect
        self._output = output
        self._send = send
        self._now_s = now_s
        self._epoch_bytes_max = epoch_bytes_max
        self._epoch: int | None = None
        self._seal: int | None = None
        self._chunks: dict[str, _Chunk] = {}
        self._requested = 0
        self._no_more = False
        self._chunk_source: ChunkSource | None = None
        self._log_source: LogSource | None = None
        self._log: LogReader | None = None
        self._fetched_lag_ms: int | None = None

    def __repr__(self) -> str:
        return f"IncrementalReader(epoch={self._epoch}, chunks={list(self._chunks)}, log={self._log is not None})"

    def start(self) -> None:
        """Nothing to do before registration; splits come with messages."""

    def close(self) -> None:
        for source in (self._log_source, self._chunk_source):
            if source is not None:
                source.close()
        self._output.close()

    def metrics(self) -> dict[str, Any]:
        return {
            "chunks": {split_id: chunk.split.to_json() for split_id, chunk in self._chunks.items()},
            "log": self._log.metrics() if self._log else None,
            "fetch_lag_ms": self._fetched_lag_ms,
        }

    def heartbeat(self) -> Heartbeat:
        """What the coordinator should know now."""
        return Heartbeat(
            open_bytes=self._output.open_bytes,
            wants_seal=self._log is not None and self._log.wants_seal,
            metrics={**self.metrics(), "dirty": self._log is not None and self._log.dirty},
        )

    @property
    def seal_matters(self) -> tuple[bool, bool]:
        """What the coordinator should hear at once when it changes: the epoch should end; the epoch has rows."""
        return self._log is not None and self._log.wants_seal, self._output.open_bytes > 0

    def handle(self, message: Message) -> None:
        """React to one message of the coordinator. Unknown or misdirected ones are a `ProtocolError`."""
        match message:
            case Registered(epoch):
                self._epoch = epoch
                self._ask_for_chunks()
            case AddSplits(splits):
                self._add(splits)
            case RemoveSplits(split_ids):
                self._remove(split_ids)
            case NoMoreSplits():
                self._no_more, self._requested = True, 0
            case SourceEventWrapper(event):
                self._on_event(event)
            case SealEpoch(epoch):
                self._seal = epoch
            case CheckpointComplete(_, release, elsewhere):
                self._output.release(release)
                self._output.discard(elsewhere)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not a message for a reader")

    def poll_next(self) -> InputStatus:
        """Do one piece of work: seal, take a finished chunk, or pass one unit of the log."""
        if self._seal is not None and (self._log is None or self._log.can_cut):
            self._cut(self._seal)
            return InputStatus.MORE_AVAILABLE
        worked = self._poll_chunks()
        if self._log is not None:
            self._log.on_time(now_s=self._now_s())
        if self._log is not None and self._log_source is not None and self._log.ready and not self._log.end_of_input:
            unit = self._log_source.poll()
            if unit is not None:
                place = unit.place
                if place.event_ms is not None and place.fetched_ms is not None:
                    self._fetched_lag_ms = max(0, place.fetched_ms - place.event_ms)
                self._log.on_unit(unit, now_s=self._now_s())
                worked = True
        if worked:
            return InputStatus.MORE_AVAILABLE
        finished = self._no_more and not self._chunks and self._log is None
        return InputStatus.END_OF_INPUT if finished else InputStatus.NOTHING_AVAILABLE

    def _ask_for_chunks(self) -> None:
        while not self._no_more and self._requested + len(self._chunks) < CHUNKS_IN_FLIGHT:
            self._requested += 1
            self._send(RequestSplit())

    def _add(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            match split:
                case SnapshotSplit():
                    # A table may begin again after it was said that there are no more.
                    self._requested, self._no_more = max(0, self._requested - 1), False
                    self._chunks[split.split_id] = _Chunk(split)
                    self._event(OpenChunk(split))
                case StreamSplit():
                    self._start_log(split)
                case PartitionSplit():
                    raise ProtocolError(f"{split.split_id} is not a split for this reader")
                case _:
                    assert_never(split)
        self._send(SplitsAdded(tuple(split.split_id for split in splits)))

    def _start_log(self, split: StreamSplit) -> None:
        if self._log is not None:
            raise ProtocolError("This reader already has the stream split")
        self._log = LogReader(
            split,
            key_order=self._dialect.key_order(split),
            output=self._output,
            send_event=self._event,
            ring_s=self._dialect.ring_s,
            epoch_bytes_max=self._epoch_bytes_max,
            now_s=self._now_s(),
            parking=self._parking,
            held_bytes_max=self._held_bytes_max,
        )
        self._log_source = self._dialect.open_log(split)
        # Told before that there would be none; but who reads the log stays, and may be the only one.
        self._no_more = False
        self._ask_for_chunks()

    def _remove(self, split_ids: Sequence[str]) -> None:
        for split_id in split_ids:
            chunk = self._chunks.pop(split_id, None)
            if chunk is not None:
                self._discard(chunk)
        self._send(SplitsRemoved(dict.fromkeys(split_ids)))
        self._ask_for_chunks()

    def _on_event(self, event: SourceEvent) -> None:
        if isinstance(event, LogEvent):
            if self._log is not None:  # Otherwise meant for a log reader that this process is not any more.
                self._log.on_event(event, now_s=self._now_s())
        elif isinstance(event, ChunkReaderEvent):
            self._on_chunk_event(event)
        else:
            raise ProtocolError(f"A reader does not know the event {type(event).__name__}")

    def _on_chunk_event(self, event: ChunkReaderEvent) -> None:
        match event:
            case ChunkOpened(chunk_id, opened_at, document):
                chunk = self._chunk(chunk_id)
                if chunk is not None:
                    chunk.document = document
                    self._chunk_io().read(chunk.split, opened_at=opened_at, document=document)
            case ChunkDelta(chunk_id, segments):
                chunk = self._chunk(chunk_id)
                if chunk is not None and chunk.read is not None and chunk.document is not None:
                    chunk.folding = True
                    self._chunk_io().fold(read=chunk.read, delta=segments, document=chunk.document)
            case ChunkPublished(chunk_id):
                if self._chunk(chunk_id) is not None:
                    del self._chunks[chunk_id.split_id]
                self._ask_for_chunks()
            case ChunkVoided(chunk_id):
                chunk = self._chunk(chunk_id)
                if chunk is not None:
                    del self._chunks[chunk_id.split_id]
                    self._discard(chunk)
                self._ask_for_chunks()
            case DiscardSegments(segments):
                self._output.discard(segments)
            case _:
                assert_never(event)

    def _chunk(self, chunk_id: ChunkId) -> _Chunk | None:
        """The chunk an event is about, if this reader still works at that very attempt."""
        chunk = self._chunks.get(chunk_id.split_id)
        return chunk if chunk is not None and chunk.split.chunk_id == chunk_id else None

    def _discard(self, chunk: _Chunk) -> None:
        if chunk.read is not None and not chunk.folding:  # A fold reads these now, and deletes them itself.
            self._chunk_io().discard(chunk.read.segments)

    def _poll_chunks(self) -> bool:
        if self._chunk_source is None:
            return False
        read = self._chunk_source.poll()
        if read is None:
            return False
        chunk = self._chunks.get(read.split.split_id)
        if chunk is None or chunk.split.attempt != read.split.attempt:
            self._chunk_source.discard(read.segments)
            return True
        chunk.read, chunk.folding = read, False
        self._event(
            ChunkMisfit(read.split.chunk_id, read.high, read.misfit)
            if read.misfit
            else CloseChunk(read.split.chunk_id, read.high, read.log_end, read.exact, read.segments)
        )
        reach("after_close")
        return True

    def _chunk_io(self) -> ChunkSource:
        if self._chunk_source is None:
            self._chunk_source = self._dialect.open_chunks()
        return self._chunk_source

    def _event(self, event: SourceEvent) -> None:
        self._send(SourceEventWrapper(event))

    def _cut(self, epoch: int) -> None:
        self._seal = None
        if self._epoch is not None and epoch < self._epoch:
            return  # Sealed before; the report is on its way or was handled.
        reach("before_seal")
        log = self._log
        report = log.report() if log else LogReport()
        segments = self._output.cut(epoch)
        self._send(
            EpochSealed(
                epoch=epoch,
                splits={STREAM_SPLIT_ID: log.state().to_json()} if log else {},
                segments=segments,
                tables=report.tables,
                schemas=report.schemas,
                finished=report.finished,
                watermark_ms=report.watermark_ms,
                end_of_input=report.end_of_input,
            )
        )
        reach("after_seal")
        self._epoch = epoch + 1
        if log is not None:
            log.after_cut(now_s=self._now_s())
