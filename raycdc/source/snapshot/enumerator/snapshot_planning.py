"""Plans the chunks of a snapshot, a few at a time.

Planned chunks are pending until a reader gets them.

Invariant: a pending chunk belongs to its table's present incarnation. No chunk is planned or assigned of a table that
is parked, dropped, or suspended (`SuspendedTables`).

`CountedTables` keeps the progress of each table and of all together, and recomputes only tables that changed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from raycdc.core.typed_codec import Json
from raycdc.errors import TableLockedError
from raycdc.model import TableId
from raycdc.source.protocol.api import (
    NO_AMOUNT,
    BackfillProgress,
    SnapshotAmount,
    SplitEnumeratorContext,
    TableCounts,
    TableProgress,
)
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.enumerator_state import SealedPlanning, WrittenTables
from raycdc.source.snapshot.enumerator.snapshot_plan import (
    PLANNED_AHEAD,
    EnumeratorDialect,
    LockedTables,
    PlannedChunks,
    StartPoint,
    uncut,
)
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.table_life import AsOf, InSnapshot, Parked, ParkedPhase
from raycdc.state.manifests.manifest import Segment
from raycdc.state.opaque import PlannerState


@dataclass(frozen=True, slots=True)
class Published:
    """The chunks of a table that are published and in no manifest yet."""

    chunks: int = 0
    rows: int = 0
    bytes: int = 0


NONE_PUBLISHED = Published()


class CountedTables:
    """A `TablesProgress` that recomputes only tables that changed; see the module's docstring.

    `progress_of` returns a table's progress. It includes published chunks that are in no manifest yet. Not thread-safe.
    """

    def __init__(self, progress_of: Callable[[TableId, Published], TableProgress]) -> None:
        self._progress_of = progress_of
        self._published: dict[TableId, Published] = {}
        self._progress: dict[TableId, TableProgress] = {}
        self._changed: dict[TableId, None] = {}
        #: Dropped tables that were followed without a chunk, and that planning does not know.
        self._dropped: set[TableId] = set()
        self._in_snapshot = self._chunks_done = self._chunks_left = 0

    def __repr__(self) -> str:
        return f"CountedTables({self.counts()})"

    def note(self, table: TableId) -> None:
        """Note that the table's progress has changed, or may have."""
        self._changed[table] = None

    def dropped(self, table: TableId) -> None:
        """Note that a table was dropped that was created while its log was read."""
        self._dropped.add(table)
        self._progress.setdefault(table, TableProgress(str(ParkedPhase.ENDED)))

    def made_again(self, table: TableId) -> None:
        """Record that a table of this name is followed without a chunk. If it counted as `dropped`, it counts as
        existing again.
        """
        if table in self._dropped:
            self._dropped.discard(table)
            del self._progress[table]

    def published(self, table: TableId, times: int, segments: Iterable[Segment]) -> None:
        """Count (`times` is 1) a published chunk with these `segments` that is in no manifest yet, or remove it from
        the count (`times` is -1).
        """
        before = self._published.pop(table, NONE_PUBLISHED)
        rows, size = before.rows, before.bytes
        for segment in segments:
            rows, size = rows + times * segment.rows, size + times * segment.bytes
        if (now := Published(before.chunks + times, rows, size)) != NONE_PUBLISHED:
            self._published[table] = now
        self._changed[table] = None

    def tables(self) -> Mapping[TableId, TableProgress]:
        """Return the progress of each table, as a live view."""
        self._count_tables()
        return self._progress

    def counts(self) -> TableCounts:
        """Return all together."""
        self._count_tables()
        return TableCounts(len(self._progress), self._in_snapshot, self._chunks_done, self._chunks_left)

    def _count_tables(self) -> None:
        for table in self._changed:
            self._dropped.discard(table)
            if (before := self._progress.get(table)) is not None:
                self._count(before, -1)
            now = self._progress[table] = self._progress_of(table, self._published.get(table, NONE_PUBLISHED))
            self._count(now, +1)
        self._changed.clear()

    def _count(self, progress: TableProgress, times: int) -> None:
        self._chunks_done += times * progress.chunks_done
        if progress.phase == "snapshot":
            self._in_snapshot += times
            self._chunks_left += times * max(0, progress.chunks_total - progress.chunks_done)


