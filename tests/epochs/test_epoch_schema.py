"""Schema changes carried to upsert targets by the epoch loop: what behaviours make of them, whatever dies where."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.config import PipelineOptions
from raycdc.core.failpoints import FailpointError
from raycdc.delivery.outcomes import Recovery
from raycdc.errors import SchemaError, SinkError
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    DropColumnEvent,
    First,
    RenameColumnEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.sinks.delta.commits import DeltaCommits
from raycdc.sinks.files.plugin import JsonlSinkConfig
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.sink_world import KEY_PARTITIONS, UPSERTS, World, new_world, play, works_of, world_of
from tests.epochs.test_epoch_loop import add_column


@pytest.fixture
def delta(tmp_path: Path) -> World:
    return new_world("delta-upsert", tmp_path)


@pytest.fixture(params=UPSERTS)
def upsert(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    world = world_of(request, request.param, tmp_path)
    if world.partition_by:
        world.partition_by = KEY_PARTITIONS[world.settings["type"]]
    return world


def changed(table: ScriptedTable, columns: Sequence[Column], *events: SchemaChangeEvent) -> None:
    """The source's ALTER TABLE: its columns from here on, and what led there."""
    table.schema = replace(table.schema, columns=tuple(columns))
    table.changes.extend(events)


def column_of(table: ScriptedTable, name: str) -> Column:
    return next(c for c in table.schema.columns if c.name == name)


def alter_orders(world: World) -> tuple[ScriptedTable, dict[tuple[Any, ...], str | None]]:
    """Two epochs, then: qty becomes a BIGINT, name is dropped, id keeps its place; one row changes, one is new.

    With the names that the target keeps, by key.
    """
    play(world, epochs=2, final=False)
    orders = world.script.table("shop.orders")
    wide = LogicalType(TypeKind.INT64)
    kept = [replace(c, type=wide) if c.name == "qty" else c for c in orders.schema.columns if c.name != "name"]
    events = AlterColumnTypeEvent(orders.id, "qty", wide), DropColumnEvent(orders.id, "name")
    before = {key: row["name"] for key, row in orders.rows.items()}
    orders.rows = {key: {n: v for n, v in row.items() if n != "name"} for key, row in orders.rows.items()}
    changed(orders, kept, *events)
    orders.update((100,), qty=1 << 40)
    orders.insert({"id": 1000, "qty": 1})
    world.script.seal(final=True)
    return orders, {**before, (100,): None, (1000,): None}


@pytest.mark.long_variants(
    "mysql-*_stage",
    "m*-after_commit",
    "mongodb-*_stage",
    "*partitioned-upsert-*_stage",
    "delta-tasks-*_commit",
    suite="sinks",
)
@pytest.mark.parametrize("point", [None, "before_stage", "after_stage", "in_commit", "after_commit"])
def test_a_wider_type_is_followed_and_a_dropped_column_stays_as_nulls(
    upsert: World, point: str | None, fail_at: Callable[[str, int], None]
) -> None:
    orders, names = alter_orders(upsert)
    if point:
        fail_at(point, 5 if point == "in_commit" else 3)
        with pytest.raises(FailpointError):
            upsert.loop().run()
        upsert.restart()
    else:
        upsert.loop().run()
    expected = [{**row, "name": names[orders.key(row)]} for row in orders.contents()]
    assert sorted(upsert.rows(orders), key=lambda row: row["id"]) == expected


@pytest.mark.parametrize("behavior", ["lenient", "evolve"])
def test_a_table_that_is_emptied_in_the_same_epoch_takes_any_type(upsert: World, behavior: str) -> None:
    play(upsert, epochs=2, final=False)
    orders = upsert.script.table("shop.orders")
    text = replace(column_of(orders, "qty"), type=LogicalType(TypeKind.STRING))
    orders.truncate()
    changed(
        orders,
        [text if c.name == "qty" else c for c in orders.schema.columns],
        TruncateTableEvent(orders.id),
        AlterColumnTypeEvent(orders.id, "qty", text.type),
    )
    orders.insert({"id": 1000, "name": "new", "qty": "many"})
    upsert.script.seal(final=True)
    upsert.loop(upsert.sink(schema_change=behavior)).run()
    upsert.check()


def test_evolve_drops_renames_and_moves_columns_in_the_target(upsert: World) -> None:
    play(upsert, epochs=2, final=False)
    orders = upsert.script.table("shop.orders")
    orders.rows = {key: {"amount": row["qty"], "id": row["id"], "at": "x"} for key, row in orders.rows.items()}
    amount = replace(column_of(orders, "qty"), name="amount")
    at = Column("at", LogicalType(TypeKind.STRING), default="x")
    changed(
        orders,
        [amount, column_of(orders, "id"), at],
        DropColumnEvent(orders.id, "name"),
        RenameColumnEvent(orders.id, "qty", "amount"),
        AlterColumnPositionEvent(orders.id, "amount", First()),
        AddColumnEvent(orders.id, at),
    )
    orders.insert({"amount": 1, "id": 1000, "at": None})
    upsert.script.seal(final=True)
    upsert.loop(upsert.sink(schema_change="evolve")).run()
    upsert.check()
    if upsert.server is None and upsert.mongodb is None:
        assert list(upsert.rows(orders)[0]) == ["amount", "id", "at"]


