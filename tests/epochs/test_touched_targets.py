"""Targets that others touch: stories beyond the table of `test_other_writers`, above all of what must survive.

`test_staged_files` has files that are not part of a target yet, `test_demanding_targets` tables with demands of rows.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.cli.entry import main
from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import ExitCode, ParkReason, SinkError, StateError, TargetDroppedError, TargetModifiedError
from raycdc.model import Column, LogicalType, TypeKind
from raycdc.model.evolution.events import (
    AddColumnEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    RenameColumnEvent,
    TruncateTableEvent,
)
from raycdc.sinks.delta import commits as delta_commits
from raycdc.sinks.lakes.statistics import for_table
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.deeds import delta_delete, delta_made_again, delta_note, delta_overwrite, iceberg_note
from tests.epochs.sink_world import World, commit, new_world, works_of
from tests.epochs.touched_story import EACH, LAKES, TouchedTarget, folder


def add_note(world: World) -> None:
    """Another writer adds a column to the target of shop.items, and gives all rows a value there."""
    (delta_note if world.kind.startswith("delta") else iceberg_note)(world)


def notes_of(world: World) -> dict[int, str | None]:
    return {row["id"]: row["note"] for row in world.rows(world.script.table("shop.items"))}


@pytest.mark.parametrize("kind", LAKES)
def test_a_column_of_others_keeps_its_values_when_rows_are_updated(kind: str, tmp_path: Path) -> None:
    world = new_world(kind, tmp_path)
    items = world.script.table("shop.items")
    items.read([{"id": n, "name": "read", "qty": n} for n in range(1, 5)])
    world.script.seal()
    world.loop().recover()
    add_note(world)
    items.update((1,), name="changed")
    items.update((2,), qty=20)
    items.insert({"id": 7, "name": "new", "qty": 7})
    items.delete((4,))
    world.script.seal(final=True)
    world.restart()
    assert notes_of(world) == {1: "theirs 1", 2: "theirs 2", 3: "theirs 3", 7: None}
    held = [{name: row[name] for name in ("id", "name", "qty")} for row in world.rows(items)]
    assert sorted(held, key=lambda row: row["id"]) == items.contents()


TEXT = LogicalType(TypeKind.STRING)
NOTE = Column("note", TEXT)


def noted(items: ScriptedTable, *, default: str | None) -> None:
    """The source gets a column named as that of others: an added one, or a renamed one if there is no `default`."""
    columns = items.schema.columns
    if default is None:
        items.changes.append(RenameColumnEvent(items.id, "name", "note"))
        columns = tuple(c.with_name("note") if c.name == "name" else c for c in columns)
        items.rows = {key: {"id": r["id"], "note": r["name"], "qty": r["qty"]} for key, r in items.rows.items()}
    else:
        column = replace(NOTE, default=default or None)
        items.changes.append(AddColumnEvent(items.id, column))
        columns = (*columns, column)
        items.rows = {key: {**row, "note": column.default} for key, row in items.rows.items()}
    items.schema = replace(items.schema, columns=columns)
    items.insert(
        {"id": 9, "name": "new", "note": "new", "qty": 9} if len(columns) > 3 else {"id": 9, "note": "", "qty": 9}
    )


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-changelog", "iceberg-upsert", "iceberg-changelog"])
@pytest.mark.parametrize(
    ("default", "behavior"), [("", "lenient"), ("x", "lenient"), (None, "evolve"), (None, "lenient")]
)
def test_a_column_of_others_is_not_replaced_by_one_of_the_source(
    kind: str, default: str | None, behavior: str, tmp_path: Path
) -> None:
    world = new_world(kind, tmp_path)
    items = world.script.table("shop.items")
    items.read([{"id": n, "name": "read", "qty": n} for n in range(1, 4)])
    world.script.seal()
    world.loop().recover()
    add_note(world)
    items.insert({"id": 5, "name": "log", "qty": 50})
    world.script.seal(final=True)
    world.restart()
    before = notes_of(world)
    assert before == {1: "theirs 1", 2: "theirs 2", 3: "theirs 3", 5: None}
    noted(items, default=default)
    world.script.seal(final=True)
    for _ in range(2):
        with pytest.raises(TargetModifiedError, match=r"has the column note of another writer"):
            world.restart(sink=world.sink(schema_change=behavior))
    assert notes_of(world) == before


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-changelog", "iceberg-upsert", "iceberg-changelog"])
@pytest.mark.parametrize(
    ("default", "behavior"), [("", "lenient"), ("x", "lenient"), (None, "evolve"), (None, "lenient")]
)
def test_a_change_that_was_made_for_an_epoch_that_was_dropped_is_made_again(
    kind: str, default: str | None, behavior: str, tmp_path: Path
) -> None:
    """The column that the target has then is not one of others."""
    world = new_world(kind, tmp_path)
    items = world.script.table("shop.items")
    items.read([{"id": n, "name": "read", "qty": n} for n in range(1, 4)])
    world.script.seal(final=True)
    world.restart()
    noted(items, default=default)
    world.script.seal(final=True)
    loop = world.loop(sink=world.sink(schema_change=behavior))
    (work,) = works_of(loop, world.store.manifest(2))
    for _ in range(2):
        sink = world.sink(schema_change=behavior)
        sink.apply_schema(work)
        work = replace(work, epoch=work.epoch + 1)
    fills = kind.endswith("-upsert")
    expected = "read" if default is None and (fills or behavior == "evolve") else default or None if fills else None
    assert {row["note"] for row in world.rows(items)} == {expected}


@pytest.mark.parametrize("kind", LAKES)
def test_a_column_of_a_table_that_was_there_before_keeps_its_values(kind: str, tmp_path: Path) -> None:
    """With ``on_existing = "merge"``, whose snapshot meets rows that are there."""
    first = new_world(kind, tmp_path)
    first.script.table("shop.items").read([{"id": n, "name": "before", "qty": n} for n in range(1, 4)])
    first.script.seal(final=True)
    first.loop().recover()
    add_note(first)
    shutil.rmtree(tmp_path / "state")
    world = new_world(kind, tmp_path)
    items = world.script.table("shop.items")
    items.read([{"id": n, "name": "read", "qty": n} for n in range(2, 6)])
    world.script.seal()
    items.update((3,), name="changed")
    world.script.seal(final=True)
    world.restart(sink=world.sink(on_existing="merge"))
    assert notes_of(world) == {1: "theirs 1", 2: "theirs 2", 3: "theirs 3", 4: None, 5: None}


@pytest.mark.parametrize("kind", LAKES)
def test_a_column_that_the_source_dropped_is_null_in_rows_written_since(kind: str, tmp_path: Path) -> None:
    """Also where somebody else's column keeps its values beside it."""
    world = new_world(kind, tmp_path)
    if "partitioned" in kind:
        world.partition_by = ()
    items = world.script.table("shop.items")
    items.read([{"id": n, "name": "read", "qty": n} for n in range(1, 4)])
    world.script.seal()
    world.loop().recover()
    add_note(world)
    items.schema = replace(items.schema, columns=tuple(c for c in items.schema.columns if c.name != "name"))
    items.rows = {key: {"id": row["id"], "qty": row["qty"]} for key, row in items.rows.items()}
    items.changes.append(DropColumnEvent(items.id, "name"))
    items.update((1,), qty=10)
    world.script.seal()
    items.update((2,), qty=20)
    world.script.seal(final=True)
    world.restart()
    assert {row["id"]: (row["name"], row["note"]) for row in world.rows(items)} == {
        1: (None, "theirs 1"),
        2: (None, "theirs 2"),
        3: ("read", "theirs 3"),
    }


