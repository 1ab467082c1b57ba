"""Statements about tables of schema change tools, as changes of the captured tables that these stand beside.

A statement about a tool's table changes its shadow (`shadows`). The rename that puts one of them in a captured table's
place is the change of that table, at that place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.ddl.apply import AppliedDdl
from raycdc.connectors.mysql.ddl.database_defaults import CharsetDefault
from raycdc.connectors.mysql.ddl.log_server import LogServer
from raycdc.connectors.mysql.ddl.refusal import refusal
from raycdc.connectors.mysql.ddl.renames import places_after, with_collations
from raycdc.connectors.mysql.ddl.shadows import Shadow, ShadowTables, role_of
from raycdc.connectors.mysql.ddl.shape import reshape
from raycdc.connectors.mysql.ddl.statements import (
    AlterTable,
    CreateTable,
    DdlDialect,
    DropTable,
    RenameTable,
    TruncateTable,
)
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.schema import AlterTableCommentEvent
from raycdc.source.table_life import Phase


class ToolTables:
    """See the module's docstring. `tables` are the captured ones, as of now; one thread, the decoder's.

    `captures` says whether rows of a table are captured.
    """

    def __init__(
        self,
        tables: Mapping[TableId, MySqlTable],
        captures: Callable[[TableId], bool],
        server: LogServer,
        *,
        shadows: Mapping[TableId, Shadow],
        away: Collection[TableId],
    ) -> None:
        self._tables = tables
        self._captures = captures
        self._server = server
        self.shadows = ShadowTables(shadows)
        #: Captured tables whose name nobody has, between the two renames of a tool that does them one by one.
        self._away = set(away)

    def __contains__(self, table: object) -> bool:
        """Whether a tool made the table for a captured one."""
        assert isinstance(table, TableId)
        return self.shadows.get(table) is not None or role_of(table, self._tables) is not None

    @property
    def away(self) -> frozenset[TableId]:
        """Captured tables whose name nobody has, as of now."""
        return frozenset(self._away)

    def shape(self, table: TableId) -> MySqlTable | None:
        """A table's columns, whether it is captured or a tool's."""
        return self._tables.get(table) or self.shadows.shape(table)

    def forget(self, owner: TableId) -> None:
        """The captured table is not followed any more, so that no table that is to take its place is of interest."""
        self._away.discard(owner)

    def apply(
        self,
        item: DdlItem,
        ddl: CreateTable | AlterTable | RenameTable | TruncateTable | DropTable,
        dialect: DdlDialect,
        default_charset: CharsetDefault,
    ) -> None:
        """A statement about a table that is not captured: of interest when it is a tool's."""
        role = role_of(ddl.table, self._tables)
        match ddl:
            case CreateTable() if role is not None and role[1] != "notes":
                self.shadows.create(
                    role[0], ddl, find_table=self.shape, dialect=dialect, default_charset=default_charset
                )
            case AlterTable():
                self.shadows.alter(ddl, dialect=dialect)
            case DropTable():
                gone = self.shadows.pop(ddl.table)
                if gone is not None and gone.owner in self._away and gone.table is not None:
                    why = f"{gone.owner} was renamed away, and what was to take its place is gone"
                    raise refusal(item, why, phase=Phase.ENDED, tables=[gone.owner])
            case _:
                pass

    def rename(self, item: DdlItem, pairs: Sequence[RenameTable]) -> Iterator[tuple[TableId, AppliedDdl]]:
        """All renames of a statement at once: who had which name before decides, not the names in between.

        Gives the captured tables whose place another one took, and what became of each by that. Consume it to its end.
        """
        places = places_after(pairs)
        shapes = {name: self._tables[name] for name in places if name in self._tables}
        shadows = {name: shadow for name in places if (shadow := self.shadows.pop(name)) is not None}
        for name, before in places.items():
            if before == name or not self._captures(name):
                continue
            if before is None:
                to = next((new for new, old in places.items() if old == name), None)
                self._renamed_away(item, name, to)
            elif before in shapes:
                raise refusal(item, f"rename_table is not followed ({before} is captured as {name}, too)")
            else:
                yield name, self._replaced(item, name, before, shadows.get(before))
        for name, before in places.items():
            role = role_of(name, self._tables)
            if before is None or role is None or self._captures(name):
                continue
            if before in shapes and before == role[0]:
                self.shadows.put(name, Shadow(role[0], shapes[before]))
            elif before in shadows:
                self.shadows.put(name, shadows[before])

    def _renamed_away(self, item: DdlItem, table: TableId, to: TableId | None) -> None:
        """A tool that does not rename both at once leaves nobody with the name for a moment."""
        if table not in self._tables:
            return
        role = None if to is None else role_of(to, self._tables)
        if role is None or role[0] != table or not self.shadows.shadow_of(table):
            raise refusal(item, f"rename_table is not followed (to {to})", phase=Phase.ENDED)
        self._away.add(table)

    def _replaced(self, item: DdlItem, table: TableId, before: TableId, shadow: Shadow | None) -> AppliedDdl:
        """`before`, which is not captured, takes the name of `table`."""
        captured = self._tables.get(table)
        role = role_of(before, self._tables)
        if captured is None or (shadow is None and role != (table, "shadow")):
            why = f"the rows that {before} has were written under a name that is not captured"
            raise refusal(item, why, again=True)
        old = role is not None and role[1] == "old"
        if (shadow is not None and shadow.owner != table) or (old and "/* gh-ost */" not in item.statement):
            raise refusal(item, f"nothing says that the rows of {before} are those of {table}", again=True)
        if shadow is None or shadow.table is None:
            why = "the statement that made it came before this pipeline" if shadow is None else shadow.doubt
            shadow = self._server.successor(item, captured, f"the columns of {before} are not known: {why}")
        elif doubted := shadow.doubt_under(before):
            raise refusal(item, doubted, again=True)
        assert shadow.table is not None
        after = with_collations(replace(shadow.table, id=table), captured)
        events, doubt = reshape(captured, after, shadow.origins)
        if doubt is not None:
            raise refusal(item, doubt, again=True)
        if shadow.comment is not None:
            events = (*events, AlterTableCommentEvent(table, shadow.comment))
        self._away.discard(table)
        return AppliedDdl(after, events)
