"""The log of a Delta table that gets many commits: how much of it is kept, and that looking at it costs little."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.model import TableId
from raycdc.model.rules.layout import TableLayout
from raycdc.sinks.api import STEP_LAST, CommitVector
from raycdc.sinks.delta.commits import DeltaCommits, hooks
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.steps import CommitMetadata

KEPT = {"delta.checkpointInterval": "10", "delta.logRetentionDuration": "interval 0 hours"}


def stamp(epoch: int) -> CommitMetadata:
    return CommitMetadata(CommitVector(epoch, STEP_LAST, 1), {})


def target_at(path: Path) -> DeltaTarget:
    return DeltaTarget(path, TableId("shop", "orders"), "raycdc:test:1")


def commits_of(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in (path / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("cleaned_up", [True, False])
def test_old_commits_go_with_a_checkpoint_unless_the_table_keeps_them(tmp_path: Path, cleaned_up: bool) -> None:
    path = tmp_path / "t"
    target = target_at(path)
    options = KEPT | ({} if cleaned_up else {"delta.enableExpiredLogCleanup": "false"})
    DeltaCommits(target).create(
        pa.schema([pa.field("k", pa.int32())]), stamp(1), TableLayout(options=tuple(options.items()))
    )
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
    # Where nobody can tell by names, it is asked: its file is gone, or a cleanup is half done.
    log = tmp_path / "t/_delta_log"
    (log / "_last_checkpoint").write_text('{"version":2,"size":1}')
    assert target.log.is_newest(2)
    for odd in ('{"version":3,"size":1}', "{", "{}", "3"):
        (log / "_last_checkpoint").write_text(odd)
        assert not target.log.is_newest(2)
    (log / "_last_checkpoint").unlink()
    (log / "00000000000000000002.json").rename(tmp_path / "gone.json")
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
