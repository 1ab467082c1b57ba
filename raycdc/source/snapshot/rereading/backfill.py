"""A backfill: some rows of a table that is followed are read again beside its log, which goes on.

Theory of operation. A chunk of a backfill is opened, read and closed as every chunk is
(`raycdc.source.snapshot.handoff.hand_off`), but its table is live: its log's rows pass on, whatever chunk is open, and
nothing is held. So nothing can be folded into the chunk either: the log has told already. Instead the log reader
*remembers* the rows that passed since O.

| a row of the chunk is | then it |
|---|---|
| of a key that the log told of after O and in an epoch that is cut | is left out: it may be older than the target's |
| of a key that the log told of in the open epoch | goes out: in an epoch rows of chunks precede those of the log, \
which have the last word |
| any other | goes out: nothing changed it between O and this epoch, and what changes it from here on follows |

So each chunk, whenever and however often it is published, leaves the target as the log alone would have left it, with
the source's rows where the target's were others. That is the whole of the exactly-once argument: a chunk may be read
twice, so nothing but the progress is state, and the enumerator alone has that. Its chunks come one at a time. The
target must hold one row per key, as a changelog would get rows twice.

A row that came into the predicate, or left it, while the backfill ran, was changed, so the log has told of it. Rows
that the target has and the source has not are left alone, because a predicate cannot be asked of rows that the source
does not have; those of `BackfillRows.keys` are deleted, if the SELECT does not show them.

| what happens | then |
|---|---|
| the table's columns change | the open chunk is void and read again, with the new columns |
| the table is parked, paused, removed, dropped, or begins again | the backfill is over, and says why |
| the chunk key is ordered otherwise (another type, or collation) | the backfill is over, because what is left of its \
chunks is a part of other rows |
| the server refuses the predicate, or the configuration the backfill by now | so it is |
| a process dies | the chunks that are in no manifest are read again |

Method: DBLog's (arXiv:2010.12597, section 4), whose windows also leave out the keys of the log between two watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NotRequired, TypedDict

from raycdc.errors import TableLockedError
from raycdc.model import TableId
from raycdc.source.protocol.api import BackfillProgress, SplitEnumeratorContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect, PlannedChunks
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.snapshot.rereading.backfill_request import RowsRequest, RowsRequestJson
from raycdc.source.split import BackfillRows, SnapshotSplit
from raycdc.source.tables.table_life import Followed
from raycdc.state.manifests.manifest import Segment
from raycdc.state.opaque import PlannerState


class BackfillJson(TypedDict):
    """`Backfill` in a manifest; chunks, planner and document are as these write themselves."""

    request: RowsRequestJson
    queue: list[Any]
    planner: Any
    document: Any
    planned: int
    rows: int
    over: str | None
    estimate: NotRequired[int]


@dataclass(frozen=True, slots=True)
class Backfill:
    """How far a backfill is, as manifests have it.

    `queue` are its chunks that are planned and in no manifest; `planner` is None once all are planned, and `document`
    describes the table for planning. `rows` were read and are in manifests. `over` says why it ended, empty where it
    has read everything, and None while it goes on. `estimate` is how many chunks there will be, for people.
    """

    request: RowsRequest
    queue: tuple[SnapshotSplit, ...] = ()
    planner: PlannerState | None = None
    document: SchemaDocument | None = None
    planned: int = 0
    rows: int = 0
    over: str | None = None
    estimate: int = 0

    @property
    def progress(self) -> BackfillProgress:
        """How far it is, for people, while it goes on."""
        total = self.planned if self.planner is None else max(self.estimate, self.planned)
        return BackfillProgress(self.planned - len(self.queue), total, self.rows)

    @classmethod
    def begun(cls, request: RowsRequest, document: SchemaDocument) -> Backfill:
        """Nothing of it is read."""
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
        """What became of it, as the end of a sentence that begins with the table's name; once it is `over`."""
        if self.over:
            return f"was read again as far as {self.rows:,} rows, and then not any more: {self.over}"
        return f"has {self.rows:,} rows that were read again"

    def to_json(self) -> BackfillJson:
        document = BackfillJson(
            request=self.request.to_json(),
            queue=[split.to_json() for split in self.queue],
            planner=None if self.planner is None else self.planner.to_json(),
            document=None if self.document is None else self.document.to_json(),
            planned=self.planned,
            rows=self.rows,
            over=self.over,
        )
        if self.estimate:
            document["estimate"] = self.estimate
        return document

    @classmethod
    def from_json(cls, data: BackfillJson) -> Backfill:
        document, planner = data["document"], data["planner"]
        return cls(
            RowsRequest.from_json(data["request"]),
            tuple(map(SnapshotSplit.from_json, data["queue"])),
            None if planner is None else PlannerState.from_json(planner),
            None if document is None else SchemaDocument.from_json(document),
            data["planned"],
            data["rows"],
            data["over"],
            data.get("estimate", 0),
        )


