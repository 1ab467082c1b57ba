"""Rows that are looked at again, asked of each kind of server: all that were wanted come, and most others do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from bson import Int64

from raycdc.clients.mysql import MySqlSettings
from raycdc.config import Secret
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.sandbox.servers import MariaDbServer, MongoDb, PostgresServer
from raycdc.verify.targets.api import RowFilter, TargetTable
from raycdc.verify.targets.mongodb import MongoDbRows
from raycdc.verify.targets.mysql import MySqlRows
from raycdc.verify.targets.postgres import Login, PostgresRows

pytestmark = [pytest.mark.server, pytest.mark.long(suite="verify")]

NAMES = {1: "plain", 2: "Plain", 3: 'it\'s "\\quoted"', 4: "žluťoučký 🐎", 5: ""}
SCHEMA = TableSchema(
    (
        Column("id", LogicalType(TypeKind.INT64)),
        Column("name", LogicalType(TypeKind.STRING)),
        Column("_op", LogicalType(TypeKind.STRING)),
    ),
    primary_key=("id", "name"),
)


@pytest.fixture(params=["mysql", "postgresql", "mongodb"])
def target(request: pytest.FixtureRequest) -> Iterator[TargetTable]:
    """A table with the rows of `NAMES`, and one that says that it was emptied."""
    if request.param == "mongodb":
        server: MongoDb = request.getfixturevalue("mongodb")
        database: str = request.getfixturevalue("mongodb_database")
        with server.client() as client:
            rows: list[dict[str, Any]] = [{"id": Int64(key), "name": name, "_op": "+I"} for key, name in NAMES.items()]
            client[database].t.insert_many([*rows, {"_op": "T"}])
        yield MongoDbRows(Secret(server.uri), TableId(database, "t"), SCHEMA)
        return
    if request.param == "mysql":
        mariadb: MariaDbServer = request.getfixturevalue("mariadb")
        database = request.getfixturevalue("mariadb_database")
        mariadb.execute("CREATE TABLE t (id BIGINT UNSIGNED, name VARCHAR(40), _op VARCHAR(2))", database=database)
        for key, name in NAMES.items():
            mariadb.execute(f"INSERT INTO t VALUES ({key}, X'{name.encode().hex()}', '+I')", database=database)
        mariadb.execute("INSERT INTO t VALUES (NULL, NULL, 'T')", database=database)
        yield MySqlRows(MySqlSettings("127.0.0.1", mariadb.port, "root", mariadb.root_password), TableId(database, "t"))
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with postgres.fresh_database() as home, postgres.connect(home) as connection:
        with connection.cursor() as cursor:
            cursor.execute("CREATE SCHEMA s")
            cursor.execute("CREATE TABLE s.t (id numeric(20, 0), name text, _op text)")
            for key, name in NAMES.items():
                quoted = name.replace("'", "''")
                cursor.execute(f"INSERT INTO s.t VALUES ({key}, '{quoted}', '+I')")
            cursor.execute("INSERT INTO s.t VALUES (NULL, NULL, 'T')")
        connection.commit()
        yield PostgresRows(Login("127.0.0.1", postgres.port, home, postgres.user, postgres.password), TableId("s", "t"))


def names(target: TargetTable, wanted: RowFilter | None) -> list[str | None]:
    rows = pa.Table.from_batches(list(target.batches(["name"], wanted)))
    return sorted(rows.column("name").to_pylist(), key=str)


def test_wanted_rows_come_and_others_are_skipped(target: TargetTable) -> None:
    everything = sorted([*NAMES.values(), None], key=str)
    assert names(target, None) == everything
    numbers = RowFilter({"id": pa.array([1, 4, 70], pa.int64())})
    assert names(target, numbers) == ["plain", NAMES[4]]
    for number, name in NAMES.items():
        found = names(target, RowFilter({"name": pa.array([name])}))
        # A server may compare texts as its collation does.
        assert name in found
        assert len(found) <= 2
        both = RowFilter({"id": pa.array([number], pa.int64()), "name": pa.array([name])}, of_changes=True)
        assert names(target, both) == sorted([name, None], key=str)
