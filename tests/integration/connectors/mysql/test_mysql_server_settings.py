"""Settings of a server that would change in silence what our sessions see of its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
import pytest
from pymysql.constants import ER

from raycdc.clients import mysql
from raycdc.clients.mysql import SESSION_SETTINGS, query
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import probe
from raycdc.errors import SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MySqlNewestServer, MySqlServer
from tests.integration.connectors.mysql.test_mysql_binlog import log_end, read_log, replay, snapshot
from tests.support.sessions import session, settings_of

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
            server.execute(f"SET GLOBAL {name} = {value if value.replace('.', '').isdigit() else repr(value)}")


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


#: Variables that could end, refuse or cut off something, and do not concern what our sessions do: none of their
#: statements is of that kind (recursive, GROUP_CONCAT, INSERT DELAYED, a stored procedure, a statement that writes), or
#: the value only changes the server's way to the same answer.
_NO_CONCERN = frozenset(
    {
        "analyze_max_length", "big_tables", "connection_memory_limit", "cte_max_recursion_depth",
        "deadlock_timeout_long", "deadlock_timeout_short", "eq_range_index_dive_limit",
        "expensive_subquery_limit", "group_concat_max_len", "histogram_generation_max_mem_size",
        "idle_write_transaction_timeout", "innodb_lock_wait_timeout", "interactive_timeout",
        "join_buffer_space_limit", "lock_wait_timeout", "log_slow_max_warnings",
        "log_slow_min_examined_row_limit", "log_slow_query_time", "log_slow_rate_limit", "long_query_time",
        "max_allowed_packet", "max_delayed_threads", "max_heap_table_size", "max_insert_delayed_threads",
        "max_join_size", "max_length_for_sort_data", "max_points_in_geometry", "max_recursive_iterations",
        "max_relay_log_size", "max_rowid_filter_size", "max_seeks_for_key", "max_sort_length",
        "max_sp_recursion_depth", "max_tmp_tables", "max_user_connections", "min_examined_row_limit",
        "optimizer_join_limit_pref_ratio", "optimizer_max_sel_arg_weight", "optimizer_max_sel_args",
        "optimizer_max_subgraph_pairs", "optimizer_selectivity_sampling_limit", "optimizer_trace_limit",
        "optimizer_trace_max_mem_size", "parser_max_mem_size", "progress_report_time",
        "range_optimizer_max_mem_size", "show_create_table_skip_secondary_engine", "show_create_table_verbosity",
        "sql_buffer_result", "sql_generate_invisible_primary_key", "sql_if_exists", "sql_log_bin", "sql_log_off",
        "sql_notes", "sql_require_primary_key", "sql_slave_skip_counter", "sql_warnings", "transaction_read_only",
        "tx_read_only", "updatable_views_with_limit",
    }
)  # fmt: skip
_LIMITS = re.compile(r"^max_|_max|limit|safe|timeout|_time$|read_only|^sql_|^show_|big")


def _variables(server: DatabaseServer, scope: str) -> dict[str, str]:
    return {str(name): str(value) for name, value in server.execute(f"SHOW {scope} VARIABLES")}


def test_limits_of_the_servers_sessions_end_no_statement_of_ours(any_server: DatabaseServer, any_database: str) -> None:
    any_server.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)", database=any_database
    )
    limits = {"max_join_size": "1", "sql_safe_updates": "1", "sql_quote_show_create": "0"}
    present = _variables(any_server, "GLOBAL")
    limits |= {name: "1" for name in ("max_execution_time", "idle_transaction_timeout") if name in present}
    if "max_statement_time" in present:
        limits |= {"max_statement_time": "0.05", "max_error_count": "0"}
    with globally(any_server, **limits), session(any_server) as ours:
        assert probe(ours).log_bin
        assert query(ours, f"SELECT a.id FROM `{any_database}`.t a, `{any_database}`.t b") == [(1,), (2,)] * 2
        if "max_execution_time" in present or "max_statement_time" in present:
            assert query(ours, "SELECT SLEEP(0.1)") == [(0,)]


def test_every_variable_that_might_limit_a_session_is_set_or_said_to_be_of_no_concern(
    any_server: DatabaseServer,
) -> None:
    known = {setting.name for setting in SESSION_SETTINGS} | _NO_CONCERN
    unknown = set()
    for name in sorted(_variables(any_server, "SESSION").keys() - known):
        if _LIMITS.search(name):
            try:
                any_server.execute(f"SET SESSION {name} = DEFAULT")
            except pymysql.Error as error:
                if error.args[0] in (ER.GLOBAL_VARIABLE, ER.INCORRECT_GLOBAL_LOCAL_VAR):
                    continue  # It is none of a session's.
            unknown.add(name)
    assert unknown == set()


def test_an_error_of_a_server_that_was_reached_is_not_told_as_an_address_that_is_wrong(
    mysql80: MySqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql, "_ISOLATION", "SELECT * FROM nowhere.at_all")
    with pytest.raises(SourceError, match=r"answered error|refused a statement") as error:
        mysql.connect(settings_of(mysql80))
    assert not isinstance(error.value, SourceUnavailableError)
    mysql80.execute("CREATE USER expired@'%' IDENTIFIED BY 'expired'", "SET GLOBAL offline_mode = ON")
    try:
        with pytest.raises(SourceUnavailableError, match=r"was reached, and answered the login .* with error 3032"):
            mysql.connect(settings_of(mysql80, user="expired"))
    finally:
        mysql80.execute("SET GLOBAL offline_mode = OFF", "DROP USER expired@'%'")
