"""Views: how rows of one table are read as other rows. A segment carries one if its table is transformed or merged.

First a *projection* chooses, renames and adds columns; then rows become rows of a target that merges several tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict

from raycdc.model.schema import SchemaJson, TableSchema
from raycdc.model.types import LogicalType, TypeKind

#: An `Output` in a segment's descriptor: name, stored column, constant.
OutputJson = tuple[str, str, int | str | bool | None]


class ProjectionJson(TypedDict):
    """A `Projection` in a segment's descriptor."""

    outputs: list[OutputJson]
    deleted: str


class RowViewJson(TypedDict):
    """A `RowView` in a segment's descriptor."""

    source: SchemaJson
    target: SchemaJson
    fill: bool
    projection: NotRequired[ProjectionJson]


@dataclass(frozen=True, slots=True)
class Output:
    """A column of a projection: the stored (or metadata) column `stored`, or `constant` in all rows."""

    name: str
    stored: str = ""
    constant: int | str | bool | None = None

    def to_json(self) -> OutputJson:
        return self.name, self.stored, self.constant


@dataclass(frozen=True, slots=True)
class Projection:
    """Columns by name. With `deleted` a last column of this name says which rows are deleted: they stay, as updates."""

    outputs: tuple[Output, ...]
    deleted: str = ""

    def to_json(self) -> ProjectionJson:
        return {"outputs": [output.to_json() for output in self.outputs], "deleted": self.deleted}

    @classmethod
    def from_json(cls, data: ProjectionJson) -> Projection:
        return cls(tuple(Output(*entry) for entry in data["outputs"]), data["deleted"])


@dataclass(frozen=True, slots=True)
class RowView:
    """Rows of schema `source`, to be read as rows of `target`, which has all their columns in types that hold them.

    Columns are the same when their names differ in case alone. One that `source` lacks is null, or with `fill` the
    constant default that it was added with elsewhere. With a `projection` stored rows become ones of `source` by it.
    """

    source: TableSchema
    target: TableSchema
    fill: bool = False
    projection: Projection | None = None

    def to_json(self) -> RowViewJson:
        view = RowViewJson(source=self.source.to_json(), target=self.target.to_json(), fill=self.fill)
        return {**view, "projection": self.projection.to_json()} if self.projection else view

    @classmethod
    def from_json(cls, data: RowViewJson) -> RowView:
        projection = Projection.from_json(data["projection"]) if "projection" in data else None
        return cls(
            TableSchema.from_json(data["source"]), TableSchema.from_json(data["target"]), data["fill"], projection
        )


def projected(projection: Projection | None, names: Mapping[str, str]) -> Projection | None:
    """`projection` with further columns, each with the values of the one that `names` has for it."""
    if not names:
        return projection
    there = {output.name: output for output in projection.outputs} if projection is not None else {}
    more = (replace(there.get(old, Output(old, old)), name=new) for new, old in names.items())
    if projection is None:
        return Projection(tuple(more))
    return replace(projection, outputs=(*projection.outputs, *more))


def constant_type(value: object) -> LogicalType:
    """The type of a projection's constant, as Spark gives it."""
    match value:
        case bool():
            return LogicalType(TypeKind.BOOLEAN)
        case int():
            return LogicalType(TypeKind.INT32)
        case _:
            return LogicalType(TypeKind.STRING)
