"""Schema changes carried out on a Delta table: what ``pipeline.schema_change`` makes of them, in one commit.

Called by `sink`. The table's next shape is planned as columns with their origins; new columns at the end
are added as metadata, anything else (a wider type, a new name, place or absence of a column) writes the table anew,
streamed through this process: Delta without column mapping knows no other way that every reader understands.

| change | lenient | evolve, try_evolve | ignore |
|---|---|---|---|
| a column is added | at the end, nullable; rows that exist get its constant default | where it is | left out |
| … dropped | stays, null from here on | goes, values and all | stays, null from here on |
| … renamed | the old one stays, the new one begins with nulls (*) | renamed | as left out |
| … gets a wider type | the rows that exist get it | the same | refused if the types differ |
| … moves | nothing | moves | nothing |
| the table is emptied or dropped | its rows go (upsert) | the same | the same |

A column that comes again under the name of one that stayed begins anew: nothing of the old one is left in the rows.
(*) So does one that is renamed to such a name, but in an upsert target with the values it had under its old name.
``try_evolve`` leaves out what cannot be done. Within its epoch a change is done once: a rewriting commit carries the
vector, an added column that is there already begins anew, and its values are set before the vector says so. Names that
were exchanged under one epoch must not come again under another, which recovery sees to (`raycdc.checkpoint.recovery`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from raycdc.errors import SinkError
from raycdc.model import Column, TableId, TableSchema
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
from raycdc.sinks.delta.columns import default_sql, type_error
from raycdc.sinks.delta.layout import unfit
from raycdc.sinks.delta.table import DeltaTarget, Rewritten, Stamp

_IN_PLACE = frozenset({SchemaChangeBehavior.EVOLVE, SchemaChangeBehavior.TRY_EVOLVE})


@dataclass(frozen=True, slots=True)
class _Planned:
    """A column of the table as it will be; `origin` is the column whose values it has, None for a new one."""

    field: pa.Field
    origin: str | None
    column: Column | None = None


def evolve(
    target: DeltaTarget,
    work: TableWork,
    wanted: pa.Schema,
    stamp: Stamp,
    *,
    upsert: bool,
    behavior: SchemaChangeBehavior,
    left_out: Collection[str] = (),
) -> None:
    """Carry ``work.changes`` out on the table but those `left_out`, and write the vector of `stamp` with them."""
    events = [event_from_json(data) for data in work.changes if data["type"] not in left_out]
    emptied = upsert and any(isinstance(e, TruncateTableEvent | DropTableEvent) for e in events)
    present = target.arrow()
    planned = [_Planned(field, field.name) for field in present]
    for event in events:
        try:
            if emptied and isinstance(event, CreateTableEvent) and behavior is not SchemaChangeBehavior.IGNORE:
                planned = _emptied_with_all(planned, wanted)
            else:
                planned = _after(planned, event, wanted, work, behavior)
        except SinkError:
            if behavior is not SchemaChangeBehavior.TRY_EVOLVE:
                raise
    if behavior is SchemaChangeBehavior.LENIENT:
        planned = _renamed_onto(planned, events, wanted, present, upsert=upsert)
    _check_partitions(target, planned, events)
    names = [p.field.name for p in planned]
    _check(target, planned, fitted(work.schema, names) if may_lack(behavior, left_out) else work.schema, wanted)
    added = [p for p in planned if p.origin is None]
    if [p.origin for p in planned[: len(present)]] == present.names and _same_fields(planned, present):
        if added:
            target.add_columns([p.field for p in added if p.field.name not in present.names], stamp)
    else:
        columns = [Rewritten(p.field, p.origin, _constant(target.name, p.column) if upsert else None) for p in planned]
        target.rewrite(columns, stamp, empty=emptied)
    if emptied:
        target.overwrite(target.arrow().empty_table(), stamp)
    elif upsert:
        _fill(target, [e.column for e in events if isinstance(e, AddColumnEvent) and e.column.name in names], stamp)
    target.mark(stamp)


def _after(
    planned: list[_Planned],
    event: SchemaChangeEvent,
    wanted: pa.Schema,
    work: TableWork,
    behavior: SchemaChangeBehavior,
) -> list[_Planned]:
    """The columns after one change."""
    in_place = behavior in _IN_PLACE
    ignored = behavior is SchemaChangeBehavior.IGNORE
    match event:
        case CreateTableEvent():
            return planned if ignored else _with_all(planned, wanted, work)
        case AddColumnEvent(_, column, position) if not ignored:
            new = _Planned(pa.field(column.name, column.type.arrow()), None, column)
            kept = [p for p in planned if p.field.name != column.name]
            return _placed(kept, new, position) if in_place else [*kept, new]
        case DropColumnEvent(_, name) if in_place:
            return [p for p in planned if p.field.name != name]
        case RenameColumnEvent(_, name, new_name):
            if in_place:
                return [replace(p, field=p.field.with_name(new_name)) if p.field.name == name else p for p in planned]
            if new_name in work.schema.primary_key:
                raise SinkError(
                    f"{work.target}: the key column {name!r} was renamed to {new_name!r}, and the rows that exist "
                    f'would lose their key. Set pipeline.schema_change = "evolve" for this change.'
                )
            if ignored or new_name in [p.field.name for p in planned] or new_name not in wanted.names:
                return planned
            return [*planned, _Planned(wanted.field(new_name), None)]
        case AlterColumnTypeEvent(_, name, new_type) if not ignored:
            return [
                _retyped(p, p.field.with_type(new_type.arrow()), work) if p.field.name == name else p for p in planned
            ]
        case AlterColumnPositionEvent(_, name, position) if in_place:
            moved = next((p for p in planned if p.field.name == name), None)
            return planned if moved is None else _placed([p for p in planned if p is not moved], moved, position)
        case _:
            return planned


def _renamed_onto(
    planned: list[_Planned], events: Sequence[SchemaChangeEvent], wanted: pa.Schema, present: pa.Schema, *, upsert: bool
) -> list[_Planned]:
    """`planned`, where a column that was renamed to the name of one that stayed does not show that one's values.

    An upsert target gets its own, as ``DROP b, RENAME a TO b`` and ``RENAME a TO b, RENAME b TO a`` want it; the rows
    of a changelog never had the column, and have nulls.
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
    onto = {name for name in renamed & set(wanted.names) & set(present.names) if origins.get(name) != name}
    return [
        _Planned(wanted.field(p.field.name), origins.get(p.field.name) if upsert else None)
        if p.field.name in onto
        else p
        for p in planned
    ]


