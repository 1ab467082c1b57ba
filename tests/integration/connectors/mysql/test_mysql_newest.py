"""MySQL 9: compressed transactions, JSON logged as differences, tagged GTIDs, XA; read live and from files."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pytest

from raycdc.cli.inspect.inspect_binlog import inspect_binlog
from raycdc.clients.mysql import query
from raycdc.config.tls import TlsMode
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import current_position, probe
from raycdc.errors import ExitCode
from raycdc.model import RowKind, TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlNewestServer
from tests.integration.connectors.mysql.test_mysql_binlog import check_every_type, read_log, replay, snapshot
from tests.support.sessions import session

pytestmark = pytest.mark.server


def log_end(server: DatabaseServer) -> BinlogOffset:
    with session(server, "root") as connection:
        return current_position(connection, probe(connection))


def test_every_type_is_the_same_in_snapshot_and_log(mysql_newest: MySqlNewestServer) -> None:
    with mysql_newest.fresh_database() as database:
        check_every_type(mysql_newest, database)


def test_compressed_transactions_give_the_same_rows(mysql_newest: MySqlNewestServer) -> None:
    with mysql_newest.fresh_database() as database:
        mysql_newest.execute("SET GLOBAL binlog_transaction_compression = ON")
        try:
            check_every_type(mysql_newest, database)
        finally:
            mysql_newest.execute("SET GLOBAL binlog_transaction_compression = OFF")


def test_mariadb_compressed_events_give_the_same_rows(mariadb: MariaDbServer) -> None:
    with mariadb.fresh_database() as database:
        mariadb.execute("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
        try:
            check_every_type(mariadb, database)
        finally:
            mariadb.execute("SET GLOBAL log_bin_compress = OFF")


def document(source: random.Random, depth: int = 3) -> Any:
    kind = source.randrange(9 if depth else 6)
    match kind:
        case 0:
            return source.choice([None, True, False])
        case 1:
            return source.choice([0, -1, 32767, 32768, -32769, 2**31, 2**63 - 1, 2**64 - 1])
        case 2:
            return source.choice([0.5, 1e100, -3.25])
        case 3 | 4 | 5:
            return source.choice(["", "x", "ä😀", 'q"\\\n', "long " * source.choice([1, 30, 200])])
        case 6:
            return [document(source, depth - 1) for _ in range(source.randrange(5))]
        case _:
            keys = ["a", "bb", "c c", "", "ключ", 'k"q', "x.y", "z" * 40]
            return {key: document(source, depth - 1) for key in source.sample(keys, source.randrange(1, 6))}


def paths(value: Any, at: str = "$") -> list[str]:
    found = [at]
    if isinstance(value, list):
        for n, item in enumerate(value):
            found += paths(item, f"{at}[{n}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            found += paths(item, f"{at}.{json.dumps(key, ensure_ascii=False)}")
    return found


def change(source: random.Random, value: Any) -> tuple[str, list[str]]:
    """An expression over column j that the server may log as a difference, and its arguments."""
    place = source.choice(paths(value))
    new = json.dumps(document(source, 1), ensure_ascii=False)
    match source.randrange(5):
        case 0 | 1:
            return "JSON_SET(j, %s, CAST(%s AS JSON))", [place, new]
        case 2:
            return "JSON_REPLACE(j, %s, CAST(%s AS JSON))", [place, new]
        case 3 if place != "$":
            return "JSON_REMOVE(j, %s)", [place]
        case _:
            return "JSON_SET(j, %s, CAST(%s AS JSON))", [f'{place}."new key"', new]


def test_json_logged_as_differences_is_whole_again(mysql_newest: MySqlNewestServer) -> None:
    source = random.Random(20_260_901)
    with mysql_newest.fresh_database() as database, session(mysql_newest, "root") as connection:
        start = log_end(mysql_newest)
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, j JSON, n INT, k JSON, s VARCHAR(9))")
        query(connection, "SET SESSION binlog_row_value_options = PARTIAL_JSON")
        for number in range(40):
            value: Any = {"a": [1, 2, {"deep": document(source)}], "b": document(source), "pad": "p" * 300}
            text = json.dumps(value, ensure_ascii=False)
            query(connection, f"INSERT INTO {database}.t VALUES (%s, %s, 1, %s, 'ä')", (number, text, text))
            if number % 3:
                query(connection, "SET SESSION binlog_transaction_compression = IF(%s, 'ON', 'OFF')", (number % 2,))
            for _ in range(5):
                expression, arguments = change(source, value)
                query(connection, f"UPDATE {database}.t SET j = {expression}, n = n + 1 WHERE id = {number}", arguments)
                [(now,)] = query(connection, f"SELECT j FROM {database}.t WHERE id = {number}")
                value = json.loads(now)
        query(connection, f"UPDATE {database}.t SET k = JSON_SET(k, '$.b', 1), s = NULL")
        query(connection, f"UPDATE {database}.t SET k = NULL WHERE id % 2 = 0")
        table = load_table(connection, TableId(database, "t"))
        items = read_log(mysql_newest, [table], start, log_end(mysql_newest))
        assert replay(items, table).equals(snapshot(connection, table))
    assert b"\x27" in {bytes([event[4]]) for event in raw_events(mysql_newest)}


def raw_events(server: DatabaseServer) -> list[bytes]:
    """The events of the newest file."""
    data = server.binlog_paths()[-1].read_bytes()
    events, at = [], 4
    while at + 19 <= len(data):
        length = int.from_bytes(data[at + 9 : at + 13], "little")
        events.append(data[at : at + length])
        at += length
    return events


def test_tagged_gtids_are_collected(mysql_newest: MySqlNewestServer) -> None:
    with mysql_newest.fresh_database() as database, session(mysql_newest, "root") as connection:
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
        start = log_end(mysql_newest)
        query(connection, "SET SESSION gtid_next = 'AUTOMATIC:blue'")
        query(connection, f"INSERT INTO {database}.t VALUES (1)")
        query(connection, "SET SESSION gtid_next = 'AUTOMATIC:green_1'")
        query(connection, f"INSERT INTO {database}.t VALUES (2)")
        query(connection, "SET SESSION gtid_next = 'AUTOMATIC'")
        table = load_table(connection, TableId(database, "t"))
        end = log_end(mysql_newest)
        items = read_log(mysql_newest, [table], start, end)
    assert [row["id"] for item in items for row in item.batch.to_pylist()] == [1, 2]
    assert ":blue:" in end.gtid_set


def xa_rows(server: DatabaseServer, database: str) -> list[int]:
    with session(server, "root") as connection, session(server, "root") as other:
        start = log_end(server)
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY) ENGINE = InnoDB")
        for statement in (
            "XA START 'a'", f"INSERT INTO {database}.t VALUES (1), (2)", "XA END 'a'", "XA PREPARE 'a'",
        ):  # fmt: skip
            query(other, statement)
        query(connection, f"INSERT INTO {database}.t VALUES (3)")
        query(other, "XA COMMIT 'a'")
        for statement in ("XA START 'b', 'c', 7", f"DELETE FROM {database}.t", "XA END 'b', 'c', 7"):
            query(other, statement)
        query(other, "XA PREPARE 'b', 'c', 7")
        query(other, "XA ROLLBACK 'b', 'c', 7")
        for statement in ("XA START 'd'", f"INSERT INTO {database}.t VALUES (4)", "XA END 'd'"):
            query(other, statement)
        query(other, "XA COMMIT 'd' ONE PHASE")
        query(other, "BEGIN")
        query(other, f"INSERT INTO {database}.t VALUES (5)")
        query(other, "SAVEPOINT s")
        query(other, f"INSERT INTO {database}.t VALUES (6)")
        query(other, "ROLLBACK TO s")
        query(other, f"INSERT INTO {database}.t VALUES (7)")
        query(other, "COMMIT")
        table = load_table(connection, TableId(database, "t"))
        items = read_log(server, [table], start, log_end(server))
        assert replay(items, table).equals(snapshot(connection, table))
    return [row["id"] for item in items for row in item.batch.to_pylist() if row["_op"] == RowKind.INSERT]


def test_xa_transactions_and_savepoints_are_followed(any_server: DatabaseServer, any_database: str) -> None:
    assert xa_rows(any_server, any_database) == [3, 1, 2, 4, 5, 7]


def test_xa_transactions_are_followed_on_the_newest_server(mysql_newest: MySqlNewestServer) -> None:
    with mysql_newest.fresh_database() as database:
        assert xa_rows(mysql_newest, database) == [3, 1, 2, 4, 5, 7]


@pytest.mark.parametrize("tls", [TlsMode.REQUIRED, TlsMode.DISABLED])
def test_caching_sha2_password_works_with_and_without_tls(mysql_newest: MySqlNewestServer, tls: TlsMode) -> None:
    user = f"fresh{tls.value}"  # a new user is not in the server's cache of passwords
    mysql_newest.execute(
        f"CREATE USER {user}@'%' IDENTIFIED WITH caching_sha2_password BY '{user}'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO {user}@'%'",
    )
    with mysql_newest.fresh_database() as database, session(mysql_newest, "root") as connection:
        start = log_end(mysql_newest)
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
        query(connection, f"INSERT INTO {database}.t VALUES (1)")
        table = load_table(connection, TableId(database, "t"))
        items = read_log(mysql_newest, [table], start, log_end(mysql_newest), user=user, tls_mode=tls)
    assert sum(item.rows for item in items) == 1
    assert all(isinstance(item, BinlogRowsItem) for item in items)


def test_inspect_shows_what_is_inside_compressed_transactions(mysql_newest: MySqlNewestServer) -> None:
    with mysql_newest.fresh_database() as database, session(mysql_newest, "root") as connection:
        query(connection, "FLUSH LOGS")
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, name TEXT)")
        query(connection, "SET SESSION binlog_transaction_compression = ON")
        query(connection, f"INSERT INTO {database}.t VALUES (1, 'one'), (2, 'two')")
        path = mysql_newest.binlog_paths()[-1]
    out, errors = io.StringIO(), io.StringIO()

    assert inspect_binlog([path], None, out, errors) == ExitCode.DONE, errors.getvalue()

    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    at = next(n for n, line in enumerate(lines) if "op" in line)
    assert [line.get("type", line.get("op")) for line in lines[at - 2 : at + 3]] == [
        "gtid", "begin", "insert", "insert", "xid",
    ]  # fmt: skip
    assert [line["after"]["name"] for line in lines[at : at + 2]] == ["one", "two"]
    assert len({line["pos"] for line in lines[at - 1 : at + 3]}) == 1
