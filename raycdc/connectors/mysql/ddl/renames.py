"""Renames of a statement as what they come to: which table has which name afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from raycdc.connectors.mysql.ddl.statements import AlterTable, RenameTable, RenameTo, TableDdl
from raycdc.model import TableId


def separated(statement: Iterable[TableDdl]) -> Iterator[TableDdl]:
    """The parts of a statement, with a RENAME TO inside an ALTER TABLE as a rename of its own behind it."""
    for ddl in statement:
        actions = ddl.actions if isinstance(ddl, AlterTable) else ()
        names = [action.table for action in actions if isinstance(action, RenameTo)]
        if isinstance(ddl, AlterTable) and names:
            yield replace(ddl, actions=tuple(a for a in actions if not isinstance(a, RenameTo)))
            yield RenameTable(ddl.table, names[-1])
        else:
            yield ddl


def places_after(pairs: Sequence[RenameTable]) -> dict[TableId, TableId | None]:
    """For each name in `pairs` the name that its table had before all of them; None where no table has it any more."""
    places: dict[TableId, TableId | None] = {}
    for pair in pairs:
        before = places.get(pair.table, pair.table)
        places[pair.table] = None
        places[pair.new_table] = before
    return places
