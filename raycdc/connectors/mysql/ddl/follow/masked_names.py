"""Tracks earlier names of tables and columns under which ``[[mask]]`` masked values.

A mask applies to a name. If rows get another name by a RENAME or EXCHANGE PARTITION, or may be copied into a table made
LIKE theirs, masked values would be shown if no mask is for that name. Such a table is parked, unless the same values
are masked under the new name in the same way. It stays parked until it is created again, because renames by way of a
name that is not captured may take days to finish. A table whose masked column was renamed is also parked, until the
column is renamed back or dropped, because a new snapshot would show its values. Rows that a statement copies into a
followed table (INSERT … SELECT) count as rows of that table only. Called by `history` at each statement; `former` goes
into the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from raycdc.connectors.mysql.ddl.apply import AffectedTables, DdlDialect, RefusedStatement, parse_ddl
from raycdc.connectors.mysql.ddl.parse.statements import (
    AddColumn,
    AlterTable,
    ChangeColumn,
    CreateTable,
    DropColumn,
    DropDatabase,
    DropTable,
    RenameColumn,
    RenameTable,
    previous_names_of,
    separated,
)
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold
from raycdc.model.rules.mask import Mask, Masks

#: The number of tables whose earlier names are kept: existing tables, and those in statements that were not understood.
NAMES_MAX = 4096
#: Statements with one of these words may give rows and columns other names.
_MOVES = re.compile(r"\b(RENAME|CHANGE|LIKE|EXCHANGE|DROP|CREATE)\b", re.IGNORECASE)

#: The earlier names of each column, by the column's case-folded name.
Columns = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class FormerNames:
    """The earlier names of each table's rows (without its own name) and of its columns."""

    tables: Mapping[TableId, frozenset[TableId]] = field(default_factory=dict)
    columns: Mapping[TableId, Columns] = field(default_factory=dict)


