"""The interface between the enumerator and a connector for planning a snapshot, and the handling of locked tables.

A locked table delays no other table. None of its chunks is planned or assigned. Separate calls query the source about
all locked tables together, with a growing pause between two calls. The pause is reset when a further table is found
locked. Locks are not stored in the state: after a restart they are found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from raycdc.core.activity import Stage, Stalled
from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.source.protocol.api import SplitEnumeratorContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.table_life import Followed, Parked, ParkingCause, SnapshotState, Unknown, parked_from
from raycdc.source.tables.table_life import first_state as first_table_state
from raycdc.state.opaque import NO_NOTES, LogNotes, PlannerState, Position

#: The number of chunks that are planned before readers request them. It is small, to keep the enumerator's state and
#: the planning queries small.
PLANNED_AHEAD = 32


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table at the start position: its schema document and how it is cut into chunks.

    `snapshot` is None for a table that is followed without a snapshot. If no target can hold the table, `refused` is
    the reason, and the table is parked at the start position.
    """

    table: TableId
    fingerprint: str
    document: SchemaDocument
    snapshot: SnapshotState | None
    refused: str = ""

    def followed(self) -> Followed:
        """Return the table's state at the start of a stream split, unless the table is `refused`."""
        return first_table_state(self.fingerprint, self.snapshot)

    def parked(self, start: Position) -> Parked:
        """Return the `refused` table's state at the position `start`, where the stream split begins."""
        return parked_from(Unknown(), ParkingCause(self.refused, start, 0))


@dataclass(frozen=True, slots=True)
class StartPoint:
    """The start of the log, and the tables at that position.

    `notes` are the connector's `LogPosition.notes` at the start. If `parks` is False, a table that no target can hold
    ends the run with a `SchemaError`.
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
    """Return the planner's state for a table that will be cut by `key`, before its first chunk is planned."""
    return PlannerState.from_json({"key": key})


@dataclass(frozen=True, slots=True)
class PlannedChunks:
    """The result of planning: more chunks of a table, the planner's new state (None: planned to the end), and the
    estimated number of all chunks.

    `rows` is the source's estimate of the table's rows, for people; None if unknown. `order` describes the order of the
    chunk key's values in terms of the source, for example by a collation; empty if the order never changes.
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
    """The position at which a log goes on at another server, and the end of the log, both in that server's terms."""

    position: Position
    ordinal: int
    end: int


class FailoverDialect(Protocol):
    """The additional methods of a dialect whose server may be replaced by a server with different log positions."""

    def resume_point(self, position: Position) -> ResumePoint | None:
        """Return where the log goes on at the present server; None if that is the server of `position`. Blocks."""


class EnumeratorDialect(Protocol):
    """The methods that a connector implements for the enumerator. Unless a method's docstring says otherwise, it may
    block, and runs on a thread other than the coordinator's.
    """

    def start_point(self) -> StartPoint: ...

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        """Return the next chunks of a table. Raises `TableLockedError` if the table stays locked for a moment."""
        ...

    def planning(self) -> AbstractContextManager[PlanChunks]:
        """Return `plan` for several tables in sequence on one thread, sharing for example a connection.

        The default shares nothing.
        """
        return nullcontext(self.plan)

    def locked_by(self, tables: Sequence[TableId]) -> Mapping[TableId, str]:
        """Return for each table a text about the holder of its lock and the solution; empty for a table that is free.

        The source checks as many of `tables` as it can within a few seconds; tables that it did not check are missing
        in the result. If a source has no locks, all tables are free.
        """
        return dict.fromkeys(tables, "")

    def current_ordinal(self) -> int:
        """Return the present end of the log."""

    def captures(self, table: TableId) -> bool:
        """Return True if the configuration selects the table. Does not block."""

    @property
    def chunk_readers_max(self) -> int:
        """Return how many readers may have a connection for chunks; 0: all. Does not block."""

    @property
    def failover(self) -> FailoverDialect | None:
        """Return the fail-over part of the dialect; None if no other server may take over. Does not block."""


def first_state(start: StartPoint) -> StreamState:
    """Return the stream split's state at the start of reading."""
    followed = {plan.table: plan.followed() for plan in start.tables if not plan.refused}
    parked = {plan.table: plan.parked(start.position) for plan in start.tables if plan.refused}
    return StreamState(start.position, start.ordinal, followed, parked, notes=start.notes)


#: The shortest and the longest pause between two calls in seconds. Locks of statements are released within seconds, and
#: locks of maintenance within hours.
_FIRST_S, _LONGEST_S = 1.0, 60.0
#: The words for the state of a locked table, in messages.
WAITS = "is locked at the source, and the other tables go on without it"


@dataclass(frozen=True, slots=True)
class _Locked:
    """A table that was found locked at `since_s`. `why` is the source's first answer about the lock; empty before that
    answer.
    """

    since_s: float
    why: str = ""


class LockedTables:
    """The tables that are locked at the source; see the module's docstring.

    Owned by the enumerator. `on_free` is called when a table can be read again.
    """

    def __init__(
        self, context: SplitEnumeratorContext, dialect: EnumeratorDialect, *, on_free: Callable[[], None]
    ) -> None:
        self._context, self._dialect, self._on_free = context, dialect, on_free
        #: In the order in which the source is queried about them.
        self._locked: dict[TableId, _Locked] = {}
        self._pause_s = _FIRST_S
        #: The number of the next call that is due. An earlier call that was postponed is not made any more.
        self._next = 0
        self._asking = False

    def __repr__(self) -> str:
        return f"LockedTables({list(self._locked)})"

    def __contains__(self, table: TableId) -> bool:
        return table in self._locked

    def __bool__(self) -> bool:
        return bool(self._locked)

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._locked)

    def note(self, table: TableId) -> None:
        """Note that the table was found locked. Does nothing if that is known."""
        if table in self._locked:
            return
        self._locked[table] = _Locked(self._context.now_s)
        self._pause_s = _FIRST_S
        if not self._asking:
            self._ask_later()

    def forget(self, table: TableId) -> None:
        """Forget the table, because it does not have to be read any more."""
        self._locked.pop(table, None)

    @property
    def problems(self) -> Mapping[str, str]:
        """Return, by name, the tables that stayed locked, with the lock's owner and what to do."""
        return {str(table): locked.why for table, locked in self._locked.items() if locked.why}

    @property
    def stalled(self) -> tuple[Stalled, ...]:
        """Return each locked table, with the time since its lock was noticed."""
        now_s = self._context.now_s
        return tuple(
            Stalled(Stage.CHUNK, str(table), "", WAITS, "", round(now_s - locked.since_s, 1))
            for table, locked in self._locked.items()
        )

    def _ask_later(self) -> None:
        self._next += 1
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_S)
        self._context.call_async(_nothing, partial(self._ask, self._next), after_s=pause_s)

    def _ask(self, number: int, _: None) -> None:
        if number != self._next or self._asking or not self._locked:
            return
        self._asking = True
        self._context.call_async(partial(self._dialect.locked_by, tuple(self._locked)), self._take)

    def _take(self, answers: Mapping[TableId, str]) -> None:
        self._asking = False
        freed = False
        for table, why in answers.items():
            known = self._locked.pop(table, None)
            if known is not None and why:
                # The table is moved to the end, so that tables that were not checked yet come first. Its message is
                # shown once, even if the lock's holder changes.
                self._locked[table] = known if known.why else replace(known, why=why)
            freed |= known is not None and not why
        if self._locked:
            self._ask_later()
        if freed:
            self._on_free()


def _nothing() -> None:
    """Do nothing: the call is made only for its delay."""
