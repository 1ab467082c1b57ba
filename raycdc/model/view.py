"""How rows of one table look as rows of another schema: what a segment carries whose target merges several tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raycdc.model.schema import TableSchema


@dataclass(frozen=True, slots=True)
class RowView:
    """Rows of schema `source`, to be read as rows of `target`, which has all their columns in types that hold them.

    Columns are the same when their names differ in case alone. One that `source` lacks is null, or with `fill` the
    constant default that it was added with elsewhere.
    """

    source: TableSchema
    target: TableSchema
    fill: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source.to_json(), "target": self.target.to_json(), "fill": self.fill}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RowView:
        return cls(TableSchema.from_json(data["source"]), TableSchema.from_json(data["target"]), data["fill"])