#: The maximum number of tables planned in one call. Small tables are planned together, because they share most of the
#: cost.
_TABLES_AT_ONCE_MAX = 16
#: After a table whose planning took this long, the call plans no other table, so that its chunks are returned soon.
_SLOW_S = 1.0
#: The arguments of `EnumeratorDialect.plan`.
_Question = tuple[SchemaDocument, TableId, PlannerState, int]
_Answer = PlannedChunks | TableLockedError


@dataclass(slots=True)
class _Call:
    """The state of planning calls to the source: if a call is running, and the most tables that the next call plans.
    The first call plans only one table, so that the first chunk comes soon.
    """

    under_way: bool = False
    tables_max: int = 1

    def begin(self) -> None:
        self.under_way = True
        self.tables_max = min(2 * self.tables_max, _TABLES_AT_ONCE_MAX)


@dataclass(slots=True)
class TablePlanning:
    """The progress of planning and reading a table, as the enumerator counts it."""

    fingerprint: str
    planner: PlannerState | None
    planned: int = 0
    finished: int = 0
    estimate: int = 0
    incarnation: int = 0
    #: The reason why the table is not followed, from the stream's state.
    parked: Parked | None = None
    #: True if the table is read by the catch-up stream.
    catching_up: bool = False
    amount: SnapshotAmount = NO_AMOUNT
    #: True if the table was dropped at the source and left the log's state. The enumerator's state does not store that.
    dropped: bool = False

    @property
    def is_read(self) -> bool:
        """Return True if the table is followed, and all chunks of its snapshot are in manifests."""
        return self.parked is None and self.planner is None and self.finished >= self.planned

    @property
    def why_over(self) -> str:
        """Return why chunks of an earlier snapshot are obsolete."""
        if self.parked is None or self.parked.again:
            return "the table begins again, which reads all of it"
        return f"the table is {self.parked.word}: {self.parked.reason}"

    def progress(self, published: Published) -> TableProgress:
        """Return the progress, including `published` chunks that are in no manifest yet."""
        if self.parked is not None:
            return TableProgress(self.parked.word, parked=self.parked)
        if self.dropped:
            return TableProgress(str(ParkedPhase.ENDED))
        if self.catching_up:
            return TableProgress("resuming")
        done = self.finished + published.chunks
        complete = self.planner is None and done >= self.planned
        total = self.planned if self.planner is None else max(self.estimate, self.planned)
        rows, size = self.amount.rows + published.rows, self.amount.bytes + published.bytes
        amount = SnapshotAmount(rows, size, self.amount.estimate) if total else None
        return TableProgress("stream" if complete else "snapshot", done, total, amount=amount)


class ChangedTables:
    """Records which tables have changed, so that written states and counts are updated for these alone."""

    def __init__(self, progress_of: Callable[[TableId, Published], TableProgress]) -> None:
        self._backfills: dict[TableId, BackfillProgress] = {}
        #: The reasons of resnapshots that the log's reader reported in this run.
        self._begun: dict[TableId, Parked] = {}
        self.written = WrittenTables()
        self.counted = CountedTables(lambda table, published: self._with_changes(table, progress_of(table, published)))

    def note(self, table: TableId) -> None:
        """Note that the table has changed, or may have."""
        self.written.note(table)
        self.counted.note(table)

    def published(self, split: SnapshotSplit, times: int, segments: Iterable[Segment]) -> None:
        """Count a published chunk of a snapshot.

        Chunks of a backfill are not counted, because their table is already read.
        """
        if split.again is None:
            self.counted.published(split.table, times, segments)

    def reads_again(self, table: TableId, backfill: BackfillProgress | None) -> None:
        """Set the progress of the table's running backfill; None: there is none."""
        if backfill is None and self._backfills.pop(table, None) is None:
            return
        if backfill is not None:
            self._backfills[table] = backfill
        self.counted.note(table)

    def resnapshot(self, table: TableId, was: Parked, *, known: bool) -> None:
        """Note that the table is resnapshotted, even if no manifest ever says that it was parked.

        A table that is not `known` here yet is counted at its next change.
        """
        self._begun[table] = was
        if known:
            self.counted.note(table)

    def _with_changes(self, table: TableId, progress: TableProgress) -> TableProgress:
        backfill, was = self._backfills.get(table), self._begun.get(table)
        if backfill is None and was is None:
            return progress
        return replace(progress, backfill=backfill, begun=was)


