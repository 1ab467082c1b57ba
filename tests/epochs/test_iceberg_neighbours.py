"""Other writers of an Iceberg table: what this pipeline notices, what it works beside, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IntegerType, LongType, StringType

from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import FencedError, ParkReason, SinkError, TargetModifiedError
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.model.evolution import AddColumnEvent
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.segments import run_in_process
from raycdc.sinks.api import CommitVector, SinkContext
from raycdc.sinks.iceberg.catalog import HadoopCatalog, open_catalog
from raycdc.sinks.iceberg.files import IcebergColumn
from raycdc.sinks.iceberg.location import local_path
from raycdc.sinks.iceberg.metadata import iceberg_schema
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.sinks.iceberg.sink import IcebergSink
from raycdc.sinks.iceberg.snapshot_lineage import CONFIRMED
from tests.epochs.deeds import iceberg_roll_back
from tests.epochs.sink_world import World, new_world, play, works_of

ORDERS = ("shop", "orders")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return new_world("iceberg-upsert", tmp_path)


def catalog_of(world: World) -> HadoopCatalog:
    return HadoopCatalog("other", world.root / "lake")


def table_of(world: World) -> Table:
    return catalog_of(world).load_table(ORDERS)


def compacted(world: World) -> None:
    """Another writer puts all rows of the table into one new file."""
    table = table_of(world)
    table.overwrite(table.scan().to_arrow())


def change(world: World, number: int) -> None:
    """One more epoch that updates, deletes and inserts."""
    orders = world.script.table("shop.orders")
    orders.update((100,), qty=number)
    if (101 + number,) in orders.rows:
        orders.delete((101 + number,))
    orders.insert({"id": 5000 + number, "name": "new", "qty": number})
    world.script.seal()


def test_where_descent_cannot_be_seen_a_person_vouches_for_it(world: World) -> None:
    play(world, final=False)
    world.restart()
    compacted(world)
    compacted(world)
    table = table_of(world)
    head = table.metadata.current_snapshot_id
    others = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != head]
    table.maintenance.expire_snapshots().by_ids(others).commit()
    for entry in table_of(world).metadata.metadata_log:
        local_path(entry.metadata_file).unlink()
    with pytest.raises(SinkError, match=rf"cannot be seen.*'raycdc.confirmed-snapshot' = '{head}'"):
        world.restart()
    with table_of(world).transaction() as transaction:
        transaction.set_properties({CONFIRMED: str(head)})
    change(world, 1)
    world.restart()
    change(world, 2)
    world.restart()
    world.check()
    assert head is not None
    # What was vouched for once does not vouch for a rollback to there.
    table_of(world).manage_snapshots().rollback_to_snapshot(head).commit()
    with pytest.raises(SinkError, match="was rolled back or replaced"):
        world.restart()


def test_an_iceberg_table_that_is_rolled_forward_again_goes_on(world: World) -> None:
    """Before anything was recorded: where such a table ends the run."""
    for name in ("shop.orders", "shop.items"):
        world.script.table(name).read([{"id": n, "name": "read", "qty": n} for n in range(5)])
    world.script.seal()
    world.loop().recover()
    world.script.table("shop.items").update((1,), name="changed")
    world.script.seal()
    world.loop().recover()
    roll_forward = iceberg_roll_back(world)
    with pytest.raises(Exception, match="Roll it forward again, or drop the table"):
        world.loop().recover()
    roll_forward()
    world.script.table("shop.items").update((2,), name="changed")
    world.script.seal(final=True)
    world.restart()
    world.check()


@pytest.mark.parametrize("table", ["my orders", "größe 5%"])
def test_any_name_of_a_table_can_be_read(world: World, table: str) -> None:
    world.script.table(f"shop.{table}").insert({"id": 1, "name": "n", "qty": 1})
    world.script.seal(final=True)
    world.loop().run()
    assert catalog_of(world).load_table(("shop", table)).scan().to_arrow().to_pylist() == [
        {"id": 1, "name": "n", "qty": 1}
    ]


def test_a_table_that_holds_less_than_before_is_refused_while_running(world: World) -> None:
    play(world, epochs=1)
    sink = world.sink()
    world.loop(sink).run()
    orders = world.root / "lake" / "shop" / "orders"
    shutil.copytree(orders, world.root / "older")
    for number in (1, 2):
        change(world, number)
    first, second = (
        next(w for w in works_of(world.loop(sink), world.store.manifest(epoch)) if str(w.target) == "shop.orders")
        for epoch in (2, 3)
    )
    sink.commit(first, sink.stage([first])[first.target])
    staged = sink.stage([second])[second.target]
    shutil.rmtree(orders)
    shutil.copytree(world.root / "older", orders)
    with pytest.raises(SinkError, match=r"shop\.orders holds less than before: it had epoch 2 .* and has epoch 1 now"):
        sink.commit(second, staged)


@pytest.fixture
def faster(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], list[int]]:
    """Have something done to the table between our looking at it and our commit, once."""

    def plan(meanwhile: Callable[[], None]) -> list[int]:
        tries: list[int] = []
        own = HadoopCatalog.commit_table

        def commit_table(catalog: Any, table: Any, requirements: Any, updates: Any) -> Any:
            if catalog.name == "raycdc":
                tries.append(len(tries))
                if len(tries) == 1:
                    meanwhile()
            return own(catalog, table, requirements, updates)

        monkeypatch.setattr(HadoopCatalog, "commit_table", commit_table)
        return tries

    return plan


def test_a_commit_that_is_said_to_have_failed_is_there_and_whole(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the second of two tries, of which the first went through."""
    play(world, final=False)
    world.restart()
    change(world, 1)
    own = HadoopCatalog.commit_table
    answers: list[str] = []

    def commit_table(catalog: Any, *values: Any) -> Any:
        answer = own(catalog, *values)
        if catalog.name == "raycdc" and not answers:
            answers.append("lost")
            raise CommitFailedException("somebody was faster")
        return answer

    monkeypatch.setattr(HadoopCatalog, "commit_table", commit_table)
    world.restart()
    assert answers
    world.check()


