"""A run begins in process and hands over to Ray's actors under a workload; killed at each step, nothing is lost."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from raycdc.driver.engine_promotion import STAYS
from raycdc.model.engines import EngineName, EngineRows
from raycdc.sandbox.compare import check_changelog, read_changelog
from raycdc.sandbox.servers import MariaDbServer
from raycdc.sandbox.servers.private import wait_until
from raycdc.sandbox.shop import create_shop
from tests.kill.test_kills import SIZE, TABLES, workload
from tests.support.jobs import RUN_TIMEOUT_S, Job, JobRun, catch_up, process_state, rows_by

pytestmark = [pytest.mark.server, pytest.mark.kill]


def job_of(folder: Path, server: MariaDbServer, database: str) -> Job:
    with server.connect() as connection:
        create_shop(connection, database, SIZE)
    return Job(folder, server, database, TABLES, sink="jsonl", write="changelog", readers=1, engines="auto")


def require_exact(job: Job) -> None:
    job.local = True
    catch_up(job)
    for table in TABLES:
        assert check_changelog(read_changelog(job.lake / job.database / table, "jsonl"), ["id"]) == []


def committed(run: JobRun) -> list[int]:
    """The places, among the events, of commits with rows."""
    return [place for place, event in enumerate(list(run.events)) if event["event"] == "commit" and event["rows"]]


def handed_over(run: JobRun) -> int | None:
    """The place, among the events, where readers were named first."""
    named = (n for n, event in enumerate(list(run.events)) if event["event"] == "started" and event["pids"]["readers"])
    return next(named, None)


def is_followed_by_commits(run: JobRun) -> bool:
    """Whether rows were committed after readers were named."""
    at = handed_over(run)
    return at is not None and committed(run)[-1] > at


def test_epochs_come_from_the_driver_and_then_from_actors(mariadb: MariaDbServer, tmp_path: Path) -> None:
    job = job_of(tmp_path, mariadb, "handed")
    with workload(mariadb, "handed", seed=1):
        run = job.start()
        # The first epoch of an actor's rows may be committed just before the actors are named.
        run.wait_for(lambda: EngineName.RAY in rows_by(run).read and is_followed_by_commits(run))
        at = handed_over(run)
        assert at is not None, run.story()
        assert committed(run)[0] < at < committed(run)[-1], run.story()
        pids = run.pids()
        assert pids["driver"] not in (pids["enumerator"], *pids["readers"]), run.story()
        assert run.interrupt() == 130, run.story()
    require_both_readers(run)
    require_exact(job)


def require_both_readers(run: JobRun) -> None:
    """An `AssertionError` unless each epoch says rightly who read it, and the last line sums that up."""
    kinds = [event["event"] for event in run.events]
    over = kinds.index("engines_promoted")
    commits = [(place, event) for place, event in enumerate(run.events) if event["event"] == "commit" and event["rows"]]
    assert {*commits[0][1]["rows_read_by"]} == {"driver"}, run.story()
    assert {*commits[-1][1]["rows_read_by"]} == {"ray"}, run.story()
    # What this process had sealed is committed after the hand-over, too, but nothing of the actors' before.
    assert {reader for place, event in commits if place < over for reader in event["rows_read_by"]} == {"driver"}
    for _, event in commits:
        assert sum(event["rows_read_by"].values()) == sum(event["rows_written_by"].values()) == event["rows"]
    total, end = rows_by(run), EngineRows.from_json(run.events[-1])
    assert kinds[-1] == "stopped"
    assert end == total
    assert set(total.read) == {EngineName.DRIVER, EngineName.RAY}
    started = [event for event in run.events if event["event"] == "started"]
    assert started[0]["engines_due_s"] > 0
    assert (started[0]["read_by"], started[0]["written_by"]) == ("driver", "driver")
    assert "engines_due_s" not in started[-1]
    assert (started[-1]["read_by"], started[-1]["written_by"]) == ("ray", "spark")


@pytest.mark.long(suite="engines")
@pytest.mark.parametrize("point", ["before_hand_over", "in_hand_over", "after_hand_over"])
def test_a_run_is_killed_at_each_step_of_its_hand_over(mariadb: MariaDbServer, tmp_path: Path, point: str) -> None:
    job = job_of(tmp_path, mariadb, f"handed_{point}")
    with workload(mariadb, job.database, seed=2):
        assert job.start(failpoints=f"{point}=kill").wait() == -signal.SIGKILL
        run = job.start()
        run.wait_for_start()
        assert run.interrupt() == 130, run.story()
    require_exact(job)


@pytest.mark.long(suite="engines")
@pytest.mark.parametrize("engine", ["gcs_server", "java"])
def test_an_engine_is_killed_between_its_start_and_the_hand_over(
    mariadb: MariaDbServer, tmp_path: Path, engine: str
) -> None:
    """The run goes on in its own process, starts Ray and Spark again, and hands over to these."""
    job = job_of(tmp_path, mariadb, f"handed_without_{engine}")
    with workload(mariadb, job.database, seed=3):
        run = job.start(failpoints="before_hand_over=stop")
        run.wait_for(lambda: job.stopped_at("before_hand_over"))
        [killed] = [pid for pid, name in children(run.process.pid) if name == engine]
        os.kill(killed, signal.SIGKILL)
        run.process.send_signal(signal.SIGCONT)
        run.wait_for(lambda: any(event["event"] == "engines_promoted" for event in list(run.events)))
        at = len(run.events)
        run.wait_for(lambda: bool(committed(run)) and committed(run)[-1] > at)
        assert run.interrupt() == 130, run.story()
    warnings = [event["text"] for event in run.events if event["event"] == "warning"]
    assert [text for text in warnings if STAYS in text], run.story()
    require_exact(job)


@pytest.mark.long(suite="engines")
def test_a_run_that_ends_while_ray_and_spark_come_up_leaves_nothing_behind(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    """Neither a process nor the settings of Spark, which hold secrets."""
    job = job_of(tmp_path, mariadb, "handed_to_nobody")
    with workload(mariadb, job.database, seed=4):
        run = job.start()
        run.wait_for(lambda: {"gcs_server", "java"} <= {name for _, name in children(run.process.pid)})
        left = [pid for pid, name in children(run.process.pid) if name in ("gcs_server", "raylet", "java")]
        assert run.interrupt() == 130, run.story()
    wait_until(lambda: not any(map(is_there, left)), timeout_s=RUN_TIMEOUT_S, what=f"the end of {left}")
    assert not (job.state / "spark" / "settings.properties").exists()
    assert not [event for event in run.events if event["event"] == "engines_promoted"]
    require_exact(job)


def children(pid: int) -> list[tuple[int, str]]:
    """The processes that `pid` has started, and theirs: number and name."""
    found: list[tuple[int, str]] = []
    parents = [pid]
    while parents:
        of = parents.pop()
        for listed in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                name, _, rest = listed.read_text().partition("(")[2].rpartition(")")
                if int(rest.split()[1]) == of and rest.split()[0] != "Z":
                    found.append((int(listed.parent.name), name))
                    parents.append(int(listed.parent.name))
    return found


def is_there(pid: int) -> bool:
    """Whether the process lives."""
    return process_state(pid) not in ("", "Z")
