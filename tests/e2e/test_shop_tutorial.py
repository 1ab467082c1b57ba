"""The shop of Flink CDC's tutorial, `app_db` of orders, shipments and products: routed, transformed and altered while
it is written to, into a lake and into PostgreSQL by one continuous run each.

``make test`` plays the lake's; PostgreSQL's, whose statements `test_jdbc` and whose expressions `test_transforms` play
into it, is one of the suite ``stories``.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from tests.e2e.test_jdbc import sink_keys
from tests.support.jobs import Job, JobRun

pytestmark = [pytest.mark.server, pytest.mark.spark]

TABLES = ("orders", "shipments", "products")
SECTIONS = r"""
[[transform]]
table = "app_db.orders"
projection = "*, round(price * 1.19, 2) AS gross, upper(status) AS state"
filter = "status <> 'test'"

[[route]]
table = 'app_db\.(.*)'
to = "ods_db.ods_$1"
"""
GROSS = "ROUND(price * 1.19, 2)"
#: By target: what it must hold as the source's server computes it.
EXPECTED = {
    "ods_orders": (
        f"SELECT id, price, status, {GROSS}, UPPER(status), amount FROM orders WHERE status <> 'test' ORDER BY id",
        ("id", "price", "status", "gross", "state", "amount"),
    ),
    "ods_shipments": ("SELECT id, city, carrier FROM shipments ORDER BY id", ("id", "city", "carrier")),
    "ods_products": ("SELECT id, label FROM products ORDER BY id", ("id", "label")),
}

Rows = list[tuple[Any, ...]]


def create(server: MariaDbServer) -> None:
    server.execute("DROP DATABASE IF EXISTS app_db", "CREATE DATABASE app_db")
    server.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, price DECIMAL(10, 2) NOT NULL, status VARCHAR(10) NOT NULL)",
        "CREATE TABLE shipments (id INT PRIMARY KEY, city VARCHAR(255) NOT NULL)",
        "CREATE TABLE products (id INT PRIMARY KEY, product VARCHAR(255) NOT NULL)",
        "INSERT INTO orders SELECT seq, seq / 4, ELT(seq % 3 + 1, 'paid', 'test', 'open') FROM seq_1_to_900",
        "INSERT INTO shipments VALUES (1, 'beijing'), (2, 'xian')",
        "INSERT INTO products VALUES (1, 'Beer'), (2, 'Cap'), (3, 'Peanut')",
        database="app_db",
    )


#: Statements while the job runs, each step in an epoch of its own.
STEPS = (
    ("UPDATE orders SET status = 'test' WHERE id % 10 = 0", "INSERT INTO orders VALUES (1001, 100.00, 'open')"),
    ("ALTER TABLE orders ADD COLUMN amount VARCHAR(100) NULL", "UPDATE orders SET amount = '100' WHERE id < 20"),
    (
        "ALTER TABLE shipments ADD COLUMN carrier VARCHAR(20) NOT NULL DEFAULT 'post'",
        "DELETE FROM shipments WHERE id = 1",
    ),
    ("ALTER TABLE products RENAME COLUMN product TO label", "INSERT INTO products VALUES (4, 'Ham')"),
    ("UPDATE orders SET status = 'paid' WHERE id % 4 = 0", "DELETE FROM orders WHERE id = 2"),
)


def source_rows(server: MariaDbServer, query: str) -> Rows:
    with server.connect(database="app_db") as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return [tuple(row) for row in cursor.fetchall()]


def as_shown(rows: Rows) -> Rows:
    """PostgreSQL's client gives exact numbers as text."""
    return [tuple(str(v) if isinstance(v, Decimal) else v for v in row) for row in rows]


def play(job: Job, server: MariaDbServer, read: Callable[[str, tuple[str, ...]], Rows]) -> None:
    """One run: its snapshot, each step in its turn, and Ctrl-C."""
    run = job.start()

    def reached(table: str, count: int) -> Callable[[], bool]:
        return lambda: len(read(table, ("id",))) == count

    run.wait_for_rows(reached("ods_orders", 600))
    for number, statements in enumerate(STEPS):
        server.execute(*statements, database="app_db")
        wait_for_commits(run, number)
    last = {table: as_shown(source_rows(server, query)) for table, (query, _) in EXPECTED.items()}

    def held() -> dict[str, Rows]:
        return {table: as_shown(read(table, names)) for table, (_, names) in EXPECTED.items()}

    run.wait_for_rows(lambda: held() == last)
    assert run.interrupt() == 130, run.story()
    assert held() == last


def wait_for_commits(run: JobRun, number: int) -> None:
    """Until one epoch more was committed, so that the steps are in different ones."""
    before = sum(event["event"] == "commit" for event in list(run.events))
    assert run.wait_for(lambda: sum(e["event"] == "commit" for e in list(run.events)) > before), (number, run.story())


def test_into_a_lake(mariadb: MariaDbServer, ray: str, tmp_path: Path) -> None:
    create(mariadb)
    job = Job(
        tmp_path, mariadb, "app_db", TABLES, readers=1, sections=SECTIONS + ray, pipeline='schema_change = "evolve"'
    )

    def read(table: str, names: tuple[str, ...]) -> Rows:
        lake = read_delta(job.lake / "ods_db" / table)
        return [tuple(row[n] for n in names) for row in lake.sort_by("id").to_pylist()] if lake.num_columns else []

    play(job, mariadb, read)


@pytest.mark.long(suite="stories")
def test_into_postgresql(mariadb: MariaDbServer, postgres: PostgresServer, ray: str, tmp_path: Path) -> None:
    create(mariadb)
    with postgres.fresh_database() as home:
        keys = sink_keys(postgres, home)
        more = 'schema_change = "evolve"'
        job = Job(
            tmp_path,
            mariadb,
            "app_db",
            TABLES,
            sink="jdbc",
            sink_keys=keys,
            readers=1,
            sections=SECTIONS + ray,
            pipeline=more,
        )

        def read(table: str, names: tuple[str, ...]) -> Rows:
            there = postgres.execute(f"SELECT to_regclass('ods_db.{table}') IS NOT NULL", database=home)
            if not there[0][0]:
                return []
            return postgres.execute(f"SELECT {', '.join(names)} FROM ods_db.{table} ORDER BY id", database=home)

        play(job, mariadb, read)
