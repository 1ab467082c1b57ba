"""The epoch loop with each sink and without Spark: exactly once, whatever dies where, and schema changes in order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.core.failpoints import FailpointError
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.outcomes import EpochStatistics, Recovery
from raycdc.errors import ConfigError, FencedError, RaycdcError, SinkError, StateError
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.model.evolution import AddColumnEvent, AlterColumnTypeEvent, TruncateTableEvent
from raycdc.segments import StageTask, run_in_process
from raycdc.sinks.api import STEP_TOMBSTONE, CommitVector, Sink, SinkContext, TableCommit
from raycdc.sinks.files.plugin import JsonlSinkConfig
from raycdc.sinks.files.sink import JsonlSink
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import ScriptedTable, simple_schema
from tests.epochs.sink_world import (
    FILES,
    KINDS,
    TOPICS,
    UPSERTS,
    World,
    iceberg_table,
    new_world,
    play,
    works_of,
    world_of,
)

#: Fail points of the epoch loop: it does the same at them, whatever the sink (`raycdc.sinks.steps`).
LOOP_POINTS = (
    "before_stage",
    "after_stage",
    "before_commit",
    "after_commit",
    "between_tables",
    "after_last_commit",
    "after_record",
)
#: Fail points of sinks: where a commit begins to count, in the middle of a file, and between transactions.
SINK_POINTS = ("in_commit", "half_written", "after_parts")
POINTS = (*LOOP_POINTS, *SINK_POINTS)

#: One kind of each mechanism that commits an epoch: these fail at every point.
MECHANISMS = frozenset(
    {
        "delta-upsert",
        "iceberg-upsert",
        "jsonl",
        "kafka-parts",
        "postgres-upsert",
        "mongodb-upsert",
    }
)
#: Kinds that differ from another one in what their tasks write, and not in how an epoch is committed.
WRITTEN_ALIKE = frozenset(
    {
        "delta-tasks-upsert",
        "delta-partitioned-upsert",
        "delta-tasks-partitioned-upsert",
        "delta-partitioned-changelog",
        "iceberg-partitioned-upsert",
        "iceberg-partitioned-changelog",
        "mongodb-parts-changelog",
    }
)


def plays(kind: str, point: str, count: int) -> bool:
    """Whether ``make test`` has `kind` fail at `point`; the suite ``sinks`` has every kind fail at every point.

    One kind of each mechanism fails at every point, and one of all kinds the second time that it comes there. Every
    kind fails where its sink commits, and behind what its tasks wrote.
    """
    if count == 2:
        return kind == "delta-upsert" or (kind in MECHANISMS and point == "in_commit")
    return kind in MECHANISMS or point in ("after_stage", *SINK_POINTS)


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return world_of(request, request.param, tmp_path)


def names(kinds: Iterable[Any]) -> dict[str, Any]:
    """`kinds` by their names, whether they have marks or not."""
    return {kind if isinstance(kind, str) else kind.values[0]: kind for kind in kinds}


def committing() -> Iterator[Any]:
    """All kinds, for stories of commits alone: the suite ``sinks`` plays those that commit as another one does."""
    for kind, param in names(KINDS).items():
        yield pytest.param(kind, marks=pytest.mark.long(suite="sinks")) if kind in WRITTEN_ALIKE else param


@pytest.fixture(params=UPSERTS)
def upsert(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return world_of(request, request.param, tmp_path)


@pytest.fixture(params=FILES)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return new_world(request.param, tmp_path)


@pytest.fixture
def delta(tmp_path: Path) -> World:
    return new_world("delta-upsert", tmp_path)


def test_all_epochs_reach_the_sink_once(world: World) -> None:
    play(world)
    told: list[EpochStatistics] = []
    loop = world.loop(on_committed=told.append)
    loop.run()
    world.check()
    assert [figures.epoch for figures in told] == [1, 2, 3]
    assert [figures.final for figures in told] == [False, False, True]
    assert sum(figures.rows for figures in told) == sum(len(t.changelog) for t in world.script.tables.values())
    record = world.store.last_commit()
    assert record is not None
    assert (record.epoch, dict(record.tables)) == (3, {"shop.orders": (3, 3), "shop.items": (3, 3)})
    assert loop.recover() == Recovery(3)


def failures() -> Iterator[Any]:
    """Each kind with the points that it reaches, and how often it does before it fails there."""
    for kind, param in names(KINDS).items():
        marks = () if isinstance(param, str) else param.marks
        for point, count in product(POINTS, (1, 2)):
            if point == "after_parts" and kind != "kafka-parts":
                continue  # Only a topic's epochs have parts.
            if kind in TOPICS and point == "half_written":
                continue  # A transaction has no half-written files.
            if kind in TOPICS and count == 2 and point not in ("in_commit", "after_parts"):
                continue  # Other transactions begin as the first one does.
            yield pytest.param(
                kind,
                point,
                count,
                marks=marks if plays(kind, point, count) else (*marks, pytest.mark.long(suite="sinks")),
            )


@pytest.mark.parametrize(("world", "point", "count"), list(failures()), indirect=["world"])
def test_an_error_at_any_point_loses_and_doubles_nothing(
    world: World, point: str, count: int, fail_at: Callable[[str, int], None]
) -> None:
    require_exact_after_an_error(world, point, count, fail_at)


def require_exact_after_an_error(world: World, point: str, count: int, fail_at: Callable[[str, int], None]) -> None:
    play(world)
    fail_at(point, count)
    # A topic says nothing while a transaction is open.
    world.foresees = not (world.kafka is not None and point == "in_commit")
    with pytest.raises(FailpointError):
        world.loop().run()
    world.restart()
    world.check()
    assert world.loop().recover() == Recovery(3)


def kills() -> Iterator[Any]:
    """A driver that is killed while a commit is under way, with each kind; at the loop's other points it leaves what an
    error leaves, which one kind shows.
    """
    for kind in ("delta-upsert", "iceberg-upsert", "jsonl", *TOPICS, "postgres-upsert", "mongodb-upsert"):
        marks = () if kind in FILES else (pytest.mark.server,)
        for point in ("after_stage", "in_commit", "between_tables", "after_last_commit"):
            long = kind != "delta-upsert" and point != "in_commit"
            yield pytest.param(kind, point, marks=(*marks, pytest.mark.long(suite="sinks")) if long else marks)


@pytest.mark.parametrize(("kind", "point"), list(kills()))
def test_a_killed_driver_loses_and_doubles_nothing(
    kind: str, point: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    world = world_of(request, kind, tmp_path)
    play(world)
    # The ninth transaction is a part's.
    number = 9 if (kind, point) == ("kafka-parts", "in_commit") else 2
    environment = {"RAYCDC_FAILPOINTS": f"{point}=kill@{number}", "RAYCDC_FAILPOINT_DIR": str(tmp_path)}
    command = [sys.executable, "-c", DRIVER, str(tmp_path), json.dumps(world.settings)]
    killed = subprocess.run(command, env=environment, check=False)
    assert killed.returncode == -9
    world.foresees = not (world.kafka is not None and point == "in_commit")
    world.restart()
    world.check()


DRIVER = """
import json
import sys
from decimal import Decimal
from pathlib import Path
from raycdc.segments import run_in_process
from raycdc.state.store import CheckpointStore
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.sinks.api import SinkContext
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.ports import EpochPorts
root, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
store = CheckpointStore(root / "state", pipeline="shop")
plugin = load_plugin(PluginGroup.SINKS, settings["type"])
sink = plugin.create(plugin.config(**settings))
sink.open(SinkContext(store.app_id, sink.writes[0], run_in_process))
next_sealed = lambda after, _: next(iter(store.manifests(after)), None)
own = store.generations.next()
EpochLoop(store, sink, EpochPorts(generation=lambda: own, next_sealed=next_sealed)).run()
"""


def test_a_task_that_runs_twice_is_harmless(world: World) -> None:
    def twice(tasks: list[StageTask[Any]]) -> list[Any]:
        run_in_process(tasks)
        return run_in_process(tasks)

    play(world)
    world.loop(world.sink(run=twice)).run()
    world.check()


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_epochs_whose_segments_are_gone_are_dropped_barred_and_read_again(world: World) -> None:
    play(world, epochs=2)
    world.loop().run()
    committed = {table.id: list(table.changelog) for table in world.script.tables.values()}
    rows = {table.id: dict(table.rows) for table in world.script.tables.values()}
    world.script.random_epoch(operations=10)
    lost = world.script.seal()
    world.script.random_epoch(operations=10)
    world.script.seal()
    for segment in lost.segments:
        Path(segment.path).unlink()
    late = world.sink()
    works = works_of(world.loop(late), lost)
    assert world.restart() == Recovery(2, dropped=(3, 4))
    sink = world.sink()
    assert [sink.committed(work.target) for work in works] == [CommitVector(4, STEP_TOMBSTONE, 2)] * 2
    # A driver that slept through all this wakes up and commits what it staged.
    for work in works:
        empty = late.stage([replace(work, segments=())])[work.target]
        with_rows_or_not(late, work, empty)
    for table in world.script.tables.values():
        table.changelog, table.rows = committed[table.id], rows[table.id]
    world.check()
    world.script.random_epoch(operations=10)
    assert world.script.seal(final=True).epoch == 5
    world.restart()
    world.check()


def with_rows_or_not(sink: Sink, work: TableCommit, staged: Any) -> None:
    """A stale commit either says that it is fenced or does nothing."""
    try:
        sink.commit(work, staged)
    except FencedError as error:
        assert "newer driver" in str(error)  # noqa: PT017


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_an_interrupted_dropping_is_finished_by_the_next_start(world: World) -> None:
    play(world, epochs=1)
    first = world.store.manifest(1)
    for segment in first.segments:
        Path(segment.path).unlink()
    sink = world.sink()
    works = works_of(world.loop(sink), first)
    sink.tombstone(replace(works[0], segments=()))
    assert world.restart() == Recovery(0, dropped=(1,))


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_a_target_that_has_a_tombstone_alone_holds_no_rows(world: World) -> None:
    play(world, epochs=1)
    for segment in world.store.manifest(1).segments:
        Path(segment.path).unlink()
    assert world.restart() == Recovery(0, dropped=(1,))
    play(world, epochs=1)
    assert world.loop().written() == []


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_a_target_that_has_an_epoch_which_nobody_recorded_holds_rows(world: World) -> None:
    play(world, epochs=1)
    sink = world.sink()
    work = works_of(world.loop(), world.store.manifest(1))[0]
    sink.apply_schema(work)
    sink.commit(work, sink.stage([work])[work.target])
    assert world.loop().written() == [work.target]


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_lost_segments_of_a_half_committed_epoch_are_refused(world: World) -> None:
    play(world, epochs=1)
    works = {work.target: work for work in works_of(world.loop(), world.store.manifest(1))}
    sink = world.sink()
    first, second = works.values()
    for work in (first, second):
        sink.apply_schema(work)
    sink.commit(first, sink.stage([first])[first.target])
    for segment in world.store.manifest(1).segments:
        Path(segment.path).unlink()
    with pytest.raises(StateError, match=f"Epoch 1 is in {first.target} but not, or not wholly, in {second.target}"):
        world.restart()


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_a_sink_that_lost_a_table_is_refused(world: World) -> None:
    play(world)
    world.loop().run()
    world.lose(world.script.table("shop.items"))
    with pytest.raises(SinkError, match=r"shop\.items holds nothing of this pipeline, but epoch 3 was committed"):
        world.restart()


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_empty_targets_of_a_failed_first_start_are_taken_over_by_the_next(world: World) -> None:
    """Another table's trouble ended that start, and its state was deleted."""
    if world.kafka is not None:
        pytest.skip("A topic is nobody's until it has messages.")
    play(world)
    for work in works_of(world.loop(), world.store.manifest(1)):
        world.sink().apply_schema(work)
    again = world.again()
    again.script.store = CheckpointStore(world.root / "new-state", pipeline="shop")
    again.script.generation = again.store.generations.next()
    play(again)
    assert again.is_free()
    again.restart()
    again.check()
    other = world.again()
    other.script.store = CheckpointStore(world.root / "other-state", pipeline="other")
    other.script.generation = other.store.generations.next()
    play(other)
    assert not other.is_free()
    with pytest.raises(SinkError, match="on_existing"):
        other.restart()


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_deleted_state_never_makes_new_data_look_committed(world: World) -> None:
    play(world)
    assert world.is_free()
    world.loop().run()
    assert world.is_free()
    again = world.again()
    again.script.store = CheckpointStore(world.root / "new-state", pipeline="shop")
    again.script.generation = again.store.generations.next()
    play(again)
    assert (again.is_free(), again.is_free(on_existing="merge")) == (False, True)
    with pytest.raises(SinkError, match="on_existing"):
        again.restart()
    if world.kafka is not None:
        # What readers of a topic may have read already is not taken back: it is written behind.
        for old, new in zip(world.script.tables.values(), again.script.tables.values(), strict=True):
            new.changelog[:0] = old.changelog
    again.restart(sink=again.sink(on_existing="replace" if world.kafka is None else "merge"))
    again.check()


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_stop_returns_after_the_commit_under_way(world: World) -> None:
    play(world)
    told: list[EpochStatistics] = []

    def stop(figures: EpochStatistics) -> None:
        told.append(figures)
        loop.stop()

    loop: EpochLoop = world.loop(on_committed=stop)
    loop.run()
    assert 1 <= loop.committed < 3
    world.restart()
    world.check()