def test_a_column_that_comes_again_begins_anew(upsert: World) -> None:
    play(upsert, epochs=2, final=False)
    orders = upsert.script.table("shop.orders")
    changed(
        orders,
        orders.schema.columns,
        DropColumnEvent(orders.id, "qty"),
        AddColumnEvent(orders.id, column_of(orders, "qty")),
    )
    orders.rows = {key: {**row, "qty": None} for key, row in orders.rows.items()}
    upsert.script.seal(final=True)
    upsert.loop().run()
    upsert.check()


def test_a_column_renamed_to_the_name_of_one_that_stayed_shows_its_own_values(delta: World) -> None:
    play(delta, epochs=2, final=False)
    orders = delta.script.table("shop.orders")
    kept = [replace(c, name="name") if c.name == "qty" else c for c in orders.schema.columns if c.name != "name"]
    orders.rows = {key: {"id": row["id"], "name": row["qty"]} for key, row in orders.rows.items()}
    changed(orders, kept, DropColumnEvent(orders.id, "name"), RenameColumnEvent(orders.id, "qty", "name"))
    orders.insert({"id": 1000, "name": 7})
    expected = {key: row["name"] for key, row in orders.rows.items()}
    delta.script.seal(final=True)
    delta.loop().run()
    assert {(row["id"],): row["name"] for row in delta.rows(orders)} == expected
    assert any(value is not None for value in expected.values())


def test_names_that_were_exchanged_are_not_exchanged_again_when_the_rows_of_the_epoch_are_lost(upsert: World) -> None:
    """The driver dies between the schema change and the rows, and a node with these."""
    play(upsert, epochs=2)
    upsert.loop(upsert.sink(schema_change="evolve")).run()
    orders = upsert.script.table("shop.orders")
    sink = upsert.sink(schema_change="evolve")
    three = [RenameColumnEvent(orders.id, *names) for names in (("name", "x"), ("qty", "name"), ("x", "qty"))]
    names = {"name": "qty", "qty": "name", "id": "id"}
    changed(orders, [replace(c, name=names[c.name]) for c in orders.schema.columns], *three)
    orders.rows = {key: {names[n]: v for n, v in row.items()} for key, row in orders.rows.items()}
    orders.insert({"id": 1000, "name": 1, "qty": "new"})
    lost = upsert.script.seal()
    (work,) = works_of(upsert.loop(sink), lost)
    sink.apply_schema(work)
    for segment in lost.segments:
        Path(segment.path).unlink()
    asked: list[tuple[int, Sequence[TableId]]] = []
    loop = upsert.loop(sink, request_resnapshot=lambda manifest, tables, _: asked.append((manifest.epoch, tables)))
    assert loop.recover() == Recovery(lost.epoch, frozen=(lost.epoch,))
    assert asked == [(lost.epoch, (orders.id,))]
    found = {(row["id"],): row for row in upsert.rows(orders)}
    assert found == {key: row for key, row in orders.rows.items() if key != (1000,)}


def test_columns_that_swap_their_names_swap_their_values(delta: World) -> None:
    play(delta, epochs=2, final=False)
    orders = delta.script.table("shop.orders")
    number = LogicalType(TypeKind.INT32)
    add_column(orders, Column("other", number))
    delta.script.seal(final=False)
    for key in list(orders.rows):
        orders.update(key, other=key[0], qty=-key[0])
    delta.script.seal(final=False)
    orders.rows = {key: {**row, "qty": row["other"], "other": row["qty"]} for key, row in orders.rows.items()}
    changed(
        orders,
        orders.schema.columns,
        RenameColumnEvent(orders.id, "qty", "between"),
        RenameColumnEvent(orders.id, "other", "qty"),
        RenameColumnEvent(orders.id, "between", "other"),
    )
    orders.insert({"id": 1000, "name": "new", "qty": 1, "other": 2})
    delta.script.seal(final=True)
    delta.loop().run()
    delta.check()


def test_ignore_leaves_new_columns_out_and_exception_stops(upsert: World) -> None:
    play(upsert, epochs=1, final=False)
    orders = upsert.script.table("shop.orders")
    orders.rows = {key: dict(row) for key, row in orders.rows.items()}
    add_column(orders, Column("at", LogicalType(TypeKind.STRING)))
    orders.insert({"id": 1000, "name": "new", "qty": 1, "at": "now"})
    upsert.script.seal(final=True)
    with pytest.raises(SinkError, match="add_column at the source, and pipeline"):
        upsert.loop(upsert.sink(schema_change="fail")).run()
    upsert.restart(sink=upsert.sink(schema_change="ignore"))
    expected = [{name: row[name] for name in ("id", "name", "qty")} for row in orders.contents()]
    assert sorted(upsert.rows(orders), key=lambda row: row["id"]) == expected