def test_a_commit_that_lost_against_a_compaction_is_planned_again(
    world: World, faster: Callable[[Callable[[], None]], list[int]]
) -> None:
    play(world, final=False)
    world.restart()
    change(world, 1)
    tries = faster(lambda: compacted(world))
    world.restart()
    assert len(tries) == 2
    world.check()
    data = {Path(file.file.file_path.removeprefix("file://")) for file in table_of(world).scan().plan_files()}
    assert all(path.exists() for path in data)


def test_a_driver_that_slept_while_a_newer_one_barred_its_epoch_is_fenced(
    world: World, faster: Callable[[Callable[[], None]], list[int]]
) -> None:
    play(world, final=False)
    world.restart()
    change(world, 1)
    sink = world.sink()
    manifest = world.store.manifest(4)
    (work,) = [w for w in works_of(world.loop(sink), manifest) if str(w.target) == "shop.orders"]
    staged = sink.stage([work])[work.target]
    newer = world.sink()
    vector = CommitVector(4, 7, work.generation + 1)

    def barred() -> None:
        newer.tombstone(replace(work, generation=work.generation + 1, segments=()))

    faster(barred)
    before = world.rows(world.script.table("shop.orders"))
    with pytest.raises(FencedError, match=r"shop\.orders was written by a newer driver"):
        sink.commit(work, staged)
    assert newer.committed(work.target) == vector
    assert sorted(world.rows(world.script.table("shop.orders")), key=str) == sorted(before, key=str)


def test_a_writer_who_is_always_faster_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    play(world, final=False)
    world.restart()
    change(world, 1)

    def lost(*_: Any) -> Any:
        raise CommitFailedException("somebody was faster")

    with monkeypatch.context() as patch:
        patch.setattr(HadoopCatalog, "commit_table", lost)
        with pytest.raises(SinkError, match=r"orders cannot be written: other writers were faster 6 times"):
            world.restart()
    world.restart()
    world.check()


def test_a_column_that_somebody_drops_meanwhile_is_named(
    world: World, faster: Callable[[Callable[[], None]], list[int]]
) -> None:
    play(world, final=False)
    world.restart()
    change(world, 1)

    def again() -> None:
        with table_of(world).update_schema() as update:
            update.rename_column("name", "old")
        with table_of(world).update_schema() as update:
            update.add_column("name", StringType())

    faster(again)
    with pytest.raises(SinkError, match=r"shop\.orders has another column 'name' than this pipeline had written"):
        world.restart()


