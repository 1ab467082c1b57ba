"""The effect of schema changes on the columns of a lake's table, Delta or Iceberg: one plan for both. Pure.

A column of the plan says whose values it has; how a table comes to it is its format's business.

| change | lenient | evolve, try_evolve | ignore |
|---|---|---|---|
| a column is added | at the end, nullable; rows that exist get its constant default | where it is | left out |
| … dropped | stays, null from here on | goes, values and all | stays, null from here on |
| … renamed | the old one stays, the new one begins with nulls (*) | renamed | as left out |
| … gets a wider type | the rows that exist get it | the same | refused if the types differ |
| … moves | nothing | moves | nothing |
| the table is emptied or dropped | its rows go (upsert) | the same | the same |

A column is renamed in place to a name that differs in case only, whatever the behaviour: most readers take the two for
one, and Delta has no two such columns. So one that stayed goes when another comes under its name in another case.
A column that comes again under the name of one that stayed begins anew: nothing of the old one is left in the rows.
(*) So does one that is renamed to such a name, but in an upsert target with the values it had under its old name.
``try_evolve`` leaves out what cannot be done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from raycdc.errors import ChangeRefusedError, TargetTouchedError
from raycdc.model import Column, TableId, TableSchema
from raycdc.model.behavior import SchemaChangeBehavior
from raycdc.schema.events import (
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
from raycdc.sinks.api import TableWork
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.changes import check_constant, fitted


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column as it will be; `origin` is the column whose values it has, None for a new one.

    `added` is the source's column, where one was added: its constant default is for the rows that exist.
    """

    field: pa.Field
    origin: str | None
    added: Column | None = None


@dataclass(frozen=True, slots=True)
class LakePlan:
    """The columns after all changes. `emptied` says that the rows go; `events` are the changes but those left out."""

    columns: tuple[LakeColumn, ...]
    emptied: bool
    events: tuple[SchemaChangeEvent, ...]

    @property
    def names(self) -> list[str]:
        return [column.field.name for column in self.columns]


@dataclass(frozen=True, slots=True)
class LakeFormat:
    """The differences of the formats: their name, and the type in which they store a type."""

    name: str
    stored: Callable[[pa.DataType], pa.DataType] = lambda arrow: arrow


def plan_columns(
    lake: LakeFormat,
    present: pa.Schema,
    work: TableWork,
    wanted: pa.Schema,
    rules: ChangeRules,
) -> LakePlan:
    """The plan of ``work.changes`` for a table with the columns `present`.

    `wanted` are the columns of the rows to come, as they are stored. `SinkError` for what the table cannot follow.
    """
    events = rules.followed(work.changes)
    emptied = rules.empties(events)

    def after(columns: list[LakeColumn], event: SchemaChangeEvent) -> list[LakeColumn]:
        if emptied and isinstance(event, CreateTableEvent) and not rules.ignores:
            return _with_all(lake, columns, wanted, work, empty=True)
        return _after(lake, columns, event, wanted, work, rules)

    columns = rules.after_all([LakeColumn(field, field.name) for field in present], events, after)
    if rules.behavior is SchemaChangeBehavior.LENIENT:
        columns = _renamed_onto(columns, events, wanted, present, upsert=rules.upsert)
    plan = LakePlan(tuple(columns), emptied, events)
    schema = fitted(work.schema, plan.names) if rules.may_lack else work.schema
    _check(lake, work.target, columns, schema, wanted)
    return plan


def type_error(lake: LakeFormat, target: TableId, have: pa.Field, want: pa.Field) -> ChangeRefusedError:
    """The table has a column of another type than the rows to come."""
    return ChangeRefusedError(
        f"{target}: column {have.name} is {have.type} in the {lake.name} table and {want.type} ({want.name}) at the "
        "source, and rows already written cannot change their type. No row of the new type was written. Take a new "
        "snapshot of the table, which empties the target."
    )


def constant_of(target: TableId, column: LakeColumn) -> pa.Scalar | None:
    """The constant default of an added column as a value of its type. `SinkError` where it is none."""
    if column.added is None or column.added.default is None:
        return None
    return check_constant(target, column.added)


