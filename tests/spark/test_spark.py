"""Spark's part: stage jobs, typed DataFrames and large merges, on one shared session."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.ports import EpochPorts
from raycdc.errors import ConfigError, SinkError, StateError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.segments import StageTask
from raycdc.sinks.api import SinkContext
from raycdc.sinks.delta import sink as delta_sink
from raycdc.sinks.delta import small_merge as delta_rewrite
from raycdc.sinks.delta import target as delta_target
from raycdc.sinks.delta.plugin import DeltaSinkConfig
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.spark import session as session_module
from raycdc.spark.frames import changelog_frame
from raycdc.spark.session import effective_master, parallelism, spark_session
from raycdc.spark.stage import SparkTaskRunner
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript, Row

pytestmark = [
    pytest.mark.spark,
    # pyspark closes the sockets of collected results only when they are garbage.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ALL_TYPES = TableSchema(
    (
        Column("id", LogicalType(TypeKind.UINT64), nullable=False),
        Column("Part", LogicalType(TypeKind.STRING), nullable=False),
        Column("i8", LogicalType(TypeKind.INT8)),
        Column("i16", LogicalType(TypeKind.INT16)),
        Column("i32", LogicalType(TypeKind.INT32)),
        Column("i64", LogicalType(TypeKind.INT64)),
        Column("f32", LogicalType(TypeKind.FLOAT32)),
        Column("f64", LogicalType(TypeKind.FLOAT64)),
        Column("flag", LogicalType(TypeKind.BOOLEAN)),
        Column("amount", LogicalType(TypeKind.DECIMAL, precision=38, scale=10)),
        Column("größe", LogicalType(TypeKind.STRING)),
        Column("data", LogicalType(TypeKind.BINARY)),
        Column("day", LogicalType(TypeKind.DATE)),
        Column("wall", LogicalType(TypeKind.DATETIME, fsp=6)),
        Column("instant", LogicalType(TypeKind.TIMESTAMP, fsp=6)),
        Column("nothing", LogicalType(TypeKind.INT16)),
    ),
    ("id", "Part"),
)


@pytest.fixture
def script(tmp_path: Path) -> EpochScript:
    return EpochScript(CheckpointStore(tmp_path / "state", pipeline="shop"), seed=3)


def run(script: EpochScript, spark: Any, lake: Path, *, write: str = "upsert", order_by: str = "") -> None:
    """All sealed epochs into a Delta lake, every task in a Spark worker."""
    sink = DeltaSink(DeltaSinkConfig(path=str(lake)))
    runner = SparkTaskRunner(spark, from_bytes=0)
    context = SinkContext(script.store.app_id, write, runner, parallelism=parallelism(spark), session=lambda: spark)
    sink.open(replace(context, order_by=order_by))
    ports = EpochPorts(
        generation=lambda: script.generation,
        next_sealed=lambda after, _: next(iter(script.store.manifests(after)), None),
    )
    EpochLoop(script.store, sink, ports).run()


def rich_row(number: int) -> Row:
    return {
        "id": Decimal(2**64 - 1 - number),
        "Part": f"p'{number % 3}",
        "i8": -128,
        "i16": 32767,
        "i32": -(2**31),
        "i64": 2**63 - 1,
        "f32": 0.5,
        "f64": 1e-300,
        "flag": number % 2 == 0,
        "amount": Decimal("1234567890123456789012345678.0123456789"),
        "größe": "ä\n\U0001f600",
        "data": b"\x00\xff",
        "day": dt.date(1000, 1, 1),
        "wall": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - DATETIME has no zone
        "instant": dt.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=dt.UTC),
        "nothing": None,
    }


#: The ways in which Delta merges, by what the epoch's rows weigh.
WAYS = ("small", "delta-rs", "spark-merge")


def merge_by(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The small epochs of these tests are merged in one of `WAYS`."""
    if way != "small":
        monkeypatch.setattr(delta_sink, "SMALL_BYTES_MAX", -1)
        monkeypatch.setattr(delta_rewrite, "CHANGES_BYTES_MAX", -1)
        monkeypatch.setattr(delta_target, "MERGE_IN_PROCESS_BYTES_MAX", 0 if way == "spark-merge" else 1 << 30)


def by_key(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["id"], row["Part"]))


