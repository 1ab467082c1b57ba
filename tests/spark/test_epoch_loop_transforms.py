"""The epoch loop with transforms: computed columns, filters, keys and soft deletion, whatever dies where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from raycdc.config import LookupOptions
from raycdc.core.failpoints import FailpointError
from raycdc.delivery.outcomes import Recovery
from raycdc.errors import ConfigError, DataError, SchemaError, StateError
from raycdc.model.evolution import DropColumnEvent, RenameColumnEvent
from raycdc.model.rules.routes import Route
from raycdc.model.rules.transform import Transform
from raycdc.sandbox.servers import MongoDb
from raycdc.spark import derive
from tests.epochs.transform_world import ORDERS, add_column, new_world, play, play_shards

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


KINDS = ("delta-upsert", "delta-changelog", "iceberg-upsert", "iceberg-changelog", "parquet", "jsonl")
WORKERS = "in Python workers"


def ways() -> Iterator[Any]:
    """Each kind with what is derived here, and two with what workers derive: the suite ``sinks`` plays the others, as
    no sink knows where its rows were derived.
    """
    for kind in KINDS:
        yield kind, "in this process"
        marks = () if kind in ("delta-upsert", "jsonl") else (pytest.mark.long(suite="sinks"),)
        yield pytest.param(kind, WORKERS, marks=marks)


@pytest.fixture(params=["in this process", WORKERS])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "in this process":
        monkeypatch.setattr(derive, "IN_PROCESS_BYTES_MAX", 0)
    return str(request.param)


@pytest.mark.parametrize(("kind", "way"), list(ways()), indirect=["way"])
def test_rows_are_computed_and_filtered_and_a_later_column_flows(
    kind: str, tmp_path: Path, spark: Any, way: str
) -> None:
    world = new_world(kind, tmp_path, spark=spark)
    orders = play(world)
    world.loop().run()
    world.check_table(orders)
    assert list((tmp_path / "derived").iterdir()) == []
    assert world.restart() == Recovery(4)


def test_columns_stand_where_the_projection_puts_them(tmp_path: Path, spark: Any) -> None:
    world = new_world("jsonl", tmp_path, spark=spark)
    play(world)
    world.loop().run()
    first, last = world.target_rows("shop.orders")[0], world.target_rows("shop.orders")[-1]
    meta = ["_op", "_seq", "_ts_ms", "_db", "_table", "_pos"]
    assert list(first) == ["id", "name", "qty", "twice", "origin", "shout", "seven", *meta]
    assert list(last) == ["id", "name", "qty", "note", "twice", "origin", "shout", "seven", *meta]


def deaths() -> Iterator[Any]:
    """Delta's at each point, the others' in a commit; the suite ``sinks`` plays all."""
    for kind, point in product(
        ("delta-upsert", "iceberg-upsert", "jsonl"), ("before_commit", "in_commit", "after_last_commit")
    ):
        long = kind != "delta-upsert" and point != "in_commit"
        yield pytest.param(kind, point, marks=[pytest.mark.long(suite="sinks")] if long else [])


@pytest.mark.parametrize(("kind", "point"), list(deaths()))
def test_an_epoch_that_is_staged_again_has_the_same_rows(
    kind: str, point: str, tmp_path: Path, spark: Any, fail_at: Callable[[str, int], None]
) -> None:
    world = new_world(kind, tmp_path, spark=spark)
    orders = play(world)
    fail_at(point, 2)
    with pytest.raises(FailpointError):
        world.loop().run()
    world.restart()
    world.check_table(orders)


def test_many_batches_and_updates_over_their_ends(tmp_path: Path, spark: Any, way: str) -> None:
    world = new_world("delta-changelog", tmp_path, spark=spark)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    orders = world.script.table("shop.orders")
    for i in range(45_000):
        orders.insert({"id": i, "name": "n" * (i % 50), "qty": i % 30})
        if i % 2:
            orders.update((i,), qty=i % 29)
    world.script.seal(final=True)
    world.loop().run()
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    world.check_table(orders)


FUNCTIONS = """
from pyspark.sql.functions import udf

@udf(returnType="string", useArrow=True)
def spelled(name, qty):
    return f"{name}:{qty}"
