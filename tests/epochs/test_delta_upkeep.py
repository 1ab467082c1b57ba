"""Delta tables that the pipeline optimises itself: rows and vectors stay what they are, whoever else writes there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from raycdc.bridge import run_in_process
from raycdc.errors import ConfigError, SinkError
from raycdc.failpoints import FailpointError
from raycdc.model import TableId
from raycdc.sinks.api import SinkContext
from raycdc.sinks.delta import upkeep
from raycdc.sinks.delta.plugin import DeltaSinkConfig, OptimizeOptions
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.delta.upkeep import Upkeep
from tests.epochs.sink_world import World, new_world, play, works_of

KINDS = (
    "delta-upsert",
    "delta-tasks-upsert",
    "delta-changelog",
    "delta-partitioned-upsert",
    "delta-tasks-partitioned-upsert",
)
ORDERS = TableId("shop", "orders")
#: After each commit, and what was taken out goes at once: no configuration could ask for that.
ALWAYS = OptimizeOptions.model_construct(every=timedelta(0), target_file=1 << 20, z_order=(), vacuum=timedelta(0))


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return new_world(request.param, tmp_path)


def sink_of(world: World, options: OptimizeOptions = ALWAYS, **more: Any) -> DeltaSink:
    sink = world.sink()
    assert isinstance(sink, DeltaSink)
    sink._upkeep = Upkeep(options, upsert=world.write == "upsert", **more)
    return sink


def table_of(world: World) -> DeltaTable:
    return DeltaTable(str(world.root / "lake/shop/orders"))


def operations(world: World) -> list[str]:
    """What was done to the table, in order."""
    return ["OPTIMIZE" if is_ours(commit) else commit["operation"] for commit in table_of(world).history()][::-1]


def is_ours(commit: dict[str, Any]) -> bool:
    return "optimize" in commit.get("userMetadata", "")


def target_of(world: World) -> DeltaTarget:
    target = DeltaTarget(world.root / "lake/shop/orders", ORDERS, world.store.app_id)
    assert target.refresh()
    return target


def test_a_table_that_is_optimised_after_each_epoch_has_the_same_rows(world: World) -> None:
    play(world, epochs=5)
    world.loop(sink_of(world)).run()
    world.check()
    assert "OPTIMIZE" in operations(world)
    # Each file but those in use went when it was taken out.
    on_disk = {str(path) for path in (world.root / "lake/shop/orders").rglob("*.parquet")}
    assert on_disk == {uri.removeprefix("file://") for uri in table_of(world).file_uris()}


def test_the_commit_of_an_optimisation_neither_carries_nor_changes_the_vector(world: World) -> None:
    play(world, epochs=5)
    world.loop(sink_of(world)).run()
    table = table_of(world)
    vectors = {}
    for commit in table.history():
        table.load_as_version(commit["version"])
        vectors[commit["version"]] = (is_ours(commit), table.transaction_version(world.store.app_id))
    optimised = [version for version, (ours, _) in vectors.items() if ours]
    assert optimised
    for version in optimised:
        assert vectors[version][1] == vectors[version - 1][1] is not None
    held = sink_of(world).committed(ORDERS)
    assert held is not None
    assert (held.epoch, held.step) == (5, 3)


def failures() -> Iterator[Any]:
    """Each kind at each point; upkeep that was done before is the same work for all of them."""
    points = ("before_optimize", "after_optimize", "in_commit", "after_commit")
    for kind, point, count in product(KINDS, points, (1, 3)):
        yield pytest.param(kind, point, count, marks=pytest.mark.long if count == 3 and kind != KINDS[0] else ())


@pytest.mark.parametrize(("world", "point", "count"), list(failures()), indirect=["world"])
def test_whatever_dies_rows_are_neither_lost_nor_doubled(
    world: World, point: str, count: int, fail_at: Callable[[str, int], None]
) -> None:
    play(world, epochs=4)
    fail_at(point, count)
    with pytest.raises(FailpointError):
        world.loop(sink_of(world)).run()
    world.restart(sink=sink_of(world))
    world.check()


def test_an_epoch_that_is_staged_meanwhile_keeps_its_files(world: World) -> None:
    orders = world.script.table("shop.orders")
    orders.read([{"id": number, "name": "n", "qty": number % 3} for number in range(100, 200)])
    first = world.script.seal()
    orders.read([{"id": number, "name": "n", "qty": number % 3} for number in range(200, 300)])
    orders.update((100,), qty=7)
    second = world.script.seal(final=True)
    sink = sink_of(world)
    loop = world.loop(sink)
    works = {work.target: work for work in works_of(loop, first)}
    later = {work.target: work for work in works_of(loop, second)}
    for work in works.values():
        sink.apply_schema(work)
    staged = sink.stage(list(works.values()))
    waiting = sink.stage(list(later.values()))
    for one, result in ((works, staged), (later, waiting)):
        for target, work in one.items():
            sink.commit(work, result[target])
    assert len(world.rows(orders)) == (200 if world.write == "upsert" else 202)


@pytest.mark.parametrize("what", ["append", "overwrite", "delete", "optimize"])
def test_another_writer_in_between_is_not_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    world = new_world("delta-upsert", tmp_path)
    play(world, epochs=3)
    world.loop().run()
    small_files(world)
    expected = {row["id"] for row in world.script.table("shop.orders").contents()} | {5000, 5001, 5002}
    target = target_of(world)
    versions = []

    def meanwhile(point: str) -> None:
        if point == "before_optimize":
            writer = table_of(world)
            if what == "append":
                small_files(world, first=6000)
            elif what == "overwrite":
                write_deltalake(writer, pa.table(writer.to_pyarrow_table())[:3], mode="overwrite")
            elif what == "delete":
                writer.delete("id = 5000")
            else:
                writer.optimize.compact()
            versions.append(table_of(world).version())

    monkeypatch.setattr(upkeep, "reach", meanwhile)
    Upkeep(ALWAYS, upsert=True).after_commit(target, 1)
    assert table_of(world).version() == versions[0]
    there = sorted(row["id"] for row in world.rows(world.script.table("shop.orders")))
    monkeypatch.undo()
    small_files(world, first=7000)
    if what in ("overwrite", "delete"):
        with pytest.raises(SinkError, match="another writer deleted or overwrote them"):
            Upkeep(ALWAYS, upsert=True).after_commit(target, 1)
        after = sorted(row["id"] for row in world.rows(world.script.table("shop.orders")))
        assert after == [*there, 7000, 7001, 7002]
        assert what == "overwrite" or there == sorted(expected ^ {5000})
        return
    Upkeep(ALWAYS, upsert=True).after_commit(target, 1)
    assert operations(world)[-3:] == ["OPTIMIZE", "VACUUM START", "VACUUM END"]
    after = sorted(row["id"] for row in world.rows(world.script.table("shop.orders")))
    assert after == [*there, 7000, 7001, 7002]
    changed = {"append": {6000, 6001, 6002}, "optimize": set()}[what]
    assert there == sorted(expected ^ changed)


def test_a_compaction_of_others_that_began_before_ours_fails(tmp_path: Path) -> None:
    """And does not add the rows of the same files once more, as it would beside one of its kind."""
    world = new_world("delta-upsert", tmp_path)
    play(world, epochs=3)
    world.loop().run()
    small_files(world)
    theirs = table_of(world)
    Upkeep(ALWAYS.model_copy(update={"vacuum": None}), upsert=True).after_commit(target_of(world), 1)
    assert operations(world)[-1] == "OPTIMIZE"
    there = sorted(row["id"] for row in world.rows(world.script.table("shop.orders")))
    with pytest.raises(CommitFailedError):
        theirs.optimize.compact()
    assert sorted(row["id"] for row in world.rows(world.script.table("shop.orders"))) == there


def small_files(world: World, *, first: int = 5000) -> None:
    """Another writer adds several files that an optimisation would make one."""
    for number in range(3):
        table = table_of(world)
        row = pa.table({"id": [first + number], "name": ["x"], "qty": [1]}, schema=pa.schema(table.schema().to_arrow()))
        write_deltalake(table, row, mode="append")


def test_a_driver_that_was_fenced_does_not_optimise(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    play(world, epochs=2)
    world.loop().run()
    small_files(world)
    target = target_of(world)
    held = target.vector()
    assert held is not None
    Upkeep(ALWAYS, upsert=True).after_commit(target, held.generation - 1)
    assert "OPTIMIZE" not in operations(world)
    Upkeep(ALWAYS, upsert=True).after_commit(target, held.generation)
    assert operations(world)[-3:] == ["OPTIMIZE", "VACUUM START", "VACUUM END"]


def test_it_is_done_when_it_is_time_also_across_starts(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    play(world, epochs=2)
    world.loop().run()
    target = target_of(world)
    options = OptimizeOptions(every=timedelta(hours=1))
    began = time.time()
    done = []
    for minutes in (0, 30, 59, 61):
        small_files(world)
        Upkeep(options, upsert=True, clock=lambda now=began + minutes * 60: now).after_commit(target, 1)  # type: ignore[misc]
        done.append(operations(world).count("OPTIMIZE"))
    assert done == [0, 0, 0, 1]
    files = len(list(Path(str(target.path)).rglob("*.parquet")))
    assert files > len(table_of(world).file_uris()), "nothing is deleted unless a retention is given"


def test_the_section_is_read(tmp_path: Path) -> None:
    given = {"every": "10m", "target_file": "64MiB", "z_order": ["id"], "vacuum": "7d"}
    config = DeltaSinkConfig(path=str(tmp_path), optimize=given)  # type: ignore[arg-type]
    options = OptimizeOptions(
        every=timedelta(minutes=10), target_file=64 << 20, z_order=("id",), vacuum=timedelta(days=7)
    )
    assert config.optimize == options
    with pytest.raises(ConfigError, match=r"sink\.optimize\.z_order: Spark puts rows in order"):
        DeltaSink(config).open(SinkContext("app", "upsert", run_in_process))
    with pytest.raises(ValueError, match="readers need an hour at least"):
        OptimizeOptions(vacuum="30m")  # type: ignore[arg-type]
