"""`raycdc check` and `raycdc run` over what others left in a log: prepared transactions, and files a server died in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from raycdc.sandbox.compare import check_changelog, read_changelog
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from tests.e2e.changelog_rows import rows_left
from tests.integration.connectors.mysql.test_mysql_transactions import event_starts
from tests.run_lines import known_tables
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server


def checked(job: Job) -> subprocess.CompletedProcess[str]:
    return completed(
        ("check", str(job.configuration())),
        environment={**os.environ, "RAYCDC_TEST_PASSWORD": "cdc"},
        folder=job.folder,
    )


def ids(job: Job, table: str) -> list[int]:
    """The keys that a changelog leaves."""
    rows = read_changelog(job.lake / job.database / table, "jsonl")
    assert check_changelog(rows, ["id"]) == []
    return sorted(rows_left(rows))


@pytest.mark.long_variants("mysql80", suite="servers")
@pytest.mark.parametrize("kind", ["mariadb", "mysql80"])
def test_transactions_prepared_before_the_first_start_park_what_they_have_rows_of(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    """One has its only row in a database that is not captured, the other one in a captured table."""
    server: DatabaseServer = request.getfixturevalue(kind)
    with server.fresh_database() as database, server.fresh_database() as away:
        server.execute(
            f"CREATE TABLE {away}.c (id INT PRIMARY KEY)", "CREATE TABLE a (id INT PRIMARY KEY)",
            "CREATE TABLE b (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)",
            "XA START 'away'", f"INSERT INTO {away}.c VALUES (1)", "XA END 'away'", "XA PREPARE 'away'",
            database=database,
        )  # fmt: skip
        server.execute(
            "XA START 'here'", "INSERT INTO b VALUES (2)", "XA END 'here'", "XA PREPARE 'here'", database=database
        )
        job = Job(tmp_path, server, database, ("a", "b"), sink="jsonl", write="changelog", local=True)

        done = checked(job)
        assert done.returncode == 0, done.stderr
        shown = "shows prepared transactions" if kind == "mariadb" else "GRANT XA_RECOVER_ADMIN ON *.*"
        assert shown in done.stdout
        catch_up(job)

        server.execute(
            "XA COMMIT 'away'", f"INSERT INTO {database}.a VALUES (2)", f"INSERT INTO {database}.b VALUES (3)"
        )
        catch_up(job)
        assert (ids(job, "a"), ids(job, "b")) == ([1, 2], [1, 3])

        server.execute("XA COMMIT 'here'", f"INSERT INTO {database}.a VALUES (3)")
        run = job.run()
        assert run.wait() == 4, run.story()
        known = known_tables(run.events)
        assert [name for name, table in known.items() if table["phase"] == "parked"] == [f"{database}.b"]
        assert f"some are of {database}.b" in known[f"{database}.b"]["parked"]["reason"]
        assert ids(job, "a") == [1, 2, 3]

        asked = ("tables", "resnapshot", str(job.configuration()), f"{database}.b")
        assert (
            completed(asked, environment={**os.environ, "RAYCDC_TEST_PASSWORD": "cdc"}, folder=job.folder).returncode
            == 0
        )
        catch_up(job)
        assert (ids(job, "a"), ids(job, "b")) == ([1, 2, 3], [1, 2, 3])


def crash(server: MariaDbServer, row: int, *, cut: int) -> None:
    """The server dies while it writes the transaction of a row: the last event in its log is cut behind `cut` bytes."""
    server.execute(f"INSERT INTO torn.t VALUES ({row}, 'never was')")
    path = server.binlog_paths()[-1]
    server.kill()
    log = path.read_bytes()
    row_event = max(at for at in event_starts(log) if log[at + 4] in (23, 30))
    path.write_bytes(log[: row_event + cut])
    server.start()
    server.execute(f"SET SESSION sql_log_bin = 0; DELETE FROM torn.t WHERE id = {row}")


def test_a_log_whose_files_the_server_died_in_is_followed(tmp_path: Path) -> None:
    """MariaDB with `sync_binlog = 0`: a file ends inside a transaction, another one inside an event. The place of a
    start lies before both, right before one, or is that of a run that goes on. What was prepared before the first start
    is searched for behind them.
    """
    with MariaDbServer() as server:
        server.execute("CREATE DATABASE torn", "CREATE TABLE torn.t (id INT PRIMARY KEY, what VARCHAR(20))")
        server.execute("CREATE TABLE torn.b (id INT PRIMARY KEY)")
        server.execute("XA START 'here'", "INSERT INTO torn.b VALUES (1)", "XA END 'here'", "XA PREPARE 'here'")
        crash(server, 9, cut=10)
        job = Job(tmp_path, server, "torn", ("t", "b"), sink="jsonl", write="changelog", local=True)
        catch_up(job)
        for number, cut in enumerate((0, 10)):
            server.execute(f"INSERT INTO torn.t VALUES ({10 + number}, 'is')")
            crash(server, 20 + number, cut=cut)
        for number, cut in enumerate((10, 0), start=2):
            done = checked(job)
            assert done.returncode == 0, done.stdout + done.stderr
            catch_up(job)
            crash(server, 20 + number, cut=cut)
        done = checked(job)
        assert done.returncode == 0, done.stdout + done.stderr
        run = job.start()
        server.execute("INSERT INTO torn.t VALUES (30, 'is')")
        run.wait_for(lambda: 30 in ids(job, "t"))

        assert run.interrupt() in (0, 130), run.story()
        assert ids(job, "t") == [10, 11, 30] == [key for (key,) in server.execute("SELECT id FROM torn.t")]
        server.execute("XA COMMIT 'here'")
        run = job.start("--until", "caught-up")
        assert run.wait() == 4, run.story()
        known = known_tables(run.events)
        assert {name: table["phase"] for name, table in known.items()} == {"torn.b": "parked", "torn.t": "stream"}
        assert "some are of torn.b" in known["torn.b"]["parked"]["reason"]