@pytest.mark.parametrize("values", ["snapshot", "changes", "no column"])
def test_null_in_a_column_that_others_require_is_refused(world: World, values: str) -> None:
    """Neither pyiceberg nor a catalog checks it, and nobody could read the table."""
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 1})
    world.script.seal(final=True)
    world.loop().run()
    added = "qty" if values != "no column" else "theirs"
    with table_of(world).update_schema(allow_incompatible_changes=True) as update:
        if added == "theirs":
            update.add_column("theirs", StringType(), required=False)
    with table_of(world).update_schema(allow_incompatible_changes=True) as update:
        update.update_column(added, required=True)
    before = table_of(world).metadata.current_snapshot_id
    if values == "snapshot":
        orders.read([{"id": 2, "name": "b", "qty": None}])
    else:
        orders.update((1,), name="b", qty=None)
    world.script.seal(final=True)
    with pytest.raises(TargetModifiedError, match=rf"requires a value in column '{added}'"):
        world.loop().run()
    assert table_of(world).metadata.current_snapshot_id == before


def test_what_others_require_stays_when_columns_change(world: World) -> None:
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 1})
    world.script.seal(final=True)
    world.loop().run()
    with table_of(world).update_schema(allow_incompatible_changes=True) as update:
        update.update_column("id", required=True)
        update.update_column("qty", required=True)
    with table_of(world).update_schema() as update:
        update.set_identifier_fields("id")
    more = Column("more", LogicalType(TypeKind.STRING))
    orders.schema = replace(orders.schema, columns=(*orders.schema.columns, more))
    orders.changes += (AddColumnEvent(orders.id, more),)
    orders.rows[(1,)]["more"] = None
    orders.insert({"id": 2, "name": "b", "qty": 2, "more": "x"})
    world.script.seal(final=True)
    world.loop().run()
    schema = table_of(world).schema()
    assert {field.name for field in schema.fields if field.required} == {"id", "qty"}
    assert schema.identifier_field_names() == {"id"}
    world.check()


@pytest.mark.parametrize("kind", ["identity", "void"])
def test_a_table_of_others_keeps_its_partitions_if_they_are_known(world: World, kind: str) -> None:
    columns = [IcebergColumn(1, "id", "long"), IcebergColumn(2, "name", "string"), IcebergColumn(3, "qty", "int")]
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=parse_transform(kind), name="id"))
    catalog_of(world).create_namespace(("shop",))
    catalog_of(world).create_table(ORDERS, iceberg_schema(columns), partition_spec=spec)
    play(world, epochs=1)
    loop = world.loop(world.sink(on_existing="merge"))
    if kind == "void":
        with pytest.raises(SinkError, match=r"shop\.orders is partitioned by void, which raycdc does not know"):
            loop.run()
        return
    loop.run()
    world.check()
    table = catalog_of(world).load_table(ORDERS)
    assert {task.file.partition[0] for task in table.scan().plan_files()} == {
        row["id"] for row in world.script.table("shop.orders").contents()
    }


def test_the_key_of_others_files_is_found_whatever_their_bounds(world: World) -> None:
    """Pyiceberg writes the files of another lake; the pipeline merges into them."""
    columns = [IcebergColumn(1, "id", "long"), IcebergColumn(2, "name", "string"), IcebergColumn(3, "qty", "int")]
    catalog = catalog_of(world)
    catalog.create_namespace(("shop",))
    table = catalog.create_table(ORDERS, iceberg_schema(columns))
    rows = [{"id": n, "name": f"theirs {n}", "qty": n} for n in range(90, 140)]
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("qty", pa.int32())])
    for part in (rows[:20], rows[20:]):
        table.append(pa.Table.from_pylist(part, schema=schema))
    play(world, epochs=2)
    world.loop(world.sink(on_existing="merge")).run()
    orders = world.script.table("shop.orders")
    theirs = {row["id"]: row for row in rows if (row["id"],) not in orders.rows and int(str(row["id"])) < 100}
    got = {row["id"]: row for row in world.rows(orders)}
    assert {key: got[key] for key in theirs} == theirs
    assert {key: row for key, row in got.items() if key not in {row["id"] for row in rows}} == {
        row["id"]: row for row in orders.contents() if row["id"] not in {row["id"] for row in rows}
    }


