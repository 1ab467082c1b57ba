"""Names under which recovery and commit records count known rows (`raycdc.epochs.known_rows`) as one more target.

The known rows of ``shop.orders`` have the slot ``known rows of shop.orders``, a name that no target can have.
"""

from __future__ import annotations

from raycdc.model import TableId
from raycdc.model.names import KNOWN_ROWS

#: The folder of known rows below the state.
KNOWN = "known"


def slot_of(table: TableId) -> TableId:
    """The slot of the known rows of `table`."""
    return TableId(f"{KNOWN_ROWS}{table.db}", table.table)


def table_of(slot: TableId) -> TableId | None:
    """Inverse of `slot_of`; None where `slot` is the name of a target."""
    return TableId(slot.db.removeprefix(KNOWN_ROWS), slot.table) if slot.db.startswith(KNOWN_ROWS) else None
