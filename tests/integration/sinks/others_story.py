"""One table with a key and two columns, and its target, which other people use beside the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.sink_world import World, world_of

INT = LogicalType(TypeKind.INT64)


def keyed(*names: str) -> TableSchema:
    return TableSchema(tuple(Column(name, INT, nullable=name != "id") for name in names), ("id",))


class OthersStory:
    """See the module's docstring; the server is empty when it begins."""

    def __init__(self, request: pytest.FixtureRequest, kind: str, root: Path) -> None:
        self.world: World = world_of(request, kind, root)
        self.world.script.tables = {}
        self.table: ScriptedTable = self.world.script.table("shop.t", keyed("id", "a", "b"))

    def seal(self, *rows: tuple[int, int, int], final: bool = True) -> None:
        """An epoch that puts in rows (id, a, b), new or not."""
        for id_, a, b in rows:
            if (id_,) in self.table.rows:
                self.table.update((id_,), a=a, b=b)
            else:
                self.table.insert({"id": id_, "a": a, "b": b})
        self.world.script.seal(final=final)

    def exchange_values(self) -> None:
        """An epoch in which rows 1 and 2 exchange their b, by way of a value that is nobody's any more, and that of row
        3 goes to a new row.
        """
        self.table.update((1,), b=9)
        self.table.update((2,), b=1)
        self.table.update((1,), b=2)
        self.table.update((3,), b=4)
        self.seal((4, 4, 3))

    def run(self, **options: Any) -> None:
        self.world.restart(sink=self.world.sink(**options))
