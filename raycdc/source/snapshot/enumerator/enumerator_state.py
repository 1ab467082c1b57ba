"""The state of the enumerator of incremental snapshots, as manifests have it, and its form in JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from raycdc.core.typed_codec import Json, JsonObject, stored
from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.protocol.api import NO_AMOUNT, SnapshotAmount
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.rereading.backfill import Backfill
from raycdc.source.split import SnapshotSplit
from raycdc.state.opaque import EnumeratorState, PlannerState

#: The version of a state without backfills, and that of a state with backfills.
STATE_VERSION = 1
BACKFILL_VERSION = 2


@dataclass(frozen=True, slots=True)
class SealedPlanning(JsonObject):
    """The progress of planning and reading a table.

    `document` is its schema document while planning needs it.

    `planner` is None once all chunks of the table are planned. `amount` is for people.
    """

    fingerprint: str = field(metadata=stored("schema"))
    document: SchemaDocument | None
    planner: PlannerState | None
    planned: int
    finished: int
    estimate: int
    incarnation: int = field(metadata=stored(older=0))
    amount: SnapshotAmount = field(default=NO_AMOUNT, metadata=stored(left_out=True, before="fingerprint"))


@dataclass(frozen=True, slots=True)
class SealedEnumerator:
    """The state of an enumerator after an epoch. `started` is True once the start point is known. `high` is the
    greatest H of all chunks. `unfinished` are the planned chunks that are in no manifest; chunks of `backfills` are not
    among them.
    """

    started: bool = False
    high: int = 0
    tables: Mapping[TableId, SealedPlanning] = field(default_factory=dict)
    unfinished: tuple[SnapshotSplit, ...] = ()
    backfills: tuple[Backfill, ...] = ()

    def only(self, captures: Callable[[TableId], bool]) -> SealedEnumerator:
        """Return the state reduced to the captured tables."""
        tables = {table: planning for table, planning in self.tables.items() if captures(table)}
        unfinished = tuple(split for split in self.unfinished if captures(split.table))
        return replace(self, tables=tables, unfinished=unfinished)

    def sealed(self) -> EnumeratorState:
        """Return the state for manifests."""
        return self.sealed_with({str(table): planning.to_json() for table, planning in self.tables.items()})

    def sealed_with(self, tables: Mapping[str, Json]) -> EnumeratorState:
        """Return `sealed`, with the table entries replaced by `tables`, which are already in written form."""
        backfills = [backfill.to_json() for backfill in self.backfills]
        return EnumeratorState.from_json(
            {
                **({"backfills": backfills} if backfills else {}),
                "version": BACKFILL_VERSION if backfills else STATE_VERSION,
                "started": self.started,
                "high": self.high,
                "tables": tables,
                "unfinished": [split.to_json() for split in self.unfinished],
            }
        )

    @classmethod
    def of(cls, state: EnumeratorState) -> SealedEnumerator:
        """Return the inverse of `sealed`. Raises `ProtocolError` for a version that is not known here."""
        data = state.to_json()
        if data["version"] not in (STATE_VERSION, BACKFILL_VERSION):
            raise ProtocolError(f"Enumerator state has version {data['version']}, this one knows {BACKFILL_VERSION}")
        return cls(
            bool(data["started"]),
            data["high"],
            {TableId.parse(name): SealedPlanning.from_json(table) for name, table in data["tables"].items()},
            tuple(map(SnapshotSplit.from_json, data["unfinished"])),
            tuple(map(Backfill.from_json, data.get("backfills", ()))),
        )


class WrittenTables:
    """A cache of the tables of an enumerator's state in JSON form. Tables that did not change are the same objects as
    in the previous state.
    """

    def __init__(self) -> None:
        self._written: Mapping[str, Json] = {}
        self._others: dict[TableId, None] = {}

    def note(self, table: TableId) -> None:
        """Note that something of the table has changed, or may have."""
        self._others[table] = None

    def written(self, planning_of: Callable[[TableId], SealedPlanning | None]) -> Mapping[str, Json]:
        """Return all tables in written form, by name. Tables without any planning are left out."""
        written = dict(self._written)
        for table in self._others:
            planning = planning_of(table)
            if planning is None:
                written.pop(str(table), None)
            else:
                written[str(table)] = planning.to_json()
        self._others.clear()
        self._written = written
        return written
