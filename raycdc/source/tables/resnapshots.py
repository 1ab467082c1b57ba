"""Resnapshots single tables while others stream: probes a table, and begins it in the log.

A connector implements one function, the *probe* (`ProbeTable`), which returns the present schema of a table and the log
position for which it holds. It runs in the log's fetcher thread and may block. All other steps are common to all
connectors (`raycdc.source.tables.parked_tables`):

| result of the probe | effect |
|---|---|
| None: the source has no such table | the table has ended, and its target keeps its rows |
| `UnfollowableTable` | the table is parked until a user decides |
| `FollowableTable` | the table begins: its target is emptied, and every chunk is unread (`begin`) |

A probe is used once the log has passed its position without a later statement about the table (`TableProbes`).
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

#: The pause before the next probe after a table was found locked.
_FIRST_PAUSE_S = 2.0
#: The pauses between probes of locked tables, in seconds. In the end each locked table is probed about once a minute.
#: The pause is needed because a probe stops the log for a second.
_ROUND_S, _SHORTEST_ROUND_PAUSE_S = 60.0, 10.0

DescribedT = TypeVar("DescribedT")


@dataclass(frozen=True, slots=True)
class StatementPosition:
    """A position in the log as stored in the state, with its ordinal and its time in Unix milliseconds."""

    position: Position
    ordinal: int
    ts_ms: int


@dataclass(frozen=True, slots=True)
class FollowableTable(Generic[DescribedT]):
    """A table that can be followed, with the description `described` that the connector made. The description holds at
    the log's `ordinal`. `snapshot` says how the table is cut into chunks.
    """

    described: DescribedT
    ordinal: int
    snapshot: SnapshotState


@dataclass(frozen=True, slots=True)
class UnfollowableTable:
    """A table that cannot be followed with the schema that it has at the ordinal `ordinal`, and the reason."""

    reason: str
    ordinal: int


#: Probes a table. Returns None if the source has no such table. The log stops during a probe. If the table is locked,
#: the probe therefore raises `TableLockedError` after a moment, and is repeated at a later unit of the log.
ProbeTable = Callable[[TableId], FollowableTable[DescribedT] | UnfollowableTable | None]


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of one table's schema or state in the log, and the rows of the table that it causes. An epoch begins
    with the `update`, and the `rows` (a truncation) come right after it.
    """

    update: SchemaUpdate
    rows: tuple[LogRows, ...] = ()


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table as a schema document has it."""

    schema: TableSchema
    document: SchemaDocument


def begin(
    table: TableId, version: TableVersion, snapshot: SnapshotState, position: StatementPosition, *, seq: int
) -> TableChange:
    """Return the change that begins the table at `position`: all chunks are unread, and a truncation with the `_seq`
    `seq` empties the target.
    """
    events = (TruncateTableEvent(table), CreateTableEvent(table, version.schema))
    update = BeginTableUpdate(table, events, version.document, snapshot)
    return TableChange(update, (truncation(table, version.schema, position, seq=seq),))


def truncation(
    table: TableId, schema: TableSchema, position: StatementPosition, *, seq: int, statement: str | None = None
) -> LogRows:
    """Return the changelog row for a truncation of the table; all its columns are null.

    `statement` is the position of the statement that truncates the table; None if the log has no such statement.
    """
    meta = {"_op": int(RowKind.TRUNCATE), "_seq": seq, "_ts_ms": position.ts_ms, "_pos": statement}
    changelog = changelog_schema(schema)
    arrays = [pa.array([meta.get(field.name)], field.type) for field in changelog]
    return LogRows(table, pa.RecordBatch.from_arrays(arrays, schema=changelog), np.array([position.ordinal], np.int64))


def unread(key: str) -> SnapshotState:
    """Return a snapshot state in which no chunk is read.

    `key` is the name of the chunk key, a column that identifies rows and is never NULL. Every schema of the table must
    have it, because log rows are compared with chunks by this column.
    """
    return SnapshotState(key, foldable=True, needs_null=False)


def without_chunks() -> SnapshotState:
    """Return the snapshot state of a table without chunks. All rows of the table are in the log, after the change that
    `begin` returns.
    """
    return SnapshotState(None, foldable=False, needs_null=False, closed=((None, None),))


class ProbedTable(Protocol):
    """The result of a probe. `ordinal` is the position in the log for which the result holds."""

    @property
    def ordinal(self) -> int: ...


L = TypeVar("L", bound=ProbedTable)


class TableProbes(Generic[L]):
    """Probes the tables that wait for a resnapshot, and returns tables that may begin now. `probe` queries the source.
    A table is probed only after the log was read up to the last known statement about it, so any unknown statement must
    come later. Each probe of a locked table stops the log, so all locked tables share one pause. After a table was
    found locked, no other table is probed for a moment, and no locked table is probed until the pause is over. The
    pause begins again at its shortest when a further table is found locked. It grows until each locked table is probed
    about once a minute.
    """

    def __init__(
        self,
        probe: Callable[[TableId], L | None],
        wanted: Iterable[TableId] = (),
        *,
        now_s: Callable[[], float] = THREADS.now_s,
    ) -> None:
        self._look, self._now_s = probe, now_s
        #: In the order in which they are probed.
        self._probes: dict[TableId, L | None] = dict.fromkeys(wanted)
        self._locked: set[TableId] = set()
        self._pause_s = _FIRST_PAUSE_S
        #: The times from which locked tables, and all other tables, are probed again.
        self._again_s = self._next_all_s = 0.0

    def __repr__(self) -> str:
        return f"TableProbes({self._probes})"

    def want(self, table: TableId) -> None:
        """Probe `table` from now on, to resnapshot it."""
        self._probes[table] = None

    def forget(self, table: TableId) -> None:
        """Stop probing `table`."""
        self._probes.pop(table, None)
        self._locked.discard(table)

    def invalidate(self, table: TableId, ordinal: int) -> None:
        """Drop a probe of the table from before `ordinal`, because the log has a statement about the table there."""
        probe = self._probes.get(table)
        if probe is not None and ordinal > probe.ordinal:
            self._probes[table] = None

    def ready(self, ordinal: int) -> list[tuple[TableId, L | None]]:
        """Drop the result of a probe from before `ordinal`, because the log has a statement about the table there."""
        ready: list[tuple[TableId, L | None]] = []
        for table, known in list(self._probes.items()):
            if known is None and not self._is_due(table):
                continue
            try:
                probe = known or self._look(table)
            except TableLockedError:
                self._note_locked(table)
                continue
            self._locked.discard(table)
            self._probes[table] = probe
            if probe is None or probe.ordinal <= ordinal:
                del self._probes[table]
                ready.append((table, probe))
        return ready

    def _is_due(self, table: TableId) -> bool:
        return self._now_s() >= (self._again_s if table in self._locked else self._next_all_s)

    def _note_locked(self, table: TableId) -> None:
        if table in self._locked:
            longest_s = max(_ROUND_S / len(self._locked), _SHORTEST_ROUND_PAUSE_S)
            self._pause_s = min(2 * self._pause_s, longest_s)
        else:
            self._locked.add(table)
            self._pause_s = _FIRST_PAUSE_S
        now_s = self._now_s()
        self._again_s, self._next_all_s = now_s + self._pause_s, now_s + _FIRST_PAUSE_S
        # Moved to the end, because other tables may not be locked.
        self._probes.pop(table)
        self._probes[table] = None
