"""Names of columns in targets that cannot hold all names (`raycdc.model.rules.names`). Pure, picklable.

Two processes use this module. The reader of the log parks a table if its target cannot hold a name, from the log
position on at which the table has that name (`raycdc.transform.target_rules`). The driver renames columns by a
projection, when an epoch's rows become rows of targets (`raycdc.transform.tables`). Both get the same names, because a
new name depends on the column's name only, and because both know the earlier names, which the state keeps
(`names.json`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from raycdc.errors import SchemaError
from raycdc.model import TableId, TableSchema
from raycdc.model.column_names import spark_fold
from raycdc.model.evolution.events import (
    AddColumnEvent,
    After,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    AlterTableCommentEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    RenameColumnEvent,
    RenameTableEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.model.rules.layout import TableLayout
from raycdc.model.rules.names import ANY_NAMES, NameRules
from raycdc.transform.resolved import ResolvedTransform

#: Appending this to a name gives a name that no column has.
_EXCHANGED = "\N{NORTH EAST ARROW}"

#: The names that columns of a table have in its targets, by their own names.
Names = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Naming:
    """The rules for names in targets; see the module's docstring.

    `replaces` is True if ``sink.invalid_names`` is ``replace``. `known` are the names in the state, by table.
    """

    rules: NameRules = ANY_NAMES
    replaces: bool = True
    upsert: bool = False
    known: Mapping[str, Names] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        """Return True if targets cannot hold every name."""
        return self.rules != ANY_NAMES

    def names(self, table: TableId, columns: Sequence[str], key: Sequence[str]) -> Names:
        """Return the columns of the table that have a different name in its targets.

        `key` is the table's key. Raises `SchemaError` if two columns would get the same name, or if a name cannot be
        held and must not be replaced.
        """
        known = self.known.get(str(table), {})
        alone = key[0] if self.upsert and len(key) == 1 else None
        found: dict[str, str] = {}
        for name in columns:
            made = known.get(name) or self.rules.column(name, is_key=name == alone)
            if made == name:
                continue
            if not self.replaces and name not in known:
                raise SchemaError(
                    f"column {name!r} of {table} {self.rules.no_column(name, is_key=name == alone)}, which "
                    f'{self.rules.store} cannot hold. Set sink.invalid_names = "replace", and it becomes {made!r}; or '
                    "give it another name by a [[transform]]"
                )
            found[name] = made
        taken: dict[str, str] = {}
        for name in columns:
            made = found.get(name, name)
            other = taken.setdefault(spark_fold(made), name)
            if other != name and (name in found or other in found):
                raise SchemaError(
                    f"columns {other!r} and {name!r} of {table} would both be {made!r} in its target, because "
                    f"{self.rules.store} cannot hold their names. Give one another name by a [[transform]]"
                )
        return found

    def of(self, table: TableId, names: Sequence[str]) -> Names:
        """Return the targets' names of columns, some of which the table may not have any more."""
        known = self.known.get(str(table), {})
        return {name: known.get(name) or self.rules.column(name) for name in names}


def renamed(resolved: ResolvedTransform, names: Names) -> ResolvedTransform:
    """Return `resolved` with its result's columns renamed by `names`."""

    def of(name: str) -> str:
        return names.get(name, name)

    columns = tuple(replace(column, name=of(column.name)) for column in resolved.columns)
    shown = tuple(replace(column, name=of(column.name)) for column in resolved.schema.columns)
    schema = TableSchema(shown, tuple(map(of, resolved.schema.primary_key)))
    parts = tuple(replace(part, column=of(part.column)) for part in resolved.layout.partitions)
    layout: TableLayout = replace(resolved.layout, partitions=parts)
    lookups = tuple(replace(one, key=of(one.key)) for one in resolved.lookups)
    return replace(resolved, columns=columns, schema=schema, layout=layout, lookups=lookups)


def renamed_changes(changes: Sequence[SchemaChangeEvent], names: Names) -> list[SchemaChangeEvent]:
    """Return `changes` with columns renamed by `names`, for a target.

    A rename is left out if the target's name stays the same.
    """

    def of(name: str) -> str:
        return names.get(name, name)

    made: list[SchemaChangeEvent] = []
    for change in _in_order(changes, names):
        match change:
            case AddColumnEvent(_, column, position):
                position = After(of(position.column)) if isinstance(position, After) else position
                made.append(replace(change, column=replace(column, name=of(column.name)), position=position))
            case AlterColumnPositionEvent(_, name, position):
                position = After(of(position.column)) if isinstance(position, After) else position
                made.append(replace(change, name=of(name), position=position))
            case DropColumnEvent(_, name) | AlterColumnTypeEvent(_, name):
                made.append(replace(change, name=of(name)))
            case RenameColumnEvent(_, name, new_name):
                made += [replace(change, name=of(name), new_name=of(new_name))] if of(name) != of(new_name) else []
            case AlterPrimaryKeyEvent(_, columns):
                made.append(replace(change, columns=tuple(map(of, columns))))
            case CreateTableEvent() | RenameTableEvent() | TruncateTableEvent() | DropTableEvent():
                made.append(change)
            case AlterTableCommentEvent():
                made.append(change)
            case _:
                assert_never(change)
    return made


def _in_order(changes: Sequence[SchemaChangeEvent], names: Names) -> Sequence[SchemaChangeEvent]:
    """Return `changes`, with the renames of one statement in an order that never uses a target's name twice.

    For example, the source may rename ``x`` to ``a_b`` before it renames ``a b``, whose name in the target is ``a_b``,
    to ``y``.
    """
    indexes = [number for number, change in enumerate(changes) if isinstance(change, RenameColumnEvent)]
    if not names or len(indexes) < 2 or indexes[-1] - indexes[0] >= len(indexes):
        return changes
    final: dict[str, str] = {}
    for change in changes:
        if isinstance(change, RenameColumnEvent):
            origin = next((name for name, new_name in final.items() if new_name == change.name), change.name)
            final[origin] = change.new_name

    def is_free(new_name: str, name: str) -> bool:
        shown = spark_fold(names.get(new_name, new_name))
        return all(spark_fold(names.get(other, other)) != shown for other in final if other != name)

    table, ordered = changes[indexes[0]].table, []
    while final:
        name = next((name for name, new_name in final.items() if is_free(new_name, name)), None)
        if name is None:
            # The remaining columns exchange names in the target, which takes a third name that no column has.
            name = next(iter(final))
            spare = f"{names.get(name, name)}{_EXCHANGED}"
            ordered.append(RenameColumnEvent(table, name, spare))
            final[spare] = final.pop(name)
        else:
            ordered.append(RenameColumnEvent(table, name, final.pop(name)))
    return [*changes[: indexes[0]], *ordered, *changes[indexes[-1] + 1 :]]


def names_of_changes(changes: Sequence[SchemaChangeEvent]) -> list[str]:
    """Return the names of columns in `changes`, which the table may not have after them."""
    names: list[str] = []
    for change in changes:
        match change:
            case DropColumnEvent(_, name):
                names.append(name)
            case RenameColumnEvent(_, name, new_name):
                names += [name, new_name]
            case AddColumnEvent(_, column, _):
                names.append(column.name)
            case _:
                continue
    return names
