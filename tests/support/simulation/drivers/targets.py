"""The sink's server: tables with a record, each changed by whole transactions; and the sink of a driver on it.

Whoever opens a target has a draft of it, which counts once the transaction ends, and then only where nobody else
committed since. A server either takes all verbs of an opening together, as databases do, or each for itself, as lakes
do. The decisions are those of `raycdc.sinks.steps`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from raycdc.errors import SegmentUnavailableError, SinkError, SinkLockedError, TargetModifiedError
from raycdc.model import TableId
from raycdc.model.evolution.events import AddColumnEvent, CreateTableEvent, TruncateTableEvent
from raycdc.sinks.api import CHANGELOG, STEP_APPEND, STEP_LAST, STEP_MERGE, CommitVector, TableCommit
from raycdc.sinks.steps import (
    CommitMetadata,
    ExactlyOnceSink,
    MissingTarget,
    OwnTarget,
    StageBatch,
    Target,
    TargetState,
)
from raycdc.state.manifests.manifest import Segment
from tests.support.simulation.drivers.fibers import Fibers
from tests.support.simulation.drivers.log import Row


class SinkUnreachableError(SinkError):
    """The server gave no answer, whatever it did."""


class ConflictError(SinkError):
    """Another transaction was faster."""


@dataclass(slots=True)
class SimServerTable:
    """A table of the server. `log` is every change that it ever took: epoch, operation and row."""

    columns: list[str]
    vector: CommitVector | None = None
    rows: dict[int, Row] = field(default_factory=dict)
    log: list[tuple[int, str, Row]] = field(default_factory=list)
    version: int = 0


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of a table's share: (number, operation, row) of each kind of segment."""

    snapshot: tuple[tuple[int, str, Row], ...]
    log: tuple[tuple[int, str, Row], ...]


class SimServer:
    """Survives every driver. `on_write` hears of every row that counts: target, epoch."""

    def __init__(self, chance: random.Random, *, whole: bool) -> None:
        self.tables: dict[TableId, SimServerTable] = {}
        #: Whether the verbs of an opening count together.
        self.whole = whole
        #: How often a target refuses what is asked of it, by target; and how often an answer is lost.
        self.refuses: dict[TableId, float] = {}
        self.answers_lost = 0.0
        #: Targets that somebody has locked: nothing is written to them, and whoever tries hears so.
        self.locked: set[TableId] = set()
        self.on_write: Callable[[TableId, int], None] = lambda *_: None
        self._random = chance

    def refuse(self, target: TableId) -> None:
        if self._random.random() < self.refuses.get(target, 0.0):
            raise TargetModifiedError(f"{target} was touched by somebody.")
        if target in self.locked:
            raise SinkLockedError(f"{target} is locked by somebody.")

    def install(self, target: TableId, draft: SimServerTable) -> None:
        """Make a draft count. `ConflictError` where it was made of another version; the answer may be lost."""
        there = self.tables.get(target)
        if (there.version if there else 0) != draft.version:
            raise ConflictError(f"{target}: somebody else committed.")
        before = len(there.log) if there else 0
        draft.version += 1
        self.tables[target] = deepcopy(draft)
        for epoch in sorted({epoch for epoch, *_ in draft.log[before:]}):
            self.on_write(target, epoch)
        if self._random.random() < self.answers_lost:
            raise SinkUnreachableError(f"{target}: no answer.")
        if target in self.locked:
            raise SinkLockedError(f"{target} was locked meanwhile, and nobody heard that it was written.")


