"""What the log, or the catalogue, says of one table concerns that table: the healthy one beside it goes on.

Each story ends with the way out that its message names, tried.
"""

from __future__ import annotations

import datetime
import os
import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from tests.integration.one_table_job import Job

pytestmark = pytest.mark.server


def warnings(job: Job) -> str:
    return "\n".join(str(event) for event in job.events if event["event"] == "warning")


# A row image that is not FULL -----------------------------------------------------------------------------------------


def _partial(job: Job) -> None:
    job.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT DEFAULT 5)",
        "CREATE TABLE healthy (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)",
        "INSERT INTO healthy VALUES (1)",
    )
    assert job.catch_up() == {}
    job.execute("INSERT INTO t VALUES (3, 3, 3)", "INSERT INTO healthy VALUES (2)")
    job.server.execute(
        "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE t SET v = 20 WHERE id = 2", database=job.database
    )
    job.execute("INSERT INTO healthy VALUES (3)", "INSERT INTO t VALUES (4, 4, 4)")


@pytest.mark.long_variants("mysql80", suite="servers")
def test_rows_that_are_not_whole_park_their_table(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    job = Job(server, database, tmp_path)
    _partial(job)
    parked = job.catch_up()
    assert list(parked) == ["t"]
    assert "binlog_row_image = FULL" in parked["t"]["reason"]
    assert [row["id"] for row in job.rows("healthy")] == [1, 2, 3]
    assert [row["id"] for row in job.rows("t")] == [1, 2, 3]
    job.execute("INSERT INTO healthy VALUES (4)", "INSERT INTO t VALUES (5, 5, 5)")
    assert list(job.catch_up()) == ["t"]
    assert [row["id"] for row in job.rows("healthy")] == [1, 2, 3, 4]
    job.ask("resnapshot", "t")
    assert job.catch_up() == {}
    assert [(row["id"], row["v"]) for row in job.rows("t")] == [(1, 1), (2, 20), (3, 3), (4, 4), (5, 5)]


@pytest.mark.long_variants("mysql80", suite="servers")
def test_a_table_whose_rows_are_not_whole_begins_again_where_lost_logs_do(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    job = Job(server, database, tmp_path, pipeline={"on_log_lost": "resnapshot"})
    _partial(job)
    assert job.catch_up() == {}
    assert [(row["id"], row["v"]) for row in job.rows("t")] == [(1, 1), (2, 20), (3, 3), (4, 4)]
    assert [row["id"] for row in job.rows("healthy")] == [1, 2, 3]


# XA transactions whose rows the log reader did not want, or never saw -------------------------------------------------


def _prepare(job: Job, xid: str, *statements: str) -> None:
    """Prepared in a session that ends."""
    job.server.execute(
        f"XA START '{xid}'", *statements, f"XA END '{xid}'", f"XA PREPARE '{xid}'", database=job.database
    )


@pytest.mark.long_variants("mysql80", suite="servers")
def test_rows_prepared_before_their_table_was_selected_are_not_lost(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    job = Job(server, database, tmp_path, "a")
    for table in ("a", "b"):
        job.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    assert job.catch_up() == {}
    _prepare(job, "early", "INSERT INTO a VALUES (2)", "INSERT INTO b VALUES (2)")
    assert job.catch_up() == {}
    wider = Job(server, database, tmp_path, "a", "b")
    assert wider.catch_up() == {}
    assert [row["id"] for row in wider.rows("b")] == [1]
    job.execute("XA COMMIT 'early'", "INSERT INTO a VALUES (3)", "INSERT INTO b VALUES (3)")
    parked = wider.catch_up()
    assert list(parked) == ["b"]
    assert "that are not in its snapshot" in parked["b"]["reason"]
    assert [row["id"] for row in wider.rows("a")] == [1, 2, 3]
    wider.ask("resnapshot", "b")
    assert wider.catch_up() == {}
    assert [row["id"] for row in wider.rows("b")] == [1, 2, 3]


def test_a_transaction_prepared_before_the_job_began_parks_the_tables_that_it_has_rows_of(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    """The log behind its XA PREPARE has further files, and another transaction of its name behind XA COMMIT."""
    job, away = Job(server, database, tmp_path, "a", "b"), f"{database}_away"
    server.execute(f"DROP DATABASE IF EXISTS {away}", f"CREATE DATABASE {away}")
    job.execute(f"CREATE TABLE {away}.c (id INT PRIMARY KEY)")
    for table in ("a", "b", "other"):
        job.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    _prepare(job, "foreign", "INSERT INTO a VALUES (10)")
    job.execute("XA ROLLBACK 'foreign'", "FLUSH BINARY LOGS")
    _prepare(job, "before", "INSERT INTO b VALUES (2)", "INSERT INTO other VALUES (2)")
    _prepare(job, "foreign", f"INSERT INTO {away}.c VALUES (1)", "INSERT INTO other VALUES (3)")
    job.execute("FLUSH BINARY LOGS", "CREATE TABLE later (id INT PRIMARY KEY)")
    assert job.catch_up() == {}
    job.execute("XA COMMIT 'foreign'", "INSERT INTO a VALUES (2)", "INSERT INTO b VALUES (3)")
    _prepare(job, "foreign", "INSERT INTO b VALUES (4)")
    job.execute("XA ROLLBACK 'foreign'", f"DROP DATABASE {away}")
    assert job.catch_up() == {}
    assert [[row["id"] for row in job.rows(table)] for table in ("a", "b")] == [[1, 2], [1, 3]]
    job.execute("XA COMMIT 'before'", "INSERT INTO a VALUES (3)")
    parked = job.catch_up()
    assert list(parked) == ["b"]
    assert f"some are of {database}.b. Read the table again: raycdc tables resnapshot" in parked["b"]["reason"]
    job.ask("resnapshot", "b")
    assert job.catch_up() == {}
    assert [[row["id"] for row in job.rows(table)] for table in ("a", "b")] == [[1, 2, 3], [1, 2, 3]]


def test_a_prepared_transaction_that_the_log_does_not_have_any_more_parks_all_tables(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    job = Job(server, database, tmp_path, "a", "b")
    for table in ("a", "b", "other"):
        job.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    _prepare(job, "before", "INSERT INTO other VALUES (2)")
    job.execute("FLUSH BINARY LOGS")
    assert job.catch_up() == {}
    server.purge_logs(flushed=True)
    job.execute("XA COMMIT 'before'", "INSERT INTO a VALUES (2)")
    parked = job.catch_up()
    assert sorted(parked) == ["a", "b"]
    assert "its XA PREPARE is not in the log any more" in parked["a"]["reason"]
    for table in parked:
        job.ask("resnapshot", table)
    assert job.catch_up() == {}
    assert [[row["id"] for row in job.rows(table)] for table in ("a", "b")] == [[1, 2], [1]]


# A table whose file is away -------------------------------------------------------------------------------------------


@pytest.mark.long_variants("mysql80", suite="servers")
def test_a_table_that_the_server_cannot_read_stops_no_other(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    job = Job(server, database, tmp_path)
    for table in ("bad", "healthy"):
        job.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    saved = tmp_path / "saved"
    saved.mkdir()
    with closing(server.connect(database=database)) as session, session.cursor() as cursor:
        cursor.execute("FLUSH TABLES bad FOR EXPORT")
        files = [server.data_dir / database / f"bad.{end}" for end in ("ibd", "cfg")]
        owner = files[0].stat()
        for file in files:
            shutil.copy(file, saved)
        cursor.execute("UNLOCK TABLES")
    job.execute("ALTER TABLE bad DISCARD TABLESPACE")
    for rows in ([1], [1, 2]):
        parked = job.catch_up()
        assert list(parked) == ["bad"]
        assert "cannot be read" in parked["bad"]["reason"]
        assert [row["id"] for row in job.rows("healthy")] == rows
        job.execute(f"INSERT INTO healthy VALUES ({len(rows) + 1})")
    for file in files:
        shutil.copy(saved / file.name, file)
        os.chown(file, owner.st_uid, owner.st_gid)
    job.execute("ALTER TABLE bad IMPORT TABLESPACE")
    job.ask("resnapshot", "bad")
    assert job.catch_up() == {}
    assert [[row["id"] for row in job.rows(table)] for table in ("bad", "healthy")] == [[1], [1, 2, 3]]


# Foreign keys whose cascades are not in the log -----------------------------------------------------------------------


@pytest.mark.long_variants("mysql80", suite="servers")
def test_a_table_that_gets_a_cascade_is_followed_no_further(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    job = Job(server, database, tmp_path)
    job.execute(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT)",
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO child VALUES (1, 1), (2, 2)",
    )
    assert job.catch_up() == {}
    cascades = "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE"
    job.execute(
        f"ALTER TABLE child ADD CONSTRAINT k {cascades} /* the server does not log it */ CASCADE",
        f"CREATE TABLE fresh (id INT PRIMARY KEY, p INT, CONSTRAINT l {cascades} SET NULL)",
        "INSERT INTO fresh VALUES (1, 1), (2, 2)",
        "DELETE FROM parent WHERE id = 1",
        "ALTER TABLE fresh DROP FOREIGN KEY l",
        "INSERT INTO parent VALUES (3)",
    )
    # The key is still there: at a start that finds it, and at those after it.
    for _ in range(2):
        parked = job.catch_up()
        assert list(parked) == ["child"]
        assert "on_cascade" in parked["child"]["reason"]
    assert [row["id"] for row in job.rows("parent")] == [2, 3]
    job.ask("resnapshot", "child")
    assert list(job.catch_up()) == ["child"]
    job.execute("ALTER TABLE child DROP FOREIGN KEY k")
    # A new table is looked at, and has no such key any more.
    assert job.rows("fresh") == [{"id": 1, "p": None}, {"id": 2, "p": 2}]
    job.ask("resnapshot", "child")
    assert job.catch_up() == {}
    assert job.rows("child") == [{"id": 2, "p": 2}]


# A table that another session has locked ------------------------------------------------------------------------------


def test_a_locked_table_holds_up_no_start(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    job = Job(server, database, tmp_path)
    for table in ("t", "healthy"):
        job.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    assert job.catch_up() == {}
    job.execute("INSERT INTO t VALUES (2)", "INSERT INTO healthy VALUES (2)")
    with closing(server.connect(database=database)) as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        # Should a start wait for the table, it waits until then, and the test fails instead of hanging.
        released = threading.Timer(45, server.execute, [f"KILL {holder.thread_id()}"])
        released.start()
        try:
            assert job.catch_up() == {}
            assert released.is_alive()
        finally:
            released.cancel()
    assert [[row["id"] for row in job.rows(table)] for table in ("t", "healthy")] == [[1, 2], [1, 2]]


# DECIMAL beyond MySQL's scale -----------------------------------------------------------------------------------------


def test_decimals_with_38_digits_behind_the_point(
    mariadb: MariaDbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")
    with mariadb.fresh_database("one") as database:
        job = Job(mariadb, database, tmp_path, "t")
        small, large = "0." + "0" * 37 + "1", "-0." + "9" * 38
        job.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, a DECIMAL(38,38), b DECIMAL(65,38), c DECIMAL(38,31))",
            "CREATE TABLE other (id INT PRIMARY KEY, a DECIMAL(65,38))",
            f"INSERT INTO t VALUES (1, {small}, {small}, {small})",
        )
        assert job.catch_up() == {}
        nines = "9" * 27 + "." + "9" * 38
        job.execute(f"INSERT INTO other VALUES (1, {small})", f"INSERT INTO t VALUES (2, {large}, -{nines}, 1.5)")
        assert job.catch_up() == {}
        assert [(row["a"], row["b"]) for row in job.rows("t")] == [(small, small), (large, f"-{nines}")]


# Masked rows under another name ---------------------------------------------------------------------------------------


def _mask(database: str, *tables: str) -> list[dict[str, Any]]:
    return [{"columns": f"{database}.{table}.email", "method": "mask", "length": 3} for table in tables]


def test_masked_rows_are_shown_under_no_other_name(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    columns = "(id INT PRIMARY KEY, email VARCHAR(40))"
    stories = ("renamed", "swapped", "liked", "away", "alike")
    hidden = _mask(database, *stories, "alike2")
    job = Job(server, database, tmp_path, "[a-gi-z].*", mask=hidden)
    for name in (*stories, "shown"):
        job.execute(f"CREATE TABLE {name} {columns}", f"INSERT INTO {name} VALUES (1, 'secret@{name}')")
    job.execute("CREATE TABLE open_one (id INT PRIMARY KEY, v INT)", "UPDATE shown SET email = 'public'")
    assert job.catch_up() == {}
    job.execute(
        "RENAME TABLE renamed TO renamed2",
        "RENAME TABLE swapped TO x, shown TO swapped, x TO shown",
        "CREATE TABLE liked2 LIKE liked",
        "INSERT INTO liked2 SELECT * FROM liked",
        # Over a name that is not captured.
        "RENAME TABLE away TO hidden_one",
        "ALTER TABLE alike RENAME TO alike2",
        "INSERT INTO open_one VALUES (1, 1)",
    )
    job.catch_up()
    job.execute("RENAME TABLE hidden_one TO away2", "INSERT INTO open_one VALUES (2, 2)")
    parked = job.catch_up()
    assert sorted(parked) == ["away2", "liked2", "renamed2", "shown"]
    assert all("[[mask]] hides 'email'" in entry["reason"] for entry in parked.values())
    assert "secret" not in job.text()
    assert (job.rows("alike2"), job.rows("swapped")) == ([{"id": 1, "email": "***"}],) * 2
    assert [row["id"] for row in job.rows("open_one")] == [1, 2]
    # A request alone does not show them; with the same masks they are followed.
    job.ask("resnapshot", "liked2")
    assert sorted(job.catch_up()) == ["away2", "liked2", "renamed2", "shown"]
    hidden += _mask(database, "renamed2", "shown", "away2")
    # What is made anew has rows of its own.
    job.execute("DROP TABLE liked2", f"CREATE TABLE liked2 {columns}", "INSERT INTO liked2 VALUES (7, 'new')")
    for name in parked:
        job.ask("resnapshot", name)
    assert job.catch_up() == {}
    assert "secret" not in job.text()
    assert job.rows("away2") == [{"id": 1, "email": "***"}]
    assert job.rows("liked2") == [{"id": 7, "email": "new"}]


def test_a_masked_column_is_shown_under_no_other_name(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    stories = ("renamed", "swapped", "back", "whole")
    hidden = _mask(database, *stories)
    job = Job(server, database, tmp_path, mask=hidden)
    for name in stories:
        columns = "(id INT PRIMARY KEY, email VARCHAR(40), nick VARCHAR(40))"
        job.execute(f"CREATE TABLE {name} {columns}", f"INSERT INTO {name} VALUES (1, 'secret@{name}', 'public')")
    assert job.catch_up() == {}
    job.execute(
        "ALTER TABLE renamed RENAME COLUMN email TO mail",
        "ALTER TABLE swapped RENAME COLUMN email TO nick, RENAME COLUMN nick TO email",
        "ALTER TABLE back RENAME COLUMN email TO mail",
        "ALTER TABLE whole RENAME COLUMN email TO mail, RENAME TO unmasked",
    )
    assert set(job.catch_up()) >= {"renamed", "swapped", "back"}
    # What the exit tells to do shows them as little.
    for name in ("renamed", "swapped", "back", "unmasked"):
        job.ask("resnapshot", name)
    parked = job.catch_up()
    assert sorted(parked) == ["back", "renamed", "swapped", "unmasked"]
    assert "was 'email', which [[mask]] hides" in parked["renamed"]["reason"]
    job.execute("ALTER TABLE back RENAME COLUMN mail TO email")
    hidden += [{"columns": rf"{database}\.(renamed|unmasked)\.mail", "method": "mask", "length": 3}]
    hidden += [{"columns": rf"{database}\.swapped\.nick", "method": "mask", "length": 3}]
    for name in parked:
        job.ask("resnapshot", name)
    assert job.catch_up() == {}
    assert "secret" not in job.text()
    assert job.rows("back") == [{"id": 1, "email": "***", "nick": "public"}]
    assert job.rows("renamed") == [{"id": 1, "mail": "***", "nick": "public"}]


# Tables made anew -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True], ids=["within one run", "a restart between"])
def test_a_table_that_is_dropped_and_made_anew_with_other_columns(
    server: DatabaseServer, database: str, tmp_path: Path, *, restarts: bool
) -> None:
    job = Job(server, database, tmp_path, sink={"type": "delta"}, write="upsert")
    old = "(id INT PRIMARY KEY, v INT, w VARCHAR(9))"
    tables = ("dropped", "renamed", "same", "narrow", "keyed", "copied")
    for table in tables:
        job.execute(f"CREATE TABLE {table} {old}", f"INSERT INTO {table} VALUES (1, 1, 'a'), (2, 2, 'b')")
    job.execute("CREATE TABLE healthy (id INT PRIMARY KEY)", "INSERT INTO healthy VALUES (1)")
    assert job.catch_up() == {}
    for table in tables:
        job.execute(f"INSERT INTO {table} VALUES (3, 3, 'c')")
        job.execute(f"RENAME TABLE {table} TO {table}_old" if table == "renamed" else f"DROP TABLE {table}")
    if restarts:
        job.execute("INSERT INTO healthy VALUES (2)")
        job.catch_up()
    job.execute(
        "CREATE TABLE dropped (id INT PRIMARY KEY, v VARCHAR(9), x DATE)",
        "CREATE TABLE renamed (id INT PRIMARY KEY, v VARCHAR(9))",
        f"CREATE TABLE same {old}",
        "CREATE TABLE narrow (id INT PRIMARY KEY, v TINYINT)",
        "CREATE TABLE keyed (id INT, v VARCHAR(9), PRIMARY KEY (id, v))",
        "CREATE TABLE copied LIKE dropped",
        "INSERT INTO dropped VALUES (7, 'x', '2024-02-03')",
        "INSERT INTO renamed VALUES (7, 'x')",
        "INSERT INTO same VALUES (7, 7, 'x')",
        "INSERT INTO narrow VALUES (7, 8)",
        "INSERT INTO keyed VALUES (7, 'x')",
        "INSERT INTO copied (id, v) VALUES (7, 'x')",
        "INSERT INTO healthy VALUES (3)",
    )
    assert set(job.catch_up()) <= {"keyed"}

    def rows(table: str) -> list[dict[str, Any]]:
        return sorted(read_delta(tmp_path / "lake" / database / table).to_pylist(), key=lambda row: row["id"])

    def cells(table: str, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in names) for row in rows(table)]

    assert cells("dropped", "id", "v", "x") == [(7, "x", datetime.date(2024, 2, 3))]
    assert cells("renamed", "id", "v") == [(7, "x")]
    assert cells("same", "id", "v", "w") == [(7, 7, "x")]
    assert cells("narrow", "id", "v") == [(7, 8)]
    assert cells("copied", "id", "v") == [(7, "x")]
    assert cells("healthy", "id")[-1] == (3,)


def test_a_database_that_is_dropped_and_made_anew(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    job = Job(server, database, tmp_path, sink={"type": "delta"}, write="upsert")
    job.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    assert job.catch_up() == {}
    server.execute(
        f"DROP DATABASE {database}",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(9))",
        f"INSERT INTO {database}.t VALUES (7, 'x')",
    )
    assert job.catch_up() == {}
    assert read_delta(tmp_path / "lake" / database / "t").to_pylist() == [{"id": 7, "v": "x"}]


# What the catalogue says of one table ---------------------------------------------------------------------------------


def test_what_the_catalogue_says_in_other_ways_ends_nothing(
    server: DatabaseServer, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Defaults that are no text, keys of first characters, sequences; and columns that the log keeps compressed."""
    job = Job(server, database, tmp_path, source={"snapshot": {"chunk_rows": 100}})
    letters = ", ".join(f"('{number:04d}', {number})" for number in range(500))
    job.execute(
        r"CREATE TABLE bytes (id INT PRIMARY KEY, b BINARY(1) DEFAULT X'FF', c VARBINARY(9) DEFAULT X'61FF00')",
        "CREATE TABLE prefix (k TEXT, id INT, PRIMARY KEY (k(4)))",
        "CREATE TABLE prefixes (k VARCHAR(9), id INT, PRIMARY KEY (k(4), id), KEY (id))",
        "CREATE TABLE healthy (id INT PRIMARY KEY)",
        "INSERT INTO bytes VALUES (1, X'FE', X'FF')",
        f"INSERT INTO prefix VALUES {letters}",
        f"INSERT INTO prefixes VALUES {letters}",
        "ANALYZE TABLE prefix, prefixes",
    )
    mariadb = server.flavor == "mariadb"
    if mariadb:
        job.execute(
            "CREATE SEQUENCE numbers",
            "CREATE TABLE packed (id INT PRIMARY KEY, v TEXT COMPRESSED)",
            f"INSERT INTO packed VALUES (1, '{'x' * 200}')",
        )
    parked = job.catch_up()
    assert list(parked) == (["packed"] if mariadb else [])
    job.execute(
        "INSERT INTO bytes (id) VALUES (2)", "INSERT INTO prefix VALUES ('z', 1000)", "INSERT INTO healthy VALUES (1)"
    )
    if mariadb:
        job.execute("SELECT NEXTVAL(numbers)", "CREATE SEQUENCE more", "SELECT NEXTVAL(more)")
        job.execute("RENAME TABLE more TO others", "SELECT NEXTVAL(others)", "DROP SEQUENCE numbers")
        job.execute("CREATE TABLE numbers (id INT PRIMARY KEY)", "INSERT INTO numbers VALUES (5)")
    parked = job.catch_up()
    assert list(parked) == (["packed"] if mariadb else [])
    assert len(job.rows("bytes")) == 2
    assert [row["id"] for row in job.rows("prefix")] == [*range(500), 1000]
    assert [row["id"] for row in job.rows("prefixes")] == [*range(500)]
    assert job.rows("healthy") == [{"id": 1}]
    if mariadb:
        assert "COMPRESSED" in parked["packed"]["reason"]
        assert job.rows("numbers") == [{"id": 5}]
        job.execute("ALTER TABLE packed MODIFY v TEXT", "INSERT INTO packed VALUES (2, 'y')")
        job.ask("resnapshot", "packed")
        assert job.catch_up() == {}
        assert job.rows("packed") == [{"id": 1, "v": "x" * 200}, {"id": 2, "v": "y"}]
