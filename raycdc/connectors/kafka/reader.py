"""The source reader for partitions: decodes what the fetcher brings, and seals positions and rows together.

One class, no thread of its own, called as every `raycdc.source.protocol.api.SourceReader`. Life of a batch: fetched in
the fetcher's thread → decoded here → *held* until the schemas it needs are in force (`raycdc.connectors.kafka.schemas`)
→ emitted into the open epoch, and only then its partition's state moves. A cut in between leaves it for the next epoch.

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
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from raycdc.checkpoint.manifest import TableEpoch
from raycdc.connectors.kafka.decoding import DEAD_LETTER_SCHEMA, DEAD_LETTERS, dead_letters, without_contents
from raycdc.connectors.kafka.events import (
    AlignWatermarks,
    CheckKeys,
    ReaderEvent,
    SchemaChangeRequest,
    SchemasInForce,
    TableEmptied,
    TableHome,
    WatermarksReached,
)
from raycdc.connectors.kafka.held import (
    HeldBatch,
    Judged,
    Partitions,
    ReaderSettings,
    ReadPartition,
    is_truncation,
    judge,
    latest_event,
)
from raycdc.connectors.kafka.identities import Identities
from raycdc.connectors.kafka.keys import NewKeys
from raycdc.connectors.kafka.messages import Fetched, within
from raycdc.connectors.kafka.ordering import new_images
from raycdc.connectors.kafka.schemas import conform, emptied_row, fits, with_hidden_defaults
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.kafka.statements import Emptied, Statements, check_default, refusal
from raycdc.connectors.kafka.watermark import Watermarks
from raycdc.errors import ProtocolError
from raycdc.failpoints import reach
from raycdc.formats.api import ChangeItem, Decoded, FormatDecoder
from raycdc.model import TableId, TableSchema, key_hashes
from raycdc.schema import event_to_json
from raycdc.source.connector import ReaderContext
from raycdc.source.partitions.partition_set import PartitionSet
from raycdc.source.protocol.api import InputStatus
from raycdc.source.protocol.source_event import (
    AddSplits,
    CheckpointComplete,
    EpochSealed,
    Heartbeat,
    Message,
    NoMoreSplits,
    Registered,
    RemoveSplits,
    SealEpoch,
    SourceEvent,
    SourceEventWrapper,
)
from raycdc.source.split import PartitionSplit

#: How often the enumerator is told the watermarks, when partitions are kept together.
WATERMARKS_EVERY_S = 0.5


class KafkaReader:
    """See the module's docstring. `wall_ms` is only for figures and dead letters; nothing depends on it. Without
    `identities` topics are trusted to stay what they are.
    """

    def __init__(
        self,
        context: ReaderContext,
        *,
        partitions: Partitions,
        make_decoder: Callable[[], FormatDecoder],
        settings: ReaderSettings,
        statements: Statements | None = None,
        identities: Identities | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._context = context
        self._partitions = partitions
        self._make_decoder = make_decoder
        self._settings = settings
        self._statements = statements or Statements()
        self._identities = identities
        self._wall_ms = wall_ms
        self._epoch = 0
        self._seal: int | None = None
        self._splits: PartitionSet[ReadPartition] = PartitionSet(
            context.send,
            open_split=self._open_split,
            state_of=lambda split: split.state.to_json(),
            close_split=self._close_split,
        )
        self._no_more = False
        self._fetched: deque[Fetched] = deque()
        self._held: HeldBatch | None = None
        self._asked: set[tuple[TableId, str]] = set()
        self._schemas: dict[TableId, tuple[TableSchema, str]] = {}
        self._updates: list[SchemasInForce] = []
        self._touched: set[TableId] = set()
        self._rows = 0
        self._dirty = False
        self._wants_seal = False
        self._watermarks = Watermarks(idle_after_s=settings.idle_after_s)
        self._waiting: set[str] = set()
        self._limit_ms: int | None = None
        self._told_s = 0.0
        self._last_row_s = context.now_s()
        self._event_lags: dict[str, int | None] = {"fetch": None, "emit": None}
        self._bad = 0
        #: Only while partitions may share keys, which the enumerator knows.
        self._keys: NewKeys | None = None
        #: Partitions in which each table's rows were met, and whether the enumerator was told.
        self._homes: dict[tuple[TableId, str], bool] = {}
        #: What removed all rows of tables in the open epoch, for the enumerator.
        self._emptied: list[TableEmptied] = []

    def __repr__(self) -> str:
        return f"KafkaReader(epoch={self._epoch}, {self._splits!r}, held={self._held is not None})"

    def start(self) -> None:
        """Nothing to do before registration; splits come with messages."""

    def close(self) -> None:
        self._partitions.close()
        if self._identities is not None:
            self._identities.close()
        self._context.output.close()

    # -- messages

    def handle(self, message: Message) -> None:
        """React to one message of the coordinator. Unknown or misdirected ones are a `ProtocolError`."""
        match message:
            case Registered(epoch):
                self._epoch = epoch
                self._apply_updates()
            case AddSplits(splits):
                self._splits.add(splits)
            case RemoveSplits(split_ids):
                self._remove(split_ids)
            case NoMoreSplits():
                self._no_more = True
            case SourceEventWrapper(event):
                self._on_event(event)
            case SealEpoch(epoch):
                self._seal = epoch
            case CheckpointComplete(_, release, elsewhere):
                self._context.output.release(release)
                self._context.output.discard(elsewhere)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not a message for a reader")

    def _open_split(self, split: PartitionSplit, addition: int) -> ReadPartition:
        state = PartitionState.from_json(split.state)
        decoder = self._make_decoder()
        decoder.restore_state(state.decoder)
        self._watermarks.add(split.split_id, now_s=self._context.now_s())
        self._partitions.add(state.topic, state.partition, state.offset, addition=addition, last=state.last)
        opened = ReadPartition(state, split.until, decoder)
        self._note_end(opened)
        return opened

    def _close_split(self, split: ReadPartition) -> None:
        self._watermarks.remove(split.state.split_id)
        self._waiting.discard(split.state.split_id)

    def _remove(self, split_ids: Sequence[str]) -> None:
        self._splits.remove(split_ids)
        for split_id in split_ids:
            self._partitions.remove(split_id)
        if self._held is not None and self._held.split.state.split_id in split_ids:
            self._held = None  # It was not emitted: whoever has the partition next reads it again.

    def _on_event(self, event: SourceEvent) -> None:
        if not isinstance(event, ReaderEvent):
            raise ProtocolError(f"A Kafka reader does not know the event {type(event).__name__}")
        match event:
            case SchemasInForce():
                self._updates.append(event)
                self._apply_updates()
            case CheckKeys():
                self._keys = self._keys or NewKeys()
            case AlignWatermarks(limit_ms):
                self._limit_ms = limit_ms
            case _:
                assert_never(event)

    def _apply_updates(self) -> None:
        due = [update for update in self._updates if update.from_epoch <= self._epoch]
        self._updates = [update for update in self._updates if update.from_epoch > self._epoch]
        for update in due:
            self._schemas.update({table: (s, s.fingerprint()) for table, s in update.schemas.items()})
        if due:
            self._asked.clear()

    # -- work

    def poll_next(self) -> InputStatus:
        """Do one piece of work: seal, emit what waited, or take one batch of one partition."""
        if self._seal is not None:
            if self._identities is not None and not self._identities.proven():
                return InputStatus.NOTHING_AVAILABLE
            self._cut(self._seal)
            return InputStatus.MORE_AVAILABLE
        self._align()
        if self._context.output.open_bytes >= self._context.epoch_bytes_max:
            return InputStatus.NOTHING_AVAILABLE
        if self._held is not None:
            return InputStatus.MORE_AVAILABLE if self._emit_held() else InputStatus.NOTHING_AVAILABLE
        if not self._fetched:
            fetch = self._partitions.poll()
            if fetch is None:
                finished = self._no_more and len(self._splits) > 0 and all(s.ended for _, s in self._splits.active())
                return InputStatus.END_OF_INPUT if finished and not self._dirty else InputStatus.NOTHING_AVAILABLE
            self._fetched.extend(fetch.parts)
            for split_id, split in self._splits.active():
                split.log_end = fetch.ends.get(split_id, split.log_end)
        if self._fetched:
            self._decode(self._fetched.popleft())
        return InputStatus.MORE_AVAILABLE

    def _decode(self, fetched: Fetched) -> None:
        split = self._splits.read(fetched.split_id, fetched.addition)
        if split is None or split.ended:
            return
        if fetched.reset:
            # By policy, maybe to before what was read: these messages are others than those that were there.
            split.state = split.state.reset(fetched.next_offset)
            self._dirty = True
            self._note_end(split)
            return
        fetched = within(fetched, first=split.state.offset, end=split.end)
        decoded = split.decoder.decode(fetched.batch) if fetched.batch is not None else None
        if fetched.event_ms is not None:
            self._event_lags["fetch"] = max(0, fetched.fetched_ms - fetched.event_ms)
        self._held = HeldBatch(split, fetched, decoded, self._judged(split, decoded))
        self._emit_held()

    def _judged(self, split: ReadPartition, decoded: Decoded | None) -> Judged:
        if decoded is None:
            return Judged(dropped=split.state.dropped)
        letters = bool(decoded.bad) and self._settings.dead_letters
        return judge(
            decoded,
            self._statements,
            in_force={table: schema for table, (schema, _) in self._schemas.items()},
            dropped=split.state.dropped,
            further=[(DEAD_LETTERS, DEAD_LETTER_SCHEMA)] if letters else (),
        )

    def _emit_held(self) -> bool:
        """Emit the held batch if its schemas are in force; else see that they will be."""
        held = self._held
        assert held is not None
        lacking = [(t, schema) for t, schema in held.judged.schemas if not fits(self._in_force(t), schema)]
        if lacking:
            self._ask_for(lacking)
            return False
        for item, table, column in held.judged.defaults:
            check_default(item, column, self._in_force(table))
        self._held = None
        self._emit(held)
        return True

    def _in_force(self, table: TableId) -> TableSchema | None:
        known = self._schemas.get(table)
        return known[0] if known else None

    def _ask_for(self, lacking: Sequence[tuple[TableId, TableSchema]]) -> None:
        for table, schema in lacking:
            question = (table, schema.fingerprint())
            if question not in self._asked:
                self._asked.add(question)
                self._context.send(SourceEventWrapper(SchemaChangeRequest(table, schema)))
        self._wants_seal = True

    def _emit(self, held: HeldBatch) -> None:
        split, fetched, decoded = held.split, held.fetched, held.decoded
        now_s = self._context.now_s()
        event_ms = fetched.event_ms
        state = split.state.decoder
        if decoded is not None:
            for number, item in enumerate(decoded.items):
                if isinstance(item, ChangeItem):
                    self._empty(item, held, held.judged.emptied[number])
                    continue
                event_ms = latest_event(item.batch, event_ms)
                self._collect(item.table, item.batch, split.state.split_id, without=held.judged.without[number])
            if decoded.bad and self._settings.dead_letters:
                self._collect(
                    DEAD_LETTERS,
                    dead_letters(decoded.bad, now_ms=self._wall_ms(), hide=self._settings.hides),
                    split.state.split_id,
                )
            self._bad += len(decoded.bad)
            if decoded.failure is not None:
                raise without_contents(decoded.failure) if self._settings.hides else decoded.failure
            if not state or any(isinstance(item, ChangeItem) for item in decoded.items):
                state = split.decoder.snapshot_state()
            self._last_row_s = now_s
            self._watermarks.read(split.state.split_id, event_ms=event_ms, now_s=now_s)
            if event_ms is not None:
                self._event_lags["emit"] = max(0, self._wall_ms() - event_ms)
        if fetched.next_offset > split.state.offset:
            last = split.state.last if fetched.batch is None else fetched.last
            split.state = replace(split.state.moved(fetched.next_offset, state, last), dropped=held.judged.dropped)
            self._dirty = True
            if self._identities is not None:
                self._identities.read(split.state.topic, split.state.identity)
        self._note_end(split)

    def _empty(self, item: ChangeItem, held: HeldBatch, events: Sequence[Emptied]) -> None:
        """Empty the tables whose rows a DDL message removes: a row that says so, and the event for the manifest."""
        assert held.fetched.batch is not None
        offset = int(held.fetched.batch.offsets[item.message])
        times = held.fetched.batch.timestamps_ms
        for event in events:
            if self._settings.order_by:
                raise refusal(
                    self._statements.shown(item),
                    f"source.order_by = {self._settings.order_by!r} says nothing about emptied tables",
                )
            split_id = held.split.state.split_id
            schema = self._schemas[event.table][0]
            ts_ms = self._wall_ms() if times is None else int(times[item.message])
            self._collect(event.table, emptied_row(schema, ts_ms=ts_ms, place=f"{split_id}:{offset}:0"), split_id)
            self._emptied.append(TableEmptied(event.table, split_id, offset, event_to_json(event)))

    def _collect(self, table: TableId, batch: pa.RecordBatch, split_id: str, *, without: Collection[str] = ()) -> None:
        if batch.num_rows == 0:
            return
        schema, fingerprint = self._schemas[table]
        conformed = conform(table, batch, schema, without=without, hides=self._settings.hides)
        self._homes.setdefault((table, split_id), False)
        if self._settings.order_by and table != DEAD_LETTERS:
            order_by = self._settings.order_by
            conformed = new_images(table, conformed, schema, order_by=order_by, split_id=split_id)
        numbers = pa.array(np.arange(self._rows, self._rows + conformed.num_rows, dtype=np.int64))
        self._rows += conformed.num_rows
        index = conformed.schema.get_field_index("_seq")
        conformed = conformed.set_column(index, conformed.schema.field(index), numbers)
        known = batch.schema.names
        hiding = self._settings.hiding
        shown = with_hidden_defaults(
            table, hiding.without_unfit(table, conformed), schema, hiding, known=known, without=without
        )
        # Without its key, so in one hash partition: readers would cut into different numbers of them.
        self._context.output.collect(table, fingerprint=fingerprint, batch=shown, split_id=split_id)
        self._touched.add(table)
        if self._keys is not None and schema.primary_key and table != DEAD_LETTERS and not is_truncation(batch):
            self._keys.read(table, split_id, key_hashes(conformed, schema.primary_key))

    def _note_end(self, split: ReadPartition) -> None:
        if not split.ended and split.state.ended(split.until):
            split.ended = True
            self._wants_seal = True
            self._watermarks.remove(split.state.split_id)
            self._waiting.discard(split.state.split_id)  # Nor is it to go on when those that wait do.
            self._partitions.remove(split.state.split_id)

    def _align(self) -> None:
        """Hold back partitions that are too far ahead, let the others go on, tell what ours have reached."""
        if not self._settings.aligned:
            return
        now_s = self._context.now_s()
        ahead = self._watermarks.ahead(self._limit_ms) if self._limit_ms is not None else set()
        if ahead != self._waiting:
            self._partitions.pause(ahead - self._waiting)
            self._partitions.resume(self._waiting - ahead)
            self._waiting = ahead
        for split_id in ahead:
            self._watermarks.waits(split_id, now_s=now_s)
        if now_s >= self._told_s + WATERMARKS_EVERY_S:
            self._told_s = now_s
            self._context.send(SourceEventWrapper(WatermarksReached(self._watermarks.active(now_s=now_s))))

    # -- epochs

    def _cut(self, epoch: int) -> None:
        self._seal = None
        if epoch < self._epoch:
            return  # Sealed before; the report is on its way or was handled.
        reach("before_seal")
        homes = [home for home, told in self._homes.items() if not told]
        self._homes.update(dict.fromkeys(homes, True))
        keys = self._keys.take() if self._keys is not None else ()
        for event in (*(TableHome(table, split_id) for table, split_id in homes), *self._emptied, *keys):
            self._context.send(SourceEventWrapper(event))
        self._emptied.clear()
        segments = self._context.output.cut(epoch)
        active = self._watermarks.active(now_s=self._context.now_s())
        tables = {str(t): TableEpoch(self._schemas[t][1], snapshot=False) for t in sorted(self._touched)}
        self._context.send(
            EpochSealed(
                epoch=epoch,
                splits=self._splits.states(),
                segments=segments,
                tables=tables,
                schemas={},
                finished=(),
                watermark_ms=min(active.values(), default=None),
                end_of_input=False,
            )
        )
        reach("after_seal")
        self._epoch = epoch + 1
        self._touched.clear()
        self._dirty = self._wants_seal = False
        self._apply_updates()
        self._splits.after_cut()

    # -- figures

    def heartbeat(self) -> Heartbeat:
        """What the coordinator should know now."""
        return Heartbeat(
            open_bytes=self._context.output.open_bytes,
            wants_seal=self._seal_is_wanted,
            metrics={**self.metrics(), "dirty": self._dirty},
        )

    @property
    def _seal_is_wanted(self) -> bool:
        return self._wants_seal or self._splits.wants_seal

    @property
    def seal_matters(self) -> tuple[bool, bool]:
        """What the coordinator should hear at once when it changes: the epoch should end; the epoch has rows."""
        return self._seal_is_wanted, self._context.output.open_bytes > 0

    def metrics(self) -> dict[str, Any]:
        now_s = self._context.now_s()
        active = self._watermarks.active(now_s=now_s)
        watermark = min(active.values(), default=None)
        pending = [s.pending for _, s in self._splits.active() if s.pending is not None]
        return {
            "currentFetchEventTimeLag": self._event_lags["fetch"],
            "currentEmitEventTimeLag": self._event_lags["emit"],
            "sourceIdleTime": round((now_s - self._last_row_s) * 1000),
            "pendingRecords": sum(pending) if pending else None,
            "watermarkLag": None if watermark is None else max(0, self._wall_ms() - watermark),
            "badMessages": self._bad,
            "waiting": sorted(self._waiting),
            "offsets": {split_id: split.state.offset for split_id, split in self._splits.active()},
            "fetch_lag_ms": self._event_lags["fetch"],
            "log": None,
            "chunks": {},
        }
