"""The values that the enumerator and a connector exchange about a snapshot; and tables that are locked.

A locked table delays no other: none of its chunks is planned or assigned, and separate calls ask the source about all
such tables together, with a growing pause in between. The pause is reset when another table is found locked. None of
this is stored: after a restart the lock is found again.
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
        return parked_from(Unknown(), ParkingCause(self.refused, start, 0))


@dataclass(frozen=True, slots=True)
class StartPoint:
    """The start of the log, and the tables at that position; `notes` are the first `LogPosition.notes`.

    `parks` is False if a table that its targets cannot hold should end the run: `SchemaError`.
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

    `rows` are those of the table as the source estimates them, for people; None if it does not say them now. `order`
    says how the values of the chunk key are ordered, in the source's words; empty if that never changes.
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
    """Where a log goes on at another server: position and end of the log in that server's terms."""

    position: Position
    ordinal: int
    end: int


class FailoverDialect(Protocol):
    """The additional part of a dialect whose server may be replaced by one with other log positions."""

    def resume_point(self, position: Position) -> ResumePoint | None:
        """Return where the log goes on at the present server; None if that is the server of `position`. Blocks."""


class EnumeratorDialect(Protocol):
    """A connector as the enumerator asks it. Every method blocks and runs off the coordinator's thread."""

    def start_point(self) -> StartPoint: ...

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        """Return the next chunks of a table. Raises `TableLockedError`, after a moment, if it is locked."""
        ...

    def planning(self) -> AbstractContextManager[PlanChunks]:
        """Return `plan` for several tables in sequence on one thread, sharing for example a connection.

        The default shares nothing.
        """
        return nullcontext(self.plan)

    def locked_by(self, tables: Sequence[TableId]) -> Mapping[TableId, str]:
        """Return who still has locked tables locked, and what to do; an empty text for a free one.

        The source checks as many of `tables` as it can within a few seconds. All are free if a source has no locks.
        """
        return dict.fromkeys(tables, "")

    def current_ordinal(self) -> int:
        """The log's end now."""

    def captures(self, table: TableId) -> bool:
        """Return True if the configuration selects the table. Does not block."""

    @property
    def chunk_readers_max(self) -> int:
        """Return how many readers may have a connection for chunks; 0: all. Does not block."""

    @property
    def failover(self) -> FailoverDialect | None:
        """Return the fail-over part of the dialect; None if no other server may take over. Does not block."""


def first_state(start: StartPoint) -> StreamState:
    """The stream split's state where reading begins."""
    followed = {plan.table: plan.followed() for plan in start.tables if not plan.refused}
    parked = {plan.table: plan.parked(start.position) for plan in start.tables if plan.refused}
    return StreamState(start.position, start.ordinal, followed, parked, notes=start.notes)


#: Pauses between two calls: locks of statements go within seconds, and those of maintenance within hours.
_FIRST_S, _LONGEST_S = 1.0, 60.0
#: The state of a table that waits for its lock, in messages.
WAITS = "is locked at the source, and the other tables go on without it"


@dataclass(frozen=True, slots=True)
class _Locked:
    """A table found locked at `since_s`; `why` is the source's first answer, empty before that."""

    since_s: float
    why: str = ""


class LockedTables:
    """See the module's docstring. Owned by the enumerator; `on_free` hears that a table can be read again."""

    def __init__(
        self, context: SplitEnumeratorContext, dialect: EnumeratorDialect, *, on_free: Callable[[], None]
    ) -> None:
        self._context, self._dialect, self._on_free = context, dialect, on_free
        #: In the order in which the source is asked about them.
        self._locked: dict[TableId, _Locked] = {}
        self._pause_s = _FIRST_S
        #: The number of the call that is due next: a postponed earlier call is not made.
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
        """Forget the table, because nothing of it is left to read."""
        self._locked.pop(table, None)

    @property
    def problems(self) -> Mapping[str, str]:
        """Return, by name, the tables that stayed locked, with the lock's owner and what to do."""
        return {str(table): locked.why for table, locked in self._locked.items() if locked.why}

    @property
    def stalled(self) -> tuple[Stalled, ...]:
        """Each, with how long it has been locked as far as is known here."""
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
                # Moved after tables that were not checked yet. The message is shown once, even if the lock's owner
                # changes.
                self._locked[table] = known if known.why else replace(known, why=why)
            freed |= known is not None and not why
        if self._locked:
            self._ask_later()
        if freed:
            self._on_free()


def _nothing() -> None:
    """A call that is made to hear of its time."""
