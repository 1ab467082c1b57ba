"""Tables whose chunks are all read as they were at one place T of the log, since nothing immutable cuts them.

Which chunk a row is in may change with each write then, so no change is judged by its key, but by its place alone:

| the change is | it is | because |
|---|---|---|
| at T or before | dropped, whatever was published | every chunk is read as of T, and has it |
| after T | not asked for: the log stands before it until all chunks are published | nothing held is ever state |

T is fixed when the first chunk is opened: the later of the place that was the log's end when the chunks were planned
(so that it is recent even where this reader lags) and the log reader's own. It is in the table's state from then on,
and no manifest has a place of the log behind T until the table is complete, so a restart reads the chunks that are left
as of the same T. Chunks are published when the log stands at T, as others are at their H: a schema change before it
voids them. The enumerator gives out no other chunks meanwhile (`Turns`), as theirs might wait for the log.

Where a chunk finds that its table is no more the one it was, the table is *lost*: T means nothing any more. The log
goes on, dropping its rows, until it has said what became of the table; if it says nothing, that is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from raycdc.model import TableId
from raycdc.source.log_rows import LogRows, take
from raycdc.source.snapshot_plan import OutChunk
from raycdc.source.split import SnapshotSplit


@dataclass(slots=True)
class AsOf:
    """T of one table; `lost`: its chunks are of no use, and the log says why up to there."""

    at: int
    lost: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"at": self.at, "lost": self.lost}

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> AsOf | None:
        """Inverse of `to_json`; None for a table that is read otherwise."""
        return None if data is None else cls(data["at"], data["lost"])

    def bars(self, ordinal: int) -> bool:
        """Whether the log may not pass `ordinal` yet."""
        return self.lost is None and ordinal > self.at


class Passed:
    """Tables that are live but for changes up to their T, which their chunks have."""

    def __init__(self) -> None:
        self._at: dict[TableId, int] = {}

    def begin(self, table: TableId, at: int) -> None:
        self._at[table] = at

    def forget(self, table: TableId) -> None:
        self._at.pop(table, None)

    def of(self, table: TableId) -> int | None:
        """T, until a change behind it was seen."""
        return self._at.get(table)

    def have(self, rows: LogRows) -> list[bool]:
        """Of each row of a live table whether a chunk has it."""
        found: list[bool] = (rows.ordinals <= self._at.get(rows.table, -1)).tolist()
        return found

    def rows(self, rows: LogRows) -> LogRows | None:
        """Those of a live table's rows that go out."""
        at = self._at.get(rows.table)
        if at is None:
            return rows
        later = take(rows, rows.ordinals > at)
        if later is not None:
            del self._at[rows.table]
        return later


class Turns:
    """Which chunk is given out next: those of a table that is read as of one place alone, and all of them."""

    def __init__(self) -> None:
        self._table: TableId | None = None

    def next_of(
        self, pending: Sequence[SnapshotSplit], out: Iterable[OutChunk], over: Collection[TableId]
    ) -> SnapshotSplit | None:
        """The next of `pending` but for tables that are `over`; None where there is none, or others come first."""
        free = [split for split in pending if split.table not in over]
        unpublished = {chunk.split.table for chunk in out if not chunk.published}
        if self._table not in unpublished and all(split.table != self._table for split in free):
            self._table = None
        table = self._table or next((split.table for split in free if split.as_of is not None), None)
        if table is None:
            return free[0] if free else None
        if unpublished - {table}:
            return None
        self._table = table
        return next((split for split in free if split.table == table), None)
