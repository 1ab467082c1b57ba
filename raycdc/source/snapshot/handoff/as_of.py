"""Tables whose chunks are all read as they were at one place T of the log, since nothing immutable cuts them.

Which chunk a row is in may change with each write then, so no change is judged by its key, but by its place alone:

| the change is | it is | because |
|---|---|---|
| at T or before | dropped, whatever was published | every chunk is read as of T, and has it |
| after T | not asked for: the log stands before it until all chunks are published | nothing held is ever state |

So a log of such tables gives the rest of an open transaction in a unit of its own: what follows may be behind T.

T is fixed when the first chunk is opened: the later of the place that was the log's end when the chunks were planned
(so that it is recent even where this reader lags) and the log reader's own. It is in the table's state from then on,
and no manifest has a place of the log behind T until the table is complete, so a restart reads the chunks that are left
as of the same T. Chunks are published when the log stands at T, as others are at their H: a schema change before it
voids them. The enumerator gives out no other chunks meanwhile (`Turns`), as theirs might wait for the log.

Where a chunk finds that its table is no more the one it was, the table is *lost*: T means nothing any more. The log
goes on, dropping its rows, until it has said what became of the table; if it says nothing, that is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from raycdc.model import TableId
from raycdc.source.snapshot.log.log_rows import LogRows, take
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.table_life import Behind
from raycdc.state.manifests.manifest import Segment


def have(state: Behind, rows: LogRows) -> list[bool]:
    """Of each row of a table that is behind its T whether a chunk has it."""
    found: list[bool] = (rows.ordinals <= state.at).tolist()
    return found


def later(state: Behind, rows: LogRows) -> LogRows | None:
    """Those rows of a table that is behind its T which no chunk has."""
    return take(rows, rows.ordinals > state.at)


@dataclass(slots=True)
class AssignedChunk:
    """A chunk that a reader has, or had until it died."""

    split: SnapshotSplit
    owner: int | None
    published: bool = False
    #: The segments that its reader wrote last. Once they are published, or the reader is gone, no reader remembers
    #: them.
    segments: Sequence[Segment] = ()


class Turns:
    """Which chunk is given out next: those of a table that is read as of one place alone, and all of them; those of a
    backfill one at a time.
    """

    def __init__(self) -> None:
        self._table: TableId | None = None

    def next_of(
        self, pending: Sequence[SnapshotSplit], unpublished: Collection[TableId], held: Collection[TableId]
    ) -> SnapshotSplit | None:
        """The next of `pending` but for tables that are `held` back; None where there is none, or others come first.

        `unpublished` are the tables of chunks that are out and not published.
        """
        if self._table is None and not held and all(split.as_of is None and split.again is None for split in pending):
            return pending[0] if pending else None  # So it is nearly always, and each event asks.
        free = [s for s in pending if s.table not in held and not (s.again is not None and s.table in unpublished)]
        if self._table not in unpublished and all(split.table != self._table for split in free):
            self._table = None
        table = self._table or next((split.table for split in free if split.as_of is not None), None)
        if table is None:
            return free[0] if free else None
        if any(other != table for other in unpublished):
            return None
        self._table = table
        return next((split for split in free if split.table == table), None)
