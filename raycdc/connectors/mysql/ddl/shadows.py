"""Tables that schema change tools create as copies of a table, and that finally replace it.

gh-ost and pt-online-schema-change copy a table into a *shadow* with the new schema, keep both equal, and then rename
the shadow to the table's name. Only the last step concerns a reader of the log: after it the captured table has the
shadow's schema, and the same rows. Therefore only the schemas of shadows are followed; their rows are never read.

| table of `orders` | is | of |
|---|---|---|
| `_orders_gho` | the shadow | gh-ost |
| `_orders_ghc`, `_orders_ghk` | its notes | gh-ost |
| `_orders_del`, `_orders_20240131120000_del` | the old table, afterwards | gh-ost |
| `_orders_new`, `__orders_new` … | the shadow | pt-online-schema-change |
| `_orders_old`, `__orders_old` … | the old table, afterwards | pt-online-schema-change |

The names are the tools' own (gh-ost's ``getSafeTableName``; pt-online-schema-change's ``--new-table-name``), shortened
to 64 characters if they are longer. If a replacement has another name, nothing is known about its rows, so it is
refused. `ShadowTables.state` goes into the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from raycdc.connectors.mysql.ddl.alter import inherit, server_column
from raycdc.connectors.mysql.ddl.apply import apply_ddl
from raycdc.connectors.mysql.ddl.defaults import Fill, fill_of
from raycdc.connectors.mysql.ddl.parse.statements import (
    AddColumn,
    AlterTable,
    ChangeColumn,
    ColumnDefinition,
    CreateTable,
    DdlDialect,
    RowsUnlogged,
    UniqueKey,
)
from raycdc.connectors.mysql.ddl.shape import ColumnLineage
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.core.typed_codec import JsonObject
from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterTableCommentEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
)

#: The longest name of a table; tools shorten longer ones.
_NAME_MAX = 64
#: The number of shadows kept: one for each table being changed, and leftovers of failed runs of tools. The oldest are
#: forgotten.
SHADOWS_MAX = 256

_SUFFIX = re.compile(r"_(?P<name>.*?)(?:_[0-9]{14})?_(?P<suffix>gho|ghc|ghk|del|rev_del|new|old)", re.DOTALL)
_ROLES: dict[str, Role] = {"gho": "shadow", "new": "shadow", "del": "old", "rev_del": "old", "old": "old"}

#: The purpose of a tool's table: the new shape, the table it replaced, or notes.
Role = Literal["shadow", "old", "notes"]


@dataclass(frozen=True, slots=True)
class Shadow(JsonObject):
    """A tool's table: its schema (None: unknown, `doubt` says why) and the origins of its columns.

    `doubt` is also why its rows may differ from those of `owner`; empty if they do not. `comment` is the table's
    changed comment, None if unchanged.
    """

    owner: TableId
    table: MySqlTable | None
    doubt: str = ""
    comment: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    filled: Mapping[str, str | None] = field(default_factory=dict)
    computed: Mapping[str, str] = field(default_factory=dict)

    @property
    def lineage(self) -> ColumnLineage:
        return ColumnLineage(self.renamed, self.filled, self.computed)

    def doubt_under(self, name: TableId) -> str:
        """Return `doubt`, or why a tool whose tables have such a `name` may have put other rows into this table."""
        if not self.doubt and self.renamed and name.table.endswith("_gho"):
            columns = ", ".join(sorted(self.renamed))
            return f"gh-ost can leave renamed columns out of its copy ({columns}), which the log does not show"
        return self.doubt


def role_of(table: TableId, captured: Collection[TableId]) -> tuple[TableId, Role] | None:
    """Return the table among `captured` for which a tool made `table`, and its role, by its name.

    None if there is none.
    """
    parts = _SUFFIX.fullmatch(table.table)
    if parts is not None:
        role = _ROLES.get(parts["suffix"], "notes")
        name = parts["name"]
        while True:
            if TableId(table.db, name) in captured:
                return TableId(table.db, name), role
            # pt-online-schema-change adds underscores in front while the name is used.
            if not name.startswith("_") or parts["suffix"] not in ("new", "old"):
                break
            name = name[1:]
    return _role_of_long(table, captured) if len(table.table) == _NAME_MAX else None


def _role_of_long(table: TableId, captured: Collection[TableId]) -> tuple[TableId, Role] | None:
    """Return `role_of` for a shortened name. gh-ost shortens the middle of a name, pt-online-schema-change its end."""
    roles: set[tuple[TableId, Role]] = set()
    for owner in captured:
        if owner.db != table.db:
            continue
        for suffix in ("gho", "ghc", "ghk", "del"):
            length = _NAME_MAX - len(suffix) - 2
            if len(owner.table) > length and table.table == f"_{owner.table[:length]}_{suffix}":
                roles.add((owner, _ROLES.get(suffix, "notes")))
        for suffix in ("new", "old"):
            full = f"_{owner.table}_{suffix}"
            if len(full) > _NAME_MAX and table.table == full[:_NAME_MAX]:
                roles.add((owner, _ROLES[suffix]))
    # A shortened _new and _old may be the same name; the tool then gave this name to the shadow, and a different name
    # to the old table.
    return max(roles, key=lambda each: each[1]) if len({owner for owner, _ in roles}) == 1 else None


def tool_tables(tables: Collection[TableId]) -> set[TableId]:
    """Return the tables in `tables` that a tool made for another table in `tables`."""
    names = set(tables)
    return {table for table in names if role_of(table, names - {table}) is not None}


class ShadowTables:
    """The tables of schema change tools at the log's position. Used by the decoder's thread only."""

    def __init__(self, shadows: Mapping[TableId, Shadow]) -> None:
        self._tables = dict(shadows)
        self.changed = False

    def all(self) -> Mapping[TableId, Shadow]:
        """Return the present tables."""
        return dict(self._tables)

    def get(self, table: TableId) -> Shadow | None:
        return self._tables.get(table)

    def shape(self, table: TableId) -> MySqlTable | None:
        shadow = self._tables.get(table)
        return None if shadow is None else shadow.table

    def put(self, table: TableId, shadow: Shadow) -> None:
        shape = shadow.table
        if shape is not None and shape.id != table:
            shadow = replace(shadow, table=replace(shape, id=table))
        self._tables.pop(table, None)
        self._tables[table] = shadow
        while len(self._tables) > SHADOWS_MAX:
            del self._tables[next(iter(self._tables))]
        self.changed = True

    def pop(self, table: TableId) -> Shadow | None:
        self.changed = self.changed or table in self._tables
        return self._tables.pop(table, None)

    def holds(self, db: str) -> bool:
        """Return True if any of the tables is in `db`."""
        return any(table.db == db for table in self._tables)

    def shadow_of(self, owner: TableId) -> TableId | None:
        """Return the table that is about to replace `owner`, if there is one."""
        return next((t for t, s in self._tables.items() if s.owner == owner and _is_shadow(t, owner)), None)

    def drop_database(self, db: str) -> None:
        for table in [t for t in self._tables if t.db == db]:
            self.pop(table)

    def create(
        self,
        owner: TableId,
        ddl: CreateTable,
        *,
        find_table: Callable[[TableId], MySqlTable | None],
        dialect: DdlDialect,
        default_charset: tuple[str, str],
    ) -> None:
        """Apply CREATE TABLE of a tool's table. If information is missing, the table counts as unknown."""
        shadow_before = self._tables.get(ddl.table)
        if ddl.if_not_exists:
            if shadow_before is None or shadow_before.table is None:
                self.put(ddl.table, Shadow(owner, None, f"{ddl.table} may have existed before it was created"))
            return
        try:
            applied = apply_ddl(None, ddl, find_table=find_table, dialect=dialect, default_charset=default_charset)
        except SchemaError as cause:
            self.put(ddl.table, Shadow(owner, None, str(cause)))
            return
        assert applied.table is not None
        shadow = Shadow(owner, applied.table, comment=ddl.comment or None)
        if ddl.like is None:
            shadow = _with_added(shadow, ddl, applied.table, find_table(owner), dialect)
        elif ddl.like in self._tables:
            shadow = replace(self._tables[ddl.like], owner=owner, table=applied.table)
        self.put(ddl.table, shadow)

    def alter(self, ddl: AlterTable, *, dialect: DdlDialect) -> None:
        """Apply ALTER TABLE of a tool's table."""
        shadow = self._tables.get(ddl.table)
        if shadow is None or shadow.table is None:
            return
        try:
            applied = apply_ddl(shadow.table, ddl, dialect=dialect)
        except SchemaError as cause:
            self.put(ddl.table, replace(shadow, table=None, doubt=str(cause)))
            return
        self.put(ddl.table, _altered(replace(shadow, table=applied.table), ddl, applied.events, shadow.table, dialect))

    def forget(self, table: TableId, why: str) -> None:
        """Mark a tool's table as unknown, because a statement about it was not understood."""
        shadow = self._tables.get(table)
        if shadow is not None:
            self.put(table, replace(shadow, table=None, doubt=why))


