"""Delta tables that the pipeline optimises itself: what `test_lake_upkeep` does not say of all lakes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from raycdc.errors import ConfigError, SinkError
from raycdc.segments import run_in_process
from raycdc.sinks.api import SinkContext
from raycdc.sinks.delta import maintenance
from raycdc.sinks.delta.maintenance import DeltaMaintenance
from raycdc.sinks.delta.plugin import DeltaOptimizeOptions, DeltaSinkConfig
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.delta.table import DeltaTarget
from tests.epochs.sink_world import World, new_world, play
from tests.epochs.upkept_lakes import DELTAS, ORDERS

#: After each commit, and what was taken out goes at once: no configuration could ask for that.
ALWAYS = DeltaOptimizeOptions.model_construct(every=timedelta(0), target_file=1 << 20, z_order=(), vacuum=timedelta(0))


@pytest.fixture(params=DELTAS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return new_world(request.param, tmp_path)


def sink_of(world: World, options: DeltaOptimizeOptions = ALWAYS, **more: Any) -> DeltaSink:
    sink = world.sink()
    assert isinstance(sink, DeltaSink)
    sink._maintenance = DeltaMaintenance(options, upsert=world.write == "upsert", **more)
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


def test_each_file_but_those_in_use_goes_when_it_was_taken_out(world: World) -> None:
    play(world, epochs=5)
    world.loop(sink_of(world)).run()
    world.check()
    assert "OPTIMIZE" in operations(world)
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

    monkeypatch.setattr(maintenance, "reach", meanwhile)
    DeltaMaintenance(ALWAYS, upsert=True).after_commit(target, 1)
    assert table_of(world).version() == versions[0]
    there = sorted(row["id"] for row in world.rows(world.script.table("shop.orders")))
    monkeypatch.undo()
    small_files(world, first=7000)
    if what in ("overwrite", "delete"):
        with pytest.raises(SinkError, match="another writer deleted or overwrote them"):
            DeltaMaintenance(ALWAYS, upsert=True).after_commit(target, 1)
        after = sorted(row["id"] for row in world.rows(world.script.table("shop.orders")))
        assert after == [*there, 7000, 7001, 7002]
        assert what == "overwrite" or there == sorted(expected ^ {5000})
        return
    DeltaMaintenance(ALWAYS, upsert=True).after_commit(target, 1)
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
    DeltaMaintenance(ALWAYS.model_copy(update={"vacuum": None}), upsert=True).after_commit(target_of(world), 1)
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


def test_the_section_is_read(tmp_path: Path) -> None:
    given = {"every": "10m", "target_file": "64MiB", "z_order": ["id"], "vacuum": "7d"}
    config = DeltaSinkConfig(path=str(tmp_path), optimize=given)  # type: ignore[arg-type]
    options = DeltaOptimizeOptions(
        every=timedelta(minutes=10), target_file=64 << 20, z_order=("id",), vacuum=timedelta(days=7)
    )
    assert config.optimize == options
    with pytest.raises(ConfigError, match=r"sink\.optimize\.z_order: Spark puts rows in order"):
        DeltaSink(config).open(SinkContext("app", "upsert", run_in_process))
    with pytest.raises(ValueError, match="readers need an hour at least"):
        DeltaOptimizeOptions(vacuum="30m")  # type: ignore[arg-type]
