"""The source reader for incremental snapshots: chunks, and in one of the readers also the log.

It is a `SourceReaderBase`. Blocking work (sockets, SELECTs) is behind `LogSource` and `ChunkSource`, which run in
fetcher threads and are polled. Chunks are handled by `raycdc.source.snapshot.reader.chunks_in_flight`, log rows by
`raycdc.source.snapshot.log.log_reader`, the emitter of the stream split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, assert_never

from raycdc.core.failpoints import reach
from raycdc.core.retry import POLICY, RetryPolicy
from raycdc.errors import ProtocolError
from raycdc.source.protocol.api import ChunkSource
from raycdc.source.protocol.metrics import ReaderMetrics
from raycdc.source.protocol.source_event import SourceEvent, SplitsAdded, SplitsRemoved
from raycdc.source.reader.source_reader_base import ReaderCheckpoint, ReaderContext, SealState, SourceReaderBase
from raycdc.source.snapshot.chunk_events import (
    ChunkReaderEvent,
    DiscardSegments,
    LogEvent,
)
from raycdc.source.snapshot.handoff.open_chunk import KeyOrder
from raycdc.source.snapshot.log.log_reader import LogReader, LogReaderSettings
from raycdc.source.snapshot.log.log_unit import LogSource
from raycdc.source.snapshot.reader.chunks_in_flight import ChunksInFlight
from raycdc.source.snapshot.rereading.catch_up_stream import CatchUpStream
from raycdc.source.split import STREAM_SPLIT_ID, PartitionSplit, SnapshotSplit, SourceSplit, StreamSplit
from raycdc.state.manifests.sealed_state import Patch
from raycdc.state.opaque import LogNotes, SealedSplit


class ReaderDialect(Protocol):
    """The connector's side of its readers. Opening must not block; its errors are raised by ``poll``."""

    @property
    def ring_s(self) -> float:
        """Return the number of seconds for which the log reader remembers dropped rows, because the server cannot
        report when a transaction becomes visible to a SELECT; 0 if it can.
        """

    @property
    def resnapshots_lost(self) -> bool:
        """Return True if a table whose log was purged is resnapshotted automatically (``pipeline.on_log_lost``)."""

    def open_log(self, split: StreamSplit) -> LogSource: ...

    def open_catch_up(self, split: StreamSplit) -> LogSource:
        """Open the log a second time while it is open. Raises `SourceError` if that is not possible."""

    def open_chunks(self) -> ChunkSource: ...

    def key_order(self, split: StreamSplit) -> KeyOrder: ...

    def require_as_begun(self, split: StreamSplit) -> None:
        """Raise `ConfigError` if a followed table would be read in another way than its written rows were."""

    def is_complete(self, notes: LogNotes, up_to: int) -> bool:
        """Return True if the log's notes have nothing pending before their position and up to the given ordinal."""


