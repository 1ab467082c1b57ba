"""The states of one table in the log reader, the transitions between them, and their JSON.

Theory of operation. Every table of a log is in exactly one of these states, and only `TableStates` moves it:

| state | the log's rows of the table are | its chunks |
|---|---|---|
| `InSnapshot` | dropped, held or passed on, depending on the chunk of their key (`snapshot.hand_off`) | are being \
read |
| `AsOf` | dropped up to a position T, where the log waits until all chunks are published (`snapshot.as_of`) | are \
read |
| `Behind` | dropped up to T, because the chunks contain them; the first one after T makes it `Live` | are all \
published |
| `Live` | passed on | are all published, or it has no snapshot |
| `Parked` | dropped; its reason and position are kept until a user decides (`raycdc.source.tables.parking`) | none |
| `CatchingUp` | dropped; a catch-up stream reads them from an older position on (`snapshot.catch_up`) | are all \
published |
| `Dropped` | none: it was dropped in the open epoch | none |
| `Unknown` | none: the state has no such table | none |

`TRANSITIONS` lists every allowed transition; any other transition is a bug and raises an `AssertionError`. A state is a
value: it is replaced and never changed, and manifests have its JSON. `Dropped` and `Unknown` are in no manifest.

A table is *announced* if an epoch carried its CreateTableEvent to the targets; the table's first epoch does that. This
is a flag and not a state, because a table may be announced or not in each of the states, and the log reader handles its
rows in the same way.

The `schema` of a state is the fingerprint of the table's schema document, which is in
`raycdc.source.split.StreamSplit`. The *incarnation* of a table is a number. One counter counts the parkings and
resnapshots of all tables; a table that is resnapshotted gets the counter's next value, which invalidates every earlier
message about the table.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, NamedTuple, assert_never

from raycdc.core.typed_codec import LEFT_OUT, Json, JsonObject, stored
from raycdc.model import TableId
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.state.opaque import NO_NOTES, LogNotes, Position


class ParkedPhase(StrEnum):
    """The phase of a parked table. Only the first phase is shown as a problem."""

    #: The table cannot be followed; a user must decide.
    PARKED = "parked"
    PAUSED = "paused"
    #: The user removed the table; its target keeps its rows.
    REMOVED = "removed"
    #: The table no longer exists under its name, or is not selected any more; its target keeps its rows.
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SnapshotState(JsonObject):
    """The division of a table into chunks, and the keys that are published. `key` is the chunk key; None if the table
    is a single chunk. If `foldable` is True, rows have a unique key, so held changes may be folded into chunks.
    `closed` are the published ranges of keys [lower, upper) in the source's form; None means unbounded. If `needs_null`
    is True, the table may have rows with NULL keys, and `null_closed` is True once these are published.
    """

    key: ChunkKey | None
    foldable: bool
    needs_null: bool
    null_closed: bool = False
    closed: tuple[tuple[Any, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class InSnapshot:
    """Chunks of the table are being read. Its log rows are judged by the chunk of their key."""

    schema: str
    announced: bool
    incarnation: int
    snapshot: SnapshotState


@dataclass(frozen=True, slots=True)
class AsOf:
    """All chunks of the table are being read as of the ordinal `at`. If a chunk found another table, the chunks are
    useless, and `lost` is the ordinal up to which the log has the reason.
    """

    schema: str
    announced: bool
    incarnation: int
    snapshot: SnapshotState
    at: int
    lost: int | None = None

    def bars(self, ordinal: int) -> bool:
        """Return True if the log reader may not pass `ordinal` yet."""
        return self.lost is None and ordinal > self.at


@dataclass(frozen=True, slots=True)
class Behind:
    """The published chunks of the table have all changes up to the ordinal `at`, which the log reader has not passed
    yet.
    """

    schema: str
    announced: bool
    incarnation: int
    at: int


@dataclass(frozen=True, slots=True)
class Live:
    """All changes of the table are passed on."""

    schema: str
    announced: bool
    incarnation: int


@dataclass(frozen=True, slots=True)
class LeftAt(JsonObject):
    """The data by which a paused table can continue from its position, in addition to its schema and that position: its
    incarnation, the ordinal of the position, and the connector's notes about the log before the position.
    """

    incarnation: int
    ordinal: int
    notes: LogNotes = field(default=NO_NOTES, metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Parked(JsonObject):
    """No rows of the table from `position` on are passed on. If `again` is True, the table will be resnapshotted
    automatically. `schema` is the last schema that was followed (None: the table was never followed). `ts_ms` is the
    commit time of the event that parked it. `left` is set if the table can continue from `position`, because it was
    paused when all its chunks were published, or because its log could not be read for a while. If `awaited` is True,
    the table did not exist at `position`: it is followed from its creation in the log, or resnapshotted if the log does
    not have its creation.
    """

    schema: str | None
    announced: bool
    incarnation: int
    phase: ParkedPhase
    reason: str
    position: Position
    ts_ms: int
    again: bool = field(default=False, metadata=stored("again", before="phase"))
    left: LeftAt | None = field(default=None, metadata=LEFT_OUT)
    awaited: bool = field(default=False, metadata=LEFT_OUT)

    @property
    def word(self) -> str:
        """Return return the phase as one word for people and programs; a table about to be read is ``pending``."""
        return "pending" if self.again and self.phase is ParkedPhase.PARKED else str(self.phase)


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """The table was paused, and continues from `position` in a catch-up stream, parallel to the log of the other
    tables. It keeps its incarnation from before the pause, so a target that refused this incarnation gets no rows of
    it. `dropped` is True if the catch-up stream has seen that the table was dropped and not created again.
    """

    schema: str
    announced: bool
    position: Position
    left: LeftAt
    dropped: bool = False

    @property
    def incarnation(self) -> int:
        return self.left.incarnation

    @property
    def ordinal(self) -> int:
        return self.left.ordinal

    def to_json(self) -> Mapping[str, Json]:
        """Return the document.

        An older version of raycdc reads the table as a paused table, which is correct, too.
        """
        paused = Parked(
            self.schema,
            self.announced,
            self.incarnation,
            ParkedPhase.PAUSED,
            "it goes on from where it was left",
            self.position,
            0,
            left=self.left,
        )
        return {**paused.to_json(), "catching_up": {"gone": self.dropped}}

    @classmethod
    def from_json(cls, data: Any) -> CatchingUp:
        assert data["schema"] is not None, "a table is caught up that was never followed"
        return cls(
            data["schema"],
            data["announced"],
            Position.from_json(data["position"]),
            LeftAt.from_json(data["left"]),
            data["catching_up"]["gone"],
        )


@dataclass(frozen=True, slots=True)
class Dropped:
    """The table was dropped in the open epoch. The next epoch does not have the table."""

    schema: str
    announced: bool
    incarnation: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """The state has no table of this name."""


Reading = InSnapshot | AsOf
Followed = InSnapshot | AsOf | Behind | Live
TableState = InSnapshot | AsOf | Behind | Live | Parked | CatchingUp | Dropped | Unknown


class TableTransition(Enum):
    """The events that move a table from one state to another."""

    FOUND = "the log has a table of this name"
    ALTERED = "another schema is in force"
    ANNOUNCED = "an epoch tells the targets of it"
    OPENED = "its first chunk is opened as of a position"
    LOST = "a chunk found another table"
    PUBLISHED = "a chunk is published"
    COMPLETED = "every key is published"
    PASSED = "a change after T was seen"
    DROPPED = "it is no more"
    PARKED = "it cannot be followed, or is not to be"
    BEGUN = "it begins again, all chunks unopened"
    CUT = "the epoch is cut"
    MOVED = "the reading beside the log is at another position"
    JOINED = "the reading beside the log is where the log is"


#: The state that each transition leads to. A transition that is not listed cannot happen.
TRANSITIONS: Mapping[type[TableState], Mapping[TableTransition, type[TableState]]] = {
    Unknown: {
        TableTransition.FOUND: Live,
        TableTransition.DROPPED: Unknown,
        TableTransition.PARKED: Parked,
        TableTransition.BEGUN: InSnapshot,
    },
    InSnapshot: {
        TableTransition.ALTERED: InSnapshot,
        TableTransition.ANNOUNCED: InSnapshot,
        TableTransition.OPENED: AsOf,
        TableTransition.PUBLISHED: InSnapshot,
        TableTransition.COMPLETED: Live,
        TableTransition.DROPPED: Dropped,
        TableTransition.PARKED: Parked,
        TableTransition.BEGUN: InSnapshot,
    },
    AsOf: {
        TableTransition.ALTERED: AsOf,
        TableTransition.ANNOUNCED: AsOf,
        TableTransition.LOST: AsOf,
        TableTransition.PUBLISHED: AsOf,
        TableTransition.COMPLETED: Behind,
        TableTransition.DROPPED: Dropped,
        TableTransition.PARKED: Parked,
        TableTransition.BEGUN: InSnapshot,
    },
    Behind: {
        TableTransition.ALTERED: Behind,
        TableTransition.ANNOUNCED: Behind,
        TableTransition.PASSED: Live,
        TableTransition.DROPPED: Dropped,
        TableTransition.PARKED: Parked,
        TableTransition.BEGUN: InSnapshot,
    },
    Live: {
        TableTransition.ALTERED: Live,
        TableTransition.ANNOUNCED: Live,
        TableTransition.DROPPED: Dropped,
        TableTransition.PARKED: Parked,
        TableTransition.BEGUN: InSnapshot,
    },
    Parked: {TableTransition.DROPPED: Parked, TableTransition.PARKED: Parked, TableTransition.BEGUN: InSnapshot},
    CatchingUp: {
        TableTransition.ALTERED: CatchingUp,
        TableTransition.ANNOUNCED: CatchingUp,
        TableTransition.DROPPED: CatchingUp,
        TableTransition.MOVED: CatchingUp,
        TableTransition.JOINED: Live,
        TableTransition.PARKED: Parked,
        TableTransition.BEGUN: InSnapshot,
    },
    Dropped: {
        TableTransition.ALTERED: Live,
        TableTransition.ANNOUNCED: Dropped,
        TableTransition.DROPPED: Dropped,
        TableTransition.PARKED: Parked,
        TableTransition.BEGUN: InSnapshot,
        TableTransition.CUT: Unknown,
    },
}

_UNKNOWN = Unknown()


class SealedTables(NamedTuple):
    """All tables of a log, as a manifest has them."""

    followed: dict[TableId, Followed]
    parked: dict[TableId, Parked]
    catching_up: dict[TableId, CatchingUp]


class ChangedTableStates:
    """The tables that changed since the last cut. A cut needs to look only at these. Updated by `TableStates` only."""

    def __init__(self, states: Mapping[TableId, TableState]) -> None:
        #: Tables whose state changed since the last `take_changed`, in order.
        self._changed: dict[TableId, None] = {}
        #: Followed tables that no epoch has announced yet.
        self.unannounced: dict[TableId, None] = {}
        #: Tables that are read as of one position, or were.
        self.as_of: set[TableId] = set()
        #: Tables that were dropped in the open epoch.
        self.dropped: dict[TableId, None] = {}
        for table, state in states.items():
            self.note(table, state)
        self._changed.clear()

    def note(self, table: TableId, state: TableState) -> None:
        """Note the table's new state."""
        self._changed[table] = None
        if isinstance(state, Parked) or is_announced(state) or isinstance(state, Unknown):
            self.unannounced.pop(table, None)
        else:
            self.unannounced[table] = None
        if isinstance(state, AsOf | Behind):
            self.as_of.add(table)
        else:
            self.as_of.discard(table)
        if isinstance(state, Dropped):
            self.dropped[table] = None
        else:
            self.dropped.pop(table, None)

    def take_changed(self) -> list[TableId]:
        """Return the tables whose state changed since the previous call."""
        changed = list(self._changed)
        self._changed.clear()
        return changed


