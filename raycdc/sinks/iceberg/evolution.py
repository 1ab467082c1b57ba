"""Schema changes of an Iceberg table: what ``pipeline.schema_change`` makes of them, planned by field ids. Pure.

Called by `sink`, which carries the plan out in one commit with the vector. A column keeps its id as
long as it is the same column, under whatever name and at whatever place: then the change is metadata only. The data
files are written anew where rows get a value that no file has: a constant default, a type that Iceberg does not read
the old values as (a decimal's scale), a second column with the values of one.

| change | lenient | evolve, try_evolve | ignore |
|---|---|---|---|
| a column is added | at the end; rows that exist get its constant default (upsert) | where it is | left out |
| … dropped | stays, null from here on | goes, values and all | stays, null from here on |
| … renamed | the old one stays, the new one begins with nulls (*) | renamed | as left out |
| … gets a wider type | the rows that exist get it | the same | refused if the types differ |
| … moves | nothing | moves | nothing |
| the table is emptied or dropped | its rows go (upsert) | the same | the same |

A column that comes again under the name of one that stayed begins anew, under a new id. (*) So does one that is renamed
to such a name, but in an upsert target with the values it had under its old name. ``try_evolve`` leaves out what cannot
be done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from raycdc.errors import SinkError
from raycdc.model import META_COLUMNS, Column, TableId, TableSchema
from raycdc.schema.behavior import SchemaChangeBehavior
from raycdc.schema.events import (
    AddColumnEvent,
    After,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    ColumnPosition,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    First,
    RenameColumnEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
    event_from_json,
)
from raycdc.sinks.api import TableWork
from raycdc.sinks.changes import check_constant, fitted, may_lack
from raycdc.sinks.iceberg.files import StoredColumn, arrow_type, type_text

_IN_PLACE = frozenset({SchemaChangeBehavior.EVOLVE, SchemaChangeBehavior.TRY_EVOLVE})


@dataclass(frozen=True, slots=True)
class PlannedColumn:
    """A column as it will be; `origin` is the id of the column whose values it has, None for a new one, whose rows
    have `constant` (as text) or null.
    """

    column: StoredColumn
    origin: int | None
    constant: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The table's columns after the changes. `emptied` says that its rows go, `rewritten` that its files must be."""

    columns: tuple[PlannedColumn, ...]
    emptied: bool
    rewritten: bool


@dataclass(frozen=True, slots=True)
class _Next:
    name: str
    arrow: pa.DataType
    #: The column of the table whose values it has.
    origin: str | None
    added: Column | None = None


def plan(
    present: Sequence[StoredColumn],
    work: TableWork,
    wanted: pa.Schema,
    *,
    next_id: int,
    upsert: bool,
    behavior: SchemaChangeBehavior,
    left_out: Collection[str] = (),
) -> Plan:
    """What ``work.changes`` but those `left_out` make of a table with the columns `present`.

    `wanted` are the columns of the rows to come (`files.stored`). `SinkError` for what the table cannot follow.
    """
    events = [event_from_json(data) for data in work.changes if data["type"] not in left_out]
    emptied = upsert and any(isinstance(e, TruncateTableEvent | DropTableEvent) for e in events)
    columns = [_Next(column.name, column.arrow, column.name) for column in present]
    for event in events:
        try:
            if emptied and isinstance(event, CreateTableEvent) and behavior is not SchemaChangeBehavior.IGNORE:
                columns = _with_all(columns, wanted, work, empty=True)
            else:
                columns = _after(columns, event, wanted, work, behavior)
        except SinkError:
            if behavior is not SchemaChangeBehavior.TRY_EVOLVE:
                raise
    if behavior is SchemaChangeBehavior.LENIENT:
        columns = _renamed_onto(columns, events, wanted, {c.name for c in present}, upsert=upsert)
    names = [column.name for column in columns]
    kept = fitted(work.schema, names) if may_lack(behavior, left_out) else work.schema
    _check(work.target, columns, kept, wanted)
    return _numbered(columns, present, work, next_id=next_id, upsert=upsert, emptied=emptied)


