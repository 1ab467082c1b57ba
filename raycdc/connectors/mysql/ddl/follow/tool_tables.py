"""Interprets statements about tables of schema change tools as changes of captured tables.

A statement about a tool's table changes its shadow (`shadows`). The rename that puts the shadow in the place of the
captured table changes that table, at that position (`part_rules`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from raycdc.connectors.mysql.ddl.follow.history_state import CharsetDefault
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
    """The effect of all renames of a statement: the earlier name of each name's table; None: the name is unused.

    `shapes` are the captured tables with one of these names, and `shadows` the tools' tables.
    """

    previous_names: Mapping[TableId, TableId | None]
    shapes: Mapping[TableId, MySqlTable]
    shadows: Mapping[TableId, Shadow]

    def new_name_of(self, table: TableId) -> TableId | None:
        """Return the present name of the table that had this name; None: in another database, or unknown."""
        return next((new for new, before in self.previous_names.items() if before == table), None)


class ToolTables:
    """The tables of schema change tools, for the captured `tables` at the log's position.

    Used by the decoder's thread only.
    """

    def __init__(
        self,
        tables: Mapping[TableId, MySqlTable],
        *,
        shadows: Mapping[TableId, Shadow],
        absent: Collection[TableId],
    ) -> None:
        self._tables = tables
        self.shadows = ShadowTables(shadows)
        #: The captured tables whose name is unused, between the two renames of a tool that makes them separately.
        self._absent = set(absent)

    def __contains__(self, table: object) -> bool:
        """Return True if a tool created the table for a captured one."""
        assert isinstance(table, TableId)
        return self.shadows.get(table) is not None or role_of(table, self._tables) is not None

    @property
    def absent(self) -> frozenset[TableId]:
        """Return the captured tables whose name is unused now."""
        return frozenset(self._absent)

    def shape(self, table: TableId) -> MySqlTable | None:
        """Return the columns of a table, whether it is captured or a tool's."""
        return self._tables.get(table) or self.shadows.shape(table)

    def forget(self, owner: TableId) -> None:
        """Forget a captured table that is no longer followed, and so its possible replacement."""
        self._absent.discard(owner)

    def role(self, table: TableId) -> tuple[TableId, Role] | None:
        """Return the captured table for which a tool created `table`, and its role, judged by its name; None if there
        is none.
        """
        return role_of(table, self._tables)

    def doubt(self, tables: Iterable[TableId], why: str) -> None:
        """Note that a statement about these tables is not understood.

        The columns of shadows among them are then unknown.
        """
        for table in tables:
            self.shadows.forget(table, why)

    def apply(
        self,
        ddl: CreateTable | AlterTable | TruncateTable | DropTable,
        dialect: DdlDialect,
        default_charset: CharsetDefault,
    ) -> TableId | None:
        """Apply a statement about a table that is not captured, if the table is a tool's.

        Returns the captured table that will not be replaced any more, if it has lost its name for the exchange.
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
        """Take the tables of all names in a statement's renames, by the names before the statement.

        Shadows among them have no names until `keep_shadows`.
        """
        previous_names = previous_names_of(
            happened(pairs, lambda t: t in self._tables or self.shadows.get(t) is not None)
        )
        shapes = {name: self._tables[name] for name in previous_names if name in self._tables}
        shadows = {name: shadow for name in previous_names if (shadow := self.shadows.pop(name)) is not None}
        return NewNames(previous_names, shapes, shadows)

    def leaves(self, table: TableId, to: TableId | None) -> bool:
        """Return True if a tool renames the table to `to`, and will give its name to another table by the next
        statement.

        Some tools rename the two tables in separate statements; the name is unused in between.
        """
        role = None if to is None else self.role(to)
        if role is None or role[0] != table or not self.shadows.shadow_of(table):
            return False
        self._absent.add(table)
        return True

    def keep_shadows(self, names: NewNames, captures: Callable[[TableId], bool]) -> None:
        """Rename tools' tables according to `names`. Names for which `captures` is True are left out."""
        for name, before in names.previous_names.items():
            role = self.role(name)
            if before is None or role is None or captures(name):
                continue
            if before in names.shapes and before == role[0]:
                self.shadows.put(name, Shadow(role[0], names.shapes[before]))
            elif before in names.shadows:
                self.shadows.put(name, names.shadows[before])