@dataclass(slots=True)
class _Running:
    """A backfill, with what no manifest has of it: chunks before the index `offered` were given out, and whether
    planning was `asked`.
    """

    backfill: Backfill
    offered: int = 0
    asked: bool = False

    @property
    def waiting(self) -> SnapshotSplit | None:
        """The first of its chunks that was not given out."""
        return next((split for split in self.backfill.queue if split.index >= self.offered), None)


@dataclass(slots=True)
class Backfills:
    """The backfills of an enumerator. Plain; owned by it. `on_planned` hears that there is more to give out."""

    context: SplitEnumeratorContext
    dialect: EnumeratorDialect
    on_planned: Callable[[], None]
    #: Hears that nothing of a table can be planned, because somebody has it locked.
    on_locked: Callable[[TableId], None] = lambda _: None
    #: Hears how far the backfill of a table is; None where none goes on any more.
    on_progress: Callable[[TableId, BackfillProgress | None], None] = lambda *_: None
    #: Something ended that no manifest says.
    news: bool = False
    _all: dict[str, _Running] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Backfills({[each.backfill.request.backfill for each in self._going()]})"

    def restore(self, sealed: Sequence[Backfill], asked: Mapping[str, RowsRequest]) -> list[RowsRequest]:
        """Go on with those that were `sealed` and those that are `asked` for. Returns the new ones, which `begin`.

        One that is over and not asked for any more is forgotten; one that is refused by now is over.
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
        """Begin the `new` ones; those of tables that are not followed in the log's `state` are over at once. Returns
        the tables of the others.
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
        """Whether nothing is left but chunks that are out."""
        return not any(each.backfill.planner is not None or each.waiting is not None for each in self._going())

    @property
    def chunks_waiting(self) -> int:
        """Chunks that nobody reads yet; those of one table come one at a time."""
        return sum(1 for each in self._going() if each.waiting is not None)

    def tables(self) -> list[TableId]:
        """Their tables."""
        return [each.backfill.request.table for each in self._going()]

    def next_of(self, table: TableId) -> SnapshotSplit | None:
        """The next chunk of the table, to be given to a reader; None where none is planned, or all are given out."""
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
        """A chunk is in a sealed manifest."""
        each = self._of(split)
        if each is None:
            return
        backfill = each.backfill
        rest = tuple(other for other in backfill.queue if other.index != split.index)
        each.backfill = replace(backfill, queue=rest, rows=backfill.rows + sum(segment.rows for segment in segments))
        self.tell(backfill.request.table)
        if not rest and backfill.planner is None:
            self._end(each, "")

    def refused(self, split: SnapshotSplit, reason: str) -> None:
        """The log reader, or the server, takes no chunk of it."""
        each = self._of(split)
        if each is not None:
            self._end(each, reason)

    def end(self, table: TableId, reason: str) -> None:
        """The table is not followed any more, or is read as a whole."""
        for each in [each for each in self._going() if each.backfill.request.table == table]:
            self._end(each, reason)

    def drop(self, tables: Collection[TableId]) -> list[TableId]:
        """The tables are no more: another one may take the name, and a backfill is none of its own. Returns those whose
        backfills are over for it.
        """
        ended = [table for table in self.tables() if table in tables]
        for table in ended:
            self.end(table, "the table was dropped")
        return ended

    def tell(self, table: TableId) -> None:
        """Say how far the table's backfill is; of several, the first goes on."""
        going = (each.backfill for each in self._going() if each.backfill.request.table == table)
        self.on_progress(table, next((backfill.progress for backfill in going), None))

    def sealed(self) -> tuple[Backfill, ...]:
        """As the manifest that is being made has them."""
        self.news = False
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
            # No key of the log is compared with bounds of these chunks, so that any cut does.
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
            self.tell(request.table)
        self.on_planned()

    def _end(self, each: _Running, reason: str) -> None:
        ended = replace(each.backfill, queue=(), planner=None, document=None, over=reason)
        each.backfill, self.news = ended, True
        self._all[ended.request.backfill] = each
        self.tell(ended.request.table)

    def _of(self, split: SnapshotSplit) -> _Running | None:
        """The backfill that the chunk is of, if it goes on."""
        each = None if split.again is None else self._all.get(split.again.backfill)
        return None if each is None or each.backfill.over is not None else each

    def _going(self) -> Iterator[_Running]:
        return (each for each in list(self._all.values()) if each.backfill.over is None)


def _planned_unless_locked(
    dialect: EnumeratorDialect, question: tuple[SchemaDocument, TableId, PlannerState, int]
) -> PlannedChunks | TableLockedError:
    """The next chunks of a table; the error is for the enumerator, which asks again when the lock is gone. Blocks."""
    try:
        return dialect.plan(*question)
    except TableLockedError as locked:
        return locked
