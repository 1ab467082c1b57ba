"""Schema changes of an Iceberg table: what ``pipeline.schema_change`` makes of them, planned by field ids. Pure.

Called by `sink`, which carries the plan out in one commit with the vector. A column keeps its id as
long as it is the same column, under whatever name and at whatever place: then the change is metadata only. The data
files are written anew where rows get a value that no file has: a constant default, a type that Iceberg does not read
the old values as (a decimal's scale), a second column with the values of one.

`raycdc.sinks.lake_columns` plans the columns. A column that begins anew does so under a new id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from raycdc.sinks.api import TableWork
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.iceberg.files import StoredColumn, arrow_type, type_text
from raycdc.sinks.lake_columns import LakeFormat, LakePlan, constant_of, plan_columns, type_error


def _stored(arrow: pa.DataType) -> pa.DataType:
    return arrow_type(type_text(arrow))


FORMAT = LakeFormat("Iceberg", _stored)


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


def plan(
    present: Sequence[StoredColumn],
    work: TableWork,
    wanted: pa.Schema,
    rules: ChangeRules,
    *,
    next_id: int,
) -> Plan:
    """The plan of ``work.changes`` for a table with the columns `present`.

    `wanted` are the columns of the rows to come (`files.stored`). `SinkError` for what the table cannot follow.
    """
    there = pa.schema([pa.field(column.name, column.arrow) for column in present])
    planned = plan_columns(FORMAT, there, work, wanted, rules)
    return _numbered(planned, present, work, next_id=next_id, upsert=rules.upsert)


def mergeable(present: Sequence[StoredColumn], wanted: pa.Schema, work: TableWork, *, next_id: int) -> Plan:
    """The columns of a table that was there before, with those that it lacks. `SinkError` where types differ."""
    there = {column.name.casefold(): column for column in present}
    for want in wanted:
        have = there.get(want.name.casefold())
        if have is not None and (have.arrow != want.type or have.name != want.name):
            raise type_error(FORMAT, work.target, pa.field(have.name, have.arrow), want)
    missing = [field for field in wanted if field.name.casefold() not in there]
    new = [StoredColumn(next_id + at, field.name, type_text(field.type)) for at, field in enumerate(missing)]
    kept = [PlannedColumn(column, column.id) for column in present]
    return Plan((*kept, *(PlannedColumn(column, None) for column in new)), emptied=False, rewritten=False)


def _numbered(lake: LakePlan, present: Sequence[StoredColumn], work: TableWork, *, next_id: int, upsert: bool) -> Plan:
    """Ids for the columns: a column's own while its values can be read from the files as they are, else new ones."""
    here = {column.name: column for column in present}
    kept_by: dict[int, str] = {}
    #: Of two columns with the values of one the one that keeps its name keeps the id.
    for column in sorted(lake.columns, key=lambda c: c.field.name != c.origin):
        if column.origin is not None and _is_read_as(here[column.origin].arrow, column.field.type):
            kept_by.setdefault(here[column.origin].id, column.field.name)
    planned: list[PlannedColumn] = []
    rewritten = False
    for column in lake.columns:
        name, origin = column.field.name, None if column.origin is None else here[column.origin].id
        checked = constant_of(work.target, column) if upsert else None
        constant = column.added.default if checked is not None and column.added is not None else None
        if origin is not None and kept_by.get(origin) == name:
            number = origin
        else:
            number, next_id = next_id, next_id + 1
            rewritten = rewritten or origin is not None or constant is not None
        planned.append(PlannedColumn(StoredColumn(number, name, type_text(column.field.type)), origin, constant))
    return Plan(tuple(planned), emptied=lake.emptied, rewritten=rewritten and not lake.emptied)


def _is_read_as(have: pa.DataType, want: pa.DataType) -> bool:
    """Iceberg's own promotions: int to long, float to double, a decimal to more digits before the point."""
    if have == want or (have, want) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        return True
    decimals = pa.types.is_decimal(have) and pa.types.is_decimal(want)
    return bool(decimals and have.scale == want.scale and have.precision <= want.precision)
