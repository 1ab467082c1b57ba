"""The demo as a person starts it, in a folder of its own: the shortest proof that everything fits together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from raycdc.errors import ExitCode
from raycdc.testing.compare import read_delta

TIMEOUT_S = 900


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raycdc.cli", "demo", "--orders", "6000", "--seconds", "3", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.mark.server
def test_the_demo_ends_with_equal_tables_and_leaves_the_lake(tmp_path: Path) -> None:
    done = demo(tmp_path, "--local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == 3
    assert "points" in read_delta(tmp_path / "demo-lake" / "shop" / "customers").column_names
    [look] = [line.partition(":")[2] for line in done.stdout.splitlines() if line.startswith("Look at it:")]
    shown = subprocess.run(
        look, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    assert "customer" in shown.stdout


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_runs_on_ray_and_spark(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == 3


def test_the_demo_removes_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    mine = tmp_path / "demo-lake" / "precious.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    done = demo(tmp_path)
    assert done.returncode == ExitCode.CONFIG
    assert "Move it away" in done.stderr
    assert mine.read_text() == "mine"