def check_columns(work: TableWork, wanted: pa.Schema) -> None:
    """`SinkError` for columns that would have the name of a metadata column of the changelog."""
    clashes = {c.name.casefold() for c in work.schema.columns} & {n.casefold() for n in META_COLUMNS}
    if clashes and len(wanted) > len(work.schema.columns):
        raise SinkError(f"{work.target}: column {min(clashes)} has the name of a metadata column of the changelog.")


def mergeable(present: Sequence[StoredColumn], wanted: pa.Schema, work: TableWork, *, next_id: int) -> Plan:
    """The columns of a table that was there before, with those that it lacks. `SinkError` where types differ."""
    there = {column.name.casefold(): column for column in present}
    for want in wanted:
        have = there.get(want.name.casefold())
        if have is not None and (have.arrow != want.type or have.name != want.name):
            raise type_error(work.target, have.name, have.arrow, want)
    missing = [field for field in wanted if field.name.casefold() not in there]
    new = [StoredColumn(next_id + at, field.name, type_text(field.type)) for at, field in enumerate(missing)]
    kept = [PlannedColumn(column, column.id) for column in present]
    return Plan((*kept, *(PlannedColumn(column, None) for column in new)), emptied=False, rewritten=False)


def type_error(target: TableId, name: str, have: pa.DataType, want: pa.Field) -> SinkError:
    """The table has a column of another type than the rows to come."""
    return SinkError(
        f"{target}: column {name} is {have} in the target and {want.type} ({want.name}) at the source, and rows "
        f"already written cannot change their type. No row of the new type was written. Take a new snapshot into "
        f'another table, or with pipeline.on_existing = "replace"; both with a new pipeline.state.'
    )


def _after(
    columns: list[_Next],
    event: SchemaChangeEvent,
    wanted: pa.Schema,
    work: TableWork,
    behavior: SchemaChangeBehavior,
) -> list[_Next]:
    """The columns after one change."""
    in_place = behavior in _IN_PLACE
    ignored = behavior is SchemaChangeBehavior.IGNORE
    match event:
        case CreateTableEvent():
            return columns if ignored else _with_all(columns, wanted, work, empty=False)
        case AddColumnEvent(_, column, position) if not ignored:
            new = _Next(column.name, _stored(column.type.arrow()), None, column)
            kept = [c for c in columns if c.name != column.name]
            return _placed(kept, new, position) if in_place else [*kept, new]
        case DropColumnEvent(_, name) if in_place:
            return [c for c in columns if c.name != name]
        case RenameColumnEvent(_, name, new_name):
            if in_place:
                return [replace(c, name=new_name) if c.name == name else c for c in columns]
            if new_name in work.schema.primary_key:
                raise SinkError(
                    f"{work.target}: the key column {name!r} was renamed to {new_name!r}, and the rows that exist "
                    f'would lose their key. Set pipeline.schema_change = "evolve" for this change.'
                )
            if ignored or new_name in [c.name for c in columns] or new_name not in wanted.names:
                return columns
            return [*columns, _Next(new_name, wanted.field(new_name).type, None)]
        case AlterColumnTypeEvent(_, name, new_type) if not ignored:
            want = pa.field(name, _stored(new_type.arrow()))
            return [_retyped(c, want, work) if c.name == name else c for c in columns]
        case AlterColumnPositionEvent(_, name, position) if in_place:
            moved = next((c for c in columns if c.name == name), None)
            return columns if moved is None else _placed([c for c in columns if c is not moved], moved, position)
        case _:
            return columns


def _renamed_onto(
    columns: list[_Next], events: Sequence[SchemaChangeEvent], wanted: pa.Schema, present: set[str], *, upsert: bool
) -> list[_Next]:
    """`columns`, where one that was renamed to the name of one that stayed does not show that one's values: an upsert
    target gets its own, the rows of a changelog never had the column.
    """
    #: Of each column that the source has: the table's column with its values.
    origins: dict[str, str | None] = {name: name for name in present}
    for event in events:
        match event:
            case RenameColumnEvent(_, name, new_name):
                origins[new_name] = origins.pop(name, None)
            case DropColumnEvent(_, name):
                origins.pop(name, None)
            case AddColumnEvent(_, column, _):
                origins[column.name] = None
    renamed = {event.new_name for event in events if isinstance(event, RenameColumnEvent)}
    onto = {name for name in renamed & set(wanted.names) & present if origins.get(name) != name}
    return [
        _Next(c.name, wanted.field(c.name).type, origins.get(c.name) if upsert else None) if c.name in onto else c
        for c in columns
    ]


