"""Plans the effect of schema changes on the columns of a lake's table, Delta or Iceberg. Pure. Each column of the plan
names the present column whose values it keeps; each format carries the plan out in its own way.

| change | lenient | evolve, try_evolve | ignore |
|---|---|---|---|
| a column is added | at the end, nullable; existing rows get its constant default | at its position | left out |
| … dropped | stays, null from here on | is dropped with its values | stays, null from here on |
| … renamed | the old one stays, null from here on; the new one gets its values in existing rows (*) | renamed | left \
out |
| … gets a wider type | existing rows get it | the same | refused if the types differ |
| … moves | nothing | moves | nothing |
| the table is truncated or dropped | its rows are removed (upsert) | the same | the same |

Under every setting, a column is renamed in place to a name that differs only in case: most readers treat the two names
as equal, and Delta allows no two such columns. For the same reason, a column that stayed is dropped when another one
gets its name in another case. If the source uses a dropped name again, for an added or renamed column, the name belongs
to that column from then on, and old values under it are removed. (*) In an upsert target, see `raycdc.sinks.columns`.
Rows of a changelog keep their values, and have null in the new column. ``try_evolve`` leaves out changes that are
impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from raycdc.errors import ChangeRefusedError, TargetModifiedError
from raycdc.model import Column, LogicalType, TableId, TableSchema
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
from raycdc.sinks.changes import check_constant, fitted
from raycdc.sinks.columns import added_columns


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of the table after the changes.

    `origin` is the present column whose values it keeps; None for a new column. `added` is the source's added column
    under its present name; existing rows get its constant default. `copied` is a remaining column whose values a new
    column gets in existing rows.
    """

    field: pa.Field
    origin: str | None
    added: Column | None = None
    copied: str | None = None


@dataclass(frozen=True, slots=True)
class LakePlan:
    """The columns after all changes.

    `emptied` says that all rows are removed. `events` are the changes without those that the configuration leaves out.
    """

    columns: tuple[LakeColumn, ...]
    emptied: bool
    events: tuple[SchemaChangeEvent, ...]

    @property
    def names(self) -> list[str]:
        return [column.field.name for column in self.columns]


@dataclass(frozen=True, slots=True)
class LakeFormat:
    """What the plan must know of a format: its name, and the type in which it stores an Arrow type."""

    name: str
    stored: Callable[[pa.DataType], pa.DataType] = lambda arrow: arrow


def plan_columns(
    lake: LakeFormat,
    present: pa.Schema,
    work: TableCommit,
    wanted: pa.Schema,
    rules: ChangeRules,
) -> LakePlan:
    """Return the plan of ``work.changes`` for a table with the columns `present`.

    `wanted` are the columns of new rows, as they are stored. Raises `SinkError` if the table cannot follow.
    """
    events = rules.followed(work.changes)
    emptied = rules.empties(events)

    def after(columns: list[LakeColumn], event: SchemaChangeEvent) -> list[LakeColumn]:
        if emptied and isinstance(event, CreateTableEvent) and not rules.ignores:
            return _with_all(lake, columns, wanted, work, rules, empty=True)
        return _after(lake, columns, event, wanted, work, rules)

    columns = rules.after_all([LakeColumn(field, field.name) for field in present], events, after)
    if rules.behavior is SchemaChangeBehavior.LENIENT:
        columns = _with_those_that_stay(present, columns, work, upsert=rules.upsert)
    if rules.upsert and not emptied:
        columns = [replace(c, origin=c.copied) if c.copied in present.names else c for c in columns]
    plan = LakePlan(tuple(columns), emptied, events)
    schema = fitted(work.schema, plan.names) if rules.may_lack else work.schema
    _check(lake, work.target, columns, schema, wanted)
    return plan


def type_error(lake: LakeFormat, target: TableId, have: pa.Field, want: pa.Field) -> ChangeRefusedError:
    """Return the error for a column whose type differs from that of new rows."""
    return ChangeRefusedError(
        f"{target}: column {have.name} is {have.type} in the {lake.name} table and {want.type} ({want.name}) at the "
        "source, and rows already written cannot change their type. No row of the new type was written. Take a new "
        "snapshot of the table, which empties the target."
    )


def constant_of(target: TableId, column: LakeColumn) -> pa.Scalar | None:
    """Return the constant default of an added column as a value of its type; None if it has no default.

    Raises `SinkError` if the default is not a value of that type.
    """
    if column.added is None or column.added.default is None:
        return None
    return check_constant(target, column.added)


def _after(
    lake: LakeFormat,
    columns: list[LakeColumn],
    event: SchemaChangeEvent,
    wanted: pa.Schema,
    work: TableCommit,
    rules: ChangeRules,
) -> list[LakeColumn]:
    """Return the columns after one change."""
    in_place, ignored = rules.in_place, rules.ignores
    match event:
        case CreateTableEvent():
            return columns if ignored else _with_all(lake, columns, wanted, work, rules, empty=False)
        case AddColumnEvent(_, column, position) if not ignored:
            new = LakeColumn(pa.field(column.name, lake.stored(column.type.arrow())), None, column, event.values_of)
            kept = _without(columns, column.name, wanted)
            return _ordered(kept, new, position) if in_place else [*kept, new]
        case DropColumnEvent(_, name) if not ignored:
            return [c for c in columns if c.field.name != name]
        case RenameColumnEvent(_, name, new_name) if not ignored or _same(name, new_name):
            return _after_rename(columns, name, new_name, wanted)
        case AlterColumnTypeEvent(_, name, new_type) if not ignored:
            want = pa.field(name, lake.stored(new_type.arrow()))
            return [_retyped(lake, _added_as(c, new_type), want, work) if c.field.name == name else c for c in columns]
        case AlterColumnPositionEvent(_, name, position) if in_place:
            moved = next((c for c in columns if c.field.name == name), None)
            return columns if moved is None else _ordered([c for c in columns if c is not moved], moved, position)
        case _:
            return columns


