"""Statements about tables of schema change tools, as changes of the captured tables that these stand beside.

A statement about a tool's table changes its shadow (`shadows`). The rename that puts one of them in a captured table's
place is the change of that table, at that place (`name_rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from raycdc.connectors.mysql.ddl.follow.database_defaults import CharsetDefault
from raycdc.connectors.mysql.ddl.parse.statements import (
    AlterTable,
    CreateTable,
    DdlDialect,
    DropTable,
    RenameTable,
    TruncateTable,
    happened,
    previous_names_of,
)
from raycdc.connectors.mysql.ddl.shadows import Role, Shadow, ShadowTables, role_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId


@dataclass(frozen=True, slots=True)
class NewNames:
    """The effect of all renames of a statement: for each name the one that its table had before; None: no table has it.

    `shapes` are the captured tables, and `shadows` the tools', that had any of these names.
    """

    previous_names: Mapping[TableId, TableId | None]
    shapes: Mapping[TableId, MySqlTable]
    shadows: Mapping[TableId, Shadow]

    def new_name_of(self, table: TableId) -> TableId | None:
        """The name that the table has now which had this one; None: another database's, or none that is known."""
        return next((new for new, before in self.previous_names.items() if before == table), None)


class ToolTables:
    """See the module's docstring. `tables` are the captured ones, as of now; one thread, the decoder's."""

    def __init__(
        self,
        tables: Mapping[TableId, MySqlTable],
        *,
        shadows: Mapping[TableId, Shadow],
        absent: Collection[TableId],
    ) -> None:
        self._tables = tables
        self.shadows = ShadowTables(shadows)
        #: Captured tables whose name nobody has, between the two renames of a tool that does them one by one.
        self._absent = set(absent)

    def __contains__(self, table: object) -> bool:
        """Whether a tool made the table for a captured one."""
        assert isinstance(table, TableId)
        return self.shadows.get(table) is not None or role_of(table, self._tables) is not None

    @property
    def absent(self) -> frozenset[TableId]:
        """Captured tables whose name nobody has, as of now."""
        return frozenset(self._absent)

    def shape(self, table: TableId) -> MySqlTable | None:
        """A table's columns, whether it is captured or a tool's."""
        return self._tables.get(table) or self.shadows.shape(table)

    def forget(self, owner: TableId) -> None:
        """The captured table is not followed any more, so that no table that is to take its place is of interest."""
        self._absent.discard(owner)

    def role(self, table: TableId) -> tuple[TableId, Role] | None:
        """The captured table that a tool made `table` for, and what for, going by its name; None if for none."""
        return role_of(table, self._tables)

    def doubt(self, tables: Iterable[TableId], why: str) -> None:
        """A statement about these is not understood: nobody knows the columns of those that are shadows."""
        for table in tables:
            self.shadows.forget(table, why)

    def apply(
        self,
        ddl: CreateTable | AlterTable | TruncateTable | DropTable,
        dialect: DdlDialect,
        default_charset: CharsetDefault,
    ) -> TableId | None:
        """A statement about a table that is not captured: of interest when it is a tool's.

        Returns the captured table that nobody will take the place of any more, if it was renamed away for that.
        """
        role = self.role(ddl.table)
        match ddl:
            case CreateTable() if role is not None and role[1] != "notes":
                self.shadows.create(
                    role[0], ddl, find_table=self.shape, dialect=dialect, default_charset=default_charset
                )
            case AlterTable():
                self.shadows.alter(ddl, dialect=dialect)
            case DropTable():
                dropped = self.shadows.pop(ddl.table)
                if dropped is not None and dropped.owner in self._absent and dropped.table is not None:
                    return dropped.owner
            case _:
                pass
        return None

    def take_names(self, pairs: Sequence[RenameTable]) -> NewNames:
        """All renames of a statement at once: who had which name before decides, not the names in between.

        Shadows have no names until `keep_shadows`.
        """
        previous_names = previous_names_of(
            happened(pairs, lambda t: t in self._tables or self.shadows.get(t) is not None)
        )
        shapes = {name: self._tables[name] for name in previous_names if name in self._tables}
        shadows = {name: shadow for name in previous_names if (shadow := self.shadows.pop(name)) is not None}
        return NewNames(previous_names, shapes, shadows)

    def leaves(self, table: TableId, to: TableId | None) -> bool:
        """Whether a tool renames the table away `to` give its name to another one with its next statement, as those do
        that do not rename both at once; nobody has the name until then.
        """
        role = None if to is None else self.role(to)
        if role is None or role[0] != table or not self.shadows.shadow_of(table):
            return False
        self._absent.add(table)
        return True

    def keep_shadows(self, names: NewNames, captures: Callable[[TableId], bool]) -> None:
        """Tools' tables have these names from here on; those that `captures` says are captured are none."""
        for name, before in names.previous_names.items():
            role = self.role(name)
            if before is None or role is None or captures(name):
                continue
            if before in names.shapes and before == role[0]:
                self.shadows.put(name, Shadow(role[0], names.shapes[before]))
            elif before in names.shadows:
                self.shadows.put(name, names.shadows[before])
