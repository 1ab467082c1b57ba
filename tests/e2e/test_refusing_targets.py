"""`raycdc run` over targets that cannot take their share of an epoch: the table is parked, the others go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import MariaDbServer, MySqlServer, PostgresServer
from tests.e2e.test_jdbc import mysql_keys, sink_keys
from tests.e2e.test_parked_tables import rows_of
from tests.e2e.test_parked_targets import MERGED, make, merged_equals_sources
from tests.support.comparing import require_rows_equal
from tests.support.jobs import Job, catch_up
from tests.support.table_commands import listed, tables_command

pytestmark = pytest.mark.server


def parked_run(job: Job, *tables: str, code: int = 4) -> str:
    """Run until caught up; the `tables` are parked then, and no other. No snapshot of theirs is said to be there."""
    run = job.run()
    assert run.wait() == code, run.story()
    done = {event["table"].partition(".")[2] for event in run.events if event["event"] == "snapshot_done"}
    assert done.isdisjoint(tables), run.story()
    phases = {name.partition(".")[2]: entry["phase"] for name, entry in listed(job).items()}
    assert {name for name, phase in phases.items() if phase == "parked"} == set(tables), run.story()
    return run.story()


def test_a_target_that_refuses_is_parked_and_the_others_go_on_until_somebody_decides(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    names = ("healthy", "rekeyed", "renamed", "removed", "dropped")
    make(
        mariadb,
        "refuse",
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT NOT NULL)" for name in names),
        *(f"INSERT INTO {name} SELECT seq, seq FROM seq_1_to_20" for name in names),
    )
    job = Job(tmp_path, mariadb, "refuse", names, local=True)
    catch_up(job)
    shutil.rmtree(job.lake / "refuse" / "removed")
    mariadb.execute(
        "ALTER TABLE rekeyed DROP PRIMARY KEY, ADD PRIMARY KEY (v)",
        "ALTER TABLE renamed RENAME COLUMN id TO number",
        "DROP TABLE dropped",
        "CREATE TABLE dropped (id VARCHAR(20) PRIMARY KEY, v DATE)",
        "INSERT INTO dropped VALUES ('a', '2020-01-01')",
        "INSERT INTO healthy VALUES (21, 1)",
        "UPDATE rekeyed SET id = 100 WHERE v = 3",
        "UPDATE renamed SET v = 100 WHERE number = 3",
        "UPDATE removed SET v = 100 WHERE id = 3",
        database="refuse",
    )
    story = parked_run(job, "rekeyed", "renamed", "removed")
    for said in ("raycdc tables resnapshot CONFIG refuse.renamed", "it was deleted", "renamed to 'number'"):
        assert said in story, story
    require_rows_equal(job, "healthy", "dropped")
    assert read_delta(job.lake / "refuse" / "renamed").num_rows == 20
    mariadb.execute("INSERT INTO healthy VALUES (22, 1)", "DELETE FROM renamed WHERE v = 1", database="refuse")
    parked_run(job, "rekeyed", "renamed", "removed")
    require_rows_equal(job, "healthy")
    for name in ("rekeyed", "renamed", "removed"):
        tables_command(job, "resnapshot", f"refuse.{name}")
    catch_up(job)
    require_rows_equal(job, "healthy", "dropped", "rekeyed", "removed")
    mariadb.execute("DELETE FROM rekeyed WHERE v = 5", "UPDATE removed SET v = 7 WHERE id = 1", database="refuse")
    catch_up(job)
    require_rows_equal(job, "healthy", "dropped", "rekeyed", "removed")
    held = read_delta(job.lake / "refuse" / "renamed").select(["number", "v"]).sort_by("number").to_pylist()
    assert held == [{"number": n, "v": 100 if n == 3 else n} for n in range(2, 21)]


def test_a_table_that_is_too_large_for_its_target_is_parked_before_its_first_row(
    mariadb: MariaDbServer, mysql80: MySqlServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Each is one beyond a limit, counted with the column that marks changed rows where there is one."""

    def columns(count: int) -> str:
        return ", ".join(f"c{n} TINYINT" for n in range(count))

    keys = ", ".join(f"k{n}" for n in range(17))
    tables = {
        "healthy": "id INT PRIMARY KEY, v INT",
        "full": f"id INT PRIMARY KEY, {columns(1015)}",
        "wide": f"id INT PRIMARY KEY, {columns(1016)}",
        "wider": f"id INT PRIMARY KEY, {columns(1599)}",
        "keyed": f"{', '.join(f'k{n} TINYINT' for n in range(17))}, PRIMARY KEY ({keys})",
        "long_key": "a VARCHAR(760) CHARACTER SET latin1, b VARCHAR(9) CHARACTER SET latin1, PRIMARY KEY (a, b)",
        "scaled": "id INT PRIMARY KEY, d DECIMAL(65, 38)",
    }
    make(mariadb, "large", *(f"CREATE TABLE {name} ({inside}) ENGINE=Aria" for name, inside in tables.items()))
    mariadb.execute("INSERT INTO healthy VALUES (1, 1)", "INSERT INTO full (id) VALUES (1)", database="large")
    home = "large_home"
    mysql80.execute(f"CREATE DATABASE {home}")
    try:
        job = Job(
            tmp_path / "mysql",
            mariadb,
            "large",
            (r"\w+",),
            sink="jdbc",
            sink_keys=mysql_keys(mysql80, home),
            local=True,
        )
        job.folder.mkdir()
        parked = ("wide", "wider", "keyed", "long_key", "scaled")
        said = parked_run(job, *parked)
        assert (
            "large.wide has 1,018 columns there, and InnoDB holds at most 1,017, 1 of raycdc's own among them" in said
        )
        assert "large.long_key has 3,076 bytes in its key there, and InnoDB holds at most 3,072" in said
        # At a start that has nothing new of them, and at the change that makes one too wide.
        mariadb.execute(
            "UPDATE full SET c1 = 1",
            "INSERT INTO healthy VALUES (2, 2)",
            "ALTER TABLE full ADD more TINYINT",
            "INSERT INTO full (id) VALUES (2)",
            database="large",
        )
        said = parked_run(job, "full", *parked)
        assert "large.full has 1,018 columns there" in said
        with mysql80.connect(database="large") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT (SELECT COUNT(*) FROM healthy), (SELECT c1 FROM full)")
            assert cursor.fetchall() == ((2, 1),)
    finally:
        mysql80.execute("DROP DATABASE IF EXISTS large", f"DROP DATABASE {home}")
    with postgres.fresh_database() as database:
        keys = sink_keys(postgres, database)
        job = Job(tmp_path / "postgres", mariadb, "large", (r"\w+",), sink="jdbc", sink_keys=keys, local=True)
        job.folder.mkdir()
        assert "large.wider has 1,601 columns there, and PostgreSQL holds at most 1,600" in parked_run(job, "wider")


