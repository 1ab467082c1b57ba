"""Parks tables that cannot be followed for now, and resnapshots tables while others stream.

A table is *parked* when the log has a change of it that cannot be followed. Its later rows are dropped. Its position
and the reason are kept in the stream split's state until a user decides. A parked table that is marked *again* is
resnapshotted under a new incarnation, in these steps:

| step | because |
|---|---|
| 1. it is parked | its log up to the other tables' position is useless: all rows are read again |
| 2. it is probed: its schema, proven to hold at position N of the log | the schema at our own position is unknown |
| 3. the log reader passes N without a statement about the table after N; otherwise it is probed again | from here on \
its rows can be decoded and its statements followed |
| 4. an epoch begins with the truncation of its target; every chunk is unopened | deleted rows must vanish |

If a table was never followed, and the log has its creation between steps 1 and 3, no chunk is read. The table is
followed from its creation, because the log has all its rows.

There are four reasons for a resnapshot: a statement rewrote rows without logging them, another table took the name, the
log was purged, or a user requested it. Each step is one transition of the state in manifests, so after a crash the
table is at the last sealed step. Pure, except that probes block; they run in the log's fetcher thread.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, assert_never

from raycdc.core.typed_codec import LEFT_OUT, NOWHERE, Json, JsonObject, stored, write
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.source.snapshot.log.log_unit import BeginTableUpdate, LogUnit, ParkTableUpdate, SchemaChange, narrowed
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.table_life import (
    AsOf,
    Behind,
    CatchingUp,
    Dropped,
    InSnapshot,
    Live,
    Parked,
    ParkedPhase,
    ParkingCause,
    TableState,
    Unknown,
    incarnation_of,
)
from raycdc.state.codec import EXTENDED_VERSION
from raycdc.state.documents import REQUESTS
from raycdc.state.opaque import NO_NOTES, Position


@dataclass(frozen=True, slots=True)
class RowsRequest(JsonObject):
    """A request to read rows of `table` again, made by the command `backfill`.

    The rows are those that match the predicate `where`, or the rows of the chunks in `parts`. If a new configuration
    does not allow the backfill any more, `refused` is the reason.
    """

    backfill: str
    table: TableId
    where: str = ""
    parts: tuple[SnapshotSplit, ...] = ()
    refused: str = field(default="", metadata=LEFT_OUT)


class TableRequest(StrEnum):
    """A user's request about a table (`Requests.tables`)."""

    RESNAPSHOT = "resnapshot"
    PAUSE = "pause"
    REMOVE = "remove"
    #: The paused table continues from its position.
    RESUME = "resume"
    #: A table that was created after the log's position is followed from its creation. If the log does not have the
    #: creation, the table is read with a snapshot.
    FOLLOW = "follow"

    @property
    def leaves(self) -> bool:
        """Return True if the request leaves the table parked, so that it needs no new snapshot."""
        return self in (TableRequest.PAUSE, TableRequest.REMOVE)

    @property
    def phase(self) -> ParkedPhase:
        """Return the phase with which the table is parked."""
        match self:
            case TableRequest.RESNAPSHOT | TableRequest.RESUME | TableRequest.FOLLOW:
                return ParkedPhase.PARKED
            case TableRequest.PAUSE:
                return ParkedPhase.PAUSED
            case TableRequest.REMOVE:
                return ParkedPhase.REMOVED
            case _:
                assert_never(self)

    @property
    def reason(self) -> str:
        """Return the reason with which the table is parked."""
        match self:
            case TableRequest.RESNAPSHOT:
                return "a new snapshot is taken"
            case TableRequest.RESUME:
                return "it is to go on, but nobody knows where it was left, so it is read anew"
            case TableRequest.FOLLOW:
                return "it is new, and followed from the statement that made it; read, if the log has none"
            case TableRequest.PAUSE:
                return "paused by the user"
            case TableRequest.REMOVE:
                return "removed by the user"
            case _:
                assert_never(self)


@dataclass(frozen=True, slots=True)
class LogStart(JsonObject):
    """The position from which a log is to be read, and its ordinal in the log's total order."""

    position: Position
    ordinal: int


