"""Options of the snapshot through `raycdc run --local`: keys, sizes and filters, while rows change."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raycdc.config import config_from_dict
from raycdc.errors import ConfigError
from raycdc.pipeline import Pipeline
from raycdc.sandbox.compare import check_changelog, final_rows, read_changelog, read_delta, read_source
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from raycdc.sandbox.shop import HotRange, ShopSize, ShopWorkload, create_shop
from tests.support.jobs import Job, catch_up
from tests.support.table_commands import listed, tables_command

pytestmark = pytest.mark.server

SIZE = ShopSize(customers=100, products=20, orders=1_500)


def test_a_filter_holds_in_snapshot_and_log(mysql80: DatabaseServer, tmp_path: Path) -> None:
    database = "filtered"
    with mysql80.connect() as connection:
        create_shop(connection, database, SIZE)
    condition = "quantity < 5 AND (status <> 'new' OR status IS NULL)"
    snapshot = f'strategy = "uneven", chunk_bytes = "20KiB", filter = {{ "{database}.orders" = "{condition}" }}'
    job = Job(tmp_path, mysql80, database, ("orders",), "jsonl", "changelog", local=True, snapshot=snapshot)
    work = ShopWorkload(
        lambda: mysql80.connect(database=database),
        seed=7,
        database=database,
        size=SIZE,
        hot=lambda: HotRange(1, SIZE.orders // 4),
    )
    with work.running(pause_s=0.003):
        catch_up(job)
    mysql80.execute("UPDATE orders SET quantity = 1 + (quantity + 3) % 9 WHERE id % 3 = 0", database=database)
    catch_up(job)
    rows = read_changelog(job.lake / database / "orders", "jsonl")
    assert check_changelog(rows, ["id"]) == []
    columns = pa.schema([("id", pa.int64()), ("quantity", pa.int64()), ("status", pa.string())])
    held = final_rows(rows, ["id"], columns)
    expected = mysql80.execute(f"SELECT id, quantity, status FROM orders WHERE {condition}", database=database)
    assert sorted(tuple(row.values()) for row in held.to_pylist()) == sorted(expected)

    changed = Job(tmp_path, mysql80, database, ("orders",), "jsonl", "changelog", local=True)
    run = changed.run()
    assert run.wait() == 2, run.story()
    assert "source.snapshot.filter is {}, and was " in run.story()


def test_a_key_of_the_users_choice_cuts_the_table(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "keyed"
    with mariadb.connect() as connection:
        create_shop(connection, database, SIZE)
    mariadb.execute("ALTER TABLE orders ADD KEY by_quantity (quantity)", database=database)
    snapshot = f'key = {{ "{database}.orders" = "quantity" }}'
    job = Job(tmp_path, mariadb, database, ("orders",), "jsonl", "changelog", local=True, snapshot=snapshot)
    work = ShopWorkload(lambda: mariadb.connect(database=database), seed=8, database=database, size=SIZE)
    with work.running(pause_s=0.01):
        catch_up(job)
    catch_up(job)
    rows = read_changelog(job.lake / database / "orders", "jsonl")
    assert check_changelog(rows, ["id"]) == []
    columns = pa.schema([("id", pa.int64()), ("quantity", pa.int64())])
    with mariadb.connect() as connection:
        source = read_source(connection, database, "orders", like=columns)
    held = final_rows(rows, ["id"], columns)
    assert sorted(held.to_pylist(), key=lambda row: row["id"]) == sorted(source.to_pylist(), key=lambda row: row["id"])


def test_a_column_list_holds_in_snapshot_and_log_whatever_is_added(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "listed"
    with mariadb.connect() as connection:
        create_shop(connection, database, SIZE)
    source = f'columns = {{ "{database}.customers" = ["id", "name"] }}'
    snapshot = f"""filter = {{ "{database}.customers" = "tier <> 'gold'" }}"""
    job = Job(tmp_path, mariadb, database, ("customers",), local=True, snapshot=snapshot, source=source)
    catch_up(job)
    mariadb.execute(
        "UPDATE customers SET name = 'changed' WHERE id <= 5",
        "ALTER TABLE customers ADD COLUMN points INT NOT NULL DEFAULT 7 FIRST",
        "UPDATE customers SET points = 8 WHERE id BETWEEN 4 AND 9",
        "UPDATE customers SET tier = 'gold' WHERE id = 2",
        "DELETE FROM customers WHERE id = 3",
        database=database,
    )
    catch_up(job)
    held = read_delta(job.lake / database / "customers")
    assert held.column_names == ["id", "name"]
    expected = mariadb.execute("SELECT id, name FROM customers WHERE tier <> 'gold'", database=database)
    assert sorted(tuple(row.values()) for row in held.to_pylist()) == sorted(expected)


@pytest.mark.long_variants("mysql80", "mysql80_nogtid", suite="servers")
def test_a_table_without_key_is_in_a_changelog_exactly_once(any_server: DatabaseServer, tmp_path: Path) -> None:
    """Read at one exact position: MariaDB has such reads, on MySQL it is read again until nothing changed meanwhile."""
    with any_server.fresh_database() as database:
        any_server.execute(
            "CREATE TABLE t (a INT, b VARCHAR(9))",
            "INSERT INTO t VALUES " + ", ".join(f"({n % 50}, 'x')" for n in range(500)),
            database=database,
        )
        changes = (
            "INSERT INTO t VALUES (7, 'new'), (7, 'new')",
            "UPDATE t SET b = 'y' WHERE a = 3 LIMIT 2",
            "DELETE FROM t WHERE a = 5 LIMIT 3",
        )
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(0.3):
                any_server.execute(*changes, database=database)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        rows: list[dict[str, Any]] = []
        try:
            rows += changelog(any_server, database, tmp_path)
        finally:
            stop.set()
            writer.join(timeout=300)
        rows += changelog(any_server, database, tmp_path)
        held: Counter[tuple[int, str]] = Counter()
        for row in rows:
            held[row["a"], row["b"]] += 1 if row["_op"] in ("+I", "+U") else -1
        assert +held == Counter(any_server.execute("SELECT a, b FROM t", database=database))
        assert min(held.values()) >= 0


def changelog(server: DatabaseServer, database: str, state: Path) -> list[dict[str, Any]]:
    """What a run until it has caught up adds to the changelog of ``t``."""
    config = config_from_dict(
        {
            "pipeline": {"name": "keyless", "state": str(state), "epoch_interval": "200ms"},
            "source": {
                "type": "mysql",
                "port": server.port,
                "user": "root",
                "password": "root",
                "tables": [f"{database}.t"],
                "snapshot": {"rows_per_second": 100_000},
            },
            "sink": {"type": "console"},
        }
    )
    rows: list[dict[str, Any]] = []
    for epoch in Pipeline.from_config(config).epochs(until="caught-up"):
        for table in epoch.tables:
            rows.extend(row for batch in epoch.batches(table) for row in batch.to_pylist())
        epoch.ack()
    return rows


@pytest.mark.parametrize(
    ("snapshot", "text"),
    [
        ({"key": {"shop.nope": "id"}}, "shop.nope is not one of the captured tables"),
        ({"filter": {"DB.orders": "UPPER(status) = 1"}}, "there is no column 'UPPER'"),
        ({"key": {"DB.orders": "nope"}}, "has no column 'nope'"),
        ({"columns": {"DB.orders": ["id", "nope"]}}, "has no column 'nope'"),
        ({"columns": {"DB.orders": ["status"]}}, "needs id, too"),
    ],
)
def test_options_that_fit_no_table_are_refused_at_the_start(
    mariadb: MariaDbServer, tmp_path: Path, snapshot: dict[str, dict[str, Any]], text: str
) -> None:
    with mariadb.fresh_database() as database:
        mariadb.execute("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(9))", database=database)
        options = {
            option: {table.replace("DB", database): value for table, value in tables.items()}
            for option, tables in snapshot.items()
        }
        parts: dict[str, Any] = {
            "pipeline": {"name": "options", "state": str(tmp_path)},
            "source": {
                "type": "mysql",
                "port": mariadb.port,
                "user": "root",
                "password": "root",
                "tables": [f"{database}.orders"],
                "columns": options.pop("columns", {}),
                "snapshot": options,
            },
            "sink": {"type": "console"},
        }
        with pytest.raises(ConfigError, match=text):
            next(Pipeline.from_config(config_from_dict(parts)).epochs())


def test_a_table_without_a_column_of_its_filter_is_parked_alone_and_read_by_another_one(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    with mariadb.fresh_database() as database:
        mariadb.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9) COLLATE utf8mb4_bin)",
            "CREATE TABLE u (id INT PRIMARY KEY, b VARCHAR(9) COLLATE utf8mb4_bin, v INT)",
            "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')",
            "INSERT INTO u VALUES (1, 'x', 1), (2, 'X', 1), (3, 'y', 1)",
            database=database,
        )

        def job(condition: str) -> Job:
            filters = f"""filter = {{ "{database}.t" = "{condition}", "{database}.u" = "b = 'x'" }}"""
            return Job(tmp_path, mariadb, database, ("t", "u"), local=True, snapshot=filters)

        def held(table: str) -> list[tuple[Any, ...]]:
            return sorted(tuple(row.values()) for row in read_delta(tmp_path / "lake" / database / table).to_pylist())

        by_b = job("b <> 'b'")
        catch_up(by_b)
        assert (held("t"), held("u")) == ([(1, 1, "a")], [(1, "x", 1)])
        # Rows that were in would be judged by the new collation; `u` begins again instead.
        mariadb.execute(
            "ALTER TABLE t DROP COLUMN b",
            "ALTER TABLE u MODIFY b VARCHAR(9) COLLATE utf8mb4_general_ci",
            "UPDATE u SET v = 2 WHERE id = 2",
            "DELETE FROM u WHERE id = 1",
            "INSERT INTO t VALUES (3, 3)",
            database=database,
        )
        for _ in range(2):
            run = by_b.run()
            assert run.wait() == 4, run.story()
        assert listed(by_b)[f"{database}.t"]["phase"] == "parked"
        assert f"raycdc tables resnapshot CONFIG {database}.t" in run.story()
        assert held("u") == [(2, "X", 2)]
        by_a = job("a > 1")
        tables_command(by_a, "resnapshot", f"{database}.t")
        catch_up(by_a)
        assert (held("t"), held("u")) == ([(2, 2, None), (3, 3, None)], [(2, "X", 2)])
