"""How a reader of a `SimDatabase` reads chunks: one task after the other, in stages that other things fall between.

How tables of a `SimDatabase` are cut into chunks, in the server's order of keys.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from raycdc.model import RowKind, TableId
from raycdc.segments.writing import SegmentContents
from raycdc.source.protocol.api import ChunkSegments
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.handoff.fold import fold, left_alone
from raycdc.source.snapshot.rereading.backfill_keys import DeletedKeys
from raycdc.source.split import OpenedAt, SnapshotSplit
from raycdc.source.tables.table_life import SnapshotState
from raycdc.state.manifests.manifest import Segment
from tests.support.simulation.database import (
    Row,
    RowKey,
    SimDatabase,
    SimPosition,
    SimTable,
    TableKind,
    Visibility,
    changelog_batch,
)
from tests.support.simulation.state import Author, MemorySegmentWriter, MemorySpool

#: The bounds between chunks; fewer than keys, so that chunks have several keys.
CUTS = (3, 6, 7, 11, 15, 18, 21)


def sort_key(table: SimTable, raw: int) -> int:
    """Return the sort key of a chunk key in the server's order."""
    return -raw if table.descending else raw


def cuts(table: SimTable) -> list[int | None]:
    """Return the bounds of the table's chunks in the server's order, None for the open ends."""
    inner = sorted(CUTS, key=lambda raw: sort_key(table, raw))
    return [None, *inner, None]


def unread(table: SimTable) -> SnapshotState:
    """Return a table's snapshot before its first chunk."""
    return SnapshotState(
        key="id" if table.kind is TableKind.AS_OF else table.key,
        foldable=bool(table.schema.primary_key),
        needs_null=table.kind in (TableKind.MOVING, TableKind.KEYLESS, TableKind.AS_OF),
    )


def all_chunks(table: SimTable, *, end: int = 0) -> list[SnapshotSplit]:
    """Return the chunks of a table, in the order in which they are planned; `end` is then the end of the log."""
    if table.key is None:
        return [SnapshotSplit(table.id, 0, None, None, None, includes_null=True)]
    bounds = cuts(table)
    ranges: list[dict[str, Any]] = [{"lower": low, "upper": high} for low, high in itertools.pairwise(bounds)]
    if table.kind is TableKind.MOVING:
        ranges.insert(0, {"lower": None, "upper": None, "includes_null": True, "only_null": True})
    as_of = None
    if table.kind is TableKind.AS_OF:
        ranges[0]["includes_null"] = True
        as_of = end
    return [SnapshotSplit(table.id, n, table.key, **bounds, as_of=as_of) for n, bounds in enumerate(ranges)]


def in_chunk(table: SimTable, split: SnapshotSplit, row: Mapping[str, int | str | None]) -> bool:
    """Return True if the chunk's SELECT would find `row`."""
    if split.key is None:
        return True
    assert isinstance(split.key, str), "chunks of simulated tables have one key column"
    value = row[split.key]
    if value is None:
        return split.includes_null
    if split.only_null:
        return False
    assert isinstance(value, int), "keys of simulated tables are numbers"
    key = sort_key(table, value)
    above = split.lower is None or key >= sort_key(table, split.lower)
    return above and (split.upper is None or key < sort_key(table, split.upper))


@dataclass(frozen=True, slots=True)
class SimSnapshot:
    """A table in a consistent snapshot: everything up to `end`; the log's end was `log_end` then."""

    rows: dict[RowKey, Row]
    number: int
    predecessors: int
    end: int
    log_end: int

    def of(self, table: SimTable) -> list[Row]:
        """Return a snapshot with the present rows of the table that has this name now."""
        if table.number != self.number:
            return []
        late = table.filled_last if table.predecessors > self.predecessors else ()
        return [row for key, row in self.rows.items() if key not in late]


@dataclass(slots=True)
class _Task:
    """A chunk being read, or folded when `read` is set; `view` is what its SELECT saw.

    `view_end` is up to where everything was visible then: a rule that is switched off takes it for the high watermark.
    """

    split: SnapshotSplit
    document: SchemaDocument
    opened_at: int = 0
    as_of: int | None = None
    read: ChunkSegments | None = None
    delta: tuple[Segment, ...] = ()
    snapshot: SimSnapshot | None = None
    view: list[Row] | None = None
    view_end: int = 0


