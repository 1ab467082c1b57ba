"""A statement's parts as what they come to: renames as names afterwards, defaults as what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from raycdc.connectors.mysql.ddl.statements import AlterTable, RenameTable, RenameTo, SetCharset, TableDdl
from raycdc.connectors.mysql.values.types import MySqlTable
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


def with_defaults(ddl: TableDdl, charset_of: Callable[[str], tuple[str, str]]) -> TableDdl:
    """`ddl` with the character set and collation of the database where it says DEFAULT."""
    if not isinstance(ddl, AlterTable):
        return ddl
    actions = [
        SetCharset(*charset_of(action.default_of), action.convert)
        if isinstance(action, SetCharset) and action.default_of
        else action
        for action in ddl.actions
    ]
    return replace(ddl, actions=tuple(actions))


def places_after(pairs: Sequence[RenameTable]) -> dict[TableId, TableId | None]:
    """For each name in `pairs` the name that its table had before all of them; None where no table has it any more."""
    places: dict[TableId, TableId | None] = {}
    for pair in pairs:
        before = places.get(pair.table, pair.table)
        places[pair.table] = None
        places[pair.new_table] = before
    return places


def with_collations(table: MySqlTable, before: MySqlTable) -> MySqlTable:
    """`table` with the collations that its statement left to the server, where `before` shows which these are."""
    known = {(c.name.casefold(), c.charset): c.collation for c in before.columns}
    columns = (
        replace(c, collation=c.collation or known.get((c.name.casefold(), c.charset), "")) for c in table.columns
    )
    return replace(table, columns=tuple(columns))
