"""A table that somebody makes between the look at an empty new target and the commit that would have made that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import ParkReason
from raycdc.segments import run_in_process
from raycdc.sinks.api import SinkContext, TableCommit
from raycdc.sinks.delta.plugin import DeltaSinkConfig
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.rows import changelog_arrow
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript, ScriptedTable, simple_schema
from tests.epochs.sink_world import World, commit, new_world

THEIRS = {"id": 1, "name": "theirs", "qty": 1}


@dataclass(frozen=True, slots=True)
class Late:
    """Where shop.orders goes; somebody makes a table there, by `partitions`, as its first commit begins."""

    folder: Path
    partitions: Sequence[str] = ()
    changelog: bool = False

    def arrives(self) -> None:
        schema = simple_schema()
        rows = pa.Table.from_pylist([THEIRS], schema=changelog_arrow(schema) if self.changelog else schema.arrow())
        write_deltalake(self.folder, rows, partition_by=list(self.partitions) or None)


def late(monkeypatch: pytest.MonkeyPatch, orders: ScriptedTable, there: Late) -> None:
    before = DeltaSink.commit

    def made(sink: DeltaSink, work: TableCommit, staged: Any) -> None:
        if work.target == orders.id and not there.folder.exists():
            there.arrives()
        before(sink, work, staged)

    monkeypatch.setattr(DeltaSink, "commit", made)


def begun(tmp_path: Path) -> tuple[World, ScriptedTable, Path]:
    world = new_world("delta-upsert", tmp_path)
    world.script.table("shop.items").insert({"id": 1, "name": "x", "qty": 1})
    return world, world.script.table("shop.orders"), tmp_path / "lake" / "shop" / "orders"


@pytest.mark.parametrize("on_existing", ["fail", "merge", "replace"])
def test_a_table_that_comes_late_is_treated_as_one_that_was_there(
    on_existing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, orders, folder = begun(tmp_path)
    late(monkeypatch, orders, Late(folder))
    loop = world.loop(sink=world.sink(on_existing=on_existing), parking=ParkingPolicy())
    loop.recover()
    commit(loop, world.script.seal())
    record = world.store.last_commit()
    assert record is not None
    if on_existing == "fail":
        assert record.parked["shop.orders"].reason is ParkReason.TAKEN
        assert DeltaTable(folder).to_pyarrow_table().to_pylist() == [THEIRS]
        return
    assert record.parked == {}
    assert DeltaTable(folder).to_pyarrow_table().to_pylist() == ([THEIRS] if on_existing == "merge" else [])
    orders.insert({"id": 2, "name": "ours", "qty": 2})
    commit(loop, world.script.seal())
    ids = {row["id"] for row in DeltaTable(folder).to_pyarrow_table().to_pylist()}
    assert ids == ({1, 2} if on_existing == "merge" else {2})


@pytest.mark.parametrize("write", ["upsert", "changelog"])
@pytest.mark.parametrize("partitions", [(), ("name",)], ids=["plain", "partitioned"])
def test_rows_that_were_staged_before_are_added_as_that_table_takes_them(
    write: str, partitions: Sequence[str], tmp_path: Path
) -> None:
    store = CheckpointStore(tmp_path / "state", pipeline="late")
    script = EpochScript(store)
    orders = script.table("shop.orders")
    works = [work_of(script, script.seal())]
    orders.read([{"id": 1, "name": "ours", "qty": 5}, {"id": 2, "name": "ours", "qty": 6}])
    works.append(work_of(script, script.seal()))
    sink = DeltaSink(DeltaSinkConfig(type="delta", path=str(tmp_path / "lake")))
    sink.open(SinkContext(store.app_id, write, run_in_process, "merge", parallelism=2))
    there = Late(tmp_path / "lake" / "shop" / "orders", partitions, changelog=write == "changelog")
    sink.apply_schema(works[0])
    staged = [sink.stage([work])[work.target] for work in works]
    there.arrives()
    for work, of_work in zip(works, staged, strict=True):
        sink.commit(work, of_work)
    rows = DeltaTable(there.folder).to_pyarrow_table().to_pylist()
    ours = [(1, "ours"), (2, "ours")]
    assert sorted((row["id"], row["name"]) for row in rows) == (
        ours if write == "upsert" else sorted([*ours, (1, "theirs")])
    )


def work_of(script: EpochScript, manifest: Manifest) -> TableCommit:
    orders = script.table("shop.orders")
    changes = manifest.tables[orders.id].changes
    return TableCommit(
        manifest.epoch, script.generation, orders.id, orders.id, orders.schema, changes, manifest.segments, {}
    )
