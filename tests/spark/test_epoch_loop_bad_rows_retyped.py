"""Rows that are judged otherwise than when they were written: followed, or refused before a row is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.delivery.targets.parked_targets import Parks
from raycdc.errors import ConfigError, SchemaError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.model.evolution import AlterColumnTypeEvent, CreateTableEvent, TruncateTableEvent
from raycdc.model.rules.routes import Route
from raycdc.model.rules.transform import Transform
from raycdc.state.bad_row_counts import bad_rows
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.transform_world import TransformedWorld, new_world

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

#: A type that is the same whatever type `qty` has.
HIDDEN = Transform(table="shop.orders", projection="id, name, cast(qty * 2 AS bigint) AS x")
NOTHING = Transform(table="shop.nothing")
SHARDS = (Route(r"shop\.s\d", "shop.all"),)
GREATEST = 2**31 - 1


def retype(table: ScriptedTable, name: str, kind: TypeKind) -> None:
    table.changes.append(AlterColumnTypeEvent(table.id, name, LogicalType(kind), True))
    columns = (c if c.name != name else Column(name, LogicalType(kind)) for c in table.schema.columns)
    table.schema = TableSchema(tuple(columns), ("id",))


def narrowed(world: TransformedWorld) -> ScriptedTable:
    """Rows that are good as BIGINT and bad as INT, changed and deleted as such."""
    world.on_bad_record = "skip"
    orders = world.script.table("shop.orders")
    wide = (Column("id", LogicalType(TypeKind.INT64), nullable=False), Column("name", LogicalType(TypeKind.STRING)))
    orders.schema = TableSchema((*wide, Column("qty", LogicalType(TypeKind.INT64))), ("id",))
    for i in range(1, 7):
        orders.insert({"id": i, "name": "a", "qty": GREATEST})
    world.script.seal()
    retype(orders, "qty", TypeKind.INT32)
    orders.update((1,), name="b")
    orders.delete((2,))
    orders.update((3,), qty=5)
    orders.update((4,), id=40, qty=6)
    orders.update((5,), id=50)
    world.script.seal(final=True)
    return orders


@pytest.mark.parametrize("kind", ["delta-upsert", "iceberg-upsert"])
def test_rows_that_became_bad_go_where_rows_are_updated(kind: str, tmp_path: Path, spark: Any) -> None:
    world = new_world(kind, tmp_path, HIDDEN, spark=spark)
    narrowed(world)
    world.loop().run()
    assert sorted((row["id"], row["name"], row["x"]) for row in world.target_rows("shop.orders")) == [
        (3, "a", 10), (6, "a", 2 * GREATEST), (40, "a", 12)
    ]  # fmt: skip
    assert bad_rows(world.store, 2) == {"shop.orders": 2}


def test_rows_that_became_bad_are_refused_in_a_changelog(tmp_path: Path, spark: Any) -> None:
    world = new_world("jsonl", tmp_path, HIDDEN, spark=spark)
    narrowed(world)
    with pytest.raises(
        SchemaError, match=r"the type of column 'qty', which the table's transform uses, changed, and pi"
    ):
        world.loop().run()
    assert [row["_op"] for row in world.target_rows("shop.orders")] == ["+I"] * 6
    with pytest.raises(SchemaError, match=r"the type of column 'qty'"):
        world.restart()


def widened(world: TransformedWorld) -> None:
    """Rows that are bad as INT and good as BIGINT."""
    orders = world.script.table("shop.orders")
    for i in (1, 2):
        orders.insert({"id": i, "name": "a", "qty": GREATEST})
    world.script.seal()
    retype(orders, "qty", TypeKind.INT64)
    orders.update((1,), name="b")
    orders.delete((2,))
    world.script.seal(final=True)


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_a_type_that_an_expression_hides_is_refused_in_a_changelog(policy: str, tmp_path: Path, spark: Any) -> None:
    world = new_world("jsonl", tmp_path, HIDDEN, spark=spark)
    world.on_bad_record = "skip"
    widened(world)
    with pytest.raises(SchemaError, match=r"shop\.orders: the type of column 'qty'.*rows of it were left out"):
        world.loop().run()
    world.on_bad_record = policy
    with pytest.raises(SchemaError, match=r"shop\.orders: the type of column 'qty'.*rows of it were left out"):
        world.restart()
    assert world.target_rows("shop.orders") == []


def test_a_type_that_changes_without_a_policy_is_followed(tmp_path: Path, spark: Any) -> None:
    world = new_world("jsonl", tmp_path, HIDDEN, spark=spark)
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 1})
    world.script.seal()
    retype(orders, "qty", TypeKind.INT64)
    orders.update((1,), name="b")
    world.script.seal()
    world.restart()
    changes = [("+I", 2), ("-U", 2), ("+U", 2)]
    assert [(row["_op"], row["x"]) for row in world.target_rows("shop.orders")] == changes
    orders.delete((1,))
    world.script.seal(final=True)
    world.on_bad_record = "skip"
    with pytest.raises(
        SchemaError, match=r'shop\.orders: .* = "skip", and the type of a column changed while it was "fa'
    ):
        world.restart()
    world.on_bad_record = "fail"
    world.restart()
    assert [(row["_op"], row["x"]) for row in world.target_rows("shop.orders")] == [*changes, ("-D", 2)]


def shard(world: TransformedWorld, name: str, kind: TypeKind) -> ScriptedTable:
    columns = (Column("id", LogicalType(TypeKind.INT64), nullable=False), Column("v", LogicalType(kind)))
    return world.script.table(name, TableSchema(columns, ("id",)))


def shards(kind: str, root: Path) -> TransformedWorld:
    world = new_world(kind, root, NOTHING)
    world.on_bad_record, world.routes = "skip", SHARDS
    world.script.tables.pop(world.script.table("shop.orders").id)
    return world


@pytest.mark.long_variants("int64-*-parquet", "int64-*-jsonl", "binary-*-parquet", suite="sinks")
@pytest.mark.parametrize("kind", ["jsonl", "parquet", "delta-upsert"])
@pytest.mark.parametrize(
    ("first", "value", "second"),
    [(TypeKind.BINARY, b"\xff", TypeKind.STRING), (TypeKind.INT64, 2**60 + 1, TypeKind.FLOAT64)],
)
def test_a_table_whose_type_makes_rows_of_others_bad_is_refused(
    kind: str, first: TypeKind, value: Any, second: TypeKind, tmp_path: Path
) -> None:
    world = shards(kind, tmp_path)
    one = shard(world, "shop.s1", first)
    for i in (1, 2):
        one.insert({"id": i, "v": value})
    world.script.seal()
    shard(world, "shop.s2", second).insert({"id": 100, "v": "text" if second is TypeKind.STRING else 1.5})
    one.delete((1,))
    one.update((2,), v=None)
    world.script.seal(final=True)
    with pytest.raises(
        SchemaError, match=r"shop\.all: the merged type of column 'v' becomes (string|double), and pipe"
    ):
        world.loop().run()
    assert world.store.last_commit().epoch == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ["skip", "fail"])
def test_a_merged_table_whose_rows_may_come_back_is_refused(policy: str, tmp_path: Path) -> None:
    world = shards("jsonl", tmp_path)
    shard(world, "shop.s2", TypeKind.STRING).insert({"id": 100, "v": "text"})
    one = shard(world, "shop.s1", TypeKind.BINARY)
    one.insert({"id": 1, "v": b"\xff"})
    world.script.seal()
    one.rows[(1,)]["v"] = "whole"
    retype(one, "v", TypeKind.STRING)
    one.delete((1,))
    world.script.seal(final=True)
    refused = r"shop\.all: the type of column 'v' of shop\.s1 changed, and rows of shop\.s1 were left out"
    with pytest.raises(SchemaError, match=refused):
        world.loop().run()
    world.on_bad_record = policy
    with pytest.raises(SchemaError, match=refused):
        world.restart()


def begin_again(table: ScriptedTable) -> None:
    table.truncate()
    first = (TruncateTableEvent(table.id), CreateTableEvent(table.id, table.schema))
    table.changes += first


@pytest.mark.long_variants("*-fail", suite="sinks")
@pytest.mark.parametrize("policy", ["skip", "fail"])
@pytest.mark.parametrize("cause", ["came back", "may not fit", "changed under fail"])
def test_tables_that_are_read_anew_as_the_message_says_are_whole(cause: str, policy: str, tmp_path: Path) -> None:
    """Rows may have been good and bad at a time; a table beside it goes on."""
    world = shards("jsonl", tmp_path)
    world.parks = Parks()
    two = shard(world, "shop.s2", TypeKind.STRING)
    two.insert({"id": 100, "v": "text"})
    was, now = TypeKind.STRING, TypeKind.BINARY
    if cause == "came back":
        was, now = now, was
    one = shard(world, "shop.s1", was)
    one.insert({"id": 1, "v": b"\xff" if cause == "came back" else "whole"})
    beside = shard(world, "shop.beside", TypeKind.INT64)
    beside.insert({"id": 1, "v": 1})
    numbers = {"shop.s1": 0, "shop.s2": 0, "shop.beside": 0}
    world.script.seal(incarnations=numbers)
    world.loop().recover()
    one.rows[(1,)]["v"] = "whole" if cause == "came back" else b"whole"
    if cause == "changed under fail":
        world.on_bad_record = "fail"
    retype(one, "v", now)
    one.delete((1,))
    world.script.seal(incarnations=numbers)
    world.loop().recover()
    if cause == "changed under fail":
        world.on_bad_record = "skip"
        one.insert({"id": 2, "v": b"more"})
    beside.insert({"id": 2, "v": 2})
    world.script.seal(incarnations=numbers)
    world.loop().recover()
    record = world.store.last_commit()
    assert record is not None
    entry = record.parked["shop.all"]
    assert "Read its tables anew (raycdc tables resnapshot)" in entry.text
    assert "raycdc tables resnapshot CONFIG shop.s1; raycdc tables resnapshot CONFIG shop.s2" in entry.text
    assert [row["id"] for row in world.target_rows("shop.beside")] == [1, 2]
    # As it says, whatever the policy is by then.
    world.on_bad_record = policy
    for table in (one, two):
        begin_again(table)
    one.schema = TableSchema((one.schema.columns[0], Column("v", LogicalType(TypeKind.STRING))), ("id",))
    one.changes[-1] = CreateTableEvent(one.id, one.schema)
    world.script.seal(incarnations=numbers | {"shop.s1": 1, "shop.s2": 1})
    one.read([{"id": 7, "v": "anew"}])
    two.read([{"id": 100, "v": "anew"}])
    world.script.seal(incarnations=numbers | {"shop.s1": 1, "shop.s2": 1})
    two.delete((100,))
    world.script.seal(final=True, incarnations=numbers | {"shop.s1": 1, "shop.s2": 1})
    world.restart()
    record = world.store.last_commit()
    assert record is not None
    assert (record.epoch, record.parked) == (6, {})
    held = world.target_rows("shop.all")
    begun = max(number for number, row in enumerate(held) if row["_op"] == "T")
    assert sorted((row["_op"], row["id"], row["v"]) for row in held[begun + 1 :]) == [
        ("+I", 7, "anew"), ("+I", 100, "anew"), ("-D", 100, "anew")
    ]  # fmt: skip


def test_a_merged_table_whose_type_may_not_fit_any_more_is_refused(tmp_path: Path) -> None:
    world = shards("jsonl", tmp_path)
    shard(world, "shop.s2", TypeKind.STRING).insert({"id": 100, "v": "text"})
    one = shard(world, "shop.s1", TypeKind.STRING)
    one.insert({"id": 1, "v": "whole"})
    world.script.seal()
    one.rows[(1,)]["v"] = b"\xff"
    retype(one, "v", TypeKind.BINARY)
    one.delete((1,))
    world.script.seal(final=True)
    with pytest.raises(
        SchemaError, match=r"shop\.all: the type of column 'v' of shop\.s1 changed, and pipeline\.on_ba"
    ):
        world.loop().run()


def test_wider_integers_are_merged_under_a_policy(tmp_path: Path) -> None:
    world = shards("jsonl", tmp_path)
    one = shard(world, "shop.s1", TypeKind.INT32)
    one.insert({"id": 1, "v": 1})
    world.script.seal()
    shard(world, "shop.s2", TypeKind.INT64).insert({"id": 100, "v": 2**40})
    retype(one, "v", TypeKind.INT64)
    one.delete((1,))
    world.script.seal(final=True)
    world.loop().run()
    assert sorted((row["_op"], row["id"]) for row in world.target_rows("shop.all")) == [
        ("+I", 1),
        ("+I", 100),
        ("-D", 1),
    ]


def test_tables_whose_expressions_may_fail_are_not_merged_where_rows_are_updated(tmp_path: Path, spark: Any) -> None:
    world = new_world(
        "delta-upsert", tmp_path, Transform(table=r"shop\.s\d", projection="id, 1 div v AS x"), spark=spark
    )
    world.on_bad_record, world.routes = "skip", SHARDS
    world.script.tables.pop(world.script.table("shop.orders").id)
    for number in (1, 2):
        shard(world, f"shop.s{number}", TypeKind.INT32).insert({"id": number, "v": 0})
    world.script.seal(final=True)
    with pytest.raises(ConfigError, match=r'on_bad_record = "skip": shop\.s1, whose transform computes or filters, is'):
        world.loop().run()


def test_a_replay_of_some_targets_keeps_the_counts_of_the_others(
    tmp_path: Path, fail_at: Callable[[str, int], None]
) -> None:
    world = new_world("delta-upsert", tmp_path, NOTHING)
    world.on_bad_record = "dead-letter"
    world.routes = (Route(r"shop\.a\d", "shop.alla"), Route(r"shop\.b\d", "shop.allb"))
    world.script.tables.pop(world.script.table("shop.orders").id)
    for group, count in (("a", 3), ("b", 2)):
        shard(world, f"shop.{group}2", TypeKind.STRING).insert({"id": 100, "v": "text"})
        raw = shard(world, f"shop.{group}1", TypeKind.BINARY)
        for i in range(count):
            raw.insert({"id": i, "v": b"\xff"})
    world.script.seal(final=True)
    fail_at("in_commit", 2)
    with pytest.raises(FailpointError):
        world.loop().run()
    assert world.restart().replayed == (1,)
    assert bad_rows(world.store, 1) == {"shop.a1": 3, "shop.b1": 2}
    assert len(world.kept()) == 5
