"""Spark's JVM ends in the middle of a run whose rows need it: a new one does its work, and none too often."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from raycdc.errors import ExitCode
from raycdc.sandbox.servers import MariaDbServer
from raycdc.sinks.jvm_end import LOST, MEMORY
from tests.kill.test_hand_over import children, committed
from tests.support.jobs import Job, JobRun, catch_up

pytestmark = [pytest.mark.server, pytest.mark.kill, pytest.mark.long(suite="engines")]

#: A row whose text is so long takes more memory than the least with which Spark starts, and less than the usual.
LONG = 400_000_000
SECTIONS = f"""
[[transform]]
table = '.*\\.words'
projection = "*, length(repeat(word, IF(id < 0, {LONG}, 2))) AS size, upper(word) AS loud"
[spark.conf]
"spark.driver.memory" = "512m"
"""


def job_of(folder: Path, server: MariaDbServer, database: str) -> Job:
    server.execute(
        f"CREATE DATABASE {database}", f"CREATE TABLE {database}.words (id INT PRIMARY KEY, word VARCHAR(20))"
    )
    server.execute("INSERT INTO words SELECT seq, CONCAT('w', seq) FROM seq_1_to_500", database=database)
    return Job(folder, server, database, ["words"], readers=1, sections=SECTIONS)


def jvm(run: JobRun) -> int:
    [pid] = [pid for pid, name in children(run.process.pid) if name == "java"]
    return pid


def more_than(run: JobRun, commits: int) -> bool:
    return len(committed(run)) > commits


def warnings(run: JobRun) -> list[str]:
    return [event["text"] for event in list(run.events) if event["event"] == "warning"]


def rows(job: Job) -> dict[int, str]:
    found = DeltaTable(str(job.lake / job.database / "words")).to_pyarrow_table(columns=["id", "loud"]).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["loud"] for row in found}


def test_a_jvm_that_is_killed_is_started_anew(mariadb: MariaDbServer, tmp_path: Path) -> None:
    job = job_of(tmp_path, mariadb, "jvm_killed")
    run = job.start()
    run.wait_for(lambda: bool(committed(run)))
    for number in (1, 2):
        os.kill(jvm(run), signal.SIGKILL)
        before = len(committed(run))
        mariadb.execute(f"INSERT INTO words VALUES ({1000 + number}, 'w{1000 + number}')", database=job.database)
        run.wait_for(partial(more_than, run, before))
    assert run.interrupt() == ExitCode.INTERRUPTED, run.story()
    assert [text for text in warnings(run) if LOST in text], run.story()
    catch_up(job)
    assert rows(job) == {number: f"W{number}" for number in (*range(1, 501), 1001, 1002)}


def test_a_jvm_that_has_no_memory_is_refused_by_name_and_more_of_it_is_enough(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    job = job_of(tmp_path, mariadb, "jvm_full")
    run = job.start()
    run.wait_for(lambda: bool(committed(run)))
    mariadb.execute("INSERT INTO words VALUES (-1, 'w')", database=job.database)
    assert run.wait() == ExitCode.SINK, run.story()
    assert [text for text in warnings(run) if f"{LOST} {MEMORY}" in text], run.story()
    assert MEMORY in run.log.read_text(), run.story()
    job.sections = SECTIONS.replace("512m", "2g")
    catch_up(job)
    assert rows(job) == {number: f"W{number}" for number in range(1, 501)} | {-1: "W"}