@pytest.mark.parametrize("world", list(committing()), indirect=True)
def test_an_error_of_the_source_side_ends_the_loop(world: World) -> None:
    def broken(_after: int, _timeout_s: float) -> Manifest | None:
        raise StateError("the coordinator is gone")

    loop = world.loop(next_sealed=broken)
    with pytest.raises(StateError, match="coordinator is gone"):
        loop.run()


def add_column(table: ScriptedTable, column: Column, *, fill: Any = None) -> None:
    """The source's ALTER TABLE … ADD COLUMN."""
    table.schema = replace(table.schema, columns=(*table.schema.columns, column))
    table.changes.append(AddColumnEvent(table.id, column))
    for row in table.rows.values():
        row[column.name] = fill
    for _, row in table.changelog:
        row[column.name] = None


def test_added_columns_reach_the_sink(world: World) -> None:
    play(world, epochs=2, final=False)
    orders = world.script.table("shop.orders")
    orders.rows = {key: dict(row) for key, row in orders.rows.items()}
    add_column(orders, Column("at", LogicalType(TypeKind.DATETIME, fsp=6)))
    orders.insert({"id": 1000, "name": "new", "qty": 1, "at": None})
    world.script.seal(final=True)
    world.loop().run()
    if world.kind in ("jsonl", "parquet"):
        # Files written before the change do not have the column.
        shown = [row.get("at", "missing") for row in world.rows(orders)]
        assert shown == ["missing"] * (len(orders.changelog) - 1) + [None]
    else:
        world.check()


