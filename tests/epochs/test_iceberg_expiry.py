"""Old snapshots of an Iceberg table are left out by commits, and nothing that is needed of them goes with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotsUpdate

from raycdc.errors import SinkError
from raycdc.sinks.api import ignore_text
from raycdc.sinks.iceberg import snapshot_lineage as expiry
from raycdc.sinks.iceberg.catalog import HadoopCatalog
from raycdc.sinks.iceberg.snapshot_lineage import KEEP, Expiry, Retention, vector_property
from tests.epochs.sink_world import World, new_world, play

ORDERS = ("shop", "orders")
AT_ONCE = 3


class ExpiringWorld(World):
    """A sink with these options about snapshots; at first it leaves out all that nobody needs."""

    options: Mapping[str, Any] = {"expire_snapshots": "1ms"}

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, **self.options}


def new_expiring(tmp_path: Path, **options: Any) -> ExpiringWorld:
    made = new_world("iceberg-upsert", tmp_path)
    world = ExpiringWorld(made.kind, made.root, made.script, None, None, None, made.partition_by)
    world.options = options
    return world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", AT_ONCE)
    return new_expiring(tmp_path, expire_snapshots="1ms")


def table_of(world: World) -> Table:
    return HadoopCatalog("other", world.root / "lake").load_table(ORDERS)


def snapshots_of(world: World) -> set[int]:
    return {snapshot.snapshot_id for snapshot in table_of(world).metadata.snapshots}


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


def test_what_a_commit_keeps_in_memory_is_what_it_wrote(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next commit goes on from there and does not parse all snapshots again."""
    own = HadoopCatalog.commit_table
    written: list[bool] = []

    def commit_table(catalog: HadoopCatalog, table: Any, requirements: Any, updates: Any) -> Any:
        response = own(catalog, table, requirements, updates)
        text = Path(response.metadata_location.removeprefix("file://")).read_bytes()
        kept = catalog.load_table(table.name()).metadata
        assert kept is response.metadata
        assert kept == TableMetadataUtil.parse_raw(text.decode())
        written.append(True)
        return response

    monkeypatch.setattr(HadoopCatalog, "commit_table", commit_table)
    play(world)
    world.restart()
    for number in range(6):
        change(world, number)
    assert written


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


def test_an_upsert_table_that_a_pipeline_makes_keeps_a_number_of_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", AT_ONCE)
    monkeypatch.setattr(expiry, "KEPT", 5)
    world = new_expiring(tmp_path)
    play(world, final=False)
    world.restart()
    assert table_of(world).metadata.properties[KEEP] == "5"
    for number in range(10):
        change(world, number)
        assert len(snapshots_of(world)) <= 5 + AT_ONCE
    world.check()
    # A person's word in the table goes before it.
    with table_of(world).transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "86400000"})
    before = snapshots_of(world)
    for number in range(2 * AT_ONCE):
        change(world, number)
    assert before < snapshots_of(world)


@pytest.mark.parametrize("options", [{"keep_snapshots": 0}, {"expire_snapshots": "1d"}])
def test_all_stay_that_the_configuration_keeps_whatever_the_table_got_when_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", AT_ONCE)
    monkeypatch.setattr(expiry, "KEPT", 1)
    world = new_expiring(tmp_path)
    play(world, final=False)
    world.restart()
    world.options = options
    before = snapshots_of(world)
    for number in range(2 * AT_ONCE):
        change(world, number)
    assert before < snapshots_of(world)


def test_so_many_stay_as_the_configuration_says_of_a_table_that_says_nothing(world: World) -> None:
    assert isinstance(world, ExpiringWorld)
    play(world, final=False)
    world.restart()
    assert KEEP not in table_of(world).metadata.properties
    world.options = {"keep_snapshots": 4}
    for number in range(4 + 2 * AT_ONCE):
        change(world, number)
    assert 4 <= len(snapshots_of(world)) < 4 + 2 * AT_ONCE
    world.check()


def test_a_table_with_a_great_many_says_which_pipeline_keeps_them_and_its_way_out_is_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "MANY", 6)
    play(world, final=False)
    world.restart()
    other = vector_property("raycdc:other:1")
    with table_of(world).transaction() as transaction:
        head = transaction.table_metadata.current_snapshot_id
        note = {"pipeline": "raycdc:other:1", "epoch": 1, "step": 1, "generation": 1, "snapshot": head}
        transaction.set_properties({other: json.dumps(note)})
    for number in range(20):
        change(world, number)
    (told,) = {re.sub(r"\d+", "N", text) for text in world.told}
    assert told == re.sub(
        r"\d+",
        "N",
        "The Iceberg table shop.orders has 1 snapshots, which each commit writes anew. They stay because the "
        "pipeline raycdc:other:1, which wrote to the table last at 1-1-1 1:1 UTC, looks back to there when it goes on. "
        f"If it is gone for good, take its record out of the table: ALTER TABLE … UNSET TBLPROPERTIES ('{other}').",
    )
    assert other in world.told[0]
    with table_of(world).transaction() as transaction:
        transaction.remove_properties(other)
    before = snapshots_of(world)
    change(world, 1)
    assert len(snapshots_of(world)) < len(before)
    world.check()


