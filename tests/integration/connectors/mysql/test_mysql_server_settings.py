"""Settings of a server that would change in silence what our sessions see of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.catalog import load_table
from raycdc.model import TableId
from raycdc.testing.servers import DatabaseServer, MySqlNewestServer
from raycdc.testing.sessions import session
from tests.integration.connectors.mysql.test_mysql_binlog import log_end, read_log, replay, snapshot

pytestmark = pytest.mark.server


@contextmanager
def globally(server: DatabaseServer, **values: str) -> Iterator[None]:
    """Variables that new sessions begin with."""
    before = {name: str(server.scalar(f"SELECT @@GLOBAL.{name}")) for name in values}
    try:
        server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in values.items()))
        yield
    finally:
        for name, value in before.items():
            server.execute(f"SET GLOBAL {name} = {value if value.isdigit() else repr(value)}")


def test_what_sessions_begin_with_neither_cuts_off_rows_nor_keeps_an_old_view_of_them(
    any_server: DatabaseServer, any_database: str
) -> None:
    settings = {
        "sql_select_limit": "3",
        "sql_auto_is_null": "1",
        "completion_type": "1",
        "transaction_isolation" if type(any_server).__name__ == "MySqlServer" else "tx_isolation": "'READ-UNCOMMITTED'",
        "sql_mode": "'PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES,PIPES_AS_CONCAT'",
        "time_zone": "'-07:00'",
    }
    values = ", ".join(["('x', '2024-02-29 12:00:00')"] * 20)
    any_server.execute(
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, c CHAR(9), at TIMESTAMP NULL)",
        f"INSERT INTO t (c, at) VALUES {values}",
        database=any_database,
    )
    with globally(any_server, **settings), session(any_server, "root") as ours:
        table = load_table(ours, TableId(any_database, "t"))
        query(ours, f"INSERT INTO `{any_database}`.t (c) VALUES ('last')")
        assert query(ours, f"SELECT id FROM `{any_database}`.t WHERE id IS NULL") == []
        query(ours, "BEGIN")
        assert snapshot(ours, table).num_rows == 21
        query(ours, "ROLLBACK")
        any_server.execute("INSERT INTO t (c) VALUES ('new')", database=any_database)
        rows = snapshot(ours, table)
    assert rows.num_rows == 22
    assert set(rows["c"].to_pylist()) == {"x", "last", "new"}
    with session(any_server, "root") as plain:
        assert snapshot(plain, table).equals(rows)


def test_a_generated_primary_key_is_a_column_though_the_server_hides_it(mysql_newest: MySqlNewestServer) -> None:
    with (
        mysql_newest.fresh_database() as database,
        globally(
            mysql_newest,
            sql_generate_invisible_primary_key="1",
            show_gipk_in_create_table_and_information_schema="0",
        ),
        session(mysql_newest, "root") as connection,
    ):
        start = log_end(connection)
        query(connection, f"CREATE TABLE `{database}`.t (id INT, v VARCHAR(9))")
        query(connection, f"INSERT INTO `{database}`.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        query(connection, f"UPDATE `{database}`.t SET v = 'z' WHERE id = 2")
        table = load_table(connection, TableId(database, "t"))
        now = snapshot(connection, table)
        replayed = replay(read_log(mysql_newest, [table], start, log_end(connection)), table)
    assert table.primary_key == ("my_row_id",)
    assert now.equals(replayed)
