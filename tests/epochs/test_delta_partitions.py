"""Partitioned Delta tables: which values, which files, rows that move, and what is refused."""

from __future__ import annotations

import datetime
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.core.failpoints import FailpointError
from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import DataError, SchemaError, SinkError
from raycdc.model import Column, LogicalType, TypeKind
from raycdc.model.evolution import AddColumnEvent, AlterColumnTypeEvent, CreateTableEvent, First, TruncateTableEvent
from raycdc.sinks.api import SinkContext, TableCommit
from raycdc.sinks.delta import target as delta_target
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.spark.stage import SparkTaskRunner
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.sink_world import World, new_world, play
from tests.epochs.test_epoch_schema import changed

#: Texts that would be something else in a path, a URL or a log.
ODD = (
    "a b",
    "x/y=1",
    "ä%C3",
    "..",
    "a\nb",
    'it\'s "it"',
    "__HIVE_DEFAULT_PARTITION__x",
    "ü" * 30,
    " ",
    "~",
    "null",
    "b\u2028c\u2029d\x85e",
    None,
)

UPSERTS = ("delta-partitioned-upsert", "delta-tasks-partitioned-upsert")


@pytest.fixture(params=UPSERTS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return new_world(request.param, tmp_path)


def table_of(world: World, name: str = "shop/orders") -> DeltaTable:
    return DeltaTable(str(world.root / "lake" / name))


def files_of(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.table(table_of(world).get_add_actions(flatten=True)).to_pylist()
    return found


def odd_rows(orders: ScriptedTable) -> None:
    orders.read([{"id": number, "name": name, "qty": number} for number, name in enumerate(ODD, 1000)])


def test_any_text_is_a_partition(world: World) -> None:
    world.partition_by = ("name", "qty")
    orders = world.script.table("shop.orders")
    odd_rows(orders)
    world.script.seal()
    for number in range(len(ODD)):
        orders.update((1000 + number,), qty=None if number % 2 else number)
        orders.insert({"id": 2000 + number, "name": ODD[number], "qty": -1})
    world.script.seal()
    orders.delete((1003,))
    world.script.seal(final=True)
    world.loop().run()
    world.check()
    assert table_of(world).metadata().partition_columns == ["name", "qty"]
    assert {file["partition.name"] for file in files_of(world)} == set(ODD)


@pytest.mark.parametrize("kind", [pa.binary(), pa.timestamp("us")])
def test_a_table_that_others_partitioned_by_what_readers_disagree_on_is_refused(
    world: World, kind: pa.DataType
) -> None:
    folder = world.root / "lake/shop/orders"
    names = pa.schema([("id", pa.int64()), ("name", pa.string()), ("qty", pa.int32()), ("part", kind)])
    value = b"ab" if kind == pa.binary() else datetime.datetime(2024, 1, 2)  # noqa: DTZ001
    there = pa.Table.from_pylist([{"id": 1, "name": "theirs", "qty": 1, "part": value}], names)
    write_deltalake(str(folder), there, partition_by=["part"])
    world.partition_by = ()
    world.script.table("shop.orders").insert({"id": 2, "name": "ours", "qty": 2})
    world.script.seal(final=True)
    with pytest.raises(SinkError, match=r"shop\.orders: .* partitioned by a column 'part'"):
        world.loop(world.sink(on_existing="merge")).run()
    assert DeltaTable(str(folder)).version() == 0


@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize("dies", [True, False])
def test_rows_of_the_next_epoch_are_staged_before_a_table_without_rows_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, partitioned: bool, dies: bool
) -> None:
    """The folders of their partitions are not taken for a table of others, now or at the next start."""
    world = new_world("delta-partitioned-upsert" if partitioned else "delta-upsert", tmp_path)
    orders = world.script.table("shop.orders")
    world.script.table("shop.customers").insert({"id": 1, "name": "x", "qty": 1})
    world.script.seal()
    orders.read([{"id": 1000, "name": "x", "qty": 1}])
    world.script.seal(final=True)
    staged, stage, commit = threading.Event(), DeltaSink.stage, DeltaSink.commit

    def staging(sink: DeltaSink, works: Sequence[TableCommit]) -> Any:
        rows = stage(sink, works)
        if any(work.target == orders.id and work.segments for work in works):
            staged.set()
        return rows

    def waiting(sink: DeltaSink, work: TableCommit, rows: Any) -> None:
        assert staged.wait(60), "nothing of the second epoch was staged while the first one was committed"
        if dies:
            raise FailpointError("in a commit")
        commit(sink, work, rows)

    with monkeypatch.context() as patches:
        patches.setattr(DeltaSink, "stage", staging)
        patches.setattr(DeltaSink, "commit", waiting)
        if dies:
            with pytest.raises(FailpointError):
                world.loop().run()
        else:
            world.loop().run()
    if dies:
        world.restart()
    world.check()


@pytest.mark.parametrize("way", ["resnapshot", "restart", "by an older one"])
@pytest.mark.parametrize("kind", ["delta-partitioned-changelog", "delta-partitioned-upsert"])
def test_a_table_that_was_deleted_is_made_anew_over_what_was_staged_there(tmp_path: Path, kind: str, way: str) -> None:
    world = new_world(kind, tmp_path)
    world.foresees = False
    world.partition_by = ("name", "qty")
    orders, items = world.script.table("shop.orders"), world.script.table("shop.items")
    numbers = {str(orders.id): 0, str(items.id): 0}
    folder = tmp_path / "lake/shop/orders"
    sink = world.sink()

    def run(*, restart: bool = False) -> list[str]:
        world.script.seal(final=True, incarnations=numbers)
        if restart:
            world.restart(parking=ParkingPolicy())
        else:
            world.loop(sink, parking=ParkingPolicy()).run()
        record = world.store.last_commit()
        assert record is not None
        return list(record.parked)

    for table in (orders, items):
        table.read([{"id": number, "name": "a b", "qty": number} for number in range(1000, 1005)])
    run()
    shutil.rmtree(folder)
    for table in (orders, items):
        table.insert({"id": 2000, "name": "a/b", "qty": None})
    assert run() == ["shop.orders"]
    left = [file for file in folder.rglob("*") if file.is_file() and file.suffix == ".parquet"]
    assert not left, "what was staged for a table that is gone is deleted"
    if way == "by an older one":
        # One that died, or a version that kept them.
        staged = folder / "name=x/qty=1/part-00000-0000000002-89c0d9a5-5f6a-47c6-820f-a0cb0c04af40.snappy.parquet"
        staged.parent.mkdir(parents=True)
        staged.write_bytes(b"staged")
        staged.with_name(f".{staged.name}.0a.tmp").write_bytes(b"st")
    numbers[str(orders.id)] += 1
    orders.changelog.clear()
    orders.truncate()
    orders.changes.extend((TruncateTableEvent(orders.id), CreateTableEvent(orders.id, orders.schema)))
    assert run(restart=way == "restart") == []
    orders.read([{"id": 4000, "name": "anew", "qty": 1}])
    assert run(restart=way == "restart") == []
    world.check()


@pytest.mark.parametrize(
    "name",
    [
        "year=2024/rows.parquet",
        "year=2024/part-00000-89c0d9a5-5f6a-47c6-820f-a0cb0c04af40-c000.snappy.parquet",
        "year=2024/deeper/part-00000-0000000002-89c0d9a5-5f6a-47c6-820f-a0cb0c04af40.snappy.parquet",
        "year=2024",
    ],
)
def test_partitions_of_somebody_elses_files_are_theirs(world: World, name: str) -> None:
    theirs = world.root / "lake/shop/orders" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    play(world)
    with pytest.raises(SinkError, match=f"holds files that are not a Delta table \\({name}\\)"):
        world.loop().run()


def test_rows_of_a_partition_are_in_one_file_each(tmp_path: Path) -> None:
    world = new_world("delta-partitioned-changelog", tmp_path)
    orders = world.script.table("shop.orders")
    orders.read([{"id": number, "name": "n", "qty": number % 5 or None} for number in range(1000, 1100)])
    world.script.seal(final=True)
    world.loop().run()
    assert sorted(row["id"] for row in world.rows(orders)) == list(range(1000, 1100))
    found = {file["partition.qty"]: (file["num_records"], file["min.id"]) for file in files_of(world)}
    assert found == {None: (20, 1000), 1: (20, 1001), 2: (20, 1002), 3: (20, 1003), 4: (20, 1004)}
    assert len(files_of(world)) == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "an empty text, for which every reader would see NULL"),
        ("__HIVE_DEFAULT_PARTITION__", "the text __HIVE_DEFAULT_PARTITION__, which stands for NULL"),
        ("ü" * 60, "a text that is too long"),
    ],
)
def test_a_text_that_is_no_partition_is_refused(world: World, text: str, why: str) -> None:
    world.partition_by = ("name",)
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1000, "name": "n", "qty": 1})
    world.script.seal()
    orders.update((1000,), name=text)
    world.script.seal(final=True)
    with pytest.raises(DataError, match=rf"shop\.orders: a row has {why}.*, in column 'name'"):
        world.loop().run()
    assert world.rows(orders) == [{"id": 1000, "name": "n", "qty": 1}]


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__", "ü" * 60])
def test_a_text_that_is_no_partition_is_refused_in_a_snapshot(tmp_path: Path, text: str) -> None:
    world = new_world("delta-partitioned-changelog", tmp_path)
    world.partition_by = ("name",)
    world.script.table("shop.orders").read([{"id": 1, "name": text, "qty": 1}])
    world.script.seal(final=True)
    with pytest.raises(DataError, match=r"a row has (a|the).* text.*, in column 'name'"):
        world.loop().run()


