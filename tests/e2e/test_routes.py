"""`raycdc run` with routes: tables under other names, in several places, and killed between two of them."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from raycdc.sandbox.compare import read_delta, read_source
from raycdc.sandbox.servers import MariaDbServer
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up

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
    told = ("tables", words[0], str(job.configuration()), *words[1:])
    return completed(told, environment=os.environ, folder=job.folder)


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
    answer = tables_command(job, "resnapshot", "sharded.item_1")
    assert answer.returncode == 0, answer.stderr
    assert "sharded.item_1, sharded.item_2 are read again together" in answer.stdout
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
    refused = job.run()
    assert refused.wait() == 4, refused.story()
    story = refused.story()
    assert "sharded.item_3: a row of the same key (id) comes from more than one of the tables" in story
    assert "Nothing of lake.item was written" in story


SHARDS = 16
SHARDED = """
[[route]]
table = 'many\\.part_\\d+'
to = "lake.part"
"""


def write_shards(server: MariaDbServer, stopped: threading.Event, started: threading.Event) -> None:
    """Inserts, updates and deletions in one shard after the other; half of them get a column on the way."""
    with server.connect(database="many") as connection, connection.cursor() as cursor:
        round_ = 0
        while not stopped.is_set() or round_ < 6:
            for shard in range(SHARDS):
                if round_ == 4 and shard % 2:
                    cursor.execute(f"ALTER TABLE part_{shard} ADD COLUMN extra INT NOT NULL DEFAULT 7")
                base = 1_000_000 + round_ * 1000
                rows = ", ".join(f"({(base + n) * SHARDS + shard}, 'round {round_}')" for n in range(20))
                cursor.execute(f"INSERT INTO part_{shard} (id, note) VALUES {rows}")
                cursor.execute(f"UPDATE part_{shard} SET note = CONCAT(note, '+') WHERE id % 37 = {round_ % 37}")
                cursor.execute(f"DELETE FROM part_{shard} WHERE id % 101 = {round_ % 101}")
                connection.commit()
            round_ += 1
            if round_ == 5:
                started.set()


def test_sixteen_shards_under_load_are_one_table(mariadb: MariaDbServer, tmp_path: Path) -> None:
    mariadb.execute("DROP DATABASE IF EXISTS many", "CREATE DATABASE many")
    for shard in range(SHARDS):
        mariadb.execute(
            f"CREATE TABLE part_{shard} (id BIGINT PRIMARY KEY, note VARCHAR({20 + shard}))",
            f"INSERT INTO part_{shard} SELECT seq * {SHARDS} + {shard}, 'first' FROM seq_1_to_1500",
            database="many",
        )
    # A column that some of them have is in all rows, with its default where a shard has none
    # (`raycdc.model.evolution.targets`).
    names = tuple(f"part_{shard}" for shard in range(SHARDS))
    job = Job(tmp_path, mariadb, "many", names, local=True, sections=SHARDED)
    stopped, altered = threading.Event(), threading.Event()
    writer = threading.Thread(target=write_shards, args=(mariadb, stopped, altered))
    run = job.start()
    run.wait_for_start()
    writer.start()
    try:
        run.wait_for(altered.is_set)
        commits = len([event for event in list(run.events) if event["event"] == "commit"])
        run.wait_for(lambda: len([event for event in list(run.events) if event["event"] == "commit"]) > commits + 1)
    finally:
        stopped.set()
        writer.join()
    assert run.interrupt() == 130, run.story()
    catch_up(job)
    selects = [f"SELECT id, note, {'extra' if shard % 2 else '7'} FROM part_{shard}" for shard in range(SHARDS)]
    with mariadb.connect(database="many") as connection, connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(selects) + " ORDER BY id")
        expected = [tuple(row) for row in cursor.fetchall()]
    lake = read_delta(job.lake / "lake" / "part").sort_by("id")
    assert [(row["id"], row["note"], row["extra"]) for row in lake.to_pylist()] == expected
    assert len(expected) > SHARDS * 1400