def test_a_constant_default_fills_the_rows_that_exist(upsert: World) -> None:
    play(upsert, epochs=2, final=False)
    orders = upsert.script.table("shop.orders")
    orders.rows = {key: dict(row) for key, row in orders.rows.items()}
    add_column(orders, Column("state", LogicalType(TypeKind.STRING), default="it's new"), fill="it's new")
    add_column(orders, Column("price", LogicalType(TypeKind.DECIMAL, precision=10, scale=2), default="1.50"))
    for row in orders.rows.values():
        row["price"] = Decimal("1.50")
    orders.insert({"id": 1000, "name": "new", "qty": 1, "state": None, "price": None})
    upsert.script.seal(final=True)
    upsert.loop().run()
    upsert.check()


def test_a_type_that_cannot_follow_is_refused_by_name(upsert: World) -> None:
    play(upsert, epochs=1)
    upsert.loop().run()
    orders = upsert.script.table("shop.orders")
    wide = LogicalType(TypeKind.STRING)
    columns = tuple(replace(c, type=wide) if c.name == "qty" else c for c in orders.schema.columns)
    orders.schema = replace(orders.schema, columns=columns)
    orders.changes.append(AlterColumnTypeEvent(orders.id, "qty", wide))
    upsert.script.seal(final=True)
    with pytest.raises(SinkError, match=r"shop\.orders: column qty is int32 in the (\w+ table|target) and string"):
        upsert.loop().run()


