"""A driver is stopped between stage and commit, with whatever its sink has open then: its successor does not wait for
it, rows are there once, and the one that wakes up commits nothing and says why it ends.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import DatabaseServer, KafkaServer, MariaDbServer, MongoDbServer, PostgresServer
from raycdc.sinks.iceberg.catalog import open_catalog
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.storage.settings import LIKE_ANYBODY
from tests.e2e.test_jdbc import mysql_keys
from tests.e2e.test_jdbc import sink_keys as postgres_keys
from tests.e2e.test_mongodb_sink import sink_keys as mongodb_keys
from tests.e2e.topic_changes import changes
from tests.integration.sinks.iceberg_server import Server
from tests.kill.test_takeovers import COMMITTED_WITHIN_S, TAKEN_WITHIN_S, told
from tests.support.jobs import Job
from tests.support.sessions import session

pytestmark = [pytest.mark.server, pytest.mark.kill, pytest.mark.long(suite="takeover"), pytest.mark.timeout(1800)]

Recorder = Callable[[str, object], None]


@dataclass
class Home:
    """Where rows go: the sink, its keys as TOML, and the ids that its target has, in order."""

    sink: str
    keys: str
    ids: Callable[[], list[int]]
    write: str = "upsert"


@contextmanager
def delta(_: pytest.FixtureRequest, database: str, folder: Path) -> Iterator[Home]:
    def ids() -> list[int]:
        return sorted(row["id"] for row in read_delta(folder / "lake" / database / "t").to_pylist())

    yield Home("delta", "", ids)


@contextmanager
def postgres(request: pytest.FixtureRequest, database: str, _: Path) -> Iterator[Home]:
    server: PostgresServer = request.getfixturevalue("postgres")

    with server.fresh_database() as home:

        def ids() -> list[int]:
            with server.connect(home) as connection, connection.cursor() as cursor:
                cursor.execute(f'SELECT id FROM "{database}"."t" ORDER BY id')
                return [row[0] for row in cursor.fetchall()]

        yield Home("jdbc", postgres_keys(server, home), ids)


@contextmanager
def mysql(kind: str, request: pytest.FixtureRequest, database: str, _: Path) -> Iterator[Home]:
    server: DatabaseServer = request.getfixturevalue(kind)
    with server.fresh_database() as home:

        def ids() -> list[int]:
            with session(server, "root") as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT id FROM `{database}`.t ORDER BY id")
                return [row[0] for row in cursor.fetchall()]

        yield Home("jdbc", mysql_keys(server, home), ids)


@contextmanager
def mongodb(_: pytest.FixtureRequest, database: str, __: Path) -> Iterator[Home]:
    with MongoDbServer() as server, server.fresh_database("home") as home:
        with server.client() as client:
            # The server's own is 60 s, and it has the documents of the transaction for itself as long.
            client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=20)
        yield Home("mongodb", mongodb_keys(server, home), lambda: [row["_id"] for row in server.find(database, "t")])


@contextmanager
def kafka(request: pytest.FixtureRequest, database: str, _: Path) -> Iterator[Home]:
    server: KafkaServer = request.getfixturevalue("kafka")
    keys = f'bootstrap_servers = "{server.bootstrap_servers}"\nformat = {{ type = "canal-json" }}\n'

    def ids() -> list[int]:
        return sorted(key for kind, ids in changes(server, f"{database}.t") if kind == "INSERT" for key in ids)

    yield Home("kafka", keys, ids, write="changelog")


def iceberg(catalog: IcebergCatalogOptions, database: str) -> Home:
    def ids() -> list[int]:
        table = open_catalog(catalog, LIKE_ANYBODY).load_table((database, "t"))
        return sorted(row["id"] for row in table.scan().to_arrow().to_pylist())

    uri = catalog.uri.reveal()
    keys = f'catalog = {{ type = "{catalog.type}", uri = "{uri}", warehouse = "{catalog.warehouse}" }}\n'
    return Home("iceberg", keys, ids)


@contextmanager
def iceberg_sql(_: pytest.FixtureRequest, database: str, folder: Path) -> Iterator[Home]:
    uri, warehouse = f"sqlite:///{folder}/catalog.db", str(folder / "lake")
    yield iceberg(IcebergCatalogOptions.model_validate({"type": "sql", "uri": uri, "warehouse": warehouse}), database)


@contextmanager
def iceberg_rest(_: pytest.FixtureRequest, database: str, folder: Path) -> Iterator[Home]:
    server = Server(folder / "lake")
    try:
        yield iceberg(IcebergCatalogOptions.model_validate({"type": "rest", "uri": server.uri}), database)
    finally:
        server.close()


HOMES: dict[str, Callable[[pytest.FixtureRequest, str, Path], AbstractContextManager[Home]]] = {
    "delta": delta,
    "postgres": postgres,
    "mysql": partial(mysql, "mysql80"),
    "mariadb": partial(mysql, "mariadb"),
    "mongodb": mongodb,
    "kafka": kafka,
    "iceberg-sql": iceberg_sql,
    "iceberg-rest": iceberg_rest,
}


@pytest.mark.parametrize("point", ["before_commit", "in_commit"])
@pytest.mark.parametrize("kind", HOMES)
def test_a_driver_that_is_stopped_before_its_commit_is_not_waited_for(
    kind: str,
    point: str,
    mariadb: MariaDbServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: Recorder,
) -> None:
    database = f"stopped_{kind}_{point}".replace("-", "_")
    # A target may be on the source's server.
    away = f"{database}_away"
    mariadb.execute(f"CREATE OR REPLACE DATABASE {database}", f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    numbers = count(1)

    def insert() -> None:
        rows = ", ".join(f"({next(numbers)})" for _ in range(20))
        mariadb.execute(f"INSERT INTO t VALUES {rows}", database=database)

    insert()
    with HOMES[kind](request, away, tmp_path) as home:
        route = f'[[route]]\ntable = "{database}.t"\nto = "{away}.t"'
        job = Job(tmp_path, mariadb, database, ("t",), sink=home.sink, write=home.write, local=True, sections=route)
        job.sink_keys = home.keys
        first = job.start(failpoints=f"{point}=stop@4")

        def busy() -> bool:
            insert()
            return job.stopped_at(point)

        assert first.wait_for(busy), first.story()
        began_s = time.monotonic()
        second = job.start("--standby")
        assert second.wait_for(lambda: bool(told(second, "took_over")), timeout_s=TAKEN_WITHIN_S), second.story()
        taken_s = time.monotonic() - began_s
        insert()
        assert second.wait_for(lambda: bool(told(second, "commit")), timeout_s=COMMITTED_WITHIN_S), second.story()
        committed_s = time.monotonic() - began_s
        expected = list(range(1, next(numbers)))
        assert second.wait_for(lambda: home.ids() == expected, timeout_s=60), second.story()
        equal_s = time.monotonic() - began_s
        commits = told(first, "commit")
        os.kill(first.process.pid, signal.SIGCONT)
        assert first.wait(timeout_s=120) == 6, first.story()
        assert [one["error"] for one in first.events if one["event"] == "error"] == ["FencedError"], first.story()
        assert told(first, "commit") == commits
        assert second.interrupt() == 130, second.story()
        assert not told(second, "error"), second.story()
        assert home.ids() == expected
    record_property("kills", 1)
    record_property(
        "figures", f"taken after {taken_s:.1f} s, first commit after {committed_s:.1f} s, equal after {equal_s:.1f} s"
    )