class TableStates:
    """The states of all tables of one log. Only this class changes a table's state. Owned by the log reader.

    `changes` counts parkings and resnapshots.
    """

    def __init__(self, states: Mapping[TableId, TableState], *, changes: int = 0) -> None:
        self._states = dict(states)
        self.changes = changes
        self.changed = ChangedTableStates(self._states)

    def __repr__(self) -> str:
        states = ", ".join(f"{table}: {type(state).__name__}" for table, state in self._states.items())
        return f"TableStates({states})"

    def __getitem__(self, table: TableId) -> TableState:
        return self._states.get(table, _UNKNOWN)

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._states)

    def found(self, table: TableId, schema: str) -> None:
        """Follow a table that the log has without a snapshot: all its rows are in the log."""
        self._move(table, TableTransition.FOUND, Live(schema, announced=False, incarnation=0))

    def altered(self, table: TableId, schema: str) -> None:
        """Use `schema` for the table from here on. If the table was dropped in the open epoch, it exists again."""
        state = self[table]
        assert not isinstance(state, Unknown | Parked), f"{table} is {state} and was altered"
        if isinstance(state, Dropped):
            self._move(table, TableTransition.ALTERED, Live(schema, state.announced, state.incarnation))
        elif isinstance(state, CatchingUp):
            self._move(table, TableTransition.ALTERED, replace(state, schema=schema, dropped=False))
        else:
            self._move(table, TableTransition.ALTERED, replace(state, schema=schema))

    def announced(self, table: TableId) -> None:
        """Note that the open epoch announces the table to its targets."""
        state = self[table]
        assert not isinstance(state, Unknown | Parked), f"{table} is {state} and was announced"
        self._move(table, TableTransition.ANNOUNCED, replace(state, announced=True))

    def opened_as_of(self, table: TableId, at: int) -> None:
        """Note that the first chunk of a table was opened, and that all its chunks are read as of the position `at`."""
        state = self[table]
        assert isinstance(state, InSnapshot), f"{table} is {state} and was opened"
        read = AsOf(state.schema, state.announced, state.incarnation, state.snapshot, at)
        self._move(table, TableTransition.OPENED, read)

    def lost(self, table: TableId, high: int) -> None:
        """Note that a chunk found another table, which the log explains up to `high`."""
        state = self[table]
        assert isinstance(state, AsOf), f"{table} is {state} and was lost"
        self._move(table, TableTransition.LOST, replace(state, lost=max(high, state.lost or 0)))

    def published(self, table: TableId, closed: tuple[tuple[Any, Any], ...], *, null_closed: bool) -> None:
        """Record that a chunk is published. `closed` and `null_closed` are the published keys after that."""
        state = self[table]
        assert isinstance(state, InSnapshot | AsOf), f"{table} is {state} and a chunk of it was published"
        snapshot = replace(state.snapshot, closed=closed, null_closed=null_closed)
        self._move(table, TableTransition.PUBLISHED, replace(state, snapshot=snapshot))

    def completed(self, table: TableId) -> None:
        """Note that every key is published."""
        match state := self[table]:
            case InSnapshot(schema, announced, incarnation):
                self._move(table, TableTransition.COMPLETED, Live(schema, announced, incarnation))
            case AsOf(schema, announced, incarnation, _, at):
                self._move(table, TableTransition.COMPLETED, Behind(schema, announced, incarnation, at))
            case _:
                raise AssertionError(f"{table} is {state} and was completed")

    def passed(self, table: TableId) -> None:
        """Note that the log has passed the position up to which chunks have all changes."""
        state = self[table]
        assert isinstance(state, Behind), f"{table} is {state} and was passed"
        self._move(table, TableTransition.PASSED, Live(state.schema, state.announced, state.incarnation))

    def dropped(self, table: TableId) -> None:
        """Note that the table was dropped. A parked or unknown table stays as it is."""
        match state := self[table]:
            case Unknown() | Parked() | Dropped():
                self._move(table, TableTransition.DROPPED, state)
            case CatchingUp():
                self._move(table, TableTransition.DROPPED, replace(state, dropped=True))
            case InSnapshot() | AsOf() | Behind() | Live():
                self._move(table, TableTransition.DROPPED, Dropped(state.schema, state.announced, state.incarnation))
            case _:
                assert_never(state)

    def parked(self, table: TableId, parking: ParkingCause, *, announced: bool) -> None:
        """Park the table, and increase `changes`. `announced` is True if the open epoch announces the table."""
        self.changes += 1
        self._move(
            table,
            TableTransition.PARKED,
            parked_from(self[table], parking, incarnation=self.changes, announced=announced),
        )

    def caught_up_to(self, table: TableId, position: Position, ordinal: int, notes: LogNotes) -> None:
        """Note that the catch-up stream has passed on all rows of the table up to `position`."""
        state = self[table]
        assert isinstance(state, CatchingUp), f"{table} is {state} and was caught up"
        left = LeftAt(state.incarnation, ordinal, notes)
        self._move(table, TableTransition.MOVED, replace(state, position=position, left=left))

    def joined(self, table: TableId) -> None:
        """Follow the table in the log, because the catch-up stream has delivered everything before the log's position.
        `changes` is increased, by which commands that wait for this see that they are done.
        """
        state = self[table]
        assert isinstance(state, CatchingUp), f"{table} is {state} and joined the log"
        self.changes += 1
        self._move(table, TableTransition.JOINED, followed_from(state))

    def resnapshot(self, table: TableId, schema: str, snapshot: SnapshotState) -> None:
        """Resnapshot the table: all its chunks become unopened, its target is emptied, and `changes` is increased."""
        announced = is_announced(self[table])
        self.changes += 1
        self._move(table, TableTransition.BEGUN, InSnapshot(schema, announced, self.changes, snapshot))

    def sealed(self, announced: Container[TableId]) -> SealedTables:
        """Return the state of the tables after the seal of the open epoch, which has `announced` some of them."""
        followed: dict[TableId, Followed] = {}
        parked: dict[TableId, Parked] = {}
        catching_up: dict[TableId, CatchingUp] = {}
        for table, state in self._states.items():
            match state:
                case InSnapshot() | AsOf() | Behind() | Live():
                    followed[table] = replace(state, announced=state.announced or table in announced)
                case Parked():
                    parked[table] = state
                case CatchingUp():
                    catching_up[table] = replace(state, announced=state.announced or table in announced)
                case Dropped() | Unknown():
                    pass
                case _:
                    assert_never(state)
        return SealedTables(followed, parked, catching_up)

    def cut(self) -> None:
        """Start a new epoch: tables dropped in the old one become unknown."""
        for table in list(self.changed.dropped):
            self._move(table, TableTransition.CUT, _UNKNOWN)

    def _move(self, table: TableId, step: TableTransition, state: TableState) -> None:
        before = self[table]
        allowed = TRANSITIONS[type(before)].get(step)
        assert type(state) is allowed, f"{table}: {step.name} does not lead from {before} to {state}"
        if isinstance(state, Unknown):
            self._states.pop(table, None)
        else:
            self._states[table] = state
        self.changed.note(table, state)


