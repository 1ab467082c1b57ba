"""Plans the effect of schema changes on the columns of a target: its next columns and the origin of their values. Pure.

Databases, MongoDB and the lakes share this planner; `ColumnAbilities` describes the differences between the kinds of
stores. Each store carries out the plan in its own way.

| change | lenient | evolve, try_evolve | ignore |
|---|---|---|---|
| a column is added | at the end, nullable; existing rows get its constant default | at its position (*) | left out |
| … dropped | stays, null from here on | is dropped with its values | stays, null from here on |
| … renamed | the old one stays, null from here on; the new one gets its values in existing rows (**) | renamed | left \
out |
| … gets a wider type | existing rows get it | the same | refused if the types differ |
| … moves | nothing | moves (*) | nothing |
| the table is truncated or dropped | its rows are removed (upsert), and its columns take any type | the same | the \
same |

(*) Only if the store is `ordered`. In any other store, new columns are added at the end and columns do not move,
because a database finds columns by name. (**) The second table has the details. Existing rows of a changelog keep their
values in the old column, and have null in the new one. ``try_evolve`` leaves out changes that are impossible.

The store, or most of its readers, may treat two different names as equal (`ColumnAbilities.fold`). If a column is
renamed to a name that is equal in this sense, it is renamed in place under every setting. If the target kept a dropped
column and another column gets an equal name, the kept column is removed. In the same way, if the source gives the name
of a dropped column to an added or renamed column, the old values under that name are removed.

With ``schema_change = "lenient"``, a target keeps every column while its source renames some. The planner first
computes the columns that the target would have if it followed in place, and for each of them the present column whose
values it would have. If no computed column has the name of a present column, the present column is treated as follows:

| its values are | its name is | the column |
|---|---|---|
| the source's under another name | unused | stays, and the other column is a new one with a copy of its values |
| | another column's | is renamed, because its values cannot be kept twice |
| unused | unused | stays |
| | another column's | is dropped, because that column starts under its name |

A column whose values are copied never receives copied values itself, so the copy may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from raycdc.errors import ChangeRefusedError, TargetModifiedError
from raycdc.model import Column, LogicalType, TableId
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.model.evolution.events import (
    AddColumnEvent,
    After,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    ColumnPosition,
    CreateTableEvent,
    DropColumnEvent,
    First,
    RenameColumnEvent,
    SchemaChangeEvent,
)
from raycdc.sinks.api import TableCommit
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.changes import fitted


class StoredColumn(Protocol):
    """A column as a store describes it: a `Column` of the model, or an Arrow field."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> Any: ...

    def with_name(self, name: str, /) -> Self: ...

    def with_type(self, new: Any, /) -> Self: ...


ColumnT = TypeVar("ColumnT", bound=StoredColumn)


@dataclass(frozen=True, slots=True)
class ColumnAbilities(Generic[ColumnT]):
    """The differences between kinds of stores in how their columns can change.

    `place` is the word for the target in messages; `type_in_target` and `type_at_source` return the text of a column's
    type in messages. `stored` returns the column of the store for a column of the source. ``widens(old, new)`` is True
    if every value of type `old` is a value of type `new`, so that existing rows keep their values. ``holds(have,
    want)`` is True if a column of type `have` takes rows of type `want`. The store, or most of its readers, treat two
    names as equal if `fold` returns the same text for both. If `may_have_both` is True, a table can nevertheless have
    columns with both names if its source has both. The columns of an `ordered` store follow the source's order.
    """

    place: str
    stored: Callable[[Column], ColumnT]
    widens: Callable[[Any, Any], bool]
    holds: Callable[[Any, Any], bool]
    type_in_target: Callable[[ColumnT], str]
    type_at_source: Callable[[ColumnT], str]
    fold: Callable[[str], str] = str
    may_have_both: bool = False
    ordered: bool = False

    def type_error(self, target: TableId, have: ColumnT, want: ColumnT) -> ChangeRefusedError:
        """Return the error for a column whose type differs from that of new rows."""
        return ChangeRefusedError(
            f"{target}: column {have.name} is {self.type_in_target(have)} in the {self.place} and "
            f"{self.type_at_source(want)} at the source, and rows already written cannot change their type. No row of "
            "the new type was written. Take a new snapshot of the table, which empties the target."
        )

    def retyped_error(self, target: TableId, have: ColumnT, want: ColumnT) -> TargetModifiedError:
        """Return the error for a column whose type another writer of the target changed."""
        return TargetModifiedError(
            f"{target}: column {have.name} is {self.type_in_target(have)} in the {self.place} and "
            f"{self.type_at_source(want)} at the source, which did not change it: another writer changed the "
            f"{self.place}. Nothing more was written. Give the column its type back, and take a new snapshot of the "
            "table."
        )


