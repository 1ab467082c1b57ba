"""Law: the interval `classify` finds for a key is the one the server's ``WHERE key >= bound`` puts it in."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.resultset import stream_query
from raycdc.connectors.mysql.snapshot.sort_keys import bound_keys, can_be_ordered, classify, sort_keys
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer
from tests.support.sessions import session

pytestmark = pytest.mark.server

ALPHABET = "aAbBzZ \t\x01-_'\"\\0129äÄáßsSøØœŒéEeıİIi中文字あアー😀·chCHllnñ~\u0301"

COLLATIONS = {
    "common": [
        "utf8mb4_general_ci",
        "utf8mb4_unicode_ci",
        "utf8mb4_bin",
        "utf8mb4_czech_ci",
        "latin1_swedish_ci",
        "latin1_general_cs",
        "latin1_bin",
        "ucs2_unicode_ci",
        "utf16_bin",
        "gbk_chinese_ci",
        "sjis_japanese_ci",
    ],
    "mysql": ["utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_ja_0900_as_cs_ks", "utf8mb4_de_pb_0900_ai_ci"],
    "mariadb": [
        "utf8mb4_nopad_bin",
        "utf8mb4_unicode_nopad_ci",
        "utf8mb4_uca1400_ai_ci",
        "utf8mb4_uca1400_nopad_ai_ci",
    ],
}

VALUES: dict[str, list[Any]] = {
    "bigint": [-(1 << 63), -5, -1, 0, 1, 7, (1 << 63) - 1, None],
    "bigint unsigned": [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, None],
    "tinyint unsigned": [0, 1, 127, 128, 255],
    "mediumint": [-8388608, -1, 0, 1, 8388607],
    "decimal(12,2)": ["-99.99", "-0.01", "0.00", "0.01", "9999999999.99", None],
    "decimal(38,10)": ["-1234567890123456789012345678.0000000001", "-1", "0", "0.0000000001", "9" * 28],
    "double": [-1.5e300, -1.0, -5e-324, 0.0, 5e-324, 0.1, 1e22, 1.7e308],
    "float": [-1.1, 0.1, 0.3, 3.4e38, 16777217.0],
    "date": ["0001-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31", "0000-00-00", "2024-00-10", None],
    "datetime(6)": ["1000-01-01 00:00:00", "2024-01-01 10:00:00.000001", "2024-01-01 10:00:00", "2024-02-00 00:00:00"],
    "timestamp(3) null": [
        "1970-01-01 00:00:01",
        "2024-06-30 23:59:59.999",
        "2038-01-19 03:14:07",
        "0000-00-00 00:00:00",
    ],
    "time(2)": ["-838:59:59", "-00:00:00.01", "00:00:00", "00:00:00.50", "838:59:59"],
    "year": [0, 1901, 1970, 2155],
    "bit(64)": [0, 1, 1 << 63, (1 << 64) - 1],
    "bit(7)": [0, 1, 127],
    "varbinary(10)": [b"", b"\0", b"a", b"a\0", b"a ", b"\xff", b"ab", None],
    "binary(3)": [b"", b"a", b"a\0b", b"\xff\xff\xff"],
    "blob": [b"", b"x" * 300, b"\x80"],
}


def check_order(connection: Any, table: MySqlTable) -> int:
    """Classify every row of ``(id, k)`` between bounds taken from the table; returns how many bounds there were."""
    column = table.columns[1]
    name = f"{table.id.db}.{table.id.table}"
    batches = list(stream_query(connection, f"SELECT id, k FROM {name} ORDER BY id", table))
    array = pa.chunked_array([batch.column(1) for batch in batches]).combine_chunks()
    condition = keys.range_condition(column, None, None)
    rows = query(
        connection,
        f"SELECT {keys.select_expression(column)} FROM (SELECT DISTINCT k FROM {name} WHERE {condition}) d ORDER BY k",
    )
    bounds = [bound for (cell,) in rows if (bound := keys.from_server(column, cell)) is not None]
    bounds = bounds if len(bounds) < 20 else bounds[::7]
    found = classify(sort_keys(connection, column, array), bound_keys(connection, column, bounds)).tolist()
    inside = " + ".join(f"(k >= {keys.literal(column, bound)})" for bound in bounds)
    expected = query(connection, f"SELECT IF({keys.null_condition(column)}, -1, {inside}) FROM {name} ORDER BY id")
    wrong = [
        (value, place, int(server))
        for value, place, (server,) in zip(array.to_pylist(), found, expected, strict=True)
        if place != int(server)
    ]
    assert wrong == []
    return len(bounds)


def texts(seed: int) -> list[str | None]:
    generator = random.Random(seed)
    values = ["".join(generator.choices(ALPHABET, k=generator.choice((0, 1, 1, 2, 2, 3, 4, 6)))) for _ in range(250)]
    padded = [value + " " for value in values[:40]] + [value + "  " for value in values[:20]]
    return [*values, *padded, "a", "a ", "a\t", "A", "a\x01", "ab", "a b", None]


@pytest.mark.parametrize("seed", [1, 2])
def test_text_keys_are_ordered_as_the_server_orders_them(server: DatabaseServer, database: str, seed: int) -> None:
    values = [(value,) for value in texts(seed)]
    with session(server, "root") as connection:
        for collation in [*COLLATIONS["common"], *COLLATIONS[server.flavor]]:
            charset = collation.partition("_")[0]
            name = f"`{database}`.`{collation}`"
            query(
                connection,
                f"CREATE TABLE {name} (id INT PRIMARY KEY AUTO_INCREMENT, "
                f"k VARCHAR(40) CHARACTER SET {charset} COLLATE {collation})",
            )
            with connection.cursor() as cursor:
                cursor.executemany(f"INSERT IGNORE INTO {name} (k) VALUES (%s)", values)
            table = load_table(connection, TableId(database, collation))
            assert can_be_ordered(connection, table.columns[1]), collation
            assert check_order(connection, table) > 10, collation


@pytest.mark.parametrize("column_type", VALUES)
def test_keys_of_every_other_type_are_ordered_by_value(server: DatabaseServer, database: str, column_type: str) -> None:
    with session(server, "root") as connection:
        query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY AUTO_INCREMENT, k {column_type} NULL)")
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT IGNORE INTO `{database}`.t (k) VALUES (%s)", [(value,) for value in VALUES[column_type]]
            )
        table = load_table(connection, TableId(database, "t"))
        assert can_be_ordered(connection, table.columns[1])
        assert check_order(connection, table) >= 2


def test_columns_without_a_single_order_are_not_chunk_keys(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        query(
            connection,
            f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, e ENUM('b','a'), s SET('b','a'), d DECIMAL(60,2), "
            f"c VARCHAR(5) CHARACTER SET cp1250 COLLATE cp1250_czech_cs, g VARCHAR(5) CHARACTER SET big5)",
        )
        table = load_table(connection, TableId(database, "t"))
        assert [can_be_ordered(connection, column) for column in table.columns] == [True] + 5 * [False]


def test_many_and_long_keys_take_several_statements(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        query(
            connection,
            f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, k LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)",
        )
        column = load_table(connection, TableId(database, "t")).columns[1]
        values = [f"{n:05}" + "x" * (n % 3) * 200_000 for n in range(30)] + [f"{n:05}" for n in range(30, 2500)]
        found = sort_keys(connection, column, pa.array(values))
        bounds = bound_keys(connection, column, ["00010", "02000"])
        assert classify(found, bounds).tolist() == [0] * 10 + [1] * 1990 + [2] * 500
