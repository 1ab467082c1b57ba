"""Fixtures of the tests that put sinks through crashes, and of those that need Spark."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raycdc import failpoints
from raycdc.spark.session import spark_session
from raycdc.testing.cache import locked
from raycdc.testing.servers import DatabaseServer, MongoDb, MongoDbServer
from tests.integration.sink_world import HOME


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, int], None]:
    """An exception at the n-th time that a fail point is reached."""

    def plan(name: str, count: int) -> None:
        monkeypatch.setenv("RAYCDC_FAILPOINT_DIR", str(tmp_path))
        monkeypatch.setattr(failpoints, "_plan", {name: ("raise", count)})
        monkeypatch.setattr(failpoints, "_reached", {})

    return plan


@pytest.fixture(params=["mariadb", "mysql80"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DatabaseServer:
    """MariaDB and MySQL in turn, for what must be the same on both; the account's password is in the environment."""
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")
    found = request.getfixturevalue(request.param)
    assert isinstance(found, DatabaseServer)
    return found


@pytest.fixture
def database(server: DatabaseServer) -> Iterator[str]:
    """The name of an empty database on `server`, dropped after the test."""
    with server.fresh_database() as name:
        yield name


@pytest.fixture
def emulated(mongodb: MongoDb) -> Iterator[MongoDbServer]:
    """The emulated replica set, for tests that make it fail or hide documents; it does neither afterwards."""
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("makes a server fail, or hide documents")
    yield mongodb
    mongodb.unfail()


@pytest.fixture
def mongodb_homes(mongodb: MongoDb) -> Iterator[MongoDb]:
    """`mongodb` with the databases that sinks' tests write to and drop, which always have the same names.

    On a server that is not ours: by one test at a time, and only where nobody else has such ones.
    """
    if mongodb.private:
        yield mongodb
        return
    with locked("mongodb-homes"):
        with mongodb.client() as client:
            theirs = {"shop", HOME} & set(client.list_database_names())
        if theirs:
            pytest.skip(f"the server has {' and '.join(sorted(theirs))}, which this test would empty")
        try:
            yield mongodb
        finally:
            mongodb.drop("shop", HOME)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session of two cores that all tests of this folder share."""
    session = spark_session("local[2]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
    # Its sockets are closed here, and not in a test that allows no warnings.
    gc.collect()