class SimTarget(Target):
    """A target in the hands of a driver; see the module's docstring."""

    def __init__(self, name: TableId, server: SimServer, fibers: Fibers) -> None:
        super().__init__(name, f"The table {name}")
        self._server = server
        self._fibers = fibers
        self._draft = deepcopy(server.tables.get(name))
        self._made: SimServerTable | None = None

    def read_state(self, epoch: int | None = None) -> TargetState:
        # A record about a target that nobody made yet has no columns.
        if self._draft is None or not self._draft.columns:
            return MissingTarget(vector=None if self._draft is None else self._draft.vector)
        return OwnTarget(self._draft.vector)

    def create(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self._changed(work, commit_metadata, [])

    def replace(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        raise AssertionError("nobody else writes to this server")

    adopt = replace

    def evolve(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        assert self._draft is not None
        self._changed(work, commit_metadata, self._draft.columns)

    def _changed(self, work: TableCommit, commit_metadata: CommitMetadata, columns: Sequence[str]) -> None:
        columns = list(columns)
        for event in work.changes:
            match event:
                case CreateTableEvent(_, schema):
                    columns = [column.name for column in schema.columns]
                case AddColumnEvent(_, column):
                    columns += [column.name] if column.name not in columns else []
                case TruncateTableEvent():
                    pass  # The row that says so does it.
                case _:
                    raise AssertionError(event)
        draft = self._draft or SimServerTable([])
        draft.rows = {key: dict.fromkeys(columns) | row for key, row in draft.rows.items()}
        draft.columns = columns
        self._hold(draft, commit_metadata)

    def steps(self, work: TableCommit, staged: StagedRows) -> Sequence[int]:
        assert self._draft is not None
        names = [column.name for column in work.schema.columns]
        # A column may have come with an epoch that was dropped, and comes again.
        assert set(names) <= set(self._draft.columns), f"{self.name} has {self._draft.columns}, the rows {names}"
        return (STEP_APPEND, STEP_MERGE) if staged.snapshot and staged.log else ()

    def write(self, work: TableCommit, staged: StagedRows, step: int, commit_metadata: CommitMetadata) -> None:
        assert self._draft is not None
        rows = [
            *(staged.snapshot if step in (STEP_APPEND, STEP_LAST) else ()),
            *(staged.log if step in (STEP_MERGE, STEP_LAST) else ()),
        ]
        draft = self._draft
        for _, op, row in sorted(rows, key=lambda entry: entry[0]):
            key = int(row["id"] or 0)
            draft.log.append((work.epoch, op, row))
            if op == "T":
                draft.rows.clear()
            elif op in ("+I", "+U"):
                draft.rows[key] = dict(row)
            else:
                draft.rows.pop(key, None)
        self._hold(draft, commit_metadata)

    def bar(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self._hold(self._draft or SimServerTable([]), commit_metadata)

    def _hold(self, draft: SimServerTable, commit_metadata: CommitMetadata) -> None:
        """The draft has `commit_metadata` as its record; it counts now, or at the end."""
        draft.vector = commit_metadata.vector
        self._draft = self._made = draft
        if not self._server.whole:
            self.finish()

    def finish(self) -> None:
        """All that was done counts from here on."""
        if self._made is not None:
            self._fibers.pause("sink: commit")
            self._server.install(self.name, self._made)
            self._made = None


class SimSink(ExactlyOnceSink[SimTarget]):
    """The sink of one driver."""

    kind: ClassVar[str] = "simulated"
    writes: ClassVar[tuple[str, ...]] = (CHANGELOG,)

    def __init__(self, server: SimServer, fibers: Fibers) -> None:
        super().__init__()
        self._server = server
        self._fibers = fibers

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[SimTarget]:
        self._fibers.pause("sink: open" if writes else "sink: ask")
        handle = SimTarget(target, self._server, self._fibers)
        if writes:
            self._server.refuse(target)
        yield handle
        handle.finish()

    def blocked(self, target: TableId, *, wholly: bool = False) -> str:
        self._fibers.pause("sink: ask")
        return "It is locked by somebody." if target in self._server.locked else ""

    def prepare(self, work: TableCommit, batch: StageBatch) -> StagedRows:
        self._fibers.pause("sink: stage")
        self._server.refuse(work.target)
        rows = {kind: [entry for s in work.segments if s.kind == kind for entry in _rows(s)] for kind in _KINDS}
        return StagedRows(tuple(rows["snapshot"]), tuple(rows["log"]))


_KINDS = ("snapshot", "log")


def _rows(segment: Segment) -> list[tuple[int, str, Row]]:
    try:
        entries: list[Any] = json.loads(Path(segment.path).read_text())
    except (OSError, ValueError) as cause:
        raise SegmentUnavailableError(f"Segment {segment.name} cannot be read: {cause}.") from cause
    return [(segment.seq_base + number, op, row) for number, (op, row) in enumerate(entries)]