def test_a_table_that_was_there_keeps_its_partitions_when_nothing_is_asked(world: World) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("qty", pa.int32())])
    DeltaTable.create(str(world.root / "lake/shop/orders"), schema, partition_by=["name"])
    world.partition_by = ()
    play(world)
    world.loop(world.sink(on_existing="merge")).run()
    world.check()
    assert table_of(world).metadata().partition_columns == ["name"]


def test_a_replaced_table_gets_the_partitions_asked_for(world: World) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("qty", pa.int32())])
    DeltaTable.create(str(world.root / "lake/shop/orders"), schema, partition_by=["name"])
    play(world)
    world.loop(world.sink(on_existing="replace")).run()
    world.check()
    assert table_of(world).metadata().partition_columns == ["qty"]


@pytest.mark.parametrize("point", [None, "in_commit", "after_commit"])
def test_a_wider_type_of_the_partition_is_followed(
    world: World, point: str | None, fail_at: Callable[[str, int], None]
) -> None:
    play(world, epochs=2, final=False)
    orders = world.script.table("shop.orders")
    wide = LogicalType(TypeKind.INT64)
    columns = [replace(c, type=wide) if c.name == "qty" else c for c in orders.schema.columns]
    first = Column("first", LogicalType(TypeKind.STRING), default="f")
    changed(
        orders,
        [first, *columns],
        AlterColumnTypeEvent(orders.id, "qty", wide),
        AddColumnEvent(orders.id, first, First()),
    )
    orders.rows = {key: {"first": "f", **row} for key, row in orders.rows.items()}
    orders.update((100,), qty=1 << 40)
    world.script.seal(final=True)
    if point:
        fail_at(point, 5)
        with pytest.raises(FailpointError):
            world.loop(world.sink(schema_change="evolve")).run()
    world.restart(sink=world.sink(schema_change="evolve"))
    world.check()
    assert (1 << 40) in {file["partition.qty"] for file in files_of(world)}


