"""The names of known rows (`raycdc.epochs.known_rows`) among targets, in recovery and in commit records."""

from __future__ import annotations

from raycdc.model import TableId

_SLOT = "known rows of "


def slot_of(table: TableId) -> TableId:
    """The name of the known rows of `table`."""
    return TableId(f"{_SLOT}{table.db}", table.table)


def table_of(slot: TableId) -> TableId | None:
    """Inverse of `slot_of`; None for a target."""
    return TableId(slot.db.removeprefix(_SLOT), slot.table) if slot.db.startswith(_SLOT) else None