def _is_shadow(table: TableId, owner: TableId) -> bool:
    return role_of(table, {owner}) == (owner, "shadow")


def _with_added(
    shadow: Shadow, ddl: CreateTable, table: MySqlTable, owner: MySqlTable | None, dialect: DdlDialect
) -> Shadow:
    """Return the shadow with the default values of columns that only the new table has; the tool copies all others."""
    repeated = set() if owner is None else {mysql_fold(column.name) for column in owner.columns}
    empty = replace(table, columns=())
    new = [definition for definition in ddl.columns if mysql_fold(definition.name) not in repeated]
    filled = {d.name: _fill(d, empty, dialect) for d in new}
    computed = {d.name: d.computed or filled[d.name].unsure for d in new}
    return replace(
        shadow,
        filled={name: fill.value for name, fill in filled.items()},
        computed={name: why for name, why in computed.items() if why},
    )


def _fill(definition: ColumnDefinition, table: MySqlTable, dialect: DdlDialect) -> Fill:
    return fill_of(server_column(inherit(definition, table), dialect), definition, dialect)


def _altered(
    shadow: Shadow, ddl: AlterTable, events: tuple[SchemaChangeEvent, ...], table: MySqlTable, dialect: DdlDialect
) -> Shadow:
    renamed, filled, computed = dict(shadow.renamed), dict(shadow.filled), dict(shadow.computed)
    comment, doubt = shadow.comment, shadow.doubt
    for event in events:
        match event:
            case RenameColumnEvent(_, name, new_name):
                renamed[new_name] = renamed.pop(name, name)
                for notes in (filled, computed):
                    if name in notes:
                        notes[new_name] = notes.pop(name)  # type: ignore[assignment]
            case DropColumnEvent(_, name):
                for notes in (renamed, filled, computed):
                    notes.pop(name, None)
            case AddColumnEvent(_, column, _):
                renamed.pop(column.name, None)
                filled[column.name] = column.default
            case AlterTableCommentEvent(_, text):
                comment = text
            case _:
                pass
    for action in ddl.actions:
        match action:
            case AddColumn(definition):
                why = definition.computed or _fill(definition, table, dialect).unsure
                if why:
                    computed[definition.name] = why
            case ChangeColumn(_, definition) if "GENERATED" in definition.extra:
                computed[definition.name] = "a value that is computed again"
            case UniqueKey():
                doubt = doubt or "a unique key was added, and the copy lacks rows that violate it"
            case RowsUnlogged(why):
                doubt = doubt or why
            case _:
                pass
    return replace(shadow, comment=comment, doubt=doubt, renamed=renamed, filled=filled, computed=computed)
