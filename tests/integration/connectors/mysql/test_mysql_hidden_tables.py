"""Tables that an account does not see yet, and statements of the log that would make them if they were not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.connectors.mysql.server import catalog
from raycdc.sandbox.servers import MySqlServer
from raycdc.sandbox.servers.private import wait_until
from tests.integration.one_table_job import Job

pytestmark = pytest.mark.server

COLUMNS = "(id INT PRIMARY KEY)"
HIDDEN = ("seen", "late")


@pytest.fixture
def account(mysql80: MySqlServer) -> Iterator[tuple[str, str]]:
    """A database, and an account that sees its table `t` alone; the others have rows."""
    server = mysql80
    with server.fresh_database() as database:
        name = f"sees_{database}"
        server.execute(
            f"CREATE USER {name}@'%' IDENTIFIED BY 'cdc'",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {name}@'%'",
            "CREATE TABLE t (id INT PRIMARY KEY)",
            f"GRANT SELECT ON {database}.t TO {name}@'%'",
            *(f"CREATE TABLE {table} {COLUMNS}" for table in HIDDEN),
            *(f"INSERT INTO {table} VALUES (1), (2)" for table in HIDDEN),
            database=database,
        )
        yield database, name
        server.execute(f"DROP USER {name}@'%'")


def test_a_table_that_the_account_did_not_see_is_read_whatever_the_log_says_of_it(
    mysql80: MySqlServer, account: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL logs CREATE TABLE IF NOT EXISTS also where there is one. The account gets to see a table before, or later
    than what the log says of it is read.
    """
    monkeypatch.setattr(catalog, "CLOCKS_APART_S", 0.0)
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")
    (database, user), seen, late = account, *HIDDEN
    job = Job(mysql80, database, tmp_path, source={"user": user})
    assert job.catch_up() == {}
    made_s = int(mysql80.scalar("SELECT UNIX_TIMESTAMP()"))
    wait_until(lambda: mysql80.scalar("SELECT UNIX_TIMESTAMP()") > made_s + 1, timeout_s=10, what="a second passed")

    job.execute(f"GRANT SELECT ON {seen} TO {user}@'%'")
    for table in HIDDEN:
        job.execute(f"CREATE TABLE IF NOT EXISTS {table} {COLUMNS}", f"INSERT INTO {table} VALUES (3)")
    job.catch_up()
    assert [row["id"] for row in job.rows(seen)] == [1, 2, 3]
    assert job.rows(late) == []
    job.execute(f"GRANT SELECT ON {late} TO {user}@'%'")
    job.catch_up()
    assert [row["id"] for row in job.rows(late)] == [1, 2, 3]
