"""Commands that are forked from a process that has imported everything: they are processes like any other."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.forked_commands import completed, nursery


def test_a_command_says_and_returns_what_one_does_that_starts_from_nothing(tmp_path: Path) -> None:
    listed = completed(["plugins"], environment=os.environ, folder=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "delta" in listed.stdout
    refused = completed(["check", "missing.toml"], environment=os.environ, folder=tmp_path)
    assert refused.returncode == 2
    assert "missing.toml" in refused.stderr


def test_a_command_has_the_environment_and_the_folder_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[pipeline]\nname = "${env:RAYCDC_TEST_NAME}"\n')
    told = completed(["check", "job.toml"], environment={"PATH": os.environ["PATH"]}, folder=tmp_path)
    assert told.returncode == 2
    assert "RAYCDC_TEST_NAME" in told.stderr
    again = completed(["check", "job.toml"], environment={**os.environ, "RAYCDC_TEST_NAME": "n"}, folder=tmp_path)
    assert "RAYCDC_TEST_NAME" not in again.stderr


def test_fail_points_are_those_of_the_environment(tmp_path: Path) -> None:
    environment = {**os.environ, "RAYCDC_FAILPOINTS": "no_such_point=kill"}
    told = completed(["plugins"], environment=environment, folder=tmp_path)
    assert told.returncode != 0
    assert "RAYCDC_FAILPOINTS" in told.stderr


def test_a_command_is_waited_for_and_killed_by_its_own_id(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "job.toml")
    with (tmp_path / "log").open("wb") as log:
        command = nursery().start(["check", "job.toml"], environment=os.environ, folder=tmp_path, stderr=log)
    with pytest.raises(subprocess.TimeoutExpired):
        command.wait(0.05)
    assert command.poll() is None
    assert os.getsid(command.pid) == command.pid
    command.kill()
    assert command.wait(120) == -signal.SIGKILL
    command.send_signal(signal.SIGTERM)
    command.stdout.close()
