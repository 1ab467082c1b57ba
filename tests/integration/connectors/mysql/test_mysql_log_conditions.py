"""What a log goes through in operation: new files all the time, nothing at all, two kinds of transactions, TLS."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from raycdc.clients.mysql import query
from raycdc.config.tls import TlsMode
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem
from raycdc.connectors.mysql.binlog.index_loops import HEARTBEAT, HEARTBEAT_V2
from raycdc.connectors.mysql.binlog.positions.gtid import MySqlGtidSet
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import current_position, ensure_available, log_files, probe
from raycdc.connectors.mysql.server.mariadb_log import gtid_at, gtid_binlog_pos
from raycdc.errors import LogLostError, SourceError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.integration.connectors.mysql.test_mysql_binlog import log_end, read_log, stream_from
from tests.support.sessions import session

pytestmark = pytest.mark.server


def ids(items: list[BinlogRowsItem]) -> list[int]:
    return [key for item in items for key in item.batch["id"].to_pylist()]


def test_no_row_is_lost_while_the_log_changes_its_file_all_the_time(
    any_server: DatabaseServer, any_database: str
) -> None:
    with session(any_server, "root") as connection, session(any_server, "root") as other:
        query(connection, f"CREATE TABLE {any_database}.t (id INT PRIMARY KEY)")
        table = load_table(connection, TableId(any_database, "t"))
        start = log_end(connection)
        stop = threading.Event()

        def rotate() -> None:
            while not stop.is_set():
                query(other, "FLUSH LOGS")

        storm = threading.Thread(target=rotate, daemon=True)
        storm.start()
        keys = 0
        while keys < 150 or log_end(connection).file_number <= start.file_number + 3:
            query(connection, f"INSERT INTO {any_database}.t VALUES ({keys})")
            keys += 1
        stop.set()
        storm.join(300)
        end = log_end(connection)
    assert ids(read_log(any_server, [table], start, end)) == list(range(keys))


def test_an_idle_log_proves_that_it_lives_and_stays_where_it_is(any_server: DatabaseServer) -> None:
    with session(any_server, "root") as connection:
        end = log_end(connection)
    log = LogKind(mariadb=isinstance(any_server, MariaDbServer))
    decoder = BinlogDecoder(MapSchemas({}), wanted=lambda _: False, start=end, log=log)
    beats = 0
    with stream_from(any_server, end) as stream:
        while beats < 2:
            events = bytes(stream.read(bytes_max=1, timeout_s=120))
            assert events, "no heartbeat came"
            beats += events[4] in (HEARTBEAT, HEARTBEAT_V2)
            assert decoder.feed(events) == []
    assert decoder.cursor.position == end


def test_transactions_without_gtid_among_those_that_have_one() -> None:
    """As while GTIDs are being turned on. (When they are, the server itself refuses to send older transactions.)"""
    with MySqlServer({"gtid_mode": "ON_PERMISSIVE"}) as server, session(server, "root") as connection:
        query(connection, "CREATE DATABASE d")
        query(connection, "CREATE TABLE d.t (id INT PRIMARY KEY)")
        table = load_table(connection, TableId("d", "t"))
        start = log_end(connection)
        for key, mode in enumerate(["OFF_PERMISSIVE", "ON_PERMISSIVE", "OFF_PERMISSIVE", "ON_PERMISSIVE"]):
            query(connection, f"SET GLOBAL gtid_mode = {mode}")
            query(connection, f"INSERT INTO d.t VALUES ({key})")
        assert ids(read_log(server, [table], start, log_end(connection))) == [0, 1, 2, 3]


def test_a_gtid_set_with_a_hole_brings_what_is_in_the_hole(mysql80: MySqlServer) -> None:
    with mysql80.fresh_database() as database, session(mysql80, "root") as connection:
        info = probe(connection)
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
        table = load_table(connection, TableId(database, "t"))
        places = []
        for key in range(1, 5):
            places.append(MySqlGtidSet.parse(log_end(connection).gtid_set))
            query(connection, f"INSERT INTO {database}.t VALUES ({key})")
        second = places[2].without(places[1])
        seen = places[3].without(second)
        oldest, _ = log_files(connection, info)[0]
        start = BinlogOffset(oldest, 4, str(seen), server=info.identity, by_gtid=True)
        end = log_end(connection)
        assert ids(read_log(mysql80, [table], start, end)) == [2, 4]

        schemas = MapSchemas({table.id: table})
        decoder = BinlogDecoder(schemas, wanted=lambda t: t == table.id, start=start, log=LogKind())
        with stream_from(mysql80, start) as stream:
            while decoder.cursor.position < end:
                decoder.feed(stream.read(bytes_max=1 << 20, timeout_s=120))
        assert MySqlGtidSet.parse(decoder.cursor.position.gtid_set) == MySqlGtidSet.parse(end.gtid_set)


@pytest.mark.parametrize("mode", [TlsMode.REQUIRED, TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY])
@pytest.mark.parametrize("name", ["mariadb", "mysql80"])
def test_the_log_comes_over_a_verified_connection(name: str, mode: TlsMode, request: pytest.FixtureRequest) -> None:
    server: DatabaseServer = request.getfixturevalue(name)
    ca = str(server.folder / "tls" / "ca.pem")
    # The password is new to the server's cache: without TLS it is sent under the server's RSA key, with TLS as it is.
    user = f"tls_{mode.name.lower()}"
    server.execute(
        f"CREATE USER {user}@'%' IDENTIFIED BY '{user}' REQUIRE SSL",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO {user}@'%'",
    )
    with server.fresh_database() as database, session(server, "root") as connection:
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
        table = load_table(connection, TableId(database, "t"))
        start = log_end(connection)
        query(connection, f"INSERT INTO {database}.t VALUES (1)")
        end = log_end(connection)
        assert ids(read_log(server, [table], start, end, user=user, tls_mode=mode, tls_ca=ca)) == [1]
        if mode is not TlsMode.REQUIRED:
            with pytest.raises(SourceError, match=r"source\.tls\.ca"):
                read_log(server, [table], start, end, user=user, tls_mode=mode)
        with pytest.raises(SourceError):
            read_log(server, [table], start, end, user=user, tls_mode=TlsMode.DISABLED)
    server.execute(f"DROP USER {user}@'%'")


@pytest.mark.parametrize("tls", [TlsMode.REQUIRED, TlsMode.DISABLED])
def test_a_password_that_the_server_does_not_know_yet_is_sent_safely(mysql80: MySqlServer, tls: TlsMode) -> None:
    """caching_sha2_password: under the server's RSA key on a plain connection, and as it is inside TLS."""
    user = f"fresh_{tls.name.lower()}"
    mysql80.execute(
        f"CREATE USER {user}@'%' IDENTIFIED WITH caching_sha2_password BY '{user}'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO {user}@'%'",
    )
    with mysql80.fresh_database() as database, session(mysql80, "root") as connection:
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
        table = load_table(connection, TableId(database, "t"))
        start = log_end(connection)
        query(connection, f"INSERT INTO {database}.t VALUES (1)")
        end = log_end(connection)
        # The log connection is the one that has to say the password in full; the next ones are answered from the cache.
        assert ids(read_log(mysql80, [table], start, end, user=user, tls_mode=tls)) == [1]
        with session(mysql80, user, tls_mode=tls) as again:
            assert query(again, "SELECT 1") == [(1,)]
    mysql80.execute(f"DROP USER {user}@'%'")


