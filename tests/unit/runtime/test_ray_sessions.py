"""What ended private Rays leave behind goes, and nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.runtime.ray import ray_private


def session(folder: Path, second: int, process: int) -> Path:
    path = folder / f"session_2026-01-01_00-00-{second:02}_000001_{process}"
    (path / "sockets").mkdir(parents=True)
    (path / "logs").mkdir()
    (path / "logs" / "raylet.out").write_text("x")
    return path


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, for sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_sessions_that_ended_go_but_for_the_newest(folder: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    ended = [session(folder, second, gone.pid) for second in range(3)]
    kept = [ended[2], session(folder, 3, os.getpid()), folder / "session_of_mine", session(folder, 4, gone.pid)]
    kept[2].mkdir()
    (folder / "session_latest").symlink_to(ended[0])
    beside = folder / "session_2026-01-01_00-00-09_000001_1"
    beside.symlink_to(folder / "session_of_mine")
    with socket.socket(socket.AF_UNIX) as raylet:  # its driver died, and it has not noticed yet
        raylet.bind(str(kept[3] / "sockets" / "raylet"))
        raylet.listen()
        ray_private.sweep(folder)
    assert [path.exists() for path in ended] == [False, False, True]
    assert all(path.exists() for path in kept)
    assert beside.is_symlink()
    ray_private.sweep(folder)
    assert [path.exists() for path in (ended[2], kept[3])] == [False, True]
    ray_private.sweep(folder / "nowhere")
