"""A backfill: reads some rows of a followed table again while its log goes on.

Theory of operation. A chunk of a backfill is opened at a log position O, read and closed like every chunk
(`raycdc.source.snapshot.handoff.hand_off`). But its table is live, so its log rows are emitted while the chunk is open,
and no row is held. Folding is therefore not possible. Instead the log reader *remembers* the rows that it emitted since
O.

| the key of a chunk's row | the row |
|---|---|
| is in the log after O, in an epoch that is cut | is left out: it may be older than the target's |
| is in the log of the open epoch | is emitted: in an epoch, rows of chunks precede those of the log, which win |
| is in neither | is emitted: it did not change between O and this epoch, and later changes follow it |

A chunk may therefore be published at any time, and more than once. The target then has the rows that the log alone
would have produced, and wrong rows are corrected. Because a chunk may be read twice, the enumerator stores only the
progress of a backfill. The chunks of a backfill are read one at a time. The target must hold one row per key, because a
changelog would get rows twice.

If a row begins or ceases to match the predicate during the backfill, it was changed, so the log has the change. Rows
that only the target has stay unchanged, because the source cannot evaluate the predicate for them. If keys are given
(`BackfillRows.keys`), rows with these keys are deleted if the SELECT does not return them.

| event | effect |
|---|---|
| the table's columns change | the open chunk is void and read again, with the new columns |
| the table is parked, paused, removed, dropped, or resnapshotted | the backfill is over, and says why |
| the order of the chunk key changes (another type, or collation) | the backfill is over, because its remaining chunks \
now contain other rows |
| the server refuses the predicate, or a new configuration refuses the backfill | the backfill is over |
| a process dies | the chunks that are in no manifest are read again |

Method: DBLog's (arXiv:2010.12597, section 4), whose windows also leave out the keys of the log between two watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from raycdc.core.typed_codec import LEFT_OUT, JsonObject, stored
from raycdc.errors import TableLockedError
from raycdc.model import TableId
from raycdc.source.protocol.api import BackfillProgress, SplitEnumeratorContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect, PlannedChunks
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import BackfillRows, SnapshotSplit
from raycdc.source.tables.parking import RowsRequest
from raycdc.source.tables.table_life import Followed
from raycdc.state.manifests.manifest import Segment
from raycdc.state.opaque import PlannerState


@dataclass(frozen=True, slots=True)
class Backfill(JsonObject):
    """The progress of a backfill, as manifests have it.

    `queue` are planned chunks that are in no manifest. `planner` is None once all chunks are planned, and `document` is
    the table's schema document for planning. `rows` is the number of rows in manifests. `over` is None while the
    backfill goes on; then it is the reason for its end, or empty if the backfill has read everything. `estimate` is the
    expected number of chunks, for people.
    """

    request: RowsRequest
    queue: tuple[SnapshotSplit, ...] = ()
    planner: PlannerState | None = None
    document: SchemaDocument | None = None
    planned: int = 0
    rows: int = 0
    over: str | None = field(default=None, metadata=stored("over"))
    estimate: int = field(default=0, metadata=LEFT_OUT)

    @property
    def progress(self) -> BackfillProgress:
        """Return the progress for people, while the backfill goes on."""
        total = self.planned if self.planner is None else max(self.estimate, self.planned)
        return BackfillProgress(self.planned - len(self.queue), total, self.rows)

    @classmethod
    def begun(cls, request: RowsRequest, document: SchemaDocument) -> Backfill:
        """Return a new backfill with nothing read."""
        if not request.where:
            keys = ("" if split.again is None else split.again.keys for split in request.parts)
            parts = tuple(
                replace(split, index=n, as_of=None, again=BackfillRows(request.backfill, keys=listed))
                for n, (split, listed) in enumerate(zip(request.parts, keys, strict=True))
            )
            return cls(replace(request, parts=()), parts, planned=len(parts))
        return cls(request, planner=PlannerState.from_json({}), document=document)

    @property
    def result(self) -> str:
        """Return the result, as the end of a sentence that begins with the table's name; once it is `over`."""
        if self.over:
            return f"was read again as far as {self.rows:,} rows, and then not any more: {self.over}"
        return f"has {self.rows:,} rows that were read again"


