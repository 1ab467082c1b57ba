"""Captured tables that are not followed, as far as the log was decoded; `history` decides which.

| a parked table | when the log names it |
|---|---|
| waits for somebody to decide, or is paused | it is noted where: what was seen of the table before is out of date |
| has ended (renamed away, gone) | the name may be taken again: it is to be looked at |

Rows of a table whose table map does not fit, or that are not whole, are not believed from the start of that transaction
on; between two transactions the table is said to be parked (`take_misfits`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from raycdc.connectors.mysql.binlog.offset import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.ddl.truncation import emptied
from raycdc.connectors.mysql.values.documents import document_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, PartialRowsError, SchemaError
from raycdc.model import RowKind, TableId
from raycdc.schema import CreateTableEvent, SchemaChangeEvent, TruncateTableEvent
from raycdc.source.snapshot.hand_off import LogRows
from raycdc.source.snapshot.log_unit import TableBegun, TableParked
from raycdc.source.table_life import Parking, Phase, SnapshotState
from raycdc.transform.followed import TargetRules


class RefusedStatementError(SchemaError):
    """A statement that cannot be followed, for all captured tables it names; see `Parking` for `again` and `phase`."""

    def __init__(
        self, text: str, *, again: bool = False, phase: Phase = Phase.PARKED, tables: Sequence[TableId] = ()
    ) -> None:
        super().__init__(text)
        self.again = again
        self.phase = phase
        self.tables = tuple(tables)


class SchemaSetter(Protocol):
    """The decoder, as far as schemas go."""

    def set_table(self, table: MySqlTable) -> None: ...

    def remove_table(self, table: TableId) -> None: ...

    def take_seq(self) -> int: ...


class ParkedTables:
    """See the module's docstring. `phases` are the tables parked at the start; None: nothing may be parked.

    `tables` are those that are followed, as of now, and `rules` what targets can follow: a table that cannot begin
    again by itself waits for somebody to decide.
    """

    def __init__(
        self,
        phases: Mapping[TableId, Phase] | None,
        tables: Mapping[TableId, MySqlTable] | None = None,
        rules: TargetRules | None = None,
    ) -> None:
        self.allowed = phases is not None
        self._tables = {} if tables is None else tables
        self.rules = rules or TargetRules()
        self._phases = dict(phases or {})
        self._misfits: dict[TableId, tuple[BinlogOffset, str, bool]] = {}
        self._touched: dict[TableId, int] = {}

    def __contains__(self, table: object) -> bool:
        return table in self._phases

    def __iter__(self) -> Any:
        return iter(self._phases)

    def park(self, table: TableId, reason: str, place: BinlogOffset, ts_ms: int, **how: Any) -> TableParked:
        """`how` are `again` and `phase` of `Parking`."""
        if how.get("again") and (shared := self.rules.shared(table, [*self._tables, *self._phases])):
            reason, how = f"{reason}\nIt cannot begin again by itself: {shared}.", {}
        why = Parking(reason, _for_people(place), ts_ms, **how)
        self._phases[table] = why.phase
        return TableParked(table, why)

    def objection(
        self, before: MySqlTable | None, after: MySqlTable | None, events: Sequence[SchemaChangeEvent]
    ) -> str:
        """Why its targets cannot follow what `events` make of a table, or hold a new one; empty where they can."""
        made = None if after is None else after.schema()
        if before is None:
            return "" if after is None or made is None else self.rules.refusal(after.id, made)
        return self.rules.objection(before.id, before.schema(), made, events, [*self._tables, *self._phases])

    def follow(self, table: TableId) -> None:
        """The table begins again."""
        self._phases.pop(table, None)

    def touch(self, tables: Collection[TableId], databases: Collection[str], end: BinlogOffset) -> list[TableId]:
        """A statement that ends at `end` names these; returns the ended tables among them."""
        named = [table for table in self._phases if table in tables or table.db in databases]
        self._touched.update(dict.fromkeys(named, ordinal_of(end)))
        return [table for table in named if self._phases[table] is Phase.ENDED]

    def take_touched(self) -> dict[TableId, int]:
        """Where each parked table was named last since this was asked before."""
        touched, self._touched = self._touched, {}
        return touched

    def misfit(self, table: TableId, error: DataError, before: BinlogOffset, *, unknown: bool) -> None:
        """Rows cannot be decoded; `before` is the end of the transaction before. Raises it where nothing may park.

        Of an `unknown` table no schema is known: one look at it tells more than anybody.
        """
        if not self.allowed:
            raise error
        again = unknown or (isinstance(error, PartialRowsError) and self.rules.lost_rows_again)
        self._misfits.setdefault(table, (before, str(error), again))
        self._phases[table] = Phase.PARKED

    def believed_up_to(self, table: TableId) -> int | None:
        """The ordinal after which rows of `table` are not to be believed; None: all are."""
        found = self._misfits.get(table)
        return None if found is None else ordinal_of(found[0])

    def take_misfits(self, ts_ms: int) -> list[TableParked]:
        """Between two transactions: what is parked as its rows did not fit, once."""
        found, self._misfits = self._misfits, {}
        return [self.park(table, text, at, ts_ms, again=again) for table, (at, text, again) in found.items()]


def new_beginning(
    table: MySqlTable, snapshot: SnapshotState, position: BinlogOffset, *, ts_ms: int, seq: int
) -> tuple[TableBegun, LogRows]:
    """The schema change with which a table begins again at `position`, and the row that says that its rows are gone."""
    changes = (TruncateTableEvent(table.id), CreateTableEvent(table.id, table.schema()))
    update = TableBegun(table.id, changes, document_of(table), snapshot)
    # Without a place: nothing in the log emptied the table.
    return update, emptied(table, {"_op": int(RowKind.TRUNCATE), "_seq": seq, "_ts_ms": ts_ms}, position)


def _for_people(position: BinlogOffset) -> dict[str, Any]:
    return {"file": position.file, "pos": position.pos, "gtid_set": position.gtid_set}
