"""Old snapshots of an Iceberg table are left out by commits, and nothing that is needed of them goes with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotsUpdate

from raycdc.errors import SinkError
from raycdc.sinks.iceberg import expiry
from raycdc.sinks.iceberg.catalog import HadoopCatalog
from raycdc.sinks.iceberg.descent import vector_property
from tests.epochs.sink_world import World, new_world, play

ORDERS = ("shop", "orders")
AT_ONCE = 3


class ExpiringWorld(World):
    """A sink that leaves out all snapshots that nobody needs."""

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "expire_snapshots": "1ms"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", AT_ONCE)
    made = new_world("iceberg-upsert", tmp_path)
    return ExpiringWorld(made.kind, made.root, made.script, None, None, None, made.partition_by)


def table_of(world: World) -> Table:
    return HadoopCatalog("other", world.root / "lake").load_table(ORDERS)


def change(world: World, number: int) -> None:
    """One more epoch, committed by a run of its own."""
    world.script.table("shop.orders").update((100,), qty=number)
    world.script.seal()
    world.restart()


def test_commits_leave_out_old_snapshots_and_the_rows_stay(world: World) -> None:
    play(world, final=False)
    world.restart()
    for number in range(12):
        change(world, number)
        assert len(table_of(world).metadata.snapshots) <= AT_ONCE + 2
    world.check()
    metadata = table_of(world).metadata
    assert metadata.snapshot_log[-1].snapshot_id == metadata.current_snapshot_id
    assert len(metadata.snapshot_log) <= AT_ONCE + 2


def test_each_snapshot_goes_by_an_update_of_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older REST catalogs refuse a whole commit that names two of them in one."""
    sizes: list[int] = []
    own = HadoopCatalog.commit_table

    def commit_table(catalog: Any, table: Any, requirements: Any, updates: Any) -> Any:
        sizes.extend(len(update.snapshot_ids) for update in updates if isinstance(update, RemoveSnapshotsUpdate))
        return own(catalog, table, requirements, updates)

    play(world, final=False)
    world.restart()
    monkeypatch.setattr(HadoopCatalog, "commit_table", commit_table)
    for number in range(6):
        change(world, number)
    assert len(sizes) >= AT_ONCE
    assert set(sizes) == {1}


def test_snapshots_with_a_name_stay(world: World) -> None:
    play(world, final=False)
    world.restart()
    table = table_of(world)
    head = table.metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_tag(head, "month").commit()
    for number in range(8):
        change(world, number)
    table = table_of(world)
    assert table.metadata.refs["month"].snapshot_id == head
    assert table.scan(snapshot_id=head).to_arrow().num_rows > 0
    world.check()


def test_a_name_that_is_given_during_a_commit_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our look at the table and our commit: that one is refused and planned again."""
    play(world, final=False)
    world.restart()
    own = HadoopCatalog.commit_table
    named: list[int] = []

    def commit_table(catalog: Any, table: Any, requirements: Any, updates: Any) -> Any:
        left_out = [update.snapshot_ids[0] for update in updates if isinstance(update, RemoveSnapshotsUpdate)]
        if left_out and not named and table.name()[-2:] == ORDERS:
            named.append(left_out[-1])
            table_of(world).manage_snapshots().create_tag(named[0], "month").commit()
        return own(catalog, table, requirements, updates)

    monkeypatch.setattr(HadoopCatalog, "commit_table", commit_table)
    for number in range(6):
        change(world, number)
    metadata = table_of(world).metadata
    assert [metadata.refs["month"].snapshot_id] == named
    assert named[0] in {snapshot.snapshot_id for snapshot in metadata.snapshots}
    world.check()


def test_a_rollback_is_refused_as_ever(world: World) -> None:
    play(world, final=False)
    world.restart()
    for number in range(8):
        change(world, number)
    table = table_of(world)
    before = table.metadata.snapshots[-2].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(SinkError, match="was rolled back or replaced"):
        world.restart()


def test_what_the_record_of_another_pipeline_leads_from_stays(world: World) -> None:
    play(world, final=False)
    world.restart()
    table = table_of(world)
    head = table.metadata.current_snapshot_id
    with table.transaction() as transaction:
        note = {"pipeline": "other", "epoch": 1, "step": 1, "generation": 1, "snapshot": head}
        transaction.set_properties({vector_property("other"): json.dumps(note)})
    for number in range(8):
        change(world, number)
    known = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in table_of(world).metadata.snapshots}
    one = table_of(world).metadata.current_snapshot_id
    while one is not None and one != head:
        one = known[one]
    assert one == head
    world.check()


def test_young_snapshots_stay(world: World) -> None:
    play(world, final=False)
    world.restart()
    metadata = table_of(world).metadata
    assert expiry.expired(metadata, before_ms=0) == []
    assert metadata.current_snapshot_id not in expiry.expired(metadata, before_ms=1 << 62)


def test_a_table_that_was_replaced_and_has_no_rows_yet_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Spark's CREATE OR REPLACE TABLE: older snapshots, none of them the current one, and no record."""
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", 1)
    empty = new_table_metadata(Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///lake", {})
    old = Snapshot.model_validate({"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "manifest-list": "x"})
    replaced = empty.model_copy(update={"snapshots": [old]})
    assert replaced.current_snapshot_id is None
    assert expiry.expired(replaced, before_ms=1 << 62) == []
