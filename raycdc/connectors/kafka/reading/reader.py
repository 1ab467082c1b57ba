"""The source reader for partitions: decodes what the fetcher brings, and seals positions and rows together.

It is a `PartitionSourceReader`. Life of a batch: fetched in the fetcher's thread → decoded here → *held* until the
schemas it needs are in force (`raycdc.connectors.kafka.enumeration.schemas`) → emitted into the open epoch
(`raycdc.connectors.kafka.reading.emitter`), and only then its partition's state moves. If the epoch is cut while a
batch is held, the batch goes into a later epoch.

| message | does |
|---|---|
| `AddSplits` | starts reading from the state's offset |
| `RemoveSplits` | stops reading; answered after the next cut, with the states it sealed |
| `SchemasInForce` | schemas that hold from an epoch on |
| `AlignWatermarks` | partitions whose events are later than this wait |
| `CheckKeys` | the reader reports the keys of each partition from now on |

`KafkaReaderFigures` measures the lags that FLIP-33 defines.

`ReaderAlignment` keeps partitions together in event time: it reports watermarks, and holds back partitions that are
ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from raycdc.connectors.kafka.cluster.identities import Identities
from raycdc.connectors.kafka.decoding import DEAD_LETTER_SCHEMA
from raycdc.connectors.kafka.enumeration.schemas import SchemasOfReader
from raycdc.connectors.kafka.events import AlignWatermarks, CheckKeys, ReaderEvent, SchemasInForce, WatermarksReached
from raycdc.connectors.kafka.reading.emitter import KafkaRecordEmitter
from raycdc.connectors.kafka.reading.held_partitions import (
    ActivePartition,
    BatchRequirements,
    BufferedBatch,
    KafkaReaderSettings,
    PartitionFetchers,
    judge,
)
from raycdc.connectors.kafka.reading.messages import Fetched, LogEnd, PartitionRecords, PartitionStart, within
from raycdc.connectors.kafka.reading.statements import check_default
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.kafka.watermark import Watermarks
from raycdc.errors import ProtocolError
from raycdc.formats.api import Decoded, FormatDecoder
from raycdc.formats.options import DEAD_LETTERS
from raycdc.model import TableId, TableSchema
from raycdc.source.partitions.assigner import SplitRates
from raycdc.source.partitions.partition_source_reader import PartitionSourceReader
from raycdc.source.protocol.metrics import PartitionMetrics, ReaderMetrics
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.reader.source_reader_base import ReaderCheckpoint, ReaderContext
from raycdc.source.split import PartitionSplit
from raycdc.state.manifests.manifest import TableEpoch


class KafkaReaderFigures:
    """The measured lags of a reader, for observation only. Times are wall-clock milliseconds, except for `now_s`."""

    def __init__(self, *, now_s: Callable[[], float], wall_ms: Callable[[], int]) -> None:
        self._now_s = now_s
        self._wall_ms = wall_ms
        self._fetch_lag_ms: int | None = None
        self._emit_lag_ms: int | None = None
        self._last_row_s = now_s()

    def fetched(self, fetched: Fetched) -> None:
        if fetched.event_ms is not None:
            self._fetch_lag_ms = max(0, fetched.fetched_ms - fetched.event_ms)

    def emitted(self, event_ms: int | None) -> None:
        """Record that messages up to `event_ms` were emitted now."""
        self._last_row_s = self._now_s()
        if event_ms is not None:
            self._emit_lag_ms = max(0, self._wall_ms() - event_ms)

    def metrics(self, *, watermark_ms: int | None) -> PartitionMetrics:
        """Return the present lags."""
        return PartitionMetrics(
            fetch_lag_ms=self._fetch_lag_ms,
            emit_lag_ms=self._emit_lag_ms,
            idle_ms=round((self._now_s() - self._last_row_s) * 1000),
            watermark_lag_ms=None if watermark_ms is None else max(0, self._wall_ms() - watermark_ms),
        )


#: How often watermarks are sent to the enumerator if partitions are aligned.
WATERMARKS_EVERY_S = 0.5


class ReaderAlignment:
    """The watermarks of partitions, and the partitions that are held back because they are too far ahead.

    Without `aligned`, no partition is held back. Owned by the reader's thread.
    """

    def __init__(
        self,
        context: ReaderContext,
        fetchers: PartitionFetchers,
        *,
        send_event: Callable[[SourceEvent], None],
        idle_after_s: float,
        aligned: bool,
    ) -> None:
        self._now_s = context.now_s
        self._availability = context.availability
        self._fetchers = fetchers
        self._send_event = send_event
        self._aligned = aligned
        self._watermarks = Watermarks(idle_after_s=idle_after_s)
        self._limit_ms: int | None = None
        self._reported_s = 0.0
        #: The partitions that are held back.
        self.waiting: set[str] = set()

    def add(self, split_id: str) -> None:
        self._watermarks.add(split_id, now_s=self._now_s())

    def remove(self, split_id: str) -> None:
        """Stop tracking a partition that is not read any more. It is not resumed with the waiting ones."""
        self._watermarks.remove(split_id)
        self.waiting.discard(split_id)

    def read(self, split_id: str, event_ms: int | None) -> None:
        """Record that messages of the partition up to `event_ms` were emitted."""
        self._watermarks.read(split_id, event_ms=event_ms, now_s=self._now_s())

    def limit(self, limit_ms: int | None) -> None:
        """Set the event time beyond which partitions wait, which the enumerator decides."""
        self._limit_ms = limit_ms

    def watermark_ms(self) -> int | None:
        """Return the earliest watermark of the partitions that are not idle; None if all are idle."""
        return min(self._watermarks.active(now_s=self._now_s()).values(), default=None)

    def step(self) -> None:
        """Hold back partitions that are too far ahead, resume others, and send the watermarks when they are due."""
        if not self._aligned:
            return
        now_s = self._now_s()
        ahead = self._watermarks.ahead(self._limit_ms) if self._limit_ms is not None else set()
        if ahead != self.waiting:
            self._fetchers.pause_or_resume_splits(
                pause=sorted(ahead - self.waiting), resume=sorted(self.waiting - ahead)
            )
            self.waiting = ahead
        for split_id in ahead:
            self._watermarks.waits(split_id, now_s=now_s)
        if now_s >= self._reported_s + WATERMARKS_EVERY_S:
            self._reported_s = now_s
            self._send_event(WatermarksReached(self._watermarks.active(now_s=now_s)))
        self._availability.at(self._reported_s + WATERMARKS_EVERY_S)


class KafkaReader(PartitionSourceReader[PartitionStart, PartitionRecords, ActivePartition]):
    """The reader of topics' partitions; see the module's docstring.

    `wall_ms` is only for figures and dead letters; nothing depends on it. Without `identities`, topics are assumed to
    stay the same.
    """

    #: An epoch's cut stops reading until the cluster has confirmed the identity of topics.
    advances_cut = False

    def __init__(
        self,
        context: ReaderContext,
        fetchers: PartitionFetchers,
        *,
        make_decoder: Callable[[], FormatDecoder],
        settings: KafkaReaderSettings,
        identities: Identities | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(context, fetchers)
        self._make_decoder = make_decoder
        self._settings = settings
        self._identities = identities
        self._schemas = SchemasOfReader(self.send_event)
        self._emission = KafkaRecordEmitter(settings, self._schemas, wall_ms=wall_ms)
        self._alignment = ReaderAlignment(
            context,
            fetchers,
            send_event=self.send_event,
            idle_after_s=settings.idle_after_s,
            aligned=settings.aligned,
        )
        self._figures = KafkaReaderFigures(now_s=context.now_s, wall_ms=wall_ms)
        self._rates = SplitRates(context.now_s)
        self._held: BufferedBatch | None = None

    def close(self) -> None:
        if self._identities is not None:
            self._identities.close()
        super().close()

    def initialized_state(self, split: PartitionSplit) -> ActivePartition:
        state = PartitionState.of(split.state)
        decoder = self._make_decoder()
        decoder.restore_state(state.decoder.to_json())
        self._alignment.add(split.split_id)
        return ActivePartition(state, split.until, decoder)

    def to_fetch(self, state: ActivePartition) -> Sequence[PartitionStart]:
        position = state.state
        return (PartitionStart(position.topic, position.partition, position.offset, position.last),)

    def split_done(self, state: ActivePartition) -> None:
        self._rates.forget(state.split_id)
        self._alignment.remove(state.split_id)

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        super().remove_splits(split_ids)
        if self._held is not None and self._held.split.split_id in split_ids:
            self._held = None  # The batch was not emitted, so the partition's next reader reads it again.

    def handle_source_event(self, event: SourceEvent) -> None:
        if not isinstance(event, ReaderEvent):
            raise ProtocolError(f"A Kafka reader does not know the event {type(event).__name__}")
        match event:
            case SchemasInForce():
                self._schemas.hear(event, epoch=self.epoch)
            case CheckKeys():
                self._emission.reports.check_keys()
            case AlignWatermarks(limit_ms):
                self._alignment.limit(limit_ms)
            case _:
                assert_never(event)

    def work(self) -> bool:
        """Emit the held batch, or decode the next batch of one partition."""
        self._alignment.step()
        if self.context.output.open_bytes >= self.context.epoch_bytes_max:
            return False
        return super().work() if self._held is None else self._emit_held(self._held)

    def emit(self, batch: PartitionRecords, state: ActivePartition) -> None:
        match batch:
            case LogEnd(offset):
                state.log_end = offset
            case Fetched(reset=True):
                # The new position may be before the last one, and its messages are different ones.
                state.state = state.state.reset(batch.next_offset)
                self.dirty = True
                self.note_end(state)
            case Fetched():
                fetched = within(batch, first=state.state.offset, end=state.end)
                decoded = state.decoder.decode(fetched.batch) if fetched.batch is not None else None
                self._figures.fetched(fetched)
                records = 0 if fetched.batch is None else len(fetched.batch.offsets)
                self._rates.fetched(fetched.split_id, size=fetched.bytes, records=records)
                self._held = BufferedBatch(state, fetched, decoded, self._judged(state, decoded))
                self._emit_held(self._held)
            case _:
                assert_never(batch)

    def _judged(self, split: ActivePartition, decoded: Decoded | None) -> BatchRequirements:
        if decoded is None:
            return BatchRequirements(dropped=split.state.dropped)
        rejected = bool(decoded.bad) and self._settings.dead_letters
        return judge(
            decoded,
            self._settings.statements,
            in_force=self._schemas.all_in_force(),
            dropped=split.state.dropped,
            further=[(DEAD_LETTERS, DEAD_LETTER_SCHEMA)] if rejected else (),
        )

    def _emit_held(self, held: BufferedBatch) -> bool:
        """Emit the held batch if its schemas are in force; otherwise request them. Returns True if it was emitted."""
        lacking = self._schemas.lacking(held.judged.schemas)
        if lacking:
            self._ask_for(lacking)
            return False
        for item, table, column in held.judged.defaults:
            check_default(item, column, self._schemas.get(table))
        self._held = None
        split, before = held.split, held.split.state
        self._emission.emit_record(held, self.context.output, split)
        if held.decoded is not None:
            event_ms = held.latest_event_ms()
            self._figures.emitted(event_ms)
            self._alignment.read(split.split_id, event_ms)
        if split.state is not before:
            self.dirty = True
            if self._identities is not None:
                self._identities.read(split.state.topic, split.state.identity)
        self.note_end(split)
        return True

    def _ask_for(self, lacking: Sequence[tuple[TableId, TableSchema]]) -> None:
        self._schemas.ask_for(lacking)
        self.wants_seal = True

    def can_cut(self) -> bool:
        return self._identities is None or self._identities.proven()

    def report(self) -> ReaderCheckpoint:
        events, tables = self._emission.reports.take()
        for event in events:
            self.send_event(event)
        return ReaderCheckpoint(
            splits=self.splits.states(),
            tables={str(table): TableEpoch(self._schemas[table][1], snapshot=False) for table in tables},
            watermark_ms=self._alignment.watermark_ms(),
        )

    def epoch_opened(self) -> None:
        self._schemas.apply(self.epoch)
        super().epoch_opened()

    def metrics(self) -> ReaderMetrics:
        pending = {split_id: state.pending for split_id, state in self.splits.active()}
        known = [records for records in pending.values() if records is not None]
        partitions = replace(
            self._figures.metrics(watermark_ms=self._alignment.watermark_ms()),
            pending_records=sum(known) if known else None,
            bad_messages=self._emission.bad,
            paused=tuple(sorted(self._alignment.waiting)),
            loads=self._rates.loads(pending),
        )
        return ReaderMetrics(partitions=partitions)
