"""Commands about tables that meet a run which is just starting."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from raycdc.cli.tables import carry_out
from raycdc.driver.command_queue import CommandQueue, CommandState
from raycdc.errors import ExitCode
from raycdc.source.tables.table_commands import TableAction, TableCommand
from raycdc.state.store import CheckpointStore
from tests.unit.driver.state_admin.small_pipeline import configured, run


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("raycdc.state.store.BRIEF_S", 0.1)
    path = configured(tmp_path)
    assert run(path) == ExitCode.DONE
    return path


def test_a_command_that_meets_a_starting_run_is_left_to_it(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a run has locked the state, and has no generation of its own yet."""
    store, command = CheckpointStore(tmp_path / "state", create=False), TableCommand.new(TableAction.PAUSE, "shop.a")
    with store.lock.take():
        assert carry_out(config, command, wait_s=0.5) == ExitCode.DONE
    said = capsys.readouterr().out
    assert "Asked process" in said
    assert "has not accepted the command yet" in said
    assert [(one.id, one.state) for one in CommandQueue(store).all()] == [(command.id, CommandState.ACCEPTED)]


def test_a_command_whose_starting_run_ends_is_recorded_for_the_next_one(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, command = CheckpointStore(tmp_path / "state", create=False), TableCommand.new(TableAction.PAUSE, "shop.a")
    lease = store.lock.take()
    timer = threading.Timer(0.5, lease.release)
    timer.start()
    try:
        assert carry_out(config, command, wait_s=60) == ExitCode.DONE
    finally:
        timer.join()
    assert "It takes effect at the next start" in capsys.readouterr().out
    assert [(one.id, one.state) for one in CommandQueue(store).all()] == [(command.id, CommandState.ACCEPTED)]
    assert run(config) == ExitCode.DONE
    assert [(one.id, one.state) for one in CommandQueue(store).all()] == [(command.id, CommandState.DONE)]
