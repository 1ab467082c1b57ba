"""What statements of a simulated log do to its tables: the connector's part, with the classes that real ones share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raycdc.connectors.mysql.ddl.follow.followed_tables import SnapshotChunkKeys
from raycdc.model import Column, TableId, TableSchema
from raycdc.model.evolution.events import (
    EVENT_TYPES,
    CreateTableEvent,
    DropTableEvent,
    TruncateTableEvent,
    event_from_json,
)
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    BeginTableUpdate,
    DropTableUpdate,
    ParkTableUpdate,
    SchemaUpdate,
)
from raycdc.source.split import StreamSplit
from raycdc.source.tables.parked_tables import ParkedKind, ParkedTables, ParkingSetup
from raycdc.source.tables.resnapshots import FollowableTable, StatementPosition, without_chunks
from raycdc.source.tables.table_life import AsOf, InSnapshot, ParkedPhase
from raycdc.state.opaque import LogNotes, Position
from raycdc.transform.target_rules import TargetRules
from tests.support.simulation.chunk_source import unread
from tests.support.simulation.database import SimDatabase, SimRowChange, SimTable, TableKind, Transaction

#: The row that says that a table is empty: of a table, with its columns, by the statement that ends there, if any.
Truncation = Callable[[TableId, TableSchema, str | None], LogRows]
Effect = tuple[tuple[SchemaUpdate, ...], tuple[LogRows, ...]]
NOTHING: Effect = (), ()


@dataclass(frozen=True, slots=True)
class SimDescribed:
    """How a table looked."""

    table: SimTable
    schema: TableSchema


class SimHistory:
    """The tables of a reading of the log from `split` on. `over` counts snapshots that are over, live."""

    def __init__(
        self, database: SimDatabase, split: StreamSplit, over: Mapping[TableId, int], truncation: Truncation
    ) -> None:
        state = split.state
        self._database = database
        self._truncation = truncation
        self.is_beside = False
        #: The schemas in force, as far as the log says.
        self._in_force = {table: split.schemas[followed.schema].schema for table, followed in state.followed.items()}
        self.misfits: list[ParkTableUpdate] = []
        #: Tables that were dropped: the fingerprint of the schema, or nothing where chunks of it may be asked for.
        self._dropped: dict[str, str] = dict(state.notes.to_json().get("dropped", {}))
        self._noted = dict(self._dropped)
        reading = {t: s.snapshot.key for t, s in state.followed.items() if isinstance(s, InSnapshot | AsOf)}
        self._snapshots = SnapshotChunkKeys(reading, over)
        rules = TargetRules(left_out=frozenset({DropTableEvent.type} if database.keeps_dropped else ()))
        followed = [*self._in_force, *map(TableId.parse, self._dropped)]
        self.parked: ParkedTables[SimDescribed] = ParkedTables(
            ParkingSetup(state.parked, self._look, rules), followed=followed
        )

    def take_notes(self) -> LogNotes | None:
        """What a restart must know, once; None if it is as before."""
        if self._dropped == self._noted:
            return None
        self._noted = dict(self._dropped)
        return LogNotes({"dropped": dict(self._dropped)} if self._dropped else {})

    def take_mismatches(self) -> tuple[ParkTableUpdate, ...]:
        """The tables that are parked as their rows did not fit, once."""
        taken, self.misfits = tuple(self.misfits), []
        return taken

    def fits(self, change: SimRowChange, position: Position) -> bool:
        """Whether a row can be decoded; the first one that cannot parks its table."""
        if self.passes_over(change.table):
            return False
        if self.is_beside and change.table not in self._in_force:
            return False  # Of a table that the log itself knows to be no more, which takes no part in this reading.
        if change.schema == self._in_force[change.table]:
            return True
        self.misfits.append(self._park(change.table, "misfit", StatementPosition(position, 0, 0)))
        return False

    def passes_over(self, table: TableId) -> bool:
        """Whether the table is parked."""
        return table in self.parked

    def begin_again(self, place: StatementPosition) -> Effect:
        """Tables that were looked at, and begin or stay parked from here on."""
        updates: list[SchemaUpdate] = []
        rows: list[LogRows] = []
        for table, look in self.parked.take_probed(place):
            if isinstance(look, FollowableTable):
                begun, emptied = self._begin(table, look.described.schema, look.described.table)
                updates += begun
                rows += emptied
            else:
                updates.append(look)
        return tuple(updates), tuple(rows)

    def statement(self, transaction: Transaction, place: StatementPosition) -> Effect:
        """The effect of a statement, behind which the log stands at `place`."""
        assert transaction.ddl is not None
        table, schema, event = transaction.ddl
        statement = event["type"]
        is_made = statement == CreateTableEvent.type and not self._differs(table, schema) and self._is_new(table)
        if is_made:
            self.parked.made(table)
        if self.is_beside and table not in self._in_force and statement not in ("create_table", "rename_back"):
            return NOTHING
        if table in self.parked:
            return self._touch(table, statement, transaction.ordinal, place)
        match statement:
            case "create_table":
                return (self._made(table, schema, place),), ()
            case "drop_table":
                return self._drop(table, transaction.ordinal)
            case "replace_table":
                return self._replace(table, schema, transaction.ordinal, place)
            case "rename_away":
                return (self._park(table, "renamed away", place, phase=ParkedPhase.ENDED),), ()
            case "rename_back":
                return (self._park(table, "another table took the name", place, again=True),), ()
            case "renew":
                return self._renew(table, schema, transaction.ordinal, place)
            case "rewrite" | "puzzle":
                return (self._park(table, statement, place, again=statement == "rewrite"),), ()
            case _:
                return self._alter(table, event, transaction.ordinal)

    # -- statements -------------------------------------------------------------------------------------------------

    def _alter(self, table: TableId, event: dict[str, Any], ordinal: int) -> Effect:
        """What the log says, not what the server has."""
        known = self._in_force[table]
        columns = (Column.from_json(event["column"]),) if event["type"] == "add_column" else ()
        schema = self._in_force[table] = TableSchema((*known.columns, *columns), known.primary_key)
        events = (event_from_json(event),) if event["type"] in EVENT_TYPES else ()
        is_emptied = event["type"] == TruncateTableEvent.type
        rows = (self._truncation(table, schema, str(ordinal)),) if is_emptied else ()
        return (AlterTableUpdate(table, events, SchemaDocument.of(schema)),), rows

    def _drop(self, table: TableId, ordinal: int) -> Effect:
        schema = self._in_force.pop(table)
        under_way = self._snapshots.under_way(table)
        self._dropped[str(table)] = "" if under_way else SchemaDocument.of(schema).fingerprint
        rows = () if self._database.keeps_dropped else (self._truncation(table, schema, str(ordinal)),)
        return (DropTableUpdate(table, (DropTableEvent(table),)),), rows

    def _replace(self, table: TableId, schema: TableSchema, ordinal: int, place: StatementPosition) -> Effect:
        """The row that says it has the columns that follow."""
        (dropped,), rows = self._drop(table, ordinal)
        self._dropped.pop(str(table))
        made = self._made(table, schema, place)
        if isinstance(made, ParkTableUpdate):
            return (made,), ()
        return (dropped, made), tuple(self._truncation(table, schema, str(ordinal)) for _ in rows)

    def _made(self, table: TableId, schema: TableSchema, place: StatementPosition) -> SchemaUpdate:
        """Followed from its first row on, where nothing is in the way."""
        if self._database.shapes[table].kind is TableKind.AS_OF:
            return self._park(table, "it appeared, and is read from its beginning", place, again=True)
        if self._differs(table, schema):
            return self._park(table, "it was dropped, and is another table now", place, again=True)
        self._dropped.pop(str(table), None)
        self._in_force[table] = schema
        document = SchemaDocument.of(schema)
        if self.parked.follow(table):
            return BeginTableUpdate(table, (), document, without_chunks())
        return AlterTableUpdate(table, (CreateTableEvent(table, schema),), document)

    def _renew(self, table: TableId, schema: TableSchema, ordinal: int, place: StatementPosition) -> Effect:
        later = (t.ddl for t in self._database.log if t.ordinal > ordinal and t.ddl is not None)
        if self.is_beside and any(changed == table for changed, _, _ in later):
            # It begins where the log is, which has passed over those statements.
            return (self._park(table, "renewed", place, again=True),), ()
        return self._begin(table, schema, self._database.shapes[table])

    def _begin(self, table: TableId, schema: TableSchema, shape: SimTable) -> Effect:
        self.parked.follow(table)
        self._dropped.pop(str(table), None)
        self._in_force[table] = schema
        snapshot = unread(shape)
        self._snapshots.begin(table, snapshot.key)
        events = TruncateTableEvent(table), CreateTableEvent(table, schema)
        update = BeginTableUpdate(table, events, SchemaDocument.of(schema), snapshot)
        return (update,), (self._truncation(table, schema, None),)

    def _touch(self, table: TableId, statement: str, ordinal: int, place: StatementPosition) -> Effect:
        """A statement about a parked table."""
        self.parked.invalidate(table, ordinal, stays_absent=statement == DropTableEvent.type)
        if self.parked[table] is not ParkedKind.ENDED:
            return NOTHING
        return (self._park(table, "the name may be taken again", place, again=True),), ()

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _look(self, table: TableId) -> FollowableTable[SimDescribed] | None:
        known = self._database.tables.get(table)
        if known is None:
            return None
        return FollowableTable(SimDescribed(known, known.schema), self._database.end, unread(known))

    def _park(
        self,
        table: TableId,
        reason: str,
        place: StatementPosition,
        *,
        again: bool = False,
        phase: ParkedPhase = ParkedPhase.PARKED,
    ) -> ParkTableUpdate:
        if self._dropped.get(str(table)):
            self._dropped[str(table)] = ""
        return self.parked.park(table, reason, place, again=again, phase=phase)

    def _is_new(self, table: TableId) -> bool:
        """Whether a parked table was followed by nobody, so that the log has all of it from the statement on that makes
        it.
        """
        return self.parked.awaits(table, certain=True) and self._database.shapes[table].kind is not TableKind.AS_OF

    def _differs(self, table: TableId, schema: TableSchema) -> bool:
        """Whether a table that is made is another one than that which was dropped under its name."""
        dropped = self._dropped.get(str(table))
        return dropped is not None and dropped != SchemaDocument.of(schema).fingerprint
