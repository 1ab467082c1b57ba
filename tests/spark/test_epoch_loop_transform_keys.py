"""The epoch loop with transforms that give rows another key, or keep those that are deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import DataError
from raycdc.model.rules.transform import Transform
from tests.epochs.transform_world import new_world, play_names, play_passed_names

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_a_deleted_row_is_marked_and_lives_again_when_it_is_inserted(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path, Transform(table="shop.orders", on_delete="soft"))
    orders = world.script.table("shop.orders")
    orders.read([{"id": i, "name": "a", "qty": i} for i in range(5)])
    orders.delete((0,))
    world.script.seal()
    orders.delete((1,))
    orders.update((2,), id=20)
    orders.update((3,), name="b")
    world.script.seal()
    orders.insert({"id": 1, "name": "again", "qty": None})
    orders.delete((3,))
    orders.insert({"id": 3, "name": "c", "qty": 3})
    world.script.seal(final=True)
    world.loop().run()
    found = {row["id"]: (row["name"], row["qty"], row["is_deleted"]) for row in world.target_rows("shop.orders")}
    assert found == {
        0: ("a", 0, True),
        1: ("again", None, False),
        2: ("a", 2, True),
        20: ("a", 2, False),
        3: ("c", 3, False),
        4: ("a", 4, False),
    }


def keyed(**options: Any) -> Transform:
    return Transform(table="shop.orders", primary_keys=("name",), **options)


def test_rows_are_updated_by_another_key_without_spark(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path, keyed())
    play_names(world)
    world.loop().run()
    found = {row["name"]: row["qty"] for row in world.target_rows("shop.orders")}
    assert found == {"N0": 7, "N8": 1, "N2": 20, "N3": 3}


@pytest.mark.parametrize("kind", ["delta-upsert", "iceberg-upsert"])
@pytest.mark.parametrize("projection", ["*", "name, qty"])
def test_a_key_that_passes_between_rows_is_the_last_owners_without_spark(
    tmp_path: Path, kind: str, projection: str
) -> None:
    world = new_world(kind, tmp_path, keyed(projection=projection))
    wanted = play_passed_names(world)
    world.loop().run()
    found = {row["name"]: row["qty"] for row in world.target_rows("shop.orders")}
    assert found == {f"N{name}": qty for name, qty in wanted.items()}


def test_a_new_key_without_a_value_is_refused(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path, keyed())
    world.script.table("shop.orders").insert({"id": 1, "name": None, "qty": 1})
    world.script.seal(final=True)
    with pytest.raises(DataError, match=r"shop.orders: a row has no value in name, which .* primary_keys names"):
        world.loop().run()


@pytest.mark.parametrize("kind", ["delta-upsert", "iceberg-upsert"])
def test_a_table_with_another_key_is_emptied(tmp_path: Path, kind: str) -> None:
    world = new_world(kind, tmp_path, keyed())
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 1})
    orders.insert({"id": 2, "name": "b", "qty": 2})
    world.script.seal()
    orders.truncate()
    orders.insert({"id": 3, "name": "a", "qty": 3})
    world.script.seal(final=True)
    world.loop().run()
    assert world.target_rows("shop.orders") == [{"id": 3, "name": "a", "qty": 3}]