def test_a_table_that_nobody_follows_owes_no_target(mariadb: MariaDbServer, tmp_path: Path) -> None:
    names = ("kept", "dropped", "left_out")
    make(
        mariadb,
        "owing",
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in names),
        *(f"INSERT INTO {name} VALUES (1), (2)" for name in names),
    )
    job = Job(tmp_path, mariadb, "owing", names, local=True)
    catch_up(job)
    mariadb.execute("DROP TABLE dropped", "INSERT INTO kept VALUES (3)", database="owing")
    catch_up(job)
    job.tables = ("kept", "dropped")
    for name in ("dropped", "left_out"):
        shutil.rmtree(job.lake / "owing" / name)
    mariadb.execute("INSERT INTO kept VALUES (4)", database="owing")
    for _ in range(2):
        run = job.run()
        assert run.wait() == 0, run.story()
        require_rows_equal(job, "kept")
        assert [event for event in run.events if event["event"] in ("snapshot_done", "snapshots_done")] == []
        phases = {t["table"]: t["phase"] for e in run.events if e["event"] == "progress" for t in e["tables"]}
        assert phases["owing.dropped"] == "ended"
    mariadb.execute("CREATE TABLE dropped (id INT PRIMARY KEY)", "INSERT INTO dropped VALUES (7)", database="owing")
    catch_up(job)
    require_rows_equal(job, "kept", "dropped")