class MaskedNames:
    """The masked names of one log; see the module's docstring. Used by the decoder's thread only."""

    def __init__(self, masks: Masks, former: FormerNames) -> None:
        self._masks = masks
        self._earlier = dict(former.tables)
        self._columns = dict(former.columns)
        self.changed = False

    def __repr__(self) -> str:
        return f"MaskedNames({self._earlier}, columns={self._columns})"

    def former(self) -> FormerNames:
        """Return the present names."""
        return FormerNames(dict(self._earlier), dict(self._columns))

    def follow(self, statement: str, db: str, affected: AffectedTables, dialect: DdlDialect) -> None:
        """Record the effect of a statement of the log, which names `affected`, on the names of rows."""
        if not self._masks or not affected or not _MOVES.search(statement):
            return
        before = dict(self._earlier), dict(self._columns)
        for name in affected.databases:
            self._earlier = {table: names for table, names in self._earlier.items() if table.db != name}
            self._columns = {table: columns for table, columns in self._columns.items() if table.db != name}
        parsed = parse_ddl(statement, db, dialect=dialect)
        if isinstance(parsed, RefusedStatement):
            self._mix(affected.tables)
        else:
            moved = list(separated(parsed))
            renames = [ddl for ddl in moved if isinstance(ddl, RenameTable)]
            for ddl in moved:
                if isinstance(ddl, AlterTable):
                    self._rename_columns(ddl)
                match ddl:
                    case CreateTable(like=None, if_not_exists=False) | DropTable():
                        self._set(ddl.table, frozenset(), {})
                    case CreateTable(like=other) if other is not None:
                        self._set(ddl.table, self._names_of(other), self._columns.get(other, {}))
                    case DropDatabase() | RenameTable():
                        pass
                    case _ if len(affected.tables) > 1 and not renames:
                        self._mix(affected.tables)
            self._rename(renames)
        for notes in (self._earlier, self._columns):
            while len(notes) > NAMES_MAX:
                del notes[next(iter(notes))]
        self.changed = self.changed or (self._earlier, self._columns) != before

    def shown_by(self, table: MySqlTable) -> str:
        """Return why the table's rows would show values masked under an earlier name; empty if they would not."""
        columns = self._columns.get(table.id, {})
        for earlier in sorted({table.id, *self._earlier.get(table.id, ())}):
            for column in table.columns:
                mask = self._masks.of(table.id, column.name)
                for name in sorted({column.name, *columns.get(mysql_fold(column.name), ())}):
                    hidden = self._masks.of(earlier, name)
                    if hidden is not None and not _same(hidden, mask):
                        return _shown(table.id, earlier, column.name, name)
        return ""

    def _names_of(self, table: TableId) -> frozenset[TableId]:
        own = {table} if self._masks.identity(table) else set()
        return self._earlier.get(table, frozenset()) | own

    def _set(self, table: TableId, names: frozenset[TableId], columns: Columns) -> None:
        self._earlier.pop(table, None)
        self._columns.pop(table, None)
        if names := names - {table}:
            self._earlier[table] = names
        if columns:
            self._columns[table] = columns

    def _mix(self, tables: Sequence[TableId]) -> None:
        """Record that each of the tables may have rows of all the others."""
        all_names = frozenset().union(*(self._names_of(table) for table in tables))
        all_columns: dict[str, frozenset[str]] = {}
        for table in tables:
            for column, names in self._columns.get(table, {}).items():
                all_columns[column] = all_columns.get(column, frozenset()) | names
        for table in tables:
            self._set(table, all_names, all_columns)

    def _rename(self, renames: Sequence[RenameTable]) -> None:
        previous_names = previous_names_of(renames)
        names_after = {
            new: (frozenset[TableId](), dict[str, frozenset[str]]())
            if old is None
            else (self._names_of(old), self._columns.get(old, {}))
            for new, old in previous_names.items()
        }
        for new, (names, columns) in names_after.items():
            self._set(new, names, columns)

    def _rename_columns(self, ddl: AlterTable) -> None:
        """Apply the column renames of a statement together, by the names before the statement."""
        columns = self._columns.get(ddl.table, {})
        previous_names: dict[str, str] = {}
        after = dict(columns)
        for action in ddl.actions:
            match action:
                case ChangeColumn(name, definition) if name != definition.name:
                    previous_names[name] = definition.name
                case RenameColumn(name, new_name):
                    previous_names[name] = new_name
                case DropColumn(name):
                    after.pop(mysql_fold(name), None)
                case AddColumn(definition, if_not_exists=False):
                    after.pop(mysql_fold(definition.name), None)
                case _:
                    pass
        for name in previous_names:
            after.pop(mysql_fold(name), None)
        for name, new in previous_names.items():
            hidden = any(self._masks.of(table, name) for table in (ddl.table, *self._earlier.get(ddl.table, ())))
            names = (columns.get(mysql_fold(name), frozenset()) | ({name} if hidden else set())) - {new}
            after.pop(mysql_fold(new), None)
            if names:
                after[mysql_fold(new)] = frozenset(names)
        self._set(ddl.table, self._earlier.get(ddl.table, frozenset()), after)


def _shown(table: TableId, earlier: TableId, column: str, name: str) -> str:
    way = f"hide it in the same way (mask.columns that match {table}.{column})"
    end = f"then run: raycdc tables resnapshot CONFIG {table}; or leave the table out (source.exclude)."
    if column == name:
        return (
            f"Rows of {table} were, or may be, those of {earlier}, of which [[mask]] hides {name!r}: here it would be "
            f"shown. {way[0].upper()}{way[1:]}, {end}"
        )
    return (
        f"Column {column!r} of {table} was {name!r}, which [[mask]] hides of {earlier}: here it would be shown. Rename "
        f"it back, or {way}, {end}"
    )


def _same(one: Mask, other: Mask | None) -> bool:
    return other is not None and replace(one, columns="") == replace(other, columns="")