@pytest.mark.long_variants("*-tasks-*", "*-partitioned-*", "mysql-*", "mongodb-parts-*", suite="sinks")
@pytest.mark.parametrize("behavior", ["fail", "lenient", "evolve"])
def test_changes_that_are_left_out_never_reach_the_target(upsert: World, behavior: str) -> None:
    play(upsert, epochs=1, final=False)
    orders = upsert.script.table("shop.orders")
    names = {key: row["name"] for key, row in orders.rows.items()}
    orders.rows = {key: {"id": row["id"], "qty": row["qty"], "at": "x"} for key, row in orders.rows.items()}
    at = Column("at", LogicalType(TypeKind.STRING), default="x")
    kept = [column_of(orders, "id"), column_of(orders, "qty"), at]
    changed(
        orders, kept, DropColumnEvent(orders.id, "name"), AddColumnEvent(orders.id, at), TruncateTableEvent(orders.id)
    )
    orders.insert({"id": 1000, "qty": 1, "at": "now"})
    upsert.script.seal(final=True)
    left_out = frozenset({"add_column", "drop_column", "truncate_table"})
    upsert.loop(upsert.sink(schema_change=behavior, left_out=left_out)).run()
    expected = [{"id": row["id"], "name": names.get(orders.key(row)), "qty": row["qty"]} for row in orders.contents()]
    assert sorted(upsert.rows(orders), key=lambda row: row["id"]) == expected


def test_a_wider_type_cannot_be_left_out_in_silence(upsert: World) -> None:
    play(upsert, epochs=1, final=False)
    orders = upsert.script.table("shop.orders")
    wide = LogicalType(TypeKind.INT64)
    columns = [replace(c, type=wide) if c.name == "qty" else c for c in orders.schema.columns]
    changed(orders, columns, AlterColumnTypeEvent(orders.id, "qty", wide))
    upsert.script.seal(final=True)
    with pytest.raises(SinkError, match="qty"):
        upsert.loop(upsert.sink(left_out=frozenset({"alter_column_type"}))).run()


def test_files_cannot_do_without_the_columns_of_their_rows(tmp_path: Path) -> None:
    options = PipelineOptions(
        name="p", state=str(tmp_path / "state"), exclude_schema_changes=("add_column", "truncate_table")
    )
    (problem,) = JsonlSinkConfig(type="jsonl", path=str(tmp_path / "lake")).problems(options, local=True)
    assert "add_column cannot be left out of jsonl files" in problem


def test_lenient_never_renames_the_key(upsert: World) -> None:
    play(upsert, epochs=1, final=False)
    orders = upsert.script.table("shop.orders")
    orders.schema = replace(orders.schema, primary_key=("key",))
    columns = [replace(c, name="key") if c.name == "id" else c for c in orders.schema.columns]
    changed(orders, columns, RenameColumnEvent(orders.id, "id", "key"))
    upsert.script.seal(final=True)
    refusal = "partition_by names 'id'" if upsert.partition_by else "the key column 'id' was renamed to 'key'"
    with pytest.raises((SinkError, SchemaError), match=refusal):
        upsert.loop().run()


def test_new_lake_tables_are_made_several_at_once(delta: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making one waits for the disk, and a run of hundreds of tables for all of them."""
    other = delta.script.table("shop.customers")
    other.insert({"id": 1, "name": "x", "qty": 1})
    first, second, create = threading.Event(), threading.Event(), DeltaCommits.create

    def meeting(commits: DeltaCommits, *args: Any, **kwargs: Any) -> None:
        (second if first.is_set() else first).set()
        assert second.wait(60), "the first table was made before the second one was begun"
        create(commits, *args, **kwargs)

    monkeypatch.setattr(DeltaCommits, "create", meeting)
    play(delta, epochs=1)
    delta.loop().run()
    delta.check()


@pytest.mark.parametrize("point", ["before_schema", "before_commit", "in_commit", "after_commit", "after_last_commit"])
def test_a_new_lake_table_without_rows_takes_one_commit_whatever_dies_where(
    delta: World, point: str, fail_at: Callable[[str, int], None], tmp_path: Path
) -> None:
    empty = delta.script.table("shop.empty")
    delta.script.table("shop.orders").insert({"id": 1, "name": "x", "qty": 1})
    delta.script.seal(final=True)
    fail_at(point, 1)
    with pytest.raises(FailpointError):
        delta.loop().run()
    delta.restart()
    delta.check()
    assert DeltaTable(tmp_path / "lake" / "shop" / "empty").version() == 0
    empty.insert({"id": 1, "name": "x", "qty": 1})
    delta.script.seal(final=True)
    delta.loop().run()
    delta.check()
