"""`raycdc run` with routes: tables under other names, in several places, and killed between two of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from raycdc.testing.compare import read_delta, read_source
from raycdc.testing.jobs import Job, catch_up
from raycdc.testing.servers import MariaDbServer

pytestmark = pytest.mark.server

ROUTES = r"""
[[route]]
table = 'routed\.(.*)'
to = "lake.$1"

[[route]]
table = "routed.orders"
replace_symbol = "<>"
to = "backup.ods_<>"
"""

TARGETS = {"orders": ("lake/orders", "backup/ods_orders"), "items": ("lake/items",)}


def fill(server: MariaDbServer) -> None:
    server.execute("DROP DATABASE IF EXISTS routed", "CREATE DATABASE routed")
    server.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40))",
        "CREATE TABLE items (id INT PRIMARY KEY, qty BIGINT)",
        "INSERT INTO orders SELECT seq, CONCAT('order ', seq) FROM seq_1_to_300",
        "INSERT INTO items SELECT seq, seq * 10 FROM seq_1_to_200",
        database="routed",
    )


def change(server: MariaDbServer, *statements: str) -> None:
    server.execute(
        "UPDATE orders SET note = 'changed' WHERE id % 3 = 0",
        *statements,
        "DELETE FROM orders WHERE id % 5 = 0",
        "UPDATE items SET qty = 0 WHERE id < 50",
        database="routed",
    )


def test_renamed_and_copied_tables_equal_their_source_after_a_kill_between_two_targets(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    fill(mariadb)
    job = Job(tmp_path, mariadb, "routed", tuple(TARGETS), local=True, sections=ROUTES)
    catch_up(job)
    change(
        mariadb,
        "ALTER TABLE orders ADD COLUMN paid INT NOT NULL DEFAULT 4",
        "INSERT INTO orders VALUES (1000, 'new', 1)",
    )
    run = job.start("--until", "caught-up", failpoints="between_tables=kill@1")
    assert run.wait() == -9, run.story()
    assert job.hit() == {"between_tables"}
    catch_up(job)
    for table, targets in TARGETS.items():
        for target in targets:
            lake = read_delta(job.lake / target)
            with mariadb.connect() as connection:
                source = read_source(connection, "routed", table, like=lake.schema)
            assert lake.sort_by("id").to_pylist() == source.sort_by("id").to_pylist(), target
    assert sorted(path.name for path in job.lake.iterdir()) == ["backup", "lake"]


MERGE = """
[[route]]
table = 'sharded\\.item_\\d'
to = "lake.item"
"""


def shards(server: MariaDbServer) -> None:
    server.execute("DROP DATABASE IF EXISTS sharded", "CREATE DATABASE sharded")
    server.execute(
        "CREATE TABLE item_1 (id INT PRIMARY KEY, qty TINYINT, price DECIMAL(6, 2))",
        "CREATE TABLE item_2 (id BIGINT PRIMARY KEY, qty INT UNSIGNED, price DECIMAL(8, 4), note VARCHAR(20))",
        "CREATE TABLE item_3 (id INT PRIMARY KEY, price INT, qty SMALLINT)",
        "INSERT INTO item_1 SELECT seq * 3, seq % 100, seq / 4 FROM seq_1_to_200",
        "INSERT INTO item_2 SELECT seq * 3 + 1, seq + 3000000000, seq / 8, 'two' FROM seq_1_to_200",
        "INSERT INTO item_3 SELECT seq * 3 + 2, seq, -seq FROM seq_1_to_200",
        database="sharded",
    )


def tables_command(job: Job, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raycdc.cli", "tables", words[0], str(job.configuration()), *words[1:]]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def union(server: MariaDbServer) -> list[tuple[object, ...]]:
    selects = [f"SELECT id, qty, CAST(price AS DECIMAL(14, 4)), {note} FROM item_{n}" for n, note in (
        (1, "NULL"), (2, "note"), (3, "added"))]  # fmt: skip
    with server.connect(database="sharded") as connection, connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(selects) + " ORDER BY id")
        return [tuple(row) for row in cursor.fetchall()]


def test_shards_of_different_shape_become_one_table_until_two_have_the_same_key(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    shards(mariadb)
    job = Job(tmp_path, mariadb, "sharded", ("item_1", "item_2"), local=True, sections=MERGE)
    catch_up(job)
    job.tables = ("item_1", "item_2", "item_3")
    refused_answer = tables_command(job, "resnapshot", "sharded.item_1")
    assert refused_answer.returncode == 2
    assert "sharded.item_1 is merged with other tables into lake.item" in refused_answer.stderr
    assert tables_command(job, "add", "sharded.item_3").returncode == 0
    mariadb.execute(
        "UPDATE item_1 SET qty = -qty WHERE id < 100",
        "ALTER TABLE item_3 ADD COLUMN added VARCHAR(30)",
        "UPDATE item_3 SET added = 'new' WHERE id % 2 = 0",
        "DELETE FROM item_2 WHERE id = 4",
        "INSERT INTO item_1 VALUES (4, 1, 0.5)",
        "UPDATE item_2 SET id = 10000 WHERE id = 7",
        database="sharded",
    )
    catch_up(job)
    lake = read_delta(job.lake / "lake" / "item").sort_by("id")
    types = [str(lake.schema.field(name).type) for name in ("id", "qty", "price")]
    assert types == ["int64", "int64", "decimal128(14, 4)"]
    held = [(r["id"], r["qty"], r["price"], r["note"] or r["added"]) for r in lake.to_pylist()]
    assert held == union(mariadb)
    mariadb.execute("INSERT INTO item_3 VALUES (10000, 1, 1, NULL)", database="sharded")
    refused = job.start("--until", "caught-up")
    assert refused.wait() == 4, refused.story()
    assert "lake.item: the row with the key id = 10000 comes from more than one of the tables" in refused.story()