@dataclass(frozen=True, slots=True)
class CommandDecision(JsonObject):
    """The decision about a user's command: it is refused, or becomes a request about `tables`. `text` describes the
    effect, or the reason of the refusal. `resnapshots` is True if the tables are resnapshotted; it is for the caller,
    and is not stored. `begins` are the resnapshotted tables of which no target has rows yet. If `replaces` is True, the
    first epoch of these tables replaces any content of the target. `parked` is True if the command was carried out, but
    one of its tables was parked again; `text` has the reason.
    """

    command: str = field(metadata=stored("id"))
    action: str
    table: str
    tables: tuple[str, ...]
    text: str
    refused: bool = False
    resnapshots: bool = field(default=False, metadata=NOWHERE)
    # Older versions of raycdc ignore these fields: they call the command done as soon as its request is.
    begins: tuple[str, ...] = field(default=(), metadata=stored("begins", left_out=True))
    replaces: bool = field(default=False, metadata=stored("replaces", left_out=True))
    parked: bool = field(default=False, metadata=LEFT_OUT)


def _read_requests(written: Mapping[str, str]) -> Mapping[str, TableRequest]:
    return {table: _request(table, text) for table, text in written.items()}


def _written_rows(rows: Mapping[str, RowsRequest]) -> Sequence[Mapping[str, Json]]:
    return [request.to_json() for request in rows.values()]


def _read_rows(written: Sequence[Any]) -> Mapping[str, RowsRequest]:
    return {request.backfill: request for request in map(RowsRequest.from_json, written)}


@dataclass(frozen=True, slots=True)
class Requests(JsonObject):
    """Requests about tables, made by users or because of a purged log. Each request takes effect once, even if it is
    repeated.

    `tables` maps names to an action. A request has the number that ``changes`` of the state had when it was made (in
    `numbers`, else `number`). It applies only to a table that was not parked or resnapshotted after that. `start` is a
    new position from which to read the log. `commands` are the commands that requests came from, oldest first, finished
    ones included. A command and its requests are written in one step. `rows` are backfills by the ids of their
    commands. A backfill stays until the sink holds an epoch whose manifest has its end.
    """

    number: int = 0
    tables: Mapping[str, TableRequest] = field(default_factory=dict, metadata=stored(read=_read_requests))
    start: LogStart | None = None
    numbers: Mapping[str, int] = field(default_factory=dict, metadata=LEFT_OUT)
    commands: tuple[CommandDecision, ...] = field(default=(), metadata=LEFT_OUT)
    rows: Mapping[str, RowsRequest] = field(
        default_factory=dict, metadata=stored(left_out=True, write=_written_rows, read=_read_rows)
    )

    def to_json(self) -> dict[str, Any]:
        """Return the document; it has a special version if rows are requested."""
        document = write(self)
        return {"version": EXTENDED_VERSION, **document} if self.rows else document

    def number_of(self, name: str) -> int:
        """Return the state's ``changes`` when the table's request was made."""
        return self.numbers.get(name, self.number)

    def merged_with(self, asked: Mapping[str, TableRequest], number: int) -> Requests:
        """Return these requests merged with the new ones in `asked`, which were made at the state's ``changes``
        `number`.
        """
        kept = {name: self.number_of(name) for name in self.tables if name not in asked}
        return replace(
            self,
            number=number,
            tables={**self.tables, **asked},
            numbers={name: at for name, at in kept.items() if at != number},
        )

    def and_also(self, tables: Iterable[str], request: TableRequest, state: StreamState) -> Requests:
        """Return these requests, without those that a stream split's `state` has finished, and `action` on `tables`."""
        left = self.left(state)
        asked = {**left.tables, **dict.fromkeys(tables, request)}
        return replace(left, number=state.changes, tables=asked, numbers={})

    def left(self, state: StreamState, over: Container[str] = ()) -> Requests:
        """Return the requests that a stream split's `state` has not carried out yet, and the backfills that are not
        `over`.

        Only these are kept once `state` is committed. A request that was carried out would act again on a table that is
        dropped and created again later.
        """
        waiting = {name: request for name, request in self.tables.items() if self.acts_on(name, state)}
        return replace(
            self,
            tables=waiting,
            start=self.start if state.changes <= self.number else None,
            numbers={name: number for name, number in self.numbers.items() if name in waiting},
            rows={command: request for command, request in self.rows.items() if command not in over},
        )

    def of_leaving(self, state: StreamState) -> dict[str, TableRequest]:
        """Return the tables that are still to be paused or removed, and so need no new snapshot."""
        return {name: request for name, request in self.tables.items() if request.leaves and self.acts_on(name, state)}

    def acts_on(self, name: str, state: StreamState) -> bool:
        """Return True if the request about the table is not yet carried out in a stream split's state."""
        table = state.named(name)
        if self.tables.get(name) is TableRequest.RESUME and not can_be_resumed(table):
            return False  # If the table is followed, it has the incarnation from before the request.
        changed = incarnation_of(table)
        return name in self.tables and (state.changes if changed is None else changed) <= self.number_of(name)


