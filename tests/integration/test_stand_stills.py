"""Where a run stands still is told by name, with what it waits for, and told once more when it goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from tests.support.jobs import Job, JobRun

pytestmark = pytest.mark.server

Event = dict[str, Any]


def stood(run: JobRun, kind: str = "stalled", **keys: str) -> list[Event]:
    events = [event for event in list(run.events) if event["event"] == kind]
    return [event for event in events if all(event[key] == value for key, value in keys.items())]


def job(folder: Path, server: MariaDbServer, database: str, **options: Any) -> Job:
    server.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, secret VARCHAR(20))", "INSERT INTO t VALUES (1, 'hush')", database=database
    )
    options = {"sink": "jsonl", "write": "changelog", **options}
    return Job(folder, server, database, ["t"], local=True, readers=1, pipeline='watchdog = "1s"', **options)


@contextmanager
def locked(server: MariaDbServer, table: str) -> Iterator[Callable[[], None]]:
    """Nobody reads the table until the function is called."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {table} WRITE")
        yield lambda: cursor.execute("UNLOCK TABLES")


def test_a_chunk_whose_table_is_locked_at_the_source_names_its_statement(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    table = f"{mariadb_database}.t"
    pipeline = job(tmp_path, mariadb, mariadb_database)
    run = pipeline.start("--until", "caught-up", failpoints="before_select=stop")
    run.wait_for(lambda: pipeline.stopped_at("before_select"))
    with locked(mariadb, table) as unlock:
        run.process.send_signal(signal.SIGCONT)
        run.wait_for(lambda: len(stood(run, stage="chunk")) > 1)
        unlock()
    assert run.wait() == 0, run.story()
    first, second = stood(run, stage="chunk")[:2]
    assert (first["table"], first["reader"]) == (table, 0)
    assert "SELECT" in first["note"]
    assert "waits for the server's answer" in first["text"]
    assert second["seconds"] >= 2 * first["seconds"] - 1
    assert stood(run, "resumed", stage="chunk", table=table)


def test_a_target_that_somebody_locked_names_the_table_and_the_statement(
    mariadb: MariaDbServer, mariadb_database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    table = f"{mariadb_database}.t"
    with postgres.fresh_database() as name:
        keys = f'url = "jdbc:{postgres.url(name)}"\nuser = "{postgres.user}"\npassword = "{postgres.password}"'
        pipeline = job(tmp_path, mariadb, mariadb_database, sink="jdbc", write="upsert", sink_keys=keys)
        run = pipeline.start()
        run.wait_for(lambda: any(event["event"] == "commit" for event in list(run.events)))
        with postgres.connect(name) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(f'LOCK TABLE "{mariadb_database}"."t" IN ACCESS EXCLUSIVE MODE')
            mariadb.execute("INSERT INTO t VALUES (2, 'hush')", database=mariadb_database)
            run.wait_for(lambda: bool(stood(run, table=table)))
            cursor.execute("ROLLBACK")
        run.wait_for(lambda: bool(stood(run, "resumed", table=table)))
        assert run.interrupt() in (0, 130), run.story()
    assert stood(run, table=table)[0]["reader"] is None
    assert "hush" not in run.story()
    assert not any("hush" in event["text"] for event in stood(run))


def test_a_server_that_is_paused_is_named_by_the_chunk_that_waits_for_it(tmp_path: Path) -> None:
    with MariaDbServer() as server, server.fresh_database() as database:
        pipeline = job(tmp_path, server, database)
        run = pipeline.start("--until", "caught-up", failpoints="before_select=stop")
        run.wait_for(lambda: pipeline.stopped_at("before_select"))
        os.kill(server.pid, signal.SIGSTOP)
        run.process.send_signal(signal.SIGCONT)
        run.wait_for(lambda: bool(stood(run, stage="chunk")))
        os.kill(server.pid, signal.SIGCONT)
        assert run.wait() == 0, run.story()
        assert stood(run, stage="chunk", table=f"{database}.t")
        assert stood(run, "resumed", stage="chunk")


def test_an_idle_log_and_a_snapshot_that_keeps_to_its_rate_stand_nowhere(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    pipeline = job(tmp_path, mariadb, mariadb_database, snapshot="rows_per_second = 1, connections = 1")
    mariadb.execute("INSERT INTO t VALUES (2, 'a'), (3, 'b'), (4, 'c')", database=mariadb_database)
    run = pipeline.start()
    run.wait_for(lambda: any(event["event"] == "commit" for event in list(run.events)))
    progress = len(run.events)
    run.wait_for(lambda: len(run.events) > progress + 8)
    assert run.interrupt() in (0, 130), run.story()
    # A busy machine may answer nobody for long, which is no stand-still of tables.
    standing = [event for event in stood(run) if event["stage"] != "enumerator"]
    assert not standing, standing
