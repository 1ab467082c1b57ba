"""The split enumerator for incremental snapshots: one stream split, and the chunks of every table.

It finds the tables and the position to start from, gives the stream split to one reader, plans chunks a few at a time
and gives them to whoever asks, and relays the hand-off's events between the reader of a chunk and the reader of the
log. It never touches a row.

| a chunk is | then |
|---|---|
| pending | given to the next reader that asks |
| out | with a reader; a reader that dies: the log reader is asked to void it |
| published | in the log reader's open epoch; the log reader dies: pending again |
| finished | in a sealed manifest: forgotten |

State (in every manifest): planning state per table, chunks not finished, the greatest H. Chunks in flight are simply
pending after a restore: what had been read of them was in no manifest.

Which tables are parked, or have begun again (`raycdc.source.parking`), is the log reader's to say, and is believed only
when it is sealed: in the manifest that holds it, chunks of the incarnation before are over and planning starts anew.
Until then nothing of such a table is given out (`over`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from raycdc.checkpoint.manifest import Manifest, Segment
from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.parking import Refusal, Requests, with_refusals, with_requests
from raycdc.source.protocol.api import EpochShare, SplitEnumeratorContext
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.selection import without_left
from raycdc.source.snapshot.as_of import Turns
from raycdc.source.snapshot.chunk_events import (
    ChunkDelta,
    ChunkMisfit,
    ChunkOpened,
    ChunkPublished,
    ChunkReaderEvent,
    ChunkVoided,
    CloseChunk,
    DiscardSegments,
    Fate,
    LogEvent,
    OpenChunk,
    ParkTable,
    RelayedEvent,
    StopAt,
    VoidChunk,
)
from raycdc.source.snapshot.snapshot_plan import (
    PLANNED_AHEAD,
    ChunkReaders,
    EnumeratorDialect,
    FailoverDialect,
    OutChunk,
    PlannedChunks,
    ResumePoint,
    StartPoint,
    TablePlanning,
    captured_state,
    first_state,
    snapshot_progress,
    unknown_document,
)
from raycdc.source.snapshot.stream_placement import NoStream, Owned, Placed, Placement, Placing, Unplaced
from raycdc.source.snapshot.stream_state import StreamState, stream_of
from raycdc.source.split import STREAM_SPLIT_ID, PartitionSplit, SnapshotSplit, SourceSplit, StreamSplit
from raycdc.source.table_life import AsOf, InSnapshot

__all__ = ["IncrementalSnapshotEnumerator", "restore_or_create"]

#: Version of this enumerator's state.
STATE_VERSION = 1


class IncrementalSnapshotEnumerator:
    """See the module's docstring. `until` is None (run on), ``"caught-up"`` or ``"snapshot"``."""

    def __init__(
        self,
        context: SplitEnumeratorContext,
        dialect: EnumeratorDialect,
        *,
        until: str | None,
        restored: dict[str, Any] | None = None,
        document: Callable[[str], dict[str, Any]] | None = None,
        requests: Requests | None = None,
        refusals: Sequence[Refusal] = (),
    ) -> None:
        """`document` finds schema documents by fingerprint; open `requests` and `refusals` are carried out."""
        self._document = document or unknown_document
        self._refusals = list(refusals)
        self._requested = requests or Requests()
        #: Tables whose chunks the log reader refuses: the next manifest says why.
        self._over: set[TableId] = set()
        #: As `LogReader` counts parkings and new beginnings, in the last manifest.
        self._changes = 0
        self._context = context
        self._dialect = dialect
        self._until = until
        self._tables: dict[TableId, TablePlanning] = {}
        self._documents: dict[str, dict[str, Any]] = {}
        self._pending: deque[SnapshotSplit] = deque()
        self._out: dict[str, OutChunk] = {}
        self._rubbish: list[Segment] = []
        self._chunk_readers, self._turns = ChunkReaders(), Turns()
        self._placement: Placement = NoStream()
        self._relocated = False
        self._planning = False
        self._high = 0
        self._run_start: int | None = None
        self._started = restored is not None
        if restored is not None:
            self._restore(restored)

    def __repr__(self) -> str:
        chunks = f"pending={len(self._pending)}, out={len(self._out)}"
        return f"IncrementalSnapshotEnumerator({chunks}, log={self._log_reader})"

    def start(self) -> None:
        """Find the start point, unless restored; and where the log ends now, when the run is bounded."""
        if not self._started:
            self._context.call_async(self._dialect.start_point, self._on_start_point)
        if self._until == "caught-up":
            self._context.call_async(self._dialect.current_ordinal, self._on_run_start)
        else:
            self._run_start = 0

    def close(self) -> None:
        """Nothing is open here; the dialect's connections live only inside its calls."""

    def add_reader(self, subtask_id: int) -> None:
        self._discard(())
        self._give_stream()

    def handle_split_request(self, subtask_id: int) -> None:
        self._chunk_readers.asking.append(subtask_id)
        self._assign()

    def add_splits_back(self, splits: Sequence[SourceSplit], subtask_id: int) -> None:
        """`subtask_id` lost these splits; the stream may come later than the chunks, and after its successor."""
        self._chunk_readers.keep(set(self._context.registered_readers()))
        for split in splits:
            match split:
                case StreamSplit():
                    self._lose_log(split)
                case SnapshotSplit():
                    self._lose_chunk(split)
                case PartitionSplit():
                    raise ProtocolError(f"{split.split_id} is none of this enumerator's splits")
        self._give_stream()
        self._assign()

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        if not isinstance(event, RelayedEvent):
            raise ProtocolError(f"The enumerator does not know the event {type(event).__name__}")
        chunk = event.split.chunk_id if isinstance(event, OpenChunk) else event.chunk
        if isinstance(event, ChunkPublished | ChunkVoided):
            self._context.end_split(chunk.split_id, attempt=chunk.attempt)
        out = self._out.get(chunk.split_id)
        if out is None or out.split.attempt != chunk.attempt:
            return  # About an attempt that is over; its sender has been told, or is gone.
        match event:
            case OpenChunk():
                self._to_log(event)
            case CloseChunk() | ChunkMisfit():
                self._high = max(self._high, event.high)
                out.segments = event.segments if isinstance(event, CloseChunk) else ()
                self._to_log(event)
            case ChunkOpened() | ChunkDelta():
                self._to_owner(out, event)
            case ChunkPublished():
                out.published = True
                self._to_owner(out, event)
                self._maybe_stop()
            case ChunkVoided() if out.published:
                return  # The answer about a reader that died: too late, the chunk is out.
            case ChunkVoided(fate=fate):
                self._to_owner(out, event)
                self._put_back(out.split)
                if fate is Fate.TABLE_GONE and self._is_of_now(out.split):
                    self._forget_table(out.split.table)
                elif fate is Fate.NEXT_MANIFEST and self._is_of_now(out.split):
                    self._over.add(out.split.table)
                self._assign()
            case _:
                assert_never(event)

    def handle_splits_finished(self, split_ids: Sequence[str]) -> None:
        for split_id in split_ids:
            out = self._out.pop(split_id)
            self._tables[out.split.table].finished += 1
        self._plan()
        self._assign()
        self._maybe_stop()

    def epoch_sealed(self, epoch: int, splits: Mapping[str, Any]) -> EpochShare:
        """The log reader reports tables and the end by itself; its state says which tables begin again."""
        if STREAM_SPLIT_ID in splits and self._follow(StreamState.from_json(splits[STREAM_SPLIT_ID])):
            self._assign()
            self._maybe_stop()
        return EpochShare()

    @property
    def wants_seal(self) -> bool:
        return False

    def snapshot_state(self, checkpoint_id: int) -> dict[str, Any]:
        unfinished = [o.split for o in self._out.values() if self._is_of_now(o.split)] + list(self._pending)
        return {
            "version": STATE_VERSION,
            "started": self._started,
            "high": self._high,
            "tables": {
                str(t): s.to_json(self._documents[s.fingerprint] if s.planner is not None else None)
                for t, s in self._tables.items()
                if s.parked is None
            },
            "unfinished": [s.to_json() for s in unfinished],
        }

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Nothing to clean up at the source: a binlog is not acknowledged."""

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """The log reader parks them; one that takes its place is given a state in which they are."""
        self._refusals += refusals
        for refusal in refusals:
            self._to_log(ParkTable(refusal))
        if isinstance(self._placement, Unplaced | Placing | Placed):
            self._placement = replace(self._placement, split=self._as_it_goes_on(self._placement.split))

    def progress(self) -> dict[str, Any]:
        return snapshot_progress(self._tables, self._out.values())

    @property
    def chunks_waiting(self) -> int:
        """Chunks nobody reads yet; how many readers the phase needs follows from it."""
        return len(self._pending) + sum(1 for s in self._tables.values() if s.planner is not None)

    @property
    def problems(self) -> dict[str, str]:
        return {}

    def _restore(self, state: dict[str, Any]) -> None:
        if state["version"] != STATE_VERSION:
            raise ProtocolError(f"Enumerator state has version {state['version']}, this one knows {STATE_VERSION}")
        self._high = state["high"]
        self._started = state["started"]
        for name, table in state["tables"].items():
            self._tables[TableId.parse(name)] = TablePlanning.from_json(table)
            if table["document"] is not None:
                self._documents[table["schema"]] = table["document"]
        for data in state["unfinished"]:
            split = SnapshotSplit.from_json(data)
            self._pending.append(replace(split, attempt=split.attempt + 1))

    def _on_start_point(self, start: StartPoint) -> None:
        self._started = True
        schemas = {plan.fingerprint: plan.document for plan in start.tables if not plan.refused}
        for plan in start.tables:
            if plan.refused:
                self._tables[plan.table] = TablePlanning("", None, parked=plan.parked(start.position))
                continue
            # The key is settled here: the log reader compares by it from now on, whatever the configuration says later.
            planner = {"key": plan.snapshot.key} if plan.snapshot is not None else None
            self._tables[plan.table] = TablePlanning(plan.fingerprint, planner)
        self._documents.update(schemas)
        self._placement = Placed(StreamSplit(first_state(start), schemas))
        self._give_stream()
        self._plan()

    def _on_run_start(self, ordinal: int) -> None:
        if not self._relocated:
            self._run_start = ordinal
            self._maybe_stop()

    def _on_resume_point(self, point: ResumePoint | None) -> None:
        """Another server's positions begin anew: what was compared with the old one's is of no use any more."""
        assert isinstance(self._placement, Placing), f"{self._placement} was not asked for"
        split = self._placement.split
        if point is not None:
            split = replace(split, state=replace(split.state, position=point.position, ordinal=point.ordinal))
            self._relocated, self._high = True, 0
            if self._until == "caught-up":
                self._run_start = point.end
        self._placement = Placed(split)
        self._give_stream()

    def _give_stream(self) -> None:
        readers = self._context.registered_readers()
        match self._placement:
            case NoStream() | Placing() | Owned():
                return
            case Unplaced(split) if isinstance(self._dialect, FailoverDialect) and readers:
                self._placement = Placing(split)
                resume_point = partial(self._dialect.resume_point, split.state.position)
                self._context.call_async(resume_point, self._on_resume_point)
            case Unplaced(split) | Placed(split) if readers:
                self._placement = Owned(split, min(readers))
                self._context.assign_splits({min(readers): [split]})
                self._assign()
                self._maybe_stop()
            case Unplaced() | Placed():
                return  # The first reader that registers gets it.
            case _:
                assert_never(self._placement)

    @property
    def _log_reader(self) -> int | None:
        """Who has the stream split."""
        return self._placement.reader if isinstance(self._placement, Owned) else None

    def _lose_chunk(self, split: SnapshotSplit) -> None:
        out = self._out.get(split.split_id)
        if out is None or out.split.attempt != split.attempt or out.published:
            return
        out.owner = None
        if self._log_reader is not None:
            # The log reader may be about to publish it: only its answer tells. Should it be gone, `_lose_log` follows.
            self._to_log(VoidChunk(out.split.chunk_id))
        else:
            self._put_back(out.split)

    def _lose_log(self, split: StreamSplit) -> None:
        """The log reader died with everything open or published since the last manifest."""
        self._placement = Unplaced(split)
        self._placement = Unplaced(self._as_it_goes_on(split))
        self._over.clear()
        for out in list(self._out.values()):
            if out.owner is not None:
                self._to_owner(out, ChunkVoided(out.split.chunk_id, "the log reader is gone"))
            self._put_back(out.split)

    def _is_of_now(self, split: SnapshotSplit) -> bool:
        """Whether the chunk is one of the table's present incarnation."""
        state = self._tables.get(split.table)
        return state is not None and state.parked is None and state.incarnation == split.incarnation

    def _put_back(self, split: SnapshotSplit) -> None:
        out = self._out.pop(split.split_id)
        if out.published or out.owner is None:
            self._discard(out.segments)
        if not self._is_of_now(split):
            return
        self._pending.appendleft(replace(split, attempt=split.attempt + 1))

    def _forget_table(self, table: TableId) -> None:
        """The table was dropped at the source: nothing of it is left to read."""
        self._tables[table].planner = None
        self._pending = deque(split for split in self._pending if split.table != table)

    def _follow(self, stream: StreamState) -> bool:
        """Take over what the stream's state says about tables that are parked or have begun again, if it is new."""
        changed, self._changes = self._changes != stream.changes, stream.changes
        for table, parked in stream.parked.items():
            known = self._tables.get(table)
            if known is None or known.parked != parked:
                self._tables[table] = TablePlanning(
                    parked.schema or "", None, incarnation=parked.incarnation, parked=parked
                )
                self._end_chunks(table)
        for table, state in stream.followed.items():
            known = self._tables.get(table)
            if state.incarnation > (known.incarnation if known else 0):
                self._documents[state.schema] = self._document(state.schema)
                planner = {"key": state.snapshot.key} if isinstance(state, InSnapshot | AsOf) else None
                self._tables[table] = TablePlanning(state.schema, planner, incarnation=state.incarnation)
                self._end_chunks(table)
        return changed

    def _end_chunks(self, table: TableId) -> None:
        """Chunks of an earlier incarnation are over; those that are out come back by the log reader's answer."""
        self._over.discard(table)
        if isinstance(self._placement, Owned):
            self._placement = replace(self._placement, told_to_stop=False)
        self._pending = deque(split for split in self._pending if split.table != table)
        for out in self._out.values():
            if out.split.table == table:
                self._to_log(VoidChunk(out.split.chunk_id))

    def _plan(self) -> None:
        # Tables that are read as of one place come one at a time, so that the place is as late as can be.
        waits = any(split.as_of is not None for split in self._pending)
        if self._planning or waits or len(self._pending) >= PLANNED_AHEAD // 2:
            return
        for table, state in self._tables.items():
            if state.planner is not None and table not in self._over:
                self._planning = True
                document = self._documents[state.fingerprint]
                plan = partial(self._dialect.plan, document, table, state.planner, state.planned)
                self._context.call_async(plan, partial(self._on_planned, table, state))
                return

    def _on_planned(self, table: TableId, asked: TablePlanning, chunks: PlannedChunks) -> None:
        self._planning = False
        state = self._tables[table]
        if state is not asked or state.planner is None:
            self._plan()
            return  # Dropped, parked or begun again meanwhile.
        state.planner, state.estimate = chunks.planner, chunks.estimate
        state.planned += len(chunks.splits)
        incarnation = state.incarnation
        self._pending.extend(replace(split, incarnation=incarnation) for split in chunks.splits)
        self._assign()
        self._plan()
        self._maybe_stop()

    def _assign(self) -> None:
        """Give pending chunks to waiting readers, only while there is a log reader to open them."""
        while self._chunk_readers.asking and self._log_reader is not None:
            split = self._turns.next_of(self._pending, self._out.values(), self._over)
            if split is None:
                break
            registered, most = self._context.registered_readers(), self._dialect.chunk_readers_max
            if (subtask_id := self._chunk_readers.next_of(registered, most=most)) is None:
                break
            self._pending.remove(split)
            self._out[split.split_id] = OutChunk(split, subtask_id)
            self._context.assign_splits({subtask_id: [split]})
        self._plan()
        if self._all_published() and not self._out:
            # Only when every chunk is in a manifest: until then the log reader's death makes chunks pending again.
            # The log's reader stays: it is not told.
            for subtask_id in self._chunk_readers.take_untold(but=self._log_reader):
                self._context.signal_no_more_splits(subtask_id)

    def _all_published(self) -> bool:
        planned = self._started and all(s.planner is None for s in self._tables.values())
        planned = planned and not any(s.parked is not None and s.parked.again for s in self._tables.values())
        return planned and not self._pending and all(o.published for o in self._out.values())

    def _maybe_stop(self) -> None:
        if self._until is None or self._run_start is None or not self._all_published():
            return
        if isinstance(self._placement, Owned) and not self._placement.told_to_stop:
            self._placement = replace(self._placement, told_to_stop=True)
            self._to_log(StopAt(max(self._run_start, self._high), self._changes))

    def _to_log(self, event: LogEvent) -> None:
        if self._log_reader is not None:
            self._context.send_event(self._log_reader, event)

    def _discard(self, segments: Sequence[Segment]) -> None:
        """Some reader deletes segments of a chunk that is read again: the first that there is."""
        self._rubbish += segments
        reader = next(iter(self._context.registered_readers()), None)
        if self._rubbish and reader is not None:
            rubbish, self._rubbish = self._rubbish, []
            self._context.send_event(reader, DiscardSegments(tuple(rubbish)))

    def _to_owner(self, out: OutChunk, event: ChunkReaderEvent) -> None:
        if out.owner is not None:
            self._context.send_event(out.owner, event)

    def restore_stream(self, split: StreamSplit) -> None:
        """The stream split as the last manifest has it; called once, before `start`, when restored."""
        if split.split_id != STREAM_SPLIT_ID:
            raise ProtocolError(f"{split.split_id} is not the stream split")
        self._placement = Unplaced(self._as_it_goes_on(split))

    def _as_it_goes_on(self, split: StreamSplit) -> StreamSplit:
        """The stream with what was asked for done, where that was not sealed yet; planning follows it."""
        state = with_refusals(with_requests(split.state, self._requested), self._refusals)
        state = without_left(state, self._dialect.captures)
        if state.ordinal != split.state.ordinal:
            self._high = 0  # Another log, or another place of it.
        self._follow(state)
        return replace(split, state=state)


def restore_or_create(
    context: SplitEnumeratorContext,
    dialect: EnumeratorDialect,
    *,
    until: str | None,
    last: Manifest | None,
    document: Callable[[str], dict[str, Any]],
    requests: Requests | None = None,
    refusals: Sequence[Refusal] = (),
) -> IncrementalSnapshotEnumerator:
    """The enumerator as `last` left it, or a new one; `document` gives schema documents by fingerprint."""
    state = stream_of(last)
    if last is None or state is None:
        # A run that was stopped before it knew where to start has sealed nothing but its end.
        return IncrementalSnapshotEnumerator(context, dialect, until=until, document=document)
    # A table left out by now has ended: its changes are passed over, so nobody may go on with it as if none were.
    restored = captured_state(last.enumerator, dialect)
    how: dict[str, Any] = {"until": until, "restored": restored, "document": document, "requests": requests}
    how["refusals"] = [refusal for refusal in refusals if dialect.captures(refusal.table)]
    enumerator = IncrementalSnapshotEnumerator(context, dialect, **how)
    documents = {table.schema: document(table.schema) for table in state.followed.values()}
    enumerator.restore_stream(StreamSplit(state, documents))
    return enumerator
