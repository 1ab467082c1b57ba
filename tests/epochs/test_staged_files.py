"""Files that are staged and not committed yet, or are just being: others may take them, and nobody reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.sinks.delta import commits as delta_commits
from raycdc.sinks.delta import target as delta_target
from raycdc.sinks.iceberg import target as iceberg_target
from tests.epochs.sink_world import World, works_of
from tests.epochs.touched_story import EACH, TouchedTarget, folder


def files_of(world: World) -> set[Path]:
    return {path for path in folder(world).rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", [*EACH, "delta-tasks-upsert"])
def test_staged_files_that_a_cleaning_tool_took_are_staged_again(kind: str, tmp_path: Path) -> None:
    story = TouchedTarget(kind, tmp_path)
    story.items.update((2,), name="changed")
    story.items.insert({"id": 50, "name": "new", "qty": 5})
    (work,) = works_of(story.loop, story.world.script.seal())
    before = files_of(story.world)
    staged = story.sink.stage([work])[work.target]
    for path in files_of(story.world) - before:
        path.unlink()
    story.sink.commit(work, staged)
    story.world.check()


def taking_what_is_staged(story: TouchedTarget) -> Callable[[str], None]:
    """A fail point at which somebody takes the files of rows that came since now, in the middle of a commit."""
    before = files_of(story.world)

    def take(point: str) -> None:
        for path in files_of(story.world) - before if point == "in_commit" else ():
            if path.suffix == ".parquet":
                path.unlink()

    return take


@pytest.mark.parametrize("kind", ["delta-changelog", "iceberg-changelog"])
def test_a_staged_file_that_is_taken_while_it_is_committed_is_told_by_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = TouchedTarget(kind, tmp_path)
    take = taking_what_is_staged(story)
    monkeypatch.setattr(delta_target if kind.startswith("delta") else iceberg_target, "reach", take)
    story.goes_on(2)
    assert story.parked is not None
    assert "that were deleted while it was committed" in story.parked.text


@pytest.mark.parametrize("kind", ["delta-changelog", "iceberg-changelog"])
def test_a_staged_file_that_is_taken_is_told_by_the_next_start_where_the_commit_died_before_it_looked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = TouchedTarget(kind, tmp_path)
    take = taking_what_is_staged(story)

    def take_and_die(point: str) -> None:
        take(point)
        if point == "before_look":
            raise FailpointError(point)

    for module in (delta_target, delta_commits, iceberg_target):
        monkeypatch.setattr(module, "reach", take_and_die)
    with pytest.raises(FailpointError):
        story.goes_on(2)
    monkeypatch.undo()
    story.starts_again(3)
    assert story.parked is not None
    assert "that were deleted while it was committed" in story.parked.text


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_readers_of_all_files_below_a_folder_see_no_staged_rows(kind: str, tmp_path: Path) -> None:
    story = TouchedTarget(kind, tmp_path)
    story.items.update((1,), name="changed")
    works = works_of(story.loop, story.world.script.seal())
    before = set(folder(story.world).rglob(f"*.{kind}"))
    files = files_of(story.world)
    story.sink.stage(works)
    assert files_of(story.world) > files
    assert set(folder(story.world).rglob(f"*.{kind}")) == before
