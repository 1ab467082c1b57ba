"""What statements in the log mean by the session that ran them: temporary tables, settings, LOAD DATA, views.

Each test is a run over a few tables of one database; each table is a story of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from raycdc.connectors.mysql.server.catalog import collation_numbers
from raycdc.connectors.mysql.values.charsets import charset_of_collation, same_charset
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from tests.integration.one_table_job import Job
from tests.support.sessions import session

pytestmark = pytest.mark.server

PLAIN = "(id INT PRIMARY KEY, v VARCHAR(20))"


@pytest.fixture(params=["mariadb", "mysql80", "mysql57"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, DatabaseServer)
    return found


@pytest.fixture
def database(server: DatabaseServer) -> Iterator[str]:
    with server.fresh_database() as name:
        yield name


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")


@contextmanager
def client(job: Job, *statements: str) -> Iterator[Any]:
    """A session that stays, with LOAD DATA LOCAL; gives what executes a statement in it."""
    connection = pymysql.connect(
        host=job.server.host, port=job.server.port, user="root", password="root", database=job.database,
        autocommit=True, local_infile=True, charset="utf8mb4",
    )  # fmt: skip
    with closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        yield cursor.execute


def made(job: Job, *tables: str) -> None:
    for table in tables:
        job.execute(f"CREATE TABLE {table} {PLAIN}", f"INSERT INTO {table} VALUES (1, 'one'), (2, 'two')")


def ids(job: Job, table: str) -> list[int]:
    return [row["id"] for row in job.rows(table)]


def test_statements_about_temporary_tables_are_not_about_those_of_the_same_name(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    job = Job(server, database, tmp_path)
    tables = ["truncated", "altered", "filled", "dropped", "kept", "renamed"]
    made(job, *tables)
    assert job.catch_up() == {}
    with client(job, "SET SESSION binlog_format = 'STATEMENT'") as run:
        for table in tables:
            run(f"CREATE TEMPORARY TABLE {table} (id INT, other DATE)")
        run("TRUNCATE TABLE truncated")
        run("ALTER TABLE altered ADD COLUMN c INT FIRST, DROP COLUMN other")
        run("INSERT INTO filled VALUES (7, NULL)")
        run("DROP TABLE dropped")
        run("ALTER TABLE renamed RENAME TO elsewhere")
        # What a restart must know: the session is still there.
        assert job.catch_up() == {}
        run("TRUNCATE TABLE kept")
        run("ALTER TABLE elsewhere ADD COLUMN c INT")
        run("DROP TEMPORARY TABLE truncated")
        job.execute(*(f"INSERT INTO {table} VALUES (3, 'three')" for table in tables))
        assert job.catch_up() == {}
    # The session has ended: its names are the tables' again.
    job.execute("TRUNCATE TABLE kept", "INSERT INTO kept VALUES (9, 'nine')", "ALTER TABLE altered ADD COLUMN d INT")
    assert job.catch_up() == {}
    assert {table: ids(job, table) for table in tables} == {
        **{table: [1, 2, 3] for table in tables},
        "kept": [9],
    }
    assert not [event for event in job.events if event["event"] == "parked"]


def test_a_temporary_table_from_before_the_log_was_read_is_a_doubt(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    job = Job(server, database, tmp_path)
    made(job, "t", "healthy")
    with client(job, "SET SESSION binlog_format = 'STATEMENT'", "CREATE TEMPORARY TABLE t (id INT)") as run:
        assert job.catch_up() == {}
        run("TRUNCATE TABLE t")
        job.execute("INSERT INTO t VALUES (3, 'three')", "INSERT INTO healthy VALUES (3, 'three')")
        assert job.catch_up() == {}
    # It began again.
    emptied = [event["table"] for event in job.events if event["event"] == "schema_changed"]
    assert emptied == [f"{database}.t"]
    assert (ids(job, "t"), ids(job, "healthy")) == ([1, 2, 3], [1, 2, 3])


def test_a_procedure_with_a_temporary_table_changes_other_tables_as_any_statement(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    """Its statements' events all say that a temporary table was used."""
    job = Job(server, database, tmp_path)
    made(job, "t")
    body = "TRUNCATE TABLE t; ALTER TABLE t ADD COLUMN n INT; INSERT INTO t VALUES (7, 'seven', 7)"
    job.execute(
        f"CREATE PROCEDURE p() BEGIN CREATE TEMPORARY TABLE work (id INT); {body}; DROP TEMPORARY TABLE work; END"
    )
    assert job.catch_up() == {}
    job.execute("CALL p()")
    assert job.catch_up() == {}
    assert job.rows("t") == [{"id": 7, "v": "seven", "n": 7}]
    changes = [event["changes"] for event in job.events if event["event"] == "schema_changed"]
    assert changes == [["truncate_table"], ["add_column n"]]