"""


def test_functions_of_users_compute_columns_of_several_tables(
    tmp_path: Path, spark: Any, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"functions_{way.replace(' ', '_').lower()}"
    (tmp_path / f"{module}.py").write_text(FUNCTIONS)
    spark.sparkContext.addPyFile(str(tmp_path / f"{module}.py"))
    both = Transform(
        table=r"shop\..*", projection="id, spelled(name, qty) AS word", udfs=(("spelled", f"{module}:spelled"),)
    )
    world = new_world("delta-upsert", tmp_path, both, spark=spark)
    world.script.table("shop.items")
    world.script.random_epoch(operations=20)
    world.script.seal(final=True)
    world.loop().run()
    for name in ("shop.orders", "shop.items"):
        expected = [{"id": r["id"], "word": f"{r['name']}:{r['qty']}"} for r in world.script.table(name).contents()]
        assert sorted(world.target_rows(name), key=lambda row: row["id"]) == expected


def test_a_table_goes_transformed_to_all_its_targets(tmp_path: Path, spark: Any) -> None:
    world = new_world("delta-upsert", tmp_path, spark=spark)
    world.routes = (Route("shop.orders", "lake.a"), Route("shop.orders", "lake.b"))
    orders = play(world)
    world.loop().run()
    world.check_table(orders, "lake.a")
    world.check_table(orders, "lake.b")


def test_transformed_tables_are_merged_by_what_they_became(tmp_path: Path, spark: Any) -> None:
    shard = r"shop\.orders_(\d)"
    transform = Transform(table=shard, projection="id * 10 + CAST(right(_table, 1) AS INT) AS key, name",
                          primary_keys=("key",), filter="qty > 0")  # fmt: skip
    world = new_world("delta-upsert", tmp_path, transform, spark=spark)
    world.routes = (Route(shard, "lake.orders"),)
    play_shards(world)
    world.loop().run()
    expected = {31: "orders_1", 51: "orders_1", 12: "orders_2", 22: "orders_2", 32: "orders_2"}
    assert {row["key"]: row["name"] for row in world.target_rows("lake.orders")} == expected


def test_plain_projections_need_no_spark(tmp_path: Path) -> None:
    plain = Transform(table="shop.*", projection="id AS number, * EXCEPT (id, qty), _db AS origin, true AS new")
    world = new_world("delta-upsert", tmp_path, plain)
    orders = play(world)
    world.loop().run()
    expected = [
        {"number": r["id"], "name": r["name"], "note": r["note"], "origin": "shop", "new": True}
        for r in orders.contents()
    ]
    assert sorted(world.target_rows("shop.orders"), key=lambda row: row["number"]) == expected
    assert not (tmp_path / "derived").exists()


def test_an_emptied_table_is_emptied_and_has_no_computed_values(tmp_path: Path, spark: Any) -> None:
    world = new_world("jsonl", tmp_path, replace(ORDERS, projection="*, coalesce(qty, 1) AS n, 2 AS two"), spark=spark)
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 1})
    orders.truncate()
    world.script.seal(final=True)
    world.loop().run()
    got = [(row["_op"], row["id"], row["n"], row["two"]) for row in world.target_rows("shop.orders")]
    assert got == [("+I", 1, 1, 2), ("T", None, None, None)]


def test_a_value_that_an_expression_cannot_take_ends_the_run(tmp_path: Path, spark: Any, way: str) -> None:
    world = new_world("jsonl", tmp_path, Transform(table="shop.orders", projection="id, 1 / qty AS x"), spark=spark)
    world.script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 0})
    world.script.seal(final=True)
    with pytest.raises(DataError, match=r"shop.orders: its transform failed on a value: .*DIVIDE_BY_ZERO"):
        world.loop().run()
    assert world.store.last_commit() is None


@pytest.mark.parametrize(
    ("change", "column"),
    [("drop", "qty"), ("rename", "qty"), ("rename to", "name")],
)
def test_a_change_of_a_column_that_is_named_is_refused(tmp_path: Path, spark: Any, change: str, column: str) -> None:
    transform = Transform(table="shop.orders", projection="id, qty * 2 AS twice, name AS label")
    world = new_world("jsonl", tmp_path, transform, spark=spark)
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 1})
    world.script.seal()
    there = {c.name: c for c in orders.schema.columns}
    columns = (there["id"], there["name"], there["qty"])
    event: Any = DropColumnEvent(orders.id, "qty")
    if change == "rename":
        # Another column comes under the name at once: the expression would find it.
        event = RenameColumnEvent(orders.id, "qty", "old")
    elif change == "rename to":
        event = RenameColumnEvent(orders.id, "other", "name")
    orders.changes.append(event)
    orders.schema = type(orders.schema)(columns, ("id",))
    orders.insert({"id": 2, "name": "b", "qty": 2})
    world.script.seal(final=True)
    with pytest.raises(SchemaError, match=rf"shop.orders: \w+ of column '{column}', which the table's transform names"):
        world.loop().run()
    assert [row["id"] for row in world.target_rows("shop.orders")] == [1]


def test_columns_that_nothing_names_come_and_go(tmp_path: Path, spark: Any) -> None:
    transform = Transform(table="shop.orders", projection="id, qty * 2 AS twice")
    world = new_world("delta-upsert", tmp_path, transform, spark=spark)
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 1})
    world.script.seal()
    add_column(orders, "note")
    orders.changes.append(DropColumnEvent(orders.id, "name"))
    orders.schema = type(orders.schema)(tuple(c for c in orders.schema.columns if c.name != "name"), ("id",))
    orders.insert({"id": 2, "qty": 2, "note": "x"})
    world.script.seal(final=True)
    world.loop().run()
    assert sorted(map(str, world.target_rows("shop.orders"))) == ["{'id': 1, 'twice': 2}", "{'id': 2, 'twice': 4}"]


@pytest.mark.parametrize("later", [(), (replace(ORDERS, filter=""),)])
def test_a_transform_cannot_change_under_a_table_that_is_there(
    tmp_path: Path, spark: Any, later: tuple[Transform, ...]
) -> None:
    world = new_world("jsonl", tmp_path, spark=spark)
    play(world)
    world.loop().run()
    world.transforms = later
    with pytest.raises(StateError, match=r"^The transform or mask of shop\.orders differs from when"):
        world.restart()
    world.transforms = (ORDERS, Transform(table="shop.others"))
    assert world.restart() == Recovery(4)


def orders(**options: Any) -> Transform:
    return Transform(table="shop.orders", **options)


@pytest.mark.parametrize(
    ("kind", "transform", "error", "text"),
    [
        ("jsonl", orders(on_delete="soft"), ConfigError, r'transform\[0\]: shop.orders: on_delete = "soft"'),
        ("jsonl", orders(projection="*, _ts_ms AS at"), SchemaError, r"before-image .* _ts_ms"),
        ("delta-upsert", orders(projection="name"), SchemaError, r"does not keep the key \(id\)"),
    ],
)
def test_what_a_sink_cannot_hold_is_refused(
    tmp_path: Path, kind: str, transform: Transform, error: type[Exception], text: str
) -> None:
    world = new_world(kind, tmp_path, transform)
    play(world)
    with pytest.raises(error, match=text):
        world.loop().run()
    assert not (tmp_path / "lake").exists()


@pytest.mark.server
def test_what_spark_computed_is_looked_up(tmp_path: Path, spark: Any, way: str, mongodb: MongoDb) -> None:
    """By a computed column, behind the filter; nothing that was made on the way is left."""
    assert way
    projection = "id, qty % 10 AS user, concat(name, '!') AS shout"
    with mongodb.fresh_database("dim") as database, mongodb.client() as client:
        client[database].users.insert_many({"_id": n, "name": f"user {n}"} for n in range(1, 9))
        transform = Transform(table="shop.orders", projection=projection, filter="qty < 90")
        world = new_world("delta-upsert", tmp_path, transform, spark=spark)
        asked = {"uri": mongodb.uri, "collection": f"{database}.users", "on": "user", "columns": {"name": "string"}}
        world.lookups = (LookupOptions.model_validate({"table": "shop.orders", "missing": "drop", **asked}),)
        orders = world.script.table("shop.orders")
        orders.read([{"id": n, "name": "n", "qty": n} for n in range(100)])
        world.script.seal()
        for n in range(10):
            orders.update((n,), qty=n + 1)
        world.script.seal(final=True)
        world.loop().run()
        world.opened[0].close()
    expected = {row["id"]: row["qty"] % 10 for row in orders.contents() if row["qty"] < 90 and 0 < row["qty"] % 10 < 9}
    found = {row["id"]: (row["user"], row["name"], row["shout"]) for row in world.target_rows("shop.orders")}
    assert found == {key: (user, f"user {user}", "n!") for key, user in expected.items()}
    assert [list((tmp_path / name).iterdir()) for name in ("derived", "looked_up")] == [[], []]
