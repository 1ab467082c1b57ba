"""Connecting, looking at a server, and saying in one message what is missing."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from raycdc.clients.mysql import MySqlSettings, connect, query
from raycdc.config.tls import TlsMode
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.catalog import discover_tables, load_table, load_tables, table_sizes
from raycdc.connectors.mysql.server.checks import check_source, lease_server_id, require_ok
from raycdc.connectors.mysql.server.client import (
    Flavor,
    MySqlServerInfo,
    current_position,
    ensure_available,
    gtids_before,
    oldest_position,
    probe,
)
from raycdc.errors import ConfigError, ExitCode, LogLostError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from raycdc.sandbox.servers.private import free_port
from tests.support.sessions import session, settings_of

pytestmark = pytest.mark.server


class Prefix:
    """Selects the tables of one database."""

    def __init__(self, database: str) -> None:
        self._database = database

    def matches(self, table: TableId) -> bool:
        return table.db == self._database


def test_a_wrong_password_names_the_user_and_the_server(any_server: DatabaseServer) -> None:
    with pytest.raises(SourceError, match=r"refused user 'cdc'.*source\.password") as error:
        connect(settings_of(any_server, password="wrong"))
    assert f"127.0.0.1:{any_server.port}" in str(error.value)
    assert "wrong" not in str(error.value)
    assert not error.value.retryable
    assert error.value.exit_code == ExitCode.SOURCE


def test_a_server_that_is_not_there_is_worth_a_retry() -> None:
    with pytest.raises(SourceUnavailableError, match=r"Cannot reach 127\.0\.0\.1:\d+.*source\.port"):
        connect(MySqlSettings(port=free_port(), user="cdc", password="cdc"))


def test_settings_never_show_the_password() -> None:
    shown = MySqlSettings(user="cdc", password="hidden", host="db1", port=3307)
    assert repr(shown) == "MySqlSettings(cdc:***@db1:3307, tls=verify-identity)"
    assert f"{shown} {shown!r}".count("hidden") == 0


def test_tls_is_verified(mariadb: MariaDbServer) -> None:
    with session(mariadb, tls_mode=TlsMode.VERIFY_IDENTITY, tls_ca=str(mariadb.ca_path)) as connection:
        assert query(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]
    with pytest.raises(SourceError, match=r"No TLS connection.*source\.tls\.ca"):
        connect(settings_of(mariadb, tls_mode=TlsMode.VERIFY_CA))
    with pytest.raises(ConfigError, match=r"source\.tls\.ca"):
        connect(settings_of(mariadb, tls_mode=TlsMode.VERIFY_CA, tls_ca="/no/such/ca.pem"))
    with session(mariadb, tls_mode=TlsMode.REQUIRED) as connection:
        assert query(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]


def test_a_server_without_tls_is_refused_when_tls_is_asked_for(mysql57: MySqlServer) -> None:
    with pytest.raises(SourceError, match=r"No TLS connection.*disabled"):
        connect(settings_of(mysql57, tls_mode=TlsMode.REQUIRED))


def test_a_probe_tells_the_kinds_of_servers_apart(
    mariadb: MariaDbServer, mysql80: MySqlServer, mysql80_nogtid: MySqlServer, mysql57: MySqlServer
) -> None:
    found = []
    for server in (mariadb, mysql80, mysql80_nogtid, mysql57):
        with session(server) as connection:
            info = probe(connection)
            found.append((info.flavor, info.version[0], info.gtid_mode, info.binlog_format, info.row_metadata))
            assert info.log_bin
            assert info.row_image == "FULL"
            assert info.address == f"127.0.0.1:{server.port}"
    assert found[1:] == [
        (Flavor.MYSQL, 8, True, "ROW", "FULL"),
        (Flavor.MYSQL, 8, False, "ROW", "FULL"),
        (Flavor.MYSQL, 5, True, "ROW", ""),
    ]
    assert found[0][0] is Flavor.MARIADB


def test_a_purged_position_is_a_lost_log(any_server: DatabaseServer) -> None:
    # A file of its own: MariaDB reads it from its beginning, and other tests write events that are too large for it.
    any_server.execute("FLUSH BINARY LOGS")
    with session(any_server) as connection:
        info = probe(connection)
        old = current_position(connection, info)
        ensure_available(connection, info, old)
        newest = any_server.purge_logs()
        with pytest.raises(LogLostError) as error:
            ensure_available(connection, info, old)
        told = (
            f"{old} is purged on {info.address} (oldest is {newest}). To read all tables again set pipeline.on_log_lost"
        )
        assert str(error.value).startswith(told)
        assert oldest_position(connection, info) == BinlogOffset(newest, 4)
        ensure_available(connection, info, oldest_position(connection, info))
        ahead = BinlogOffset(newest, 1 << 40)
        with pytest.raises(LogLostError, match="is after the end"):
            ensure_available(connection, info, ahead)


def test_gtids_of_another_server_are_refused(mysql80: MySqlServer) -> None:
    with session(mysql80) as connection:
        info = probe(connection)
        now = current_position(connection, info)
        foreign = BinlogOffset(now.file, now.pos, "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")
        with pytest.raises(LogLostError, match="unrelated server"):
            ensure_available(connection, info, foreign)


def test_the_catalog_describes_tables(any_server: DatabaseServer, any_database: str) -> None:
    any_server.execute(
        f"CREATE TABLE `{any_database}`.a (b INT NOT NULL DEFAULT 5, a VARCHAR(20) COLLATE utf8mb4_bin NOT NULL "
        f"DEFAULT 'x''(y)', c TIMESTAMP DEFAULT CURRENT_TIMESTAMP, g INT AS (b + 1) VIRTUAL, n INT, "
        f"d DECIMAL(5,1) DEFAULT 1.5, PRIMARY KEY (a, b))",
        f"CREATE TABLE `{any_database}`.z (x INT)",
        f"CREATE VIEW `{any_database}`.v AS SELECT 1",
    )
    with session(any_server) as connection:
        found = discover_tables(connection, Prefix(any_database))
        assert [table.table for table in found] == ["a", "z"]
        tables = load_tables(connection, [*found, TableId(any_database, "nope"), TableId(any_database, "v")])
        assert sorted(tables) == found
        table = tables[TableId(any_database, "a")]
        assert table.primary_key == ("a", "b")
        assert [(c.name, c.default, c.nullable) for c in table.columns] == [
            ("b", "5", False),
            ("a", "x'(y)", False),
            ("c", None, True),
            ("g", None, True),
            ("n", None, True),
            ("d", "1.5", True),
        ]
        assert [c.name for c in table.columns if c.is_virtual] == ["g"]
        assert table_sizes(connection, found)[found[0]].engine == "InnoDB"
        with pytest.raises(SourceError, match=r"GRANT SELECT ON `\w+`\.`nope`"):
            load_table(connection, TableId(any_database, "nope"))


def advised(info: MySqlServerInfo) -> list[str]:
    """What the account of the tests lacks, and could do without."""
    return [] if info.is_mariadb or info.gtid_mode else ["privilege_process"]


def test_a_good_source_passes_every_required_check(any_server: DatabaseServer, any_database: str) -> None:
    any_server.execute(f"CREATE TABLE `{any_database}`.t (id INT PRIMARY KEY)")
    with session(any_server) as connection:
        info = probe(connection)
        results = check_source(connection, info, [TableId(any_database, "t")], server_ids=range(5400, 5410))
        assert [result.name for result in results if not result.ok] == advised(info)
        require_ok(results, info)


def test_missing_privileges_come_with_their_grants(any_server: DatabaseServer, any_database: str) -> None:
    any_server.execute(
        f"CREATE TABLE `{any_database}`.t (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE `{any_database}`.u (id INT PRIMARY KEY)",
        "DROP USER IF EXISTS weak@'%'",
        "CREATE USER weak@'%' IDENTIFIED BY 'weak'",
        f"GRANT SELECT (id) ON `{any_database}`.t TO weak@'%'",
    )
    with session(any_server, "weak") as connection:
        info = probe(connection)
        wanted = [TableId(any_database, "t"), TableId(any_database, "u")]
        with pytest.raises(SourceError) as error:
            require_ok(check_source(connection, info, wanted), info)
        message = str(error.value)
        for grant in (
            "GRANT REPLICATION CLIENT ON *.* TO 'weak'@'%';",
            "GRANT REPLICATION SLAVE ON *.* TO 'weak'@'%';",
            f"GRANT SELECT ON `{any_database}`.`t` TO 'weak'@'%';",
            f"GRANT SELECT ON `{any_database}`.`u` TO 'weak'@'%';",
        ):
            assert message.count(grant) == 1
            any_server.execute(grant)
    with session(any_server, "weak") as connection:
        require_ok(check_source(connection, info, wanted), info)
    any_server.execute("DROP USER weak@'%'")


def test_doubtful_tables_are_warned_of_but_not_refused(any_server: DatabaseServer, any_database: str) -> None:
    any_server.execute(
        f"CREATE TABLE `{any_database}`.parent (id INT PRIMARY KEY)",
        f"CREATE TABLE `{any_database}`.child (id INT PRIMARY KEY, p INT, "
        f"FOREIGN KEY (p) REFERENCES parent (id) ON DELETE SET NULL)",
        f"CREATE TABLE `{any_database}`.loose (id INT) ENGINE = MyISAM",
        database=any_database,
    )
    with session(any_server) as connection:
        info = probe(connection)
        tables = [TableId(any_database, name) for name in ("parent", "child", "loose")]
        parks = [result for result in check_source(connection, info, tables) if result.parks]
        assert [result.name for result in parks] == [f"table {any_database}.child"]
        assert "a foreign key changes rows of this table by cascade" in parks[0].text
        assert 'source.on_cascade = "accept"' in parks[0].text
        results = check_source(connection, info, tables, accept_cascades=True)
        warned = {result.name: result.text.split(" ")[0].rstrip(":") for result in results if not result.ok}
        loose = f"{any_database}.loose"
        for name in advised(info):
            assert f"GRANT PROCESS ON *.* TO {warned.pop(name)};" in str(next(r for r in results if r.name == name))
        assert warned == {"engine": loose, f"table {any_database}.child": f"{any_database}.child"}
        require_ok(results, info)


def test_unsuitable_log_settings_are_refused_with_their_fix(any_server: DatabaseServer) -> None:
    any_server.execute("SET GLOBAL binlog_format = 'STATEMENT'", "SET GLOBAL binlog_row_image = 'MINIMAL'")
    try:
        with session(any_server) as connection:
            info = probe(connection)
            with pytest.raises(SourceError) as error:
                require_ok(check_source(connection, info, []), info)
    finally:
        any_server.execute("SET GLOBAL binlog_format = 'ROW'", "SET GLOBAL binlog_row_image = 'FULL'")
    assert "SET GLOBAL binlog_format = ROW;" in str(error.value)
    assert "SET GLOBAL binlog_row_image = FULL;" in str(error.value)


def test_a_server_without_log_is_refused() -> None:
    with MariaDbServer({"log-bin": None}) as server, session(server) as connection:
        info = probe(connection)
        with pytest.raises(SourceError, match="writes no binary log"):
            require_ok(check_source(connection, info, []), info)


def test_a_taken_server_id_is_not_used(any_server: DatabaseServer) -> None:
    with session(any_server) as connection:
        info = probe(connection)
        with session(any_server) as other:
            assert lease_server_id(connection, info, [info.server_id, 5401]) == 5401
            assert lease_server_id(other, info, [5401, 5402]) == 5402
            (taken,) = [r for r in check_source(other, info, [], server_ids=[5401]) if r.name == "server_id"]
            assert not taken.ok
        with pytest.raises(SourceError, match=r"source\.server_id"):
            lease_server_id(connection, info, [info.server_id])


def test_a_replica_that_died_before_it_read_does_not_end_the_server_when_ids_are_asked_for() -> None:
    with MySqlServer(version="8.0") as server:
        for server_id in range(6001, 6021):
            with session(server) as connection:
                register = struct.pack("<I", server_id) + b"\0\0\0" + struct.pack("<HII", 0, 0, 0)
                connection._execute_command(0x15, register)  # COM_REGISTER_SLAVE
                connection._read_ok_packet()
        with session(server) as connection:
            info = probe(connection)
            for _ in range(20):
                assert lease_server_id(connection, info, [5401]) == 5401
        assert server.running


def test_mariadb_notices_a_log_that_was_reset_or_is_another_servers() -> None:
    with MariaDbServer() as server, session(server, "root") as connection:
        info = probe(connection)
        query(connection, "CREATE DATABASE d")
        query(connection, "CREATE TABLE d.t (a VARCHAR(200))")
        for _ in range(3):
            query(connection, "INSERT INTO d.t VALUES (REPEAT('x', 100))")
        known = current_position(connection, info)
        ensure_available(connection, info, known)
        query(connection, "FLUSH LOGS")
        rotated = current_position(connection, info)
        ensure_available(connection, info, known)
        ensure_available(connection, info, BinlogOffset(rotated.file, 4, known.gtid_set, server=info.identity))
        query(connection, "RESET MASTER")
        for _ in range(20):
            query(connection, "INSERT INTO d.t VALUES (REPEAT('y', 100))")

        with pytest.raises(LogLostError, match="RESET MASTER"):
            ensure_available(connection, info, known)


def test_mysql_positions_of_another_server_are_refused(mysql80: MySqlServer) -> None:
    with session(mysql80, "root") as connection:
        info = probe(connection)
        here = current_position(connection, info)
        ensure_available(connection, info, here)

        with pytest.raises(LogLostError, match="positions of two servers cannot be compared"):
            ensure_available(connection, info, replace(here, server="another-uuid"))


def test_the_transactions_before_a_position_are_told_from_those_behind_it(mysql80: MySqlServer) -> None:
    with mysql80.fresh_database() as database, session(mysql80, "root") as connection:
        info = probe(connection)
        query(connection, f"CREATE TABLE {database}.t (a INT)")
        here = current_position(connection, info)
        query(connection, f"INSERT INTO {database}.t VALUES (1)")
        query(connection, "FLUSH LOGS")
        query(connection, f"INSERT INTO {database}.t VALUES (2)")

        assert gtids_before(connection, info, here) == here.gtid_set
        assert gtids_before(connection, info, here) != current_position(connection, info).gtid_set