def test_names_that_a_server_forgot_by_a_crash_are_hidden_no_more(tmp_path: Path) -> None:
    with MariaDbServer() as server, server.fresh_database() as database:
        job = Job(server, database, tmp_path)
        made(job, "t")
        assert job.catch_up() == {}
        with client(job, "SET SESSION binlog_format = 'STATEMENT'", "CREATE TEMPORARY TABLE t (id INT)"):
            assert job.catch_up() == {}
            server.kill()
        server.start()
        # Numbers of sessions begin anew, and RENAME TABLE does not say whether it used a temporary table.
        for _ in range(12):
            job.execute("RENAME TABLE t TO u", "RENAME TABLE u TO t")
        job.execute("INSERT INTO t VALUES (3, 'three')")
        assert job.catch_up() == {}
        assert [row["id"] for row in job.rows("t")] == [1, 2, 3]


def test_a_rename_of_a_temporary_table_that_is_not_logged_loses_no_row(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    """MariaDB logs RENAME TABLE of a session's temporary table, and nothing else of it, where it logs rows."""
    job = Job(mariadb, mariadb_database, tmp_path, "t")
    made(job, "t")
    assert job.catch_up() == {}
    with client(job, "CREATE TEMPORARY TABLE t (id INT)", "RENAME TABLE t TO elsewhere"):
        job.execute("INSERT INTO t VALUES (3, 'three')")
        assert job.catch_up() == {}
    assert ids(job, "t") == [1, 2, 3]


def test_load_data_that_is_logged_as_a_statement_parks_its_table_alone(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("3,three\n4,four\n")
    load = f"LOAD DATA LOCAL INFILE '{tmp_path / 'rows.csv'}' INTO TABLE"
    job = Job(server, database, tmp_path, "t", "loaded", "u")
    made(job, "t", "loaded", "other")
    with server.fresh_database() as elsewhere:
        server.execute(f"CREATE TABLE t {PLAIN}", database=elsewhere)
        assert job.catch_up() == {}
        if not isinstance(server, MariaDbServer):
            server.execute("SET GLOBAL local_infile = 1")
        with client(job, "SET SESSION binlog_format = 'STATEMENT'") as run:
            run(f"{load} other FIELDS TERMINATED BY ','")
            run(f"{load} `{elsewhere}`.t FIELDS TERMINATED BY ','")
            run("INSERT INTO other VALUES (7, 'seven')")
        job.execute("INSERT INTO t VALUES (5, 'five')")
        assert job.catch_up() == {}
        assert ids(job, "t") == [1, 2, 5]
        with client(job, "SET SESSION binlog_format = 'STATEMENT'") as run:
            run(f"{load} loaded FIELDS TERMINATED BY ','")
        job.execute("INSERT INTO t VALUES (6, 'six')")
        parked = job.catch_up()
    assert list(parked) == ["loaded"]
    assert "LOAD DATA" in parked["loaded"]["reason"]
    assert ids(job, "t") == [1, 2, 5, 6]
    job.ask("resnapshot", "loaded")
    assert job.catch_up() == {}
    assert ids(job, "loaded") == [1, 2, 3, 4]


def test_a_hidden_view_parks_only_tables_that_it_can_change(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    job = Job(server, database, tmp_path)
    made(job, "t", "unlike")
    with server.fresh_database() as elsewhere, server.fresh_database() as third:
        server.execute(f"CREATE TABLE u {PLAIN}", database=third)
        server.execute(f"CREATE VIEW v AS SELECT * FROM {third}.u", database=elsewhere)
        server.execute(f"CREATE VIEW w AS SELECT * FROM {database}.t", database=elsewhere)
        assert job.catch_up() == {}
        with client(job, "SET SESSION binlog_format = 'STATEMENT'") as run:
            run(f"INSERT INTO {elsewhere}.v VALUES (7, 'seven')")
        assert job.catch_up() == {}
        with client(job, "SET SESSION binlog_format = 'STATEMENT'") as run:
            run(f"INSERT INTO {elsewhere}.w VALUES (8, 'eight')")
        parked = job.catch_up()
    assert "t" in parked
    assert f"GRANT SHOW VIEW ON `{elsewhere}`.`w`" in parked["t"]["reason"]


def test_what_a_timestamp_is_is_the_sessions(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    job = Job(server, database, tmp_path)
    made(job, "t", "u")
    assert job.catch_up() == {}
    for explicit, table in ((0, "t"), (1, "u")):
        with client(job, f"SET SESSION explicit_defaults_for_timestamp = {explicit}") as run:
            run(f"ALTER TABLE {table} ADD COLUMN c TIMESTAMP")
    assert job.catch_up() == {}
    assert all(row["c"] is not None for row in job.rows("t"))
    # Rows from before the column keep the shape that they had.
    assert [row.get("c") for row in job.rows("u")] == [None, None]


TEXTS = ["привет", "я", "hello"]


def test_a_new_database_has_the_character_set_of_its_session(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    new = f"{database}_new"
    # From the beginning of the log, in which the database is made.
    source = {"tables": [rf"{new}\..*"], "startup": {"mode": "earliest"}}
    job = Job(server, database, tmp_path, source=source)
    try:
        with client(job, "SET collation_server = cp1251_bin", f"CREATE DATABASE {new}") as run:
            run(f"CREATE TABLE {new}.t (id INT PRIMARY KEY, v VARCHAR(20), e ENUM('да', 'нет'))")
            for key, text in enumerate(TEXTS):
                run(f"INSERT INTO {new}.t VALUES ({key}, '{text}', 'нет')")
            # Another one now: the server cannot be asked.
            run(f"ALTER DATABASE {new} CHARACTER SET latin1")
        assert job.catch_up() == {}
    finally:
        server.execute(f"DROP DATABASE IF EXISTS {new}")
    assert [(row["v"], row["e"]) for row in job.rows("t")] == [(text, "нет") for text in TEXTS]


def test_a_map_of_the_log_that_contradicts_what_is_known_parks_its_table(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    """By changes that are not in the log: what a map says otherwise has a reason that this program does not know."""
    unlogged = {
        "named": "MODIFY v TEXT CHARACTER SET cp1251",
        "labelled": "MODIFY e ENUM('нет', 'да')",
        "keyed": "DROP PRIMARY KEY, ADD PRIMARY KEY (k)",
        "nullable": "MODIFY k INT NULL",
    }
    job = Job(server, database, tmp_path)
    for table in (*unlogged, "healthy"):
        job.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, k INT NOT NULL, v TEXT CHARACTER SET koi8r, "
            "e ENUM('да', 'нет') CHARACTER SET utf8mb4)",
            f"INSERT INTO {table} VALUES (1, 1, 'я', 'да')",
        )
    assert job.catch_up() == {}
    with client(job, "SET SESSION sql_log_bin = 0") as run:
        for table, change in unlogged.items():
            run(f"ALTER TABLE {table} {change}")
    job.execute(*(f"INSERT INTO {table} VALUES (2, 2, 'ю', 'нет')" for table in (*unlogged, "healthy")))
    parked = job.catch_up()
    # MySQL 5.7 says no more of a column than whether it may be NULL.
    seen = ["nullable"] if server.scalar("SELECT @@version").startswith("5.7") else sorted(unlogged)
    assert sorted(parked) == seen
    assert all("does not fit its known schema" in parked[table]["reason"] for table in seen)
    assert [row["v"] for row in job.rows("healthy")] == ["я", "ю"]
    for table in seen:
        job.ask("resnapshot", table)
    assert job.catch_up() == {}
    assert [row["e"] for row in job.rows("nullable")] == ["да", "нет"]


def test_types_that_a_mode_changes_are_those_of_the_statements_session(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    job = Job(mariadb, mariadb_database, tmp_path)
    made(job, "t", "u", "w")
    assert job.catch_up() == {}
    with client(job, "SET SESSION sql_mode = 'ORACLE'") as run:
        run("ALTER TABLE t ADD COLUMN b BLOB, ADD COLUMN n NUMBER, ADD COLUMN m NUMBER(5,2), ADD COLUMN d DATE")
        run("INSERT INTO t VALUES (3, 'three', 'bytes', 1.5, 2.25, '2024-01-01 10:00:00')")
    with client(job, "SET SESSION sql_mode = 'MAXDB'") as run:
        run("ALTER TABLE u ADD COLUMN c TIMESTAMP")
        run("INSERT INTO u VALUES (3, 'three', '2024-01-01 10:00:00')")
    with client(job) as run:
        run("ALTER TABLE w ADD COLUMN c maxdb_schema.timestamp, ADD COLUMN d oracle_schema.date")
        run("INSERT INTO w VALUES (3, 'three', '2024-01-01 10:00:00', '2024-01-01 11:00:00')")
    assert job.catch_up() == {}
    (b, n, m, d) = (job.rows("t")[-1][name] for name in "bnmd")
    assert (n, str(m), str(d)[:10]) == (1.5, "2.25", "2024-01-01")
    assert b is not None
    assert str(job.rows("u")[-1]["c"]).replace("T", " ").startswith("2024-01-01 10:00:00")
    assert str(job.rows("w")[-1]["d"]).replace("T", " ").startswith("2024-01-01 11:00:00")


def test_literals_are_read_as_the_connection_has_them(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    job = Job(server, database, tmp_path)
    made(job, "lost", "binary_names")
    assert job.catch_up() == {}
    with client(job, "SET collation_connection = latin1_swedish_ci") as run:
        run("ALTER TABLE lost ADD COLUMN e ENUM('да', 'é') CHARACTER SET utf8mb4 NOT NULL DEFAULT 'да'")
        run("INSERT INTO lost VALUES (3, 'three', 'é')")
    with client(job, "SET NAMES binary") as run:
        run("ALTER TABLE binary_names ADD COLUMN `имя` ENUM('да', 'нет') CHARACTER SET utf8mb4")
        run("INSERT INTO binary_names VALUES (3, 'three', 'нет')")
    parked = job.catch_up()
    assert job.rows("binary_names")[-1]["имя"] == "нет"
    if server.scalar("SELECT @@version").startswith("5.7"):
        # Its log has no labels, and a label with a ? may stand for another one there.
        assert list(parked) == ["lost"]
        assert "has a label with a ?" in parked["lost"]["reason"]
    else:
        assert parked == {}
        assert job.rows("lost")[-1]["e"] == "é"


@pytest.mark.parametrize("name", ["mariadb", "mysql80", "mysql57", "mysql_newest"])
def test_every_collation_of_a_server_is_known_by_its_number(request: pytest.FixtureRequest, name: str) -> None:
    with session(request.getfixturevalue(name), "root") as connection:
        collations = collation_numbers(connection)
    assert len(collations) > 200
    strange = [n for n, (charset, _) in collations.items() if not same_charset(charset_of_collation(n), charset)]
    assert strange == []
