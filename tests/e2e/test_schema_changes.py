"""`raycdc run` over schema changes and truncations, made while it was away and while it ran."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raycdc.sandbox.compare import check_changelog, read_changelog, read_delta, read_source
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from raycdc.sandbox.shop import ShopSize, create_shop
from tests.e2e.changelog_rows import rows_left
from tests.support.jobs import Job, catch_up
from tests.support.table_commands import tables_command

pytestmark = pytest.mark.server

SIZE = ShopSize(customers=300, products=100, orders=900)
TABLES = ("customers", "products", "orders")

_ORDER = "INSERT INTO orders (id, customer_id, product_id, quantity, amount, status, placed_at)"

#: What lenient targets follow, with changes of rows in between.
CHANGES = (
    "ALTER TABLE products MODIFY stock BIGINT NOT NULL, MODIFY title TEXT NOT NULL FIRST",
    "UPDATE products SET stock = 5000000000 WHERE id < 10",
    "ALTER TABLE customers MODIFY tier ENUM('platinum', 'gold', 'regular', 'new') NOT NULL DEFAULT 'new'",
    "UPDATE customers SET tier = 'platinum' WHERE id % 3 = 0",
    "ALTER TABLE products DROP COLUMN handling, ADD COLUMN colour VARCHAR(9) NOT NULL DEFAULT 'red'",
    "UPDATE products SET colour = 'blue' WHERE id < 20",
    "TRUNCATE TABLE orders",
    f"{_ORDER} VALUES (1, 1, 1, 1, 9.99, 'paid', NOW()), (2000, 2, 2, 2, 1, 'placed', '2024-01-01 00:00:00')",
    "DELETE FROM products WHERE id > 90",
)


def shop(server: DatabaseServer, name: str) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {name}")
    with server.connect() as connection:
        create_shop(connection, name, SIZE)


@pytest.mark.long_variants("mysql80", suite="servers")
def test_what_changed_while_the_job_was_away_is_found_and_applied(any_server: DatabaseServer, tmp_path: Path) -> None:
    database = "away"
    shop(any_server, database)
    job = Job(tmp_path, any_server, database, TABLES, local=True)
    catch_up(job)
    any_server.execute(*CHANGES, database=database)
    catch_up(job)
    for table in TABLES:
        with any_server.connect() as connection:
            lake = read_delta(job.lake / database / table)
            source = read_source(connection, database, table, like=lake.schema)
        held = lake.select(source.column_names).sort_by("id").to_pylist()
        assert held == source.sort_by("id").to_pylist()
    products = read_delta(job.lake / database / "products")
    assert products.schema.field("stock").type.bit_width == 64
    # Dropped at the source: it stays in a lenient target, and rows changed since have no value there.
    changed = [row["handling"] for row in products.select(["id", "handling"]).to_pylist() if row["id"] < 20]
    assert changed == [None] * 19


def test_a_changelog_says_that_a_table_was_emptied_and_dropped(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "dropped"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, ("products", "orders"), sink="jsonl", write="changelog", local=True)
    catch_up(job)
    mariadb.execute(
        "UPDATE products SET stock = 7 WHERE id = 1",
        "TRUNCATE TABLE products",
        "INSERT INTO products (sku, title, price, stock) VALUES ('x', 'y', 1, 1)",
        "DROP TABLE products",
        "CREATE TABLE products (id INT PRIMARY KEY, other INT)",
        "INSERT INTO products VALUES (1, 2)",
        database=database,
    )
    catch_up(job)
    rows = sorted(read_changelog(job.lake / database / "products", "jsonl"), key=lambda row: row["_seq"])
    # The drop empties the target, and so does the beginning of the table that came under its name.
    assert [row["_op"] for row in rows[SIZE.products :]] == ["-U", "+U", "T", "+I", "T", "T", "+I"]
    assert {value for name, value in rows[SIZE.products + 2].items() if not name.startswith("_")} == {None}
    assert (rows[-1]["id"], rows[-1]["other"]) == (1, 2)
    assert check_changelog(rows, ["id"]) == []


@pytest.mark.long_variants("mysql80_nogtid", suite="servers")
@pytest.mark.parametrize("kind", ["mariadb", "mysql80_nogtid"])
def test_a_table_emptied_again_and_again_in_its_snapshot_is_the_same_in_the_end(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    any_server: DatabaseServer = request.getfixturevalue(kind)
    database = "refilled"
    shop(any_server, database)
    job = Job(tmp_path, any_server, database, TABLES, sink="jsonl", write="changelog", local=True, chunk_rows=20)
    run = job.start("--until", "caught-up")
    assert run.wait_for(lambda: any(event["event"] == "commit" for event in list(run.events))), run.story()
    for number in range(3):
        any_server.execute(
            "TRUNCATE TABLE orders",
            f"{_ORDER} SELECT id + {number}, id, 1, 1, 1, 'paid', '2024-01-01 00:00:00' FROM customers",
            database=database,
        )
    assert run.wait() == 0, run.story()
    catch_up(job)
    rows = read_changelog(job.lake / database / "orders", "jsonl")
    assert check_changelog(rows, ["id"]) == []
    assert any_server.scalar("SELECT COUNT(*) FROM orders", database=database) == len(rows_left(rows))


@pytest.mark.long_variants("try_evolve", suite="stories")
@pytest.mark.parametrize("behavior", ["lenient", "try_evolve", "fail"])
def test_a_type_that_written_rows_cannot_have_is_refused_and_nothing_is_lost(
    behavior: str, mariadb: MariaDbServer, tmp_path: Path
) -> None:
    """Of a changelog: its old rows stay, so that their column cannot become another one. The column is not bent."""
    database = "retyped"
    mariadb.execute(
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(20))",
        f"INSERT INTO {database}.t VALUES (1, 'one'), (2, '2')",
    )
    job = Job(tmp_path, mariadb, database, ("t",), write="changelog", local=True)
    job.pipeline = f'schema_change = "{behavior}"'
    catch_up(job)
    mariadb.execute(
        "UPDATE t SET v = '1' WHERE id = 1",
        "ALTER TABLE t MODIFY v INT",
        "UPDATE t SET v = 7 WHERE id = 2",
        database=database,
    )
    for _ in range(2):
        run = job.run()
        assert run.wait() == 4, run.story()
        assert ("converted from varchar(20)" if behavior == "fail" else "cannot change their type") in run.story()
    held = read_delta(job.lake / database / "t")
    known = [(row["_op"], row["id"], row["v"]) for row in held.sort_by("_seq").to_pylist()]
    assert known[:2] == [("+I", 1, "one"), ("+I", 2, "2")]
    assert known[2:] in ([], [("-U", 1, "one"), ("+U", 1, "1")])
    if behavior != "lenient":
        return
    # The way out that the message names.
    shutil.rmtree(job.lake / database / "t")
    tables_command(job, "resnapshot", f"{database}.t")
    catch_up(job)
    held = read_delta(job.lake / database / "t")
    read = [(row["id"], row["v"]) for row in held.sort_by("id").to_pylist() if row["_op"] != "T"]
    assert read == [(1, 1), (2, 7)]
