"""A statement that cannot be followed, and what becomes of the captured tables that it names."""

from __future__ import annotations

from collections.abc import Sequence

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.ddl.statement_text import shown
from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.source.table_life import Phase


class RefusedStatementError(SchemaError):
    """A statement cannot be followed for the captured tables that it names, nor for `tables`.

    See `Parking` for `again` and `phase`.
    """

    cure = "Take a new snapshot of the tables that the text names: `raycdc tables resnapshot`."

    def __init__(
        self, text: str, *, again: bool = False, phase: Phase = Phase.PARKED, tables: Sequence[TableId] = ()
    ) -> None:
        super().__init__(text)
        self.again = again
        self.phase = phase
        self.tables = tuple(tables)


def refusal(
    item: DdlItem, reason: str, *, again: bool = False, phase: Phase = Phase.PARKED, tables: Sequence[TableId] = ()
) -> RefusedStatementError:
    """Why the statement cannot be followed."""
    text = f"{item.position}: this statement cannot be followed: {reason}.\n  {shown(item.statement)}"
    return RefusedStatementError(text, again=again, phase=phase, tables=tables)
