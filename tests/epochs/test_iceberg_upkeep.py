"""Iceberg tables that the pipeline optimises itself: what `test_lake_upkeep` does not say of all lakes."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from requests import ConnectionError  # noqa: A004  # pyiceberg's REST client raises it

from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.model import LogicalType, TypeKind
from raycdc.model.evolution import AddColumnEvent, AlterColumnTypeEvent, DropColumnEvent
from raycdc.segments import run_in_process
from raycdc.sinks.api import SinkContext
from raycdc.sinks.iceberg import maintenance
from raycdc.sinks.iceberg import snapshot_lineage as expiry
from raycdc.sinks.iceberg.catalog import HadoopCatalog, ReopenedCatalog
from raycdc.sinks.iceberg.location import local_path
from raycdc.sinks.iceberg.plugin import IcebergSinkConfig
from raycdc.sinks.iceberg.sink import IcebergSink
from raycdc.sinks.iceberg.snapshot_lineage import vector_property
from raycdc.sinks.iceberg.table import EPOCH_OF_SNAPSHOT, IcebergTarget
from raycdc.sinks.iceberg.target import run_in_commit
from raycdc.sinks.lakes.lake_options import OptimizeOptions
from raycdc.sinks.lakes.maintenance import MARK, RUN_BYTES_MAX, MaintenanceOutcome, MaintenanceSchedule
from raycdc.storage.files import touch
from tests.epochs.sink_world import World, new_world, play
from tests.epochs.test_epoch_schema import changed, column_of
from tests.epochs.upkept_lakes import ORDERS, IcebergLake

LAKE = IcebergLake()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return new_world("iceberg-upsert", tmp_path)


def table_of(world: World) -> Table:
    return LAKE.table(world)


def ids_of(world: World) -> list[int]:
    return sorted(row["id"] for row in world.rows(world.script.table("shop.orders")))


def data_on_disk(world: World) -> set[Path]:
    return set((world.root / "lake/shop/orders/data").rglob("*.parquet"))


def named_files(world: World) -> set[Path]:
    """The data files of all snapshots."""
    table = table_of(world)
    return {
        local_path(entry.data_file.file_path)
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def test_the_commit_is_a_replace_that_neither_carries_nor_changes_the_record(world: World) -> None:
    play(world, epochs=5)
    world.loop(LAKE.sink(world)).run()
    metadata = table_of(world).metadata
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    replaced = [one for one in metadata.snapshots if one.summary and one.summary.operation is Operation.REPLACE]
    assert replaced
    for one in replaced:
        assert one.parent_snapshot_id is not None
        assert one.summary is not None
        before = by_id[one.parent_snapshot_id].summary
        assert before is not None
        assert one.summary[EPOCH_OF_SNAPSHOT] is None
        assert (one.summary["total-records"], one.summary["total-data-files"]) == (before["total-records"], "1")
        assert one.summary["added-records"] == one.summary["deleted-records"]
    record = json.loads(metadata.properties[vector_property(world.store.app_id)])
    assert (record["epoch"], record["step"]) == (5, 3)
    assert record["snapshot"] == replaced[-1].parent_snapshot_id
    held = world.sink().committed(world.script.table("shop.orders").id)
    assert held is not None
    assert (held.epoch, held.step) == (5, 3)


def test_rows_are_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    world = new_world("iceberg-changelog", tmp_path)
    orders = world.script.table("shop.orders")
    for number in range(12):
        orders.insert({"id": number, "name": "n", "qty": number})
        world.script.seal(final=number == 11)
    world.loop().run()
    assert LAKE.files(world) == 12
    LAKE.after_commit(world)
    assert LAKE.files(world) == 1
    assert [row["id"] for row in world.rows(orders)] == list(range(12))


@pytest.mark.parametrize("what", ["append", "overwrite", "delete", "compact", "widen", "epoch"])
def test_who_comes_between_is_not_undone(world: World, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    play(world, epochs=3, final=False)
    world.restart()
    LAKE.small_files(world)
    heads = []

    def meanwhile(point: str) -> None:
        if point != "after_plan":
            return
        table = table_of(world)
        match what:
            case "append":
                LAKE.small_files(world, first=6000)
            case "overwrite":
                table.overwrite(table.scan().to_arrow()[:3])
            case "delete":
                table.delete("id = 5000")
            case "compact":
                table.overwrite(table.scan().to_arrow())
            case "widen":
                with table.update_schema() as update:
                    update.rename_column("name", "title")
            case _:
                world.script.table("shop.orders").update((100,), qty=77)
                world.script.seal()
                world.restart()
        heads.append((table_of(world).metadata.current_snapshot_id, ids_of(world)))

    own = maintenance.plan

    def plan(*args: Any, **more: Any) -> Any:
        planned = own(*args, **more)
        meanwhile("after_plan")
        return planned

    monkeypatch.setattr(maintenance, "plan", plan)
    target = LAKE.target(world)
    LAKE.upkeep(world).after_commit(target, world.script.generation)
    assert [(table_of(world).metadata.current_snapshot_id, ids_of(world))] == heads
    assert LAKE.optimised(world) == 0
    assert world.told == []
    monkeypatch.undo()
    # Done after the next commit, whoever made it.
    LAKE.after_commit(world)
    assert LAKE.optimised(world) == (1 if what not in ("overwrite", "compact") else 0) or LAKE.files(world) == 1
    assert ids_of(world) == heads[0][1]


def test_a_compaction_of_others_that_began_before_ours_fails(world: World) -> None:
    """And does not add the rows of the same files once more."""
    play(world, epochs=3)
    world.loop().run()
    LAKE.small_files(world)
    theirs = table_of(world)
    LAKE.after_commit(world)
    assert LAKE.operations(world)[-1] is Operation.REPLACE
    there = ids_of(world)
    with pytest.raises((CommitFailedException, ValidationException)):
        theirs.overwrite(theirs.scan().to_arrow())
    assert ids_of(world) == there


def test_whoever_dies_before_the_commit_leaves_files_that_no_snapshot_names(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(world, epochs=3)
    world.loop().run()
    before = data_on_disk(world)
    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "replace_files", died)
        with pytest.raises(RuntimeError, match="died"):
            LAKE.after_commit(world)
    left = data_on_disk(world) - before
    assert len(left) == 1
    assert not left & named_files(world)
    world.restart(sink=LAKE.sink(world))
    world.check()


def died(*_: Any) -> None:
    raise RuntimeError("died")


def test_files_of_a_compaction_that_failed_before_its_commit_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they must where the disk is full."""
    play(world, epochs=3)
    world.loop().run()
    before, rows = data_on_disk(world), ids_of(world)

    def full(tasks: Any, context: Any) -> Any:
        run_in_commit(tasks, context)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(maintenance, "run_in_commit", full)
    LAKE.after_commit(world)
    assert (data_on_disk(world), ids_of(world)) == (before, rows)
    (told,) = world.told
    assert told.startswith("sink.optimize: the small files of shop.orders stay as they are, and rows are written as ")
    assert "No space left on device" in told


