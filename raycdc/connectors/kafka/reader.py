"""The source reader for partitions: decodes what the fetcher brings, and seals positions and rows together.

It is a `PartitionSourceReader`. Life of a batch: fetched in the fetcher's thread → decoded here → *held* until the
schemas it needs are in force (`raycdc.connectors.kafka.schemas`) → emitted into the open epoch
(`raycdc.connectors.kafka.emitter`), and only then its partition's state moves. A cut in between leaves it for the next
epoch.

| message | does |
|---|---|
| `AddSplits` | starts reading from the state's offset |
| `RemoveSplits` | stops reading; answered after the next cut, with the states it sealed |
| `SchemasInForce` | schemas that hold from an epoch on |
| `AlignWatermarks` | partitions whose events are later than this wait |
| `CheckKeys` | from now on the enumerator is told which keys come from which partition |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from raycdc.checkpoint.manifest import TableEpoch
from raycdc.connectors.kafka.decoding import DEAD_LETTER_SCHEMA
from raycdc.connectors.kafka.emitter import KafkaRecordEmitter
from raycdc.connectors.kafka.events import AlignWatermarks, CheckKeys, ReaderEvent, SchemasInForce
from raycdc.connectors.kafka.figures import ReaderFigures
from raycdc.connectors.kafka.held import (
    HeldBatch,
    Judged,
    PartitionFetchers,
    ReaderSettings,
    ReadPartition,
    judge,
)
from raycdc.connectors.kafka.identities import Identities
from raycdc.connectors.kafka.messages import Fetched, LogEnd, PartitionRecords, PartitionStart, within
from raycdc.connectors.kafka.reader_alignment import ReaderAlignment
from raycdc.connectors.kafka.schemas_of_reader import SchemasOfReader
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.kafka.statements import check_default
from raycdc.errors import ProtocolError
from raycdc.formats.api import Decoded, FormatDecoder
from raycdc.formats.options import DEAD_LETTERS
from raycdc.model import TableId, TableSchema
from raycdc.source.protocol.metrics import ReaderMetrics
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.reader.context import ReaderContext
from raycdc.source.reader.partition_source_reader import PartitionSourceReader
from raycdc.source.reader.source_reader_base import ReaderReport
from raycdc.source.reader.split_rates import SplitRates
from raycdc.source.split import PartitionSplit


class KafkaReader(PartitionSourceReader[PartitionStart, PartitionRecords, ReadPartition]):
    """See the module's docstring. `wall_ms` is only for figures and dead letters; nothing depends on it. Without
    `identities` topics are trusted to stay what they are.
    """

    #: While the cluster has not yet said that topics are what they were, nothing more is read.
    works_towards_cut = False

    def __init__(
        self,
        context: ReaderContext,
        fetchers: PartitionFetchers,
        *,
        make_decoder: Callable[[], FormatDecoder],
        settings: ReaderSettings,
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
        self._figures = ReaderFigures(now_s=context.now_s, wall_ms=wall_ms)
        self._rates = SplitRates(context.now_s)
        self._held: HeldBatch | None = None

    def close(self) -> None:
        if self._identities is not None:
            self._identities.close()
        super().close()

    # -- splits

    def initialized_state(self, split: PartitionSplit) -> ReadPartition:
        state = PartitionState.of(split.state)
        decoder = self._make_decoder()
        decoder.restore_state(state.decoder.to_json())
        self._alignment.add(split.split_id)
        return ReadPartition(state, split.until, decoder)

    def to_fetch(self, state: ReadPartition) -> Sequence[PartitionStart]:
        position = state.state
        return (PartitionStart(position.topic, position.partition, position.offset, position.last),)

    def split_done(self, state: ReadPartition) -> None:
        self._rates.forget(state.split_id)
        self._alignment.remove(state.split_id)

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        super().remove_splits(split_ids)
        if self._held is not None and self._held.split.split_id in split_ids:
            self._held = None  # It was not emitted: whoever has the partition next reads it again.

    # -- events

    def handle_source_event(self, event: SourceEvent) -> None:
        if not isinstance(event, ReaderEvent):
            raise ProtocolError(f"A Kafka reader does not know the event {type(event).__name__}")
        match event:
            case SchemasInForce():
                self._schemas.hear(event, epoch=self.epoch)
            case CheckKeys():
                self._emission.news.check_keys()
            case AlignWatermarks(limit_ms):
                self._alignment.limit(limit_ms)
            case _:
                assert_never(event)

    # -- work

    def work(self) -> bool:
        """Emit what waited, or take one batch of one partition."""
        self._alignment.step()
        if self.context.output.open_bytes >= self.context.epoch_bytes_max:
            return False
        return super().work() if self._held is None else self._emit_held(self._held)

    def emit(self, batch: PartitionRecords, state: ReadPartition) -> None:
        match batch:
            case LogEnd(offset):
                state.log_end = offset
            case Fetched(reset=True):
                # By policy, maybe to before what was read: these messages are others than those that were there.
                state.state = state.state.reset(batch.next_offset)
                self.dirty = True
                self.note_end(state)
            case Fetched():
                fetched = within(batch, first=state.state.offset, end=state.end)
                decoded = state.decoder.decode(fetched.batch) if fetched.batch is not None else None
                self._figures.fetched(fetched)
                records = 0 if fetched.batch is None else len(fetched.batch.offsets)
                self._rates.fetched(fetched.split_id, size=fetched.bytes, records=records)
                self._held = HeldBatch(state, fetched, decoded, self._judged(state, decoded))
                self._emit_held(self._held)
            case _:
                assert_never(batch)

    def _judged(self, split: ReadPartition, decoded: Decoded | None) -> Judged:
        if decoded is None:
            return Judged(dropped=split.state.dropped)
        letters = bool(decoded.bad) and self._settings.dead_letters
        return judge(
            decoded,
            self._settings.statements,
            in_force=self._schemas.all_in_force(),
            dropped=split.state.dropped,
            further=[(DEAD_LETTERS, DEAD_LETTER_SCHEMA)] if letters else (),
        )

    def _emit_held(self, held: HeldBatch) -> bool:
        """Emit the held batch if its schemas are in force; else see that they will be."""
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

    # -- epochs

    def can_cut(self) -> bool:
        return self._identities is None or self._identities.proven()

    def report(self) -> ReaderReport:
        events, tables = self._emission.news.take()
        for event in events:
            self.send_event(event)
        return ReaderReport(
            splits=self.splits.states(),
            tables={str(table): TableEpoch(self._schemas[table][1], snapshot=False) for table in tables},
            watermark_ms=self._alignment.watermark_ms(),
        )

    def epoch_opened(self) -> None:
        self._schemas.apply(self.epoch)
        super().epoch_opened()

    # -- figures

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
