"""`raycdc check`, `plan` and `run` with transforms: wrong ones are found before anything is read."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.errors import ExitCode
from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server

TRANSFORMS = r"""
[[transform]]
table = "sold.orders"
projection = "*, price * qty AS amount, _table AS origin"
filter = "status <> 'TEST'"

[[transform]]
table = 'sold\.item.*'
projection = "id AS item, * EXCEPT (id, secret)"
on_delete = "soft"

[[route]]
table = 'sold\.(.*)'
to = "lake.$1"
"""

WRONG = r"""
[[transform]]
table = "sold.orders"
projection = "*, price * quantity AS amount"

[[transform]]
table = "sold.items"
filter = "id > "
"""


def fill(server: MariaDbServer) -> None:
    server.execute("DROP DATABASE IF EXISTS sold", "CREATE DATABASE sold")
    server.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20), price DECIMAL(10, 2), qty INT)",
        "CREATE TABLE items (id INT PRIMARY KEY, secret VARCHAR(20), name VARCHAR(20))",
        "INSERT INTO orders SELECT seq, IF(seq % 4, 'PAID', 'TEST'), seq / 8, seq % 9 FROM seq_1_to_3000",
        "INSERT INTO items SELECT seq, 's', CONCAT('item ', seq) FROM seq_1_to_50",
        database="sold",
    )


def command(job: Job, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": job.server.cdc_user}
    return completed((words[0], str(job.configuration()), *words[1:]), environment=environment, folder=job.folder)


def source_rows(server: MariaDbServer, query: str) -> list[tuple[Any, ...]]:
    with server.connect(database="sold") as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return [tuple(row) for row in cursor.fetchall()]


def check_orders(job: Job, server: MariaDbServer, *more: str) -> None:
    columns = ("id", "status", "price", "qty", *more)
    lake = read_delta(job.lake / "lake" / "orders").sort_by("id")
    got = [tuple(row[name] for name in (*columns, "amount", "origin")) for row in lake.to_pylist()]
    query = f"SELECT {', '.join(columns)}, price * qty, 'orders' FROM orders WHERE status <> 'TEST' ORDER BY id"
    assert got == source_rows(server, query)


@pytest.mark.spark
def test_transformed_tables_follow_their_source_and_its_new_columns(
    mariadb: MariaDbServer, ray: str, tmp_path: Path
) -> None:
    fill(mariadb)
    job = Job(tmp_path, mariadb, "sold", ("orders", "items"), readers=1, sections=TRANSFORMS + ray)
    planned = command(job, "plan", "--json")
    assert planned.returncode == 0, planned.stderr
    targets = {target["target"]: target for target in map(json.loads, planned.stdout.splitlines())}
    assert targets["lake.items"] == {
        "target": "lake.items",
        "write": "upsert",
        "sources": [{"table": "sold.items", "rows": 50, "chunks": 1, "transform": "transform[1]",
                     "how": "columns chosen or renamed, without Spark"}],
        "columns": [
            {"name": "item", "type": "int", "nullable": False},
            {"name": "name", "type": "string", "nullable": True},
            {"name": "is_deleted", "type": "boolean", "nullable": True},
        ],
        "primary_key": ["item"],
        "ddl": "CREATE TABLE `lake`.`items` (`item` INT, `name` STRING, `is_deleted` BOOLEAN) USING DELTA "
        f"LOCATION '{job.lake}/lake/items'",
    }  # fmt: skip
    orders = targets["lake.orders"]
    assert orders["columns"][-2:] == [
        {"name": "amount", "type": "decimal(21,2)", "nullable": True},
        {"name": "origin", "type": "string", "nullable": True},
    ]
    assert orders["sources"][0]["how"] == "computed by Spark"
    assert not job.lake.exists()
    assert not job.state.exists()
    catch_up(job)
    check_orders(job, mariadb)
    mariadb.execute(
        "UPDATE orders SET status = 'TEST' WHERE id % 7 = 0",
        "UPDATE orders SET status = 'PAID' WHERE id % 8 = 0",
        "ALTER TABLE orders ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none'",
        "UPDATE orders SET note = 'seen', qty = qty + 1 WHERE id % 5 = 0",
        "DELETE FROM orders WHERE id % 11 = 0",
        "INSERT INTO orders VALUES (9001, 'TEST', 1, 1, 'x'), (9002, 'PAID', 2, 3, 'y')",
        "DELETE FROM items WHERE id <= 10",
        "INSERT INTO items VALUES (3, 's', 'again')",
        "UPDATE items SET id = 700 WHERE id = 20",
        database="sold",
    )
    catch_up(job)
    check_orders(job, mariadb, "note")
    items = {row["item"]: (row["name"], row["is_deleted"]) for row in read_delta(job.lake / "lake/items").to_pylist()}
    expected = {i: (f"item {i}", i <= 10 or i == 20) for i in range(1, 51)}
    assert items == expected | {3: ("again", False), 700: ("item 20", False)}
    assert read_delta(job.lake / "lake/items").column_names == ["item", "name", "is_deleted"]
    check_verify(job, mariadb)


def check_verify(job: Job, server: MariaDbServer) -> None:
    """Differences in what Spark computed and filtered are found, and there are no others."""
    orders = DeltaTable(str(job.lake / "lake" / "orders"))
    rows = orders.to_pyarrow_table()
    orders.delete("id = 22 OR id = 23 OR id = 25")
    orders.update(updates={"amount": "amount + 0.01"}, predicate="id = 26")
    # A row that the filter leaves out, as the source has it but for the column that Spark computes.
    left_out = rows.slice(0, 1).set_column(0, rows.schema.field(0), pa.array([9001], pa.int32()))
    write_deltalake(str(job.lake / "lake" / "orders"), left_out, mode="append")
    server.execute("UPDATE orders SET qty = qty + 1 WHERE id = 27", "DELETE FROM orders WHERE id = 28", database="sold")
    verified = command(job, "verify", "--json", "--show-keys")
    assert verified.returncode == ExitCode.DIFFERENT, verified.stdout + verified.stderr
    lines = {line["table"]: line for line in map(json.loads, verified.stdout.splitlines())}
    assert (lines["sold.items"]["verdict"], lines["sold.items"]["notes"]) == ("equal", [])
    line = lines["sold.orders"]
    in_lake = [key for key in (23, 25) if key in rows.column("id").to_pylist()]
    assert line["keys"] == {"missing": [str(key) for key in in_lake], "extra": ["9001"], "changed": ["26"]}
    assert (line["behind"], line["target_rows"]) == (1, rows.num_rows - len(in_lake) + 1)


@pytest.mark.spark
def test_wrong_expressions_are_found_before_anything_is_read(mariadb: MariaDbServer, tmp_path: Path) -> None:
    fill(mariadb)
    job = Job(tmp_path, mariadb, "sold", ("orders", "items"), sections=WRONG)
    checked = command(job, "check", "--json")
    assert checked.returncode == 2, checked.stdout + checked.stderr
    found = [entry["text"] for entry in map(json.loads, checked.stdout.splitlines()) if entry["status"] == "failed"]
    assert len(found) == 2
    assert found[1].startswith(
        "transform[0]: sold.orders: projection, character 12: there is no column 'quantity'; near: "
    )
    assert found[0].startswith("transform[1]: sold.items: filter, character 6: Syntax error at or near end of input")
    assert not job.state.exists()


@pytest.mark.long(suite="stories")
@pytest.mark.spark
def test_wrong_expressions_are_found_by_plan_too(mariadb: MariaDbServer, tmp_path: Path) -> None:
    fill(mariadb)
    job = Job(tmp_path, mariadb, "sold", ("orders", "items"), sections=WRONG)
    planned = command(job, "plan")
    assert planned.returncode == 2
    assert "transform[0]: sold.orders: projection, character 12: there is no column 'quantity'" in planned.stderr
    assert "transform[1]: sold.items: filter, character 6: Syntax error at or near end of input" in planned.stderr
    assert planned.stdout == ""
    assert not job.state.exists()


def test_transforms_that_need_no_spark_run_without_it(mariadb: MariaDbServer, tmp_path: Path) -> None:
    fill(mariadb)
    sections = '[[transform]]\ntable = "sold.items"\nprojection = "name, id, 1 AS source"\n'
    job = Job(tmp_path, mariadb, "sold", ("items",), sink="jsonl", write="changelog", local=True, sections=sections)
    catch_up(job)
    mariadb.execute("UPDATE items SET name = 'new' WHERE id = 5", "DELETE FROM items WHERE id = 6", database="sold")
    catch_up(job)
    files = sorted((job.lake / "sold" / "items").glob("*.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [(r["_op"], r["name"], r["id"], r["source"]) for r in rows[-3:]] == [
        ("-U", "item 5", 5, 1), ("+U", "new", 5, 1), ("-D", "item 6", 6, 1)]  # fmt: skip
    assert list(rows[0])[:4] == ["name", "id", "source", "_op"]
    job.sections = '[[transform]]\ntable = "sold.items"\nfilter = "id > 5"\n'
    job.folder = tmp_path / "other"
    refused = job.run()
    assert refused.wait() == 2, refused.story()
    assert "--local runs without it" in refused.story()


INTO_POSTGRES = r"""
[[mask]]
columns = 'sold\..*\.secret'
method = "mask"
length = 3

