"""A run begins in process and hands over to Ray's actors under a workload; killed at each step, nothing is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from raycdc.testing.changelog import check_changelog, read_changelog
from raycdc.testing.jobs import Job, Run, catch_up
from raycdc.testing.servers import MariaDbServer
from raycdc.testing.shop import create_shop
from tests.kill.test_kills import SIZE, TABLES, workload

pytestmark = [pytest.mark.server, pytest.mark.kill]


def job_of(folder: Path, server: MariaDbServer, database: str) -> Job:
    with server.connect() as connection:
        create_shop(connection, database, SIZE)
    return Job(folder, server, database, TABLES, sink="jsonl", write="changelog", readers=1, start_in_process=True)


def require_exact(job: Job) -> None:
    job.local = True
    catch_up(job)
    for table in TABLES:
        assert check_changelog(read_changelog(job.lake / job.database / table, "jsonl"), ["id"]) == []


def committed(run: Run) -> list[int]:
    """The places, among the events, of commits with rows."""
    return [place for place, event in enumerate(list(run.events)) if event["event"] == "commit" and event["rows"]]


def handed_over(run: Run) -> int | None:
    """The place, among the events, where readers were named first."""
    named = (n for n, event in enumerate(list(run.events)) if event["event"] == "started" and event["pids"]["readers"])
    return next(named, None)


def test_epochs_come_from_the_driver_and_then_from_actors(mariadb: MariaDbServer, tmp_path: Path) -> None:
    job = job_of(tmp_path, mariadb, "handed")
    with workload(mariadb, "handed", seed=1):
        run = job.start()
        run.wait_for(lambda: bool((at := handed_over(run)) and committed(run) and committed(run)[-1] > at))
        at = handed_over(run)
        assert at is not None, run.story()
        assert committed(run)[0] < at < committed(run)[-1], run.story()
        pids = run.pids()
        assert pids["driver"] not in (pids["enumerator"], *pids["readers"]), run.story()
        assert run.interrupt() == 130, run.story()
    require_exact(job)


@pytest.mark.long
@pytest.mark.parametrize("point", ["before_hand_over", "in_hand_over", "after_hand_over"])
def test_a_run_is_killed_at_each_step_of_its_hand_over(mariadb: MariaDbServer, tmp_path: Path, point: str) -> None:
    job = job_of(tmp_path, mariadb, f"handed_{point}")
    with workload(mariadb, job.database, seed=2):
        assert job.start(failpoints=f"{point}=kill").wait() == -signal.SIGKILL
        run = job.start()
        run.wait_for_start()
        assert run.interrupt() == 130, run.story()
    require_exact(job)
