"""Result sets become Arrow: the values pymysql gives, whatever the size, and a connection that is sane afterwards."""

from __future__ import annotations

import datetime
import random
import struct
import sys
import tracemalloc
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from raycdc.clients.mysql import query
from raycdc.config.tls import TlsMode
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.snapshot.resultset import arena_for, stream_query
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import SchemaError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.support.sessions import session

pytestmark = pytest.mark.server

#: MariaDB tells no transactions behind an event larger than its packets, which later tests of the same server ask for.
KEEP_OUT_OF_THE_LOG = "SET SESSION sql_log_bin = 0"

#: Column type → values beyond NULL.
TYPES: dict[str, list[Any]] = {
    "TINYINT": [-128, 0, 127],
    "TINYINT UNSIGNED": [0, 128, 255],
    "SMALLINT": [-32768, 32767],
    "SMALLINT UNSIGNED": [0, 65535],
    "MEDIUMINT": [-8388608, 8388607],
    "MEDIUMINT UNSIGNED": [0, 16777215],
    "INT": [-(1 << 31), (1 << 31) - 1],
    "INT UNSIGNED": [0, (1 << 32) - 1],
    "INT(5) UNSIGNED ZEROFILL": [0, 42],
    "BIGINT": [-(1 << 63), (1 << 63) - 1],
    "BIGINT UNSIGNED": [0, 1 << 63, (1 << 64) - 1],
    "DECIMAL(12,2)": ["-9999999999.99", "0.01", "-0.10"],
    "DECIMAL(18,18)": ["-0.999999999999999999", "0.000000000000000001"],
    "DECIMAL(38,10)": ["-9999999999999999999999999999.9999999999", "0.0000000001"],
    "DECIMAL(20,0) UNSIGNED": ["99999999999999999999", "0"],
    "DECIMAL(65,30)": ["-99999999999999999999999999999999999.999999999999999999999999999999", "0"],
    "FLOAT": [1.1, -3.4e38, 16777217, 0],
    "DOUBLE": [0.1, -1.7976931348623157e308, 5e-324, 0],
    "CHAR(10)": ["", "abc", "ä 😀", "x   "],
    "VARCHAR(255)": ["", "abc  ", "ä€😀", "x" * 255, "\0\\'\""],
    "VARCHAR(50) CHARACTER SET latin1": ["", "äöü€", "plain"],
    "VARCHAR(50) CHARACTER SET gbk": ["", "中文", "plain"],
    "VARCHAR(50) CHARACTER SET utf16": ["😀", "plain"],
    "TEXT": ["", "y" * 60_000],
    "MEDIUMTEXT": ["z" * 70_000],
    "BINARY(5)": [b"", b"ab", b"\xff" * 5],
    "VARBINARY(300)": [b"", b"\0\x01", b"\xfe" * 251, b"q" * 300],
    "BLOB": [b"", bytes(range(256)) * 4],
    "DATE": ["1000-01-01", "1969-12-31", "2024-02-29", "9999-12-31"],
    "DATETIME": ["1000-01-01 00:00:00", "2024-02-29 23:59:59"],
    "DATETIME(3)": ["2024-02-29 23:59:59.123", "2024-02-29 00:00:00"],
    "DATETIME(6)": ["1969-12-31 23:59:59.999999", "9999-12-31 23:59:59.999999"],
    "TIMESTAMP NULL": ["1970-01-01 00:00:01", "2038-01-19 03:14:07"],
    "TIMESTAMP(6) NULL": ["2024-06-30 23:59:59.000001"],
    "TIME": ["-838:59:59", "00:00:00", "838:59:59"],
    "TIME(3)": ["-00:00:00.001", "12:34:56.700"],
    "TIME(6)": ["00:00:00.000001", "-838:59:58.999999"],
    "YEAR": [0, 1901, 2155],
    "BIT(1)": [0, 1],
    "BIT(17)": [0, 1, 131071],
    "BIT(64)": [0, (1 << 63) + 5, (1 << 64) - 1],
    "ENUM('a','ä''x','c,d')": ["a", "ä'x", "c,d"],
    "SET('r','g','b')": ["", "r", "r,b", "r,g,b"],
    "JSON": ['{"a": [1, 2.5, "ä", null, true]}', "[]", '"text"'],
}


def expected_value(column: MySqlColumn, value: Any) -> Any:
    """What pymysql gave (TIME and wide decimals selected as text), in the form Arrow's ``to_pylist`` has."""
    type_ = column.logical().arrow()
    if value is None:
        return None
    if pa.types.is_decimal(type_):
        return Decimal(int.from_bytes(value, "big") if isinstance(value, bytes) else value)
    if column.shape.base == "bit":
        return int.from_bytes(value, "big")
    if column.shape.base == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if column.shape.base == "timestamp":
        return value.replace(tzinfo=datetime.UTC)
    if column.shape.base == "decimal":
        return format(value, "f")
    return value


def selected(column: MySqlColumn) -> str:
    """SQL that makes pymysql's text protocol give the exact value."""
    match column.shape.base:
        case "time":
            return f"CAST(`{column.name}` AS CHAR)"
        case "float":
            return f"`{column.name}` + 0e0"
        case _:
            return f"`{column.name}`"