def _retyped(column: _Next, want: pa.Field, work: TableWork) -> _Next:
    """The column with the type of `want`. `SinkError` unless every value of the old type is one of the new."""
    have, new = column.arrow, want.type
    if pa.types.is_decimal(have) and pa.types.is_decimal(new):
        fits = new.scale >= have.scale and new.precision - new.scale >= have.precision - have.scale
    else:
        same_kind = any(is_(have) and is_(new) for is_ in (pa.types.is_integer, pa.types.is_floating))
        fits = have == new or (same_kind and have.bit_width <= new.bit_width)
    if not fits:
        raise type_error(work.target, column.name, have, want)
    return replace(column, arrow=new)


def _with_all(columns: list[_Next], wanted: pa.Schema, work: TableWork, *, empty: bool) -> list[_Next]:
    """A table that was created again may have other columns; one without rows takes any types."""
    here = {column.name for column in columns}
    kept: list[_Next] = []
    for column in columns:
        if column.name not in wanted.names:
            kept.append(column)
        elif empty:
            kept.append(replace(column, arrow=wanted.field(column.name).type))
        else:
            kept.append(_retyped(column, wanted.field(column.name), work))
    return [*kept, *(_Next(field.name, field.type, None) for field in wanted if field.name not in here)]


def _placed(columns: list[_Next], column: _Next, position: ColumnPosition) -> list[_Next]:
    match position:
        case First():
            at = 0
        case After(name):
            at = next((i + 1 for i, c in enumerate(columns) if c.name == name), len(columns))
        case _:
            at = len(columns)
    return [*columns[:at], column, *columns[at:]]


def _check(target: TableId, columns: Sequence[_Next], schema: TableSchema, wanted: pa.Schema) -> None:
    """Every column that will be written must be there with its type."""
    there = {column.name: column for column in columns}
    for column in schema.columns:
        want = wanted.field(column.name)
        have = there.get(column.name)
        if have is None:
            raise SinkError(
                f"{target}: the source has a column {column.name!r} that the Iceberg table lacks, and no change says "
                "that it was added. Take a new snapshot of the table."
            )
        if have.arrow != want.type:
            raise type_error(target, have.name, have.arrow, want)


def _numbered(
    columns: Sequence[_Next],
    present: Sequence[StoredColumn],
    work: TableWork,
    *,
    next_id: int,
    upsert: bool,
    emptied: bool,
) -> Plan:
    """Ids for `columns`: a column's own while its values can be read from the files as they are, else new ones."""
    here = {column.name: column for column in present}
    kept_by: dict[int, str] = {}
    #: Of two columns with the values of one the one that keeps its name keeps the id.
    for column in sorted(columns, key=lambda c: c.name != c.origin):
        if column.origin is not None and _is_read_as(here[column.origin].arrow, column.arrow):
            kept_by.setdefault(here[column.origin].id, column.name)
    planned: list[PlannedColumn] = []
    rewritten = False
    for column in columns:
        origin = None if column.origin is None else here[column.origin].id
        constant = _constant(work.target, column.added) if upsert else None
        if origin is not None and kept_by.get(origin) == column.name:
            number = origin
        else:
            number, next_id = next_id, next_id + 1
            rewritten = rewritten or origin is not None or constant is not None
        planned.append(PlannedColumn(StoredColumn(number, column.name, type_text(column.arrow)), origin, constant))
    return Plan(tuple(planned), emptied=emptied, rewritten=rewritten and not emptied)


def _is_read_as(have: pa.DataType, want: pa.DataType) -> bool:
    """Iceberg's own promotions: int to long, float to double, a decimal to more digits before the point."""
    if have == want or (have, want) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        return True
    decimals = pa.types.is_decimal(have) and pa.types.is_decimal(want)
    return bool(decimals and have.scale == want.scale and have.precision <= want.precision)


def _constant(target: TableId, column: Column | None) -> str | None:
    """The constant default of an added column. `SinkError` where it is no value of its type."""
    if column is None or column.default is None:
        return None
    check_constant(target, column)
    return column.default


def _stored(arrow: pa.DataType) -> pa.DataType:
    return arrow_type(type_text(arrow))
