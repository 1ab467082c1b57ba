"""Changes without the rows before them, made an exact changelog: exactly once, whatever dies where."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.core.failpoints import FailpointError
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.outcomes import Recovery
from raycdc.delivery.ports import Routing
from raycdc.delivery.rows.row_store import RowStore
from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import ParkReason, SinkError
from raycdc.model import Column, LogicalType, RowKind, TypeKind
from raycdc.model.evolution import AddColumnEvent, AlterColumnTypeEvent, DropColumnEvent, TruncateTableEvent
from raycdc.model.evolution.events import CreateTableEvent, RenameColumnEvent
from raycdc.model.rules.routes import Route, Router
from raycdc.sandbox.compare import check_changelog, final_rows
from raycdc.segments import run_in_process
from raycdc.sinks.api import SinkContext
from raycdc.state.manifests.manifest import Manifest
from raycdc.testing import sink_epoch_stories
from raycdc.testing.epochs import Row, ScriptedTable
from tests.epochs.sink_world import World, commit, new_world, world_of

POINTS = (*sink_epoch_stories.POINTS, "after_known", "half_written")


@pytest.fixture(params=["jsonl", "delta-changelog", pytest.param("kafka", marks=pytest.mark.server)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return world_of(request, request.param, tmp_path)


@pytest.fixture
def lines(tmp_path: Path) -> World:
    return new_world("jsonl", tmp_path)


def routing(world: World, *routes: Route, left_out: frozenset[str] = frozenset()) -> Routing:
    context = SinkContext(world.store.app_id, world.write, run_in_process, parallelism=2, left_out=left_out)
    known = RowStore.opened(world.store.location, context)
    return Routing(Router(routes), world.write == "upsert", known=known)


def run(world: World) -> EpochLoop:
    loop = world.loop(routing=routing(world))
    loop.run()
    return loop


def restart(world: World) -> Recovery:
    return world.restart(routing=routing(world))


def put(table: ScriptedTable, row: Row, kind: RowKind = RowKind.UPDATE_AFTER) -> None:
    """A change that says the row after it and nothing else."""
    table.log.append((kind, dict(row)))
    table.rows[table.key(row)] = row


def drop(table: ScriptedTable, key: int) -> None:
    """A deletion that says its key and nothing else."""
    table.log.append((RowKind.DELETE, {column.name: None for column in table.schema.columns} | {"id": key}))
    table.rows.pop((key,), None)


def play(world: World, *, epochs: int = 3, seed: int = 7, final: bool = True) -> None:
    """A snapshot that overlaps the log; inserts of what is there, deletions of what is not, and updates of either."""
    chosen = random.Random(seed)
    for number in range(epochs):
        if number < 2:
            world.script.table("shop.orders").read(
                [{"id": 100 + 30 * number + n, "name": "read", "qty": n} for n in range(30)]
            )
        for table in world.script.tables.values():
            for _ in range(40):
                key = chosen.randrange(40) if chosen.random() < 0.8 else 100 + chosen.randrange(30)
                if chosen.random() < 0.3:
                    drop(table, key)
                else:
                    row = {"id": key, "name": chosen.choice(["a", "b", None]), "qty": chosen.choice([1, 2, None])}
                    put(table, row, chosen.choice([RowKind.INSERT, RowKind.UPDATE_AFTER]))
        world.script.seal(final=final and number == epochs - 1)


def check(world: World, **added: Any) -> None:
    """What an independent reader of the changelog finds, with each step checked."""
    for table in world.script.tables.values():
        rows = world.rows(table)
        if world.kafka is not None:
            rows = [{**row, "_pos": None} for row in rows]
        assert check_changelog(rows, ["id"], added_columns=added) == []
        found = final_rows(rows, ["id"], table.schema.arrow()).sort_by("id")
        assert found.to_pylist() == table.contents()


def known(world: World, table: ScriptedTable) -> list[Row]:
    folder = world.store.path / "known" / table.id.db / table.id.table
    found: pa.Table = DeltaTable(str(folder)).to_pyarrow_table()
    rows: list[Row] = found.sort_by("id").to_pylist()
    return rows


def test_changes_become_an_exact_changelog(world: World) -> None:
    play(world)
    loop = run(world)
    check(world)
    for table in world.script.tables.values():
        assert known(world, table) == table.contents()
    assert loop.recover() == Recovery(3)
    record = world.store.last_commit()
    assert record is not None
    assert set(record.tables) == {"shop.orders", "shop.items"}
    assert set(record.known) == {"known rows of shop.orders", "known rows of shop.items"}
    assert not list((world.store.path / "exact").iterdir())


@pytest.mark.parametrize(
    ("kind", "point", "count"),
    [
        *(("jsonl", point, count) for point in POINTS for count in (1, 2, 4)),
        *(("delta-changelog", point, 1) for point in ("in_commit", "after_last_commit", "after_known")),
        pytest.param("kafka", "after_last_commit", 1, marks=pytest.mark.server),
    ],
)
def test_an_error_at_any_point_leaves_the_changelog_exact(
    kind: str,
    point: str,
    count: int,
    fail_at: Callable[[str, int], None],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    world = world_of(request, kind, tmp_path)
    play(world)
    fail_at(point, count)
    try:
        world.loop(routing=routing(world)).run()
    except FailpointError:
        restart(world)
    else:
        assert count > 2
    check(world)
    assert world.loop(routing=routing(world)).recover() == Recovery(3)


def test_known_rows_are_found_in_files_of_whoever_wrote_them(lines: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # No merge is small enough to be raycdc's own: delta-rs writes the files.
    monkeypatch.setattr("raycdc.sinks.delta.small_merge.CHANGES_BYTES_MAX", -1)
    play(lines, epochs=4)
    run(lines)
    check(lines)


def test_files_of_old_versions_go(lines: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raycdc.delivery.rows.row_store._CLEANED_EVERY_S", 0.0)
    play(lines, epochs=4)
    run(lines)
    check(lines)
    for table in lines.script.tables.values():
        folder = lines.store.path / "known" / table.id.db / table.id.table
        named = {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}
        assert {path.name for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts} == named
        assert known(lines, table) == table.contents()


def test_columns_change_and_known_rows_follow(lines: World) -> None:
    orders = lines.script.table("shop.orders")
    orders.read([{"id": n, "name": f"n{n}", "qty": n} for n in range(4)])
    lines.script.seal()
    orders.schema = type(orders.schema)(
        (
            orders.schema.columns[0],
            Column("title", LogicalType(TypeKind.STRING)),
            Column("qty", LogicalType(TypeKind.INT64)),
            Column("more", LogicalType(TypeKind.INT32)),
        ),
        ("id",),
    )
    events = (
        RenameColumnEvent(orders.id, "name", "title"),
        AlterColumnTypeEvent(orders.id, "qty", LogicalType(TypeKind.INT64)),
        AddColumnEvent(orders.id, Column("more", LogicalType(TypeKind.INT32))),
    )
    orders.changes += events
    put(orders, {"id": 1, "title": "n1", "qty": 1, "more": None})
    put(orders, {"id": 2, "title": "n2", "qty": 2, "more": 3})
    lines.script.seal()
    orders.schema = type(orders.schema)((orders.schema.columns[0], *orders.schema.columns[2:]), ("id",))
    orders.changes.append(DropColumnEvent(orders.id, "title"))
    drop(orders, 3)
    lines.script.seal(final=True)
    run(lines)
    rows = [
        {n: v for n, v in row.items() if n in ("_op", "id", "name", "title", "qty", "more")}
        for row in lines.rows(orders)
    ]
    assert rows[4:] == [
        {"id": 2, "title": "n2", "qty": 2, "more": None, "_op": "-U"},
        {"id": 2, "title": "n2", "qty": 2, "more": 3, "_op": "+U"},
        {"id": 3, "qty": 3, "more": None, "_op": "-D"},
    ]


@pytest.mark.parametrize("point", ["after_schema", "after_last_commit", "after_known"])
def test_an_emptied_table_begins_again(lines: World, point: str, fail_at: Callable[[str, int], None]) -> None:
    orders = lines.script.table("shop.orders")
    orders.read([{"id": n, "name": "old", "qty": n} for n in range(4)])
    lines.script.seal()
    orders.changes.append(TruncateTableEvent(orders.id))
    orders.truncate()
    put(orders, {"id": 1, "name": "new", "qty": 1})
    drop(orders, 2)
    lines.script.seal()
    orders.read([{"id": n, "name": "new", "qty": n} for n in range(2, 4)])
    put(orders, {"id": 3, "name": "newer", "qty": 3})
    lines.script.seal(final=True)
    fail_at(point, 2)
    with pytest.raises(FailpointError):
        run(lines)
    restart(lines)
    check(lines)
    ops = [row["_op"] for row in lines.rows(orders)]
    assert ops == ["+I"] * 4 + ["T", "+I"] + ["+I", "+I", "-U", "+U"]


def test_a_table_that_is_emptied_for_the_source_alone_keeps_its_rows(lines: World) -> None:
    orders = lines.script.table("shop.orders")
    orders.read([{"id": 1, "name": "old", "qty": 1}])
    lines.script.seal()
    orders.changes.append(TruncateTableEvent(orders.id))
    put(orders, {"id": 1, "name": "new", "qty": 1})
    lines.script.seal(final=True)
    lines.loop(routing=routing(lines, left_out=frozenset({"truncate_table"}))).run()
    assert [row["_op"] for row in lines.rows(orders)] == ["+I", "-U", "+U"]


def test_rows_that_were_lost_before_they_were_known_come_again_with_their_table(
    lines: World, fail_at: Callable[[str, int], None]
) -> None:
    play(lines)
    fail_at("after_last_commit", 2)
    with pytest.raises(FailpointError):
        run(lines)
    lost = [path for path in lines.store.spool.iterdir() if "0000000002-shop.orders" in path.name]
    assert lost
    for path in lost:
        path.unlink()
    asked: list[str] = []

    def begin_again(_manifest: Manifest, tables: Any, _text: str) -> None:
        asked.extend(map(str, tables))

    lines.script.generation = lines.store.generations.next()
    recovery = lines.loop(routing=routing(lines), request_resnapshot=begin_again).recover()
    assert (recovery.epoch, recovery.frozen) == (2, (2,))
    assert asked == ["shop.orders"]


def test_known_rows_that_are_gone_are_refused(lines: World) -> None:
    play(lines, final=False)
    lines.script.seal(final=True)
    run(lines)
    (lines.store.path / "known" / "shop" / "orders").rename(lines.root / "elsewhere")
    with pytest.raises(SinkError, match=r"known rows of shop\.orders holds nothing"):
        restart(lines)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_table_without_a_key_is_parked_and_the_others_go_on(lines: World, rows: int) -> None:
    lines.script.table("shop.orders").read([{"id": 1, "name": "a", "qty": 1}])
    keyless = lines.script.table("shop.notes", replace(lines.script.table("shop.orders").schema, primary_key=()))
    keyless.log += [(RowKind.INSERT, {"id": n, "name": "n", "qty": n}) for n in range(rows)]
    lines.script.seal(final=True)
    lines.loop(routing=routing(lines), parking=ParkingPolicy()).run()
    record = lines.store.last_commit()
    assert record is not None
    assert [(name, entry.reason) for name, entry in record.parked.items()] == [("shop.notes", ParkReason.KEY)]
    assert len(lines.rows(lines.script.table("shop.orders"))) == 1


def damage(folder: Path, trouble: str) -> None:
    match trouble:
        case "changed":
            write_deltalake(folder, pa.table({"id": [1]}), mode="overwrite", schema_mode="overwrite")
        case "unreadable":
            for path in (folder / "_delta_log").glob("*.json"):
                path.write_text("{ no such thing")
        case "rows damaged":
            for path in folder.glob("*.parquet"):
                path.write_bytes(b"PAR1 no such thing PAR1")
        case _:
            shutil.rmtree(folder)


BEGINNING = {"shop.orders": 0, "shop.items": 0}


@pytest.mark.parametrize("at_a_start", [False, True], ids=["in the run", "at a start"])
@pytest.mark.parametrize("trouble", ["gone", "changed", "unreadable", "rows damaged", "all gone"])
def test_known_rows_that_are_damaged_park_their_tables_until_these_begin_again(
    lines: World, trouble: str, at_a_start: bool
) -> None:
    orders, items = (lines.script.table(f"shop.{name}") for name in ("orders", "items"))
    rows = [{"id": n, "name": "old", "qty": n} for n in range(6)]
    for table in (orders, items):
        table.read(rows)
    lines.script.seal(incarnations=BEGINNING)
    loop = lines.loop(routing=routing(lines), parking=ParkingPolicy())
    loop.recover()
    hurt = [orders, items] if trouble == "all gone" else [orders]
    for table in hurt:
        damage(lines.store.path / "known" / "shop" / table.id.table, trouble)
    for table in (orders, items):
        put(table, {"id": 5, "name": "late", "qty": 1})
    lines.script.seal(incarnations=BEGINNING)
    (sealed,) = lines.store.manifests(1)
    if at_a_start:
        lines.loop(routing=routing(lines), parking=ParkingPolicy()).recover()
    else:
        commit(loop, sealed)
    record = lines.store.last_commit()
    assert record is not None
    assert sorted(record.parked) == sorted(str(table.id) for table in hurt)
    assert [len(lines.rows(table)) for table in (orders, items)] == [6, 6 if items in hurt else 8]
    # The way out that the message names: they begin again.
    assert "raycdc tables resnapshot CONFIG shop.orders" in record.parked["shop.orders"].text
    for table in hurt:
        table.truncate()
        first = (TruncateTableEvent(table.id), CreateTableEvent(table.id, table.schema))
        table.changes += first
    again = BEGINNING | {str(table.id): 1 for table in hurt}
    lines.script.seal(incarnations=again)
    for table in hurt:
        table.read(rows)
    lines.script.seal(incarnations=again)
    for table in (orders, items):
        put(table, {"id": 5, "name": "last", "qty": 2})
        drop(table, 0)
    lines.script.seal(incarnations=again, final=True)
    assert lines.restart(routing=routing(lines), parking=ParkingPolicy()).epoch == 5
    record = lines.store.last_commit()
    assert record is not None
    assert record.parked == {}
    for table in (orders, items):
        held = lines.rows(table)
        begun = max((n for n, row in enumerate(held) if row["_op"] == "T"), default=-1)
        assert check_changelog(held[begun + 1 :], ["id"]) == []
        assert final_rows(held, ["id"], table.schema.arrow()).sort_by("id").to_pylist() == table.contents()
        assert known(lines, table) == table.contents()
    assert [row["_op"] for row in lines.rows(orders)][-3:] == ["-U", "+U", "-D"]


def test_merged_tables_share_a_changelog_that_is_exact_for_each(lines: World) -> None:
    play(lines)
    lines.loop(routing=routing(lines, Route("shop\\.(orders|items)", "lake.all"))).run()
    rows = [row for f in sorted((lines.root / "lake" / "lake" / "all").glob("*.jsonl")) for row in _lines(f)]
    for table in ("orders", "items"):
        assert check_changelog([row for row in rows if row["_table"] == table], ["id"]) == []


def _lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]