class SimChunkSource:
    """Reads chunks as a `raycdc.source.protocol.api.ChunkSource`: one task after the other, in stages; `steps` makes
    progress.
    """

    def __init__(self, database: SimDatabase, spool: MemorySpool, author: Author) -> None:
        self._database = database
        self._spool = spool
        self._author = author
        self._server = database.server
        self._asked_elsewhere = False
        self._tasks: deque[_Task] = deque()
        self._results: deque[ChunkSegments] = deque()
        #: True if SELECTs wait until dropped rows are visible; a mutation of the model switches it off.
        self.waits = True
        self.snapshots = database.visibility is Visibility.SNAPSHOT

    @property
    def cut_off(self) -> bool:
        return self._server != self._database.server or self._asked_elsewhere

    @property
    def about_to_select(self) -> TableId | None:
        """Return the table whose SELECT comes next, in a snapshot that is open already."""
        task = self._tasks[0] if self._tasks else None
        return None if task is None or task.snapshot is None or task.view is not None else task.split.table

    @property
    def to_read(self) -> list[TableId]:
        """Return the tables whose chunks were opened and wait for their SELECT."""
        return [task.split.table for task in self._tasks if task.read is None and task.view is None]

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> None:
        place = SimPosition.of(opened_at.position)
        self._asked_elsewhere = self._asked_elsewhere or place.server != self._server
        self._tasks.append(_Task(split, document, place.ordinal, opened_at.as_of))

    def fold(self, *, read: ChunkSegments, delta: Sequence[Segment], document: SchemaDocument) -> None:
        self._tasks.append(_Task(read.split, document, read=read, delta=tuple(delta)))

    def poll(self) -> ChunkSegments | None:
        return self._results.popleft() if self._results else None

    def discard(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._spool.delete(segment.path)

    def close(self) -> None:
        self._tasks.clear()

    def step(self) -> None:
        """Make the next step of the fetcher thread."""
        if not self._tasks or self.cut_off:
            return
        task = self._tasks[0]
        if task.read is not None:
            self._finish(self._fold(task, task.read))
        elif task.view is None:
            self._select(task)
        else:
            self._finish(self._read_to_its_end(task))

    def _read_to_its_end(self, task: _Task) -> ChunkSegments:
        segments = self._write(task.split, task.document, self._rows(task))
        if task.as_of is not None:
            return ChunkSegments(task.split, task.as_of, exact=True, segments=segments, log_end=task.as_of)
        end = self._database.end
        high = end if task.snapshot is None else task.snapshot.log_end
        exact = task.snapshot is not None and task.snapshot.end == high
        counted, log_end = (self._database.counted(ordinal, self._server) for ordinal in (high, end))
        return ChunkSegments(task.split, counted, exact, segments, log_end=log_end)

    def _finish(self, read: ChunkSegments) -> None:
        self._tasks.popleft()
        self._results.append(read)

    def _select(self, task: _Task) -> None:
        database = self._database
        unseen = database.all_visible_up_to < task.opened_at
        if self.waits and unseen and database.visibility is not Visibility.RING:
            return
        table = database.tables.get(task.split.table)
        if table is None:
            self._finish(self._misfit(task, "there is no such table"))
            return
        if not {column.name for column in task.document.schema.columns} <= {c.name for c in table.schema.columns}:
            self._finish(self._misfit(task, "other columns"))
            return
        if task.as_of is not None:
            self._select_as_of(task, table, task.as_of)
            return
        if table.id in database.locked:
            self._finish(ChunkSegments(task.split, 0, exact=False, segments=(), log_end=0, locked=True))
            return
        if len(table.schema.columns) % 2 and database.changed_since(task.opened_at, table.id):
            # Other changes do not matter to a SELECT: it does not name a new column.
            self._finish(self._misfit(task, "changed"))
            return
        if self.snapshots and task.snapshot is None:
            seen = {key: dict(row) for key, row in table.seen.items()}
            task.snapshot = SimSnapshot(
                seen, table.number, table.predecessors, database.all_visible_up_to, database.end
            )
            return
        task.view_end = database.all_visible_up_to if task.snapshot is None else task.snapshot.end
        shown = list(table.seen.values()) if task.snapshot is None else task.snapshot.of(table)
        task.view = [dict(row) for row in shown if in_chunk(table, task.split, row) and _meets(task.split, row["val"])]

    def _misfit(self, task: _Task, why: str) -> ChunkSegments:
        end = self._database.end
        counted = self._database.counted(end, self._server)
        return ChunkSegments(task.split, counted, exact=False, segments=(), log_end=counted, schema_mismatch=why)

    def _select_as_of(self, task: _Task, table: SimTable, as_of: int) -> None:
        rows = self._database.rows_at(table, as_of)
        if rows is not None:
            task.view = [dict(row) for row in rows if in_chunk(table, task.split, row)]
            return
        self._finish(self._misfit(task, "rewritten"))

    def _rows(self, task: _Task) -> pa.Table:
        schema = task.document.schema
        assert task.view is not None
        rows: list[tuple[RowKind, Row, int, str | None]] = [
            (RowKind.INSERT, row, n, None) for n, row in enumerate(task.view)
        ]
        gone = DeletedKeys(task.split, task.document)
        batch = changelog_batch(schema, rows)
        gone.observe(batch)
        deleted = gone.deleted(first=batch.num_rows)
        return pa.Table.from_batches([batch] if deleted is None else [batch, deleted])

    def _fold(self, task: _Task, read: ChunkSegments) -> ChunkSegments:
        changes = pa.concat_tables(self._spool.read(segment.path) for segment in task.delta)
        parts = [self._spool.read(segment.path) for segment in read.segments]
        chunk = pa.concat_tables(parts) if parts else changes.slice(0, 0)
        key = task.document.primary_key
        folded = fold(chunk, changes, key=key) if read.split.again is None else left_alone(chunk, changes, key=key)
        segments = self._write(task.split, task.document, folded)
        self.discard([*read.segments, *task.delta])
        return replace(read, exact=True, segments=segments)

    def _write(self, split: SnapshotSplit, document: SchemaDocument, rows: pa.Table) -> tuple[Segment, ...]:
        kind = "snapshot" if split.again is None else "backfill"
        contents = SegmentContents(split.table, document.fingerprint, split.split_id, kind)
        writer = MemorySegmentWriter(self._spool, self._author, contents)
        for batch in rows.to_batches():
            writer.append(batch)
        return (writer.finish(),) if writer.rows else ()


def _meets(split: SnapshotSplit, value: int | str | None) -> bool:
    """Return True if a row with this value meets the predicate of a backfill: it does if the value is even."""
    if split.again is None or not split.again.where:
        return True
    return isinstance(value, int) and str(value % 2) == split.again.where