[[transform]]
table = "sold.orders"
projection = "*, price * qty AS amount, _table AS origin"
filter = "status <> 'TEST'"

[[transform]]
table = "sold.items"
projection = "upper(name) AS label, id AS item, secret"
primary_keys = ["label"]

[[transform]]
table = "sold.people"
on_delete = "soft"

[[route]]
table = 'sold\.(.*)'
to = "made.$1"
"""


def held_rows(postgres: PostgresServer, database: str, query: str) -> list[tuple[Any, ...]]:
    with postgres.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return [tuple(row) for row in cursor.fetchall()]


@pytest.mark.long(suite="stories")
@pytest.mark.spark
def test_transformed_tables_are_followed_in_postgresql_after_a_kill(
    mariadb: MariaDbServer, postgres: PostgresServer, ray: str, tmp_path: Path
) -> None:
    fill(mariadb)
    mariadb.execute(
        "CREATE TABLE people AS SELECT * FROM items", "ALTER TABLE people ADD PRIMARY KEY (id)", database="sold"
    )
    with postgres.fresh_database() as home:
        keys = f'url = "jdbc:{postgres.url(home)}"\nuser = "{postgres.user}"\npassword = "{postgres.password}"\n'
        job = Job(
            tmp_path,
            mariadb,
            "sold",
            ("orders", "items", "people"),
            sink="jdbc",
            sink_keys=keys,
            readers=1,
            sections=INTO_POSTGRES + ray,
        )
        # One target has its rows, another is left in the middle of its transaction.
        run = job.start("--until", "caught-up", failpoints="in_commit=kill@2")
        assert run.wait() == -9, run.story()
        mariadb.execute(
            "UPDATE orders SET status = 'TEST' WHERE id % 7 = 0",
            "UPDATE orders SET status = 'PAID' WHERE id % 8 = 0",
            "ALTER TABLE orders ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none'",
            "UPDATE orders SET note = 'seen', qty = qty + 1 WHERE id % 5 = 0",
            "DELETE FROM orders WHERE id % 11 = 0",
            "DELETE FROM items WHERE id <= 10",
            "DELETE FROM people WHERE id <= 10",
            "INSERT INTO people VALUES (3, 's', 'again')",
            "INSERT INTO items VALUES (3, 's', 'again'), (60, 's', 'item 5')",
            database="sold",
        )
        catch_up(job)
        got = held_rows(
            postgres,
            home,
            "SELECT id, status, price::text, qty, note, amount::text, origin FROM made.orders ORDER BY id",
        )
        assert got == source_rows(
            mariadb,
            "SELECT id, status, CAST(price AS CHAR), qty, note, CAST(price * qty AS CHAR), 'orders' FROM orders "
            "WHERE status <> 'TEST' ORDER BY id",
        )
        items = held_rows(postgres, home, "SELECT label, item, secret FROM made.items")
        people = held_rows(postgres, home, "SELECT id, secret, name, is_deleted FROM made.people")
    expected = [(f"ITEM {n}", n, "***") for n in range(11, 51)]
    assert sorted(items) == sorted([*expected, ("AGAIN", 3, "***"), ("ITEM 5", 60, "***")])
    marked = {n: (n, "***", f"item {n}", n <= 10) for n in range(1, 51)} | {3: (3, "***", "again", False)}
    # A row that was deleted before its chunk was read, behind the kill, never came: its target knows nothing of it.
    came = {row[0] for row in people}
    assert sorted(people) == sorted(row for row in marked.values() if not row[3] or row[0] in came)


MEANT = """
[[transform]]
table = "meant.q"
filter = "cast(x as string) = '0.1'"
"""


@pytest.mark.long(suite="stories")
@pytest.mark.spark
def test_a_filter_whose_column_got_another_type_is_judged_anew_for_all_rows(
    mariadb: MariaDbServer, ray: str, tmp_path: Path
) -> None:
    mariadb.execute("DROP DATABASE IF EXISTS meant", "CREATE DATABASE meant")
    mariadb.execute(
        "CREATE TABLE q (id INT PRIMARY KEY, x FLOAT, v CHAR(1))",
        "INSERT INTO q VALUES (1, 0.1, 'a'), (2, 0.5, 'b'), (3, 0.1, 'c')",
        database="meant",
    )
    job = Job(tmp_path, mariadb, "meant", ("q",), readers=1, sections=MEANT + ray)
    catch_up(job)
    assert sorted(row["id"] for row in read_delta(job.lake / "meant" / "q").to_pylist()) == [1, 3]
    mariadb.execute(
        "ALTER TABLE q MODIFY x DOUBLE",
        "UPDATE q SET v = 'z' WHERE id = 1",
        "DELETE FROM q WHERE id = 3",
        "INSERT INTO q VALUES (4, 0.1, 'd')",
        database="meant",
    )
    catch_up(job)
    # 0.1 as a FLOAT is 0.10000000149011612 as a DOUBLE.
    assert [row["id"] for row in read_delta(job.lake / "meant" / "q").to_pylist()] == [4]
