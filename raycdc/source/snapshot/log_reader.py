"""The log side of an incremental-snapshot reader: passes the log through the hand-off into the open epoch.

Exactly one reader of a job owns it. It alone decides what an epoch contains: rows of live keys, chunks it publishes,
schema changes. Its `state` after a cut is everything needed to go on from there.

It acts on the events of `raycdc.source.snapshot.chunk_events` that are for the log reader.

Events act only between two transactions; inside one they wait. Where nothing tells when a transaction becomes visible
(`ring_s`), chunks open only once this reader has passed the log for that long: what came before is visible then. A
schema change ends the epoch: `wants_seal` turns True and nothing is read until the cut, so the next epoch begins with
it. A table that is dropped stays known until the epoch that says so is cut; no state holds it from then on. One that is
parked, or begins again, is a schema change too (`raycdc.source.parking`): ``changes`` in the state counts them, and is
the incarnation of the table it was about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from raycdc.checkpoint.manifest import TableEpoch
from raycdc.checkpoint.missing import MissingRow, MissingRows
from raycdc.errors import SchemaError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.schema.events import SchemaChangeEvent
from raycdc.source.parking import Refusal, RefusedTables
from raycdc.source.protocol.api import ReaderOutput
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.snapshot.chunk_events import (
    ChunkDelta,
    ChunkMisfit,
    ChunkOpened,
    ChunkPublished,
    ChunkVoided,
    CloseChunk,
    Fate,
    LogEvent,
    OpenChunk,
    ParkTable,
    StopAt,
    VoidChunk,
)
from raycdc.source.snapshot.epoch_tables import EpochTables
from raycdc.source.snapshot.hand_off import Decision, FoldChunk, HandOff, KeyOrder, LogRows, PublishChunk, RetryChunk
from raycdc.source.snapshot.log_unit import (
    NOWHERE,
    LogPlace,
    LogUnit,
    Progress,
    SchemaChange,
    SchemaUpdate,
    TableAltered,
    TableBegun,
    TableDropped,
    TableParked,
    TransactionPart,
    Transactions,
)
from raycdc.source.snapshot.open_chunk import Retries
from raycdc.source.snapshot.stream_state import StreamState
from raycdc.source.split import STREAM_SPLIT_ID, OpenedAt, SnapshotSplit, StreamSplit
from raycdc.source.table_life import (
    AsOf,
    Parked,
    Parking,
    TableLives,
    Unknown,
    is_announced,
)

#: Missing rows of an epoch, which its manifest names one by one; about, as a unit may have some.
_MISSING_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LogReport:
    """What `EpochSealed` says of the log, in its terms."""

    tables: Mapping[str, TableEpoch] = field(default_factory=dict)
    schemas: Mapping[str, Any] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    watermark_ms: int | None = None
    end_of_input: bool = False


class LogReader:
    """See the module's docstring. Owned by the reader's thread."""

    def __init__(
        self,
        split: StreamSplit,
        *,
        key_order: KeyOrder,
        output: ReaderOutput,
        send_event: Callable[[SourceEvent], None],
        ring_s: float,
        epoch_bytes_max: int,
        now_s: float,
        parking: bool = True,
        held_bytes_max: int | None = None,
    ) -> None:
        """Without `parking`, what cannot be followed ends the run instead. Chunks hold up to `held_bytes_max` in
        memory: as much as an epoch may have, if that is None.
        """
        state = split.state
        self._output = output
        self._send_event = send_event
        self._epoch_bytes_max = epoch_bytes_max
        self._lives = TableLives({**state.followed, **state.parked}, changes=state.changes)
        self._tables = EpochTables(self._lives, split.schemas)
        self._position, self._ordinal = state.position, state.ordinal
        #: The source's own, passed through; states written before there was any have none.
        self._source_state = state.source
        self._missing = MissingRows(state.missing)
        self._key_order = key_order
        self._parking = parking
        self._refused = RefusedTables()
        self._retries = Retries()
        held_bytes_max = epoch_bytes_max if held_bytes_max is None else held_bytes_max
        how: dict[str, Any] = {"ring_s": ring_s, "held_bytes_max": held_bytes_max, "spill": output.spill}
        self._hand_off = HandOff(key_order, self._lives, **how)
        self._ring_s = ring_s
        self._opens_from_s = now_s + ring_s
        self._early_opens: list[tuple[float, SnapshotSplit]] = []
        for table in self._lives:
            if self._lives.reading(table) is not None:
                self._hand_off.add_table(table, primary_key=self._tables.document(table)["primary_key"])
        self._stop_ordinal: int | None = None
        self._in_transaction = False
        self._waiting: deque[LogEvent] = deque()
        self._schema_change: SchemaChange | None = None
        #: What may not be passed on yet, as a table is read as of a place before it.
        self._barred: LogUnit | None = None
        self._finished: list[str] = []
        self._dirty = self._tables.has_news()
        self._event_ms: int | None = None
        self._watermark_ms: int | None = None

    @property
    def ready(self) -> bool:
        """True when the next unit may be passed in: none waits (for a cut, or for a table) and the epoch has room."""
        if self._schema_change is not None or self._barred is not None:
            return False
        return self._in_transaction or not self._full

    @property
    def _full(self) -> bool:
        return self._output.open_bytes >= self._epoch_bytes_max or len(self._missing.rows) >= _MISSING_MAX

    @property
    def _at_boundary(self) -> bool:
        return not self._in_transaction and self._schema_change is None

    @property
    def can_cut(self) -> bool:
        return not self._in_transaction

    @property
    def wants_seal(self) -> bool:
        """The epoch must end early: a schema change waits, or the epoch is full, or the end is reached."""
        return self.can_cut and (self._schema_change is not None or self._full or self.end_of_input)

    @property
    def dirty(self) -> bool:
        """True when a cut now would differ from the last one."""
        return self._dirty

    @property
    def end_of_input(self) -> bool:
        return self._stop_ordinal is not None and not self._in_transaction and self._ordinal >= self._stop_ordinal

    @property
    def ordinal(self) -> int:
        return self._ordinal

    def metrics(self) -> dict[str, Any]:
        return {
            **self._hand_off.statistics(),
            "position": self._position,
            "ordinal": self._ordinal,
            "event_ms": self._event_ms,
        }

    def on_unit(self, unit: LogUnit, *, now_s: float) -> None:
        """Pass one unit of the log. Only when `ready`."""
        unit = self._refused.without(unit)
        if not self._in_transaction and self._hand_off.bars(end := unit.end):
            # A part of a transaction without anything in it says nothing: the next one will say where it is.
            if end < NOWHERE or isinstance(unit, SchemaChange):
                self._barred = unit
                self._between_transactions(now_s=now_s)
            return
        match unit:
            case SchemaChange():
                self._schema_change = unit
                if not self._dirty:
                    self._apply_schema(now_s=now_s)
            case TransactionPart(rows=rows):
                self._pass(rows, now_s=now_s)
                self._moved(unit.place, in_transaction=True)
            case Transactions(rows=rows, parked=parked, missing=missing):
                if missing:
                    self._note_missing(rows, missing)
                self._pass(rows, now_s=now_s)
                for update in parked:
                    self._update_table(update, now_s=now_s)
                self._moved(unit.place, in_transaction=False)
                self._between_transactions(now_s=now_s)
            case Progress():
                self._moved(unit.place, in_transaction=False)
                self._between_transactions(now_s=now_s)
            case _:
                assert_never(unit)

    def on_event(self, event: LogEvent, *, now_s: float) -> None:
        """An event for the log reader; waits while a transaction or a schema change is pending."""
        self._waiting.append(event)
        if self._at_boundary:
            self._between_transactions(now_s=now_s)

    def on_time(self, *, now_s: float) -> None:
        """Time has passed: open the chunks that had to wait for it."""
        if self._early_opens and now_s >= self._opens_from_s and self._at_boundary:
            opens, self._early_opens = self._early_opens, []
            for asked_s, split in opens:
                self._open(split, asked_s=asked_s, now_s=now_s)

    def after_cut(self, *, now_s: float) -> None:
        """A new epoch is open: apply the schema change that waited for it, then what waited behind."""
        self._hand_off.begin_epoch()
        self._missing.begin_epoch()
        self._dirty = False
        self._tables.begin_epoch()
        self._lives.cut()
        self._finished.clear()
        if self._schema_change is not None:
            self._apply_schema(now_s=now_s)
        else:
            self._between_transactions(now_s=now_s)

    def state(self) -> StreamState:
        """The split's state between two transactions."""
        followed, parked = self._lives.sealed(self._tables)
        missing, changes = self._missing.state(), self._lives.changes
        return StreamState(self._position, self._ordinal, followed, parked, changes, self._source_state, missing)

    def report(self) -> LogReport:
        """The log reader's part of `EpochSealed` beside segments and state; call before `after_cut`."""
        tables, schemas = self._tables.report()
        return LogReport(tables, schemas, tuple(self._finished), self._watermark_ms, self.end_of_input)

    def _touch(self, table_id: TableId) -> None:
        self._tables.touch(table_id)
        self._dirty = True

    def _note_missing(self, rows: Iterable[LogRows], missing: Iterable[MissingRow]) -> None:
        """Those that no chunk still to be read will bring."""
        awaited = [one for part in rows for one in self._hand_off.awaits(part)]
        self._missing.add([row for row, chunk_to_come in zip(missing, awaited, strict=True) if not chunk_to_come])
        self._dirty = True

    def _pass(self, rows: Iterable[LogRows], *, now_s: float) -> None:
        for part in rows:
            emitted = self._hand_off.rows(part, now_s=now_s)
            if emitted is not None:
                self._collect(emitted)

    def _collect(self, rows: LogRows) -> None:
        state = self._lives[rows.table]
        assert not isinstance(state, Parked | Unknown), f"rows of {rows.table} came, which is {state}"
        self._touch(rows.table)
        document = self._tables.document(rows.table)
        named = {"fingerprint": document["fingerprint"], "key": document["primary_key"]}
        self._output.collect(rows.table, batch=rows.batch, split_id=STREAM_SPLIT_ID, **named)

    def _moved(self, place: LogPlace, *, in_transaction: bool) -> None:
        self._in_transaction = in_transaction
        self._dirty = self._dirty or place.ordinal != self._ordinal
        self._position, self._ordinal = place.position, place.ordinal
        if place.source_state is not None:
            self._source_state = place.source_state
        if place.event_ms is not None:
            self._event_ms = place.event_ms
            if not in_transaction:
                self._watermark_ms = place.event_ms

    def _between_transactions(self, *, now_s: float) -> None:
        while self._waiting:
            self._control(self._waiting.popleft(), now_s=now_s)
        if self._output.open_bytes >= self._epoch_bytes_max:
            return  # A full epoch takes no further chunk; the next one will.
        for decision in self._hand_off.advance(self._ordinal, now_s=now_s, barred=self._barred is not None):
            self._carry_out(decision, now_s=now_s)
        for table_id in self._hand_off.complete_tables():
            self._hand_off.go_live(table_id)
            self._touch(table_id)
        if self._barred is not None and not self._hand_off.bars(self._barred.end):
            unit, self._barred = self._barred, None
            self.on_unit(unit, now_s=now_s)

    def _control(self, event: LogEvent, *, now_s: float) -> None:
        match event:
            case OpenChunk(split):
                self._open(split, asked_s=now_s, now_s=now_s)
            case CloseChunk(chunk, high, log_end, exact, segments):
                self._hand_off.close(chunk, high=high, log_end=log_end, exact=exact, segments=segments)
            case ChunkMisfit(chunk, high, reason):
                self._hand_off.misfit(chunk, high=high, reason=reason, now_s=now_s)
            case VoidChunk(chunk):
                # Answered whatever became of the chunk: published ones were reported before, others must be read again.
                self._hand_off.void(chunk, now_s=now_s)
                self._early_opens = [e for e in self._early_opens if e[1].chunk_id != chunk]
                self._send_event(ChunkVoided(chunk, "its reader is gone"))
            case StopAt(ordinal, changes):
                # Else said by somebody who does not know yet that a table has more to read.
                if changes == self._lives.changes:
                    self._stop_ordinal = ordinal
            case ParkTable(refusal):
                self._refuse(refusal, now_s=now_s)
            case _:
                assert_never(event)

    def _open(self, split: SnapshotSplit, *, asked_s: float, now_s: float) -> None:
        state = self._lives[split.table]
        if not isinstance(state, Unknown) and (isinstance(state, Parked) or state.incarnation != split.incarnation):
            self._voided(split, "the table begins again", Fate.NEXT_MANIFEST)
            return
        if isinstance(state, AsOf) and state.lost is not None:
            if self._ordinal >= state.lost:
                why = (
                    f"{split.table} is another one than when its snapshot began, and the log does not say how. Read it "
                    f"anew with: raycdc tables resnapshot CONFIG {split.table}"
                )
                self._voided(split, why, Fate.NEXT_MANIFEST)
                self._give_up(split.table, why, now_s=now_s)
                return
            self._early_opens.append((asked_s, split))
            return
        hopeless = self._hand_off.would_be_read_again(split.table, now_s=now_s)
        opens_from_s = max(self._opens_from_s, self._hand_off.opens_from_s(split.table))
        if now_s < opens_from_s or (hopeless and now_s < asked_s + self._ring_s):
            self._early_opens.append((asked_s, split))
            return
        if not self._hand_off.open(split, now_s=now_s, ordinal=self._ordinal):
            self._voided(split, "the table was dropped", Fate.TABLE_GONE)
            return
        opened = self._lives[split.table]
        opened_at = OpenedAt(self._position, self._ring_s, opened.at if isinstance(opened, AsOf) else None)
        self._send_event(ChunkOpened(split.chunk_id, opened_at, self._tables.document(split.table)))
        reach("after_open")

    def _carry_out(self, decision: Decision, *, now_s: float) -> None:
        if isinstance(self._lives[decision.split.table], Parked):
            self._voided(decision.split, "another chunk of the table was given up", Fate.NEXT_MANIFEST)
            return
        match decision:
            case PublishChunk(split, segments, released):
                self._touch(split.table)
                self._output.publish(segments)
                for rows in released:
                    self._collect(rows)
                self._finished.append(split.split_id)
                self._retries.forget(split)
                self._send_event(ChunkPublished(split.chunk_id))
            case FoldChunk(split, delta):
                fingerprint = self._tables.document(split.table)["fingerprint"]
                segments = self._output.write_delta(delta, fingerprint=fingerprint, split_id=split.split_id)
                self._send_event(ChunkDelta(split.chunk_id, segments))
            case RetryChunk(split, reason):
                why = self._retries.count(decision)
                self._voided(split, why or reason, Fate.NEXT_MANIFEST if why else Fate.READ_AGAIN)
                if why:
                    self._give_up(split.table, why, now_s=now_s)
            case _:
                assert_never(decision)

    def _voided(self, split: SnapshotSplit, reason: str, fate: Fate = Fate.READ_AGAIN) -> None:
        self._send_event(ChunkVoided(split.chunk_id, reason, fate))

    def _apply_schema(self, *, now_s: float) -> None:
        unit = self._schema_change
        assert unit is not None
        self._schema_change = None
        for update in unit.updates:
            self._update_table(update, now_s=now_s)
        for rows in unit.truncations:
            # No chunk decides about rows that the schema change itself removed.
            self._hand_off.truncate(rows.table)
            self._collect(rows)
        self._moved(unit.place, in_transaction=unit.in_transaction)
        if not self._in_transaction:
            self._between_transactions(now_s=now_s)

    def _update_table(self, update: SchemaUpdate, *, now_s: float) -> None:
        over = isinstance(update, TableParked | TableBegun)
        for split in self._hand_off.void_table(update.table, now_s=now_s):
            why = "the table's schema changed while the chunk was read"
            self._voided(split, why, Fate.NEXT_MANIFEST if over else Fate.READ_AGAIN)
        match update:
            case TableParked(table, parking):
                self._check_parking(table, parking)
                self._park(table, parking)
            case TableBegun():
                self._begin_again(update)
            case TableDropped(table, changes):
                known = not isinstance(self._lives[table], Unknown | Parked)
                self._hand_off.drop_table(table)
                self._lives.dropped(table)
                if known:
                    self._note_changes(table, changes)
            case TableAltered(table) if isinstance(self._lives[table], Parked):
                return  # Nothing of a parked table passes before it begins again, with the schema that it has then.
            case TableAltered(table, changes, document):
                self._tables.documents[update.fingerprint] = document
                if isinstance(self._lives[table], Unknown):
                    self._lives.found(table, update.fingerprint)
                    self._touch(table)
                else:
                    self._lives.altered(table, update.fingerprint)
                    self._note_changes(table, changes)
            case _:
                assert_never(update)

    def _refuse(self, refusal: Refusal, *, now_s: float) -> None:
        if refusal.acts_on(self._lives[refusal.table]):
            self._park_here(refusal.table, refusal.parking, now_s=now_s)

    def _give_up(self, table: TableId, reason: str, *, now_s: float) -> None:
        """The table cannot be read: it is parked here, between two transactions, and the log is not to know it."""
        why = Parking(reason, self._position, self._event_ms or 0)
        self._check_parking(table, why)
        self._park_here(table, why, now_s=now_s)

    def _park_here(self, table: TableId, why: Parking, *, now_s: float) -> None:
        for split in self._hand_off.void_table(table, now_s=now_s):
            self._voided(split, "its table is parked", Fate.NEXT_MANIFEST)
        self._refused.add(table)
        self._park(table, why)

    def _check_parking(self, table: TableId, why: Parking) -> None:
        if not self._parking:
            raise SchemaError(
                f'{why.reason}\n{table} is not parked: pipeline.schema_change = "exception", or on_table_error = '
                '"fail". Nothing after this place was passed on. Set it to another value, or leave the table out '
                "(source.exclude)."
            )

    def _park(self, table: TableId, why: Parking) -> None:
        """Nothing of the table is passed on from here; the chunks it had are nobody's."""
        self._hand_off.drop_table(table)
        # A table that the open epoch announces has a target once that is sealed, as this is.
        self._lives.parked(table, why, announced=table in self._tables)
        self._stop_ordinal = None
        self._dirty = True

    def _begin_again(self, update: TableBegun) -> None:
        """All chunks are unopened, and the target empty: the rows of the schema change say so.

        Whoever said where to stop did not know of it, and will say it again.
        """
        table, document, snapshot = update.table, update.document, update.snapshot
        self._hand_off.drop_table(table)
        self._tables.documents[update.fingerprint] = document
        self._lives.begun_again(table, update.fingerprint, snapshot)
        self._stop_ordinal = None
        self._key_order.use(table, snapshot.key, document)
        self._hand_off.add_table(table, primary_key=document["primary_key"])
        # Also of a table that is new here: it may have been another one before, which was dropped, and then its target
        # is there, with columns that only an emptied one can exchange.
        self._tables.note_changes(table, update.changes)
        self._touch(table)

    def _note_changes(self, table: TableId, changes: Iterable[SchemaChangeEvent]) -> None:
        if is_announced(self._lives[table]):
            self._tables.note_changes(table, changes)
        self._touch(table)
