"""`raycdc run` into a PostgreSQL that others use, too: what they do parks a table by name, or does no harm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from tests.e2e.test_jdbc import sink_keys
from tests.e2e.test_parked_targets import make
from tests.e2e.test_refusing_targets import parked_run
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up
from tests.support.table_commands import tables_command

pytestmark = pytest.mark.server

DATABASE = "touched"
NAMES = ("adopted", "bent", "healthy", "nul", "quiet", "remade", "swapped")
COLUMNS = "(id integer PRIMARY KEY, v integer, t text)"
#: What others do at the database, and then the source's changes.
OTHERS = (
    f"CREATE FUNCTION {DATABASE}.bend() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.v := 0; RETURN NEW; END'",
    f"CREATE TRIGGER bends BEFORE UPDATE ON {DATABASE}.bent FOR EACH ROW EXECUTE FUNCTION {DATABASE}.bend()",
    f"CREATE TRIGGER bends BEFORE UPDATE ON {DATABASE}.quiet FOR EACH ROW EXECUTE FUNCTION {DATABASE}.bend()",
    f"CREATE UNIQUE INDEX own ON {DATABASE}.swapped (v)",
    f"DROP TABLE {DATABASE}.remade",
    f"CREATE TABLE {DATABASE}.remade {COLUMNS}",
)
CHANGES = (
    "TRUNCATE adopted",
    "INSERT INTO adopted VALUES (3, 3, 'c')",
    "UPDATE bent SET v = 5 WHERE id = 1",
    "INSERT INTO healthy VALUES (3, 3, 'c')",
    "INSERT INTO nul VALUES (3, 3, CONCAT('c', CHAR(0)))",
    "UPDATE swapped SET v = 9 WHERE id = 1",
    "UPDATE swapped SET v = 1 WHERE id = 2",
    "UPDATE swapped SET v = 2 WHERE id = 1",
    "INSERT INTO remade VALUES (3, 3, 'c')",
)


def test_a_database_that_others_use_too(mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path) -> None:
    make(
        mariadb,
        DATABASE,
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT, t VARCHAR(20))" for name in NAMES),
        *(f"INSERT INTO {name} VALUES (1, 1, 'a'), (2, 2, 'b')" for name in NAMES),
    )

    def source(*statements: str) -> None:
        mariadb.execute(*statements, database=DATABASE)

    with postgres.fresh_database() as home:

        def sink(*statements: str) -> list[tuple[object, ...]]:
            return postgres.execute(*statements, database=home)

        def equal(*names: str) -> None:
            for name in names:
                with mariadb.connect(database=DATABASE) as connection, connection.cursor() as cursor:
                    cursor.execute(f"SELECT id, v, t FROM {name} ORDER BY id")
                    expected = [tuple(row) for row in cursor.fetchall()]
                assert sink(f"SELECT id, v, t FROM {DATABASE}.{name} ORDER BY id") == expected, name

        sink(
            f"CREATE SCHEMA {DATABASE}",
            f"CREATE TABLE {DATABASE}.adopted {COLUMNS}",
            f"INSERT INTO {DATABASE}.adopted VALUES (100, 1, 'theirs')",
        )
        job = Job(tmp_path, mariadb, DATABASE, (r"\w+",), sink="jdbc", sink_keys=sink_keys(postgres, home), local=True)
        job.pipeline = 'on_existing = "merge"'
        environment = {**os.environ, "RAYCDC_TEST_PASSWORD": mariadb.cdc_user}
        catch_up(job)
        sink(*OTHERS)
        source(*CHANGES)
        checked = completed(("check", str(job.configuration())), environment=environment, folder=tmp_path).stdout
        assert f"{DATABASE}.quiet in postgresql" in checked
        said = parked_run(job, "adopted", "bent", "nul", "quiet", "remade")
        assert "has a trigger (bends) before each row" in said
        assert "column t has a NUL, and no text of PostgreSQL has (the row at " in said
        assert "may have rows of others" in said
        equal("healthy", "swapped")
        assert sink(f"SELECT id FROM {DATABASE}.adopted ORDER BY id") == [(1,), (2,), (100,)]
        assert sink(f"SELECT v FROM {DATABASE}.bent ORDER BY id") == [(1,), (2,)]

        # The ways out that people are told.
        sink(f"DROP TRIGGER bends ON {DATABASE}.quiet")
        source("UPDATE nul SET t = 'c' WHERE id = 3")
        for name in ("nul", "quiet"):
            tables_command(job, "resnapshot", f"{DATABASE}.{name}")
        for name in ("adopted", "bent", "remade"):
            assert name == "remade" or f"raycdc tables resnapshot CONFIG {DATABASE}.{name} --replace" in said
            tables_command(job, "resnapshot", f"{DATABASE}.{name}", "--replace")
        catch_up(job)
        equal(*NAMES)
        source("DELETE FROM adopted WHERE id = 3", "INSERT INTO remade VALUES (4, 4, 'd')")
        catch_up(job)
        equal(*NAMES)


def test_rows_that_a_database_can_never_have_are_left_out_as_the_user_says(
    mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    make(
        mariadb,
        DATABASE,
        "CREATE TABLE nul (id INT PRIMARY KEY, v INT, t VARCHAR(20))",
        "INSERT INTO nul VALUES (1, 1, 'a'), (2, 2, CONCAT('b', CHAR(0)))",
    )
    with postgres.fresh_database() as home:
        keys = sink_keys(postgres, home)
        job = Job(tmp_path, mariadb, DATABASE, ("nul",), sink="jdbc", sink_keys=keys, local=True)
        job.pipeline = 'on_bad_record = "dead-letter"'
        catch_up(job)
        mariadb.execute("UPDATE nul SET t = CONCAT('a', CHAR(0)) WHERE id = 1", database=DATABASE)
        mariadb.execute("INSERT INTO nul VALUES (3, 3, 'c')", database=DATABASE)
        catch_up(job)
        assert postgres.execute(f"SELECT id FROM {DATABASE}.nul ORDER BY id", database=home) == [(3,)]
        letters = "".join(path.read_text() for path in (job.state / "dead_letters").glob("*.jsonl"))
        assert letters.count("column t has a NUL") == 2
        mariadb.execute("UPDATE nul SET t = 'good'", database=DATABASE)
        catch_up(job)
        rows = postgres.execute(f"SELECT id, t FROM {DATABASE}.nul ORDER BY id", database=home)
        assert rows == [(1, "good"), (2, "good"), (3, "good")]


def test_a_database_of_one_byte_each_character_goes_on_without_other_ones(
    mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    make(
        mariadb,
        DATABASE,
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET utf8mb4)",
        "INSERT INTO t VALUES (1, 'Zürich'), (2, '東京')",
    )
    postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        keys = sink_keys(postgres, "latin")
        job = Job(tmp_path, mariadb, DATABASE, ("t",), sink="jdbc", sink_keys=keys, local=True)
        said = parked_run(job, "t")
        assert "column v has a character that the encoding LATIN1 of the database lacks" in said
        job.pipeline = 'on_bad_record = "skip"'
        tables_command(job, "resnapshot", f"{DATABASE}.t")
        catch_up(job)
        held = postgres.execute(f"SELECT id, convert_to(v, 'UTF8') FROM {DATABASE}.t", database="latin")
        assert held == [(1, "Zürich".encode())]
    finally:
        postgres.execute("DROP DATABASE latin WITH (FORCE)")


def test_a_missing_database_is_named_with_the_statement_that_makes_it(
    mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    make(mariadb, DATABASE, "CREATE TABLE t (id INT PRIMARY KEY)")
    job = Job(tmp_path, mariadb, DATABASE, ("t",), sink="jdbc", sink_keys=sink_keys(postgres, "nowhere"), local=True)
    run = job.start("--until", "caught-up")
    assert run.wait() != 0
    assert 'CREATE DATABASE "nowhere";' in run.story()


def test_tables_that_refer_to_each_other_in_a_circle_wait_until_their_foreign_keys_are_dropped(
    mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    names = ("hen", "egg", "healthy")
    make(
        mariadb,
        DATABASE,
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, other INT)" for name in names),
        *(f"INSERT INTO {name} VALUES (1, 1)" for name in names),
    )

    with postgres.fresh_database() as home:

        def sink(statement: str) -> list[tuple[object, ...]]:
            return postgres.execute(statement, database=home)

        job = Job(tmp_path, mariadb, DATABASE, names, sink="jdbc", sink_keys=sink_keys(postgres, home), local=True)
        catch_up(job)
        for name, other in (("hen", "egg"), ("egg", "hen")):
            sink(
                f"ALTER TABLE {DATABASE}.{name} ADD CONSTRAINT of_{name} FOREIGN KEY (other) "
                f"REFERENCES {DATABASE}.{other} (id) DEFERRABLE"
            )
        # One of the two is there first.
        mariadb.execute(
            "INSERT INTO hen VALUES (2, NULL)",
            "INSERT INTO egg VALUES (2, 2)",
            "UPDATE hen SET other = 2 WHERE id = 2",
            "INSERT INTO healthy VALUES (2, 2)",
            database=DATABASE,
        )
        said = parked_run(job, "hen", "egg")
        assert "Drop the foreign keys of and to this table there" in said
        assert sink(f"SELECT id FROM {DATABASE}.healthy ORDER BY id") == [(1,), (2,)]
        for name in ("hen", "egg"):
            sink(f"ALTER TABLE {DATABASE}.{name} DROP CONSTRAINT of_{name}")
            tables_command(job, "resnapshot", f"{DATABASE}.{name}")
        catch_up(job)
        for name in names:
            assert sink(f"SELECT id, other FROM {DATABASE}.{name} ORDER BY id") == [(1, 1), (2, 2)]