def first_state(schema: str, snapshot: SnapshotState | None) -> Followed:
    """Return the state of a table at the start of reading: all chunks are unread, or it is followed without chunks."""
    if snapshot is None:
        return Live(schema, announced=False, incarnation=0)
    return InSnapshot(schema, announced=False, incarnation=0, snapshot=snapshot)


def reading(state: TableState) -> Reading | None:
    """Return the table's state if its chunks are being read; otherwise None."""
    return state if isinstance(state, InSnapshot | AsOf) else None


def is_announced(state: TableState) -> bool:
    """Return True if an epoch has announced the table to targets."""
    return not isinstance(state, Unknown) and state.announced


def had_rows(state: TableState) -> bool:
    """Return True if a target may have rows of the table: it was followed or announced once."""
    return not isinstance(state, Unknown) and (state.schema is not None or state.announced)


def is_nothing(state: TableState) -> bool:
    """Return True if no table was found under the name, or if the table was dropped before any of its rows were read.
    No target has rows of such a table.
    """
    return isinstance(state, Parked) and state.phase is ParkedPhase.ENDED and not state.again and not had_rows(state)


def phase_word(state: TableState) -> str:
    """Return the phase of a table as one word, which ``raycdc tables`` and a status show."""
    match state:
        case Parked():
            return state.word
        case InSnapshot() | AsOf():
            return "snapshot"
        case Behind() | Live() | Dropped():
            return "stream"
        case CatchingUp():
            return "resuming"
        case Unknown():
            return "new"
        case _:
            assert_never(state)


