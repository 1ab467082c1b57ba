"""Chunks of tables with composite keys: each row in one chunk, and the log reader finds it in the same one.

The chunk that the log reader's `MySqlKeyOrder` puts a row into must be the one whose SELECT reads it, or rows are lost
at the seams.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.clients.mysql import connect, query
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.key_order import MySqlKeyOrder
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import best_key
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkPlan, ChunkRange
from raycdc.connectors.mysql.snapshot.planning.chunks import ChunkPlanner, ChunkSettings, MySqlChunkStrategy
from raycdc.connectors.mysql.snapshot.resultset import stream_query
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer
from raycdc.source.snapshot.key_intervals import key_names
from tests.support.sessions import session, settings_of

pytestmark = pytest.mark.server

#: Columns of the key, and values of each (an invalid label becomes number 0); every type a key may have is somewhere.
KEYS: dict[str, list[tuple[str, list[Any]]]] = {
    "label, number": [
        ("ENUM('z','é','a','M')", ["z", "no label", "é", "a", "M"]),
        ("BIGINT UNSIGNED", [0, 7, 1 << 63, (1 << 64) - 1]),
    ],
    "number, text": [
        ("SMALLINT", [-5, 0, 3]),
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", ["", "a", "Ab", "é", "Z", "a b", "ß"]),
    ],
    "text, moment": [
        ("VARCHAR(9) COLLATE utf8mb4_unicode_ci", ["ae", "Éa", "z", "Z z"]),
        (
            "DATETIME(2)",
            ["2024-01-01 10:00:00.05", "1999-12-31 23:59:59", "0000-00-00 00:00:00", "2024-02-00 00:00:00"],
        ),
    ],
    "three": [
        ("DECIMAL(30,2)", ["-1.50", "0.00", "12345678901234567890.25"]),
        ("TIME(1)", ["-10:00:00.5", "00:00:00", "800:00:00"]),
        ("VARBINARY(5)", [b"", b"\0", b"a", b"a\0", b"\xff"]),
    ],
    "rounded": [("DOUBLE", [-1.5, 0.1, 1e300]), ("FLOAT", [0.1, 0.2, 3e38]), ("DATE", ["2024-02-28", "0001-01-01"])],
    "bits": [("BIT(9)", [0, 5, 300]), ("YEAR", [1901, 2000, 2155]), ("TINYINT UNSIGNED", [0, 128, 255])],
}


def filled(connection: Any, database: str, columns: list[tuple[str, list[Any]]], extra: int, seed: int) -> MySqlTable:
    """A table whose key has those columns, and a number of its own in the last one, skewed to the first values."""
    chance = random.Random(seed)
    name = f"`{database}`.t"
    names = [f"k{number}" for number in range(len(columns))]
    listed = ", ".join(f"{k} {declared} NOT NULL" for k, (declared, _) in zip(names, columns, strict=True))
    query(connection, f"DROP TABLE IF EXISTS {name}")
    query(connection, f"CREATE TABLE {name} ({listed}, n INT NOT NULL, PRIMARY KEY ({', '.join(names)}, n))")
    rows = [(*(values[int(len(values) * chance.random() ** 3)] for _, values in columns), n) for n in range(extra)]
    with connection.cursor() as cursor:
        marks = ", ".join(["%s"] * (len(columns) + 1))
        cursor.executemany(f"INSERT IGNORE INTO {name} VALUES ({marks})", rows)
    query(connection, f"ANALYZE TABLE {name}")
    return load_table(connection, TableId(database, "t"))


def planned(server: DatabaseServer, table: MySqlTable, chosen: ChunkSettings, key: Any) -> list[ChunkRange]:
    """All chunks, a few at a time, with a new planner each time."""
    connector = partial(connect, settings_of(server, "root"))
    begun = ChunkPlan.restored({"key": key if isinstance(key, str) else list(key)}, table, rows=chosen.chunk_rows)
    planner = ChunkPlanner(connector, table, chosen, begun)
    chunks: list[ChunkRange] = []
    while not planner.plan.done:
        chunks += [ChunkRange.from_json(chunk.to_json()) for chunk in planner.next_chunks(4)]
        restored = ChunkPlan.restored(planner.plan.to_json(), table, rows=chosen.chunk_rows)
        planner = ChunkPlanner(connector, table, chosen, restored)
    return chunks


def check_chunks(server: DatabaseServer, connection: Any, table: MySqlTable, chunks: list[ChunkRange]) -> list[int]:
    """Each row is in one chunk, by SQL and in the log reader's order; returns how many rows each chunk has."""
    name = f"`{table.id.db}`.`{table.id.table}`"
    columns = ", ".join(f"`{column.name}`" for column in table.columns)
    order = MySqlKeyOrder(partial(connect, settings_of(server, "root")), {table.id: table})
    assert chunks[-1].key is not None
    order.use(table.id, chunks[-1].key)
    batches = list(stream_query(connection, f"SELECT {columns} FROM {name} ORDER BY n", table))
    rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    touched = pa.StructArray.from_arrays(
        [rows.column(key) for key in key_names(chunks[-1].key)], key_names(chunks[-1].key)
    )
    ends = {side for chunk in chunks for side in (chunk.lower, chunk.upper) if side is not None}
    bounds = {side: order.bound(table.id, keys.bound_to_json(side)) for side in ends}
    edges = sorted(set(bounds.values()))
    cells = order.classify(table.id, touched, edges)
    found = np.zeros((len(chunks), rows.num_rows), np.int64)
    expected = np.zeros_like(found)
    for number, chunk in enumerate(chunks):
        inside = query(connection, f"SELECT ({chunk.condition(table)}) IS TRUE FROM {name} ORDER BY n")
        expected[number] = [int(row[0]) for row in inside]
        if chunk.only_null or chunk.is_whole_table:
            found[number] = cells < 0 if chunk.only_null else 1
            continue
        low = 0 if chunk.lower is None else edges.index(bounds[chunk.lower]) + 1
        high = len(edges) if chunk.upper is None else edges.index(bounds[chunk.upper])
        found[number] = (cells >= low) & (cells <= high)
    order.close()
    assert (expected.sum(axis=0) == 1).all()
    assert (found == expected).all()
    return [int(size) for size in expected.sum(axis=1)]


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("flavor", ["mariadb", "mysql80"])
def test_rows_lie_in_the_chunk_the_log_reader_finds_for_them(
    request: pytest.FixtureRequest, flavor: str, name: str
) -> None:
    server: DatabaseServer = request.getfixturevalue(flavor)
    with server.fresh_database() as database, session(server, "root") as connection:
        table = filled(connection, database, KEYS[name], 80, seed=len(name))
        whole = table.primary_key
        for strategy, key in ((MySqlChunkStrategy.UNEVEN, whole[:2]), (MySqlChunkStrategy.SAMPLED, whole)):
            chunks = planned(server, table, ChunkSettings(strategy, 7), key)
            assert len(chunks) > 5
            check_chunks(server, connection, table, chunks)
            assert {chunk.key for chunk in chunks} == {key}


