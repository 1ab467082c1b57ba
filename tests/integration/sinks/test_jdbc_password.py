"""The password of a database target is in no argument of a task, and in a file of this user alone."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest

from raycdc.core.secrets import from_private
from raycdc.errors import SinkError
from raycdc.segments import run_in_process
from raycdc.sinks.jdbc.staging import StagedTable
from raycdc.sinks.jdbc.tasks import LoadStagingTable
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.files.folder import private_file
from raycdc.state.store import CheckpointStore
from tests.epochs.sink_world import play, world_of


@pytest.mark.server
@pytest.mark.parametrize("kind", ["postgres-upsert", "mysql-upsert"])
def test_tasks_are_told_where_it_is(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(request, kind, tmp_path)
    (tmp_path / "private").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "private"))
    password = world.settings["password"]
    play(world)
    told: list[LoadStagingTable] = []

    def run(tasks: Sequence[LoadStagingTable]) -> list[StagedTable]:
        told.extend(tasks)
        return run_in_process(tasks)

    sink = world.sink(run=run)
    world.loop(sink).run()
    world.check()
    (held,) = (tmp_path / "private").glob("private-*")
    assert (held.stat().st_mode & 0o777, from_private(held.read_text())) == (0o600, password)
    # By its place: private servers' accounts and databases are called as their passwords are.
    assert {(task.address.address.password, task.address.password_file) for task in told} == {("", str(held))}
    sink.close()
    assert not held.exists()
    with pytest.raises(SinkError, match="The password of the sink cannot be read from"):
        run_in_process([pickle.loads(pickle.dumps(told[0]))])


def test_what_a_driver_that_died_left_goes_when_the_next_begins(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "state", pipeline="shop")
    DriverGeneration(store)
    left = private_file(store.path / "private", "old")
    # Pids say nothing: the other driver may be one of another machine.
    assert private_file(store.path / "private", "another").exists()
    assert left.exists()
    DriverGeneration(store)
    made = private_file(store.path / "private", "new")
    assert list((store.path / "private").iterdir()) == [made]