def test_partitions_keep_their_files_and_files_of_older_ones_stay(tmp_path: Path) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    play(world, epochs=3, final=False)
    world.restart()
    assert table_of(world).spec().is_unpartitioned()
    unpartitioned = {task.file.file_path for task in table_of(world).scan().plan_files()}
    assert len(unpartitioned) > 1
    with table_of(world).update_spec() as update:
        update.add_field("qty", parse_transform("truncate[10]"), "qty_trunc")
    orders = world.script.table("shop.orders")
    for number in range(5):
        for key in range(8):
            orders.insert({"id": 9000 + number * 100 + key, "name": "n", "qty": key * 10 if key else None})
        world.script.seal()
    world.restart()
    before = {task.file.file_path for task in table_of(world).scan().plan_files()}
    LAKE.after_commit(world)
    files = [task.file for task in table_of(world).scan().plan_files()]
    of_now = [file for file in files if file.spec_id == table_of(world).spec().spec_id]
    assert sorted(str(file.partition[0]) for file in of_now) == sorted(str(v) for v in [None, *range(10, 80, 10)])
    assert {file.file_path for file in files if file not in of_now} == unpartitioned & before
    assert unpartitioned & before
    world.check()
    assert table_of(world).scan("qty = 30").to_arrow().column("id").to_pylist() == [
        row["id"] for row in orders.contents() if row["qty"] == 30
    ]