@pytest.mark.parametrize("flavor", ["mariadb", "mysql80", "mysql57"])
def test_a_tenant_with_most_rows_is_cut_among_its_rows_and_the_index_serves_every_chunk(
    request: pytest.FixtureRequest, flavor: str
) -> None:
    any_server: DatabaseServer = request.getfixturevalue(flavor)
    with any_server.fresh_database() as any_database, session(any_server, "root") as connection:
        name = f"`{any_database}`.t"
        query(connection, f"CREATE TABLE {name} (tenant ENUM('x','b','c','a') NOT NULL, n INT NOT NULL, "
                          f"PRIMARY KEY (tenant, n))")  # fmt: skip
        rows = ", ".join(f"({1 if n % 10 else 1 + n // 10 % 4}, {n})" for n in range(3000))
        query(connection, f"INSERT INTO {name} VALUES {rows}")
        query(connection, f"ANALYZE TABLE {name}")
        table = load_table(connection, TableId(any_database, "t"))
        key = best_key(connection, table, None, chunk_rows=200)
        assert key == ("tenant", "n")
        for strategy in (MySqlChunkStrategy.UNEVEN, MySqlChunkStrategy.SAMPLED):
            chunks = planned(any_server, table, ChunkSettings(strategy, 200), key)
            sizes = check_chunks(any_server, connection, table, chunks)
            assert max(sizes) <= 600
            assert len(chunks) <= 50
            for chunk, size in zip(chunks, sizes, strict=True):
                query(connection, "FLUSH STATUS")
                query(connection, f"SELECT * FROM {name} WHERE {chunk.condition(table)}")
                read = query(connection, "SHOW SESSION STATUS LIKE 'Handler_read%'")
                assert sum(int(value) for _, value in read) <= size + 12


def test_few_columns_are_taken_where_they_suffice(any_server: DatabaseServer, any_database: str) -> None:
    with session(any_server, "root") as connection:
        name = f"`{any_database}`.t"
        query(connection, f"CREATE TABLE {name} (a INT, b INT, c INT, d INT, PRIMARY KEY (a, b, c))")
        rows = ", ".join(f"({n % 4}, {n}, 0, 0)" for n in range(4000))
        query(connection, f"INSERT INTO {name} VALUES {rows}")
        query(connection, f"ANALYZE TABLE {name}")
        table = load_table(connection, TableId(any_database, "t"))
        assert best_key(connection, table, None, chunk_rows=500) == ("a", "b")
        assert best_key(connection, table, None, chunk_rows=500, several=False) == "a"
        assert best_key(connection, table, None, chunk_rows=10_000) == "a"
        assert best_key(connection, table, "b", chunk_rows=500) == "b"
