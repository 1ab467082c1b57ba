"""`raycdc run` over MariaDB's system-versioned tables: targets hold current rows, and nothing of their history."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from raycdc.sandbox.compare import check_changelog, final_rows, read_changelog, read_delta, read_source
from raycdc.sandbox.servers import MariaDbServer
from tests.support.jobs import Job, JobRun, catch_up

pytestmark = pytest.mark.server

PERIOD = (
    "valid_from TIMESTAMP(6) GENERATED ALWAYS AS ROW START, valid_to TIMESTAMP(6) GENERATED ALWAYS AS ROW END, "
    "PERIOD FOR SYSTEM_TIME (valid_from, valid_to)"
)
PARTITIONS = "PARTITION BY SYSTEM_TIME (PARTITION p0 HISTORY, PARTITION p1 CURRENT)"
CREATED = (
    "CREATE TABLE hidden (id INT PRIMARY KEY, v VARCHAR(20)) WITH SYSTEM VERSIONING",
    f"CREATE TABLE named (id INT, v VARCHAR(20), {PERIOD}, PRIMARY KEY (id)) WITH SYSTEM VERSIONING",
    f"CREATE TABLE parts (id INT PRIMARY KEY, v VARCHAR(20)) WITH SYSTEM VERSIONING {PARTITIONS}",
    "CREATE TABLE later (id INT PRIMARY KEY, v VARCHAR(20), w INT WITHOUT SYSTEM VERSIONING) WITH SYSTEM VERSIONING",
)
TABLES = ("hidden", "named", "parts", "later")


def changes(table: str, first: int) -> list[str]:
    """Every way to bring, change and end rows, from key `first` on."""
    values = ", ".join(f"({first + number}, 'new')" for number in range(10))
    return [
        f"INSERT INTO {table} (id, v) VALUES {values}",
        f"UPDATE {table} SET v = 'changed' WHERE id % 3 = 0",
        f"DELETE FROM {table} WHERE id % 10 = 4",
        f"UPDATE {table} SET id = id + 1000 WHERE id = {first + 5}",
        f"REPLACE INTO {table} (id, v) VALUES ({first}, 'replaced'), ({first + 100}, 'fresh')",
        f"INSERT INTO {table} (id, v) VALUES ({first + 1}, 'x') ON DUPLICATE KEY UPDATE v = 'on duplicate'",
        f"INSERT INTO {table} (id, v) VALUES ({first + 4}, 'again')",
        f"DELETE HISTORY FROM {table} BEFORE SYSTEM_TIME '2020-01-01'",
    ]


def all_changes(first: int) -> list[str]:
    return [statement for table in TABLES for statement in changes(table, first)]


def fresh(server: MariaDbServer, database: str) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    server.execute(*CREATED, *all_changes(0), database=database)


def test_a_changelog_of_a_versioned_table_has_its_current_rows_alone(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "versioned"
    fresh(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, sink="jsonl", write="changelog", local=True, chunk_rows=4)
    catch_up(job)
    mariadb.execute(*all_changes(200), "UPDATE later SET w = 5 WHERE id > 200", database=database)
    # A row that never was current, and one that begins in the past and still is.
    mariadb.execute(
        "SET SESSION system_versioning_insert_history = 1",
        "INSERT INTO hidden (id, v, row_start, row_end) VALUES (900, 'was', '2001-01-01', '2002-01-01')",
        "INSERT INTO hidden (id, v, row_start, row_end) VALUES (901, 'is', '2001-01-01', '2038-01-19 03:14:07.999999')",
        database=database,
    )
    catch_up(job)
    for table in TABLES:
        rows = read_changelog(job.lake / database / table, "jsonl")
        assert check_changelog(rows, ["id"]) == [], table
        with mariadb.connect() as connection:
            columns = [name for name in rows[0] if not name.startswith("_")]
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT id, v FROM {database}.{table} ORDER BY id")
                current = [{"id": key, "v": value} for key, value in cursor.fetchall()]
        assert columns == {
            "named": ["id", "v", "valid_from", "valid_to"],
            "later": ["id", "v", "w"],
        }.get(table, ["id", "v"])
        left = final_rows(rows, ["id"], pa.schema([("id", pa.int32()), ("v", pa.string())]))
        assert left.sort_by("id").to_pylist() == current, table


def test_versioning_added_and_dropped_leaves_the_target_as_it_is(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "reversioned"
    fresh(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, local=True)
    catch_up(job)
    mariadb.execute(
        "ALTER TABLE hidden DROP SYSTEM VERSIONING",
        *changes("later", 200),
        "DELETE FROM hidden WHERE id < 3",
        "ALTER TABLE hidden ADD SYSTEM VERSIONING",
        "DELETE FROM hidden WHERE id = 6",
        "SET SESSION system_versioning_alter_history = KEEP",
        "ALTER TABLE hidden ADD COLUMN extra INT DEFAULT 7",
        "UPDATE hidden SET v = 'late' WHERE id > 7",
        "ALTER TABLE named DROP COLUMN valid_from, DROP COLUMN valid_to, DROP SYSTEM VERSIONING",
        "UPDATE named SET v = 'plain'",
        "ALTER TABLE parts ADD PARTITION (PARTITION p2 HISTORY)",
        *changes("parts", 300),
        database=database,
    )
    catch_up(job)
    for table in TABLES:
        lake = read_delta(job.lake / database / table)
        with mariadb.connect() as connection:
            source = read_source(connection, database, table, like=lake.schema)
        assert lake.select(source.column_names).sort_by("id").to_pylist() == source.sort_by("id").to_pylist(), table


def test_transaction_precise_history_parks_its_table_by_name(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "precise"
    mariadb.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    period = "PERIOD FOR SYSTEM_TIME (s, e)"
    columns = "s BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, e BIGINT UNSIGNED GENERATED ALWAYS AS ROW END"
    mariadb.execute(
        f"CREATE TABLE hidden (id INT PRIMARY KEY, {columns}, {period}) WITH SYSTEM VERSIONING", database=database
    )
    job = Job(tmp_path, mariadb, database, ("hidden",), local=True)
    run = job.run()
    assert run.wait() == 4, run.story()
    assert [event["table"] for event in run.events if event["event"] == "parked"] == [f"{database}.hidden"]
    assert "transaction-precise history" in run.story()


def test_transaction_precise_history_that_comes_later_parks_its_table_alone(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    database = "precise_later"
    fresh(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, local=True)
    run = job.start()
    run.wait_for((job.lake / database / "later" / "_delta_log").is_dir)
    period = "PERIOD FOR SYSTEM_TIME (s, e)"
    columns = "s BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, e BIGINT UNSIGNED GENERATED ALWAYS AS ROW END"
    mariadb.execute(
        "DROP TABLE hidden",
        f"CREATE TABLE hidden (id INT PRIMARY KEY, {columns}, {period}) WITH SYSTEM VERSIONING",
        "INSERT INTO hidden (id) VALUES (1)",
        *changes("later", 200),
        database=database,
    )
    run.wait_for(lambda: 202 in read_delta(job.lake / database / "later")["id"].to_pylist())
    run.wait_for(lambda: any("Give it columns of type TIMESTAMP(6)" in text for text in told(run)))
    assert run.interrupt() == 130, run.story()


def told(run: JobRun) -> list[str]:
    """What the run has said of parked tables so far."""
    return [str(event) for event in list(run.events) if event["event"] == "parked"]
