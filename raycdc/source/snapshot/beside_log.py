"""The chunks that are open beside the log of tables that are followed, at most one of each table.

The rules are `raycdc.source.snapshot.backfill`'s; `raycdc.source.snapshot.hand_off` owns this and tells it of every row
that passes. Invariant: it remembers every row of the table that passed since the chunk was opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from raycdc.model import TableId
from raycdc.source.snapshot.held_rows import HeldRows
from raycdc.source.snapshot.log_rows import LogRows, behind, up_to
from raycdc.source.snapshot.open_chunk import Decision, FoldChunk, OpenChunk, PublishChunk, as_needed
from raycdc.source.split import ChunkId, SnapshotSplit


@dataclass(slots=True)
class ChunkBeside:
    """An open chunk. Its `chunk.rows` are those that passed since; those up to `cut` are in epochs that are cut, and
    its reader has left out the keys of those up to `left_out`. `last` is the ordinal of the newest.
    """

    chunk: OpenChunk
    last: int = -1
    cut: int = -1
    left_out: int = -1

    def passed(self, rows: LogRows) -> None:
        """These rows went out."""
        self.chunk.rows.hold(rows)
        self.last = max(self.last, int(rows.ordinals[-1]))

    def changed(self) -> Iterator[LogRows]:
        """Rows in epochs that are cut, of whose keys the chunk may have older rows."""
        return up_to(behind(self.chunk.rows, self.left_out), self.cut)


@dataclass(slots=True)
class ChunksBeside:
    """See the module's docstring."""

    _open: dict[TableId, ChunkBeside] = field(default_factory=dict)
    #: Tables of which the open epoch removes all rows.
    _emptied: set[TableId] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def held(self) -> list[HeldRows]:
        """The rows that each chunk remembers."""
        return [beside.chunk.rows for beside in self._open.values()]

    def attempt(self, chunk: ChunkId) -> OpenChunk | None:
        """The open chunk, if this attempt at it is the one that is open."""
        beside = self._open.get(chunk.table)
        return None if beside is None or beside.chunk.split.chunk_id != chunk else beside.chunk

    def open(self, split: SnapshotSplit) -> None:
        """Remember the table's rows from here on. Opening the same attempt again changes nothing."""
        if self.attempt(split.chunk_id) is None:
            self.drop(split.table)
            self._open[split.table] = ChunkBeside(OpenChunk(split, None, holds_null=False))

    def passed(self, rows: LogRows) -> None:
        """These rows go out."""
        beside = self._open.get(rows.table)
        if beside is not None and rows.batch.num_rows:
            beside.passed(rows)

    def begin_epoch(self) -> None:
        """The rows that passed so far belong to an epoch that was cut."""
        self._emptied.clear()
        for beside in self._open.values():
            beside.cut = beside.last

    def truncate(self, table: TableId) -> None:
        """The open epoch removes all rows of the table: no chunk of it may enter the same epoch, and precede that."""
        self._emptied.add(table)

    def drop(self, table: TableId) -> SnapshotSplit | None:
        """The chunk is open no more; None where none is."""
        beside = self._open.pop(table, None)
        if beside is None:
            return None
        beside.chunk.rows.clear()
        return beside.chunk.split

    def advance(self, ordinal: int) -> list[Decision]:
        """Decide every chunk whose reading the log has passed."""
        found: list[Decision] = []
        for beside in list(self._open.values()):
            at, table = beside.chunk.decided_at, beside.chunk.split.table
            if at is None or at > ordinal or table in self._emptied:
                continue
            decision = self._decide(beside)
            if not isinstance(decision, FoldChunk):
                self.drop(table)
            found.append(decision)
        return found

    def _decide(self, beside: ChunkBeside) -> Decision:
        retry = beside.chunk.retry()
        if retry is not None:
            return retry
        if next(beside.changed(), None) is None:
            return PublishChunk(beside.chunk.split, beside.chunk.segments, ())
        decision = beside.chunk.fold(as_needed(beside.chunk.rows, beside.changed()))
        beside.left_out = beside.cut
        return decision