def test_rows_that_were_deleted_beside_their_file_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    play(world, final=False)
    world.restart()
    change(world, 1)
    own = ManifestFile.content
    monkeypatch.setattr(ManifestFile, "content", property(lambda _: ManifestContent.DELETES))
    with pytest.raises(SinkError, match=r"shop\.orders has delete files: another writer"):
        world.restart()
    monkeypatch.setattr(ManifestFile, "content", own)
    world.restart()
    world.check()


def test_a_sql_catalog_keeps_the_tables(tmp_path: Path) -> None:
    world = new_world("iceberg-upsert", tmp_path)
    place: dict[str, Any] = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": str(tmp_path / "lake"),
    }
    plugin = load_plugin(PluginGroup.SINKS, "iceberg")

    def sink() -> IcebergSink:
        made: IcebergSink = plugin.create(plugin.config(type="iceberg", catalog=place))
        made.open(SinkContext(world.store.app_id, "upsert", run_in_process))
        return made

    play(world, final=False)
    world.restart(sink=sink())
    change(world, 1)
    world.restart(sink=sink())
    assert sink().committed(TableId("shop", "orders")) == CommitVector(4, 3, 3)
    catalog = open_catalog(IcebergCatalogOptions(**place))
    for table in world.script.tables.values():
        rows = catalog.load_table((table.id.db, table.id.table)).scan().to_arrow().to_pylist()
        assert sorted(rows, key=lambda row: row["id"]) == table.contents()


def test_manifests_do_not_pile_up(world: World) -> None:
    play(world, final=False)
    world.restart()
    for number in range(1, 31):
        world.script.table("shop.orders").update((100,), qty=number)
        world.script.seal()
    world.restart()
    world.check()
    table = table_of(world)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) <= 12


@pytest.mark.parametrize("source_changes", [False, True])
@pytest.mark.parametrize("kind", ["iceberg-upsert", "iceberg-changelog"])
def test_a_column_that_another_widened_is_told_as_that_writers_change(
    kind: str, source_changes: bool, tmp_path: Path
) -> None:
    world = new_world(kind, tmp_path)
    orders = world.script.table("shop.orders")
    orders.read([{"id": n, "name": "read", "qty": n} for n in range(3)])
    world.script.seal()
    world.restart()
    with table_of(world).update_schema() as update:
        update.update_column("qty", LongType())
    if source_changes:
        # Of another column: the plan of the table's columns finds the difference then, and else the stage tasks.
        note = Column("note", LogicalType(TypeKind.STRING))
        orders.schema = replace(orders.schema, columns=(*orders.schema.columns, note))
        orders.changes += (AddColumnEvent(orders.id, note),)
    orders.insert({"id": 9, "name": "log", "qty": 9} | ({"note": "n"} if source_changes else {}))
    world.script.seal(final=True)
    world.restart(parking=ParkingPolicy())
    record = world.store.last_commit()
    assert record is not None
    parked = record.parked["shop.orders"]
    assert parked.reason is ParkReason.MODIFIED
    assert "another writer changed the Iceberg table" in parked.text
    assert len(world.rows(orders)) == 3


def test_a_column_that_others_dropped_and_added_again_is_another_one(world: World) -> None:
    play(world, final=False)
    world.restart()
    with table_of(world).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("qty")
    with table_of(world).update_schema() as update:
        update.add_column("qty", IntegerType())
    change(world, 2)
    with pytest.raises(TargetModifiedError, match="another column 'qty' than this pipeline had written"):
        world.restart()


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"pipeline": "PIPELINE", "epoch": 1}'])
def test_a_record_that_others_changed_parks_the_table(world: World, text: str) -> None:
    play(world, final=False)
    world.restart()
    table = table_of(world)
    (name,) = [name for name in table.properties if name.startswith("raycdc.commit.")]
    with table.transaction() as transaction:
        transaction.set_properties({name: text.replace("PIPELINE", world.store.app_id)})
    change(world, 2)
    with pytest.raises(TargetModifiedError, match=f"property {name} of an Iceberg table is not what"):
        world.restart()


@pytest.mark.parametrize("text", ["{", "{}", "[]", "1"])
def test_a_changed_record_of_another_pipeline_does_no_harm(world: World, text: str) -> None:
    play(world, final=False)
    world.restart()
    with table_of(world).transaction() as transaction:
        transaction.set_properties({"raycdc.commit.0123456789abcdef": text})
    change(world, 2)
    world.restart()
    world.check()