def incarnation_of(state: TableState) -> int | None:
    """Return the incarnation of the table; None if it is neither followed nor parked."""
    return None if isinstance(state, Unknown | Dropped) else state.incarnation


def parked_from(state: TableState, parking: ParkingCause, *, incarnation: int = 0, announced: bool = False) -> Parked:
    """Return the state of a table with `state` after it is parked for the cause `parking`. With `announced`, the
    targets count as knowing the table even if `state` says otherwise.
    """
    schema = None if isinstance(state, Unknown) else state.schema
    return Parked(
        schema,
        announced or is_announced(state),
        incarnation,
        parking.phase,
        parking.reason,
        parking.position,
        parking.ts_ms,
        parking.again,
        state.left if parking.goes_on and isinstance(state, CatchingUp) and not state.dropped else None,
        parking.awaited,
    )


def resumed(paused: Parked) -> CatchingUp:
    """Return the state of a `paused` table that continues from its position."""
    assert paused.left is not None, f"{paused} cannot go on"
    assert paused.schema is not None, f"{paused} was never followed"
    return CatchingUp(paused.schema, paused.announced, paused.position, paused.left)


def followed_from(state: CatchingUp) -> Live:
    """Return the state of the table in a catch-up stream that begins at its position."""
    return Live(state.schema, state.announced, state.incarnation)


