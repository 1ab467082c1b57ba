"""Views: conversions of a table's stored rows to rows of a target, applied when a segment is read.

A segment carries a view if its table is transformed or merged. First a *projection* selects, renames and adds columns.
Then rows are converted to the columns of a target that merges several tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from raycdc.core.typed_codec import LEFT_OUT, JsonObject
from raycdc.model.schema import TableSchema
from raycdc.model.types import LogicalType, TypeKind


@dataclass(frozen=True, slots=True)
class Output:
    """A column of a projection: the values of the stored (or metadata) column `stored`, or `constant` in all rows."""

    name: str
    stored: str = ""
    constant: int | str | bool | None = None


@dataclass(frozen=True, slots=True)
class Projection(JsonObject):
    """A projection to columns by name.

    If `deleted` is set, an additional last column of this name marks deleted rows: a deletion becomes an update that
    sets this column.
    """

    outputs: tuple[Output, ...]
    deleted: str = ""


@dataclass(frozen=True, slots=True)
class RowView(JsonObject):
    """A view of rows of schema `source` as rows of `target`, which has all their columns in types that hold their
    values.

    Names that differ only in case are the same column. A column that `source` lacks is null; if `fill` is True, it has
    the constant default with which a different source of the target added it. A `projection` first converts stored rows
    to rows of `source`. If the target's key does not identify the rows of the source table, `owner` names the stored
    columns that do (`raycdc.model.keys.owners`).
    """

    source: TableSchema
    target: TableSchema
    fill: bool = False
    projection: Projection | None = field(default=None, metadata=LEFT_OUT)
    owner: tuple[str, ...] = field(default=(), metadata=LEFT_OUT)


def projected(projection: Projection | None, names: Mapping[str, str]) -> Projection | None:
    """Return `projection` with additional columns.

    `names` maps each new column to the column whose values it has.
    """
    if not names:
        return projection
    there = {output.name: output for output in projection.outputs} if projection is not None else {}
    more = (replace(there.get(old, Output(old, old)), name=new) for new, old in names.items())
    if projection is None:
        return Projection(tuple(more))
    return replace(projection, outputs=(*projection.outputs, *more))


def constant_type(value: object) -> LogicalType:
    """Return the type of a projection's constant, as in Spark."""
    match value:
        case bool():
            return LogicalType(TypeKind.BOOLEAN)
        case int():
            return LogicalType(TypeKind.INT32)
        case _:
            return LogicalType(TypeKind.STRING)
