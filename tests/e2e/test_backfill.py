"""``raycdc backfill``: some rows are read again beside the log and put over those of the target, and that is all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from raycdc.errors import ExitCode
from raycdc.testing.compare import compare_lake
from raycdc.testing.forked_commands import completed
from raycdc.testing.jobs import Job
from raycdc.testing.servers import MariaDbServer
from tests.e2e.test_live_tables import commands
from tests.e2e.test_parked_tables import listed, tables_command
from tests.e2e.verified import counts, require_equal, verified, written_to

pytestmark = pytest.mark.server

UNLOGGED = "SET SESSION sql_log_bin = 0"


def backfilled(job: Job, table: str, where: str) -> subprocess.CompletedProcess[str]:
    words = ("backfill", str(job.configuration()), f"{job.database}.{table}", "--where", where)
    return completed(words, environment=os.environ, folder=job.folder)


def is_equal(job: Job, table: str) -> bool:
    with job.server.connect() as connection:
        return compare_lake(connection, job.lake, [(job.database, table)])[0].equal


def make(server: MariaDbServer, database: str) -> None:
    server.execute(
        "CREATE TABLE a (id INT PRIMARY KEY, n INT, name VARCHAR(30))",
        "INSERT INTO a SELECT seq, seq % 7, CONCAT('it''s ', seq) FROM seq_1_to_3000",
        "CREATE TABLE keyless (n INT)",
        database=database,
    )


def test_rows_that_no_log_told_of_reach_a_lake_while_others_change(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    make(mariadb, mariadb_database)
    job = Job(tmp_path, mariadb, mariadb_database, ("a",), local=True, epoch_interval="200ms")
    run = job.start()
    run.wait_for_rows(lambda: is_equal(job, "a"))
    with_changes = ("UPDATE a SET n = n + 1 WHERE id BETWEEN 5 AND 8", "REPLACE INTO a VALUES (4000, 1, 'new')")
    mariadb.execute(UNLOGGED, "UPDATE a SET n = -1 WHERE id <= 600 OR id = 2999", database=mariadb_database)
    assert counts(verified(job)[1]["a"]) == {"changed": 601}

    wrong = backfilled(job, "a", "no_such_column = 1")
    assert wrong.returncode == ExitCode.CONFIG
    assert "The server takes 'no_such_column = 1' for no condition of" in wrong.stderr
    assert "parentheses of" in backfilled(job, "a", "1 = 1) OR (1 = 1").stderr + backfilled(job, "a", "id IN (1").stderr

    with written_to(job, lambda: with_changes, pause_s=0.01):
        done = backfilled(job, "a", "n = -1 AND name LIKE 'it''s %'")
        assert done.returncode == 0, done.stderr
        assert "Nothing is deleted" in done.stdout
        assert "rows that were read again" in done.stdout
        again = tables_command(job, "resnapshot", f"{mariadb_database}.a", "--where", "id BETWEEN 5 AND 8")
        assert "rows that were read again" in again
    run.wait_for_rows(lambda: is_equal(job, "a"))
    require_equal(job)
    told = [(entry["action"], entry["state"]) for entry in commands(job)]
    assert told[-2:] == [("backfill", "done"), ("resnapshot", "done")]
    assert {state for _, state in told[:-2]} == {"refused"}
    assert {name: entry["phase"] for name, entry in listed(job).items()} == {f"{mariadb_database}.a": "stream"}
    assert run.interrupt() in (0, 130)
