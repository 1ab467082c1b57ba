"""The split enumerator for incremental snapshots: one stream split, and the chunks of every table.

It finds the tables and the start position, gives the stream split to one reader, plans chunks a few at a time and gives
them to readers that ask, and relays the hand-off's events between the reader of a chunk and the reader of the log. It
handles no rows. Its parts are `SnapshotPlanning` (the chunks still to be read), `ChunkAssignments` (the reader of each
chunk), `StreamAssignment` (the reader of the log) and `RunEndPosition` (the end of a bounded run).

| a chunk is | then |
|---|---|
| pending | given to the next reader that asks |
| out | with a reader; if the reader dies, the log reader is asked to void it |
| published | in the log reader's open epoch; if the log reader dies, pending again |
| finished | in a sealed manifest: forgotten |

Chunks of backfills (`Backfills`) are assigned like those of snapshots, one per table at a time.

State (in every manifest): planning state per table, chunks not finished, backfills, the greatest H. After a restore,
assigned chunks are pending again, because none of their rows was in a manifest. The log reader decides which tables are
parked or resnapshotted (`raycdc.source.tables.parking`). Its decision takes effect here when an epoch seals it: chunks
of the earlier incarnation end, and planning starts again. Until then no chunk of such a table is assigned (`over`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.protocol.api import EnumeratorPart, EnumeratorStart, EnumeratorStatistics, SplitEnumeratorContext
from raycdc.source.protocol.epochs import SplitStates
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.selection import without_left
from raycdc.source.snapshot.chunk_events import (
    ChunkDelta,
    ChunkLocked,
    ChunkOpened,
    ChunkPublished,
    ChunkRefused,
    ChunkSchemaMismatch,
    ChunkVoided,
    CloseChunkRequest,
    Fate,
    OpenChunkRequest,
    ParkTable,
    RelayedEvent,
    ResnapshotBegan,
    VoidChunkRequest,
)
from raycdc.source.snapshot.enumerator.chunk_assignments import ChunkAssignments
from raycdc.source.snapshot.enumerator.enumerator_state import SealedEnumerator
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect, StartPoint, first_state
from raycdc.source.snapshot.enumerator.snapshot_planning import SnapshotPlanning, note_dropped
from raycdc.source.snapshot.enumerator.stream_placement import RunEndPosition, StreamAssignment
from raycdc.source.snapshot.log.stream_state import StreamState, dropped_by, stream_of
from raycdc.source.snapshot.rereading.backfill import Backfills
from raycdc.source.split import STREAM_SPLIT_ID, PartitionSplit, SnapshotSplit, SourceSplit, StreamSplit
from raycdc.source.tables.parking import Refusal, Requests, with_refusals, with_requests
from raycdc.source.tables.table_life import Unknown
from raycdc.state.opaque import EnumeratorState, SealedSplit

__all__ = ["IncrementalSnapshotEnumerator", "Restored", "restore_or_create"]


@dataclass(frozen=True, slots=True)
class Restored:
    """The enumerator's `state` and the stream split of the last manifest."""

    state: SealedEnumerator
    stream: StreamSplit