class IncrementalReader(SourceReaderBase):
    """The reader of incremental snapshots; see the module's docstring."""

    def __init__(
        self,
        context: ReaderContext,
        dialect: ReaderDialect,
        *,
        chunks_at_once: int = 1,
        held_bytes_max: int | None = None,
        retry_policy: RetryPolicy = POLICY,
    ) -> None:
        """Make a reader that reads `chunks_at_once` chunks concurrently; for `held_bytes_max` see `LogReaderSettings`.

        If only the catch-up stream fails, it is opened again by `retry_policy`.
        """
        super().__init__(context)
        self._dialect = dialect
        self._held_bytes_max, self._patience = held_bytes_max, retry_policy
        self._chunks = ChunksInFlight(dialect.open_chunks, send=context.send, at_once=chunks_at_once)
        self._log_source: LogSource | None = None
        self._log: LogReader | None = None
        #: The log from an earlier position on, for tables that are caught up; None if this reader has no log.
        self._catch_up: CatchUpStream | None = None
        self._fetched_lag_ms: int | None = None

    def __repr__(self) -> str:
        return f"IncrementalReader(epoch={self.epoch}, chunks={self._chunks!r}, log={self._log is not None})"

    def close(self) -> None:
        for source in (self._log_source, self._catch_up):
            if source is not None:
                source.close()
        self._chunks.close()
        super().close()

    def metrics(self) -> ReaderMetrics:
        if self._log is None:
            return ReaderMetrics(waits=self._chunks.waits)
        log = self._log.metrics()
        # The log was read at least up to the commit time of its last event. If no event came after that, the source may
        # know a later time up to which it has read everything.
        times = [log.seen_ms, None if self._log_source is None else self._log_source.seen_ms]
        seen_ms = max((time_ms for time_ms in times if time_ms is not None), default=None)
        log = replace(log, fetch_lag_ms=self._fetched_lag_ms, seen_ms=seen_ms)
        catch_up = None if self._catch_up is None else self._catch_up.outage
        return ReaderMetrics(log, waits=self._chunks.waits, catch_up_outage=catch_up)

    @property
    def seal_state(self) -> SealState:
        return SealState() if self._log is None else SealState(self._log.wants_seal, self._log.dirty)

    @property
    def end_of_input(self) -> bool:
        return self.no_more_splits and not self._chunks and self._log is None

    def can_cut(self) -> bool:
        return self._log is None or self._log.can_cut

    def work(self) -> bool:
        """Take a finished chunk, and pass one unit of the log and one of the catch-up stream."""
        worked = self._chunks.poll()
        if self._log is None:
            return worked
        worked |= self._catch_up is not None and self._catch_up.step()
        if (due_s := self._log.on_time(now_s=self.context.now_s())) is not None:
            self.context.availability.at(due_s)
        if self._log_source is None or not self._log.ready or self._log.end_of_input:
            return worked
        unit = self._log_source.poll()
        if unit is None:
            return worked
        log_position = unit.log_position
        if log_position.event_ms is not None and log_position.fetched_ms is not None:
            self._fetched_lag_ms = max(0, log_position.fetched_ms - log_position.event_ms)
        self._log.on_unit(self._log.catch_up.numbers.of_log(unit), now_s=self.context.now_s())
        return True

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            match split:
                case SnapshotSplit():
                    # A table may be resnapshotted after `NoMoreSplits`.
                    self._expect_more()
                    self._chunks.add(split)
                case StreamSplit():
                    self._start_log(split)
                case PartitionSplit():
                    raise ProtocolError(f"{split.split_id} is not a split for this reader")
                case _:
                    assert_never(split)
        self.context.send(SplitsAdded(tuple(split.split_id for split in splits)))

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        for split_id in split_ids:
            self._chunks.remove(split_id)
        self.context.send(SplitsRemoved(dict.fromkeys(split_ids)))
        self._ask_for_chunks()

    def handle_source_event(self, event: SourceEvent) -> None:
        if isinstance(event, LogEvent):
            # If there is no log, the event was meant for a log reader that this process no longer is.
            if self._log is not None:
                self._log.on_event(event, now_s=self.context.now_s())
        elif isinstance(event, DiscardSegments):
            self.context.output.discard(event.segments)
        elif isinstance(event, ChunkReaderEvent):
            if self._chunks.on_event(event):
                self._ask_for_chunks()
        else:
            super().handle_source_event(event)

    def epoch_opened(self) -> None:
        self._ask_for_chunks()
        if self._log is not None:
            self._log.after_cut(now_s=self.context.now_s())
            if self._log.catch_up.reopens and self._catch_up is not None:
                self._reopen(self._log, self._catch_up)

    def report(self) -> ReaderCheckpoint:
        if self._log is None:
            return ReaderCheckpoint()
        report = self._log.report()
        sealed = report.sealed
        return ReaderCheckpoint(
            splits={STREAM_SPLIT_ID: sealed} if isinstance(sealed, SealedSplit) else {},
            changes={STREAM_SPLIT_ID: sealed} if isinstance(sealed, Patch) else {},
            tables=report.tables,
            schemas=report.schemas,
            finished=report.finished,
            watermark_ms=report.watermark_ms,
            end_of_input=report.end_of_input,
        )

    def _ask_for_chunks(self) -> None:
        if not self.no_more_splits:
            self._chunks.ask_for_more()

    def _expect_more(self) -> None:
        """Withdraw `NoMoreSplits`; requests made before it will not be answered."""
        if self.no_more_splits:
            self.no_more_splits = False
            self._chunks.forget_requests()

    def _start_log(self, split: StreamSplit) -> None:
        if self._log is not None:
            raise ProtocolError("This reader already has the stream split")
        self._log = LogReader(
            split,
            key_order=self._dialect.key_order(split),
            output=self.context.output,
            send_event=self.send_event,
            settings=LogReaderSettings(
                self.context.epoch_bytes_max,
                self._dialect.ring_s,
                self._held_bytes_max,
                parks=self.context.parking,
                is_complete=self._dialect.is_complete,
            ),
            now_s=self.context.now_s(),
        )
        self._catch_up = CatchUpStream(
            self._log,
            self._open_catch_up,
            self.context,
            policy=self._patience,
            resnapshots_lost=self._dialect.resnapshots_lost,
        )
        self._open(self._log, self._catch_up)
        # `NoMoreSplits` may have come before. The reader of the log stays, and may be the only reader.
        self._expect_more()
        self._ask_for_chunks()

    def _open(self, log: LogReader, catch_up: CatchUpStream) -> None:
        """Open the log at the position of its state, and a catch-up stream at the position of tables to catch up."""
        split, catch_up_split = log.catch_up.splits(log.state())
        self._log_source = self._dialect.open_log(split)
        catch_up.open(catch_up_split)

    def _open_catch_up(self, split: StreamSplit) -> LogSource:
        # Keys of tables in the catch-up stream are compared with nothing.
        self._dialect.require_as_begun(split)
        return self._dialect.open_catch_up(split)

    def _reopen(self, log: LogReader, catch_up: CatchUpStream) -> None:
        """Open the log again, as after a restart, from the state that was just sealed."""
        if self._log_source is not None:
            self._log_source.close()
        catch_up.close()
        log.catch_up.numbers.reopen()
        log.catch_up.begin()
        self._open(log, catch_up)
        reach("after_open_anew")