def test_columns_that_changed_meanwhile_come_out_as_readers_saw_them(tmp_path: Path) -> None:
    """Files that lack a column, have one that is gone, an older one of the same name, or one of a narrower type."""
    world = new_world("iceberg-changelog", tmp_path)
    play(world, epochs=2, final=False)
    orders = world.script.table("shop.orders")
    wide = LogicalType(TypeKind.INT64)
    columns = [replace(c, type=wide) if c.name == "qty" else c for c in orders.schema.columns]
    changed(orders, columns, AlterColumnTypeEvent(orders.id, "qty", wide))
    orders.update((100,), qty=1 << 40)
    world.script.seal()
    name = column_of(orders, "name")
    changed(orders, columns, DropColumnEvent(orders.id, "name"), AddColumnEvent(orders.id, name))
    orders.rows = {key: {**row, "name": None} for key, row in orders.rows.items()}
    orders.update((101,), name="again")
    world.script.seal(final=True)
    world.loop(world.sink(schema_change="evolve")).run()
    before = table_of(world).scan().to_arrow()
    assert LAKE.files(world) > 2
    LAKE.after_commit(world)
    assert LAKE.files(world) == 1
    after = table_of(world).scan().to_arrow()
    assert after.schema.names == before.schema.names
    assert after.schema.field("qty").type == pa.int64()
    assert sorted(after.to_pylist(), key=str) == sorted(before.to_pylist(), key=str)


def test_a_table_with_rows_that_were_deleted_beside_their_files_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer's delete files do a changelog no harm, and upkeep would bring the rows back."""
    world = new_world("iceberg-changelog", tmp_path)
    play(world, epochs=3, final=False)
    world.restart()
    head = table_of(world).metadata.current_snapshot_id
    with monkeypatch.context() as patch:
        patch.setattr(ManifestFile, "content", property(lambda _: ManifestContent.DELETES))
        for _ in range(2):
            LAKE.after_commit(world)
    assert table_of(world).metadata.current_snapshot_id == head
    told, again = world.told
    assert told == again, "each of two sinks told it once"
    assert told.startswith("sink.optimize: the small files of shop.orders stay as they are, and rows are written as ")
    assert "has delete files: another writer deleted or updated rows with merge-on-read" in told


def test_a_file_without_field_ids_is_told_of_once_and_rows_go_on(tmp_path: Path) -> None:
    world = new_world("iceberg-changelog", tmp_path)
    play(world, epochs=2, final=False)
    world.restart()
    path = world.root / "theirs.parquet"
    pq.write_table(table_of(world).scan().to_arrow()[:1].replace_schema_metadata({}), path)
    without_ids = pq.read_table(path)
    fields = [field.remove_metadata() for field in without_ids.schema]
    pq.write_table(without_ids.cast(pa.schema(fields)), path)
    table_of(world).add_files([path.as_uri()])
    sink = LAKE.sink(world)
    for number in range(3):
        world.script.table("shop.orders").update((100,), qty=number)
        world.script.seal(final=number == 2)
    world.restart(sink=sink)
    assert LAKE.optimised(world) == 0
    (told,) = [text for text in world.told if "shop.orders" in text]
    assert "theirs.parquet has no field ids" in told


def add_theirs(world: World, row: dict[str, pa.Array]) -> None:
    """Another writer's fast append of a file that has the values of `row`, with the table's field ids; else nulls."""
    columns = LAKE.target(world).columns()
    arrays = [row.get(one.name, pa.nulls(1, one.arrow)) for one in columns]
    fields = [one.field().with_type(array.type) for one, array in zip(columns, arrays, strict=True)]
    path = world.root / "lake/shop/orders/data/theirs.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path.as_uri(),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        spec_id=0,
    )
    with table_of(world).transaction() as changes, changes.update_snapshot().fast_append() as append:
        append.append_data_file(file)


@pytest.mark.parametrize("kind", ["iceberg-changelog", "iceberg-upsert"])
def test_a_text_of_others_that_is_not_utf8_ends_nothing(tmp_path: Path, kind: str) -> None:
    world = new_world(kind, tmp_path)
    play(world, epochs=3, final=False)
    world.restart()
    text = pa.StringArray.from_buffers(1, *pa.array([b"\xff\xfe"], pa.binary()).buffers()[1:])
    add_theirs(world, {"id": pa.array([7777], pa.int64()), "name": text})
    world.script.table("shop.orders").update((100,), qty=3)
    world.script.seal(final=True)
    world.restart(sink=LAKE.sink(world))
    assert LAKE.files(world) == 1
    assert world.told == []


