"""Rows that a target cannot have: the run ends and says which, or goes on without them, counted and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.errors import DataError, SchemaError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.model.evolution import AlterColumnTypeEvent
from raycdc.model.rules.routes import Route
from raycdc.model.rules.transform import Transform
from raycdc.spark import derive
from raycdc.state.bad_row_counts import bad_rows
from raycdc.testing.epochs import Row, ScriptedTable
from tests.epochs.transform_world import TransformedWorld, new_world

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

#: Two expressions of which one or the other fails, and a filter that fails on a name of its own.
SHARES = Transform(
    table="shop.orders", projection="*, 100 div qty AS share, 7 / (qty - 1) AS more", filter="name <> '' OR 1 / id > 0"
)


@pytest.fixture(params=["in this process", "in Python workers"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "in this process":
        monkeypatch.setattr(derive, "IN_PROCESS_BYTES_MAX", 0)
    return str(request.param)


def shaped(row: Row) -> Row:
    qty = row["qty"]
    return {**row, "share": None if qty is None else 100 // qty, "more": None if qty is None else 7 / (qty - 1)}


def good(row: Row) -> bool:
    return row["qty"] not in (0, 1) and (row["name"] != "" or row["id"] != 0)


def play(world: TransformedWorld) -> ScriptedTable:
    """Rows that are bad from the snapshot on, become bad, become good again, and go while they are bad."""
    orders = world.script.table("shop.orders")
    orders.read([{"id": i, "name": "snapshot", "qty": i % 4 or None} for i in range(100, 140)])
    orders.read([{"id": 0, "name": "", "qty": 5}])
    world.script.seal()
    for i in range(100, 110):
        orders.update((i,), qty=0)
    orders.update((0,), qty=6)
    world.script.seal()
    for i in range(104, 108):
        orders.update((i,), qty=9, name="back")
    orders.update((0,), name="named")
    orders.update((109,), id=900)
    orders.delete((100,))
    orders.delete((111,))
    orders.update((110,), qty=1)
    orders.update((110,), qty=2)
    world.script.seal(final=True)
    return orders


def left(changelog: list[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    """The changelog of the rows that are good."""
    rows = iter(changelog)
    for op, row in rows:
        if op != "-U":
            if good(row):
                yield op, shaped(row)
            continue
        _, after = next(rows)
        both = good(row) and good(after)
        if good(row):
            yield "-U" if both else "-D", shaped(row)
        if good(after):
            yield "+U" if both else "+I", shaped(after)


def check(world: TransformedWorld, orders: ScriptedTable) -> None:
    if world.upsert:
        held = sorted(world.target_rows("shop.orders"), key=lambda row: row["id"])
        assert held == [shaped(row) for row in orders.contents() if good(row)]
    else:
        rows = sorted(world.target_rows("shop.orders"), key=lambda row: row["_seq"])
        names = ["id", "name", "qty", "share", "more"]
        assert [(row["_op"], {n: row[n] for n in names}) for row in rows] == list(left(orders.changelog))


def came_bad(orders: ScriptedTable) -> list[Row]:
    return [row for op, row in orders.changelog if op in ("+I", "+U") and not good(row)]


@pytest.mark.long_variants("in Python workers-delta-changelog", "in Python workers-jsonl", suite="sinks")
@pytest.mark.parametrize("kind", ["delta-upsert", "delta-changelog", "jsonl"])
def test_rows_on_which_an_expression_fails_are_left_out_and_counted(
    kind: str, tmp_path: Path, spark: Any, way: str
) -> None:
    world = new_world(kind, tmp_path, SHARES, spark=spark)
    world.on_bad_record = "dead-letter"
    orders = play(world)
    world.loop().run()
    check(world, orders)
    lost = came_bad(orders)
    assert [letter["row"] for letter in world.kept()] == lost
    assert bad_rows(world.store, 3) == {"shop.orders": len(lost)}
    assert list((tmp_path / "derived").glob("derived-*")) == []
    last = world.kept()[-1]
    assert (last["table"], last["op"], last["row"]["id"]) == ("shop.orders", "+U", 110)
    assert last["reason"] == "column 'more' (7 / (qty - 1) AS more) cannot be computed"
    assert {letter["reason"] for letter in world.kept()} == {
        last["reason"],
        "column 'share' (100 div qty AS share) cannot be computed",
        "the filter (name <> '' OR 1 / id > 0) cannot be computed",
    }
    assert [text.split(" left out")[0] for text in world.warnings] == [
        "shop.orders: 11 rows of epoch 1", "shop.orders: 11 rows of epoch 2", "shop.orders: 2 rows of epoch 3"
    ]  # fmt: skip
    assert " with its key in (id))" in world.warnings[0]


def test_what_a_failed_job_had_made_is_not_left_behind(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derive, "IN_PROCESS_BYTES_MAX", 0)
    world = new_world("jsonl", tmp_path, SHARES, spark=spark)
    world.on_bad_record = "skip"
    orders = world.script.table("shop.orders")
    orders.read([{"id": i, "name": "a", "qty": 5 if i < 60_000 else 0} for i in range(60_001)])
    orders.insert({"id": -1, "name": "b", "qty": 5})
    world.script.seal(final=True)
    world.loop().run()
    assert len(world.target_rows("shop.orders")) == 60_001
    assert list((tmp_path / "derived").iterdir()) == []


def test_rows_are_skipped_without_being_kept(tmp_path: Path, spark: Any) -> None:
    world = new_world("delta-upsert", tmp_path, SHARES, spark=spark)
    world.on_bad_record = "skip"
    orders = play(world)
    world.loop().run()
    check(world, orders)
    assert not world.letters.exists()
    assert bad_rows(world.store, 3) == {"shop.orders": len(came_bad(orders))}


@pytest.mark.long_variants("before_commit", "after_last_commit", suite="sinks")
@pytest.mark.parametrize("point", ["before_commit", "in_commit", "after_last_commit", "after_record"])
def test_a_crash_neither_loses_nor_doubles_what_is_counted_and_kept(
    point: str, tmp_path: Path, spark: Any, fail_at: Callable[[str, int], None]
) -> None:
    world = new_world("delta-changelog", tmp_path, SHARES, spark=spark)
    world.on_bad_record = "dead-letter"
    orders = play(world)
    fail_at(point, 2)
    with pytest.raises(FailpointError):
        world.loop().run()
    world.restart()
    check(world, orders)
    assert [letter["row"] for letter in world.kept()] == came_bad(orders)
    assert bad_rows(world.store, 3) == {"shop.orders": len(came_bad(orders))}


def test_the_run_ends_at_the_first_and_says_which(tmp_path: Path, spark: Any, way: str) -> None:
    world = new_world("jsonl", tmp_path, SHARES, spark=spark)
    play(world)
    with pytest.raises(DataError) as ended:
        world.loop().run()
    text = str(ended.value)
    assert text.startswith(
        "shop.orders: its transform failed on a value: column 'more' (7 / (qty - 1) AS more) cannot be computed (the "
        "row at "
    )
    assert "DIVIDE_BY_ZERO" in text
    assert 'pipeline.on_bad_record = "skip"' in text
    assert world.store.last_commit() is None


def test_a_row_that_the_filter_wants_not_is_not_bad(tmp_path: Path, spark: Any) -> None:
    world = new_world("jsonl", tmp_path, Transform(table="shop.orders", projection="id, 1 div qty AS x",
                                                   filter="qty > 0"), spark=spark)  # fmt: skip
    world.script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 0})
    world.script.table("shop.orders").insert({"id": 2, "name": "a", "qty": 1})
    world.script.seal(final=True)
    world.loop().run()
    assert [row["id"] for row in world.target_rows("shop.orders")] == [2]


def test_rows_that_a_wider_type_may_bring_back_are_refused_in_a_changelog(tmp_path: Path, spark: Any) -> None:
    world = new_world("jsonl", tmp_path, Transform(table="shop.orders", projection="id, qty * 2 AS x"), spark=spark)
    world.on_bad_record = "skip"
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 2**31 - 1})
    world.script.seal()
    orders.changes.append(AlterColumnTypeEvent(orders.id, "qty", LogicalType(TypeKind.INT64), True))
    columns = [c if c.name != "qty" else Column("qty", LogicalType(TypeKind.INT64)) for c in orders.schema.columns]
    orders.schema = TableSchema(tuple(columns), ("id",))
    orders.update((1,), name="b")
    world.script.seal(final=True)
    with pytest.raises(SchemaError, match=r"shop\.orders: the type of column 'qty', which .* rows of it were left out"):
        world.loop().run()


SHARDS = (Route(r"shop\.s\d", "shop.all"),)
NOTHING = Transform(table="shop.nothing")


def shard(world: TransformedWorld, name: str, kind: TypeKind) -> ScriptedTable:
    columns = (Column("id", LogicalType(TypeKind.INT64), nullable=False), Column("v", LogicalType(kind)))
    return world.script.table(name, TableSchema(columns, ("id",)))


def merged(world: TransformedWorld) -> tuple[ScriptedTable, ScriptedTable]:
    """Bytes and texts in one column, which is text; not all bytes are."""
    world.routes = SHARDS
    raw, text = shard(world, "shop.s1", TypeKind.BINARY), shard(world, "shop.s2", TypeKind.STRING)
    world.script.tables.pop(world.script.table("shop.orders").id)
    text.read([{"id": 1, "v": "text"}])
    raw.read([{"id": i, "v": b"\xff" if i % 3 == 0 else b"raw"} for i in range(10, 20)])
    world.script.seal()
    raw.update((10,), v=b"\xfe")
    raw.update((12,), v=b"whole")
    raw.update((15,), v=b"\x80")
    raw.delete((18,))
    raw.delete((11,))
    raw.insert({"id": 30, "v": None})
    world.script.seal(final=True)
    return raw, text


@pytest.mark.parametrize("kind", ["delta-upsert", "jsonl", "iceberg-upsert"])
def test_values_that_a_merged_target_cannot_hold_are_left_out(kind: str, tmp_path: Path) -> None:
    world = new_world(kind, tmp_path, NOTHING)
    world.on_bad_record = "dead-letter"
    merged(world)
    world.loop().run()
    rows = world.target_rows("shop.all")
    if world.upsert:
        held = {row["id"]: row["v"] for row in rows}
        assert held == {1: "text", 12: "whole", **dict.fromkeys((13, 14, 16, 17, 19), "raw"), 30: None}
    else:
        mine = sorted((row for row in rows if row["_table"] == "s1"), key=lambda row: row["_seq"])
        got = [(row["_op"], row["id"], row["v"]) for row in mine]
        assert got[7:] == [("-D", 10, "raw"), ("+I", 12, "whole"), ("-D", 11, "raw"), ("+I", 30, None)]
    assert [(letter["op"], letter["row"]["id"]) for letter in world.kept()] == [
        ("+I", 12), ("+I", 15), ("+I", 18), ("+U", 10), ("+U", 15)
    ]  # fmt: skip
    assert bad_rows(world.store, 2) == {"shop.s1": 5}
    reason = "the value of column 'v' (binary) does not fit string, the type in shop.all"
    assert {letter["reason"] for letter in world.kept()} == {reason}
    assert f"{reason} (the row at " in world.warnings[0]
    assert list((tmp_path / "derived").iterdir()) == []


def test_without_a_policy_a_merged_value_ends_the_run_with_its_row(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path, NOTHING)
    merged(world)
    with pytest.raises(DataError, match=r"shop\.s1: a value of column 'v' \(binary\) .* with its key in \(id\)\. "):
        world.loop().run()


def test_a_bad_row_of_a_chunk_is_left_out_where_images_may_lack_values(tmp_path: Path, spark: Any) -> None:
    """Chunks are appended as they are: a row of one that became a deletion would be there as a row."""
    world = new_world(
        "delta-upsert", tmp_path, Transform(table="shop.orders", projection="*, 6 div qty AS n"), spark=spark
    )
    world.on_bad_record, world.partial = "skip", True
    world.script.table("shop.orders").read([{"id": i, "name": "n", "qty": i} for i in range(3)])
    world.script.seal(final=True)
    world.loop().run()
    assert sorted((row["id"], row["n"]) for row in world.target_rows("shop.orders")) == [(1, 6), (2, 3)]
    assert bad_rows(world.store, 1) == {"shop.orders": 1}