def test_the_default_of_a_masked_column_that_is_added_is_masked_in_rows_that_exist(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    make(
        mariadb,
        "hide",
        "CREATE TABLE people (id INT PRIMARY KEY)",
        "CREATE TABLE healthy (id INT PRIMARY KEY)",
        "INSERT INTO people VALUES (1), (2)",
    )
    mask = '[[mask]]\ncolumns = "hide.people.secret"\nmethod = "mask"\nlength = 4\n'
    job = Job(tmp_path, mariadb, "hide", ("people", "healthy"), local=True, sections=mask)
    catch_up(job)
    mariadb.execute(
        "ALTER TABLE people ADD secret VARCHAR(20) DEFAULT 'in the clear'",
        "INSERT INTO people VALUES (3, 'hush')",
        "INSERT INTO healthy VALUES (1)",
        database="hide",
    )
    catch_up(job)
    require_rows_equal(job, "healthy")
    held = read_delta(job.lake / "hide" / "people").sort_by("id").to_pylist()
    assert held == [{"id": n, "secret": "****"} for n in (1, 2, 3)]


def test_other_partitions_park_their_table_until_its_target_is_deleted(mariadb: MariaDbServer, tmp_path: Path) -> None:
    names = ("healthy", "parts")
    make(
        mariadb,
        "partitions",
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT, w INT)" for name in names),
        *(f"INSERT INTO {name} VALUES (1, 1, 1), (2, 2, 2)" for name in names),
    )
    by = '[[transform]]\ntable = "partitions.parts"\npartition_by = ["{}"]\n'
    job = Job(tmp_path, mariadb, "partitions", names, local=True, sections=by.format("v"))
    catch_up(job)
    job.sections = by.format("w")
    mariadb.execute(*(f"INSERT INTO {name} VALUES (3, 3, 3)" for name in names), database="partitions")
    story = parked_run(job, "parts")
    assert "or delete the target; then: raycdc tables resnapshot CONFIG partitions.parts" in story
    require_rows_equal(job, "healthy")
    shutil.rmtree(job.lake / "partitions" / "parts")
    tables_command(job, "resnapshot", "partitions.parts")
    catch_up(job)
    require_rows_equal(job, "healthy", "parts")
    assert DeltaTable(job.lake / "partitions" / "parts").metadata().partition_columns == ["w"]


@pytest.mark.parametrize("trouble", ["deleted", "same key"])
def test_tables_that_share_a_target_begin_again_together(mariadb: MariaDbServer, tmp_path: Path, trouble: str) -> None:
    make(
        mariadb,
        "shards",
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in ("item_1", "item_2", "healthy")),
        "INSERT INTO item_1 VALUES (1, 1), (2, 2)",
        "INSERT INTO item_2 VALUES (11, 1), (12, 2)",
    )
    job = Job(tmp_path, mariadb, "shards", ("item_1", "item_2", "healthy"), local=True, sections=MERGED)
    catch_up(job)
    if trouble == "deleted":
        shutil.rmtree(job.lake / "lake" / "items")
    else:
        mariadb.execute("INSERT INTO item_2 VALUES (2, 99)", database="shards")
    mariadb.execute("INSERT INTO item_1 VALUES (3, 3)", "INSERT INTO healthy VALUES (1, 1)", database="shards")
    story = parked_run(job, "item_1", "item_2")
    assert "raycdc tables resnapshot CONFIG shards.item_1" in story
    require_rows_equal(job, "healthy")
    mariadb.execute("DELETE FROM item_2 WHERE id = 2", "DELETE FROM item_1 WHERE id = 1", database="shards")
    tables_command(job, "resnapshot", "shards.item_2")
    catch_up(job)
    merged_equals_sources(job, "item_1", "item_2")
    mariadb.execute("UPDATE item_1 SET v = 7", "INSERT INTO healthy VALUES (2, 1)", database="shards")
    catch_up(job)
    merged_equals_sources(job, "item_1", "item_2")
    require_rows_equal(job, "healthy")


def test_a_file_sink_whose_folder_somebody_deleted_parks_its_table(mariadb: MariaDbServer, tmp_path: Path) -> None:
    names = ("healthy", "removed")
    make(
        mariadb,
        "files_gone",
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in names),
        *(f"INSERT INTO {name} VALUES (1, 1)" for name in names),
    )
    job = Job(tmp_path, mariadb, "files_gone", names, sink="jsonl", write="changelog", local=True)
    catch_up(job)
    shutil.rmtree(job.lake / "files_gone" / "removed")
    mariadb.execute(*(f"INSERT INTO {name} VALUES (2, 2)" for name in names), database="files_gone")
    parked_run(job, "removed")
    assert sorted(rows_of(job, "healthy")) == [1, 2]
    tables_command(job, "resnapshot", "files_gone.removed")
    catch_up(job)
    assert sorted(rows_of(job, "removed")) == [1, 2]
    # Where no target is as it was, the sink is: nothing is parked, and nothing changed.
    shutil.move(job.lake, tmp_path / "elsewhere")
    refused = job.run()
    assert refused.wait() == 5, refused.story()
    shutil.move(tmp_path / "elsewhere", job.lake)
    catch_up(job)
