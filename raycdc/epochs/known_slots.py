"""The names of known rows (`raycdc.epochs.known_rows`) among targets, in recovery and in commit records."""

from __future__ import annotations

from raycdc.model import TableId
from raycdc.model.names import KNOWN_ROWS

#: Where they are, below the state.
KNOWN = "known"


def slot_of(table: TableId) -> TableId:
    """The name of the known rows of `table`."""
    return TableId(f"{KNOWN_ROWS}{table.db}", table.table)


def table_of(slot: TableId) -> TableId | None:
    """Inverse of `slot_of`; None for a target."""
    return TableId(slot.db.removeprefix(KNOWN_ROWS), slot.table) if slot.db.startswith(KNOWN_ROWS) else None
