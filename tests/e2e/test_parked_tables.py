"""`raycdc run` over what a log cannot tell: one table is parked or begins again, the others go on."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from raycdc.sandbox.compare import check_changelog, read_changelog, read_delta
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from raycdc.sandbox.shop import ShopSize, create_shop
from tests.e2e.changelog_rows import rows_left
from tests.support.comparing import require_rows_equal
from tests.support.jobs import Job, catch_up
from tests.support.table_commands import listed, tables_command

pytestmark = pytest.mark.server


@dataclass(frozen=True)
class Account:
    """A server, as another account than the usual one reaches it."""

    host: str
    port: int
    cdc_user: str


SIZE = ShopSize(customers=60, products=40, orders=120)
TABLES = ("customers", "products", "orders")


def shop(server: DatabaseServer, name: str) -> None:
    server.execute(f"DROP DATABASE IF EXISTS {name}")
    with server.connect() as connection:
        create_shop(connection, name, SIZE)


def rows_of(job: Job, table: str) -> dict[int, dict[str, Any]]:
    """The rows that a changelog leaves, by id."""
    return rows_left(read_changelog(job.lake / job.database / table, "jsonl"))


def test_a_table_with_rows_that_do_not_fit_is_parked_and_read_again_when_asked_for(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    database = "parked"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, local=True)
    catch_up(job)
    # Not in the log: from here on its rows have a column that nobody told of.
    mariadb.execute("SET SESSION sql_log_bin = 0", "ALTER TABLE products ADD extra INT", database=database)
    mariadb.execute(
        "UPDATE products SET extra = 1, stock = stock + 1 WHERE id < 20",
        "DELETE FROM products WHERE id > 30",
        "UPDATE customers SET tier = 'gold' WHERE id < 30",
        database=database,
    )
    run = job.run()
    assert run.wait() == 4, run.story()
    require_rows_equal(job, "customers", "orders")
    parked = [event for event in run.events if event["event"] == "parked"]
    assert [(event["table"], event["phase"]) for event in parked] == [(f"{database}.products", "parked")]
    assert "raycdc tables resnapshot" in run.story()
    entry = listed(job)[f"{database}.products"]
    assert (entry["phase"], entry["asked"]) == ("parked", None)
    assert "products" in entry["reason"]
    assert read_delta(job.lake / database / "products").num_rows == SIZE.products

    mariadb.execute("UPDATE orders SET quantity = quantity + 1 WHERE id < 9", database=database)
    assert "next start" in tables_command(job, "resnapshot", f"{database}.products")
    assert listed(job)[f"{database}.products"]["asked"] == "resnapshot"
    catch_up(job)
    require_rows_equal(job, *TABLES)
    mariadb.execute("UPDATE products SET extra = 2 WHERE id < 5", database=database)
    catch_up(job)
    require_rows_equal(job, *TABLES)
    assert listed(job)[f"{database}.products"]["phase"] == "stream"


def test_exception_still_ends_the_run_at_what_cannot_be_followed(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "strict"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, local=True, pipeline='schema_change = "fail"')
    catch_up(job)
    mariadb.execute("RENAME TABLE products TO wares", database=database)
    run = job.run()
    assert run.wait() == 4, run.story()
    assert "wares" in run.story()
    assert listed(job)[f"{database}.products"]["phase"] == "stream"


def test_statements_that_rewrite_rows_and_other_tables_rows_under_a_name_begin_a_table_again(
    mysql80: MySqlServer, tmp_path: Path
) -> None:
    database = "rewritten"
    shop(mysql80, database)
    copied = "INSERT INTO outside SELECT * FROM orders WHERE id < 50"
    mysql80.execute("CREATE TABLE outside LIKE orders", copied, database=database)
    job = Job(tmp_path, mysql80, database, TABLES, sink="jsonl", write="changelog", local=True, chunk_rows=15)
    catch_up(job)
    mysql80.execute(
        "UPDATE products SET stock = 1",
        "ALTER TABLE products MODIFY stock VARCHAR(20) NOT NULL",
        "UPDATE products SET stock = 'many' WHERE id < 7",
        "RENAME TABLE orders TO old_orders, outside TO orders",
        "UPDATE orders SET quantity = 77 WHERE id < 5",
        "DELETE FROM customers WHERE id > 50",
        database=database,
    )
    catch_up(job)
    for table in TABLES:
        rows = read_changelog(job.lake / database / table, "jsonl")
        assert check_changelog(rows, ["id"]) == []
        again = [row for row in rows if row["_op"] == "T"]
        assert len(again) == (0 if table == "customers" else 1)
    products, orders = rows_of(job, "products"), rows_of(job, "orders")
    assert (products[1]["stock"], products[20]["stock"]) == ("many", "1")
    assert (len(products), len(orders), len(rows_of(job, "customers"))) == (SIZE.products, 49, 50)
    assert orders[4]["quantity"] == 77


@pytest.mark.long_variants("mysql80", suite="servers")
@pytest.mark.parametrize("kind", ["mariadb", "mysql80"])
def test_tables_that_exchanged_rows_by_partition_begin_again(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: DatabaseServer = request.getfixturevalue(kind)
    database = "exchanged"
    columns = "(id INT PRIMARY KEY, v INT)"
    low, high = ("VALUES LESS THAN (100)", "VALUES LESS THAN MAXVALUE")
    server.execute(
        f"DROP DATABASE IF EXISTS {database}",
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.parted {columns} PARTITION BY RANGE (id) (PARTITION a {low}, PARTITION b {high})",
        f"CREATE TABLE {database}.side {columns}",
        f"CREATE TABLE {database}.outside {columns}",
        f"INSERT INTO {database}.parted VALUES (1, 1), (2, 2), (200, 200)",
        f"INSERT INTO {database}.side VALUES (2, -2), (3, -3)",
        f"INSERT INTO {database}.outside VALUES (7, 7)",
    )
    job = Job(tmp_path, server, database, ("parted", "side"), local=True)
    catch_up(job)
    server.execute(
        "UPDATE parted SET v = 9 WHERE id = 1",
        "ALTER TABLE parted EXCHANGE PARTITION a WITH TABLE side",
        "UPDATE parted SET v = v * 10",
        "DELETE FROM side WHERE id = 2",
        database=database,
    )
    catch_up(job)
    require_rows_equal(job, "parted", "side")
    # Rows of a table that is not captured come in the same way.
    server.execute(
        "ALTER TABLE parted EXCHANGE PARTITION a WITH TABLE outside",
        "INSERT INTO parted VALUES (8, 8)",
        database=database,
    )
    catch_up(job)
    require_rows_equal(job, "parted", "side")


def test_a_purged_log_means_new_snapshots_where_the_user_wants_that(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "purged"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, local=True)
    catch_up(job)
    mariadb.execute("DELETE FROM orders WHERE id < 20", "ALTER TABLE customers ADD remark INT", database=database)
    mariadb.purge_logs()
    refused = job.run()
    assert refused.wait() == 3, refused.story()
    job.pipeline = 'on_log_lost = "resnapshot"'
    catch_up(job)
    require_rows_equal(job, *TABLES)
    mariadb.execute("UPDATE customers SET remark = 5 WHERE id < 20", database=database)
    catch_up(job)
    require_rows_equal(job, *TABLES)


def test_a_table_renamed_away_ends_and_begins_again_under_its_name(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "renamed"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, local=True)
    catch_up(job)
    mariadb.execute("RENAME TABLE products TO wares", database=database)
    catch_up(job)
    assert listed(job)[f"{database}.products"]["phase"] == "ended"
    assert read_delta(job.lake / database / "products").num_rows == SIZE.products
    mariadb.execute("UPDATE wares SET stock = 9", "RENAME TABLE wares TO products", database=database)
    catch_up(job)
    require_rows_equal(job, *TABLES)


def test_tables_are_added_paused_and_resumed_while_the_others_go_on(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "chosen"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, ("customers", "orders"), local=True)
    catch_up(job)
    job.tables = TABLES
    tables_command(job, "add", f"{database}.products")
    tables_command(job, "pause", f"{database}.customers")
    mariadb.execute("DELETE FROM customers WHERE id > 50", "DELETE FROM orders WHERE id < 9", database=database)
    catch_up(job)
    require_rows_equal(job, "products", "orders")
    assert read_delta(job.lake / database / "customers").num_rows == SIZE.customers
    assert listed(job)[f"{database}.customers"]["phase"] == "paused"
    tables_command(job, "resume", f"{database}.customers")
    tables_command(job, "remove", f"{database}.orders")
    mariadb.execute("UPDATE products SET stock = 3 WHERE id < 9", database=database)
    catch_up(job)
    require_rows_equal(job, *TABLES)
    mariadb.execute("DELETE FROM orders WHERE id < 20", "ALTER TABLE orders ADD more INT", database=database)
    catch_up(job)
    require_rows_equal(job, "customers", "products")
    held = read_delta(job.lake / database / "orders")
    assert (held.num_rows, "more" in held.column_names) == (SIZE.orders - 8, False)
    assert listed(job)[f"{database}.orders"]["phase"] == "removed"
    tables_command(job, "add", f"{database}.orders")
    catch_up(job)
    require_rows_equal(job, *TABLES)


@pytest.mark.long_variants("after_open*", suite="stories")
@pytest.mark.parametrize("point", ["after_open=kill@2", "in_commit=kill@2"])
def test_a_kill_in_the_middle_of_a_new_snapshot_loses_and_doubles_nothing(
    mysql80: MySqlServer, tmp_path: Path, point: str
) -> None:
    database = f"again_{point.partition('=')[0]}"
    shop(mysql80, database)
    job = Job(tmp_path, mysql80, database, TABLES, sink="jsonl", write="changelog", local=True, chunk_rows=15)
    catch_up(job)
    tables_command(job, "resnapshot", f"{database}.products")
    mysql80.execute("UPDATE products SET stock = stock + 1 WHERE id < 9", database=database)
    killed = job.start("--until", "caught-up", failpoints=point)
    assert killed.wait() == -9, killed.story()
    mysql80.execute(
        "DELETE FROM products WHERE id > 35", "UPDATE orders SET quantity = 7 WHERE id = 1", database=database
    )
    catch_up(job)
    for table in TABLES:
        rows = read_changelog(job.lake / database / table, "jsonl")
        assert check_changelog(rows, ["id"]) == []
        assert sum(row["_op"] == "T" for row in rows) == (1 if table == "products" else 0)
    stock = dict(mysql80.execute("SELECT id, stock FROM products", database=database))
    assert {key: row["stock"] for key, row in rows_of(job, "products").items()} == stock


def test_a_table_whose_rows_are_lost_between_two_commits_is_read_again(mariadb: MariaDbServer, tmp_path: Path) -> None:
    """One table has committed when the other cannot, and before the next start the segments are deleted."""
    database = "lost"
    shop(mariadb, database)
    tables = ("customers", "orders")
    job = Job(tmp_path, mariadb, database, tables, local=True, pipeline='on_table_error = "fail"')
    catch_up(job)
    with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
        connection.begin()
        cursor.execute("UPDATE orders SET quantity = quantity + 1")
        cursor.execute("UPDATE customers SET tier = 'gold' WHERE id < 3")
        connection.commit()
    broken = job.start("--until", "caught-up", failpoints="before_commit=stop")
    assert broken.wait_for(lambda: job.stopped_at("before_commit")), broken.story()
    log = job.lake / database / "orders" / "_delta_log"
    log.rename(tmp_path / "hidden")
    os.kill(broken.process.pid, signal.SIGCONT)
    assert broken.wait() == 5, broken.story()
    (tmp_path / "hidden").rename(log)
    for segment in (job.state / "spool").glob("*.arrow"):
        segment.unlink()
    mariadb.execute("DELETE FROM orders WHERE id > 90", database=database)

    job.pipeline = ""
    run = job.run()
    assert run.wait() == 0, run.story()
    warnings = [event["text"] for event in run.events if event["event"] == "warning"]
    assert any(f"{database}.orders will be read again" in text for text in warnings), run.story()
    require_rows_equal(job, *tables)
    assert listed(job)[f"{database}.orders"]["phase"] == "stream"


def killed_in_its_snapshot(server: DatabaseServer, folder: Path, database: str, *tables: str) -> Job:
    """A job that died when a manifest held some rows of the tables, and not all."""
    numbers = ", ".join(f"({number}, {number}, 'text')" for number in range(200))
    server.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    for table in tables:
        created = f"CREATE TABLE {table} (id INT PRIMARY KEY, stock INT, note VARCHAR(9))"
        server.execute(created, f"INSERT INTO {table} VALUES {numbers}", database=database)
    job = Job(folder, server, database, tables, sink="jsonl", write="changelog", local=True, chunk_rows=10)
    job.snapshot = "rows_per_second = 20"
    run = job.start("--until", "caught-up", failpoints="after_manifest=kill@2")
    assert run.wait() < 0, run.story()
    job.snapshot = ""
    return job


def test_a_chunk_key_that_changes_in_a_snapshot_begins_the_table_again(mariadb: MariaDbServer, tmp_path: Path) -> None:
    job = killed_in_its_snapshot(mariadb, tmp_path, "rekeyed", "products")
    mariadb.execute(
        "UPDATE products SET stock = -1 WHERE id % 7 = 0",
        "ALTER TABLE products MODIFY id BIGINT",
        "INSERT INTO products VALUES (5000000000, 1, '')",
        "DELETE FROM products WHERE id = 3",
        database=job.database,
    )
    catch_up(job)
    rows = read_changelog(job.lake / job.database / "products", "jsonl")
    assert check_changelog(rows, ["id"]) == []
    assert sum(row["_op"] == "T" for row in rows) == 1
    assert sorted(rows_of(job, "products")) == [n for n in range(200) if n != 3] + [5_000_000_000]


def test_chunks_of_tables_that_were_changed_before_the_log_says_so_wait_for_it(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    """The log is read from before the statements; what a SELECT finds has them already."""
    job = killed_in_its_snapshot(mariadb, tmp_path, "reshaped", "dropped", "altered", "renamed")
    mariadb.execute(
        "ALTER TABLE altered MODIFY stock BIGINT, DROP COLUMN note",
        "UPDATE altered SET stock = 5000000000 WHERE id = 199",
        "ALTER TABLE renamed CHANGE stock held INT",
        "UPDATE renamed SET held = -1 WHERE id = 199",
        "DROP TABLE dropped",
        database=job.database,
    )
    catch_up(job)
    altered, renamed = rows_of(job, "altered"), rows_of(job, "renamed")
    assert sorted(altered) == sorted(renamed) == list(range(200))
    assert altered[199]["stock"] == 5_000_000_000
    assert renamed[199]["held"] == -1
    assert rows_of(job, "dropped") == {}


@pytest.mark.long_variants("mysql80", suite="servers")
@pytest.mark.parametrize("kind", ["mariadb", "mysql80"])
def test_a_database_that_is_dropped_in_the_snapshot_of_its_tables_leaves_them_empty(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    server = request.getfixturevalue(kind)
    job = killed_in_its_snapshot(server, tmp_path, "thrown_away", "one", "two")
    server.execute(f"DROP DATABASE {job.database}", f"CREATE DATABASE {job.database}")
    server.execute(
        "CREATE TABLE two (id INT PRIMARY KEY, word VARCHAR(20))",
        "INSERT INTO two VALUES (7, 'new')",
        database=job.database,
    )
    catch_up(job)
    assert rows_of(job, "one") == {}
    assert {key: row["word"] for key, row in rows_of(job, "two").items()} == {7: "new"}


@pytest.mark.long_variants("mysql80", suite="servers")
@pytest.mark.parametrize("kind", ["mariadb", "mysql80"])
def test_rows_prepared_while_their_table_is_paused_come_when_they_are_committed(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    """One transaction is committed before the table is looked at again, one after that, and one never."""
    server, database = request.getfixturevalue(kind), "prepared"
    server.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    for table in ("one", "two"):
        server.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, word VARCHAR(20))",
            f"INSERT INTO {table} VALUES (1, 'old'), (2, 'old'), (3, 'old')",
            database=database,
        )
    job = Job(tmp_path, server, database, ("one", "two"), sink="jsonl", write="changelog", local=True)
    catch_up(job)
    tables_command(job, "pause", f"{database}.one")
    for number, name in enumerate(("early", "late", "never"), start=1):
        server.execute(
            f"XA START '{name}'",
            f"UPDATE one SET word = '{name}' WHERE id = {number}",
            f"INSERT INTO one VALUES ({10 + number}, '{name}')",
            f"INSERT INTO two VALUES ({10 + number}, '{name}')",
            f"XA END '{name}'",
            f"XA PREPARE '{name}'",
            database=database,
        )
    catch_up(job)
    assert {key: row["word"] for key, row in rows_of(job, "one").items()} == dict.fromkeys((1, 2, 3), "old")
    server.execute("XA COMMIT 'early'")
    tables_command(job, "resume", f"{database}.one")
    catch_up(job)
    words = {1: "early", 2: "old", 3: "old", 11: "early"}
    assert {key: row["word"] for key, row in rows_of(job, "one").items()} == words
    server.execute("XA COMMIT 'late'", "XA ROLLBACK 'never'")
    catch_up(job)
    words |= {2: "late", 12: "late"}
    assert {key: row["word"] for key, row in rows_of(job, "one").items()} == words
    assert sorted(rows_of(job, "two")) == [1, 2, 3, 11, 12]
    for table in ("one", "two"):
        assert check_changelog(read_changelog(job.lake / database / table, "jsonl"), ["id"]) == []


@pytest.mark.long_variants("mysql80", suite="servers")
@pytest.mark.parametrize("kind", ["mariadb", "mysql80"])
def test_rows_changed_by_a_statement_in_the_log_park_their_table_however_it_gets_there(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    server, database = request.getfixturevalue(kind), "by_statement"
    # MySQL shows texts of views and functions to their makers alone: there they may lead to any table.
    shown = kind == "mariadb"
    tables = ("named", "triggered", *(["viewed", "called"] if shown else []), "untouched")
    server.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    for table in ("named", "triggered", "viewed", "called", "untouched", "other"):
        server.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)", database=database
        )
    server.execute(
        "CREATE TRIGGER goes_on AFTER INSERT ON other FOR EACH ROW INSERT INTO triggered VALUES (NEW.id)",
        "CREATE VIEW seen AS SELECT id FROM viewed",
        "CREATE FUNCTION put() RETURNS INT DETERMINISTIC BEGIN INSERT INTO called VALUES (2); RETURN 1; END",
        database=database,
    )
    # What an account has no privilege on is not seen at all, or without its text.
    server.execute("GRANT TRIGGER, SHOW VIEW, EXECUTE, ALTER ROUTINE ON *.* TO cdc@'%'")
    request.addfinalizer(
        lambda: server.execute("REVOKE TRIGGER, SHOW VIEW, EXECUTE, ALTER ROUTINE ON *.* FROM cdc@'%'")
    )
    job = Job(tmp_path, server, database, tables, sink="jsonl", write="changelog", local=True)
    catch_up(job)
    server.execute(
        "SET SESSION binlog_format = STATEMENT",
        "INSERT INTO named VALUES (2)",
        "INSERT INTO other VALUES (2)",
        *(["INSERT INTO seen VALUES (2)", "SELECT put()"] if shown else []),
        "SET SESSION binlog_format = ROW",
        "INSERT INTO untouched VALUES (2)",
        database=database,
    )
    run = job.run()
    assert run.wait() == 4, run.story()
    phases = {name.partition(".")[2]: entry["phase"] for name, entry in listed(job).items()}
    assert phases == dict.fromkeys(tables, "parked") | {"untouched": "stream"}
    assert sorted(rows_of(job, "untouched")) == [1, 2]
    for table in tables[:-1]:
        tables_command(job, "resnapshot", f"{database}.{table}")
    catch_up(job)
    assert {table: sorted(rows_of(job, table)) for table in tables} == {table: [1, 2] for table in tables}


def test_names_that_no_table_has_are_told_to_nobody_and_what_is_told_is_so(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    database = "names_said"
    mariadb.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    plain = "(id INT PRIMARY KEY)"
    mariadb.execute(*(f"CREATE TABLE {name} {plain}" for name in ("a", "b", "c")), database=database)
    mariadb.execute(*(f"INSERT INTO {name} VALUES (1), (2)" for name in ("a", "b", "c")), database=database)
    job = Job(tmp_path, mariadb, database, [".*"], local=True)
    catch_up(job)
    run = job.start()
    run.wait_for_start()
    mariadb.execute(
        # MariaDB passes over names that no table has: b and c are as they were.
        "RENAME TABLE IF EXISTS nowhere TO elsewhere",
        "RENAME TABLE IF EXISTS nowhere TO b, c TO c_for_now, c_for_now TO c, nobody TO somebody",
        "ALTER TABLE IF EXISTS nowhere RENAME TO b",
        "RENAME TABLE IF EXISTS a TO a2, q TO r",
        "CREATE TABLE keyless (id INT)",
        database=database,
    )

    def phases() -> dict[str, str]:
        told = [event for event in run.events if event["event"] == "progress"]
        return {table["table"].partition(".")[2]: table["phase"] for event in told for table in event["tables"]}

    run.wait_for(lambda: phases().get("a2") == "stream" and phases().get("keyless") == "parked")
    mariadb.execute(
        "DROP TABLE keyless", f"CREATE TABLE brief {plain}", "INSERT INTO brief VALUES (9)", database=database
    )
    run.wait_for(lambda: phases().get("keyless") == "ended" and phases().get("brief") == "stream")
    mariadb.execute("DROP TABLE brief", "DROP TABLE c", database=database)
    run.wait_for(lambda: phases().get("brief") == phases().get("c") == "ended")
    mariadb.execute(*(f"CREATE TABLE {name} {plain}" for name in ("brief", "c")), database=database)
    mariadb.execute("INSERT INTO brief VALUES (1)", "INSERT INTO c VALUES (3)", database=database)
    run.wait_for(lambda: phases().get("brief") == phases().get("c") == "stream")
    assert run.interrupt() in (0, 130), run.story()
    told = [(event["table"].partition(".")[2], event) for event in run.events if event["event"] == "parked"]
    assert [name for name, _ in told] == ["a2", "a", "keyless", "keyless"], run.story()
    assert [event["phase"] for _, event in told if not event["again"]] == ["ended", "parked", "ended"]
    assert [name for name, event in told if event["again"]] == ["a2"]
    reasons = {name: event["reason"] for name, event in told}
    assert reasons["a"].endswith("any more; the target keeps what it had")
    assert reasons["keyless"].endswith("nothing of it was read")
    new = [event["table"].partition(".")[2] for event in run.events if event["event"] == "new_table"]
    assert new == ["a2", "brief"]
    moves = {event["to"] for event in run.events if event["event"] == "table_phase" and event["table"].endswith(".a2")}
    assert "parked" not in moves
    require_rows_equal(job, "a2", "b", "c", "brief")


def test_rows_of_a_table_that_the_account_may_not_see_park_it_and_it_is_read_once_granted(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    database, password = "unseen", "few"
    mariadb.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    mariadb.execute(
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in ("seen", "hidden", "gone")),
        "INSERT INTO hidden VALUES (1)",
        f"CREATE OR REPLACE USER 'few'@'%' IDENTIFIED BY '{password}'",
        "GRANT REPLICATION CLIENT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO 'few'@'%'",
        f"GRANT SELECT ON {database}.seen TO 'few'@'%'",
        database=database,
    )
    account = cast("DatabaseServer", Account(mariadb.host, mariadb.port, "few"))
    job = Job(tmp_path, account, database, [".*"], local=True)
    catch_up(job)
    mariadb.execute(
        "INSERT INTO hidden VALUES (2)", "INSERT INTO gone VALUES (2)", "DROP TABLE gone", database=database
    )
    run = job.run()
    assert run.wait() == 4, run.story()
    said = run.events[-1]["text"]
    assert f"the log has rows of table {database}.hidden, and this account sees none of that name" in said
    assert f"{database}.gone" not in said
    assert listed(job)[f"{database}.hidden"]["phase"] == "parked"
    mariadb.execute(f"GRANT SELECT ON {database}.hidden TO 'few'@'%'")
    tables_command(job, "resnapshot", f"{database}.hidden")
    catch_up(job)
    job.server = mariadb
    require_rows_equal(job, "hidden")
