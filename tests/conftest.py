"""Fixtures every test may ask for: real servers (one per session and kind) and a database of one's own on them.

A server is started when the first test asks for it and removed at the end of the session. Tests share it, so they work
in `database`-style fixtures or ``server.fresh_database()`` and never touch another one's data.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from raycdc.core import failpoints
from raycdc.sandbox.cache import locked
from raycdc.sandbox.servers import (
    DatabaseServer,
    KafkaServer,
    MariaDbServer,
    MongoDb,
    MongoDbServer,
    MotoServer,
    MySqlNewestServer,
    MySqlServer,
    PostgresServer,
)
from raycdc.spark.session import spark_session
from tests.distribution import ByUnit, longest_first
from tests.long import SUITES, check_suites, mark_variants
from tests.second_opinion import expect_its_faults
from tests.support.servers.secantusdb import mongodb_for_tests

# No deadline: the first example may compile. In CI the examples are the same every time.
settings.register_profile("raycdc", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("raycdc")

# Java's quick compiler and its simplest collector, in every process that tests start: they end before the others have
# paid for themselves (a session that merges into a Delta table: 19.6 instead of 21.4 CPU-seconds by the collector).
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# In the background of a script SIGINT is ignored, and each process that the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
#: Folders whose tests compute all the time, but for those of them that are given a server or Spark: they belong to the
#: phase that uses every core.
COMPUTED = frozenset({"unit", "protocol", "simulation", "epochs"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", choices=list(SUITES), help="only the tests of this suite (tests/long.py)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    expect_its_faults(items)
    suite = config.getoption("--suite")
    chosen: list[pytest.Item] = []
    others: list[pytest.Item] = []
    try:
        mark_variants(items, whole=not any("::" in argument for argument in config.args))
        for item in items:
            check_suites(item.nodeid, item.iter_markers("long"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    for item in items:
        marks = list(item.iter_markers("long"))
        fits = suite is None or SUITES[suite].has(item.nodeid, marks, suite)
        (chosen if fits else others).append(item)
        if item.path.relative_to(HERE).parts[0] in COMPUTED and not _needs_more(item):
            item.add_marker("bare")
    items[:] = longest_first(chosen)
    if others:
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByUnit | None:
    """The units of `tests.distribution` with ``--dist loadfile``; every other way is xdist's."""
    return ByUnit(config, log) if config.getvalue("dist") == "loadfile" else None


def _needs_more(item: pytest.Item) -> bool:
    """Whether the test is given a server, or Spark."""
    marked = item.get_closest_marker("server") or item.get_closest_marker("spark")
    return marked is not None or "spark" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """Nothing in a test's own process waits for the disk: tests kill processes, and the machine keeps its power.

    What power failures leave is simulated (`tests.support.simulation.drivers.disk`), and processes that tests start
    do wait.
    """

    def fsync(descriptor: int) -> None:
        os.fstat(descriptor)  # It must be open.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


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
def moto() -> Iterator[MotoServer]:
    """A server of S3 and Glue; tests make buckets of their own on it."""
    with MotoServer() as server:
        yield server


@pytest.fixture(scope="session")
def mysql_newest() -> Iterator[MySqlNewestServer]:
    """MySQL 9: compressed transactions, partial JSON updates, tagged GTIDs. Skips where it cannot be installed."""
    if not MySqlNewestServer.installed():
        pytest.skip("MySQL 9 is not here: python -m tests.support.servers mysql-newest prepare")
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
    from tests.epochs.sink_world import HOME

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
    """A Spark session of two cores that all tests of a process share."""
    session = spark_session("local[2]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
    # Its sockets are closed here, and not in a test that allows no warnings.
    gc.collect()
