"""``raycdc tables resume``: a paused table goes on from where it was left, with all that happened meanwhile."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.compare import check_changelog, read_changelog, read_delta
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MongoDb, MySqlServer
from raycdc.sandbox.servers.private import wait_until
from tests.e2e.test_parked_tables import rows_of
from tests.support.comparing import require_rows_equal
from tests.support.jobs import CollectionJob, Job, require_engines, run_through
from tests.support.table_commands import ask, listed, tables_command

pytestmark = pytest.mark.server

TABLES = ("a", "b")


def make(server: DatabaseServer, database: str) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    for table in TABLES:
        server.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, n INT)",
            f"INSERT INTO {table} VALUES (1, 1), (2, 2), (3, 3)",
            database=database,
        )


def kinds(job: Job, table: str) -> list[tuple[str, bool]]:
    """Each row of the changelog: its kind, and whether the log has it; in order."""
    rows = read_changelog(job.lake / job.database / table, "jsonl")
    return [(row["_op"], row["_pos"] is not None) for row in sorted(rows, key=lambda row: int(row["_seq"]))]


def values(job: Job, table: str) -> dict[int, dict[str, Any]]:
    """The rows that the changelog leaves, without what is about them."""
    return {
        key: {name: value for name, value in row.items() if not name.startswith("_")}
        for key, row in rows_of(job, table).items()
    }


def alive(job: Job, table: str, key: str) -> list[dict[str, Any]]:
    """The rows that the changelog leaves, by another key than `rows_of` knows."""
    rows: dict[Any, dict[str, Any]] = {}
    for row in sorted(read_changelog(job.lake / job.database / table, "jsonl"), key=lambda row: int(row["_seq"])):
        if row["_op"] in ("+I", "+U"):
            rows[row[key]] = row
        elif row["_op"] == "-D":
            del rows[row[key]]
    return list(rows.values())


def kept(job: Job, table: str) -> list[dict[str, Any]]:
    """The rows of a target with one row per key; none before it is there."""
    place = job.lake / job.database / table
    return read_delta(place).to_pylist() if (place / "_delta_log").exists() else []


def caught_up(job: Job, failpoints: str = "") -> int:
    return job.start("--until", "caught-up", failpoints=failpoints).wait()


def test_a_running_pipeline_takes_a_paused_table_up_where_it_was_left_and_reads_no_snapshot(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "resumed")
    job = Job(tmp_path, mariadb, "resumed", TABLES, local=True, sink="jsonl", write="changelog")
    run = job.start()
    run.wait_for_rows(lambda: len(values(job, "a")) == len(values(job, "b")) == 3)
    assert "is paused" in tables_command(job, "pause", "resumed.a", "--wait", "600")
    mariadb.execute(
        "UPDATE a SET n = 10 WHERE id = 1",
        "ALTER TABLE a ADD more VARCHAR(9) DEFAULT 'x'",
        "INSERT INTO a VALUES (4, 4, 'y')",
        "UPDATE b SET n = 10 WHERE id = 1",
        "ALTER TABLE a DROP COLUMN n",
        "DELETE FROM a WHERE id = 2",
        "INSERT INTO b VALUES (4, 4)",
        database="resumed",
    )
    run.wait_for_rows(lambda: len(values(job, "b")) == 4)
    assert len(kinds(job, "a")) == 3
    assert "goes on from where it was left" in tables_command(job, "resume", "resumed.a", "--wait", "600")
    mariadb.execute("UPDATE a SET more = 'z' WHERE id = 3", "UPDATE b SET n = 9 WHERE id = 3", database="resumed")
    # A changelog does not fill a default in.
    wanted = {1: None, 3: "z", 4: "y"}
    run.wait_for_rows(lambda: {key: row.get("more") for key, row in values(job, "a").items()} == wanted)
    run.wait_for_rows(lambda: {key: row["n"] for key, row in values(job, "b").items()} == {1: 10, 2: 2, 3: 9, 4: 4})
    assert run.interrupt() in (0, 130)
    snapshot = [("+I", False)] * 3
    assert kinds(job, "a") == [
        *snapshot,
        *[("-U", True), ("+U", True), ("+I", True), ("-D", True), ("-U", True), ("+U", True)],
    ]
    assert listed(job)["resumed.a"]["phase"] == "stream"
    # It is followed as ever.
    mariadb.execute("TRUNCATE TABLE a", "INSERT INTO a VALUES (7, 'new')", database="resumed")
    assert caught_up(job) == 0
    assert values(job, "a") == {7: {"id": 7, "more": "new"}}
    assert kinds(job, "b")[:3] == snapshot


def test_a_process_that_dies_while_a_table_is_caught_up_repeats_and_loses_nothing(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "killed")
    job = Job(tmp_path, mariadb, "killed", TABLES, local=True, sink="jsonl", write="changelog")
    assert caught_up(job) == 0
    tables_command(job, "pause", "killed.a", "--wait", "600")
    assert caught_up(job) == 0
    mariadb.execute(
        "UPDATE a SET n = 10",
        "INSERT INTO a (id, n) VALUES (10, 0)",
        "ALTER TABLE a ADD c1 INT",
        "UPDATE a SET c1 = 1",
        "UPDATE b SET n = 10",
        database="killed",
    )
    # The log goes on without it.
    assert caught_up(job) == 0
    tables_command(job, "resume", "killed.a", "--wait", "600")
    points = ["while_catching_up", "after_join", "after_open_anew", "after_manifest"]
    plan = ",".join(f"{point}=kill" for point in points)
    deaths = run_through(job, failpoints=plan, busy=lambda: job.hit() != set(points))
    assert deaths == [-signal.SIGKILL] * len(points)
    assert caught_up(job) == 0
    for table in TABLES:
        assert check_changelog(read_changelog(job.lake / "killed" / table, "jsonl"), ["id"]) == []
    assert {key: row["n"] for key, row in values(job, "b").items()} == {1: 10, 2: 10, 3: 10}
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, n, c1 FROM killed.a")
        held = {row[0]: row for row in cursor.fetchall()}
    assert {key: tuple(row.values()) for key, row in values(job, "a").items()} == held
    assert kinds(job, "a").count(("T", False)) == 0


def leave_behind_a_purged_log(mariadb: MariaDbServer, job: Job) -> None:
    """Pause table a, change both, and purge the log that the changes of a are in."""
    tables_command(job, "pause", f"{job.database}.a", "--wait", "600")
    mariadb.execute("UPDATE a SET n = 7", "UPDATE b SET n = 7", database=job.database)
    assert caught_up(job) == 0
    mariadb.execute("FLUSH BINARY LOGS", "UPDATE b SET n = 8", database=job.database)
    assert caught_up(job) == 0
    newest = mariadb.binlog_paths()[-1].name

    def purged() -> bool:
        # The server keeps a file that a connection has open.
        mariadb.execute(f"PURGE BINARY LOGS TO '{newest}'")
        return mariadb.binlog_paths()[0].name == newest

    wait_until(purged, timeout_s=120, what="the older log is gone")


def test_a_paused_table_whose_log_is_purged_is_parked_by_name_and_read_anew_when_asked_for(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "purged")
    job = Job(tmp_path, mariadb, "purged", TABLES, local=True)
    assert caught_up(job) == 0
    leave_behind_a_purged_log(mariadb, job)
    tables_command(job, "resume", "purged.a", "--wait", "600")
    # The others go on; that one is left behind is said at the end.
    assert caught_up(job) == 4
    require_rows_equal(job, "b")
    table = listed(job)["purged.a"]
    assert table["phase"] == "parked"
    assert "purged.a cannot go on from where it was left: " in table["reason"]
    assert "is purged on" in table["reason"]
    assert table["reason"].endswith("Read it anew with: raycdc tables resnapshot CONFIG purged.a")
    tables_command(job, "resnapshot", "purged.a")
    assert caught_up(job) == 0
    require_rows_equal(job, *TABLES)


def test_a_paused_table_whose_log_is_purged_is_read_anew_by_itself_where_the_configuration_says_so(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "purged_anew")
    job = Job(tmp_path, mariadb, "purged_anew", TABLES, local=True)
    job.pipeline = 'on_log_lost = "resnapshot"\non_table_error = "fail"'
    assert caught_up(job) == 0
    leave_behind_a_purged_log(mariadb, job)
    tables_command(job, "resume", "purged_anew.a", "--wait", "600")
    assert caught_up(job) == 0
    require_rows_equal(job, *TABLES)
    assert listed(job)["purged_anew.a"]["phase"] == "stream"
    assert listed(job)["purged_anew.b"]["again"] is False


def test_a_table_that_was_paused_in_its_snapshot_is_read_anew_and_the_answer_says_so(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(mariadb, "halfway")
    job = Job(tmp_path, mariadb, "halfway", TABLES, local=True, chunk_rows=1)
    assert job.start("--until", "caught-up", failpoints="after_manifest=kill@2").wait() == -signal.SIGKILL
    if listed(job)["halfway.a"]["phase"] != "snapshot":
        pytest.skip("its snapshot was over before")
    tables_command(job, "pause", "halfway.a", "--wait", "600")
    assert caught_up(job) == 0
    assert "is read anew, because" in tables_command(job, "resume", "halfway.a", "--wait", "600")
    assert caught_up(job) == 0
    require_rows_equal(job, *TABLES)


def test_a_single_server_id_lets_no_table_go_on_and_ends_no_run(mariadb: MariaDbServer, tmp_path: Path) -> None:
    """The log is read under it, and the server ends one of two readings that have the same."""
    make(mariadb, "one_id")
    job = Job(tmp_path, mariadb, "one_id", TABLES, local=True, sink="jsonl", write="changelog")
    job.source = 'server_id = 5477\nheartbeat = "1s"'
    assert caught_up(job) == 0
    tables_command(job, "pause", "one_id.a", "--wait", "600")
    assert caught_up(job) == 0
    mariadb.execute("UPDATE a SET n = 10 WHERE id = 1", "UPDATE b SET n = 10 WHERE id = 1", database="one_id")
    refused = ask(job, "resume", "one_id.a", "--wait", "600")
    assert refused.returncode == 2
    assert "needs two numbers of source.server_id, and that is 5477 alone; give it a range" in refused.stderr
    assert "read it anew with: raycdc tables resnapshot CONFIG one_id.a" in refused.stderr
    # Asked for under a range, and started without.
    job.source = 'server_id = "5477-5478"\nheartbeat = "1s"'
    job.configuration()
    assert "goes on from where it was left" in tables_command(job, "resume", "one_id.a", "--wait", "600")
    job.source = 'server_id = 5477\nheartbeat = "1s"'
    assert caught_up(job) == 4
    parked = listed(job)["one_id.a"]
    assert parked["phase"] == "parked"
    assert parked["reason"].endswith(
        'alone; give it a range such as "5400-5499". Let it go on with: raycdc tables resume CONFIG one_id.a; or read '
        "it anew with: raycdc tables resnapshot CONFIG one_id.a"
    )
    assert {key: row["n"] for key, row in values(job, "b").items()} == {1: 10, 2: 2, 3: 3}
    # As it says.
    job.source = 'server_id = "5477-5478"\nheartbeat = "1s"'
    job.configuration()
    assert "goes on from where it was left" in tables_command(job, "resume", "one_id.a", "--wait", "600")
    assert caught_up(job) == 0
    assert kinds(job, "a") == [("+I", False)] * 3 + [("-U", True), ("+U", True)]


def test_a_second_reading_that_cannot_be_had_is_waited_for_while_the_others_go_on(
    mysql80: MySqlServer, tmp_path: Path
) -> None:
    def has(n: int) -> bool:
        return {row["n"] for row in values(job, "b").values()} == {n}

    make(mysql80, "waited")
    job = Job(tmp_path, mysql80, "waited", TABLES, local=True, sink="jsonl", write="changelog")
    job.source = 'server_id = "5481-5482"\nheartbeat = "1s"'
    run = job.start()
    run.wait_for_rows(lambda: len(values(job, "a")) == len(values(job, "b")) == 3)
    assert "is paused" in tables_command(job, "pause", "waited.a", "--wait", "600")
    mysql80.execute("UPDATE a SET n = 10", "UPDATE b SET n = 10", database="waited")
    # The log is ahead of the place where the table was left: at that place itself it would just join.
    run.wait_for_rows(partial(has, 10))
    with mysql80.connect() as other, other.cursor() as cursor:
        # Another job has the id that is left, once the server has noticed that the reader before is gone.
        def taken() -> bool:
            for number in (5481, 5482):
                cursor.execute(f"SELECT GET_LOCK('raycdc:server_id:{number}', 0)")
                if cursor.fetchall()[0][0] == 1:
                    return True
            return False

        wait_until(taken, timeout_s=120, what="a server id is free")
        tables_command(job, "resume", "waited.a", "--wait", "600")
        for n in range(20, 24):
            # Nothing of the others waits, and no reader begins anew, however often it was tried.
            mysql80.execute(f"UPDATE b SET n = {n}", database="waited")
            run.wait_for_rows(partial(has, n))
            assert listed(job)["waited.a"]["phase"] == "resuming"
        assert len(kinds(job, "a")) == 3
    run.wait_for_rows(lambda: {row["n"] for row in values(job, "a").values()} == {10})
    run.wait_for_rows(lambda: listed(job)["waited.a"]["phase"] == "stream")
    assert run.interrupt() in (0, 130)
    assert kinds(job, "a") == [("+I", False)] * 3 + [("-U", True), ("+U", True)] * 3
    assert check_changelog(read_changelog(job.lake / "waited" / "b", "jsonl"), ["id"]) == []


@pytest.mark.long(suite="stories")
def test_a_collection_goes_on_from_where_it_was_left(mongodb: MongoDb, mongodb_database: str, tmp_path: Path) -> None:
    job = CollectionJob(
        tmp_path,
        None,  # type: ignore[arg-type]
        mongodb_database,
        TABLES,
        local=True,
        sink="jsonl",
        write="changelog",
        uri=mongodb.uri,
        startup="initial",
        source='changelog = "full"',
    )
    with mongodb.client() as client:
        a, b = (client[mongodb_database][name] for name in TABLES)
        for collection in (a, b):
            collection.insert_many([{"_id": number, "n": number} for number in (1, 2, 3)])
        assert caught_up(job) == 0
        tables_command(job, "pause", f"{mongodb_database}.a", "--wait", "600")
        assert caught_up(job) == 0
        a.update_one({"_id": 1}, {"$set": {"n": 10}})
        a.insert_one({"_id": 4, "n": 4, "more": "a field that is new"})
        a.delete_one({"_id": 2})
        b.update_one({"_id": 1}, {"$set": {"n": 10}})
        # The log goes on without it.
        assert caught_up(job) == 0
        assert len(kinds(job, "a")) == 3
        assert "goes on from where it was left" in tables_command(
            job, "resume", f"{mongodb_database}.a", "--wait", "600"
        )
        assert caught_up(job, "while_catching_up=kill") == -signal.SIGKILL
        assert caught_up(job) == 0
        a.update_one({"_id": 3}, {"$set": {"more": "followed as ever"}})
        assert caught_up(job) == 0
    changes = [kind for kind, _ in kinds(job, "a")]
    assert changes == ["+I"] * 3 + ["-U", "+U", "+I", "-D", "-U", "+U"]
    left = {row["_id"]: row for row in alive(job, "a", "_id")}
    assert {key: row["n"] for key, row in left.items()} == {1: 10, 3: 3, 4: 4}
    assert "a field that is new" in str(left[4])
    assert "followed as ever" in str(left[3])
    assert [kind for kind, _ in kinds(job, "b")] == ["+I"] * 3 + ["-U", "+U"]


@pytest.mark.long(suite="stories")
def test_a_table_goes_on_where_it_was_left_on_ray_and_spark(mysql80: MySqlServer, tmp_path: Path) -> None:
    make(mysql80, "resumed_there")
    job = Job(tmp_path, mysql80, "resumed_there", TABLES, write="upsert")
    run = job.start()
    run.wait_for_rows(lambda: len(kept(job, "a")) == len(kept(job, "b")) == 3)
    tables_command(job, "pause", "resumed_there.a", "--wait", "600")
    mysql80.execute(
        "UPDATE a SET n = 10 WHERE id = 1",
        "ALTER TABLE a ADD more VARCHAR(9)",
        "INSERT INTO a VALUES (4, 4, 'y')",
        "UPDATE b SET n = 10 WHERE id = 1",
        database="resumed_there",
    )
    run.wait_for_rows(lambda: {row["id"]: row["n"] for row in kept(job, "b")} == {1: 10, 2: 2, 3: 3})
    assert {row["id"]: row["n"] for row in kept(job, "a")} == {1: 1, 2: 2, 3: 3}
    assert "goes on from where it was left" in tables_command(job, "resume", "resumed_there.a", "--wait", "600")
    run.wait_for_rows(lambda: {row["id"]: row["n"] for row in kept(job, "a")} == {1: 10, 2: 2, 3: 3, 4: 4})
    run.wait_for_rows(lambda: listed(job)["resumed_there.a"]["phase"] == "stream")
    assert run.interrupt() in (0, 130)
    require_engines(run)
    require_rows_equal(job, *TABLES)
