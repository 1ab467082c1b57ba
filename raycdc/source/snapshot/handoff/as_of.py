"""Reads all chunks of a table as of one log position T, for tables without an immutable chunk key.

In such a table a write may move a row to another chunk. Log rows are therefore judged by their position, and not by
their key:

| position of the change | effect | because |
|---|---|---|
| at T or before | dropped, whatever was published | every chunk is read as of T, and contains it |
| after T | not read: the log waits before it until all chunks are published | held rows are never stored |

T may lie inside a transaction, so the log of such tables delivers the rest of a transaction as a separate unit.

T is fixed when the first chunk is opened. T is the later of two positions: the log's end when the chunks were planned,
and the log reader's own position. (With the first one, T is recent even if the log reader lags.) From then on, T is in
the table's state. Until the table is complete, no manifest has a log position after T, so a restart reads the remaining
chunks as of the same T. Chunks are published when the log reader is at T, and a schema change before T voids them. The
chunks of other tables have the same rule with their H. Meanwhile the enumerator assigns no chunks of other tables
(`Turns`), because such chunks might wait for the log reader, which waits at T.

If a chunk finds a different table under the name, the table is *lost*, and T is void. The log reader goes on and drops
rows of the table until a statement in the log explains the change. Without such a statement the run fails.
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
    """Return for each row of a table in `Behind` if a chunk has it."""
    found: list[bool] = (rows.ordinals <= state.at).tolist()
    return found


def later(state: Behind, rows: LogRows) -> LogRows | None:
    """Return the rows of a table in `Behind` that no chunk has."""
    return take(rows, rows.ordinals > state.at)


@dataclass(slots=True)
class AssignedChunk:
    """A chunk that a reader has, or had until it died."""

    split: SnapshotSplit
    owner: int | None
    published: bool = False
    #: The segments that the chunk's reader wrote last. They are remembered here, because after the chunk is published
    #: or its reader is lost, no reader knows them.
    segments: Sequence[Segment] = ()


class Turns:
    """Chooses the next chunk to assign. While a table is read as of one position, no chunks of other tables are
    assigned. Of a backfill, one chunk is assigned at a time.
    """

    def __init__(self) -> None:
        self._table: TableId | None = None

    def next_of(
        self, pending: Sequence[SnapshotSplit], unpublished: Collection[TableId], held: Collection[TableId]
    ) -> SnapshotSplit | None:
        """Return the next chunk of `pending`; None if there is none, or if other chunks must be published first. Tables
        in `held` are left out. `unpublished` are the tables of assigned chunks that are not published.
        """
        if self._table is None and not held and all(split.as_of is None and split.again is None for split in pending):
            # The most frequent case is checked first, because every event calls this method.
            return pending[0] if pending else None
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