def test_a_value_of_others_that_does_not_fit_its_column_is_told_of_once_and_rows_go_on(tmp_path: Path) -> None:
    world = new_world("iceberg-changelog", tmp_path)
    play(world, epochs=2, final=False)
    world.restart()
    add_theirs(world, {"id": pa.array([7777], pa.int64()), "qty": pa.array(["many"])})
    before, sink = data_on_disk(world), LAKE.sink(world)
    for number in range(2):
        world.script.table("shop.orders").update((100,), qty=number)
        world.script.seal(final=number == 1)
    world.restart(sink=sink)
    assert LAKE.optimised(world) == 0
    (told,) = world.told
    assert "has files that cannot be written anew: ArrowInvalid" in told
    assert "many" not in told
    assert not [path for path in data_on_disk(world) - before if path.name.startswith("upkeep-")]


def test_a_tagged_snapshot_keeps_its_files(world: World) -> None:
    play(world, epochs=3, final=False)
    world.restart()
    head = table_of(world).metadata.current_snapshot_id
    assert head is not None
    table_of(world).manage_snapshots().create_tag(head, "month").commit()
    then = sorted(table_of(world).scan().to_arrow().to_pylist(), key=str)
    LAKE.after_commit(world)
    assert LAKE.optimised(world) == 1
    world.script.table("shop.orders").update((100,), qty=1)
    world.script.seal(final=True)
    world.restart(sink=LAKE.sink(world))
    world.check()
    table = table_of(world)
    assert table.metadata.refs["month"].snapshot_id == head
    assert sorted(table.scan(snapshot_id=head).to_arrow().to_pylist(), key=str) == then