@dataclass(frozen=True, slots=True)
class TargetColumn(Generic[ColumnT]):
    """A column of the table after the changes.

    `origin` is the present column whose values it keeps; None for a new column. If the source added the column, `added`
    is that column with its present name and type; existing rows get its constant default. `copied` is a column that
    stays in the table, whose values are copied into this new column in existing rows.
    """

    column: ColumnT
    origin: str | None
    added: Column | None = None
    copied: str | None = None

    @property
    def name(self) -> str:
        return self.column.name

    @property
    def values_of(self) -> str | None:
        """Return the present column whose values existing rows get in this one; None if they get none."""
        return self.copied or self.origin


@dataclass(frozen=True, slots=True)
class ColumnPlan(Generic[ColumnT]):
    """The columns after all changes.

    `emptied` is True if all rows are removed. `events` are the changes that are followed: all except those that the
    configuration leaves out.
    """

    columns: tuple[TargetColumn[ColumnT], ...]
    emptied: bool
    events: tuple[SchemaChangeEvent, ...]

    @property
    def names(self) -> list[str]:
        return [planned.name for planned in self.columns]


def plan_columns(
    store: ColumnAbilities[ColumnT],
    present: Sequence[ColumnT],
    work: TableCommit,
    wanted: Sequence[ColumnT],
    rules: ChangeRules,
) -> ColumnPlan[ColumnT]:
    """Return the plan of ``work.changes`` for a table with the columns `present`.

    `wanted` are the columns of new rows, as they are stored. Raises `SinkError` if the table cannot follow.
    """
    events = rules.followed(work.changes)
    changes = _Changes(store, work, {column.name: column for column in wanted}, rules, rules.empties(events))
    began = [TargetColumn(column, column.name) for column in present]
    columns = rules.after_all(began, events, changes.after)
    if rules.behavior is SchemaChangeBehavior.LENIENT:
        columns = _with_those_that_stay(began, columns, work, fold=store.fold)
    names = {column.name for column in present}
    copies = rules.upsert and not changes.emptied
    columns = [p if copies and p.copied in names else replace(p, copied=None) for p in columns]
    changes.check(columns)
    return ColumnPlan(tuple(columns), changes.emptied, events)