def _retyped(column: _Planned, wanted: pa.Field, work: TableWork) -> _Planned:
    """The column with the type of `wanted`. `SinkError` unless every value of the old type is one of the new."""
    have, want = column.field.type, wanted.type
    if pa.types.is_decimal(have) and pa.types.is_decimal(want):
        fits = want.scale >= have.scale and want.precision - want.scale >= have.precision - have.scale
    else:
        fits = have == want or any(is_(have) and is_(want) for is_ in (pa.types.is_integer, pa.types.is_floating))
        fits = fits and (have == want or have.bit_width <= want.bit_width)
    if not fits:
        raise type_error(work.target, column.field, wanted)
    return replace(column, field=column.field.with_type(want))


def _with_all(planned: list[_Planned], wanted: pa.Schema, work: TableWork) -> list[_Planned]:
    """A table that was created again may have other columns; its rows went with the old one."""
    here = {p.field.name: p for p in planned}
    retyped = [_retyped(p, wanted.field(name), work) if name in wanted.names else p for name, p in here.items()]
    return [*retyped, *(_Planned(field, None) for field in wanted if field.name not in here)]


def _emptied_with_all(planned: list[_Planned], wanted: pa.Schema) -> list[_Planned]:
    """A table without rows takes any types."""
    here = {p.field.name: p for p in planned}
    kept = [
        replace(p, field=p.field.with_type(wanted.field(name).type)) if name in wanted.names else p
        for name, p in here.items()
    ]
    return [*kept, *(_Planned(field, None) for field in wanted if field.name not in here)]


def _placed(columns: list[_Planned], column: _Planned, position: ColumnPosition) -> list[_Planned]:
    match position:
        case First():
            at = 0
        case After(name):
            at = next((i + 1 for i, p in enumerate(columns) if p.field.name == name), len(columns))
        case _:
            at = len(columns)
    return [*columns[:at], column, *columns[at:]]


def _same_fields(planned: Sequence[_Planned], present: pa.Schema) -> bool:
    """Whether the columns that were there keep name and type, and new ones have new names."""
    old, new = planned[: len(present)], planned[len(present) :]
    unchanged = all(p.field.name == f.name and p.field.type == f.type for p, f in zip(old, present, strict=True))
    return unchanged and all(p.origin is None and p.field.name not in present.names for p in new)


def _check(target: DeltaTarget, planned: Sequence[_Planned], schema: TableSchema, wanted: pa.Schema) -> None:
    """Every column that will be written must be there with its type."""
    there = {p.field.name: p.field for p in planned}
    for column in schema.columns:
        want = wanted.field(column.name)
        have = there.get(column.name)
        if have is None:
            raise SinkError(
                f"{target.name}: the source has a column {column.name!r} that the Delta table lacks, and no change "
                "says that it was added. Take a new snapshot of the table."
            )
        if have.type != want.type:
            raise type_error(target.name, have, want)


def _check_partitions(target: DeltaTarget, planned: Sequence[_Planned], events: Sequence[SchemaChangeEvent]) -> None:
    """Columns that the table is partitioned by stay what they are, but for a wider type."""
    kept = {p.field.name for p in planned if p.origin == p.field.name}
    added = {event.column.name for event in events if isinstance(event, AddColumnEvent)}
    for name in target.partition_columns:
        if name not in kept or name in added:
            raise SinkError(
                f"{target.name}: column {name!r} was dropped, renamed or made anew at the source, and the Delta table "
                "is partitioned by it. Take the change back, or take a new snapshot into a new path, or with "
                'pipeline.on_existing = "replace"; both with a new pipeline.state.'
            )
    for p in planned:
        if p.field.name in target.partition_columns and (odd := unfit(p.field.name, p.field.type)):
            raise SinkError(f"{target.name}: {odd}")


def _constant(target: TableId, column: Column | None) -> pa.Scalar | None:
    """The constant default of an added column as a value of its type."""
    if column is None or column.default is None:
        return None
    return check_constant(target, column)


def _fill(target: DeltaTarget, added: Sequence[Column], stamp: Stamp) -> None:
    """Give the rows that exist what the source's have: the constant default of an added column.

    Judged by the changes and not by what was missing: an earlier try may have added the column and died before this.
    """
    values = {column.name: default_sql(target.name, column) for column in added if column.default is not None}
    if values:
        target.fill(values, stamp)