def test_old_snapshots_go_beside_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those by which files were made larger, too; and the record before the newest one holds nothing up for long."""
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", 3)
    config = IcebergSinkConfig(path=str(world.root / "lake"), keep_snapshots=4, optimize=OptimizeOptions())
    sink = IcebergSink(config)
    sink.open(SinkContext(world.store.app_id, "upsert", run_in_process))
    sink._maintenance = LAKE.upkeep(world)
    play(world, epochs=3, final=False)
    for number in range(12):
        world.script.table("shop.orders").update((100,), qty=number)
        world.script.seal(final=number == 11)
    world.loop(sink).run()
    world.check()
    snapshots = table_of(world).metadata.snapshots
    assert len(snapshots) <= 4 + 3 + 2
    operations = LAKE.operations(world)
    assert operations.count(Operation.REPLACE) > 1
    assert snapshots[0].snapshot_id not in {one.parent_snapshot_id for one in snapshots[:1]}
    # No gap: each has its parent, but for the oldest one.
    assert [one.parent_snapshot_id for one in snapshots[1:]] == [one.snapshot_id for one in snapshots[:-1]]


def test_a_catalog_that_is_away_is_waited_for_by_the_next_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    play(world, epochs=3)
    world.loop().run()
    target = LAKE.target(world)

    def away(*_: Any) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(HadoopCatalog, "load_table", away)
        LAKE.upkeep(world).after_commit(target, world.script.generation)
    assert LAKE.optimised(world) == 0
    (told,) = world.told
    assert "Input/output error" in told
    LAKE.after_commit(world)
    assert LAKE.optimised(world) == 1
    world.check()


def due(world: World, target: IcebergTarget) -> None:
    """The table was last looked after long ago."""
    mark = target.staging_folder / MARK
    touch(mark)
    os.utime(str(mark), (1, 1))


def upkept(world: World) -> list[Path]:
    return [path for path in data_on_disk(world) if path.name.startswith("upkeep-")]


def test_beside_a_busy_writer_it_is_tried_seldom_with_less_at_once_and_leaves_no_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(world, epochs=3)
    world.loop().run()
    own, asked = maintenance.plan, []

    def plan(*args: Any, **more: Any) -> Any:
        asked.append(more["run_bytes"])
        planned = own(*args, **more)
        if len(asked) < 5:
            LAKE.small_files(world, first=6000 + 10 * len(asked))
        return planned

    monkeypatch.setattr(maintenance, "plan", plan)
    now, target = [time.time()], LAKE.target(world)
    due(world, target)
    kept = LAKE.upkeep(world, timedelta(hours=1), clock=lambda: now[0])
    tried = []
    for second in range(0, 200, 5):
        target.refresh()
        before = len(asked)
        now[0] += 5
        kept.after_commit(target, world.script.generation)
        tried += [second] * (len(asked) - before)
        assert not upkept(world) or len(asked) == 5
    assert tried == [0, 10, 30, 70, 150]
    assert asked == [RUN_BYTES_MAX >> number for number in range(5)]
    assert LAKE.optimised(world) == 1
    (told,) = world.told
    assert "another writer of the table was faster 3 times on end" in told


@pytest.mark.parametrize("certain", [True, False])
def test_files_of_a_commit_that_may_have_gone_through_stay(
    world: World, monkeypatch: pytest.MonkeyPatch, *, certain: bool
) -> None:
    play(world, epochs=3)
    world.loop().run()
    rows, own = ids_of(world), IcebergTarget.replace_files

    def twice(target: IcebergTarget, change: Any) -> None:
        if certain:
            own(target, change)
        raise CommitFailedException("the second of two tries")

    monkeypatch.setattr(IcebergTarget, "replace_files", twice)
    if not certain:
        monkeypatch.setattr(ReopenedCatalog, "refuses_for_certain", False)
    LAKE.after_commit(world)
    assert len(upkept(world)) == 1
    assert ids_of(world) == rows


def test_what_was_away_for_a_moment_is_not_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    play(world, epochs=3)
    world.loop().run()
    now, target = [time.time()], LAKE.target(world)
    due(world, target)
    kept = LAKE.upkeep(world, timedelta(hours=1), clock=lambda: now[0])
    causes: list[Exception] = [
        ConnectionError("connection reset"),
        ConnectionError("connection reset"),
        SinkUnavailableError("The engine is starting."),
        OSError(5, "Input/output error"),
    ]

    def away(*_: Any) -> None:
        raise causes.pop(0)

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "replace_files", away)
        for left in (3, 3, 2, 1, 0):
            target.refresh()
            kept.after_commit(target, world.script.generation)
            assert len(causes) == left
            # The second one comes too soon.
            now[0] += 5 if left == 3 else 1000
    assert len(world.told) == 3, "each reason once"
    target.refresh()
    kept.after_commit(target, world.script.generation)
    assert LAKE.optimised(world) == 1
    assert time.time() - (target.staging_folder / MARK).stat().st_mtime < 600  # type: ignore[union-attr]


def test_a_rollback_between_a_commit_and_its_upkeep_is_found_by_the_next(world: World) -> None:
    play(world, epochs=3, final=False)
    world.restart()
    target = LAKE.target(world)
    snapshot = table_of(world).current_snapshot()
    assert snapshot is not None
    assert snapshot.parent_snapshot_id is not None
    table_of(world).manage_snapshots().rollback_to_snapshot(snapshot.parent_snapshot_id).commit()
    LAKE.upkeep(world).after_commit(target, world.script.generation)
    assert LAKE.optimised(world) == 0
    with pytest.raises(SinkError, match="was rolled back or replaced"):
        world.restart()


@pytest.mark.parametrize("again", [True, False])
def test_rows_that_merges_leave_behind_are_in_few_files(world: World, *, again: bool) -> None:
    """Without any upkeep: what stays of small files that a merge rewrites is one file, and so are many crumbs, if no
    key comes `again`.
    """
    orders = world.script.table("shop.orders")
    draws = np.random.default_rng(5)
    orders.read([{"id": number, "name": "n", "qty": 0} for number in range(400)])
    world.script.seal()
    for number in range(1, 31):
        for key in draws.choice(400, 12, replace=False) if again else range(number * 12, number * 12 + 12):
            orders.update((int(key),), qty=number)
        world.script.seal(final=number == 30)
    world.loop().run()
    world.check()
    assert LAKE.files(world) <= 17


def test_a_store_is_not_asked_after_every_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def modified(mark: Any) -> float:
        asked.append(mark)
        return 1000.0

    monkeypatch.setattr("raycdc.sinks.lakes.maintenance.modified", modified)
    now = [1000.0]
    schedule = MaintenanceSchedule(timedelta(seconds=60), lambda: now[0])
    ran: list[float] = []

    class Nothing:
        name = ORDERS

        def refresh(self) -> bool:
            ran.append(now[0])
            return False

        def vector(self) -> None:
            return None

    for now[0] in (1000.0, 1010.0, 1059.0, 1060.0):
        schedule.run(Nothing(), world.root / "optimized", 1, lambda _: MaintenanceOutcome.DONE)
    assert (len(asked), ran) == (2, [1060.0])


def test_the_section_is_read(tmp_path: Path) -> None:
    given: Any = {"every": "10m", "target_file": "64MiB"}
    config = IcebergSinkConfig(path=str(tmp_path), optimize=given)
    assert config.optimize == OptimizeOptions(every=timedelta(minutes=10), target_file=64 << 20)
    with pytest.raises(ValueError, match="z_order"):
        IcebergSinkConfig(path=str(tmp_path), optimize=given | {"z_order": ["id"]})
    assert IcebergSinkConfig(path=str(tmp_path)).optimize is None
