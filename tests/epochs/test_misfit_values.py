"""The epoch loop over values that a target can never have: left out as ``on_bad_record`` says, or named and parked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.rows.bad_row_filter import BadRowFilter
from raycdc.delivery.targets.parked_targets import ParkingPolicy, Parks
from raycdc.errors import ValueRefusedError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.segments.bad_rows import DEAD_LETTER, FAIL, PARK, SKIP, BadRecords
from raycdc.state.bad_row_counts import bad_rows
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.sink_world import World, world_of

pytestmark = pytest.mark.server

BYTES = LogicalType(TypeKind.BINARY, native="bson")
#: For each kind of sink a column, a value that it takes and one that it never has.
ODD: dict[str, tuple[LogicalType, Any, Any]] = {
    "postgres-upsert": (LogicalType(TypeKind.STRING), "good", "b\0d"),
    "postgres-changelog": (LogicalType(TypeKind.STRING), "good", "b\0d"),
    "mysql-upsert": (LogicalType(TypeKind.FLOAT64), 1.0, float("inf")),
    "mongodb-upsert": (LogicalType(TypeKind.STRING, native="objectId"), "a" * 24, "none"),
    "mongodb-parts-upsert": (LogicalType(TypeKind.STRING, native="objectId"), "a" * 24, "none"),
}


class BadRows:
    """A table with a key and a column, and the policy for its bad rows."""

    def __init__(self, request: pytest.FixtureRequest, kind: str, root: Path, action: str) -> None:
        self.kind, self.root, self.action = kind, root, action
        self.world: World = world_of(request, kind, root)
        self.world.script.tables = {}
        self.type, self.good, self.bad = ODD[kind]
        columns = (Column("id", LogicalType(TypeKind.INT64), nullable=False), Column("v", self.type))
        self.table: ScriptedTable = self.world.script.table("shop.t", TableSchema(columns, ("id",)))
        self.told: list[str] = []
        self.parked: list[str] = []

    def loop(self) -> EpochLoop:
        letters = str(self.root / "letters") if self.action == DEAD_LETTER else ""
        records = BadRecords(self.action, letters, self.world.write == "upsert")
        routing = replace(
            self.world.routing, bad_row_filter=BadRowFilter(records, self.root / "derived"), records=records
        )
        parks = Parks(values=self.action != FAIL)
        parking = ParkingPolicy(
            parks,
            on_parked=lambda new: self.parked.extend(entry.text for entry in new.values()),
            on_bad_rows=self.told.append,
        )
        return self.world.loop(routing=routing, parking=parking)

    def play(self) -> None:
        """Two epochs: good rows; then a bad row that comes, one that becomes bad, and good ones beside them."""
        for number in (1, 2, 3):
            self.table.insert({"id": number, "v": self.good})
        self.world.script.seal()
        self.table.insert({"id": 4, "v": self.bad})
        self.table.update((2,), v=self.bad)
        self.table.insert({"id": 5, "v": self.good})
        self.table.delete((3,))
        self.world.script.seal()
        # What was bad is mended, and what is bad goes.
        self.table.update((2,), v=self.good)
        self.table.delete((4,))
        self.world.script.seal(final=True)


@pytest.mark.parametrize("action", [SKIP, DEAD_LETTER])
@pytest.mark.parametrize("kind", [kind for kind in ODD if kind.endswith("-upsert")])
def test_rows_that_a_target_can_never_have_are_left_out(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, action: str
) -> None:
    story = BadRows(request, kind, tmp_path, action)
    story.play()
    story.loop().run()
    rows = sorted((row["id"], str(row["v"])) for row in story.world.rows(story.table))
    assert rows == [(number, str(story.good)) for number in (1, 2, 5)]
    assert not story.parked
    assert bad_rows(story.world.store, 3) == {"shop.t": 2}
    (told,) = story.told
    assert "shop.t: 2 rows of epoch 2 left out" in told
    assert "v has" in told or "column v is" in told
    assert "the row at log:" in told
    lines = [line for path in (tmp_path / "letters").glob("*") for line in path.read_text().splitlines()]
    keys = sorted(json.loads(line)["row"]["id"] for line in lines)
    assert keys == ([2, 4] if action == DEAD_LETTER else [])


@pytest.mark.parametrize("kind", ["postgres-upsert", "mongodb-upsert"])
def test_one_that_is_read_again_takes_the_row_with_it_that_it_was(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """As an update in the log would, which nobody wrote."""
    story = BadRows(request, kind, tmp_path, SKIP)
    for number in (1, 2, 3):
        story.table.insert({"id": number, "v": story.good})
    story.world.script.seal()
    story.table.rows[(2,)] = {"id": 2, "v": story.bad}
    story.table.read_again((1,), (2,))
    story.world.script.seal(final=True)
    story.loop().run()
    assert sorted(row["id"] for row in story.world.rows(story.table)) == [1, 3]
    assert bad_rows(story.world.store, 2) == {"shop.t": 1}


def test_one_whose_key_the_target_can_never_have_is_left_out_and_nothing_else(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    story = BadRows(request, "postgres-upsert", tmp_path, SKIP)
    columns = (Column("id", LogicalType(TypeKind.STRING), nullable=False), Column("v", LogicalType(TypeKind.STRING)))
    table = story.world.script.table("shop.texts", TableSchema(columns, ("id",)))
    for key in ("a", "b"):
        table.insert({"id": key, "v": "good"})
    story.world.script.seal()
    table.rows |= {("n\0",): {"id": "n\0", "v": "new"}, ("b",): {"id": "b", "v": "b\0d"}}
    table.read_again(("a",), ("n\0",), ("b",))
    story.world.script.seal(final=True)
    story.loop().run()
    assert {row["id"] for row in story.world.rows(table)} == {"a"}
    assert bad_rows(story.world.store, 2) == {"shop.texts": 2}


def test_a_changelog_goes_on_without_them(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    story = BadRows(request, "postgres-changelog", tmp_path, SKIP)
    story.play()
    story.loop().run()
    rows = sorted(story.world.rows(story.table), key=lambda row: row["_seq"])
    assert [(row["_op"], row["id"]) for row in rows] == [
        ("+I", 1),
        ("+I", 2),
        ("+I", 3),
        ("-D", 2),
        ("+I", 5),
        ("-D", 3),
        ("+I", 2),
    ]


@pytest.mark.parametrize("kind", list(ODD))
def test_a_table_is_parked_by_the_row_and_column(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    story = BadRows(request, kind, tmp_path, PARK)
    story.play()
    story.loop().run()
    (text,) = story.parked
    assert "shop.t" in text
    assert "olumn v " in text
    assert "the row at log:2:0 with its key in (id)" in text
    assert "b\0d" not in text


def test_the_run_ends_by_the_row_and_column(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    story = BadRows(request, "postgres-upsert", tmp_path, FAIL)
    story.play()
    with pytest.raises(ValueRefusedError, match=r"shop\.t: column v has a NUL.*with its key in \(id\)"):
        story.loop().run()