def asleep(state: Followed | Parked | CatchingUp, position: Position) -> Parked:
    """Return the state of a table whose rows a stream from `position` on must not deliver."""
    return Parked(
        state.schema, state.announced, state.incarnation, ParkedPhase.PAUSED, "it is read elsewhere", position, 0
    )


@dataclass(frozen=True, slots=True)
class ParkingCause:
    """The reason why a table is not followed from `position` on. If `again` is True, the table will be resnapshotted
    automatically. `ts_ms` is the commit time of the event that caused the parking. `goes_on` is True if the table is
    `CatchingUp` and can continue from `position`. For `awaited` see `Parked`.
    """

    reason: str
    position: Position
    ts_ms: int
    again: bool = False
    phase: ParkedPhase = ParkedPhase.PARKED
    goes_on: bool = False
    awaited: bool = False


def followed_to_json(state: Followed) -> Mapping[str, Json]:
    """Return a followed table in its form in manifests."""
    entry: dict[str, Json] = {
        "incarnation": state.incarnation,
        "schema": state.schema,
        "announced": state.announced,
        "snapshot": None,
    }
    match state:
        case InSnapshot(snapshot=snapshot):
            entry["snapshot"] = snapshot.to_json()
        case AsOf(snapshot=snapshot, at=at, lost=lost):
            entry["snapshot"] = {**snapshot.to_json(), "as_of": {"at": at, "lost": lost}}
        case Behind(at=at):
            entry["passed"] = at
        case Live():
            pass
        case _:
            assert_never(state)
    return entry


def followed_from_json(data: Any) -> Followed:
    """Return the inverse of `followed_to_json`.

    States of old versions, in which tables could not be resnapshotted, have no incarnation.
    """
    schema, announced, incarnation = data["schema"], data["announced"], data.get("incarnation", 0)
    if data["snapshot"] is not None:
        snapshot = SnapshotState.from_json(data["snapshot"])
        as_of = data["snapshot"].get("as_of")
        if as_of is not None:
            return AsOf(schema, announced, incarnation, snapshot, as_of["at"], as_of["lost"])
        return InSnapshot(schema, announced, incarnation, snapshot)
    if "passed" in data:
        return Behind(schema, announced, incarnation, data["passed"])
    return Live(schema, announced, incarnation)