def test_a_table_with_a_great_many_says_which_tag_keeps_them_and_dropping_it_is_the_way_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "MANY", 6)
    play(world, final=False)
    world.restart()
    head = table_of(world).metadata.current_snapshot_id
    assert head is not None
    table_of(world).manage_snapshots().create_tag(head, "month").commit()
    for number in range(12):
        change(world, number)
    (told,) = {re.sub(r"[0-9]+", "1", text.partition(" anew. ")[2]) for text in world.told}
    assert told == (
        "They stay because the tag 'month' names one of 1-1-1 1:1 UTC, and none goes from between two that stay. "
        "If nobody needs it any more, drop it: ALTER TABLE … DROP TAG `month`."
    )
    assert head in snapshots_of(world)
    table_of(world).manage_snapshots().remove_tag("month").commit()
    change(world, 1)
    assert head not in snapshots_of(world)
    world.check()


@pytest.mark.parametrize(
    ("keep", "properties", "told"),
    [(1, {"gc.enabled": "false"}, "gc.enabled is false"), (0, {}, "Let old ones go with sink.keep_snapshots")],
)
def test_a_table_that_keeps_all_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, properties: dict[str, str], told: str
) -> None:
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", 1)
    monkeypatch.setattr(expiry, "MANY", 3)
    world = new_expiring(tmp_path, keep_snapshots=0)
    play(world, epochs=1, final=False)
    world.restart()
    with table_of(world).transaction() as transaction:
        transaction.set_properties(properties)
    world.options = {"keep_snapshots": keep}
    before = snapshots_of(world)
    for number in range(5):
        change(world, number)
    assert told in world.told[-1]
    assert before < snapshots_of(world)


def metadata_of(*made_ms: int, properties: dict[str, str] | None = None) -> TableMetadata:
    """Of a table with snapshots 1, 2 … that were made then, the last of them the current one."""
    empty = new_table_metadata(
        Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///lake", properties or {}
    )
    snapshots = [
        Snapshot.model_validate(
            {"snapshot-id": number, "sequence-number": number, "timestamp-ms": ms, "manifest-list": "x"}
        )
        for number, ms in enumerate(made_ms, 1)
    ]
    return empty.model_copy(update={"snapshots": snapshots, "current_snapshot_id": len(made_ms)})


@pytest.mark.parametrize(
    ("retention", "properties", "gone"),
    [
        (Retention(), {}, []),
        (Retention(after_s=60), {}, [1, 2, 3]),
        (Retention(after_s=10_000), {}, []),
        (Retention(keep=2), {}, [1, 2, 3, 4]),
        (Retention(keep=0), {KEEP: "2"}, []),
        (Retention(after_s=60, keep=5), {}, [1, 2, 3]),
        (Retention(after_s=60, keep=2), {}, [1, 2, 3, 4]),
        (Retention(after_s=60), {KEEP: "2"}, [1, 2, 3]),
        (Retention(), {KEEP: "2"}, [1, 2, 3, 4]),
        (Retention(), {KEEP: "2", "history.expire.min-snapshots-to-keep": "4"}, [1, 2]),
        (Retention(), {KEEP: "2", "history.expire.max-snapshot-age-ms": "60000"}, [1, 2, 3]),
        (Retention(), {KEEP: "2", "gc.enabled": "false"}, []),
        (Retention(keep=2), {"gc.enabled": "FALSE"}, []),
        (Retention(), {KEEP: "-2"}, []),
        (Retention(), {KEEP: "many"}, []),
    ],
)
def test_which_snapshots_go(
    monkeypatch: pytest.MonkeyPatch, retention: Retention, properties: dict[str, str], gone: list[int]
) -> None:
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", 1)
    made_ms = [800_000, 850_000, 930_000, 960_000, 990_000, 1_000_000]
    assert expiry.expired(metadata_of(*made_ms, properties=properties), retention, now_s=1_000.0) == gone


def test_none_goes_from_between_two_that_stay_whatever_clocks_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg's own clean-up may take what is before a gap for rolled back, and delete files that the table has."""
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", 1)
    metadata = metadata_of(100_000, 990_000, 200_000, 300_000, 1_000_000)
    assert expiry.expired(metadata, Retention(after_s=60), now_s=1_000.0) == [1]


def test_none_goes_from_behind_one_that_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag goes some day, and then the one it named would be taken for rolled back."""
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", 1)
    tag = SnapshotRef.model_validate({"snapshot-id": 3, "type": "tag"})
    metadata = metadata_of(*range(100_000, 107_000, 1_000)).model_copy(update={"refs": {"month": tag}})
    assert expiry.expired(metadata, Retention(keep=1), now_s=1_000.0) == [1, 2]


def test_only_upsert_tables_get_a_number_of_snapshots_and_only_where_nothing_else_was_said() -> None:
    said = [Retention(), Retention(after_s=1), Retention(keep=0), Retention(keep=7)]
    given = [Expiry(retention, ignore_text, upsert=True).of_new_tables for retention in said]
    assert given == [{KEEP: str(expiry.KEPT)}, {}, {}, {}]
    assert Expiry(Retention(), ignore_text, upsert=False).of_new_tables == {}


def test_a_table_that_was_replaced_and_has_no_rows_yet_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Spark's CREATE OR REPLACE TABLE: older snapshots, none of them the current one, and no record."""
    monkeypatch.setattr(expiry, "EXPIRED_LEAST", 1)
    replaced = metadata_of(1).model_copy(update={"current_snapshot_id": None})
    assert expiry.expired(replaced, Retention(keep=1, after_s=0), now_s=1e6) == []