def _after(
    lake: LakeFormat,
    columns: list[LakeColumn],
    event: SchemaChangeEvent,
    wanted: pa.Schema,
    work: TableWork,
    rules: ChangeRules,
) -> list[LakeColumn]:
    """The columns after one change."""
    in_place, ignored = rules.in_place, rules.ignores
    match event:
        case CreateTableEvent():
            return columns if ignored else _with_all(lake, columns, wanted, work, empty=False)
        case AddColumnEvent(_, column, position) if not ignored:
            new = LakeColumn(pa.field(column.name, lake.stored(column.type.arrow())), None, column)
            kept = _without(columns, column.name, wanted)
            return _placed(kept, new, position) if in_place else [*kept, new]
        case DropColumnEvent(_, name) if in_place:
            return [c for c in columns if c.field.name != name]
        case RenameColumnEvent(_, name, new_name):
            if in_place or _same(name, new_name):
                return [replace(c, field=c.field.with_name(new_name)) if c.field.name == name else c for c in columns]
            if new_name in work.schema.primary_key:
                raise ChangeRefusedError(
                    f"{work.target}: the key column {name!r} was renamed to {new_name!r}, and the rows that exist "
                    f'would lose their key. Set pipeline.schema_change = "evolve" for this change.'
                )
            if ignored or new_name in [c.field.name for c in columns] or new_name not in wanted.names:
                return columns
            return [*_without(columns, new_name, wanted), LakeColumn(wanted.field(new_name), None)]
        case AlterColumnTypeEvent(_, name, new_type) if not ignored:
            want = pa.field(name, lake.stored(new_type.arrow()))
            return [_retyped(lake, c, want, work) if c.field.name == name else c for c in columns]
        case AlterColumnPositionEvent(_, name, position) if in_place:
            moved = next((c for c in columns if c.field.name == name), None)
            return columns if moved is None else _placed([c for c in columns if c is not moved], moved, position)
        case _:
            return columns


def _renamed_onto(
    columns: list[LakeColumn],
    events: Sequence[SchemaChangeEvent],
    wanted: pa.Schema,
    present: pa.Schema,
    *,
    upsert: bool,
) -> list[LakeColumn]:
    """`columns`, where one that was renamed to the name of one that stayed does not show that one's values: an upsert
    target gets its own, the rows of a changelog never had the column.
    """
    #: Of each column that the source has: the table's column with its values.
    origins: dict[str, str | None] = {name: name for name in present.names}
    for event in events:
        match event:
            case RenameColumnEvent(_, name, new_name):
                origins[new_name] = origins.pop(name, None)
            case DropColumnEvent(_, name):
                origins.pop(name, None)
            case AddColumnEvent(_, column, _):
                origins[column.name] = None
    renamed = {event.new_name for event in events if isinstance(event, RenameColumnEvent)}
    onto = {
        name
        for name in renamed & set(wanted.names)
        if any(_stands_for(have, name, wanted) for have in present.names) and not _same(origins.get(name) or "", name)
    }
    return [
        LakeColumn(wanted.field(name), origins.get(name) if upsert else None) if name in onto else column
        for name, column in ((column.field.name, column) for column in columns)
    ]


def _same(name: str, other: str) -> bool:
    """Whether two names are one to readers that ignore case."""
    return name.lower() == other.lower()


def _stands_for(have: str, name: str, wanted: pa.Schema) -> bool:
    """Whether a column of the table is in the place of `name`: it is called so, or so but for case and is no column of
    the source any more.
    """
    return have == name or (_same(have, name) and have not in wanted.names)


def _without(columns: list[LakeColumn], name: str, wanted: pa.Schema) -> list[LakeColumn]:
    """The columns but that in the place of `name`."""
    return [c for c in columns if not _stands_for(c.field.name, name, wanted)]


def _retyped(lake: LakeFormat, column: LakeColumn, want: pa.Field, work: TableWork) -> LakeColumn:
    """The column with the type of `want`. `SinkError` unless every value of the old type is one of the new."""
    have, new = column.field.type, want.type
    if pa.types.is_decimal(have) and pa.types.is_decimal(new):
        fits = new.scale >= have.scale and new.precision - new.scale >= have.precision - have.scale
    else:
        same_kind = any(is_(have) and is_(new) for is_ in (pa.types.is_integer, pa.types.is_floating))
        fits = have == new or (same_kind and have.bit_width <= new.bit_width)
    if not fits:
        raise type_error(lake, work.target, column.field, want)
    return replace(column, field=column.field.with_type(new))


def _with_all(
    lake: LakeFormat, columns: list[LakeColumn], wanted: pa.Schema, work: TableWork, *, empty: bool
) -> list[LakeColumn]:
    """A table that was created again may have other columns; one without rows takes any types, and lets go of columns
    whose names are those of others but for case.
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
    return [*kept, *(LakeColumn(field, None) for field in wanted if field.name not in here)]


def _placed(columns: list[LakeColumn], column: LakeColumn, position: ColumnPosition) -> list[LakeColumn]:
    match position:
        case First():
            at = 0
        case After(name):
            at = next((i + 1 for i, c in enumerate(columns) if c.field.name == name), len(columns))
        case _:
            at = len(columns)
    return [*columns[:at], column, *columns[at:]]


def _check(
    lake: LakeFormat, target: TableId, columns: Sequence[LakeColumn], schema: TableSchema, wanted: pa.Schema
) -> None:
    """Every column that will be written must be there with its type."""
    there = {column.field.name: column.field for column in columns}
    for column in schema.columns:
        want = wanted.field(column.name)
        have = there.get(column.name)
        if have is None:
            raise TargetTouchedError(
                f"{target}: the source has a column {column.name!r} that the {lake.name} table lacks, and no change "
                "says that it was added. Take a new snapshot of the table."
            )
        if have.type != want.type:
            raise type_error(lake, target, have, want)