@dataclass(frozen=True, slots=True)
class SuspendedTables:
    """Tables of which no chunk is planned or assigned for now. `locked` tables are locked at the source. For tables in
    `over`, the log reader has refused chunks, and the next manifest will contain the reason.
    """

    locked: LockedTables
    over: set[TableId] = field(default_factory=set)

    @property
    def now(self) -> Collection[TableId]:
        """Return all suspended tables."""
        return {*self.over, *self.locked} if self.locked else self.over


class SnapshotPlanning:
    """Plans the chunks of tables; see the module's docstring.

    `document` returns schemas by fingerprint; `on_planned` is called when chunks were planned.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext,
        dialect: EnumeratorDialect,
        *,
        document: Callable[[str], SchemaDocument],
        on_planned: Callable[[], None],
    ) -> None:
        self._context, self._dialect = context, dialect
        self._document = document
        self._on_planned = on_planned
        self._tables: dict[TableId, TablePlanning] = {}
        #: The tables with chunks to plan, in order, and the tables that will be resnapshotted or are catching up. They
        #: are kept up to date, so that an event about a chunk need not go through all tables.
        self._to_plan: dict[TableId, None] = {}
        self._to_begin: set[TableId] = set()
        self._documents: dict[str, SchemaDocument] = {}
        self.changes = ChangedTables(lambda table, published: self._tables[table].progress(published))
        self._call = _Call()
        self.pending: deque[SnapshotSplit] = deque()
        self.held = SuspendedTables(LockedTables(context, dialect, on_free=on_planned))

    def __repr__(self) -> str:
        return f"SnapshotPlanning(pending={len(self.pending)}, tables={len(self._tables)})"

    def restore(self, tables: Mapping[TableId, SealedPlanning], unfinished: Iterable[SnapshotSplit]) -> None:
        """Continue from the tables and chunks of a manifest. Chunks that were assigned and are in no manifest are read
        again, in a new attempt.
        """
        for table, sealed in tables.items():
            planning = TablePlanning(
                sealed.fingerprint,
                sealed.planner,
                sealed.planned,
                sealed.finished,
                sealed.estimate,
                sealed.incarnation,
                amount=sealed.amount,
            )
            self._put(table, planning)
            if sealed.document is not None:
                self._documents[sealed.fingerprint] = sealed.document
        self.pending.extend(replace(split, attempt=split.attempt + 1) for split in unfinished)

    def begin(self, start: StartPoint) -> None:
        """Begin with the tables of the start point."""
        for plan in start.tables:
            if plan.refused:
                self._put(plan.table, TablePlanning("", None, parked=plan.parked(start.position)))
                continue
            # The key is final here: the log reader compares by it from now on, even if the configuration changes.
            planner = None if plan.snapshot is None else uncut(plan.snapshot.key)
            self._put(plan.table, TablePlanning(plan.fingerprint, planner))
            self._documents[plan.fingerprint] = plan.document

    def follow(self, stream: StreamState) -> list[TableId]:
        """Take over parkings and resnapshots from the stream's new state. Returns the tables whose earlier chunks are
        obsolete.
        """
        ended: list[TableId] = []
        for table, parked in stream.parked.items():
            planning = self._tables.get(table)
            if planning is None or planning.parked != parked:
                fingerprint = parked.schema or ""
                parking = TablePlanning(fingerprint, None, incarnation=parked.incarnation, parked=parked)
                self._put(table, parking)
                ended.append(table)
        for table, resumed in stream.catching_up.items():
            planning = self._tables.get(table)
            if planning is None or not planning.catching_up:
                ended.append(table)
                resuming = TablePlanning(resumed.schema, None, incarnation=resumed.incarnation, catching_up=True)
                self._put(table, resuming)
        for table, state in stream.followed.items():
            planning = self._tables.get(table)
            if planning is None:
                self.changes.counted.made_again(table)
            elif planning.catching_up:
                self._put(table, TablePlanning(state.schema, None, incarnation=state.incarnation))
            elif planning.dropped and state.incarnation <= planning.incarnation:
                # Another table has taken the name, and all its rows are in the log.
                self._put(table, TablePlanning(state.schema, None, incarnation=state.incarnation))
                ended.append(table)
            if state.incarnation > (planning.incarnation if planning else 0):
                self._documents[state.schema] = self._document(state.schema)
                planner = uncut(state.snapshot.key) if isinstance(state, InSnapshot | AsOf) else None
                self._put(table, TablePlanning(state.schema, planner, incarnation=state.incarnation))
                ended.append(table)
        return ended

    def plan(self) -> None:
        """Start planning more chunks, if few are left to assign and a table has more."""
        held = self.held.now
        pending = [split for split in self.pending if split.table not in held] if held else self.pending
        if self._call.under_way or len(pending) >= PLANNED_AHEAD // 2:
            return
        # Tables that are read as of one position are planned one at a time, so that the position is as recent as
        # possible.
        if any(split.as_of is not None for split in pending):
            return
        asked: list[TablePlanning] = []
        questions: list[_Question] = []
        for table in self._to_plan:
            state = self._tables[table]
            if state.planner is not None and table not in held and len(asked) < self._call.tables_max:
                asked.append(state)
                questions.append((self._documents[state.fingerprint], table, state.planner, state.planned))
        if asked:
            self._call.begin()
            plan = partial(_answers, self._dialect, questions)
            self._context.call_async(plan, partial(self._take, asked, [table for _, table, _, _ in questions]))

    def _take(self, asked: Sequence[TablePlanning], tables: Sequence[TableId], answers: Sequence[_Answer]) -> None:
        self._call.under_way = False
        for before, table, chunks in zip(asked, tables, answers, strict=False):
            state = self._tables[table]
            # The table was dropped, parked or resnapshotted meanwhile.
            if state is not before or state.planner is None:
                continue
            if isinstance(chunks, TableLockedError):
                self.held.locked.note(table)
            else:
                state.planner, state.estimate = chunks.planner, chunks.estimate
                state.planned += len(chunks.splits)
                if chunks.rows is not None:
                    state.amount = replace(state.amount, estimate=chunks.rows)
                self._put(table, state)
                incarnation = state.incarnation
                self.pending.extend(replace(split, incarnation=incarnation) for split in chunks.splits)
        self._on_planned()

    def _put(self, table: TableId, planning: TablePlanning) -> None:
        """Replace the planning of a table. Only this method does that."""
        self._tables[table] = planning
        self.changes.note(table)
        if planning.planner is None:
            self._to_plan.pop(table, None)
        else:
            self._to_plan[table] = None
        if planning.catching_up or (planning.parked is not None and planning.parked.again):
            self._to_begin.add(table)
        else:
            self._to_begin.discard(table)

    def know(self, table: TableId, fingerprint: str, *, incarnation: int) -> None:
        """Record that the table is followed with this `incarnation`, without chunks to plan. Such a table was created
        while its log was read. An earlier table with its name may have been in its snapshot.
        """
        planning = self._tables.get(table)
        if planning is None or planning.incarnation > incarnation or planning.dropped:
            self.end_chunks(table)
            self._put(table, TablePlanning(fingerprint, None, incarnation=incarnation))

    def of(self, table: TableId) -> TablePlanning | None:
        """Return the planning of the table; None if it is not known here."""
        return self._tables.get(table)

    def is_of_now(self, split: SnapshotSplit) -> bool:
        """Return True if the chunk belongs to the table's present incarnation."""
        state = self._tables.get(split.table)
        return state is not None and state.parked is None and state.incarnation == split.incarnation

    def put_back(self, split: SnapshotSplit) -> None:
        """Make a reader's chunk pending again."""
        if self.is_of_now(split):
            self.pending.appendleft(replace(split, attempt=split.attempt + 1))

    def leave_alone(self, split: SnapshotSplit) -> None:
        """Suspend the table of a chunk that the log reader refused. The next manifest says why."""
        if self.is_of_now(split):
            self.held.over.add(split.table)

    def table_dropped(self, split: SnapshotSplit) -> None:
        """Stop reading the chunk's table, which was dropped at the source."""
        if self.is_of_now(split):
            planning = self._tables[split.table]
            planning.planner = None
            # A new table of the same name needs no chunks: all its rows are in the log.
            planning.planned = planning.finished
            self._put(split.table, planning)
            self.end_chunks(split.table)

    def end_chunks(self, table: TableId) -> None:
        """Drop the pending chunks of the table."""
        self.held.locked.forget(table)
        self.pending = deque(split for split in self.pending if split.table != table)

    def finished(self, table: TableId, segments: Iterable[Segment]) -> None:
        """Note that a chunk of the table is in a sealed manifest.

        `segments` are those of the chunk, if they are known.
        """
        state = self._tables[table]
        state.finished += 1
        for segment in segments:
            amount = state.amount
            state.amount = replace(amount, rows=amount.rows + segment.rows, bytes=amount.bytes + segment.bytes)
        self.changes.note(table)

    @property
    def is_done(self) -> bool:
        """Return True if no chunk is pending or has still to be planned."""
        return not self._to_plan and not self._to_begin and not self.pending

    @property
    def chunks_waiting(self) -> int:
        """Return the number of chunks that could be read now; if all remaining chunks are suspended, at least one. The
        number of readers is chosen by this number.
        """
        waiting = len(self.pending) + len(self._to_plan)
        if not self.held.locked:
            return waiting
        held = sum(split.table in self.held.locked for split in self.pending)
        held += sum(table in self._to_plan for table in self.held.locked)
        return max(waiting - held, min(waiting, 1))

    def sealed(self) -> Mapping[str, Json]:
        """Return the tables of an enumerator's state for a manifest. A table that has not changed since the previous
        call is the same object as then.
        """
        return self.changes.written.written(self.sealed_planning)

    def sealed_planning(self, table: TableId) -> SealedPlanning | None:
        """Return the planning of the table for a manifest; None if it is parked."""
        state = self._tables[table]
        if state.parked is not None:
            return None
        return SealedPlanning(
            state.fingerprint,
            self._documents[state.fingerprint] if state.planner is not None else None,
            state.planner,
            state.planned,
            state.finished,
            state.estimate,
            state.incarnation,
            state.amount,
        )


