"""Which tables have rows in an XA transaction that was prepared before a pipeline began: asked of the older log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pymysql
import pytest

from raycdc.config.checks import CheckResult
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.log import prepared_search
from raycdc.connectors.mysql.log.prepared_search import PreparedSearch
from raycdc.connectors.mysql.server.checks import check_source
from raycdc.connectors.mysql.server.client import current_end, probe
from raycdc.errors import SourceUnavailableError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MySqlServer
from tests.support.sessions import session

pytestmark = pytest.mark.server

#: As the log has it.
X = "x'78',x'',1"


def prepare(server: DatabaseServer, database: str, *statements: str, before: tuple[str, ...] = ()) -> None:
    server.execute(*before, "XA START 'x'", *statements, "XA END 'x'", "XA PREPARE 'x'", database=database)


def search(server: DatabaseServer) -> PreparedSearch:
    with session(server) as connection:
        return PreparedSearch(lambda: server.connect("cdc"), probe(connection))


def end_of_log(server: DatabaseServer) -> BinlogOffset:
    with session(server) as connection:
        return current_end(connection, probe(connection))


@contextmanager
def rolled_back(server: DatabaseServer) -> Iterator[None]:
    """What is prepared inside is rolled back: nobody could drop its tables."""
    try:
        yield
    finally:
        with suppress(pymysql.MySQLError):
            server.execute("XA ROLLBACK 'x'")


@pytest.fixture
def tables(server: DatabaseServer, database: str) -> Iterator[str]:
    """A database with the tables a and b."""
    for table in ("a", "b"):
        server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", database=database)
    with rolled_back(server):
        yield database


def test_the_newest_transaction_of_the_name_before_the_place_is_the_one(server: DatabaseServer, tables: str) -> None:
    prepare(server, tables, "INSERT INTO a VALUES (1)")
    first = end_of_log(server)
    server.execute("XA COMMIT 'x'")
    prepare(server, tables, "INSERT INTO b VALUES (1)", "INSERT INTO a VALUES (2)", "DELETE FROM a WHERE id > 5")
    find = search(server)
    # The other one is in the same file, behind the place.
    assert find(X, first) == (TableId(tables, "a"),)
    server.execute("FLUSH BINARY LOGS", f"CREATE TABLE {tables}.c (id INT PRIMARY KEY)")
    assert find(X, first) == (TableId(tables, "a"),)
    assert find(X, end_of_log(server)) == (TableId(tables, "b"), TableId(tables, "a"))


def test_it_is_told_why_nobody_knows_the_tables(
    server: DatabaseServer, tables: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, place = search(server), end_of_log(server)
    assert "its XA PREPARE is not in the log any more" in find("x'00',x'',1", place)
    assert "its XA PREPARE is not in the log any more" in find(X, replace(place, file="binlog.999999"))
    prepare(server, tables, "INSERT INTO b VALUES (1)", before=("SET SESSION binlog_format = 'STATEMENT'",))
    assert find(X, end_of_log(server)) == "it changed rows by a statement, which may concern any table"
    monkeypatch.setattr(prepared_search, "SEARCH_S_MAX", -1.0)
    assert find(X, end_of_log(server)) == "-1 s of the log before it do not have its XA PREPARE"
    find.is_stopped = lambda: True
    with pytest.raises(SourceUnavailableError):
        find(X, end_of_log(server))


def test_a_table_that_a_statement_may_have_changed_meanwhile_is_not_known(mysql80: MySqlServer) -> None:
    """A server that was started anew has lost the locks that prevent it; this statement is logged, and does nothing."""
    with mysql80.fresh_database() as database, rolled_back(mysql80):
        for table in ("a", "b"):
            mysql80.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", database=database)
        prepare(mysql80, database, "INSERT INTO a VALUES (1)")
        for table, name in (("b", "FLUSH BINARY LOGS"), ("a", "SELECT 1")):
            found = search(mysql80)(X, end_of_log(mysql80))
            assert found == (TableId(database, "a"),)
            mysql80.execute(f"CREATE TABLE IF NOT EXISTS {table} (id INT)", name, database=database)
        found = search(mysql80)(X, end_of_log(mysql80))
        assert found == f"{database}.a, of which it has rows, was changed since"


def prepared(server: DatabaseServer, user: str) -> CheckResult:
    """What ``raycdc check`` says."""
    with session(server, user) as connection:
        results = check_source(connection, probe(connection), ())
    return next(result for result in results if result.name == "prepared")


def test_check_names_what_is_prepared(any_server: DatabaseServer, any_database: str) -> None:
    assert prepared(any_server, "root") == CheckResult(
        "prepared", f"No XA transaction is prepared on 127.0.0.1:{any_server.port}.", ok=True
    )
    any_server.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=any_database)
    with rolled_back(any_server):
        prepare(any_server, any_database, "INSERT INTO t VALUES (1)")
        shown, ours = prepared(any_server, "root"), prepared(any_server, "cdc")
        name = shown.text.partition("prepared transactions: ")[2].partition(". A first start")[0]
        # As it is shown, it ends the transaction.
        any_server.execute(f"XA ROLLBACK {name}")
    assert (shown.ok, shown.required) == (False, False)
    assert ours.ok == ("GRANT XA_RECOVER_ADMIN ON *.* TO 'cdc'@'%';" in ours.text)
    assert prepared(any_server, "root").ok
