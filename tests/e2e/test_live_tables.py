"""``raycdc tables`` beside ``raycdc run``: commands act on the running job, once, and the other tables go on."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.driver.command_queue import CommandQueue, CommandState
from raycdc.errors import ExitCode
from raycdc.sandbox.compare import read_changelog, read_delta
from raycdc.sandbox.servers import MariaDbServer, MotoServer
from raycdc.source.tables.table_commands import TableAction, TableCommand
from raycdc.state.store import CheckpointStore
from tests.e2e.test_parked_tables import rows_of
from tests.e2e.verified import verified
from tests.support.comparing import lake_is_equal
from tests.support.jobs import Job, JobRun
from tests.support.servers.store_proxy import StoreProxy
from tests.support.table_commands import ask, listed, tables_command

pytestmark = pytest.mark.server

DATABASE = "live"


def make(server: MariaDbServer, *tables: str) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    for table in tables:
        make_table(server, table)


def make_table(server: MariaDbServer, table: str) -> None:
    server.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT)",
        f"INSERT INTO {table} VALUES (1, 1), (2, 2), (3, 3)",
        database=DATABASE,
    )


def commands(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tables_command(job, "commands", "--json").splitlines()]


def left(job: Job, table: str) -> dict[int, int]:
    """The rows that the changelog leaves."""
    return {key: row["n"] for key, row in rows_of(job, table).items()}


def wait_equal(run: JobRun, job: Job, *tables: str) -> None:
    run.wait_for_rows(lambda: all(lake_is_equal(job, table) for table in tables))


def test_a_running_pipeline_pauses_resumes_reads_again_removes_and_adds_tables(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "a", "b")
    job = Job(tmp_path, mariadb, DATABASE, ("a", "b"), local=True)
    run = job.start()
    wait_equal(run, job, "a", "b")

    assert "is paused" in tables_command(job, "pause", f"{DATABASE}.a")
    mariadb.execute("UPDATE a SET n = 10", "UPDATE b SET n = 10", database=DATABASE)
    wait_equal(run, job, "b")
    assert {row["n"] for row in read_delta(job.lake / DATABASE / "a").to_pylist()} == {1, 2, 3}
    assert "goes on" in tables_command(job, "resume", f"{DATABASE}.a")
    wait_equal(run, job, "a")

    assert "no longer followed" in tables_command(job, "remove", f"{DATABASE}.b")
    mariadb.execute("UPDATE a SET n = 20", "UPDATE b SET n = 20", database=DATABASE)
    wait_equal(run, job, "a")
    assert not lake_is_equal(job, "b")
    assert "is added" in tables_command(job, "add", f"{DATABASE}.b")
    wait_equal(run, job, "b")

    unknown = ask(job, "resnapshot", f"{DATABASE}.nowhere")
    assert unknown.returncode == 2
    assert f"{DATABASE}.nowhere is not one of the pipeline's tables" in unknown.stderr
    assert "is read again" in tables_command(job, "resnapshot", f"{DATABASE}.a")
    mariadb.execute("UPDATE a SET n = 30", "DELETE FROM b WHERE id = 2", database=DATABASE)
    wait_equal(run, job, "a", "b")

    told = [(entry["action"], entry["state"]) for entry in commands(job)]
    assert told == [
        ("pause", "done"),
        ("resume", "done"),
        ("remove", "done"),
        ("add", "done"),
        ("resnapshot", "refused"),
        ("resnapshot", "done"),
    ]
    assert len([event for event in run.events if event["event"] == "command"]) == len(told)
    assert run.interrupt() in (0, 130)


@pytest.mark.long(suite="stories")
def test_a_table_that_does_not_exist_is_not_said_to_be_added_and_what_is_left_out_is_no_fault(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "a", "b")
    job = Job(tmp_path, mariadb, DATABASE, ("a", "b", "nope.*"), local=True, epoch_interval="200ms")
    run = job.start()
    wait_equal(run, job, "a", "b")
    missing = ask(job, "add", f"{DATABASE}.nope")
    assert missing.returncode == ExitCode.DATA, missing.stdout
    assert f"{DATABASE}.nope was not read: " in missing.stderr
    assert "is no longer followed" in tables_command(job, "remove", f"{DATABASE}.b")
    assert run.interrupt() in (0, 130)
    code, lines = verified(job)
    assert (code, {table: line["verdict"] for table, line in lines.items()}) == (
        ExitCode.DONE,
        {"a": "equal", "b": "left out", "nope": "left out"},
    )
    code, lines = verified(job, f"{DATABASE}.b")
    assert (code, lines["b"]["verdict"]) == (ExitCode.UNVERIFIED, "left out")


def test_a_parked_table_is_read_again_without_a_stop(mariadb: MariaDbServer, tmp_path: Path) -> None:
    make(mariadb, "a", "b")
    job = Job(tmp_path, mariadb, DATABASE, ("a", "b"), local=True)
    run = job.start()
    wait_equal(run, job, "a", "b")
    # Not in the log: from here on its rows have a column that nobody told of.
    mariadb.execute("SET SESSION sql_log_bin = 0", "ALTER TABLE b ADD extra INT", database=DATABASE)
    mariadb.execute("UPDATE b SET n = 4", database=DATABASE)
    run.wait_for(lambda: any(event["event"] == "parked" for event in run.events))
    mariadb.execute("UPDATE a SET n = 4", database=DATABASE)
    wait_equal(run, job, "a")
    assert "is read again" in tables_command(job, "resnapshot", f"{DATABASE}.b")
    mariadb.execute("UPDATE b SET extra = 5", database=DATABASE)
    wait_equal(run, job, "a", "b")
    phases = {name: table["phase"] for name, table in listed(job).items()}
    assert phases == {
        f"{DATABASE}.a": "stream",
        f"{DATABASE}.b": "stream",
    }
    assert run.interrupt() in (0, 130)


def test_tables_of_one_target_are_read_again_together_without_a_stop(mariadb: MariaDbServer, tmp_path: Path) -> None:
    make(mariadb, "a", "b")
    mariadb.execute("UPDATE b SET id = id + 10", database=DATABASE)
    routes = f"""[[route]]\ntable = '{DATABASE}\\.[ab]'\nto = "lake.both"\n"""
    job = Job(tmp_path, mariadb, DATABASE, ("a", "b"), local=True, sections=routes)

    def keys() -> list[int]:
        target = job.lake / "lake" / "both"
        return sorted(read_delta(target).column("id").to_pylist()) if target.exists() else []

    run = job.start()
    run.wait_for_rows(lambda: keys() == [1, 2, 3, 11, 12, 13])
    assert "are read again together" in tables_command(job, "resnapshot", f"{DATABASE}.a")
    mariadb.execute("INSERT INTO b VALUES (14, 4)", "DELETE FROM a WHERE id = 1", database=DATABASE)
    run.wait_for_rows(lambda: keys() == [2, 3, 11, 12, 13, 14])
    assert {table["phase"] for table in listed(job).values()} == {"stream"}
    assert run.interrupt() in (0, 130)


def test_a_target_that_was_deleted_beside_the_run_is_made_anew_without_a_stop(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "a", "b", "c", "d")
    job = Job(tmp_path, mariadb, DATABASE, ("a", "b", "c", "d"), local=True)
    run = job.start()
    wait_equal(run, job, "a", "b", "c", "d")
    # As a parked table's way out has it: the target is deleted, then the table read again.
    shutil.rmtree(job.lake / DATABASE / "b")
    mariadb.execute("UPDATE b SET n = 9", database=DATABASE)
    run.wait_for(lambda: any(event["event"] == "parked" for event in run.events))
    assert "is read again" in tables_command(job, "resnapshot", f"{DATABASE}.b")
    wait_equal(run, job, "b")
    # Of tables that begin again by themselves nobody was told that their targets are gone.
    tables_command(job, "remove", f"{DATABASE}.c")
    mariadb.execute("DROP TABLE d", "UPDATE a SET n = 5", database=DATABASE)
    wait_equal(run, job, "a")
    for table in ("c", "d"):
        shutil.rmtree(job.lake / DATABASE / table)
    tables_command(job, "add", f"{DATABASE}.c")
    make_table(mariadb, "d")
    mariadb.execute(*(f"UPDATE {table} SET n = n + 1" for table in "abcd"), database=DATABASE)
    wait_equal(run, job, "a", "b", "c", "d")
    parked = [event for event in run.events if event["event"] == "parked" and event["phase"] == "parked"]
    # A table that is added may be on its way to being read again for a moment.
    assert {event["table"] for event in parked if not event["again"]} == {f"{DATABASE}.b"}
    assert {table["phase"] for table in listed(job).values()} == {"stream"}
    assert run.interrupt() in (0, 130)


def test_a_new_snapshot_that_its_target_refuses_is_told_and_replaces_it_by_one_command(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "a", "b")
    job = Job(tmp_path, mariadb, DATABASE, ("a", "b"), local=True)
    run = job.start()
    wait_equal(run, job, "a", "b")
    DeltaTable(str(job.lake / DATABASE / "b")).alter.add_constraint({"small": "id < 4"})
    mariadb.execute("INSERT INTO b VALUES (4, 4)", "INSERT INTO a VALUES (4, 4)", database=DATABASE)
    run.wait_for(lambda: any(event["event"] == "parked" for event in run.events))
    wait_equal(run, job, "a")

    def counted() -> int:
        return sum(e["tables"].get(f"{DATABASE}.b", 0) for e in run.events if e["event"] == "commit")

    assert counted() == 3
    needless = ask(job, "resnapshot", f"{DATABASE}.a", "--replace")
    assert (needless.returncode, "is not parked, so there is nothing to replace" in needless.stderr) == (2, True)
    refused = ask(job, "resnapshot", f"{DATABASE}.b")
    assert refused.returncode == 4, refused.stdout
    assert f"{DATABASE}.b was read again, and is parked" in refused.stderr
    assert f"raycdc tables resnapshot CONFIG {DATABASE}.b --replace" in refused.stderr
    assert "is read again: waiting up to 60 s until its target has that" in refused.stdout
    # Where the target was emptied in an epoch before that of the rows, it took that step, which is a row.
    told = [e for e in run.events if e["event"] == "schema_changed" and e["table"] == f"{DATABASE}.b"]
    assert counted() == 3 + sum("truncate_table" in e["changes"] for e in told)

    mended = tables_command(job, "resnapshot", f"{DATABASE}.b", "--replace")
    assert "its target is replaced, with all that is in it. Its target has the result" in mended
    wait_equal(run, job, "a", "b")
    mariadb.execute("INSERT INTO b VALUES (5, 5)", database=DATABASE)
    wait_equal(run, job, "b")
    assert [entry["state"] for entry in commands(job)] == ["refused", "parked", "done"]
    assert {table["phase"] for table in listed(job).values()} == {"stream"}
    assert run.interrupt() in (0, 130)


def test_tables_that_are_made_or_renamed_into_a_pattern_are_followed_and_told_of_once(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "a", "other")
    job = Job(tmp_path, mariadb, DATABASE, ("a", "new_.*"), local=True)
    run = job.start()
    wait_equal(run, job, "a")
    # What a first run begins with is what it tells of first.
    run.wait_for(lambda: any(e["event"] == "progress" and e["tables"] for e in list(run.events)))
    make_table(mariadb, "new_1")
    mariadb.execute("RENAME TABLE other TO new_2", database=DATABASE)
    wait_equal(run, job, "new_1", "new_2")
    told = [f"{DATABASE}.new_1", f"{DATABASE}.new_2"]
    run.wait_for(lambda: [e["table"] for e in run.events if e["event"] == "new_table"] == told)
    assert run.interrupt() in (0, 130)
    again = job.run()
    assert again.wait() == 0
    assert [e for e in again.events if e["event"] == "new_table"] == []


def truncations(job: Job, table: str) -> int:
    """How often the table's changelog was emptied: once for each new beginning."""
    return sum(row["_op"] == "T" for row in read_changelog(job.lake / DATABASE / table, "jsonl"))