@pytest.mark.parametrize("kind", LAKES)
def test_a_column_of_others_stays_when_a_table_begins_again_without_some_of_its_own(kind: str, tmp_path: Path) -> None:
    world = new_world(kind, tmp_path)
    if "partitioned" in kind:
        world.partition_by = ()
    items = world.script.table("shop.items")
    items.read([{"id": 1, "name": "read", "qty": 1}])
    world.script.seal()
    world.loop(world.sink(schema_change="evolve")).recover()
    add_note(world)
    items.truncate()
    items.schema = replace(items.schema, columns=tuple(c for c in items.schema.columns if c.name != "name"))
    items.changes += [TruncateTableEvent(items.id), CreateTableEvent(items.id, items.schema)]
    items.log = []
    items.read([{"id": 2, "qty": 2}])
    world.script.seal(final=True)
    world.restart(sink=world.sink(schema_change="evolve"))
    assert world.rows(items) == [{"id": 2, "qty": 2, "note": None}]


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        ("delta-upsert", frozenset({"drop_table", "truncate_table"})),
        ("delta-changelog", frozenset()),
        ("iceberg-changelog", frozenset()),
        ("parquet", frozenset()),
    ],
)
def test_a_target_that_was_deleted_is_missed_where_its_rows_were_to_outlive_their_table(
    kind: str, left_out: frozenset[str], tmp_path: Path, *, runs: bool
) -> None:
    """The source's table is dropped and made again, by nobody who knows of the target."""
    world = new_world(kind, tmp_path)
    world.foresees = False
    orders, items = world.script.table("shop.orders"), world.script.table("shop.items")
    sink = world.sink(left_out=left_out)
    for table in (orders, items):
        table.read([{"id": number, "name": "a", "qty": number} for number in range(5)])
    world.script.seal(final=True)
    world.loop(sink, parking=ParkingPolicy()).run()
    shutil.rmtree(tmp_path / "lake/shop/orders")
    orders.changes.extend((DropTableEvent(orders.id), CreateTableEvent(orders.id, orders.schema)))
    for table in (orders, items):
        table.insert({"id": 20, "name": "b", "qty": 20})
    world.script.seal(final=True)
    if runs:
        world.loop(sink, parking=ParkingPolicy()).run()
    else:
        world.restart(sink=world.sink(left_out=left_out), parking=ParkingPolicy())
    record = world.store.last_commit()
    assert record is not None
    assert list(record.parked) == ["shop.orders"]