def rows_of(connection: Any, table: MySqlTable, **arguments: Any) -> list[tuple[Any, ...]]:
    names = ", ".join(f"`{column.name}`" for column in table.columns)
    sql = f"SELECT {names} FROM `{table.id.db}`.`{table.id.table}` ORDER BY id"
    batches = list(stream_query(connection, sql, table, **arguments))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def expected_rows(connection: Any, table: MySqlTable) -> list[tuple[Any, ...]]:
    names = ", ".join(selected(column) for column in table.columns)
    rows = query(connection, f"SELECT {names} FROM `{table.id.db}`.`{table.id.table}` ORDER BY id")
    return [tuple(expected_value(c, v) for c, v in zip(table.columns, row, strict=True)) for row in rows]


def wrong_cells(connection: Any, table: MySqlTable) -> list[tuple[str, Any, Any]]:
    """(type, ours, pymysql's) of every cell that differs."""
    ours, theirs = rows_of(connection, table), expected_rows(connection, table)
    assert len(ours) == len(theirs)
    return [
        (column.column_type, one, other)
        for our_row, their_row in zip(ours, theirs, strict=True)
        for column, one, other in zip(table.columns, our_row, their_row, strict=True)
        if one != other
    ]


def make_types_table(connection: Any, database: str, rows: int = 60) -> MySqlTable:
    """Every type in one table; row n holds value n (modulo their number and NULL) of each."""
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(TYPES))
    query(connection, f"CREATE TABLE `{database}`.types (id INT PRIMARY KEY AUTO_INCREMENT, {columns})")
    names = ", ".join(f"c{number}" for number in range(len(TYPES)))
    marks = ", ".join(["%s"] * len(TYPES))
    generator = random.Random(1)
    data = [[generator.choice([*values, values[0], None]) for values in TYPES.values()] for _ in range(rows)]
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO `{database}`.types ({names}) VALUES ({marks})", data)
    return load_table(connection, TableId(database, "types"))


def make_numbers_table(connection: Any, database: str, rows: int) -> MySqlTable:
    name = f"`{database}`.numbers"
    query(connection, f"CREATE TABLE {name} (id INT PRIMARY KEY, v BIGINT UNSIGNED, t VARCHAR(40))")
    with connection.cursor() as cursor:
        for start in range(0, rows, 20_000):
            data = [(n, n * 3, f"text {n}") for n in range(start, min(rows, start + 20_000))]
            cursor.executemany(f"INSERT INTO {name} VALUES (%s, %s, %s)", data)
    return load_table(connection, TableId(database, "numbers"))