def test_transactions_behind_an_event_that_is_too_large_are_not_taken_for_none(mariadb: MariaDbServer) -> None:
    usual, large = mariadb.scalar("SELECT @@GLOBAL.max_allowed_packet"), 64 << 20
    with mariadb.fresh_database() as database:
        mariadb.execute(f"CREATE TABLE {database}.t (b LONGBLOB)", f"SET GLOBAL max_allowed_packet = {large}")
        try:
            mariadb.execute(f"INSERT INTO {database}.t VALUES (REPEAT('x', 20000000))")
            mariadb.execute("SET GLOBAL max_allowed_packet = 16777216", f"INSERT INTO {database}.t VALUES ('y')")
            with session(mariadb, "root") as connection:
                end = current_position(connection, probe(connection))
                with pytest.raises(SourceError, match=r"larger than max_allowed_packet \(16777216 bytes\)"):
                    gtid_at(connection, end.file, end.pos)
                # What follows the place tells as well.
                last = gtid_binlog_pos(connection)
                ensure_available(connection, probe(connection), replace(end, gtid_set=last))
                with pytest.raises(LogLostError, match=f"comes after the transactions {last}, but .* were 0-1-1"):
                    ensure_available(connection, probe(connection), replace(end, gtid_set="0-1-1"))
        finally:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {usual}", "FLUSH BINARY LOGS")