def test_a_delta_table_made_anew_between_look_and_commit_is_not_believed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit lands in the other table then; it says for which one it was."""
    story = TouchedTarget("delta-changelog", tmp_path)
    story.goes_on(1)
    pending = [True]

    def others_first(*arguments: Any) -> str:
        if pending:
            pending.pop()
            delta_made_again(story.world)
        return for_table(*arguments)

    monkeypatch.setattr(delta_commits, "for_table", others_first)
    story.goes_on(2)
    assert not pending
    assert DeltaTable(str(folder(story.world))).transaction_version(story.world.store.app_id) is not None
    fresh = story.world.sink()
    with pytest.raises(TargetDroppedError, match="is not the one that this pipeline wrote to"):
        fresh.committed(story.items.id)
    story.starts_again(3)
    assert story.parked is not None


def of_generated_tables(root: Path, *tables: str) -> tuple[Path, Path, Path]:
    """The configuration of a pipeline of such tables into Delta, its lake, and its state."""
    config, lake, state = root / "only.toml", root / "lake", root / "state"
    config.write_text(
        f"""
[pipeline]
name = "only"
state = "{state}"
[source]
type = "datagen"
tables = {json.dumps(tables)}
rows = 20
events = 10
per_second = 0
[sink]
type = "delta"
path = "{lake}"
write = "upsert"
"""
    )
    return config, lake, state


@pytest.mark.parametrize("cause", [delta_delete, delta_overwrite])
def test_the_only_table_of_a_pipeline_is_parked_when_others_took_rows_from_it(
    cause: Callable[[Any], None], tmp_path: Path
) -> None:
    """It is there, and says so: its place is no other one, which would be the sink's trouble."""
    config, lake, state = of_generated_tables(tmp_path, "shop.items")

    def runs() -> int:
        return main(["run", str(config), "--local", "--until", "caught-up"])

    assert runs() == 0
    cause(SimpleNamespace(root=tmp_path))
    assert (runs(), runs()) == (ExitCode.DATA, ExitCode.DATA)
    record = CheckpointStore(state, create=False).last_commit()
    assert record is not None
    assert record.parked["shop.items"].reason is ParkReason.MODIFIED
    shutil.rmtree(lake / "shop" / "items")
    assert main(["tables", "resnapshot", str(config), "shop.items"]) == 0
    assert runs() == 0


def test_several_tables_that_all_fail_end_the_run_and_go_on_once_their_one_cause_is_mended(tmp_path: Path) -> None:
    """As after a restore without grants: one cause of all, which is mended once, and nothing has to be read anew."""
    config, lake, state = of_generated_tables(tmp_path, "shop.items", "shop.orders")

    def runs() -> int:
        return main(["run", str(config), "--local", "--until", "caught-up"])

    assert runs() == 0
    targets = [DeltaTable(str(lake / "shop" / name)) for name in ("items", "orders")]
    versions = [target.version() for target in targets]
    for target in targets:
        target.delete("id = 3")
    assert (runs(), runs()) == (ExitCode.SINK, ExitCode.SINK)
    for target, version in zip(targets, versions, strict=True):
        target.restore(version)
    assert runs() == 0
    record = CheckpointStore(state, create=False).last_commit()
    assert record is not None
    assert not record.parked