def test_a_type_that_cannot_partition_is_refused(world: World) -> None:
    play(world, epochs=1)
    world.loop().run()
    orders = world.script.table("shop.orders")
    decimal = LogicalType(TypeKind.DECIMAL, precision=20, scale=2)
    columns = [replace(c, type=decimal) if c.name == "qty" else c for c in orders.schema.columns]
    orders.changes.append(TruncateTableEvent(orders.id))
    changed(orders, columns, AlterColumnTypeEvent(orders.id, "qty", decimal))
    world.script.seal(final=True)
    with pytest.raises((SinkError, SchemaError), match=r"shop\.orders: .*column '?qty'? is"):
        world.loop().run()


@pytest.mark.long(suite="sinks")
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_spark_merges_rows_that_move_and_reads_what_is_there(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_target, "MERGE_IN_PROCESS_BYTES_MAX", 0)
    world = new_world("delta-tasks-partitioned-upsert", tmp_path)
    world.partition_by = ("name",)
    orders = world.script.table("shop.orders")
    odd_rows(orders)
    world.script.seal()
    for number in range(len(ODD)):
        orders.update((1000 + number,), name=ODD[number - 1], qty=-number)
    orders.delete((1003,))
    world.script.seal(final=True)
    runner = SparkTaskRunner(spark, from_bytes=0)
    sink = world.sink(run=runner)
    assert isinstance(sink, DeltaSink)
    context = SinkContext(world.store.app_id, "upsert", runner, parallelism=2, session=lambda: spark)
    sink.open(context)
    world.loop(sink).run()
    world.check()
    assert "MERGE" in {commit["operation"] for commit in table_of(world).history()}
    read = spark.read.format("delta").load(str(tmp_path / "lake/shop/orders")).orderBy("id").collect()
    assert [row.asDict() for row in read] == orders.contents()
