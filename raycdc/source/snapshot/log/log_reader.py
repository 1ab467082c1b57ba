"""The log reader: the part of an incremental-snapshot reader that passes the log through the hand-off into the open
epoch. Exactly one reader of a job has a log reader. It alone decides the content of an epoch: rows of live keys,
published chunks, and schema changes. Its `state` after a cut has everything that is needed to continue from the cut.

It handles those events of `raycdc.source.snapshot.chunk_events` that are sent to the log reader.

Its parts, each with a state of its own: `LogCursor` (the log's position), `OpenEpoch` (everything since the last cut),
`HandOff` (tables whose chunks are read), `ChunkOpenings` (chunks to be opened), `TableChanges` (changes of tables),
`CatchUp` (tables that continue from an earlier position) and `TableStates` (the state of each table).

Events take effect only between two transactions; inside a transaction they wait. A schema change ends the epoch:
`wants_seal` becomes True and nothing is read until the cut, so the next epoch begins with the change. A dropped table
stays in the state until the epoch with its drop is cut. Parking and resnapshotting a table are schema changes, too
(`raycdc.source.tables.parking`). ``changes`` in the state counts parkings and resnapshots, and each of them gives its
table the new count as its incarnation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from raycdc.core.failpoints import reach
from raycdc.source.protocol.api import ReaderOutput
from raycdc.source.protocol.metrics import LogMetrics
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.snapshot.chunk_events import (
    ChunkDelta,
    ChunkOpened,
    ChunkPublished,
    ChunkRefused,
    ChunkSchemaMismatch,
    ChunkVoided,
    CloseChunkRequest,
    Fate,
    LogEvent,
    OpenChunkRequest,
    ParkTable,
    StopAt,
    VoidChunkRequest,
)
from raycdc.source.snapshot.handoff.chunk_openings import (
    ChunkOpenings,
    OpeningDeferred,
    OpeningGranted,
    OpeningRefused,
    OpeningRequest,
)
from raycdc.source.snapshot.handoff.hand_off import (
    Decision,
    FoldChunkRequest,
    HandOff,
    PublishChunkRequest,
    RetryChunkRequest,
    RowMemory,
)
from raycdc.source.snapshot.handoff.open_chunk import KeyOrder
from raycdc.source.snapshot.log.log_unit import (
    NOWHERE,
    LogProgress,
    LogTransactions,
    LogUnit,
    SchemaChange,
    TransactionPart,
)
from raycdc.source.snapshot.log.open_epoch import LogReport, OpenEpoch
from raycdc.source.snapshot.log.stream_state import LogCursor, SealedStream, StreamState
from raycdc.source.snapshot.log.table_changes import TableChanges
from raycdc.source.snapshot.rereading.catch_up import CatchUp
from raycdc.source.split import ChunkId, OpenedAt, SnapshotSplit, StreamSplit
from raycdc.source.tables.table_life import AsOf, Parked, ParkingCause, TableStates, reading
from raycdc.state.opaque import LogNotes

__all__ = ["LogReader", "LogReaderSettings", "LogReport"]


def always_complete(_: LogNotes, _up_to: int) -> bool:
    """Return True, for logs whose notes never have anything pending."""
    return True


@dataclass(frozen=True, slots=True)
class LogReaderSettings:
    """The limits of an epoch and of rows held for chunks, and whether tables may be parked.

    Dropped rows are remembered for `ring_s` seconds, because the server does not report when a SELECT sees them; 0 if
    it does. Rows that chunks hold need at most `held_bytes_max` of memory (None: `epoch_bytes_max`). If `parks` is
    False, a table that cannot be followed ends the run. `is_complete` is that of `ReaderDialect`.
    """

    epoch_bytes_max: int
    ring_s: float = 0.0
    held_bytes_max: int | None = None
    parks: bool = True
    is_complete: Callable[[LogNotes, int], bool] = always_complete

    @property
    def memory_max(self) -> int:
        """Return the number of bytes of held rows that may be in memory."""
        return self.epoch_bytes_max if self.held_bytes_max is None else self.held_bytes_max


@dataclass(frozen=True, slots=True)
class AwaitsCut:
    """A schema change that the reader holds until the open epoch is cut. The next epoch begins with this change."""

    change: SchemaChange


@dataclass(frozen=True, slots=True)
class AwaitsTables:
    """A unit that the reader holds because a table is read as of an earlier position of the log. The reader passes the
    unit on once all chunks of that table are published.
    """

    unit: LogUnit


class LogReader:
    """The reader of the log; see the module's docstring. Owned by the reader's thread."""

    def __init__(
        self,
        split: StreamSplit,
        *,
        key_order: KeyOrder,
        output: ReaderOutput,
        send_event: Callable[[SourceEvent], None],
        settings: LogReaderSettings,
        now_s: float,
    ) -> None:
        state = split.state
        self._send_event = send_event
        self._table_states = TableStates({**state.followed, **state.parked, **state.catching_up}, changes=state.changes)
        self._cursor = LogCursor(state)
        self._epoch = OpenEpoch(
            self._table_states,
            output,
            schemas=split.schemas,
            missing=state.missing,
            bytes_max=settings.epoch_bytes_max,
        )
        memory = RowMemory(settings.memory_max, output.spill)
        self._hand_off = HandOff(key_order, self._table_states, ring_s=settings.ring_s, memory=memory)
        self._openings = ChunkOpenings(self._table_states, self._hand_off, ring_s=settings.ring_s, now_s=now_s)
        self._changes = TableChanges(
            self._table_states,
            self._hand_off,
            self._epoch,
            key_order=key_order,
            send_event=send_event,
            parks=settings.parks,
        )
        for table in self._table_states:
            if reading(self._table_states[table]) is not None:
                self._hand_off.add_table(table, primary_key=self._epoch.tables.document(table).primary_key)
        self.catch_up = CatchUp(
            self._cursor, self._table_states, self._changes, self._epoch, is_complete=settings.is_complete
        )
        self._sealed = SealedStream(self._table_states)
        self._waiting: deque[LogEvent] = deque()
        #: The reason why the log is not passed on; None if it is.
        self._halt: AwaitsCut | AwaitsTables | None = None
        self._stop: StopAt | None = None

    @property
    def ready(self) -> bool:
        """Return True if the next unit may be passed in: no unit waits (for a cut, or for a table), and the epoch has
        room.
        """
        catching_up = self.catch_up.in_transaction or self.catch_up.wants_cut
        return self._halt is None and not catching_up and (self._cursor.in_transaction or not self._epoch.is_full)

    @property
    def at_boundary(self) -> bool:
        """Return True if the reader is between two transactions of the log, and holds no schema change that waits for a
        cut.
        """
        return not self._cursor.in_transaction and not isinstance(self._halt, AwaitsCut)

    @property
    def can_cut(self) -> bool:
        return not (self._cursor.in_transaction or self.catch_up.in_transaction)

    @property
    def wants_seal(self) -> bool:
        """Return True if the epoch must end early: a schema change waits, the epoch is full, or the end is reached."""
        waits = isinstance(self._halt, AwaitsCut) or self.catch_up.wants_cut
        return self.can_cut and (waits or self._epoch.is_full or self.end_of_input)

    @property
    def dirty(self) -> bool:
        """Return True if a cut now would differ from the last one."""
        return self._epoch.changed or self._cursor.moved or self.catch_up.moved

    @property
    def end_of_input(self) -> bool:
        """Return True if the end of the input is reached, and nothing before it is pending.

        If the message with the end position was sent without knowledge of the newest parking or resnapshot, it does not
        count. A table then has more to read than its sender knew, and the sender will send a new end position.
        """
        stop, cursor = self._stop, self._cursor
        if stop is None or stop.changes != self._table_states.changes:
            return False
        if not self.catch_up.is_over:
            return False
        reached = not cursor.in_transaction and cursor.ordinal >= stop.ordinal
        return reached and self.catch_up.log_is_complete(stop.ordinal)

    def metrics(self) -> LogMetrics:
        """Return figures for people, as a heartbeat has them."""
        return LogMetrics(self._cursor.ordinal, self._cursor.event_ms, seen_ms=self._cursor.watermark_ms)

    def on_unit(self, unit: LogUnit, *, now_s: float) -> None:
        """Pass one unit of the log. Only when `ready`."""
        unit = self._changes.refused.without(unit)
        if not self._cursor.in_transaction and self._hand_off.bars(end := unit.end):
            # A part of a transaction that has no rows has no position of its own. It is skipped, because the next unit
            # has the position.
            if end < NOWHERE:
                self._halt = AwaitsTables(unit)
                self._between_transactions(now_s=now_s)
            return
        match unit:
            case SchemaChange():
                self._halt = AwaitsCut(unit)
                if not self.dirty:
                    self._apply_schema(unit, now_s=now_s)
            case TransactionPart(position, rows):
                for part in rows:
                    self._epoch.collect(self._hand_off.rows(part, now_s=now_s))
                self._cursor.move(position, in_transaction=True)
            case LogTransactions(position, rows, parked, missing):
                if missing:
                    # Rows that a chunk will deliver later are not counted as missing.
                    awaited = [one for part in rows for one in self._hand_off.awaits(part)]
                    reported = zip(missing, awaited, strict=True)
                    self._epoch.note_missing([row for row, chunk_to_come in reported if not chunk_to_come])
                for part in rows:
                    self._epoch.collect(self._hand_off.rows(part, now_s=now_s))
                for update in parked:
                    self._changes.apply(update, now_s=now_s)
                self._cursor.move(position, in_transaction=False)
                self._between_transactions(now_s=now_s)
            case LogProgress(position):
                self._cursor.move(position, in_transaction=False)
                self._between_transactions(now_s=now_s)
            case _:
                assert_never(unit)

    def on_catch_up_unit(self, unit: LogUnit, *, now_s: float) -> None:
        """Pass one unit of the catch-up stream. Call it only if `catch_up` is ready and `at_boundary` is True."""
        self.catch_up.on_unit(unit, now_s=now_s)
        if isinstance(self._halt, AwaitsTables):
            self._between_transactions(now_s=now_s)

    def on_event(self, event: LogEvent, *, now_s: float) -> None:
        """Handle an event for the log reader. The event waits while a transaction is open or a schema change waits for
        the cut.
        """
        self._waiting.append(event)
        if self.at_boundary:
            self._between_transactions(now_s=now_s)

    def on_time(self, *, now_s: float) -> float | None:
        """Open chunks whose waiting time has passed. Returns the time at which the next ones may be opened."""
        if not self.at_boundary:
            return None
        for request in self._openings.take_due(now_s=now_s):
            self._open(request, now_s=now_s)
        return self._openings.next_due_s()

    def after_cut(self, *, now_s: float) -> None:
        """Open a new epoch: apply the schema change that waited for it, then the events after it."""
        self._hand_off.begin_epoch()
        self._epoch.begin()
        self._cursor.moved = False
        self._table_states.cut()
        self.catch_up.after_cut(now_s=now_s)
        # A statement that waited for the cut may just have completed the catch-up of tables.
        if self.catch_up.reopens:
            self._halt = None  # The unit that waited is dropped, because the reopened log delivers it again.
        if isinstance(self._halt, AwaitsCut):
            self._apply_schema(self._halt.change, now_s=now_s)
        else:
            self._between_transactions(now_s=now_s)

    def state(self) -> StreamState:
        """Return the split's state between two transactions."""
        followed, parked, catching_up = self._table_states.sealed(self._epoch.tables)
        cursor, changes, missing = self._cursor, self._table_states.changes, self._epoch.missing
        return StreamState(
            cursor.position, cursor.ordinal, followed, parked, changes, cursor.notes, missing, catching_up
        )

    def report(self) -> LogReport:
        """Return the log reader's part of `EpochSealed` without segments. Call it once per cut, before `after_cut`."""
        self.catch_up.seal()
        cursor, epoch, sealed = self._cursor, self._epoch, self._sealed
        report = epoch.report(watermark_ms=cursor.watermark_ms, end_of_input=self.end_of_input)
        if sealed.is_first:
            return replace(report, sealed=sealed.whole(self.state()))
        changes = self._table_states.changes
        position = StreamState(
            cursor.position, cursor.ordinal, changes=changes, notes=cursor.notes, missing=epoch.missing
        )
        return replace(report, sealed=sealed.change(position))

    def _between_transactions(self, *, now_s: float) -> None:
        while self._waiting:
            self._control(self._waiting.popleft(), now_s=now_s)
        if not self._epoch.takes_chunks:
            return  # The next epoch will take them.
        barred = isinstance(self._halt, AwaitsTables)
        for decision in self._hand_off.advance(self._cursor.ordinal, now_s=now_s, barred=barred):
            self._carry_out(decision, now_s=now_s)
        for table in self._hand_off.complete_tables():
            self._epoch.touch(table)
        if self.catch_up.wants_cut or self.catch_up.in_transaction:
            return  # `after_cut`, or the end of that transaction, calls this method again.
        if isinstance(self._halt, AwaitsTables) and not self._hand_off.bars(self._halt.unit.end):
            unit, self._halt = self._halt.unit, None
            self.on_unit(unit, now_s=now_s)

    def _control(self, event: LogEvent, *, now_s: float) -> None:
        match event:
            case OpenChunkRequest(split):
                self._open(OpeningRequest(split, now_s), now_s=now_s)
            case CloseChunkRequest(chunk, high, log_end, exact, segments):
                self._hand_off.close(chunk, high=high, log_end=log_end, exact=exact, segments=segments)
            case ChunkSchemaMismatch(chunk, high, reason):
                self._hand_off.schema_mismatch(chunk, high=high, reason=reason, now_s=now_s)
            case ChunkRefused(chunk, reason):
                self._refused(chunk, reason, now_s=now_s)
            case VoidChunkRequest(chunk):
                # Always answered: a published chunk was reported before, and any other chunk must be read again.
                self._hand_off.void(chunk, now_s=now_s)
                self._openings.withdraw(chunk)
                self._send_event(ChunkVoided(chunk, "its reader is gone"))
            case StopAt():
                self._stop = event
            case ParkTable(refusal):
                self._changes.refuse(refusal, now_s=now_s)
                self.catch_up.leave()
            case _:
                assert_never(event)

    def _open(self, request: OpeningRequest, *, now_s: float) -> None:
        split = request.split
        match self._openings.ask(request, ordinal=self._cursor.ordinal, now_s=now_s):
            case OpeningGranted():
                state = self._table_states[split.table]
                as_of = state.at if isinstance(state, AsOf) else None
                opened_at = OpenedAt(self._cursor.position, self._openings.ring_s, as_of)
                document = self._epoch.tables.document(split.table)
                self._send_event(ChunkOpened(split.chunk_id, opened_at, document))
                reach("after_open")
            case OpeningDeferred():
                return
            case OpeningRefused() as refused:
                self._refuse_chunk(split, refused, now_s=now_s)

    def _carry_out(self, decision: Decision, *, now_s: float) -> None:
        if isinstance(self._table_states[decision.split.table], Parked):
            over = OpeningRefused("another chunk of the table was given up", Fate.NEXT_MANIFEST)
            self._refuse_chunk(decision.split, over, now_s=now_s)
            return
        match decision:
            case PublishChunkRequest(split, segments, released):
                self._epoch.publish(split, segments, released)
                self._openings.retries.forget(split)
                self._send_event(ChunkPublished(split.chunk_id))
            case FoldChunkRequest(split, delta):
                self._send_event(ChunkDelta(split.chunk_id, self._epoch.write_delta(split, delta)))
            case RetryChunkRequest(split, reason):
                too_often = self._openings.retries.count(decision)
                again = OpeningRefused(reason, Fate.READ_AGAIN)
                given_up = OpeningRefused(too_often, Fate.NEXT_MANIFEST, gives_up=True)
                if split.again is not None:
                    given_up = OpeningRefused(too_often, Fate.BACKFILL_OVER)
                self._refuse_chunk(split, given_up if too_often else again, now_s=now_s)
            case _:
                assert_never(decision)

    def _refused(self, chunk: ChunkId, reason: str, *, now_s: float) -> None:
        """Handle the report that no attempt can read the chunk's rows. If the attempt is over already, nothing is done,
        because it was answered before.
        """
        split = self._hand_off.void(chunk, now_s=now_s)
        if split is None:
            return
        if split.again is not None:
            self._refuse_chunk(split, OpeningRefused(reason, Fate.BACKFILL_OVER), now_s=now_s)
        else:
            self._refuse_chunk(split, OpeningRefused(reason, Fate.NEXT_MANIFEST, gives_up=True), now_s=now_s)

    def _refuse_chunk(self, split: SnapshotSplit, refused: OpeningRefused, *, now_s: float) -> None:
        """End the attempt at the chunk. If the chunk's table cannot be read at all, park the table."""
        self._send_event(ChunkVoided(split.chunk_id, refused.reason, refused.fate))
        if refused.gives_up:
            why = ParkingCause(refused.reason, self._cursor.position, self._cursor.event_ms or 0)
            self._changes.give_up(split.table, why, now_s=now_s)
            self.catch_up.leave()

    def _apply_schema(self, change: SchemaChange, *, now_s: float) -> None:
        self._halt = None
        for update in change.updates:
            self._changes.apply(update, now_s=now_s)
        for rows in change.truncations:
            # Rows that the schema change itself removed are not judged by chunks.
            self._hand_off.truncate(rows.table)
            self._epoch.collect(rows)
        self._cursor.move(change.log_position, in_transaction=change.in_transaction)
        if not self._cursor.in_transaction:
            self._between_transactions(now_s=now_s)
