"""Tables of lakes that somebody deletes at the very moment of a commit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from raycdc.model import TableId
from raycdc.model.evolution.events import CreateTableEvent, TruncateTableEvent
from raycdc.sinks.delta.log_inspection import LogWatch, Losses
from raycdc.sinks.delta.table import DeltaTarget
from tests.epochs.sink_world import works_of
from tests.epochs.touched_story import TouchedTarget, folder


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-changelog", "delta-tasks-upsert"])
@pytest.mark.parametrize("what", ["folder", "log", "newest"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_delta_table_that_goes_while_it_is_committed_is_parked_alone(
    kind: str, what: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = TouchedTarget(kind, tmp_path)
    log = folder(story.world) / "_delta_log"
    taken: list[str] = []

    def take() -> None:
        if not taken:
            taken.append(what)
            if what == "newest":
                max(log.glob("*.json")).unlink()
            else:
                shutil.rmtree(log if what == "log" else log.parent)

    committed, looked = DeltaTarget.tried, DeltaTarget.refresh

    def tried(target: DeltaTarget) -> None:
        committed(target)
        if target.name == TableId("shop", "items"):
            if moment == "before":
                take()
            monkeypatch.setattr(DeltaTarget, "refresh", refresh)

    def refresh(target: DeltaTarget) -> bool:
        # delta-rs has the commit, and whoever looks at it next finds nothing.
        if target.name == TableId("shop", "items"):
            monkeypatch.setattr(LogWatch, "inspect", inspect)
        return looked(target)

    watched = LogWatch.inspect

    def inspect(watch: LogWatch, table: DeltaTable) -> Losses | None:
        losses = watched(watch, table)
        if moment == "after":
            take()
        return losses

    monkeypatch.setattr(DeltaTarget, "tried", tried)
    story.goes_on(2)
    monkeypatch.undo()
    assert taken
    if moment == "after" and story.parked is None:
        # It went when nothing of this commit was left to read: the next one finds that.
        story.goes_on(3)
    assert story.parked is not None
    assert str(folder(story.world)) in story.parked.text

    # The way out that the text names, while the driver goes on.
    shutil.rmtree(folder(story.world), ignore_errors=True)
    table = story.items
    table.truncate()
    table.changes.extend((TruncateTableEvent(table.id), CreateTableEvent(table.id, table.schema)))
    table.insert({"id": 20, "name": "anew", "qty": 1})
    (work,) = works_of(story.loop, story.world.script.seal(), begun=True)
    story.sink.apply_schema(work)
    story.sink.commit(work, story.sink.stage([work])[work.target])
    # A changelog has the truncation as a row without a key.
    assert {row["id"] for row in story.world.rows(table)} - {None} == {20}
