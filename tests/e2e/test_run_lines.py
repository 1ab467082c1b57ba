"""Every line of ``raycdc run --json`` is as its JSON Schema says, in runs of several kinds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import ExitCode
from raycdc.observe.events.lines import check_line
from raycdc.sandbox.servers import MariaDbServer, MongoDb
from tests.run_lines import known_tables
from tests.support.jobs import CollectionJob, Job, JobRun
from tests.support.table_commands import tables_command

pytestmark = pytest.mark.server


def check(run: JobRun) -> set[str]:
    """The kinds of its lines, each of which is as the schema says."""
    for line in run.events:
        check_line(json.dumps(line))
    return {line["event"] for line in run.events}


def test_lines_of_tables(mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path) -> None:
    mariadb.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
        "INSERT INTO t SELECT seq, seq FROM seq_1_to_600",
        "CREATE TABLE keyless (a INT)",
        database=mariadb_database,
    )
    job = Job(tmp_path, mariadb, mariadb_database, ("t", "keyless"), local=True, chunk_rows=100)
    run = job.start()
    run.wait_for_rows(lambda: sum(line["rows"] for line in list(run.events) if line["event"] == "commit") >= 600)
    mariadb.execute("UPDATE t SET a = -a WHERE id < 10", database=mariadb_database)
    followed, parked = (f"{mariadb_database}.{name}" for name in ("t", "keyless"))
    read = {"phase": "stream", "snapshot_rows": 600}
    run.wait_for(lambda: known_tables(run.events).get(parked, {}).get("phase") == "parked")
    run.wait_for(lambda: known_tables(run.events).get(followed, {}).items() >= read.items())
    tables_command(job, "pause", followed)
    run.wait_for(lambda: known_tables(run.events)[followed]["phase"] == "paused")
    assert run.interrupt() == ExitCode.INTERRUPTED
    assert check(run) >= {"started", "progress", "commit", "command", "parked", "stopped"}
    assert known_tables(run.events).keys() == {followed, parked}
    job.pipeline = 'on_existing = "nobody knows"'
    failed = job.start()
    assert failed.wait() == ExitCode.CONFIG
    assert check(failed) == {"error"}


def test_lines_of_collections(mongodb: MongoDb, mongodb_database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[mongodb_database].c.insert_many([{"_id": number, "a": number} for number in range(200)])
    nobody: Any = None
    job = CollectionJob(
        tmp_path,
        nobody,
        mongodb_database,
        ("c",),
        local=True,
        uri=mongodb.uri,
        startup="initial",
    )
    run = job.start("--until", "caught-up")
    assert run.wait() == ExitCode.DONE, run.story()
    assert check(run) >= {"started", "progress", "commit", "caught_up"}
