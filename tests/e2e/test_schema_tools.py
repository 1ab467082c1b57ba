"""`raycdc run` while gh-ost and pt-online-schema-change change a table whose rows change all the time."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from raycdc.sandbox.compare import check_changelog, read_changelog, read_delta, read_source
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.support.jobs import Job, JobRun, catch_up
from tests.support.schema_tools import ALTER, ALTER_NO_NAME, SHARED, SHARED_NO_NAME, GhOst, PtOsc, Traffic, fill

pytestmark = pytest.mark.server

ROWS = 400


def job(tmp_path: Path, server: DatabaseServer, database: str, *, write: str = "upsert") -> Job:
    return Job(
        tmp_path, server, database, ("orders",), write=write, local=True, pipeline='schema_change = "evolve"',
        chunk_rows=100,
    )  # fmt: skip


def commits(run: JobRun) -> int:
    return sum(event["event"] == "commit" for event in list(run.events))


def wait_for_commits(run: JobRun, number: int) -> None:
    """Until so many epochs more were committed: what was logged before is in the state by then."""
    wanted = commits(run) + number
    assert run.wait_for(lambda: commits(run) >= wanted), run.story()


def require_orders_equal(held: Job, database: str, *, name: str = "client") -> None:
    with held.server.connect() as connection:
        lake = read_delta(held.lake / database / "orders")
        source = read_source(connection, database, "orders", like=lake.schema)
    assert lake.column_names == source.column_names == ["id", "priority", name, "note", "amount"]
    assert lake.sort_by("id").to_pylist() == source.sort_by("id").to_pylist()


@pytest.mark.long_variants("False", suite="stories")
@pytest.mark.parametrize("atomic", [True, False])
def test_gh_ost_is_followed_over_a_restart_between_its_alter_and_its_cut_over(
    atomic: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue("mariadb" if atomic else "mysql80")
    with server.fresh_database("ghost") as database:
        fill(server, database, ROWS)
        captured = job(tmp_path, server, database)
        tool = GhOst(server, database, atomic=atomic)
        with Traffic(server, database) as traffic:
            run = captured.start()
            wait_for_commits(run, 1)
            tool.begin(ALTER_NO_NAME)
            tool.copy(SHARED_NO_NAME, 1, ROWS)
            wait_for_commits(run, 2)
            run.kill()
            tool.cut_over(SHARED_NO_NAME, traffic)
            traffic.wait_for(100)
        catch_up(captured)
        require_orders_equal(captured, database, name="customer")


def test_pt_online_schema_change_is_followed_in_a_changelog(mysql80: MySqlServer, tmp_path: Path) -> None:
    with mysql80.fresh_database("ptosc") as database:
        fill(mysql80, database, ROWS)
        captured = Job(
            tmp_path, mysql80, database, (".*",), sink="jsonl", write="changelog", local=True, chunk_rows=100
        )
        tool = PtOsc(mysql80, database)
        with Traffic(mysql80, database):
            run = captured.start()
            wait_for_commits(run, 1)
            tool.begin(ALTER, SHARED)
            tool.cut_over(SHARED)
            wait_for_commits(run, 2)
            run.kill()
        catch_up(captured)
        assert [path.name for path in (captured.lake / database).iterdir()] == ["orders"]
        rows = sorted(read_changelog(captured.lake / database / "orders", "jsonl"), key=lambda row: row["_seq"])
        swapped = next(i for i, row in enumerate(rows) if "client" in row)
        assert {tuple(row)[:5] for row in rows[:swapped]} == {("id", "customer", "amount", "note", "status")}
        assert {tuple(row)[:5] for row in rows[swapped:]} == {("id", "priority", "client", "note", "amount")}
        for row in rows[:swapped]:
            row["priority"], row["client"] = 3, row.pop("customer")
            del row["status"]
        assert check_changelog(rows, ["id"]) == []
        last = {row["id"]: row for row in rows}
        held = {key: (row["client"], row["note"]) for key, row in last.items() if row["_op"] in ("+I", "+U")}
        with mysql80.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, client, note FROM orders")
            assert held == {key: (client, note) for key, client, note in cursor.fetchall()}


@pytest.mark.skipif(shutil.which("pt-online-schema-change") is None, reason="percona-toolkit is not installed")
def test_the_real_pt_online_schema_change_is_followed(mariadb: MariaDbServer, tmp_path: Path) -> None:
    with mariadb.fresh_database("realpt") as database:
        fill(mariadb, database, ROWS)
        captured = job(tmp_path, mariadb, database)
        with Traffic(mariadb, database):
            run = captured.start()
            wait_for_commits(run, 1)
            place = f"h={mariadb.host},P={mariadb.port},u=root,p={mariadb.root_password},D={database},t=orders"
            done = subprocess.run(
                ["pt-online-schema-change", "--execute", "--no-version-check", "--no-check-alter", "--charset=utf8mb4",
                 "--recursion-method=none", "--chunk-size=100", "--alter", ALTER, place],
                capture_output=True, text=True, timeout=900, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            wait_for_commits(run, 2)
            run.interrupt()
        catch_up(captured)
        require_orders_equal(captured, database)