@pytest.mark.parametrize("as_row", [True, False])
def test_truncation_empties_the_upsert_target(upsert: World, as_row: bool) -> None:
    play(upsert, epochs=1, final=False)
    orders = upsert.script.table("shop.orders")
    if as_row:
        orders.truncate()
    else:
        orders.changes.append(TruncateTableEvent(orders.id))
        orders.rows.clear()
    orders.insert({"id": 5, "name": "after", "qty": 1})
    upsert.script.seal(final=True)
    upsert.loop().run()
    upsert.check()


def test_upsert_without_a_key_is_refused(upsert: World) -> None:
    upsert.script.table("shop.log", replace(simple_schema(), primary_key=())).changes.clear()
    upsert.script.seal(final=True)
    with pytest.raises(SinkError, match=r"shop\.log has no primary key"):
        upsert.loop().run()


def test_existing_table_is_merged_into_when_asked(upsert: World) -> None:
    play(upsert, epochs=1)
    upsert.loop().run()
    old = upsert.script.table("shop.items").rows
    again = upsert.again()
    again.script.store = CheckpointStore(upsert.root / "new-state", pipeline="shop")
    again.script.generation = again.store.generations.next()
    items = again.script.table("shop.items")
    items.rows = {key: dict(row) for key, row in old.items()}
    items.read([{"id": i, "name": "again", "qty": 0} for i in range(0, 100, 2)])
    orders = again.script.table("shop.orders")
    orders.rows = {key: dict(row) for key, row in upsert.script.table("shop.orders").rows.items()}
    again.script.seal(final=True)
    again.restart(sink=again.sink(on_existing="merge"))
    again.check()