def _after_rename(columns: list[LakeColumn], name: str, new_name: str, wanted: pa.Schema) -> list[LakeColumn]:
    """Return the columns with one renamed, and without another column that had the new name."""
    renamed = next((c for c in columns if c.field.name == name), None)
    if renamed is None:
        return columns
    added = renamed.added and replace(renamed.added, name=new_name)
    now = replace(renamed, field=renamed.field.with_name(new_name), added=added)
    others = (c for c in columns if c is renamed or not _stands_for(c.field.name, new_name, wanted))
    return [now if c is renamed else c for c in others]


def _with_those_that_stay(
    present: pa.Schema, columns: Sequence[LakeColumn], work: TableCommit, *, upsert: bool
) -> list[LakeColumn]:
    """Return the columns of a table that drops none, if its source's columns are `columns`."""
    after = {c.field.name: c.origin for c in columns}
    reported = added_columns(present.names, after, work.target, work.schema.primary_key, fold=str.lower)
    by_name = {c.field.name: c for c in columns}
    found = (by_name.get(name) or LakeColumn(present.field(name), name) for name in reported.names)
    return [c if upsert or c.field.name not in reported.copied else replace(c, origin=None) for c in found]


def _same(name: str, other: str) -> bool:
    """Return True if readers that ignore case treat the names as equal."""
    return name.lower() == other.lower()


def _stands_for(have: str, name: str, wanted: pa.Schema) -> bool:
    """Return True if the table's column `have` is the source's column `name`.

    Either the names are equal, or they differ only in case and `have` is no other column of the source.
    """
    return have == name or (_same(have, name) and have not in wanted.names)


def _without(columns: list[LakeColumn], name: str, wanted: pa.Schema) -> list[LakeColumn]:
    """Return the columns without the one that `name` would be stored in."""
    return [c for c in columns if not _stands_for(c.field.name, name, wanted)]


def _retyped(lake: LakeFormat, column: LakeColumn, want: pa.Field, work: TableCommit) -> LakeColumn:
    """Return the column with the type of `want`. Raises `SinkError` unless every old value fits the new type."""
    have, new = column.field.type, want.type
    if pa.types.is_decimal(have) and pa.types.is_decimal(new):
        fits = new.scale >= have.scale and new.precision - new.scale >= have.precision - have.scale
    else:
        same_kind = any(is_(have) and is_(new) for is_ in (pa.types.is_integer, pa.types.is_floating))
        fits = have == new or (same_kind and have.bit_width <= new.bit_width)
    if not fits:
        raise type_error(lake, work.target, column.field, want)
    return replace(column, field=column.field.with_type(new))


def _added_as(column: LakeColumn, new: LogicalType) -> LakeColumn:
    """Return the column with its default as a constant of the type `new`."""
    return column if column.added is None else replace(column, added=replace(column.added, type=new))


def _with_all(
    lake: LakeFormat,
    columns: list[LakeColumn],
    wanted: pa.Schema,
    work: TableCommit,
    rules: ChangeRules,
    *,
    empty: bool,
) -> list[LakeColumn]:
    """Return the columns of a table that was created again, whose columns may differ.

    A table without rows takes any types, and loses columns whose names equal others except for case. If the table
    follows the source's column order, its columns get the order of the new table.
    """
    if empty:
        taken = {name.casefold() for name in wanted.names}
        columns = [c for c in columns if c.field.name in wanted.names or c.field.name.casefold() not in taken]
    here = {column.field.name for column in columns}
    kept: list[LakeColumn] = []
    for column in columns:
        if column.field.name not in wanted.names:
            kept.append(column)
        elif empty:
            kept.append(replace(column, field=column.field.with_type(wanted.field(column.field.name).type)))
        else:
            kept.append(_retyped(lake, column, wanted.field(column.field.name), work))
    kept += [LakeColumn(field, None) for field in wanted if field.name not in here]
    if not rules.in_place:
        return kept
    indexes = {name: index for index, name in enumerate(wanted.names)}
    return sorted(kept, key=lambda column: indexes.get(column.field.name, len(indexes)))


def _ordered(columns: list[LakeColumn], column: LakeColumn, position: ColumnPosition) -> list[LakeColumn]:
    match position:
        case First():
            at = 0
        case After(name):
            exact = next((i + 1 for i, c in enumerate(columns) if c.field.name == name), None)
            folded = next((i + 1 for i, c in enumerate(columns) if _same(c.field.name, name)), len(columns))
            at = folded if exact is None else exact
        case _:
            at = len(columns)
    return [*columns[:at], column, *columns[at:]]


def _check(
    lake: LakeFormat, target: TableId, columns: Sequence[LakeColumn], schema: TableSchema, wanted: pa.Schema
) -> None:
    """Raise `ChangeRefusedError` or `TargetModifiedError` if a column that will be written is missing or has another
    type.
    """
    there = {column.field.name: column.field for column in columns}
    for column in schema.columns:
        want = wanted.field(column.name)
        have = there.get(column.name)
        if have is None:
            raise TargetModifiedError(
                f"{target}: the source has a column {column.name!r} that the {lake.name} table lacks, and no change "
                "says that it was added. Take a new snapshot of the table."
            )
        if have.type != want.type:
            raise type_error(lake, target, have, want)
