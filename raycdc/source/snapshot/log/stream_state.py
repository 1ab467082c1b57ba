"""The state of a log that one reader reads: its position and the state of each of its tables. `SealedStream` seals it
at cuts.

The state is a value. The log reader creates it at every cut, and the manifest holds its JSON; `stream_of` reads it from
a manifest. At a start, `raycdc.source.tables.parking` and `raycdc.source.selection` replace it by a changed state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from raycdc.core.typed_codec import Json
from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.snapshot.log.log_unit import LogPosition
from raycdc.source.tables.table_life import (
    AsOf,
    Behind,
    CatchingUp,
    Dropped,
    Followed,
    LeftAt,
    Live,
    Parked,
    ParkedPhase,
    ParkingCause,
    TableState,
    TableStates,
    Unknown,
    followed_from_json,
    followed_to_json,
    parked_from,
    resumed,
)
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.state.manifests.sealed_state import Patch
from raycdc.state.missing import MissingState
from raycdc.state.opaque import NO_NOTES, LogNotes, Position, SealedSplit

#: The fields of a state that contain its tables.
TABLES = "tables"
PARKED = "parked"

#: The version of a stream split's state, and the version of a state with a table that is read as of one position.
STATE_VERSION = 1
AS_OF_VERSION = 2


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of a log: `position` is the position in the connector's form, and `ordinal` is its number in the log's
    total order. Each table is in one of `followed`, `parked` and `catching_up`. `changes` counts parkings and
    resnapshots. `notes` is the connector's additional data for going on. `missing` are rows that the source could not
    deliver.
    """

    position: Position
    ordinal: int
    followed: Mapping[TableId, Followed] = field(default_factory=dict)
    parked: Mapping[TableId, Parked] = field(default_factory=dict)
    changes: int = 0
    notes: LogNotes = NO_NOTES
    missing: MissingState = field(default_factory=MissingState)
    catching_up: Mapping[TableId, CatchingUp] = field(default_factory=dict)

    def __getitem__(self, table: TableId) -> TableState:
        return self.followed.get(table) or self.parked.get(table) or self.catching_up.get(table) or Unknown()

    def named(self, name: str) -> TableState:
        """Return the state of the table called `name`; `Unknown` also for an invalid name."""
        try:
            return self[TableId.parse(name)]
        except ValueError:
            return Unknown()

    @property
    def names(self) -> list[str]:
        """Return the names of all tables, sorted."""
        return sorted(map(str, self.tables))

    @property
    def tables(self) -> tuple[TableId, ...]:
        """Return all tables, each in any of its states."""
        return (*self.followed, *self.parked, *self.catching_up)

    def park(self, table: TableId, parking: ParkingCause, *, number: int, announced: bool = False) -> StreamState:
        """Return the state with the table parked as incarnation `number`.

        With `announced`, the targets count as knowing the table even if its state says otherwise.
        """
        parked = parked_from(self[table], parking, incarnation=number, announced=announced)
        return self._parked(table, parked, number)

    def pause(self, table: TableId, parking: ParkingCause, *, number: int) -> StreamState:
        """Return the state with the table paused as incarnation `number`.

        If all chunks of the table are published, it can continue later from its position.
        """
        match self[table]:
            case CatchingUp(position=position, left=left, dropped=False):
                parking = replace(parking, position=position)
            case Parked(position=position, left=LeftAt() as left):
                parking = replace(parking, position=position)
            case Live(incarnation=incarnation):
                left = LeftAt(incarnation, self.ordinal, self.notes)
            case Behind(incarnation=incarnation, at=at) if at <= self.ordinal:
                left = LeftAt(incarnation, self.ordinal, self.notes)
            case _:
                return self.park(table, parking, number=number)
        paused = replace(parked_from(self[table], parking, incarnation=number), left=left)
        return self._parked(table, paused, number)

    def catch_up(self, table: TableId, *, number: int) -> StreamState:
        """Return the state in which the paused table continues from its position. `number` is the new value of
        `changes`.
        """
        state = resumed(self.parked[table])
        parked = {name: parked for name, parked in self.parked.items() if name != table}
        return replace(
            self, parked=parked, catching_up={**self.catching_up, table: state}, changes=max(self.changes, number)
        )

    def elsewhere(self, position: Position, ordinal: int) -> StreamState:
        """Return the state with the log at a position that cannot be compared with earlier positions. Tables that were
        to continue from an earlier position are parked, because their changes in between are unknown.
        """
        state = self
        for table, one in self.catching_up.items():
            state = state.park(table, ParkingCause(_gap_before(table), one.position, 0), number=state.changes + 1)
        parked = {
            table: replace(
                paused,
                left=None,
                # The statement that made it may be in the gap.
                awaited=False,
                # Its advice to resume does not apply any more.
                reason=_gap_before(table)
                if paused.left is not None and paused.phase is ParkedPhase.PARKED
                else paused.reason,
            )
            for table, paused in state.parked.items()
        }
        return replace(state, position=position, ordinal=ordinal, parked=parked)

    def _parked(self, table: TableId, parked: Parked, number: int) -> StreamState:
        return replace(
            self,
            followed={name: state for name, state in self.followed.items() if name != table},
            parked={**self.parked, table: parked},
            changes=max(self.changes, number),
            catching_up={name: state for name, state in self.catching_up.items() if name != table},
        )

    def only(self, tables: Iterable[TableId]) -> StreamState:
        """Return the state as if only these tables were followed."""
        return replace(self, followed={table: self.followed[table] for table in tables if table in self.followed})

    @classmethod
    def of(cls, state: SealedSplit) -> StreamState:
        """Return the state of the stream split from its form in manifests and messages."""
        return cls.from_json(state.to_json())

    def sealed(self) -> SealedSplit:
        """Return return the inverse of `of`."""
        return SealedSplit.from_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the document for manifests."""
        as_of = any(isinstance(state, AsOf | Behind) for state in self.followed.values())
        return {
            **self.position_json(as_of=as_of),
            "parked": {
                **{str(table): state.to_json() for table, state in self.parked.items()},
                **{str(table): state.to_json() for table, state in self.catching_up.items()},
            },
            "tables": {str(table): followed_to_json(state) for table, state in self.followed.items()},
        }

    def position_json(self, *, as_of: bool) -> Mapping[str, Json]:
        """Return the JSON of the state without its tables. `as_of` is True if a table is read as of one position."""
        return {
            "version": AS_OF_VERSION if as_of else STATE_VERSION,
            "position": self.position.to_json(),
            "ordinal": self.ordinal,
            **({"source": self.notes.to_json()} if self.notes else {}),
            **({"missing": self.missing.to_json()} if self.missing.count else {}),
            "changes": self.changes,
        }

    @classmethod
    def of_change(cls, change: Patch) -> StreamState:
        """Return the state after a change from `SealedStream`, with only the changed tables."""
        tables = {name: change.inside[name].put if name in change.inside else {} for name in (TABLES, PARKED)}
        return cls.from_json({**change.put, **tables})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamState:
        """Return the inverse of `to_json`. Raises `ProtocolError` for a version that is not known here."""
        if data["version"] not in (STATE_VERSION, AS_OF_VERSION):
            known = f"{STATE_VERSION} and {AS_OF_VERSION}"
            raise ProtocolError(f"Stream split state has version {data['version']}, this reader knows {known}")
        parked = {TableId.parse(name): entry for name, entry in data.get("parked", {}).items()}
        return cls(
            Position.from_json(data["position"]),
            data["ordinal"],
            {TableId.parse(name): followed_from_json(entry) for name, entry in data["tables"].items()},
            {table: Parked.from_json(entry) for table, entry in parked.items() if "catching_up" not in entry},
            data.get("changes", 0),
            LogNotes.from_json(data.get("source", {})),
            MissingState.from_json(data["missing"]) if "missing" in data else MissingState(),
            {table: CatchingUp.from_json(entry) for table, entry in parked.items() if "catching_up" in entry},
        )


def dropped_by(change: Patch) -> list[TableId]:
    """Return the tables that a change from `SealedStream` removes from the state."""
    inside = [patch for name in (TABLES, PARKED) if (patch := change.inside.get(name)) is not None]
    kept = {name for patch in inside for name in patch.put}
    return [TableId.parse(name) for patch in inside for name in patch.removed if name not in kept]


def _gap_before(table: TableId) -> str:
    return (
        f"{table} cannot go on from where it was left, because the log goes on behind a gap, or at another server, "
        f"since then. Read it anew with: raycdc tables resnapshot CONFIG {table}"
    )


def stream_of(manifest: Manifest | None) -> StreamState | None:
    """The state of the log after the epoch of `manifest`; None if the source has none, or nothing was sealed."""
    state = None if manifest is None else manifest.to_splits.get(STREAM_SPLIT_ID)
    return None if state is None else StreamState.of(state)


class SealedStream:
    """Seals the state of one stream: the complete state at the first cut, and only the changed parts at later cuts.
    Owned by the log reader.

    With a hundred thousand tables, the state has megabytes, and an epoch changes only a few tables. The coordinator
    always has the previous state: each cut becomes part of a manifest, unless its reader is lost. A reader that takes
    over the stream begins with the complete state. Called once per cut, after the epoch's tables are marked as
    announced.
    """

    def __init__(self, table_states: TableStates) -> None:
        self._table_states = table_states
        #: The field of the state that had each table at the last seal; None before the first cut.
        self._fields: dict[str, str] | None = None
        self._location: Mapping[str, Json] = {}

    @property
    def is_first(self) -> bool:
        """Return True before the first cut, which seals the `whole` state."""
        return self._fields is None

    def whole(self, state: StreamState) -> SealedSplit:
        """Return the complete `state` in written form, for the first cut."""
        self._table_states.changed.take_changed()
        followed, parked = map(str, state.followed), map(str, (*state.parked, *state.catching_up))
        self._fields = {**dict.fromkeys(followed, TABLES), **dict.fromkeys(parked, PARKED)}
        self._location = state.position_json(as_of=bool(self._table_states.changed.as_of))
        return state.sealed()

    def change(self, position: StreamState) -> Patch:
        """Return the changes since the previous cut. `position` is the state without its tables."""
        fields = self._fields
        assert fields is not None, "the first cut seals the whole state"
        put: dict[str, dict[str, Json]] = {TABLES: {}, PARKED: {}}
        gone: dict[str, list[str]] = {TABLES: [], PARKED: []}
        for table in self._table_states.changed.take_changed():
            before = fields.pop(str(table), None)
            written = self._written(table)
            if written is not None:
                field, value = written
                fields[str(table)] = field
                put[field][str(table)] = value
            if before is not None and (written is None or written[0] != before):
                gone[before].append(str(table))
        before_position = self._location
        self._location = position.position_json(as_of=bool(self._table_states.changed.as_of))
        inside = {field: patch for field in (TABLES, PARKED) if (patch := Patch(put[field], tuple(gone[field])))}
        return Patch(self._location, tuple(key for key in before_position if key not in self._location), inside)

    def _written(self, table: TableId) -> tuple[str, Json] | None:
        """Return the field of the state that has the table now, and its JSON there."""
        match state := self._table_states[table]:
            case Dropped() | Unknown():
                return None
            case Parked() | CatchingUp():
                return PARKED, cast("Json", state.to_json())
            case _:
                return TABLES, cast("Json", followed_to_json(state))


class LogCursor:
    """The position after the last unit that was passed on.

    Inside a transaction, position and ordinal are those of the last boundary between transactions, because a state can
    have no other position.
    """

    def __init__(self, state: StreamState) -> None:
        self.position, self.ordinal = state.position, state.ordinal
        #: The connector's own notes, which are only passed on. Old states, from before notes existed, have none.
        self.notes = state.notes
        self.in_transaction = False
        #: The commit time of the last event, and that of the last event after which no transaction was open.
        self.event_ms: int | None = None
        self.watermark_ms: int | None = None
        #: True if the position has changed since the last cut.
        self.moved = False

    def __repr__(self) -> str:
        return f"LogCursor({self.ordinal}, in_transaction={self.in_transaction})"

    def move(self, position: LogPosition, *, in_transaction: bool) -> None:
        """Move to the position after a unit. `in_transaction` is True if a transaction is open after the unit."""
        self.in_transaction = in_transaction
        self.moved = self.moved or position.ordinal != self.ordinal
        self.position, self.ordinal = position.position, position.ordinal
        if position.notes is not None:
            self.notes = position.notes
        if position.event_ms is not None:
            self.event_ms = position.event_ms
            if not in_transaction:
                self.watermark_ms = position.event_ms