@pytest.mark.parametrize("way", WAYS)
def test_every_type_survives_append_and_merge_exactly(
    spark: Any, script: EpochScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    merge_by(way, monkeypatch)
    table = script.table("shop.rich", ALL_TYPES)
    table.read([rich_row(i) for i in range(6)])
    script.seal()
    keys = [table.key(rich_row(i)) for i in range(6)]
    table.update(keys[0], data=None, wall=None)
    table.update(keys[1], Part="moved")
    table.delete(keys[2])
    table.insert({**rich_row(7), "nothing": 1})
    script.seal(final=True)
    run(script, spark, tmp_path / "lake")
    path = tmp_path / "lake" / "shop" / "rich"
    assert by_key(DeltaTable(str(path)).to_pyarrow_table().to_pylist()) == by_key(table.contents())
    in_spark = spark.read.format("delta").load(str(path))
    assert in_spark.count() == 6
    assert in_spark.schema[0].simpleString() == "id:decimal(20,0)"
    assert dict(in_spark.dtypes)["wall"] == "timestamp_ntz"


@pytest.mark.parametrize("way", WAYS)
def test_with_an_order_a_greater_row_of_the_table_stays(
    spark: Any, script: EpochScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    merge_by(way, monkeypatch)
    orders = script.table("shop.orders")
    for versions in ({1: 5, 2: 5, 3: 5}, {1: 4, 2: 6, 3: 5, 4: 1}):
        for key, version in versions.items():
            orders.insert({"id": key, "name": f"after {len(orders.changelog)}", "qty": version})
        script.seal(final=len(versions) == 4)
    run(script, spark, tmp_path / "lake", order_by="qty")
    rows = DeltaTable(str(tmp_path / "lake" / "shop" / "orders")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["qty"], row["name"]) for row in rows) == [
        (1, 5, "after 0"),
        (2, 6, "after 4"),
        (3, 5, "after 5"),
        (4, 1, "after 6"),
    ]


def test_a_spark_merge_is_not_done_twice(
    spark: Any, script: EpochScript, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_by("spark-merge", monkeypatch)
    orders = script.table("shop.orders")
    orders.read([{"id": i, "name": "s", "qty": 1} for i in range(10)])
    script.seal()
    orders.update((3,), qty=2)
    script.seal()
    # Deleting what was never there changes nothing, and the epoch is held all the same.
    orders.insert({"id": 99, "name": "x", "qty": 0})
    orders.delete((99,))
    script.seal(final=True)
    run(script, spark, tmp_path / "lake")
    sink = DeltaSink(DeltaSinkConfig(path=str(tmp_path / "lake")))
    sink.open(SinkContext(script.store.app_id, "upsert", SparkTaskRunner(spark), session=lambda: spark))
    held = sink.committed(orders.id)
    assert held is not None
    assert (held.epoch, held.step) == (3, 3)
    table = DeltaTable(str(tmp_path / "lake" / "shop" / "orders"))
    assert [row["operation"] for row in reversed(table.history())][:3] == ["CREATE TABLE", "WRITE", "MERGE"]
    version = table.version()
    (script.store.path / "commits" / "0000000003.json").unlink()
    (script.store.path / "commits" / "0000000002.json").unlink()
    run(script, spark, tmp_path / "lake")
    assert DeltaTable(str(tmp_path / "lake" / "shop" / "orders")).version() == version


def test_one_job_stages_all_tables(spark: Any, script: EpochScript, tmp_path: Path) -> None:
    for number in range(20):
        script.table(f"shop.t{number}").read([{"id": i, "name": "n", "qty": number} for i in range(5)])
    script.seal()
    script.random_epoch(operations=8, keys=12)
    script.seal(final=True)
    spark.sparkContext.setJobGroup("staging", "one job per epoch")
    run(script, spark, tmp_path / "lake", write="changelog")
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup("staging"))
    # The creation of the tables holds nothing back: each epoch was staged by one job.
    assert jobs == 2
    for table in script.tables.values():
        path = tmp_path / "lake" / table.id.db / table.id.table
        assert DeltaTable(str(path)).to_pyarrow_table().num_rows == len(table.changelog)


def test_an_error_of_ours_in_a_task_keeps_its_kind(spark: Any, script: EpochScript, tmp_path: Path) -> None:
    script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 1})
    manifest = script.seal(final=True)
    Path(manifest.segments[0].path).unlink()
    with pytest.raises(StateError, match="cannot be read"):
        run(script, spark, tmp_path / "lake")


@dataclass(frozen=True, slots=True)
class Listing(StageTask[list[str]]):
    path: str
    input_bytes = 1

    def run(self) -> list[str]:
        return [path.name for path in Path(self.path).iterdir()]


def test_any_other_error_is_tried_again_and_then_told_by_kind_and_place(spark: Any, tmp_path: Path) -> None:
    runner = SparkTaskRunner(spark, from_bytes=0)
    with pytest.raises(
        SinkError, match=r'Staging failed in Spark: FileNotFoundError \(File "[^"]+", line \d+, in \w+\)'
    ) as told:
        runner([Listing(str(tmp_path / "missing"))])
    assert "missing" not in str(told.value)


def test_dataframes_have_the_types_of_the_model(spark: Any, script: EpochScript) -> None:
    table = script.table("shop.rich", ALL_TYPES)
    for number in range(3):
        table.insert(rich_row(number))
    manifest = script.seal()
    frame = changelog_frame(spark, manifest.segments, ALL_TYPES, parallelism=2)
    assert frame.columns == [*(c.name for c in ALL_TYPES.columns), "_op", "_seq", "_ts_ms", "_db", "_table", "_pos"]
    assert dict(frame.dtypes)["amount"] == "decimal(38,10)"
    row = frame.orderBy("_seq").first().asDict()
    assert row["data"] == b"\x00\xff"
    assert (row["_op"], row["_table"], row["größe"]) == ("+I", "rich", "ä\n\U0001f600")
    few = changelog_frame(spark, manifest.segments, ALL_TYPES, parallelism=2, columns=["_op", "id"])
    assert few.groupBy("_op").count().collect()[0].asDict() == {"_op": "+I", "count": 3}
    assert changelog_frame(spark, [], ALL_TYPES, parallelism=2).count() == 0


@pytest.mark.parametrize(
    ("given", "used"),
    [("local[3]", "local[3,4]"), ("local", "local[1,4]"), ("local[2,9]", "local[2,9]"), ("yarn", "yarn")],
)
def test_local_masters_retry_their_tasks(given: str, used: str) -> None:
    assert effective_master(given) == used


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="Java is missing"):
        spark_session("local[1]", tmp_path)


def test_configured_jars_must_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYCDC_JARS", str(tmp_path))
    with pytest.raises(ConfigError, match="RAYCDC_JARS"):
        session_module.delta_jars()