@dataclass(frozen=True, slots=True)
class _Changes(Generic[ColumnT]):
    """The effect of each change of one epoch on the planned columns. `emptied` is True if all rows are removed."""

    store: ColumnAbilities[ColumnT]
    work: TableCommit
    wanted: Mapping[str, ColumnT]
    rules: ChangeRules
    emptied: bool

    def after(self, columns: list[TargetColumn[ColumnT]], event: SchemaChangeEvent) -> list[TargetColumn[ColumnT]]:
        """Return the columns after one change."""
        store, ignored = self.store, self.rules.ignores
        in_place = store.ordered and self.rules.in_place
        match event:
            case CreateTableEvent() if not ignored:
                return self._with_all(columns)
            case AddColumnEvent(_, column, position) if not ignored:
                new = TargetColumn(store.stored(column), None, column, event.values_of)
                kept = [p for p in columns if not self._stands_for(p.name, column.name)]
                return self._ordered(kept, new, position) if in_place else [*kept, new]
            case DropColumnEvent(_, name) if not ignored:
                return [p for p in columns if p.name != name]
            case RenameColumnEvent(_, name, new_name) if not ignored or store.fold(name) == store.fold(new_name):
                return self._after_rename(columns, name, new_name)
            case AlterColumnTypeEvent(_, name, new_type) if not ignored:
                want = store.stored(Column(name, new_type))
                return [self._retyped(p, want, new_type) if p.name == name else p for p in columns]
            case AlterColumnPositionEvent(_, name, position) if in_place:
                moved = next((p for p in columns if p.name == name), None)
                return (
                    columns if moved is None else self._ordered([p for p in columns if p is not moved], moved, position)
                )
            case _:
                return columns

    def _stands_for(self, have: str, name: str) -> bool:
        """Return True if the table's column `have` is the source's column `name`.

        The names are equal, or the store treats them as equal. In the second case, if a table may have both names, the
        source must not have a column named `have`.
        """
        if have == name or self.store.fold(have) != self.store.fold(name):
            return have == name
        return not (self.store.may_have_both and have in self.wanted)

    def _after_rename(
        self, columns: list[TargetColumn[ColumnT]], name: str, new_name: str
    ) -> list[TargetColumn[ColumnT]]:
        """Return the columns with one renamed, and without another column that had the new name."""
        renamed = next((p for p in columns if p.name == name), None)
        if renamed is None:
            return columns
        others = (p for p in columns if p is renamed or not self._stands_for(p.name, new_name))
        return [_renamed(p, new_name) if p is renamed else p for p in others]

    def _retyped(
        self, planned: TargetColumn[ColumnT], want: ColumnT, logical: LogicalType | None
    ) -> TargetColumn[ColumnT]:
        """Return the column with the type of `want`, which is `logical` at the source.

        Raises `SinkError` unless every old value fits the new type. A table without rows takes any type.
        """
        if not self.emptied and not self.store.widens(planned.column.type, want.type):
            raise self.store.type_error(self.work.target, planned.column, want)
        added = planned.added
        if added is not None and logical is not None:
            added = added.with_type(logical)
        return replace(planned, column=planned.column.with_type(want.type), added=added)

    def _with_all(self, columns: list[TargetColumn[ColumnT]]) -> list[TargetColumn[ColumnT]]:
        """Return the columns of a table that was created again, whose columns may differ.

        If the store treats the name of an existing column as equal to a new name, the column is renamed. If a table may
        have both names, the existing column is a different column instead; it is removed if the table has no rows. If
        the store is `ordered`, the columns get the order of the new source table.
        """
        fold, wanted = self.store.fold, self.wanted
        logical = {column.name: column.type for column in self.work.schema.columns}
        names = {fold(name): name for name in wanted}
        kept: list[TargetColumn[ColumnT]] = []
        for p in columns:
            name = p.name if p.name in wanted else names.get(fold(p.name))
            if name == p.name or (name is not None and not self.store.may_have_both):
                kept.append(self._retyped(_renamed(p, name), wanted[name], logical.get(name)))
            elif name is None or not self.emptied:
                kept.append(p)
        here = {p.name for p in kept}
        kept += [TargetColumn(column, None) for name, column in wanted.items() if name not in here]
        if not (self.store.ordered and self.rules.in_place):
            return kept
        indexes = {name: index for index, name in enumerate(wanted)}
        return sorted(kept, key=lambda p: indexes.get(p.name, len(indexes)))

    def _ordered(
        self, columns: list[TargetColumn[ColumnT]], planned: TargetColumn[ColumnT], position: ColumnPosition
    ) -> list[TargetColumn[ColumnT]]:
        fold = self.store.fold
        match position:
            case First():
                at = 0
            case After(name):
                exact = next((i + 1 for i, p in enumerate(columns) if p.name == name), None)
                folded = next((i + 1 for i, p in enumerate(columns) if fold(p.name) == fold(name)), len(columns))
                at = folded if exact is None else exact
            case _:
                at = len(columns)
        return [*columns[:at], planned, *columns[at:]]

    def check(self, columns: Sequence[TargetColumn[ColumnT]]) -> None:
        """Raise `SinkError` if a column that will be written is missing or has another type."""
        there = {p.name: p.column for p in columns}
        schema, target = self.work.schema, self.work.target
        for column in (fitted(schema, there) if self.rules.may_lack else schema).columns:
            want, have = self.wanted[column.name], there.get(column.name)
            if have is None:
                raise TargetModifiedError(
                    f"{target}: the source has a column {column.name!r} that the {self.store.place} lacks, and no "
                    "change says that it was added. Take a new snapshot of the table."
                )
            if not self.store.holds(have.type, want.type):
                told = any(_retypes(event, column.name) for event in self.work.changes)
                raise (self.store.type_error if told else self.store.retyped_error)(target, have, want)