def can_be_resumed(state: TableState) -> bool:
    """Return True if a table is paused, or parked at a position from which it can continue."""
    return isinstance(state, Parked) and (state.phase is ParkedPhase.PAUSED or state.left is not None)


def _request(table: str, text: str) -> TableRequest:
    """Return a stored request. Raises `StateError` for one that this version does not know."""
    try:
        return TableRequest(text)
    except ValueError as cause:
        raise StateError(
            f"{REQUESTS} of the state asks for {text!r} of {table}, which this raycdc does not know. Start the version "
            "of raycdc that the request was made with."
        ) from cause


def with_requests(state: StreamState, requests: Requests, *, refused: Container[TableId] = ()) -> StreamState:
    """Return the stream split's state after `requests`, with their tables parked; unchanged if all are done.

    Tables in `refused` count as announced to their targets.
    """
    due = [name for name in requests.tables if requests.acts_on(name, state)]
    start = requests.start if state.changes <= requests.number else None
    if not due and start is None:
        return state
    number, position = state.changes, state.position
    for name in due:
        number = max(number, requests.number) + 1
        table = TableId.parse(name)
        state = _carried_out(state, table, requests.tables[name], number, position, announced=table in refused)
    state = replace(state, changes=max(number, requests.number + 1))
    if start is not None:
        # The source's notes about the log before a gap do not apply after it.
        state = replace(state.elsewhere(start.position, start.ordinal), notes=NO_NOTES)
    return state


def _carried_out(
    state: StreamState, table: TableId, request: TableRequest, number: int, position: Position, *, announced: bool
) -> StreamState:
    parked = state.parked.get(table)
    if request is TableRequest.RESUME and parked is not None and parked.left is not None and parked.schema is not None:
        return state.catch_up(table, number=number)
    awaited = request is TableRequest.FOLLOW and isinstance(state[table], Unknown)
    parking = ParkingCause(request.reason, position, 0, again=not request.leaves, phase=request.phase, awaited=awaited)
    if request is TableRequest.PAUSE:
        return state.pause(table, parking, number=number)
    return state.park(table, parking, number=number, announced=announced)


@dataclass(frozen=True, slots=True)
class Refusal(JsonObject):
    """A report that the table's target refused a sealed epoch (`raycdc.state.parked`), so that the table is parked. The
    driver sends it during the job, and again from its record at each start; a repeated refusal has no effect.
    `incarnation` is the table's incarnation in the epoch, so a table that was resnapshotted since then is not affected.
    `position` is the position at which the epoch began. Until the refusal takes effect, the driver skips rows of the
    table from that position on.
    """

    table: TableId
    incarnation: int
    reason: str
    position: Position
    ts_ms: int

    @property
    def parking(self) -> ParkingCause:
        return ParkingCause(self.reason, self.position, self.ts_ms)

    def acts_on(self, state: TableState) -> bool:
        """Return True if a table in this state is still to be parked."""
        match state:
            case Parked():
                return False
            case Unknown():
                return True
            case InSnapshot() | AsOf() | Behind() | Live() | CatchingUp() | Dropped():
                return state.incarnation <= self.incarnation
            case _:
                assert_never(state)


def with_refusals(state: StreamState, refusals: Iterable[Refusal]) -> StreamState:
    """Return the stream split's state with the tables of `refusals` parked; the same object if they already are."""
    for refusal in refusals:
        if refusal.acts_on(state[refusal.table]):
            # The table counts as announced, because its target got an epoch of it.
            state = state.park(refusal.table, refusal.parking, number=state.changes + 1, announced=True)
    return state


class RefusedTables:
    """Tables that a running log reader parked because a target refused them. The connector's log is not notified of
    that. It goes on delivering rows of these tables, which are dropped until the log resnapshots the table or parks it
    itself.
    """

    def __init__(self) -> None:
        self._tables: set[TableId] = set()

    def add(self, table: TableId) -> None:
        self._tables.add(table)

    def without(self, unit: LogUnit) -> LogUnit:
        """Return the unit without refused tables; the same object if nothing was refused."""
        if not self._tables:
            return unit
        if isinstance(unit, SchemaChange):
            self._tables -= {update.table for update in unit.updates if isinstance(update, BeginTableUpdate)}
        return narrowed(
            unit, self._is_followed, lambda one: isinstance(one, ParkTableUpdate) or self._is_followed(one.table)
        )

    def _is_followed(self, table: TableId) -> bool:
        return table not in self._tables
