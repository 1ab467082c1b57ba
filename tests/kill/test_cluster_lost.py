"""Ray's head or this node's raylet dies: a private Ray is started anew, a joined cluster's end is told soon, by name.

Ray itself would say nothing for a minute, and then end the process with words of its own.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from raycdc.errors import ExitCode
from raycdc.pipeline import NEW_RAY
from raycdc.sandbox.compare import check_changelog, read_changelog
from raycdc.sandbox.servers import MariaDbServer
from tests.support.jobs import Job, JobRun, catch_up
from tests.support.ray_cluster import one_node

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.long(suite="takeover"),
    pytest.mark.timeout(1800),
]
#: Ray's own processes, which are ended under a run.
LOST = pytest.mark.parametrize("process", ["gcs_server", "raylet"])

#: The promise: how long after a loss a run says so.
TOLD_WITHIN_S = 15.0


def told(run: JobRun, event: str) -> list[str]:
    return [str(one.get("text", "")) for one in list(run.events) if one["event"] == event]


def kill(parent: psutil.Process, name: str) -> float:
    """Kill the child of that name; when that was."""
    [child] = [child for child in parent.children() if child.name() == name]
    child.kill()
    return time.monotonic()


def table(mariadb: MariaDbServer, database: str) -> None:
    mariadb.execute(f"CREATE OR REPLACE DATABASE {database}", f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    mariadb.execute(f"INSERT INTO {database}.t VALUES (1)")


def require_rows(job: Job, count: int) -> None:
    rows = read_changelog(job.lake / job.database / "t", "jsonl")
    assert (check_changelog(rows, ["id"]), len(rows)) == ([], count)


@LOST
def test_a_private_ray_is_started_anew(mariadb: MariaDbServer, tmp_path: Path, process: str) -> None:
    table(mariadb, "renewed")
    job = Job(tmp_path, mariadb, "renewed", ("t",), sink="jsonl", write="changelog")
    run = job.start()
    assert run.wait_for(lambda: bool(told(run, "commit"))), run.story()
    for number in (2, 3):
        kill(psutil.Process(run.pids()["driver"]), process)
        mariadb.execute(f"INSERT INTO renewed.t VALUES ({number})")
        assert run.wait_for(partial(went_on, job, run, number), timeout_s=90), run.story()
    assert run.interrupt() == ExitCode.INTERRUPTED, run.story()
    assert (told(run, "error"), told(run, "not JSON")) == ([], [])
    require_rows(job, 3)


def went_on(job: Job, run: JobRun, number: int) -> bool:
    """Whether Ray was started anew, and row `number` is there; its commit may have been part of the recovery."""
    renewals = [text for text in told(run, "warning") if text.endswith(NEW_RAY)]
    ids = [row["id"] for row in read_changelog(job.lake / job.database / "t", "jsonl")]
    return len(renewals) == number - 1 and number in ids


@pytest.fixture
def address() -> Iterator[str]:
    with one_node() as started:
        yield started


@LOST
def test_the_end_of_a_joined_cluster_is_told_by_name(
    mariadb: MariaDbServer, tmp_path: Path, process: str, address: str
) -> None:
    table(mariadb, "headless")
    ray = f'[ray]\naddress = "{address}"'
    job = Job(tmp_path, mariadb, "headless", ("t",), sink="jsonl", write="changelog", sections=ray)
    run = job.start()
    assert run.wait_for(lambda: bool(told(run, "commit"))), run.story()
    began_s = kill(psutil.Process(), process)
    assert run.wait_for(lambda: bool(told(run, "error")), timeout_s=TOLD_WITHIN_S), run.story()
    assert [one["error"] for one in run.events if one["event"] == "error"] == ["ClusterLostError"]
    assert "Start the cluster again" in told(run, "error")[0]
    assert run.wait(timeout_s=40) == ExitCode.CLUSTER, run.story()
    assert time.monotonic() - began_s < 40
    assert told(run, "not JSON") == []
    mariadb.execute("INSERT INTO headless.t VALUES (2)")
    catch_up(replace(job, local=True))
    require_rows(job, 2)


@pytest.mark.parametrize("lost", ["", "gcs_server", "raylet"], ids=["whole", "after_head", "after_raylet"])
def test_nothing_of_a_private_ray_outlives_a_driver_that_is_killed(
    mariadb: MariaDbServer, tmp_path: Path, lost: str
) -> None:
    """Nor does anything of one that was lost before, and replaced."""
    database = f"outlived_{lost or 'whole'}"
    table(mariadb, database)
    job = Job(tmp_path, mariadb, database, ("t",), sink="jsonl", write="changelog")
    run = job.start()
    assert run.wait_for(lambda: bool(told(run, "commit"))), run.story()
    driver = psutil.Process(run.pids()["driver"])
    processes = driver.children(recursive=True)
    if lost:
        kill(driver, lost)
        mariadb.execute(f"INSERT INTO {database}.t VALUES (2)")
        assert run.wait_for(partial(went_on, job, run, 2), timeout_s=90), run.story()
        processes += driver.children(recursive=True)
    driver.kill()
    _, left = psutil.wait_procs(processes, timeout=60)
    assert [" ".join(one.cmdline())[:120] for one in left] == []
    assert run.wait() == -signal.SIGKILL
