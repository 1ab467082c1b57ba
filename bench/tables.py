"""The tables the benchmarks use, filled by the server itself.

`standard` has ten columns of mixed types, about 80 bytes a row; `wide` has sixty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection

from bench.measure import progress
from raycdc.sandbox.generated_tables import ROWS_PER_STATEMENT, connect, fill, prepare

if TYPE_CHECKING:
    from raycdc.sandbox.servers import DatabaseServer

__all__ = ["ROWS_PER_STATEMENT", "connect", "fill", "prepare", "server_of"]


def server_of(kind: str, settings: Mapping[str, str | None]) -> DatabaseServer:
    """Return a private ``mysql`` (8.0) or ``mariadb``; its context starts it."""
    from raycdc.sandbox.servers import MariaDbServer, MySqlServer

    progress(f"starting {kind} ...")
    return MySqlServer(version="8.0", options=settings) if kind == "mysql" else MariaDbServer(settings)


STANDARD = """CREATE TABLE bench.standard (
  id BIGINT NOT NULL PRIMARY KEY, customer INT NOT NULL, name VARCHAR(40) NOT NULL, price DECIMAL(12,2) NOT NULL,
  ordered DATETIME(3) NOT NULL, note VARCHAR(255), changed TIMESTAMP(3) NULL, status TINYINT NOT NULL,
  score DOUBLE NOT NULL, quantity INT NOT NULL) CHARACTER SET utf8mb4"""

#: Expressions of the row number `n`, in table order.
STANDARD_VALUES = (
    "n, n % 1000003, CONCAT('customer ', n % 50000), (n * 37 % 1000000) / 100, "
    "TIMESTAMPADD(MICROSECOND, n * 1000, '2024-01-01 00:00:00'), "
    "IF(n % 10 = 0, NULL, CONCAT('note text ', n * 7919 % 100003)), "
    "FROM_UNIXTIME(1700000000 + n / 1000), n % 100, n * 0.37e0, n % 1000"
)

NARROW = "CREATE TABLE bench.narrow (id INT NOT NULL PRIMARY KEY, v INT NOT NULL)"
NARROW_VALUES = "n, n % 1000"

STRING_HEAVY = (
    "CREATE TABLE bench.string_heavy (id BIGINT NOT NULL PRIMARY KEY, "
    + ", ".join(f"s{i} VARCHAR(120) NOT NULL" for i in range(10))
    + ") CHARACTER SET utf8mb4"
)
STRING_HEAVY_VALUES = "n, " + ", ".join(f"CONCAT(REPEAT('text ', {5 + i}), n * {i + 1} % 99991)" for i in range(10))

#: MariaDB's JSON is text; MySQL's is decoded from its binary form.
JSON_HEAVY = "CREATE TABLE bench.json_heavy (id BIGINT NOT NULL PRIMARY KEY, document JSON NOT NULL)"
JSON_HEAVY_VALUES = (
    "n, JSON_OBJECT('id', n, 'name', CONCAT('customer ', n % 50000), 'price', n * 0.37e0, 'tags', "
    "JSON_ARRAY('alpha', 'beta', CONCAT('tag ', n % 100)), 'address', "
    "JSON_OBJECT('street', CONCAT('street ', n % 9973), "
    "'zip', n % 99999, 'geo', JSON_ARRAY(n * 0.001e0, n * -0.002e0)), 'active', true, 'note', REPEAT('x', n % 60), "
    "'items', JSON_ARRAY(JSON_OBJECT('sku', n % 1000, 'count', n % 7), JSON_OBJECT('sku', n % 997, 'count', 1)))"
)

_WIDE_GROUPS = 15


def wide_table() -> str:
    """Return the CREATE TABLE of sixty columns: fifteen times integer, text, decimal, datetime."""
    columns = ", ".join(
        f"i{g} INT, t{g} VARCHAR(40), d{g} DECIMAL(14,4), w{g} DATETIME(6)" for g in range(1, _WIDE_GROUPS)
    )
    return (
        "CREATE TABLE bench.wide (id BIGINT NOT NULL PRIMARY KEY, t0 VARCHAR(40), d0 DECIMAL(14,4), w0 DATETIME(6), "
        f"{columns}) CHARACTER SET utf8mb4"
    )


def wide_values() -> str:
    """Return expressions of the row number `n`, in table order."""
    moment = "TIMESTAMPADD(MICROSECOND, n * 1001, '2024-01-01 00:00:00')"
    groups = [f"CONCAT('text ', n % 1000), n * 1.0001, {moment}"]
    groups += [f"n + {g}, CONCAT('text ', n * {g} % 99991), n * {g} / 10000, {moment}" for g in range(1, _WIDE_GROUPS)]
    return "n, " + ", ".join(groups)


def update_single_rows(connection: Connection[Any], rows: int, transactions: int) -> None:
    """Update one row of `bench.standard` per transaction, in a procedure on the server."""
    with connection.cursor() as cursor:
        cursor.execute("DROP PROCEDURE IF EXISTS bench.touch")
        cursor.execute(
            "CREATE PROCEDURE bench.touch(IN transactions INT, IN total INT) BEGIN DECLARE i INT DEFAULT 0; "
            "WHILE i < transactions DO UPDATE bench.standard SET quantity = quantity + 1, score = score + 1 "
            "WHERE id = i * 7919 % total; SET i = i + 1; END WHILE; END"
        )
        cursor.execute("CALL bench.touch(%s, %s)", (transactions, rows))
