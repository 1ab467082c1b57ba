"""``raycdc backfill``: some rows are read again beside the log and put over those of the target, and that is all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.errors import ExitCode
from raycdc.sandbox.servers import MariaDbServer, MongoDb, PostgresServer
from tests.e2e.test_jdbc import sink_keys
from tests.e2e.test_live_tables import commands
from tests.e2e.verified import counts, require_verified, verified, written_to
from tests.support.comparing import lake_is_equal
from tests.support.forked_commands import completed
from tests.support.jobs import CollectionJob, Job, catch_up
from tests.support.table_commands import listed, tables_command

pytestmark = pytest.mark.server

UNLOGGED = "SET SESSION sql_log_bin = 0"


def environment(job: Job) -> dict[str, str]:
    return {**os.environ, "RAYCDC_TEST_PASSWORD": getattr(job.server, "cdc_user", "")}


def backfilled(job: Job, table: str, where: str) -> subprocess.CompletedProcess[str]:
    words = ("backfill", str(job.configuration()), f"{job.database}.{table}", "--where", where)
    return completed(words, environment=environment(job), folder=job.folder)


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
    run.wait_for_rows(lambda: lake_is_equal(job, "a"))
    with_changes = ("UPDATE a SET n = n + 1 WHERE id BETWEEN 5 AND 8", "REPLACE INTO a VALUES (4000, 1, 'new')")
    mariadb.execute(UNLOGGED, "UPDATE a SET n = -1 WHERE id <= 600 OR id = 2999", database=mariadb_database)
    assert counts(verified(job)[1]["a"]) == {"changed": 601}

    wrong = backfilled(job, "a", "no_such_column = 1")
    assert wrong.returncode == ExitCode.CONFIG
    assert "The server takes 'no_such_column = 1' for no condition of" in wrong.stderr
    assert "parentheses of" in backfilled(job, "a", "1 = 1) OR (1 = 1").stderr + backfilled(job, "a", "id IN (1").stderr

    with written_to(job, lambda: with_changes, pause_s=0.3):
        done = backfilled(job, "a", "n = -1 AND name LIKE 'it''s %'")
        assert done.returncode == 0, done.stderr
        assert "Nothing is deleted" in done.stdout
        assert "rows that were read again" in done.stdout
        where = ("--where", "id BETWEEN 5 AND 8", "--wait", "600")
        again = tables_command(job, "resnapshot", f"{mariadb_database}.a", *where)
        assert "rows that were read again" in again
    run.wait_for_rows(lambda: lake_is_equal(job, "a"))
    require_verified(job)
    told = [(entry["action"], entry["state"]) for entry in commands(job)]
    assert told[-2:] == [("backfill", "done"), ("resnapshot", "done")]
    assert {state for _, state in told[:-2]} == {"refused"}
    assert {name: entry["phase"] for name, entry in listed(job).items()} == {f"{mariadb_database}.a": "stream"}
    assert run.interrupt() in (0, 130)


@pytest.mark.long(suite="stories")
def test_a_table_that_is_altered_while_some_of_its_rows_are_read_again(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    """Chunks of both shapes reach the target in the shape that it has, and what they read is not lost or put back."""
    make(mariadb, mariadb_database)
    job = Job(tmp_path, mariadb, mariadb_database, ("a",), local=True, epoch_interval="200ms", chunk_rows=200)
    catch_up(job)
    mariadb.execute(UNLOGGED, "UPDATE a SET n = -1 WHERE id <= 2000", database=mariadb_database)
    job.source = "rows_per_second = 200"
    run = job.start()
    run.wait_for_start()
    tables_command(job, "resnapshot", f"{mariadb_database}.a", "--where", "n = -1", "--wait", "0")

    def rows_again() -> set[int]:
        """The numbers of rows that the run said it had read again."""
        events = [event for event in list(run.events) if event["event"] == "progress"]
        return {table.get("backfill_rows", 0) for event in events for table in event["tables"]}

    assert run.wait_for(lambda: max(rows_again(), default=0) > 0), run.story()
    changes = ("UPDATE a SET n = n + 1 WHERE id IN (1, 1999)", "UPDATE a SET name = 'both' WHERE id IN (1, 2000)")
    mariadb.execute("ALTER TABLE a ADD COLUMN first INT NOT NULL DEFAULT 7 FIRST", *changes, database=mariadb_database)
    assert max(rows_again()) < 2000, "it goes on"
    mariadb.execute("ALTER TABLE a DROP COLUMN name", "DELETE FROM a WHERE id = 3", database=mariadb_database)
    assert run.wait_for(lambda: commands(job)[-1]["state"] == "done"), run.story()
    assert run.interrupt() in (0, 130), run.story()
    job.source = ""
    catch_up(job)
    require_verified(job)


def repaired(job: Job) -> str:
    """What ``raycdc verify --repair`` says."""
    words = ("verify", str(job.configuration()), "--repair")
    done = completed(words, environment=environment(job), folder=job.folder)
    assert done.returncode == ExitCode.DIFFERENT, done.stderr
    return done.stdout


@pytest.mark.long(suite="stories")
def test_a_running_pipeline_repairs_a_database_by_its_keys_while_rows_change(
    mariadb: MariaDbServer, mariadb_database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    make(mariadb, mariadb_database)
    with postgres.fresh_database() as home, postgres.connect(home) as connection:
        keys = sink_keys(postgres, home)
        job = Job(tmp_path, mariadb, mariadb_database, ("a",), sink="jdbc", sink_keys=keys, local=True)
        catch_up(job)
        target = f'"{mariadb_database}".a'
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {target} SET n = -7 WHERE id IN (100, 2000)")
            cursor.execute(f"DELETE FROM {target} WHERE id BETWEEN 300 AND 304")
            cursor.execute(f"INSERT INTO {target} VALUES (-1, 1, 'nobody'), (9000, 2, 'nobody')")
        connection.commit()
        run = job.start()
        run.wait_for_start()
        with written_to(job, lambda: ("UPDATE a SET n = n + 1 WHERE id BETWEEN 10 AND 20",), pause_s=0.02):
            said = repaired(job)
        assert "The rows of 9 keys are read again" in said
        run.wait_for_rows(lambda: verified(job)[1]["a"]["verdict"] == "equal")
        assert run.interrupt() in (0, 130)
        require_verified(job)


@pytest.mark.long(suite="stories")
def test_documents_are_read_again_by_a_filter_and_by_their_keys(
    mongodb: MongoDb, mongodb_database: str, tmp_path: Path
) -> None:
    nobody: Any = None
    job = CollectionJob(tmp_path, nobody, mongodb_database, ("orders",), local=True, uri=mongodb.uri, startup="initial")
    with mongodb.client() as client:
        orders = client[mongodb_database].orders
        orders.insert_many([{"name": f"n{number}", "n": number} for number in range(200)])
        catch_up(job)
        append_nobodys(job)
        wrong = backfilled(job, "orders", '{"n": {"$nonsense": 1}}')
        assert wrong.returncode == ExitCode.CONFIG
        assert "for no filter of" in wrong.stderr
        assert "is no JSON" in backfilled(job, "orders", "n > 3").stderr
        asked = backfilled(job, "orders", '{"n": {"$lt": 50}}')
        assert asked.returncode == 0, asked.stderr
        assert "It takes effect at the next start" in asked.stdout
        catch_up(job)
        assert counts(verified(job)[1]["orders"]) == {"extra": 1}
        assert "The rows of 1 key are read again" in repaired(job)
        catch_up(job)
        require_verified(job, rows=200)


def append_nobodys(job: CollectionJob) -> None:
    """A document that the source has not."""
    folder = job.lake / job.database / "orders"
    schema = pa.schema(DeltaTable(folder).schema().to_arrow())
    row = {"_id": "0" * 24, "name": "nobody", "n": 1}
    write_deltalake(folder, pa.Table.from_pylist([row], schema=schema), mode="append")
