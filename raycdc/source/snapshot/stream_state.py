"""The state of a log that one reader reads: where it stands, and in which state each of its tables is.

It is a value. The log reader gives it at every cut, the manifest holds its JSON, and whoever looks into a manifest for
tables asks `stream_of`. While nothing runs, `raycdc.source.parking` and
`raycdc.source.selection` change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raycdc.checkpoint.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.checkpoint.missing import MissingState
from raycdc.checkpoint.opaque import NO_NOTES, LogNotes, Position, SealedSplit
from raycdc.checkpoint.patch import Json, Patch
from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.table_life import (
    AsOf,
    Behind,
    Followed,
    Parked,
    Parking,
    TableState,
    Unknown,
    followed_from_json,
    followed_to_json,
    parked_from,
)

#: The fields of a state that have its tables.
TABLES = "tables"
PARKED = "parked"

#: Version of the stream split's state, and that of one with a table that is read as of one place.
STATE_VERSION = 1
AS_OF_VERSION = 2


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where the log stands: `position` in the connector's terms, `ordinal` in the log's total order.

    `followed` and `parked` are all its tables. `changes` counts parkings and new beginnings. `notes` are what
    the connector must know to go on beside position and schemas. `missing` are rows that the source could not give.
    """

    position: Position
    ordinal: int
    followed: Mapping[TableId, Followed] = field(default_factory=dict)
    parked: Mapping[TableId, Parked] = field(default_factory=dict)
    changes: int = 0
    notes: LogNotes = NO_NOTES
    missing: MissingState = field(default_factory=MissingState)

    def __getitem__(self, table: TableId) -> TableState:
        return self.followed.get(table) or self.parked.get(table) or Unknown()

    def named(self, name: str) -> TableState:
        """The table that a user calls `name`; `Unknown` also for what is no table's name."""
        try:
            return self[TableId.parse(name)]
        except ValueError:
            return Unknown()

    @property
    def names(self) -> list[str]:
        """All tables, followed and parked."""
        return sorted(map(str, (*self.followed, *self.parked)))

    def park(self, table: TableId, parking: Parking, *, number: int) -> StreamState:
        """The state with the table parked as the beginning `number`."""
        followed = {name: state for name, state in self.followed.items() if name != table}
        parked = {**self.parked, table: parked_from(self[table], parking, incarnation=number)}
        return replace(self, followed=followed, parked=parked, changes=max(self.changes, number))

    def only(self, tables: Iterable[TableId]) -> StreamState:
        """The state as if no others were followed."""
        return replace(self, followed={table: self.followed[table] for table in tables if table in self.followed})

    @classmethod
    def of(cls, state: SealedSplit) -> StreamState:
        """The state of the stream split, as manifests and messages have it."""
        return cls.from_json(state.to_json())

    def sealed(self) -> SealedSplit:
        """Inverse of `of`."""
        return SealedSplit.from_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """As a manifest has it."""
        as_of = any(isinstance(state, AsOf | Behind) for state in self.followed.values())
        return {
            **self.place_json(as_of=as_of),
            "parked": {str(table): state.to_json() for table, state in self.parked.items()},
            "tables": {str(table): followed_to_json(state) for table, state in self.followed.items()},
        }

    def place_json(self, *, as_of: bool) -> Mapping[str, Json]:
        """`to_json` without the tables, of which some are read `as_of` one place."""
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
        """The state after a change that `SealedStream` gave, with the tables alone that it tells of."""
        tables = {name: change.inside[name].put if name in change.inside else {} for name in (TABLES, PARKED)}
        return cls.from_json({**change.put, **tables})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StreamState:
        """Inverse of `to_json`. Raises `ProtocolError` for a version that is not known here."""
        if data["version"] not in (STATE_VERSION, AS_OF_VERSION):
            known = f"{STATE_VERSION} and {AS_OF_VERSION}"
            raise ProtocolError(f"Stream split state has version {data['version']}, this reader knows {known}")
        return cls(
            Position.from_json(data["position"]),
            data["ordinal"],
            {TableId.parse(name): followed_from_json(entry) for name, entry in data["tables"].items()},
            {TableId.parse(name): Parked.from_json(entry) for name, entry in data.get("parked", {}).items()},
            data.get("changes", 0),
            LogNotes.from_json(data.get("source", {})),
            MissingState.from_json(data.get("missing")),
        )


def stream_of(manifest: Manifest | None) -> StreamState | None:
    """The state of the log after the epoch of `manifest`; None where the source has none, or nothing was sealed."""
    state = None if manifest is None else manifest.to_splits.get(STREAM_SPLIT_ID)
    return None if state is None else StreamState.of(state)
