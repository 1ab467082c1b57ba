"""The log of a Delta table that gets many commits: how much of it is kept, and that looking at it costs little."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.model import TableId
from raycdc.model.layout import TableLayout
from raycdc.sinks.api import STEP_LAST, CommitVector
from raycdc.sinks.delta.commits import DeltaCommits, hooks
from raycdc.sinks.delta.layout import LogRetention
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.steps import Stamp
from tests.epochs.sink_world import new_world, play

HOUR = timedelta(hours=1)
KEPT = {"delta.checkpointInterval": "10", "delta.logRetentionDuration": "interval 0 hours"}


def stamp(epoch: int) -> Stamp:
    return Stamp(CommitVector(epoch, STEP_LAST, 1), {})


def target_at(path: Path) -> DeltaTarget:
    return DeltaTarget(path, TableId("shop", "orders"), "raycdc:test:1")


def commits_of(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in (path / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("cleaned_up", [True, False])
def test_old_commits_go_with_a_checkpoint_unless_the_table_keeps_them(tmp_path: Path, cleaned_up: bool) -> None:
    path = tmp_path / "t"
    target = target_at(path)
    options = KEPT | ({} if cleaned_up else {"delta.enableExpiredLogCleanup": "false"})
    DeltaCommits(target).create(pa.schema([pa.field("k", pa.int32())]), stamp(1), options=options)
    numbers, asked = [], []
    for epoch in range(2, 26):
        if hooks(target.table).cleanup_expired_logs is not False:
            asked.append(target.table.version() + 1)
        DeltaCommits(target).mark(stamp(epoch))
        numbers.append(len(commits_of(path)))
    # The newest checkpoint is that of version 19.
    assert commits_of(path) == [*range(19 if cleaned_up else 0, 25)]
    # Nothing goes but with a checkpoint, and nothing is looked for.
    assert asked == [9, 19]
    fewer = [version for version, (a, b) in enumerate(pairwise(numbers), 2) if b <= a]
    assert fewer == ([9, 19] if cleaned_up else [])
    fresh = target_at(path)
    assert fresh.refresh()
    assert fresh.vector() == CommitVector(25, STEP_LAST, 1)


def test_a_look_finds_what_others_committed_and_lists_nothing_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_at(tmp_path / "t")
    DeltaCommits(target).create(pa.schema([pa.field("k", pa.int32())]), stamp(1))
    DeltaCommits(target).mark(stamp(2))
    listed = []
    update = DeltaTable.update_incremental

    def counted(table: DeltaTable) -> None:
        listed.append(table)
        update(table)

    monkeypatch.setattr(DeltaTable, "update_incremental", counted)
    assert target.refresh()
    assert not listed
    write_deltalake(str(target.path), pa.table({"k": pa.array([1], pa.int32())}), mode="append")
    assert target.refresh()
    assert len(listed) == 1
    assert target.table.version() == 2
    # Where nobody can tell by names, it is asked.
    (tmp_path / "t/_delta_log/00000000000000000002.json").rename(tmp_path / "gone.json")
    assert not target.log.is_newest(2)


def test_the_record_of_a_commit_is_in_what_is_read_of_it_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    target, other = target_at(path), DeltaTarget(path, TableId("shop", "orders"), "raycdc:other:1")
    DeltaCommits(target).create(pa.schema([pa.field("k", pa.int32())]), stamp(1))
    asked: list[str] = []
    ask = DeltaTable.transaction_version

    def counted(table: DeltaTable, app_id: str) -> int | None:
        asked.append(app_id)
        return ask(table, app_id)

    def fresh() -> CommitVector | None:
        seen = target_at(path)
        assert seen.refresh()
        return seen.vector()

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    for epoch in range(2, 25):
        # Beside others, and another pipeline.
        write_deltalake(str(path), pa.table({"k": pa.array([epoch], pa.int32())}), mode="append")
        other.refresh()
        DeltaCommits(other).mark(stamp(epoch + 100))
        asked.clear()
        DeltaCommits(target).mark(stamp(epoch))
        assert not asked
        assert target.vector() == fresh() == CommitVector(epoch, STEP_LAST, 1)
    # Not every commit of ours says something of epochs.
    DeltaCommits(target).set_options(KEPT)
    assert target.vector() == fresh() == CommitVector(24, STEP_LAST, 1)
    # A newer driver of the same pipeline, several commits ahead, and one whose commits were cleaned up meanwhile.
    for commits in (3, 30):
        newer = target_at(path)
        assert newer.refresh()
        for number in range(commits):
            DeltaCommits(newer).mark(stamp(1_000 * commits + number))
        assert target.refresh()
        assert target.vector() == fresh() == CommitVector(1_001 * commits - 1, STEP_LAST, 1)


def test_a_commit_that_names_the_pipeline_in_a_way_of_its_own_is_asked_for(tmp_path: Path) -> None:
    target = target_at(tmp_path / "t")
    DeltaCommits(target).create(pa.schema([pa.field("k", pa.int32())]), stamp(1))
    newer = target_at(tmp_path / "t")
    assert newer.refresh()
    DeltaCommits(newer).mark(stamp(2))
    log = tmp_path / "t/_delta_log/00000000000000000001.json"
    log.write_text(log.read_text().replace('{"txn"', '{ "txn"'))
    assert target.refresh()
    assert target.log.transactions is None
    assert target.vector() == CommitVector(2, STEP_LAST, 1)


def test_a_table_that_is_vacuumed_keeps_its_log_as_long_unless_somebody_chose_otherwise() -> None:
    assert LogRetention.of(None, HOUR) is None
    short = LogRetention.of(timedelta(minutes=90), HOUR)
    long = LogRetention.of(timedelta(days=7), timedelta(days=2))
    assert short is not None
    assert long is not None
    made = short.of_new(TableLayout())
    assert made == {
        "delta.logRetentionDuration": "interval 2 hours",
        "delta.deletedFileRetentionDuration": "interval 26 hours",
        "raycdc.retention": "interval 2 hours, interval 26 hours",
    }
    assert long.of_new(TableLayout())["delta.deletedFileRetentionDuration"] == "interval 264 hours"
    # Asked for otherwise in the configuration.
    asked = TableLayout(options=(("delta.logRetentionDuration", "interval 30 days"),))
    assert not short.of_new(asked)
    assert not short.of_old(asked, made)
    # Another vacuum changes what was our own choice, and nothing else.
    assert long.of_old(TableLayout(), made) == long.of_new(TableLayout())
    assert not long.of_old(TableLayout(), {})
    assert not long.of_old(TableLayout(), made | {"delta.logRetentionDuration": "interval 30 days"})


def test_tables_that_are_made_get_it_and_follow_another_vacuum(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    play(world, epochs=2)
    for vacuum in (timedelta(hours=3), timedelta(hours=5)):
        sink = world.sink()
        assert isinstance(sink, DeltaSink)
        sink._properties.retention = LogRetention.of(vacuum, HOUR)
        world.loop(sink).run()
        there = DeltaTable(str(world.root / "lake/shop/orders")).metadata().configuration
        assert there["delta.logRetentionDuration"] == f"interval {vacuum // HOUR} hours"
        world.script.random_epoch(operations=30)
        world.script.seal(final=True)
    world.loop().run()
    world.check()
