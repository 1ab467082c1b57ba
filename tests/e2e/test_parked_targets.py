"""`raycdc run` over changes that a table's targets cannot follow: the table is parked, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import MariaDbServer
from tests.support.comparing import require_rows_equal
from tests.support.jobs import Job, catch_up
from tests.support.table_commands import listed, tables_command

pytestmark = pytest.mark.server

MERGED = r"""
[[route]]
table = 'shards\.item_\d'
to = "lake.items"
"""


def make(server: MariaDbServer, database: str, *statements: str) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    server.execute(*statements, database=database)


@pytest.mark.long_variants("ALTER*", "TRUNCATE*", suite="stories")
@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "ALTER TABLE item_1 MODIFY v INT",
            "It cannot begin again by itself: its rows in lake.items cannot be",
        ),
        (
            "TRUNCATE item_1",
            "truncate_table of shards.item_1: its rows in lake.items cannot be told from those of",
        ),
        (
            "DROP TABLE item_1",
            "drop_table of shards.item_1: its rows in lake.items cannot be told from those of",
        ),
    ],
)
def test_a_merged_table_that_would_begin_again_waits_and_others_go_on(
    mariadb: MariaDbServer, tmp_path: Path, statement: str, said: str
) -> None:
    columns = "(id INT PRIMARY KEY, v VARCHAR(20))"
    make(
        mariadb,
        "shards",
        *(f"CREATE TABLE {name} {columns}" for name in ("item_1", "item_2", "other")),
        "INSERT INTO item_1 SELECT seq, seq FROM seq_1_to_50",
        "INSERT INTO item_2 SELECT seq, seq FROM seq_101_to_150",
        "INSERT INTO other VALUES (1, 'a')",
    )
    job = Job(tmp_path, mariadb, "shards", ("item_1", "item_2", "other"), local=True, sections=MERGED)
    catch_up(job)
    mariadb.execute("UPDATE item_1 SET v = '7' WHERE id = 7", statement, database="shards")
    for number in (2, 3):
        mariadb.execute(
            f"INSERT INTO item_2 VALUES ({150 + number}, 'new')",
            f"INSERT INTO other VALUES ({number}, 'b')",
            database="shards",
        )
        run = job.run()
        assert run.wait() == 4, run.story()
        assert said in run.story()
        assert {name: entry["phase"] for name, entry in listed(job).items()} == {
            "shards.item_1": "parked", "shards.item_2": "stream", "shards.other": "stream"
        }  # fmt: skip
        held = {row["id"]: row["v"] for row in read_delta(job.lake / "lake" / "items").to_pylist()}
        expected = {n: str(n) for n in (*range(1, 51), *range(101, 151))}
        assert held == expected | dict.fromkeys(range(152, 151 + number), "new")
        assert read_delta(job.lake / "shards" / "other").num_rows == number
    assert "raycdc tables resnapshot CONFIG shards.item_1" in run.story()
    said = tables_command(job, "resnapshot", "shards.item_1")
    assert "lake.items is emptied, and shards.item_1, shards.item_2 are read again together" in said
    catch_up(job)
    merged_equals_sources(job, "item_1", "item_2")
    mariadb.execute("UPDATE item_2 SET v = 'x' WHERE id = 105", "DELETE FROM item_2 WHERE id = 106", database="shards")
    catch_up(job)
    merged_equals_sources(job, "item_1", "item_2")


def test_a_new_table_that_must_be_looked_at_joins_a_merged_target_by_itself(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    columns = "(id INT PRIMARY KEY, v VARCHAR(20))"
    make(
        mariadb,
        "joined",
        *(f"CREATE TABLE {name} {columns}" for name in ("item_1", "other")),
        "INSERT INTO item_1 SELECT seq, seq FROM seq_1_to_50",
    )
    job = Job(tmp_path, mariadb, "joined", (r"item_\d",), local=True, sections=MERGED.replace("shards", "joined"))
    catch_up(job)
    # Nobody knows its columns as of the statement, because others came since.
    mariadb.execute(
        "CREATE TABLE item_3 LIKE other",
        "INSERT INTO item_3 VALUES (301, 'x')",
        "ALTER TABLE item_3 MODIFY v VARCHAR(30)",
        "INSERT INTO item_3 VALUES (302, 'y')",
        "UPDATE item_1 SET v = 'z' WHERE id = 1",
        database="joined",
    )
    catch_up(job)
    assert {name: entry["phase"] for name, entry in listed(job).items()} == {
        "joined.item_1": "stream", "joined.item_3": "stream"
    }  # fmt: skip
    merged_equals_sources(job, "item_1", "item_3")


def merged_equals_sources(job: Job, *tables: str, target: str = "items") -> None:
    """The target has the rows of those of `tables` that there are, and no others."""
    expected: dict[int, str] = {}
    with job.server.connect(database=job.database) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for table in {name for (name,) in cursor.fetchall()} & set(tables):
            cursor.execute(f"SELECT id, CAST(v AS CHAR) FROM {table}")
            rows = dict(cursor.fetchall())
            assert not expected.keys() & rows.keys()
            expected |= rows
    held = read_delta(job.lake / "lake" / target).to_pylist()
    assert {row["id"]: None if row["v"] is None else str(row["v"]) for row in held} == expected
    assert len(held) == len(expected)


PLAIN = """
[[transform]]
table = "kept.orders"
projection = "id, {column} AS amount, note"
"""


@pytest.mark.long_variants("*DROP COLUMN*", suite="stories")
@pytest.mark.parametrize(
    ("statement", "after", "column"),
    [
        ("ALTER TABLE orders RENAME COLUMN qty TO pieces", "(id, pieces, note)", "pieces"),
        ("ALTER TABLE orders DROP COLUMN qty, ADD COLUMN pieces INT DEFAULT 4", "(id, note, pieces)", "pieces"),
    ],
)
def test_a_column_that_goes_from_under_a_transform_parks_the_table_until_the_transform_is_mended(
    mariadb: MariaDbServer, tmp_path: Path, statement: str, after: str, column: str
) -> None:
    make(
        mariadb,
        "kept",
        "CREATE TABLE orders (id INT PRIMARY KEY, qty INT, note VARCHAR(20))",
        "CREATE TABLE others (id INT PRIMARY KEY)",
        "INSERT INTO orders SELECT seq, seq % 5, 'n' FROM seq_1_to_20",
    )
    job = Job(tmp_path, mariadb, "kept", ("orders", "others"), local=True, sections=PLAIN.format(column="qty"))
    catch_up(job)
    mariadb.execute(
        "UPDATE orders SET qty = 9 WHERE id = 1",
        statement,
        "INSERT INTO orders (id, note) VALUES (30, 'late')",
        "INSERT INTO others VALUES (1)",
        database="kept",
    )
    for rows in (1, 2):
        run = job.run()
        assert run.wait() == 4, run.story()
        assert "names 'qty', and would mean something else from here on" in run.story()
        assert f"columns were (id, qty, note) and are {after}" in run.story()
        held = {row["id"]: row["amount"] for row in read_delta(job.lake / "kept" / "orders").to_pylist()}
        assert held == {n: 9 if n == 1 else n % 5 for n in range(1, 21)}
        assert read_delta(job.lake / "kept" / "others").num_rows == rows
        mariadb.execute(f"INSERT INTO others VALUES ({rows + 1})", database="kept")
    job.sections = PLAIN.format(column=column)
    tables_command(job, "resnapshot", "kept.orders")
    catch_up(job)
    with mariadb.connect(database="kept") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, {column}, note FROM orders ORDER BY id")
        expected = [tuple(row) for row in cursor.fetchall()]
    lake = read_delta(job.lake / "kept" / "orders").sort_by("id").to_pylist()
    assert [(row["id"], row["amount"], row["note"]) for row in lake] == expected
    mariadb.execute(f"UPDATE orders SET {column} = 5 WHERE id = 3", "DELETE FROM orders WHERE id = 4", database="kept")
    catch_up(job)
    held = {row["id"]: row["amount"] for row in read_delta(job.lake / "kept" / "orders").to_pylist()}
    assert held == {row[0]: 5 if row[0] == 3 else row[1] for row in expected if row[0] != 4}


def test_after_a_purged_log_merged_tables_are_read_anew_together(mariadb: MariaDbServer, tmp_path: Path) -> None:
    columns = "(id INT PRIMARY KEY, v VARCHAR(20))"
    make(
        mariadb,
        "shards",
        *(f"CREATE TABLE {name} {columns}" for name in ("item_1", "item_2", "other")),
        "INSERT INTO item_1 SELECT seq, seq FROM seq_1_to_50",
        "INSERT INTO item_2 SELECT seq, seq FROM seq_101_to_150",
        "INSERT INTO other VALUES (1, 'a'), (2, 'b')",
    )
    job = Job(tmp_path, mariadb, "shards", ("item_1", "item_2", "other"), local=True, sections=MERGED)
    job.pipeline = 'on_log_lost = "resnapshot"'
    catch_up(job)
    changes = ("DELETE FROM item_1 WHERE id < 9", "UPDATE item_2 SET v = 'x' WHERE id = 101", "DELETE FROM other")
    mariadb.execute(*changes, "INSERT INTO item_1 VALUES (200, 'new')", database="shards")
    mariadb.purge_logs()
    # Whoever dies in the middle of it loses nothing.
    run = job.start("--until", "caught-up", failpoints="before_commit=kill@2")
    assert run.wait() in (-9, 0), run.story()
    catch_up(job)
    merged_equals_sources(job, "item_1", "item_2")
    require_rows_equal(job, "other")
    mariadb.execute("INSERT INTO other VALUES (3, 'c')", "DELETE FROM item_2 WHERE id > 140", database="shards")
    catch_up(job)
    merged_equals_sources(job, "item_1", "item_2")
    require_rows_equal(job, "other")
    # One that cannot be read anew with the others leaves the target; nobody else waits for it.
    tables_command(job, "pause", "shards.item_2")
    mariadb.execute("UPDATE item_1 SET v = 'y' WHERE id = 20", database="shards")
    mariadb.purge_logs()
    catch_up(job)
    assert listed(job)["shards.item_2"]["phase"] == "paused"
    merged_equals_sources(job, "item_1")
    tables_command(job, "resume", "shards.item_2")
    catch_up(job)
    merged_equals_sources(job, "item_1", "item_2")
