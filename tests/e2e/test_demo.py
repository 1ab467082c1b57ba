"""The demo as a person starts it, in a folder of its own: the shortest proof that everything fits together."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from raycdc.cli import main
from raycdc.errors import ExitCode
from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers.private import wait_until
from raycdc.sandbox.trials.targets import FOLDERS, SERVERS
from tests.support.forked_commands import completed

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


def require_demo_equal(done: subprocess.CompletedProcess[str]) -> None:
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
    require_demo_equal(done)
    assert done.stdout.count("equal (by all columns)") == 3
    assert "points" in read_delta(tmp_path / "demo-lake" / "shop" / "customers").column_names
    assert "'quantity': " in looked_at(tmp_path, done.stdout)
    # The file that it left says where the state is.
    status = completed(["status", "demo-lake/demo.toml"], environment=os.environ, folder=tmp_path)
    assert status.returncode == ExitCode.DONE
    # Its server is gone for good: nobody waits for it.
    again = completed(
        ["run", "demo-lake/demo.toml", "--local", "--until", "caught-up"], environment=os.environ, folder=tmp_path
    )
    assert again.returncode == ExitCode.SOURCE
    assert "a demo that has ended, together with its servers" in again.stderr


@pytest.mark.long(suite="demos")
@pytest.mark.server
def test_the_demo_follows_collections_into_iceberg(tmp_path: Path) -> None:
    done = demo(tmp_path, "--local", "--source", "mongodb", "--sink", "iceberg", orders=300)
    require_demo_equal(done)
    assert "'quantity': " in looked_at(tmp_path, done.stdout)


@pytest.mark.server
@pytest.mark.long(suite="demos")
@pytest.mark.parametrize(("source", "sink"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_the_demo_of_every_pair(source: str, sink: str, tmp_path: Path) -> None:
    done = demo(tmp_path, "--local", "--source", source, "--sink", sink, orders=300)
    require_demo_equal(done)
    if sink in FOLDERS:
        assert "quantity" in looked_at(tmp_path, done.stdout)
    else:
        assert "They are gone with the demo; with --stay its servers stay up until Ctrl-C." in done.stdout


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_runs_on_ray_and_spark(tmp_path: Path) -> None:
    """Its readers are Ray's actors, and each of its epochs with rows is a job of Spark's, as these say themselves."""
    command = [sys.executable, "-m", "raycdc.cli", "demo", "--orders", "6000", "--seconds", "10", "--no-stay"]
    actors, stages = set[str](), [0]

    def ended() -> bool:
        actors.update(_actors(tmp_path / "demo-lake" / "run.log"))
        stages.append(_stages((tmp_path / "screen.txt").read_text()))
        return running.poll() is not None

    with (tmp_path / "screen.txt").open("w") as screen:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=screen, stderr=screen, stdin=subprocess.DEVNULL)
    try:
        wait_until(ended, timeout_s=TIMEOUT_S, what="the demo ends")
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
            running.wait(TIMEOUT_S)
    said = (tmp_path / "screen.txt").read_text()
    require_demo_equal(subprocess.CompletedProcess(command, running.returncode, said, ""))
    assert actors == {"ray::SplitEnumerator", "ray::SourceReader"}
    lines = [json.loads(line) for line in (tmp_path / "demo-lake" / "run.log").read_text().splitlines()]
    commits = [line for line in lines if line["event"] == "commit" and line["rows"]]
    assert commits
    assert {(*line["rows_read_by"], *line["rows_written_by"]) for line in commits} == {("ray", "spark")}
    (written,) = {line["rows_written_by"]["spark"] for line in lines if line["event"] == "stopped"}
    assert f"Rows read: {written:,} by Ray's readers; rows written: {written:,} by Spark." in said
    # A job each, and two where a table was altered; nobody may have looked between the last ones and Spark's end.
    assert max(stages) > len(commits) / 2


def _actors(log: Path) -> set[str]:
    """The actors among the processes that the run has started and that are still there."""
    actors = set()
    for line in log.read_text().splitlines() if log.exists() else ():
        pids = json.loads(line)["pids"] if line.startswith("{") and '"pids"' in line else {}
        for pid in [pids["enumerator"], *pids["readers"]] if pids else ():
            with suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
                actors.add(title.partition(".")[0])
    return actors - {""}  # One that has just ended has no title any more.


def _stages(screen: str) -> int:
    """How many stages Spark has completed, by its own web UI; 0 before and after it is there."""
    found = re.search(r"Spark's web UI while it runs: (http://127\.0\.0\.1:\d+)", screen)
    if found is None:
        return 0
    try:
        with urlopen(f"{found[1]}/api/v1/applications", timeout=10) as answer:
            (application,) = json.load(answer)
        with urlopen(
            f"{found[1]}/api/v1/applications/{application['id']}/stages?status=complete", timeout=10
        ) as answer:
            return len(json.load(answer))
    except (OSError, ValueError):  # It is starting up, or has ended.
        return 0


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
    assert main(["sandbox", "mongodb"]) == ExitCode.SOURCE
    assert "Java is missing" in capsys.readouterr().err
