"""Generated tables with different kinds of keys, for comparing strategies that cut a snapshot.

The server fills them itself.

| name | its key |
|---|---|
| ``uniform`` | dense integers |
| ``sparse`` | clusters of integers with huge gaps |
| ``skewed`` | integers whose density increases |
| ``string`` | hexadecimal text, as UUIDs are |
| ``composite`` | two columns: the first has few values (tenants), the second has an index of its own |
| ``tenant`` | as ``composite``, but one tenant has most rows, and the second column has no index of its own |
| ``collection`` | a collection of MongoDB: three kinds of `_id`; a tenth of the documents is ten times as large as \
the rest |
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pymysql
from pymysql.connections import Connection

from raycdc.sandbox.servers import MariaDbServer, MongoDbServer, MySqlServer

ROWS_PER_STATEMENT = 10_000
#: Key columns and the expressions of the row number `n` that fill them, in table order.
KEYS: dict[str, tuple[str, str]] = {
    "uniform": ("id BIGINT NOT NULL PRIMARY KEY", "n"),
    "sparse": ("id BIGINT UNSIGNED NOT NULL PRIMARY KEY", "(n DIV 50000) * 400000000000000000 + n % 50000"),
    "skewed": ("id BIGINT NOT NULL PRIMARY KEY", "CAST(POW(n / 10, 2.5) AS SIGNED) * 10 + n % 10"),
    "string": ("id VARCHAR(36) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL PRIMARY KEY", "MD5(n)"),
    "composite": (
        "tenant INT NOT NULL, id BIGINT NOT NULL, PRIMARY KEY (tenant, id), UNIQUE KEY by_id (id)",
        "n % 7, n",
    ),
    "tenant": (
        "tenant INT NOT NULL, id BIGINT NOT NULL, PRIMARY KEY (tenant, id)",
        "IF(n % 10 < 6, 1, n % 1000), n",
    ),
}
COLLECTION = "collection"
NAMES = (*KEYS, COLLECTION)
#: The emulated MongoDB scans a whole collection for each chunk, so more documents would take minutes.
DOCUMENTS_MAX = 20_000
DATABASE = "bench"
#: The bytes of a large and of a small document. With these sizes, a chunk of a MiB has some hundreds of documents.
_DOCUMENT_CHARACTERS = (4000, 400)


@contextlib.contextmanager
def generated_tables(
    names: Sequence[str], rows: int, *, mysql: bool, on_progress: Callable[[str], None]
) -> Iterator[int]:
    """Run a private MariaDB, or MySQL 8.0, with these tables, each of this many rows; yield its port.

    ``root`` has the password ``root``. `on_progress` is called with each step.
    """
    settings: dict[str, str | None] = {"innodb_buffer_pool_size": "1G"}
    on_progress(f"starting a private {'MySQL' if mysql else 'MariaDB'}")
    with MySqlServer(version="8.0", options=settings) if mysql else MariaDbServer(settings) as server:
        with contextlib.closing(connect(server.port)) as connection, connection.cursor() as cursor:
            prepare(connection)
            cursor.execute("SET sql_log_bin = 0")
            for name in names:
                on_progress(f"writing {rows:,} rows into {DATABASE}.{name}")
                key, values = KEYS[name]
                cursor.execute(f"CREATE TABLE {DATABASE}.{name} ({key}, v INT, t VARCHAR(60)) CHARACTER SET utf8mb4")
                fill(connection, f"{DATABASE}.{name}", f"{values}, n, REPEAT('x', 20 + n % 40)", rows)
                cursor.execute(f"ANALYZE TABLE {DATABASE}.{name}")
        yield server.port


@contextlib.contextmanager
def generated_collection(documents: int, *, on_progress: Callable[[str], None]) -> Iterator[str]:
    """Run a private MongoDB with the collection; yield its URI.

    The server is no sharded cluster. For the strategy ``sharded``, bounds of chunks are written to the collections in
    which a cluster keeps them.
    """
    on_progress("starting a private MongoDB")
    with MongoDbServer() as server:
        with server.client() as client:
            on_progress(f"writing {documents:,} documents into {DATABASE}.{COLLECTION}")
            keys = [_document_key(number) for number in range(documents)]
            large, small = _DOCUMENT_CHARACTERS
            for first in range(0, documents, ROWS_PER_STATEMENT):
                client[DATABASE][COLLECTION].insert_many(
                    {"_id": key, "t": "x" * (large if number < documents // 10 else small)}
                    for number, key in enumerate(keys[first : first + ROWS_PER_STATEMENT], first)
                )
            _write_cluster_chunks(client, keys)
        yield server.uri


def connect(port: int, user: str = "root", password: str = "root") -> Connection[Any]:
    """Return a plain connection to a private server."""
    return pymysql.connect(host="127.0.0.1", port=port, user=user, password=password, autocommit=True)


def prepare(connection: Connection[Any]) -> None:
    """Create an empty database with a table of the numbers 0 to 9999."""
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        cursor.execute(f"CREATE TABLE {DATABASE}.numbers (n BIGINT NOT NULL PRIMARY KEY)")
        numbers = [(n,) for n in range(ROWS_PER_STATEMENT)]
        cursor.executemany(f"INSERT INTO {DATABASE}.numbers VALUES (%s)", numbers)


def fill(
    connection: Connection[Any],
    table: str,
    values: str,
    rows: int,
    *,
    first: int = 0,
    done: Callable[[int], None] | None = None,
) -> None:
    """Insert rows `first` … `rows` - 1, ten thousand to a transaction."""
    with connection.cursor() as cursor:
        for start in range(first, rows, ROWS_PER_STATEMENT):
            count = min(ROWS_PER_STATEMENT, rows - start)
            cursor.execute(
                f"INSERT INTO {table} SELECT {values} "
                f"FROM (SELECT n + {start} AS n FROM {DATABASE}.numbers WHERE n < {count}) numbered"
            )
            if done is not None:
                done(start + count)


def _document_key(number: int) -> Any:
    return (number, f"key {number:07d}", {"shop": number % 7, "number": number})[number % 3]


def _write_cluster_chunks(client: Any, keys: Sequence[Any]) -> None:
    import bson

    from raycdc.connectors.mongodb.snapshot.keys import sort_key

    ordered = sorted(keys, key=sort_key)
    step = max(1, len(ordered) // 20)
    bounds = [bson.MinKey(), *ordered[step::step], bson.MaxKey()]
    name = f"{DATABASE}.{COLLECTION}"
    client.config.collections.insert_one({"_id": name, "key": {"_id": 1}})
    client.config.chunks.insert_many(
        {"ns": name, "min": {"_id": low}, "max": {"_id": high}} for low, high in pairwise(bounds)
    )
