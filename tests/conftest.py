"""Fixtures every test may ask for: real servers (one per session and kind) and a database of one's own on them.

A server is started when the first test asks for it and removed at the end of the session. Tests share it, so they work
in `database`-style fixtures or ``server.fresh_database()`` and never touch another one's data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from raycdc.testing.servers import (
    DatabaseServer,
    KafkaServer,
    MariaDbServer,
    MongoDb,
    MySqlNewestServer,
    MySqlServer,
    PostgresServer,
    mongodb_for_tests,
)
from tests.second_opinion import expect_its_faults

# No deadline: the first example may compile. In CI the examples are the same every time.
settings.register_profile("raycdc", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("raycdc")

# Java's quick compiler alone, in every process that tests start: they end before the thorough one has paid for itself.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


#: Tests that play epochs into files or computed states: those of them that need neither a server nor Spark compute all
#: the time, so that they belong to the phase that uses every core.
PLAYED = frozenset(
    {
        "test_delta_neighbours.py",
        "test_delta_partitions.py",
        "test_delta_rewrite.py",
        "test_delta_upkeep.py",
        "test_epoch_behaviors.py",
        "test_epoch_defaults.py",
        "test_epoch_loop.py",
        "test_epoch_loop_known.py",
        "test_epoch_loop_merged.py",
        "test_epoch_loop_nodes.py",
        "test_epoch_loop_routes.py",
        "test_epoch_schema.py",
        "test_iceberg_neighbours.py",
        "test_iceberg_partitions.py",
        "test_parked_targets.py",
        "test_restored_targets.py",
        "test_sink_names.py",
        "test_table_refusals.py",
    }
)
COMPUTED = frozenset({"unit", "protocol", "simulation"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    expect_its_faults(items)
    for item in items:
        if item.path.parent.name in COMPUTED or (item.path.name in PLAYED and not _needs_more(item)):
            item.add_marker("bare")


def _needs_more(item: pytest.Item) -> bool:
    """Whether the test is given a server, or Spark."""
    marked = item.get_closest_marker("server") or item.get_closest_marker("spark")
    return marked is not None or "spark" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDbServer]:
    """The installed MariaDB (else the embedded 11.4): GTIDs, row metadata FULL, TLS."""
    with MariaDbServer() as server:
        yield server


@pytest.fixture(scope="session")
def mysql80() -> Iterator[MySqlServer]:
    """MySQL 8.0 with GTIDs."""
    with MySqlServer(version="8.0") as server:
        yield server


@pytest.fixture(scope="session")
def mysql80_nogtid() -> Iterator[MySqlServer]:
    """MySQL 8.0 without GTIDs."""
    with MySqlServer(version="8.0", gtid=False) as server:
        yield server


@pytest.fixture(scope="session")
def mysql57() -> Iterator[MySqlServer]:
    """MySQL 5.7 with GTIDs; it has no row metadata and no TLS."""
    with MySqlServer(version="5.7") as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """A Kafka broker; tests make topics of their own on it."""
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="session")
def mongodb() -> Iterator[MongoDb]:
    """A replica set of MongoDB: the one that RAYCDC_TEST_MONGODB_URI names, else an emulated one."""
    with mongodb_for_tests() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """PostgreSQL 16."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mysql_newest() -> Iterator[MySqlNewestServer]:
    """MySQL 9: compressed transactions, partial JSON updates, tagged GTIDs. Skips where it cannot be installed."""
    if not MySqlNewestServer.installed():
        pytest.skip("MySQL 9 is not here: python -m raycdc.testing.servers mysql-newest prepare")
    with MySqlNewestServer() as server:
        yield server


@pytest.fixture
def mongodb_database(mongodb: MongoDb) -> Iterator[str]:
    """Name of an empty database on `mongodb`, dropped after the test."""
    with mongodb.fresh_database() as name:
        yield name


@pytest.fixture
def mariadb_database(mariadb: MariaDbServer) -> Iterator[str]:
    """Name of an empty database on `mariadb`, dropped after the test."""
    with mariadb.fresh_database() as name:
        yield name


@pytest.fixture(params=["mariadb", "mysql80", "mysql80_nogtid"])
def any_server(request: pytest.FixtureRequest) -> DatabaseServer:
    """Each kind of server in turn, for behaviour that must be the same on all."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, DatabaseServer)
    return server


@pytest.fixture
def any_database(any_server: DatabaseServer) -> Iterator[str]:
    """Name of an empty database on `any_server`, dropped after the test."""
    with any_server.fresh_database() as name:
        yield name
