"""A table begins again while others stream: how it looks at the source, and what the log says of it then.

A connector has one verb for it: it looks at the table (`ProbeTable`), in the log's fetcher thread, and may block. The
rest is the same everywhere (`raycdc.source.tables.parked_tables`):

| the look is | the log says |
|---|---|
| None: the source has no such table | the table has ended, and its target keeps the rows that it had |
| `UnfollowableTable` | the table is parked until somebody decides |
| `FollowableTable` | the table begins: its target is emptied, and every chunk is unread (`begin`) |

A look holds at a place of the log. It counts when the log has passed that place and no statement about the table lay
behind it (`TableProbes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from raycdc.core.threads import THREADS
from raycdc.errors import TableLockedError
from raycdc.model import RowKind, TableId, TableSchema, changelog_schema
from raycdc.model.evolution import CreateTableEvent, TruncateTableEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import BeginTableUpdate, SchemaUpdate
from raycdc.source.tables.table_life import SnapshotState
from raycdc.state.opaque import Position

#: After a table was found locked the next one is looked at so much later.
_FIRST_PAUSE_S = 2.0
#: In so long each of those that stay locked is looked at again, if the pauses between them are no shorter than that: a
#: look stands the log for a second.
_ROUND_S, _SHORTEST_ROUND_PAUSE_S = 60.0, 10.0

DescribedT = TypeVar("DescribedT")


@dataclass(frozen=True, slots=True)
class StatementPosition:
    """Where in the log something is said: position as the state has it, ordinal, and time in Unix milliseconds."""

    position: Position
    ordinal: int
    ts_ms: int


@dataclass(frozen=True, slots=True)
class FollowableTable(Generic[DescribedT]):
    """A table that can be followed, `described` as its connector does it; `ordinal` is where the log has it so.

    `snapshot` says how it is cut.
    """

    described: DescribedT
    ordinal: int
    snapshot: SnapshotState


@dataclass(frozen=True, slots=True)
class UnfollowableTable:
    """A table that cannot be followed as it is at `ordinal`, and why."""

    reason: str
    ordinal: int


#: Looks at a table. None: the source has no such table. Blocks, and the log stands meanwhile: so `TableLockedError`,
#: after a moment, where somebody has it locked, and another look with the next unit of the log.
ProbeTable = Callable[[TableId], FollowableTable[DescribedT] | UnfollowableTable | None]


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of one table in the log: `rows` follow the `update`, with which an epoch begins."""

    update: SchemaUpdate
    rows: tuple[LogRows, ...] = ()


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as a schema document has it."""

    schema: TableSchema
    document: SchemaDocument


def begin(
    table: TableId, version: TableVersion, snapshot: SnapshotState, place: StatementPosition, *, seq: int
) -> TableChange:
    """The table begins at `place`, every chunk of it unread, and its target is emptied by a row numbered `seq`."""
    events = (TruncateTableEvent(table), CreateTableEvent(table, version.schema))
    update = BeginTableUpdate(table, events, version.document, snapshot)
    return TableChange(update, (truncation(table, version.schema, place, seq=seq),))


def truncation(
    table: TableId, schema: TableSchema, place: StatementPosition, *, seq: int, statement: str | None = None
) -> LogRows:
    """The changelog row that says that all rows of a table are gone; it is null in every column of the table.

    `statement` names the place of the statement that emptied it. Without one nothing in the log did.
    """
    meta = {"_op": int(RowKind.TRUNCATE), "_seq": seq, "_ts_ms": place.ts_ms, "_pos": statement}
    changelog = changelog_schema(schema)
    arrays = [pa.array([meta.get(field.name)], field.type) for field in changelog]
    return LogRows(table, pa.RecordBatch.from_arrays(arrays, schema=changelog), np.array([place.ordinal], np.int64))


def unread(key: str) -> SnapshotState:
    """A table of which no chunk is read, and whose every row has a `key` that is never NULL and tells it apart.

    `key` is the name of a column, which every schema of the table must have: the log's rows are judged by it.
    """
    return SnapshotState(key, foldable=True, needs_null=False)


def without_chunks() -> SnapshotState:
    """A table that has no chunk to read: the log itself tells all its rows, behind the `begin` of the table."""
    return SnapshotState(None, foldable=False, needs_null=False, closed=((None, None),))


class ProbedTable(Protocol):
    """How a table looks; `ordinal` is where in the log that was proven to hold."""

    @property
    def ordinal(self) -> int: ...


L = TypeVar("L", bound=ProbedTable)


class TableProbes(Generic[L]):
    """Which of the tables that are to begin again may do so now.

    `look` asks the source; None where it has no such table. A look is taken only when the log was read up to what is
    known about it, so that a statement about the table that was missed is surely behind it.

    Tables that somebody has locked share one pause, because the log stands while each is looked at: after one that was
    found locked no other is looked at for a while, and none that was found so before until the pause is over. It begins
    anew with each table that is found locked first, and grows until each of them is looked at about once a minute.
    """

    def __init__(
        self,
        look: Callable[[TableId], L | None],
        wanted: Iterable[TableId] = (),
        *,
        now_s: Callable[[], float] = THREADS.now_s,
    ) -> None:
        self._look, self._now_s = look, now_s
        #: In the order in which they are looked at.
        self._looks: dict[TableId, L | None] = dict.fromkeys(wanted)
        self._locked: set[TableId] = set()
        self._pause_s = _FIRST_PAUSE_S
        #: From when on those that were found locked are looked at again, and before that all others.
        self._again_s = self._others_s = 0.0

    def __repr__(self) -> str:
        return f"TableProbes({self._looks})"

    def want(self, table: TableId) -> None:
        """`table` is to begin again; it is looked at anew."""
        self._looks[table] = None

    def forget(self, table: TableId) -> None:
        """`table` is not to begin again any more."""
        self._looks.pop(table, None)
        self._locked.discard(table)

    def touched(self, table: TableId, ordinal: int) -> None:
        """The log has a statement about the table that ends at `ordinal`: a look from before it is out of date."""
        look = self._looks.get(table)
        if look is not None and ordinal > look.ordinal:
            self._looks[table] = None

    def ready(self, ordinal: int) -> list[tuple[TableId, L | None]]:
        """Tables whose look holds at `ordinal`, between two transactions, each once; None: the source has none such."""
        ready: list[tuple[TableId, L | None]] = []
        for table, known in list(self._looks.items()):
            if known is None and not self._is_due(table):
                continue
            try:
                look = known or self._look(table)
            except TableLockedError:
                self._note_locked(table)
                continue
            self._locked.discard(table)
            self._looks[table] = look
            if look is None or look.ordinal <= ordinal:
                del self._looks[table]
                ready.append((table, look))
        return ready

    def _is_due(self, table: TableId) -> bool:
        return self._now_s() >= (self._again_s if table in self._locked else self._others_s)

    def _note_locked(self, table: TableId) -> None:
        if table in self._locked:
            longest_s = max(_ROUND_S / len(self._locked), _SHORTEST_ROUND_PAUSE_S)
            self._pause_s = min(2 * self._pause_s, longest_s)
        else:
            self._locked.add(table)
            self._pause_s = _FIRST_PAUSE_S
        now_s = self._now_s()
        self._again_s, self._others_s = now_s + self._pause_s, now_s + _FIRST_PAUSE_S
        # Behind all others, which may be free.
        self._looks.pop(table)
        self._looks[table] = None
