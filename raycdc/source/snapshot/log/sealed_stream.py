"""The sealed state of a log reader's stream: complete at the first cut, only its changes at later ones.

With a hundred thousand tables, the state has megabytes, and an epoch changes a few of them. The coordinator has the
previous state, because each cut is part of a manifest or its reader is lost, and a reader that takes over the stream
begins with the complete state.

`LogCursor` is the position of a log reader in its log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from raycdc.model import TableId
from raycdc.model.json_value import Json
from raycdc.source.snapshot.log.log_unit import LogPosition
from raycdc.source.snapshot.log.stream_state import PARKED, TABLES, StreamState
from raycdc.source.tables.table_life import CatchingUp, Dropped, Parked, TableStates, Unknown, followed_to_json
from raycdc.state.manifests.patch import Patch
from raycdc.state.opaque import SealedSplit


class SealedStream:
    """The sealed states of one stream; see the module's docstring.

    Owned by the log reader. Called once per cut, after the epoch's tables are marked as announced.
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

    Inside a transaction, position and ordinal are those of the last boundary, because a state cannot name another
    position.
    """

    def __init__(self, state: StreamState) -> None:
        self.position, self.ordinal = state.position, state.ordinal
        #: The source's own notes, which are only passed through. States that were written before notes existed have
        #: none.
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
        """Move to the position after a unit. `in_transaction`: the unit left a transaction open."""
        self.in_transaction = in_transaction
        self.moved = self.moved or position.ordinal != self.ordinal
        self.position, self.ordinal = position.position, position.ordinal
        if position.notes is not None:
            self.notes = position.notes
        if position.event_ms is not None:
            self.event_ms = position.event_ms
            if not in_transaction:
                self.watermark_ms = position.event_ms
