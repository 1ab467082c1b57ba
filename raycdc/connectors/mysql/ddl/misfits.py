"""Captured tables whose rows stopped to fit in a transaction that is being decoded; `history` decides which.

Rows of a table whose table map does not fit, or that are not whole, are not believed from the start of that transaction
on. Between two transactions the table is said to be parked (`Misfits.take`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.source.snapshot.log_unit import TableParked


@dataclass(frozen=True, slots=True)
class Misfit:
    """`described` is the schema of the rows before, None of a table that was not known; they end at `ordinal`."""

    update: TableParked
    described: MySqlTable | None
    ordinal: int


class Misfits:
    """See the module's docstring. One thread: the decoder's."""

    def __init__(self) -> None:
        self._tables: dict[TableId, Misfit] = {}

    def __contains__(self, table: object) -> bool:
        return table in self._tables

    def add(self, misfit: Misfit) -> None:
        """Its table is parked from the end of the transaction before."""
        self._tables[misfit.update.table] = misfit

    def schema(self, table: TableId) -> MySqlTable | None:
        """The schema of the rows that are still believed."""
        misfit = self._tables.get(table)
        return None if misfit is None else misfit.described

    def believed_up_to(self, table: TableId) -> int | None:
        """The ordinal after which rows of `table` are not to be believed; None: all are."""
        misfit = self._tables.get(table)
        return None if misfit is None else misfit.ordinal

    def take(self, ts_ms: int) -> tuple[TableParked, ...]:
        """Between two transactions, the last of which was committed at `ts_ms`: the tables that are parked, once."""
        misfits, self._tables = self._tables, {}
        updates = [misfit.update for misfit in misfits.values()]
        return tuple(replace(update, parking=replace(update.parking, ts_ms=ts_ms)) for update in updates)