def note_dropped(planning: SnapshotPlanning, is_gone: Callable[[TableId], bool]) -> None:
    """Mark the tables as dropped that the log's state has no more, according to `is_gone`."""
    for table in list(planning.changes.counted.tables()):
        state = planning.of(table)
        if state is not None and state.parked is None and not state.dropped and is_gone(table):
            state.dropped = True
            planning.changes.note(table)


def _answers(dialect: EnumeratorDialect, questions: Sequence[_Question]) -> list[_Answer]:
    """Plan chunks for `questions`, one table after another and at least one, until there are enough chunks.

    Blocks.

    Planning stops early, because later plans have better information. It also stops at a table that has more chunks
    than were planned now, and at a table that is slow or locked. If planning a table fails, the answers for the earlier
    tables are returned; the next call starts with the failed table and raises its error.
    """
    answers: list[_Answer] = []
    splits: list[SnapshotSplit] = []
    with dialect.planning() as plan:
        for question in questions:
            began_s = time.monotonic()
            try:
                answer = plan(*question)
            except TableLockedError as locked:
                answers.append(locked)
                break
            except Exception:
                if answers:
                    break
                raise
            answers.append(answer)
            splits += answer.splits
            if (
                answer.planner is not None
                or len(splits) >= PLANNED_AHEAD // 2
                or any(split.as_of is not None for split in splits)
                or time.monotonic() - began_s > _SLOW_S
            ):
                break
    return answers