def test_many_tables_commit_in_one_epoch(upsert: World) -> None:
    for number in range(12):
        upsert.script.table(f"shop.t{number}")
    play(upsert, epochs=2)
    upsert.loop().run()
    upsert.check()


def test_names_that_would_leave_the_folder_are_refused(files: World) -> None:
    files.script.table("shop.../../x")
    files.script.seal(final=True)
    with pytest.raises(SinkError, match="cannot be a folder"):
        files.loop().run()


def test_a_way_of_writing_the_sink_lacks_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="jsonl supports changelog only"):
        JsonlSink(JsonlSinkConfig(path=str(tmp_path))).open(SinkContext("app", "upsert", run_in_process))


def test_a_folder_of_other_files_is_not_taken_for_a_table(delta: World) -> None:
    folder = delta.root / "lake" / "shop" / "orders"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    play(delta, epochs=1)
    with pytest.raises(SinkError, match="not a Delta table"):
        delta.loop().run()


def test_commits_carry_positions_and_identity(files: World) -> None:
    play(files, epochs=1)
    sink = files.sink()
    files.loop(sink).run()
    orders = TableId("shop", "orders")
    assert sink.committed(orders) == CommitVector(1, 3, 1)
    folder = files.root / "lake" / "shop" / "orders"
    if files.kind.startswith("delta"):
        note = json.loads(DeltaTable(str(folder)).history(1)[0]["userMetadata"])
    elif files.kind.startswith("iceberg"):
        properties = iceberg_table(folder).metadata.properties
        (note,) = (json.loads(value) for key, value in properties.items() if key.startswith("raycdc.commit."))
    else:
        note = json.loads(next((folder / "_raycdc").glob("epoch-*.json")).read_text())
    assert note["pipeline"] == files.store.app_id
    assert note["positions"] == {"log": {"file": "binlog.000001", "pos": 1}}


@pytest.mark.parametrize(
    "world",
    # A small epoch of a collection has no tasks.
    [kind for name, kind in names(KINDS).items() if name not in ("mongodb-upsert", "mongodb-changelog")],
    indirect=True,
)
def test_errors_of_all_kinds_are_named(world: World) -> None:
    require_named_errors(world)


def require_named_errors(world: World) -> None:
    play(world, epochs=1)

    def broken(_tasks: list[StageTask[Any]]) -> list[Any]:
        raise SinkError("the disk is full")

    with pytest.raises(RaycdcError, match="disk is full"):
        world.loop(world.sink(run=broken)).run()
    world.restart()
    world.check()