@pytest.mark.parametrize("kind", EACH)
def test_a_pipeline_whose_target_another_one_replaced_writes_no_more(kind: str, tmp_path: Path) -> None:
    first = TouchedTarget(kind, tmp_path / "first")
    first.goes_on(1)
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "lake").symlink_to(tmp_path / "first" / "lake")
    second = new_world(kind, tmp_path / "second")
    items = second.script.table("shop.items")
    loop = second.loop(sink=second.sink(on_existing="replace"))
    for table in second.script.tables.values():
        table.read([{"id": n, "name": "second", "qty": n} for n in range(1, 5)])
    commit(loop, second.script.seal())
    theirs = second.rows(items)
    first.goes_on(2)
    assert first.parked is not None
    assert first.parked.reason is ParkReason.MISSING
    with suppress(SinkError, StateError):
        first.starts_again(3)
    assert second.rows(items) == theirs
    items.update((1,), name="changed")
    commit(loop, second.script.seal(final=True))
    assert {row["name"] for row in second.rows(items) if row["id"] == 2} == {"second"}
    second.restart()
    second.check()


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_files_that_another_pipeline_replaced_are_noticed_before_any_is_written(kind: str, tmp_path: Path) -> None:
    """Another look is there where a file is made visible; a table without changes has none."""
    first = TouchedTarget(kind, tmp_path)
    first.goes_on(1)
    records = folder(first.world) / "_raycdc"
    (writer,) = records.glob("writer-*.json")
    (records / writer.name.replace("writer", "barred")).write_bytes(writer.read_bytes())
    first.world.loop(parking=ParkingPolicy()).recover()
    assert first.parked is not None
    assert (first.parked.reason, "taken over by another" in first.parked.text) == (ParkReason.MISSING, True)


@pytest.mark.parametrize("how", ["a row", "a change"])
@pytest.mark.parametrize("kind", LAKES)
def test_a_truncation_at_the_source_takes_no_rows_of_others_from_an_adopted_target(
    kind: str, how: str, tmp_path: Path
) -> None:
    first = new_world(kind, tmp_path)
    first.script.table("shop.items").read([{"id": n, "name": "theirs", "qty": n} for n in range(1, 4)])
    first.script.seal(final=True)
    first.loop().recover()
    shutil.rmtree(tmp_path / "state")
    world = new_world(kind, tmp_path)
    items = world.script.table("shop.items")
    loop = world.loop(sink=world.sink(on_existing="merge"), parking=ParkingPolicy())
    items.read([{"id": n, "name": "ours", "qty": n} for n in range(10, 13)])
    commit(loop, world.script.seal())
    before = world.rows(items)
    if how == "a row":
        items.truncate()
    else:
        items.changes.append(TruncateTableEvent(items.id))
    items.insert({"id": 20, "name": "ours", "qty": 1})
    manifest = world.script.seal()
    (work,) = works_of(loop, manifest)
    commit(loop, manifest)
    record = world.store.last_commit()
    assert record is not None
    assert record.parked["shop.items"].reason is ParkReason.TAKEN
    assert "may have rows of others" in record.parked["shop.items"].text
    assert world.rows(items) == before
    # What becomes of them is for people to say.
    sink = world.sink(on_existing="replace")
    sink.apply_schema(work)
    sink.commit(work, sink.stage([work])[work.target])
    assert {row["id"] for row in world.rows(items)} == {20}


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize("tables", [("items",), ("items", "orders")])
def test_a_target_that_was_brought_back_parks_its_table_also_if_it_is_the_only_one(
    kind: str, tables: tuple[str, ...], tmp_path: Path
) -> None:
    world = new_world(kind, tmp_path)
    world.script.tables.clear()
    scripted = [world.script.table(f"shop.{name}") for name in tables]
    for table in scripted:
        table.read([{"id": n, "name": "read", "qty": n} for n in range(1, 5)])
    world.script.seal()
    world.restart()
    shutil.copytree(folder(world), tmp_path / "older")
    for table in scripted:
        table.insert({"id": 9, "name": "log", "qty": 9})
    world.script.seal(final=True)
    world.restart()
    shutil.rmtree(folder(world))
    shutil.copytree(tmp_path / "older", folder(world))
    world.restart(parking=ParkingPolicy())
    record = world.store.last_commit()
    assert record is not None
    assert record.parked.keys() == {"shop.items"}


def test_a_target_that_is_missing_ends_the_start_of_a_pipeline_that_has_no_other(tmp_path: Path) -> None:
    """Its sink may be elsewhere, which a person can correct without another snapshot."""
    world = new_world("delta-upsert", tmp_path)
    world.script.tables.clear()
    world.script.table("shop.items").read([{"id": 1, "name": "read", "qty": 1}])
    world.script.seal(final=True)
    world.restart()
    shutil.rmtree(folder(world))
    with pytest.raises(SinkError, match="holds nothing of this pipeline"):
        world.restart(parking=ParkingPolicy())


def test_a_start_waits_for_a_command_that_has_the_state_for_a_moment(tmp_path: Path) -> None:
    config, _, state = of_generated_tables(tmp_path, "shop.items")
    assert main(["run", str(config), "--local", "--until", "caught-up"]) == 0
    lease = CheckpointStore(state, create=False).lease()
    timer = threading.Timer(0.5, lease.release)
    timer.start()
    assert main(["run", str(config), "--local", "--until", "caught-up"]) == 0
    timer.join()