class IncrementalSnapshotEnumerator:
    """The enumerator of a source of tables; see the module's docstring.

    It continues from a `restored` state, or starts a new one.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext,
        dialect: EnumeratorDialect,
        start: EnumeratorStart,
        *,
        restored: Restored | None = None,
    ) -> None:
        self._context, self._dialect = context, dialect
        self._requests = start.requests or Requests()
        self._refusals = list(start.refusals)
        state = SealedEnumerator() if restored is None else restored.state
        #: The number of parkings and resnapshots, as `LogReader` counts them, in the last manifest.
        self._changes = 0
        #: The same number, in a state that requests or refusals have changed and that is in no manifest yet; 0 if there
        #: is no such state.
        self._changed = 0
        self._started = state.started
        self._end = RunEndPosition(start.until, high=state.high, on_known=self._go_on)
        self._planning = SnapshotPlanning(context, dialect, document=start.document, on_planned=self._go_on)
        self._stream = StreamAssignment(context, dialect, self._end, on_placement=self._go_on)
        self._chunks = ChunkAssignments(context, dialect, self._planning, self._stream)
        self._backfills = Backfills(
            context,
            dialect,
            on_planned=self._go_on,
            on_locked=self._planning.held.locked.note,
            on_progress=self._planning.changes.reads_again,
        )
        if restored is not None:
            self._planning.restore(state.tables, state.unfinished)
            new = self._backfills.restore(state.backfills, self._requests.rows)
            stream = self._as_it_goes_on(restored.stream)
            self._stream.take_back(stream)
            note_dropped(self._planning, lambda table: isinstance(stream.state[table], Unknown))
            for table, followed in self._backfills.begin(new, stream.state, start.document).items():
                self._planning.know(table, followed.schema, incarnation=followed.incarnation)
                self._backfills.report_progress(table)

    def __repr__(self) -> str:
        return f"IncrementalSnapshotEnumerator({self._planning}, {self._chunks}, {self._stream})"

    def start(self) -> None:
        """Query the start point, unless the state was restored, and the present end of the log if the run
        is bounded.
        """
        if not self._started:
            self._context.call_async(self._dialect.start_point, self._on_start_point)
        if self._end.asks_for_the_end:
            self._context.call_async(self._dialect.current_ordinal, self._end.began_at)

    def add_reader(self, subtask_id: int) -> None:
        self._chunks.discard()
        self._go_on()

    def handle_split_request(self, subtask_id: int) -> None:
        self._chunks.ask(subtask_id)
        self._go_on()

    def add_splits_back(self, splits: Sequence[SourceSplit], subtask_id: int) -> None:
        """Take back the splits of the lost reader `subtask_id`. The stream split may be returned later than the chunks,
        and after a new incarnation of the reader has registered.
        """
        self._chunks.keep(set(self._context.registered_readers()))
        for split in splits:
            match split:
                case StreamSplit():
                    self._stream.take_back(split)
                    self._stream.take_back(self._as_it_goes_on(split))
                    self._planning.held.over.clear()
                    self._chunks.lose_log()
                case SnapshotSplit():
                    self._chunks.lose(split)
                case PartitionSplit():
                    raise ProtocolError(f"{split.split_id} is none of this enumerator's splits")
        self._go_on()

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        if isinstance(event, ResnapshotBegan):
            self._planning.changes.resnapshot(event.table, event.was, known=self._planning.of(event.table) is not None)
            return
        if not isinstance(event, RelayedEvent):
            raise ProtocolError(f"The enumerator does not know the event {type(event).__name__}")
        chunk = event.split.chunk_id if isinstance(event, OpenChunkRequest) else event.chunk
        if isinstance(event, ChunkPublished | ChunkVoided):
            self._context.end_split(chunk.split_id, attempt=chunk.attempt)
        out = self._chunks.attempt(chunk)
        if out is None:
            return  # The attempt is over; the sender of the event was notified, or was lost.
        match event:
            case OpenChunkRequest():
                self._stream.send(event)
            case CloseChunkRequest() | ChunkSchemaMismatch():
                self._end.saw(event.high)
                out.segments = event.segments if isinstance(event, CloseChunkRequest) else ()
                self._stream.send(event)
            case ChunkRefused():
                self._stream.send(event)
            case ChunkLocked():
                if self._planning.is_of_now(out.split):
                    self._planning.held.locked.note(out.split.table)
                self._stream.send(VoidChunkRequest(chunk))
            case ChunkOpened() | ChunkDelta():
                self._chunks.send(out, event)
            case ChunkPublished():
                self._chunks.publish(out)
                self._chunks.send(out, event)
                self._go_on()
            case ChunkVoided() if out.published:
                return  # A late answer about a reader that died: the chunk is already published.
            case ChunkVoided(fate=fate):
                self._chunks.send(out, event)
                self._chunks.put_back(out)
                if fate is Fate.BACKFILL_OVER:
                    # If the incarnation differs, the table's chunks belong to a newer snapshot.
                    if self._planning.is_of_now(out.split):
                        self._planning.end_chunks(out.split.table)
                    self._backfills.refused(out.split, event.reason)
                elif fate is Fate.TABLE_DROPPED:
                    self._planning.table_dropped(out.split)
                elif fate is Fate.NEXT_MANIFEST:
                    self._planning.leave_alone(out.split)
                self._go_on()
            case _:
                assert_never(event)

    def handle_splits_finished(self, split_ids: Sequence[str]) -> None:
        for split_id in split_ids:
            out = self._chunks.finish(split_id)
            if out.split.again is not None:
                self._backfills.finished(out.split, out.segments)
            else:
                self._planning.finished(out.split.table, out.segments)
        self._go_on()

    def epoch_sealed(self, epoch: int, splits: Mapping[str, SealedSplit]) -> EnumeratorPart:
        """Take over the log's new state, and return an empty part of the manifest.

        The part is empty because the log reader itself reports the tables and the end of the input. The log's state
        shows which tables are parked or resnapshotted.
        """
        change = splits.changes.get(STREAM_SPLIT_ID) if isinstance(splits, SplitStates) else None
        if change is not None:
            # Followed tables that are not in the change have not changed.
            begun, dropped = self._follow(StreamState.of_change(change)), dropped_by(change)
            if dropped:
                note_dropped(self._planning, dropped.__contains__)
                for table in dropped:
                    if self._planning.of(table) is None:
                        self._planning.changes.counted.dropped(table)
        elif STREAM_SPLIT_ID in splits:
            stream = StreamState.of(splits[STREAM_SPLIT_ID])
            begun = self._follow(stream)
            dropped = [table for table in self._backfills.tables() if isinstance(stream[table], Unknown)]
            note_dropped(self._planning, lambda table: isinstance(stream[table], Unknown))
        else:
            begun, dropped = False, []
        for table in self._backfills.drop(dropped):
            self._planning.end_chunks(table)
        if begun:
            self._go_on()
        if self._changes >= self._changed:
            self._changed = 0
        return EnumeratorPart()

    @property
    def wants_seal(self) -> bool:
        """Return True if a user's request waits for a seal, which a quiet log would not cause."""
        return (self._changed > 0 or self._backfills.has_changes) and self._stream.reader is not None

    def snapshot_state(self, checkpoint_id: int) -> EnumeratorState:
        out = [out.split for out in self._chunks.out if self._planning.is_of_now(out.split)]
        unfinished = tuple(split for split in (*out, *self._planning.pending) if split.again is None)
        backfills = self._backfills.sealed()
        state = SealedEnumerator(self._started, self._end.high, unfinished=unfinished, backfills=backfills)
        return state.sealed_with(self._planning.sealed())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Do nothing: the log needs no acknowledgement from the enumerator."""

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """Have the log reader park the tables.

        If that reader is lost, its successor gets a state in which they are parked.
        """
        self._refusals += refusals
        for refusal in refusals:
            self._stream.send(ParkTable(refusal))
        self._stream.change(self._as_it_goes_on)

    def statistics(self) -> EnumeratorStatistics:
        planning = self._planning
        waiting = planning.chunks_waiting + self._backfills.chunks_waiting
        return EnumeratorStatistics(
            planning.changes.counted,
            waiting,
            problems=planning.held.locked.problems,
            owing=self._chunks.owing,
            stalled=planning.held.locked.stalled,
            chunks_out=len(self._chunks.out),
        )

    def _on_start_point(self, start: StartPoint) -> None:
        self._started = True
        self._planning.begin(start)
        schemas = {plan.fingerprint: plan.document for plan in start.tables if not plan.refused}
        self._stream.begin(StreamSplit(first_state(start), schemas))
        self._go_on()

    def _go_on(self) -> None:
        """Assign splits, plan chunks and stop readers, as far as that is possible now. Has no effect if nothing can be
        done.
        """
        self._stream.give()
        for table in self._backfills.tables():
            planning = self._planning.of(table)
            if planning is None or not planning.is_read or table in self._planning.held.now:
                continue
            if any(split.table == table for split in self._planning.pending):
                continue  # Chunks of a backfill are assigned one at a time.
            if (split := self._backfills.next_of(table)) is not None:
                self._planning.pending.append(replace(split, incarnation=planning.incarnation))
        self._chunks.assign()
        self._planning.plan()
        if self._all_published():
            self._stream.stop(changes=self._changes)
            if not self._chunks.any_out:
                self._chunks.signal_no_more()

    def _all_published(self) -> bool:
        return self._started and self._planning.is_done and self._backfills.is_done and self._chunks.all_published

    def _follow(self, stream: StreamState) -> bool:
        """Take over the tables' states from the stream. Returns True if any table was parked or resnapshotted since the
        last call.
        """
        changed, self._changes = self._changes != stream.changes, stream.changes
        for table in self._planning.follow(stream):
            self._end_chunks(table)
        return changed

    def _end_chunks(self, table: TableId) -> None:
        """End the table's chunks of an earlier incarnation, and its backfills."""
        if (planning := self._planning.of(table)) is not None:
            self._backfills.end(table, planning.why_over)
        self._planning.held.over.discard(table)
        self._planning.end_chunks(table)
        self._stream.stop_no_more()
        self._chunks.void(table)

    def _as_it_goes_on(self, split: StreamSplit) -> StreamSplit:
        """Return the stream split with all unsealed requests applied, and let planning follow its state."""
        refused = {refusal.table for refusal in self._refusals}
        state = with_refusals(with_requests(split.state, self._requests, refused=refused), self._refusals)
        state = without_left(state, self._dialect.captures)
        if state.ordinal != split.state.ordinal:
            self._end.high = 0  # The old value belongs to another log, or another position of it.
        if state.changes != split.state.changes:
            self._changed = state.changes
        self._follow(state)
        return replace(split, state=state)


def restore_or_create(
    context: SplitEnumeratorContext, dialect: EnumeratorDialect, start: EnumeratorStart
) -> IncrementalSnapshotEnumerator:
    """Return the enumerator restored from ``start.last``, or a new one."""
    state = stream_of(start.last)
    if start.last is None or state is None:
        # A run that was stopped before it knew its start point has sealed an empty state.
        return IncrementalSnapshotEnumerator(context, dialect, replace(start, requests=None, refusals=()))
    # A table that is no longer captured is ended in the state. The log reader skips its changes from now on, so it must
    # not continue later without a new snapshot.
    refusals = [refusal for refusal in start.refusals if dialect.captures(refusal.table)]
    sealed = SealedEnumerator.of(start.last.enumerator).only(dialect.captures)
    restored = Restored(sealed, StreamSplit.of(state, start.document))
    return IncrementalSnapshotEnumerator(context, dialect, replace(start, refusals=refusals), restored=restored)
