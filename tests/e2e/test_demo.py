"""The demo as a person starts it, in a folder of its own: the shortest proof that everything fits together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raycdc.cli import main
from raycdc.errors import ExitCode
from raycdc.testing.compare import read_delta
from raycdc.testing.forked_commands import completed
from raycdc.testing.trials.targets import FOLDERS, SERVERS

TIMEOUT_S = 900
#: To the demo MySQL is what MariaDB is, but for the server.
PAIRS = [
    *((source, sink) for source in ("mariadb", "mongodb", "kafka") for sink in (*FOLDERS, *SERVERS)),
    *(("mysql", sink) for sink in ("delta", "mysql")),
]


def demo(folder: Path, *options: str, orders: int = 6000) -> subprocess.CompletedProcess[str]:
    words = ["demo", "--orders", str(orders), "--seconds", "2", *options]
    if "--local" in options:
        return completed(words, environment=os.environ, folder=folder, timeout_s=TIMEOUT_S)
    command = [sys.executable, "-m", "raycdc.cli", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
    )


def require_equal(done: subprocess.CompletedProcess[str]) -> None:
    """An `AssertionError` unless the demo says that the three tables of the shop are equal, and fits its screen."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" equal (by ") == 3, done.stdout
    _, _, said = done.stdout.partition("\nMeanwhile ")
    assert " rows inserted, " in said
    lines = said.replace(str(Path(sys.executable).parent), "bin").splitlines()[2:]
    assert [line for line in lines if len(line) > 80] == []


def looked_at(folder: Path, said: str) -> str:
    """What the command prints that the demo gives for looking at the target."""
    _, _, rest = said.partition("\nLook at it:\n\n")
    look, _, _ = rest.partition("\n\nNext:\n")
    shown = subprocess.run(look, shell=True, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


@pytest.mark.server
def test_the_demo_ends_with_equal_tables_and_leaves_the_lake(tmp_path: Path) -> None:
    done = demo(tmp_path, "--local")
    require_equal(done)
    assert done.stdout.count("equal (by all columns)") == 3
    assert "points" in read_delta(tmp_path / "demo-lake" / "shop" / "customers").column_names
    assert "'quantity': " in looked_at(tmp_path, done.stdout)
    # The file that it left says where the state is.
    status = completed(["status", "demo-lake/demo.toml"], environment=os.environ, folder=tmp_path)
    assert status.returncode == ExitCode.DONE


@pytest.mark.server
def test_the_demo_follows_collections_into_iceberg(tmp_path: Path) -> None:
    done = demo(tmp_path, "--local", "--source", "mongodb", "--sink", "iceberg", orders=300)
    require_equal(done)
    assert "'quantity': " in looked_at(tmp_path, done.stdout)


@pytest.mark.server
@pytest.mark.long
@pytest.mark.parametrize(("source", "sink"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_the_demo_of_every_pair(source: str, sink: str, tmp_path: Path) -> None:
    done = demo(tmp_path, "--local", "--source", source, "--sink", sink, orders=300)
    require_equal(done)
    if sink in FOLDERS:
        assert "quantity" in looked_at(tmp_path, done.stdout)
    else:
        assert "They are gone with the demo; with --stay its servers stay up until Ctrl-C." in done.stdout


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_runs_on_ray_and_spark(tmp_path: Path) -> None:
    require_equal(demo(tmp_path))


def test_the_demo_removes_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    mine = tmp_path / "demo-lake" / "precious.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    done = demo(tmp_path)
    assert done.returncode == ExitCode.CONFIG
    assert "Move it away" in done.stderr
    assert mine.read_text() == "mine"


def test_the_demo_says_what_it_knows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["demo", "--sink", "paimon"])
    assert "invalid choice: 'paimon' (choose from 'delta', 'iceberg'," in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["demo", "--help"])
    told = capsys.readouterr().out
    assert " ".join(told.split()).count("postgres, mysql, mariadb, mongodb, kafka; default: delta") == 1
    assert [line for line in told.splitlines() if len(line) > 80] == []


def test_what_a_server_needs_and_is_not_there_is_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert main(["demo", "--local", "--source", "kafka"]) == ExitCode.SOURCE
    assert "Java is missing" in (told := capsys.readouterr().err)
    assert "apt-get install openjdk-17-jre-headless" in told
    assert main(["trial", "mongodb"]) == ExitCode.SOURCE
    assert "Java is missing" in capsys.readouterr().err