def test_every_type_has_the_value_pymysql_gives(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        table = make_types_table(connection, database)
        assert wrong_cells(connection, table) == []


def test_mysql57_gives_the_same_values(mysql57: MySqlServer) -> None:
    with mysql57.fresh_database() as database, session(mysql57, "root") as connection:
        table = make_types_table(connection, database)
        assert wrong_cells(connection, table) == []


def test_zero_and_partial_dates_are_null_and_counted(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, a DATE, b DATETIME(3), c TIMESTAMP NULL)")
        query(
            connection,
            f"INSERT INTO `{database}`.t VALUES (1, '0000-00-00', '2024-00-10', '0000-00-00'), (2, NULL, NULL, NULL)",
        )
        table = load_table(connection, TableId(database, "t"))
        arena = arena_for(table)
        assert rows_of(connection, table, arena=arena) == [(1, None, None, None), (2, None, None, None)]
        assert arena.lost.zero_dates == 3


def test_batches_keep_both_limits_and_lose_nothing(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        table = make_types_table(connection, database, rows=300)
        expected = expected_rows(connection, table)
        assert rows_of(connection, table, arena=arena_for(table, rows_max=7)) == expected
        assert rows_of(connection, table, arena=arena_for(table, bytes_max=1)) == expected
        arena = arena_for(table, rows_max=128, bytes_max=64 << 20)
        sql = f"SELECT * FROM `{database}`.types"
        sizes = [b.num_rows for b in stream_query(connection, sql, table, arena=arena)]
        assert sizes == [128, 128, 44]


def test_rows_longer_than_a_packet_are_joined(server: DatabaseServer, database: str) -> None:
    """16 MB less a byte is the longest packet: a row of 30 MB takes two, one of exactly 16 MB - 1 an empty second."""
    name = f"`{database}`.wide"
    with session(server, "root") as connection:
        query(connection, f"CREATE TABLE {name} (id INT PRIMARY KEY, a LONGBLOB, b LONGTEXT)")
        query(connection, KEEP_OUT_OF_THE_LOG)
        table = load_table(connection, TableId(database, "wide"))
        overhead = 1 + 1 + 4 + 4 + 4
        for number, length in enumerate((7_000_000, (0xFFFFFF - overhead) // 2, 15_000_000, 10)):
            query(
                connection,
                f"INSERT INTO {name} VALUES ({number}, REPEAT('a', {length}), REPEAT('b', {length + length % 2}))",
            )
        found = [(i, len(a), len(b), set(a), set(b)) for i, a, b in rows_of(connection, table)]
        lengths = query(connection, f"SELECT id, LENGTH(a), LENGTH(b) FROM {name} ORDER BY id")
        assert found == [(i, a, b, {97}, {"b"}) for i, a, b in lengths]
        assert query(connection, "SELECT 1") == [(1,)]


def test_a_payload_of_exactly_one_full_packet_is_followed_by_an_empty_one(
    server: DatabaseServer, database: str
) -> None:
    name = f"`{database}`.exact"
    with session(server, "root") as connection:
        query(connection, f"CREATE TABLE {name} (id INT PRIMARY KEY, a LONGBLOB, b LONGBLOB)")
        query(connection, KEEP_OUT_OF_THE_LOG)
        table = load_table(connection, TableId(database, "exact"))
        # header 1, bitmap 1, id 4, and 4 bytes of length for each blob
        rest = 0xFFFFFF - 1 - 1 - 4 - 4 - 4
        query(
            connection,
            f"INSERT INTO {name} VALUES (1, REPEAT('a', 8000000), REPEAT('b', {rest - 8_000_000})), (2, '', 'x')",
        )
        found = [(i, len(a), len(b)) for i, a, b in rows_of(connection, table)]
        assert found == [(1, 8_000_000, rest - 8_000_000), (2, 0, 1)]


def test_an_error_of_the_server_between_rows_is_raised_and_the_connection_goes_on(
    server: DatabaseServer, database: str
) -> None:
    with session(server, "root") as connection:
        table = make_numbers_table(connection, database, 40_000)
        sql = f"SELECT id, 18446744073709551615 + (id > 30000), t FROM `{database}`.numbers ORDER BY id"
        batches = stream_query(connection, sql, table, arena=arena_for(table, rows_max=1000))
        sizes: list[int] = []
        with pytest.raises(SourceError, match="1690"):
            sizes.extend(batch.num_rows for batch in batches)
        assert 0 < sum(sizes) <= 30_001
        assert query(connection, "SELECT 1") == [(1,)]
        with pytest.raises(SourceError, match="1054"):
            list(stream_query(connection, f"SELECT nope FROM `{database}`.numbers", table))
        assert len(rows_of(connection, table)) == 40_000


def test_a_column_of_another_type_is_a_schema_error(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        table = make_numbers_table(connection, database, 10)
        query(connection, f"ALTER TABLE `{database}`.numbers MODIFY id VARCHAR(10)")
        with pytest.raises(SchemaError, match=r"numbers\.id"):
            rows_of(connection, table)


def test_leaving_early_closes_the_connection(mariadb: MariaDbServer, mariadb_database: str) -> None:
    with session(mariadb, "root") as connection:
        table = make_numbers_table(connection, mariadb_database, 20_000)
        batches = stream_query(
            connection, f"SELECT * FROM `{mariadb_database}`.numbers", table, arena=arena_for(table, rows_max=10)
        )
        assert next(iter(batches)).num_rows == 10
        batches.close()  # type: ignore[attr-defined]
        assert not connection.open


def test_a_killed_session_is_worth_a_retry(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        table = make_numbers_table(connection, database, 10)
        server.execute(f"KILL {connection.thread_id()}")
        with pytest.raises(SourceUnavailableError):
            rows_of(connection, table)


def test_rows_come_through_tls(mariadb: MariaDbServer, mariadb_database: str) -> None:
    with session(mariadb, "root", tls_mode=TlsMode.VERIFY_IDENTITY, tls_ca=str(mariadb.ca_path)) as connection:
        table = make_numbers_table(connection, mariadb_database, 30_000)
        assert query(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]
        assert rows_of(connection, table) == [(n, n * 3, f"text {n}") for n in range(30_000)]


def test_python_work_does_not_grow_with_the_rows_of_a_batch(mariadb: MariaDbServer, mariadb_database: str) -> None:
    """Python calls and live objects for a batch of 60,000 rows are within a few dozen of those for one of 600."""
    with session(mariadb, "root") as connection:
        table = make_numbers_table(connection, mariadb_database, 60_000)
        rows_of(connection, table)

        def cost(rows: int) -> tuple[int, int]:
            arena = arena_for(table)
            sql = f"SELECT * FROM `{mariadb_database}`.numbers LIMIT {rows}"
            calls = 0

            def count(*_: Any) -> None:
                nonlocal calls
                calls += 1

            tracemalloc.start()
            sys.setprofile(count)
            try:
                batches = list(stream_query(connection, sql, table, arena=arena))
            finally:
                sys.setprofile(None)
                blocks = sum(stat.count for stat in tracemalloc.take_snapshot().statistics("filename"))
                tracemalloc.stop()
            assert sum(batch.num_rows for batch in batches) == rows
            return calls, blocks

        few, many = cost(600), cost(60_000)
        # One receive returns 16 KiB at the least: 60,000 rows of 30 bytes are 110 of them.
        assert many[0] - few[0] < 6_000
        assert many[1] - few[1] < 200