@pytest.mark.long_variants("after_command*", suite="stories")
@pytest.mark.parametrize("points", [("before_command",), ("after_command", "after_manifest")], ids="-".join)
def test_a_driver_that_dies_around_a_command_neither_loses_nor_doubles_it(
    mariadb: MariaDbServer, tmp_path: Path, points: tuple[str, ...]
) -> None:
    make(mariadb, "a", "b")
    job = Job(tmp_path, mariadb, DATABASE, ("a", "b"), local=True, sink="jsonl", write="changelog")
    run = job.start(failpoints=f"{points[0]}=kill")
    run.wait_for_rows(lambda: left(job, "a") == left(job, "b") == {1: 1, 2: 2, 3: 3})
    desk = CommandQueue(CheckpointStore(job.state, create=False))
    command = TableCommand.new(TableAction.RESNAPSHOT, f"{DATABASE}.a")
    desk.submit(command)
    assert run.wait() == -signal.SIGKILL
    desk.submit(command)
    for point in points[1:]:
        assert job.start(failpoints=f"{point}=kill").wait() == -signal.SIGKILL
    mariadb.execute("UPDATE a SET n = 9", "UPDATE b SET n = 9", database=DATABASE)
    again = job.start()
    expected = dict.fromkeys((1, 2, 3), 9)
    again.wait_for_rows(lambda: left(job, "a") == left(job, "b") == expected)
    desk.submit(command)
    assert again.interrupt() in (0, 130)
    status = desk.state(command.id)
    assert status is not None
    assert (status.state, desk.waiting()) == (CommandState.DONE, [])
    assert (truncations(job, "a"), truncations(job, "b")) == (1, 0)


@pytest.mark.long(suite="stores")
def test_a_command_reaches_a_pipeline_on_another_machine_through_the_store_of_its_state(
    mariadb: MariaDbServer, moto: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(mariadb, "a", "b")
    job = Job(tmp_path, mariadb, DATABASE, ("a", "b"), local=True)
    with StoreProxy(moto) as store:
        bucket = store.create_bucket("live-commands")
        job.state_url, job.sections = f"s3://{bucket}/state", store.section
        job.pipeline = f'work_dir = "{tmp_path / "work"}"'
        run = job.start()
        wait_equal(run, job, "a", "b")
        # What another machine would have: its own work folder, where no lock of the run is.
        job.pipeline = f'work_dir = "{tmp_path / "elsewhere"}"'
        monkeypatch.setenv("RAYCDC_TEST_PASSWORD", mariadb.cdc_user)
        told = tables_command(job, "pause", f"{DATABASE}.a")
        assert "which runs the pipeline" in told
        assert "is paused" in told
        mariadb.execute("UPDATE a SET n = 10", "UPDATE b SET n = 10", database=DATABASE)
        wait_equal(run, job, "b")
        assert not lake_is_equal(job, "a")
        assert run.interrupt() in (0, 130)
