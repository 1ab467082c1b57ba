"""The values that the enumerator and a connector exchange about a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from raycdc.checkpoint.opaque import NO_NOTES, LogNotes, PlannerState, Position
from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_key import ChunkKey
from raycdc.source.snapshot.stream_state import StreamState
from raycdc.source.split import SnapshotSplit
from raycdc.source.table_life import Followed, Parked, Parking, SnapshotState, Unknown, parked_from
from raycdc.source.table_life import first_state as first_table_state

#: Chunks planned ahead of demand; keeps the enumerator's state and the server's planning queries small.
PLANNED_AHEAD = 32


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table at the start position: its schema document and how it is cut into chunks.

    `snapshot` is None for a table that is followed without one. `refused` says why its targets cannot hold it: it is
    parked from there.
    """

    table: TableId
    fingerprint: str
    document: SchemaDocument
    snapshot: SnapshotState | None
    refused: str = ""

    def followed(self) -> Followed:
        """The table in the first state of a stream split, unless it is `refused`."""
        return first_table_state(self.fingerprint, self.snapshot)

    def parked(self, start: Position) -> Parked:
        """The `refused` table in the first state of a stream split that begins at the position `start`."""
        return parked_from(Unknown(), Parking(self.refused, start, 0))


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where the log starts and what tables look like there; `notes` are the first `LogPlace.notes`.

    `parks` is False where a table that its targets cannot hold is to end the run: `SchemaError`.
    """

    position: Position
    ordinal: int
    tables: tuple[TablePlan, ...]
    notes: LogNotes = NO_NOTES
    parks: bool = True

    def __post_init__(self) -> None:
        refused = [plan.refused for plan in self.tables if plan.refused]
        if refused and not self.parks:
            raise SchemaError("\n".join([*refused, 'The run ends for it, as pipeline.on_table_error = "fail" says.']))


def uncut(key: ChunkKey | None) -> PlannerState:
    """The planner's state of a table that is to be cut by `key`, and is not cut yet."""
    return PlannerState.from_json({"key": key})


@dataclass(frozen=True, slots=True)
class PlannedChunks:
    """More chunks of a table: splits, the planner's new state (None: planned to the end), estimated total.

    `rows` are those of the table as the source estimates them, for people; None where it does not say them now.
    `order` says how the values of the chunk key are ordered, in the source's words; empty where that never changes.
    """

    splits: tuple[SnapshotSplit, ...]
    planner: PlannerState | None
    estimate: int
    rows: int | None = None
    order: str = ""


#: `EnumeratorDialect.plan`.
PlanChunks = Callable[[SchemaDocument, TableId, PlannerState, int], PlannedChunks]


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a log goes on at another server: the place and the log's end, as that server counts them."""

    position: Position
    ordinal: int
    end: int


class FailoverDialect(Protocol):
    """The further part of a dialect where another server may take over, whose log has other positions."""

    def resume_point(self, position: Position) -> ResumePoint | None:
        """Where the log goes on at the server that answers now; None if that is the one of `position`. Blocks."""


class EnumeratorDialect(Protocol):
    """A connector as the enumerator asks it. Every method blocks and runs off the coordinator's thread."""

    def start_point(self) -> StartPoint: ...

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        """The next chunks of a table. `TableLockedError`, after a moment, where somebody has it locked."""
        ...

    def planning(self) -> AbstractContextManager[PlanChunks]:
        """`plan` for several tables, one after another in one thread, with whatever they can share, such as a
        connection: nothing, unless a dialect says otherwise.
        """
        return nullcontext(self.plan)

    def locked_by(self, tables: Sequence[TableId]) -> Mapping[TableId, str]:
        """Who still has `tables` locked that were found so (`TableLockedError`), and what people can do; empty of one
        that is free, as all are where a source has no locks. Of as many of them as there was time for in some seconds.
        """
        return dict.fromkeys(tables, "")

    def current_ordinal(self) -> int:
        """The log's end now."""

    def captures(self, table: TableId) -> bool:
        """Whether the configuration selects the table. Does not block."""

    @property
    def chunk_readers_max(self) -> int:
        """How many readers may have a connection for chunks; 0: all. Does not block."""

    @property
    def failover(self) -> FailoverDialect | None:
        """Where another server may take over, whoever knows the places of its log; else None. Does not block."""


def first_state(start: StartPoint) -> StreamState:
    """The stream split's state where reading begins."""
    followed = {plan.table: plan.followed() for plan in start.tables if not plan.refused}
    parked = {plan.table: plan.parked(start.position) for plan in start.tables if plan.refused}
    return StreamState(start.position, start.ordinal, followed, parked, notes=start.notes)
