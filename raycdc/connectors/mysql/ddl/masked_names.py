"""Under which names a table's rows were, as far as ``[[mask]]`` hides something of them there.

A mask is for names. Rows that get another one, by a RENAME, by EXCHANGE PARTITION, or that are to be copied into a
table made LIKE theirs, would be shown where no mask is for that name: such a table is parked, unless what was hidden is
hidden there in the same way. It stays so until it is made anew: what began as a rename over an uncaptured name, and
ends days later, is the same. Rows that a statement copies into a table that is followed (INSERT … SELECT) are that
table's own. Called by `history` at each statement, `state` goes into the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raycdc.connectors.mysql.ddl.apply import DdlDialect, Refused, Touched, parse_ddl
from raycdc.connectors.mysql.ddl.renames import places_after, separated
from raycdc.connectors.mysql.ddl.statements import CreateTable, DropDatabase, DropTable, RenameTable
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.model.mask import Mask, Masks

#: Names kept. Each is of a table that exists, or of one that a statement was not understood about.
NAMES_MAX = 4096
#: Statements of other words leave rows under the names that they had.
_MOVES = re.compile(r"\b(RENAME|LIKE|EXCHANGE|DROP|CREATE)\b", re.IGNORECASE)


class MaskedNames:
    """See the module's docstring. One thread: the decoder's."""

    def __init__(self, masks: Masks, state: Mapping[str, Sequence[str]] | None = None) -> None:
        self._masks = masks
        #: By a table's name those that its rows had, its own left out.
        self._earlier = {TableId.parse(name): _parsed(names) for name, names in (state or {}).items()}
        self.changed = False

    def __repr__(self) -> str:
        return f"MaskedNames({self._earlier})"

    def state(self) -> dict[str, Any]:
        """What a restart must know."""
        found = {str(name): sorted(map(str, names)) for name, names in sorted(self._earlier.items())}
        return {"masked": found} if found else {}

    def follow(self, statement: str, db: str, touched: Touched, dialect: DdlDialect) -> None:
        """What a statement of the log, which names `touched`, does to the names of rows."""
        if not self._masks or not touched or not _MOVES.search(statement):
            return
        before = dict(self._earlier)
        for name in touched.databases:
            self._earlier = {table: names for table, names in self._earlier.items() if table.db != name}
        parsed = parse_ddl(statement, db, dialect=dialect)
        if isinstance(parsed, Refused):
            self._mix(touched.tables)
        else:
            moved = list(separated(parsed))
            renames = [ddl for ddl in moved if isinstance(ddl, RenameTable)]
            for ddl in moved:
                match ddl:
                    case CreateTable(like=None, if_not_exists=False) | DropTable():
                        self._earlier.pop(ddl.table, None)
                    case CreateTable(like=other) if other is not None:
                        self._set(ddl.table, self._names_of(other))
                    case DropDatabase() | RenameTable():
                        pass
                    case _ if len(touched.tables) > 1 and not renames:
                        self._mix(touched.tables)
            self._rename(renames)
        while len(self._earlier) > NAMES_MAX:
            del self._earlier[next(iter(self._earlier))]
        self.changed = self.changed or self._earlier != before

    def shown_by(self, table: MySqlTable) -> str:
        """Why the table's rows would show what is hidden under an earlier name of theirs; empty where they do not."""
        for earlier in sorted(self._earlier.get(table.id, ())):
            for column in table.columns:
                hidden = self._masks.of(earlier, column.name)
                if hidden is not None and not _same(hidden, self._masks.of(table.id, column.name)):
                    return (
                        f"Rows of {table.id} were, or may be, those of {earlier}, of which [[mask]] hides "
                        f"{column.name!r}: here it would be shown. Hide it in the same way (mask.columns that match "
                        f"{table.id}.{column.name}), then run: raycdc tables resnapshot CONFIG {table.id}; or leave "
                        "the table out (source.exclude)."
                    )
        return ""

    def _names_of(self, table: TableId) -> frozenset[TableId]:
        own = {table} if self._masks.identity(table) else set()
        return self._earlier.get(table, frozenset()) | own

    def _set(self, table: TableId, names: frozenset[TableId]) -> None:
        self._earlier.pop(table, None)
        if names := names - {table}:
            self._earlier[table] = names

    def _mix(self, tables: Sequence[TableId]) -> None:
        """Any of the tables may have rows of any other one."""
        all_names = frozenset().union(*(self._names_of(table) for table in tables))
        for table in tables:
            self._set(table, all_names)

    def _rename(self, renames: Sequence[RenameTable]) -> None:
        places = places_after(renames)
        names = {new: frozenset() if old is None else self._names_of(old) for new, old in places.items()}
        for new, known in names.items():
            self._set(new, known)


def _parsed(names: Sequence[str]) -> frozenset[TableId]:
    return frozenset(map(TableId.parse, names))


def _same(one: Mask, other: Mask | None) -> bool:
    return other is not None and replace(one, columns="") == replace(other, columns="")
