"""Delta tables with deletion vectors: what they mark as deleted stays so, whoever writes and reads next."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from raycdc.errors import SinkError
from raycdc.model import Column, LogicalType, TypeKind
from raycdc.model.evolution import AddColumnEvent, First
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.sinks.api import SinkContext
from raycdc.sinks.delta import target as delta_target
from raycdc.sinks.delta.maintenance import DeltaMaintenance
from raycdc.sinks.delta.plugin import DeltaOptimizeOptions
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.source_tables import Key
from raycdc.spark.stage import SparkTaskRunner
from tests.epochs.sink_world import World, new_world
from tests.epochs.test_epoch_schema import changed

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

VECTORS = (("delta.enableDeletionVectors", "true"),)


def run(world: World, spark: Any, *, large: bool = False, options: DeltaOptimizeOptions | None = None) -> None:
    """The next epochs, merged by Spark where they are `large`."""
    sink = world.sink()
    assert isinstance(sink, DeltaSink)
    more: dict[str, Any] = {"schema_change": SchemaChangeBehavior.EVOLVE, "session": lambda: spark}
    sink.open(SinkContext(world.store.app_id, "upsert", SparkTaskRunner(spark), parallelism=2, **more))
    if large:
        sink.small_bytes_max = -1
    if options is not None:
        sink._maintenance = DeltaMaintenance(options, upsert=True, session=lambda: spark)
    world.restart(sink=sink)


def folder_of(world: World) -> Path:
    return world.root / "lake/shop/orders"


def check(world: World, spark: Any) -> None:
    """Both readers that know deletion vectors see the rows of the source."""
    expected = world.script.table("shop.orders").contents()
    found = QueryBuilder().register("t", DeltaTable(str(folder_of(world)))).execute("SELECT * FROM t ORDER BY id")
    assert pa.table(found.read_all()).to_pylist() == expected
    read = spark.read.format("delta").load(str(folder_of(world))).orderBy("id").collect()
    assert [row.asDict() for row in read] == expected


def vectors_of(world: World) -> int:
    """How many deletion vectors commits have added."""
    logs = (folder_of(world) / "_delta_log").glob("*.json")
    lines = [line for log in logs for line in log.read_text().splitlines() if line.startswith('{"add"')]
    return sum('"deletionVector":{' in line for line in lines)


@pytest.mark.long(suite="sinks")
@pytest.mark.parametrize(
    "kind", ["delta-upsert", pytest.param("delta-partitioned-upsert", marks=pytest.mark.long(suite="sinks"))]
)
def test_rows_that_are_deleted_by_a_vector_never_come_back(
    kind: str, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_target, "MERGE_IN_PROCESS_BYTES_MAX", 0)
    world = new_world(kind, tmp_path)
    world.table_options = VECTORS
    orders = world.script.table("shop.orders")
    orders.read([{"id": number, "name": "n", "qty": number % 3} for number in range(100, 400)])
    world.script.seal(final=True)
    run(world, spark)
    # Spark deletes and changes rows by vectors.
    for number in range(100, 130):
        orders.delete((number,))
        orders.update((number + 100,), name="changed")
    world.script.seal(final=True)
    run(world, spark, large=True)
    assert vectors_of(world) > 0
    check(world, spark)
    # A small epoch: some of the deleted keys again, others deleted, and some that are deleted and stay so.
    for number in range(100, 110):
        orders.insert({"id": number, "name": "again", "qty": 1})
        orders.delete((number + 200,))
    orders.update((150,), qty=2, name="small")
    world.script.seal(final=True)
    run(world, spark)
    check(world, spark)
    # Optimised by Spark, which applies the vectors, beside vectors of another large epoch.
    for number in range(220, 240):
        orders.delete((number,))
    world.script.seal(final=True)
    run(world, spark, large=True)
    assert vectors_of(world) > 1
    orders.update((151,), name="then")
    world.script.seal(final=True)
    order, now = ("qty", "name", "id") if kind == "delta-upsert" else (), timedelta(0)
    options = DeltaOptimizeOptions.model_construct(every=now, target_file=1 << 20, z_order=order, vacuum=now)
    run(world, spark, options=options)
    assert "OPTIMIZE" in {commit["operation"] for commit in DeltaTable(str(folder_of(world))).history()}
    check(world, spark)
    # A change that writes the table anew.
    for number in range(240, 260):
        orders.delete((number,))
    world.script.seal(final=True)
    run(world, spark, large=True)
    first = Column("first", LogicalType(TypeKind.STRING), default="f")
    changed(orders, [first, *orders.schema.columns], AddColumnEvent(orders.id, first, First()))
    orders.rows = {key: {"first": "f", **row} for key, row in orders.rows.items()}
    orders.update((152,), name="last")
    world.script.seal(final=True)
    run(world, spark)
    check(world, spark)


@pytest.mark.long(suite="sinks")
def test_whether_a_key_is_there_is_asked_of_rows_that_are_not_deleted(tmp_path: Path, spark: Any) -> None:
    world = new_world("delta-upsert", tmp_path)
    orders = world.script.table("shop.orders")
    orders.read([{"id": number, "name": "n", "qty": 1} for number in range(100, 200)])
    world.script.seal(final=True)
    world.table_options = VECTORS
    run(world, spark)
    orders.update((199,), qty=2)
    world.script.seal(final=True)
    run(world, spark)
    spark.sql(f"DELETE FROM delta.`{folder_of(world)}` WHERE id < 150")
    assert vectors_of(world) == 1
    # A pipeline of its own would not go on with a table that lost rows.
    target = DeltaTarget(folder_of(world), orders.id, "raycdc:another:1")
    assert target.refresh()

    def first_of(*keys: int) -> Key | None:
        return target.first_of(pa.table({"id": pa.array(keys, pa.int64())}))

    assert first_of(100, 149) is None
    assert first_of(100, 150) == {"id": 150}


def test_without_spark_vectors_are_refused_by_name(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    world.table_options = VECTORS
    world.script.table("shop.orders").insert({"id": 1, "name": "n", "qty": 1})
    world.script.seal(final=True)
    with pytest.raises(SinkError, match=r"delta\.enableDeletionVectors of shop\.\w+: Spark sets it, and --local runs"):
        world.loop().run()
    world.table_options = (("delta.enableDeletionVectors", "false"),)
    world.restart()
    world.check()