def _retypes(event: SchemaChangeEvent, name: str) -> bool:
    """Return True if the column `name` may have another type after the source's change `event`."""
    match event:
        case CreateTableEvent():
            return True
        case AlterColumnTypeEvent():
            return event.name == name
        case RenameColumnEvent():
            return event.new_name == name
        case AddColumnEvent():
            return event.column.name == name
        case _:
            return False


def _renamed(planned: TargetColumn[ColumnT], name: str) -> TargetColumn[ColumnT]:
    added = planned.added and planned.added.with_name(name)
    return replace(planned, column=planned.column.with_name(name), added=added)


def _with_those_that_stay(
    present: Sequence[TargetColumn[ColumnT]],
    planned: Sequence[TargetColumn[ColumnT]],
    work: TableCommit,
    *,
    fold: Callable[[str], str],
) -> list[TargetColumn[ColumnT]]:
    """Return the columns of a target that drops none, if its source's columns are `planned`."""
    after = {p.name: p.origin for p in planned}
    names, copied = _stay([p.name for p in present], after, work.target, work.schema.primary_key, fold=fold)
    by_name = {p.name: p for p in present} | {p.name: p for p in planned}
    return [
        replace(by_name[name], origin=None, copied=copied[name]) if name in copied else by_name[name] for name in names
    ]


def _stay(
    present: Sequence[str],
    planned: Mapping[str, str | None],
    target: TableId,
    key: Collection[str],
    *,
    fold: Callable[[str], str],
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the names of the columns of a target that keeps every present column, and the pairs of columns to copy.

    `present` are the target's columns. A pair is a new column and the present column whose values it gets. `planned`
    are the columns that the target would have if it followed in place, each with the present column whose values it
    would have (None: a new column). Two names are the same column if `fold` makes them equal. Raises
    `ChangeRefusedError` if a column of the `key` is renamed, because existing rows would lose their key.
    """
    taken = {fold(name) for name in planned}
    copied: dict[str, str] = {}
    for name, origin in planned.items():
        if origin is None or fold(origin) == fold(name):
            continue
        if name in key:
            raise ChangeRefusedError(
                f"{target}: the key column {origin!r} was renamed to {name!r}, and the rows that exist "
                f'would lose their key. Set pipeline.schema_change = "evolve" for this change.'
            )
        if fold(origin) not in taken:
            copied[name] = origin
    by_origin = {origin: name for name, origin in planned.items() if origin is not None and name not in copied}
    names: list[str] = []
    for name in present:
        if name in by_origin:
            names.append(by_origin[name])
        elif fold(name) not in taken:
            names.append(name)
    return (*names, *(name for name in planned if name not in names)), copied