@dataclass(slots=True)
class _Running:
    """A running backfill, with the part of its progress that is in no manifest. In the queue, chunks before the index
    `offered` are assigned. `asked` is True while a planning call runs.
    """

    backfill: Backfill
    offered: int = 0
    asked: bool = False

    @property
    def waiting(self) -> SnapshotSplit | None:
        """Return the first chunk that was not assigned yet."""
        return next((split for split in self.backfill.queue if split.index >= self.offered), None)


@dataclass(slots=True)
class Backfills:
    """The backfills of an enumerator, which owns them. `on_planned` is called when chunks were planned."""

    context: SplitEnumeratorContext
    dialect: EnumeratorDialect
    on_planned: Callable[[], None]
    #: Called when no chunk of a table can be planned because it is locked.
    on_locked: Callable[[TableId], None] = lambda _: None
    #: Called with the progress of a table's backfill; None if it has no running backfill any more.
    on_progress: Callable[[TableId, BackfillProgress | None], None] = lambda *_: None
    #: True if a backfill has ended and its end is in no manifest yet.
    has_changes: bool = False
    _all: dict[str, _Running] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Backfills({[each.backfill.request.backfill for each in self._going()]})"

    def restore(self, sealed: Sequence[Backfill], asked: Mapping[str, RowsRequest]) -> list[RowsRequest]:
        """Go on with the backfills `sealed` in the state, and add the requested backfills in `asked`. Returns the new
        backfills, for `begin`. A finished backfill that is not requested any more is forgotten. A backfill that the
        present configuration refuses is over.
        """
        for each in sealed:
            command = each.request.backfill
            if each.over is None or command in asked:
                queue = tuple(replace(split, attempt=split.attempt + 1) for split in each.queue)
                self._all[command] = _Running(replace(each, queue=queue))
                if each.over is None and command in asked and asked[command].refused:
                    self._end(self._all[command], asked[command].refused)
        return [request for command, request in asked.items() if command not in self._all]

    def begin(
        self, new: Iterable[RowsRequest], state: StreamState, document: Callable[[str], SchemaDocument]
    ) -> Mapping[TableId, Followed]:
        """Begin the `new` backfills.

        If a table is not followed in the log's `state`, its backfill is over immediately. Returns the tables of the
        remaining backfills.
        """
        for request in new:
            followed = state.followed.get(request.table)
            begun = Backfill(request) if followed is None else Backfill.begun(request, document(followed.schema))
            self._all[request.backfill] = _Running(begun)
            if request.refused:
                self._end(self._all[request.backfill], request.refused)
        for table in self.tables():
            if table not in state.followed:
                self.end(table, "the table is not followed")
        return {table: state.followed[table] for table in self.tables()}

    @property
    def is_done(self) -> bool:
        """Return True if only assigned chunks are left."""
        return not any(each.backfill.planner is not None or each.waiting is not None for each in self._going())

    @property
    def chunks_waiting(self) -> int:
        """Return the number of chunks without a reader; there is at most one per table."""
        return sum(1 for each in self._going() if each.waiting is not None)

    def tables(self) -> list[TableId]:
        """Return the tables of running backfills."""
        return [each.backfill.request.table for each in self._going()]

    def next_of(self, table: TableId) -> SnapshotSplit | None:
        """Return the next chunk of the table to be assigned; None if none is planned, or all are assigned."""
        each = next((each for each in self._going() if each.backfill.request.table == table), None)
        if each is None:
            return None
        backfill, waiting = each.backfill, each.waiting
        if waiting is not None:
            each.offered = waiting.index + 1
            return waiting
        if backfill.planner is None:
            if not backfill.queue:
                self._end(each, "")
            return None
        if not each.asked:
            each.asked = True
            assert backfill.document is not None, "a backfill that is planned has its table's document"
            question = (backfill.document, table, backfill.planner, backfill.planned)
            plan = partial(_planned_unless_locked, self.dialect, question)
            self.context.call_async(plan, partial(self._take, each))
        return None

    def finished(self, split: SnapshotSplit, segments: Sequence[Segment]) -> None:
        """Note that a chunk is in a sealed manifest."""
        each = self._of(split)
        if each is None:
            return
        backfill = each.backfill
        rest = tuple(other for other in backfill.queue if other.index != split.index)
        each.backfill = replace(backfill, queue=rest, rows=backfill.rows + sum(segment.rows for segment in segments))
        self.report_progress(backfill.request.table)
        if not rest and backfill.planner is None:
            self._end(each, "")

    def refused(self, split: SnapshotSplit, reason: str) -> None:
        """End the chunk's backfill, because the log reader or the server refused the chunk."""
        each = self._of(split)
        if each is not None:
            self._end(each, reason)

    def end(self, table: TableId, reason: str) -> None:
        """End the table's backfills, because it is not followed any more, or is read as a whole."""
        for each in [each for each in self._going() if each.backfill.request.table == table]:
            self._end(each, reason)

    def drop(self, tables: Collection[TableId]) -> list[TableId]:
        """End the backfills of dropped tables, because another table may take the name. Returns the tables affected."""
        ended = [table for table in self.tables() if table in tables]
        for table in ended:
            self.end(table, "the table was dropped")
        return ended

    def report_progress(self, table: TableId) -> None:
        """Report the progress of the table's backfill; the first one if there are several."""
        going = (each.backfill for each in self._going() if each.backfill.request.table == table)
        self.on_progress(table, next((backfill.progress for backfill in going), None))

    def sealed(self) -> tuple[Backfill, ...]:
        """Return the backfills for the manifest that is being written."""
        self.has_changes = False
        return tuple(each.backfill for each in self._all.values())

    def _take(self, each: _Running, chunks: PlannedChunks | TableLockedError) -> None:
        each.asked = False
        backfill = each.backfill
        if isinstance(chunks, TableLockedError):
            if backfill.over is None:
                self.on_locked(backfill.request.table)
        elif backfill.over is None:
            request = backfill.request
            again = BackfillRows(request.backfill, request.where, order=chunks.order)
            # Keys of the log are not compared with bounds of these chunks, so any cut is valid.
            splits = tuple(replace(split, as_of=None, again=again) for split in chunks.splits)
            planner, document = chunks.planner, backfill.document
            each.backfill = replace(
                backfill,
                queue=(*backfill.queue, *splits),
                planner=planner,
                document=None if planner is None else document,
                planned=backfill.planned + len(splits),
                estimate=chunks.estimate,
            )
            self.report_progress(request.table)
        self.on_planned()

    def _end(self, each: _Running, reason: str) -> None:
        ended = replace(each.backfill, queue=(), planner=None, document=None, over=reason)
        each.backfill, self.has_changes = ended, True
        self._all[ended.request.backfill] = each
        self.report_progress(ended.request.table)

    def _of(self, split: SnapshotSplit) -> _Running | None:
        """Return the running backfill of the chunk, or None."""
        each = None if split.again is None else self._all.get(split.again.backfill)
        return None if each is None or each.backfill.over is not None else each

    def _going(self) -> Iterator[_Running]:
        return (each for each in list(self._all.values()) if each.backfill.over is None)


def _planned_unless_locked(
    dialect: EnumeratorDialect, question: tuple[SchemaDocument, TableId, PlannerState, int]
) -> PlannedChunks | TableLockedError:
    """Return the next chunks of a table. If the table is locked, return the error, and the enumerator retries later.
    Blocks.
    """
    try:
        return dialect.plan(*question)
    except TableLockedError as locked:
        return locked
