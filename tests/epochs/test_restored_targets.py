"""Targets that somebody took back to an older version, or away: parked, and whole again by what the message says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table

from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import ParkReason
from raycdc.model.evolution import CreateTableEvent, TruncateTableEvent
from raycdc.sinks.iceberg.catalog import HadoopCatalog
from tests.epochs.sink_world import World, new_world, world_of


@dataclass(frozen=True, slots=True)
class Story:
    """`cause` takes rows from the target of shop.items; `way_out` does what `told` says before it is read anew."""

    kind: str
    cause: Callable[[World], None]
    told: str
    way_out: Callable[[World], None] = lambda _: None


def folder(world: World) -> Path:
    return world.root / "lake" / "shop" / "items"


def restored(world: World) -> None:
    table = DeltaTable(str(folder(world)))
    table.restore(table.version() - 1)


def iceberg(world: World) -> Table:
    return HadoopCatalog("raycdc", world.root / "lake").load_table(("shop", "items"))


def rolled_back(world: World) -> None:
    snapshot = iceberg(world).current_snapshot()
    assert snapshot is not None
    assert snapshot.parent_snapshot_id is not None
    iceberg(world).manage_snapshots().rollback_to_snapshot(snapshot.parent_snapshot_id).commit()


def rolled_forward(world: World) -> None:
    newest = max(iceberg(world).snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    iceberg(world).manage_snapshots().set_current_snapshot(newest.snapshot_id).commit()


def lost(world: World) -> None:
    world.lose(world.script.table("shop.items"))


def made_again(world: World) -> None:
    assert world.mongodb is not None
    with world.mongodb.client() as client:
        client["shop"].drop_collection("items")
        client["shop"].create_collection("items")


def drop(world: World) -> None:
    if world.mongodb is not None:
        lost(world)
    else:
        shutil.rmtree(folder(world))


STORIES = {
    "delta restored": Story("delta-upsert", restored, "Delete the folder, and read its source table anew", drop),
    "delta changelog restored": Story(
        "delta-changelog", restored, "Delete the folder, and read its source table anew", drop
    ),
    "iceberg rolled back, dropped": Story("iceberg-upsert", rolled_back, "delete its folder) and read its", drop),
    "iceberg rolled back, forward": Story("iceberg-upsert", rolled_back, "Roll it forward again", rolled_forward),
    "delta deleted": Story("delta-upsert", drop, "The target is made anew"),
    "iceberg deleted": Story("iceberg-changelog", drop, "The target is made anew"),
    "iceberg changelog rolled back": Story("iceberg-changelog", rolled_back, "delete its folder) and read its", drop),
    "mongodb deleted": Story("mongodb-upsert", lost, "The target is made anew"),
    "mongodb changelog deleted": Story("mongodb-changelog", lost, "The target is made anew"),
    "mongodb made again": Story("mongodb-upsert", made_again, "Drop the collection and read its source table", drop),
}


def marked(name: str) -> object:
    marks = [pytest.mark.server] if "mongodb" in STORIES[name].kind else []
    return pytest.param(name, marks=marks, id=name)


@pytest.mark.parametrize("name", [marked(name) for name in STORIES])
def test_a_target_that_lacks_what_it_had_is_whole_after_what_the_message_says(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    story = STORIES[name]
    world = world_of(request, story.kind, tmp_path)
    orders, items = (world.script.table(f"shop.{table}") for table in ("orders", "items"))
    numbers = {"shop.orders": 0, "shop.items": 0}

    def seal() -> None:
        world.script.seal(incarnations=numbers)
        world.loop(parking=ParkingPolicy()).recover()

    for table in (orders, items):
        table.read([{"id": n, "name": "read", "qty": n} for n in range(5)])
    seal()
    for number in range(3):
        for table in (orders, items):
            table.update((number,), name="changed")
        seal()
    story.cause(world)
    for table in (orders, items):
        table.insert({"id": 20, "name": "late", "qty": 1})
    seal()
    record = world.store.last_commit()
    assert record is not None
    entry = record.parked["shop.items"]
    assert (list(record.parked), entry.reason) == (["shop.items"], ParkReason.MISSING)
    assert story.told in entry.text
    assert "raycdc tables resnapshot CONFIG shop.items" in entry.text
    assert {row["id"] for row in world.rows(orders)} == {*range(5), 20}
    story.way_out(world)
    kept = items.contents()
    items.truncate()
    items.changelog.clear()
    first = (TruncateTableEvent(items.id), CreateTableEvent(items.id, items.schema))
    items.changes += first
    numbers["shop.items"] = 1
    seal()
    items.read(kept)
    seal()
    for table in (orders, items):
        table.delete((20,))
    seal()
    record = world.store.last_commit()
    assert record is not None
    assert record.parked == {}
    for table in (orders, items):
        held = [row for row in world.rows(table) if world.write == "upsert" or row["_op"] != "T"]
        if world.write == "upsert":
            assert sorted(held, key=lambda row: row["id"]) == table.contents()
        else:
            changes = [(row["_op"], row["id"]) for row in sorted(held, key=lambda row: row["_seq"])]
            wanted = [(op, row["id"]) for op, row in table.changelog]
            assert changes[-len(wanted) :] == wanted


def test_an_iceberg_table_that_is_rolled_forward_again_goes_on(tmp_path: Path) -> None:
    """Before anything was recorded: where such a table ends the run."""
    world = new_world("iceberg-upsert", tmp_path)
    for name in ("shop.orders", "shop.items"):
        world.script.table(name).read([{"id": n, "name": "read", "qty": n} for n in range(5)])
    world.script.seal()
    world.loop().recover()
    world.script.table("shop.items").update((1,), name="changed")
    world.script.seal()
    world.loop().recover()
    rolled_back(world)
    with pytest.raises(Exception, match="Roll it forward again, or drop the table"):
        world.loop().recover()
    rolled_forward(world)
    world.script.table("shop.items").update((2,), name="changed")
    world.script.seal(final=True)
    world.restart()
    world.check()
