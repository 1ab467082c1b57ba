"""One driver after the other loses its state to a standby, at any moment, by death or by being stopped: source and
target are equal each time, and those that wake up have written nothing.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.model import TableId
from raycdc.sandbox.compare import TableDifference, check_changelog, compare_lake, compare_table, read_changelog
from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from raycdc.sandbox.shop import ShopSize, ShopWorkload, create_shop
from tests.e2e.test_jdbc import read_postgres, sink_keys
from tests.kill.test_store_kills import SIZE as ON_STORE
from tests.kill.test_store_kills import lake_beside, on_store, read_lake
from tests.support.jobs import Job, JobRun, Run, catch_up
from tests.support.servers.store_proxy import StoreProxy

pytestmark = [pytest.mark.server, pytest.mark.kill, pytest.mark.long(suite="takeover"), pytest.mark.timeout(3600)]

SIZE = ShopSize(customers=100, products=40, orders=4000)
TABLES = ("customers", "products", "orders")
TAKEOVERS = int(os.environ.get("RAYCDC_TAKEOVERS", "20"))
#: How long after its driver's loss a standby may have the state; and how long until its first commit, on any machine.
TAKEN_WITHIN_S = 30.0
COMMITTED_WITHIN_S = 240.0
#: A driver is lost at some moment of its first seconds: while it starts, reads, seals or commits.
LOST_WITHIN_S = 6.0
#: Connections of the pipelines' user.
CDC = "USER = 'cdc'"


def told(run: JobRun, event: str) -> int:
    return sum(one["event"] == event for one in list(run.events))


def committed(run: Run) -> set[int]:
    """The epochs that a driver said are committed by it."""
    return {one["epoch"] for one in list(run.events) if one["event"] == "commit"}


@dataclass(slots=True)
class Relay:
    """Drivers of `job`, of which one runs and one waits; and the stopped ones, which are to wake up one day."""

    job: Job
    chance: random.Random
    running: JobRun
    stopped: list[JobRun] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)
    committed_s: list[float] = field(default_factory=list)

    def lose(self) -> None:
        """The running driver is lost at some moment, and the waiting one goes on. `TAKEN_WITHIN_S` is a promise."""
        standby = self.job.start("--standby")
        standby.wait_for(lambda: bool(told(standby, "waiting")))
        lost, until_s = self.running, time.monotonic() + self.chance.uniform(0, LOST_WITHIN_S)
        lost.wait_for(lambda: time.monotonic() > until_s)
        assert not lost.ended, lost.story()
        began_s = time.monotonic()
        if self.chance.random() < 0.5:
            lost.kill()
        else:
            os.kill(lost.process.pid, signal.SIGSTOP)
            self.stopped.append(lost)
        assert standby.wait_for(lambda: bool(told(standby, "took_over")), timeout_s=TAKEN_WITHIN_S), standby.story()
        self.taken_s.append(time.monotonic() - began_s)
        if self.chance.random() < 0.5:
            self.wake()
        assert standby.wait_for(lambda: bool(told(standby, "commit")), timeout_s=COMMITTED_WITHIN_S), standby.story()
        self.committed_s.append(time.monotonic() - began_s)
        self.running = standby

    def wake(self) -> None:
        """Whoever was stopped goes on, and must find that it is over."""
        for run in self.stopped:
            os.kill(run.process.pid, signal.SIGCONT)
            assert run.wait(timeout_s=120) == 6, run.story()
            assert [one["error"] for one in run.events if one["event"] == "error"] == ["FencedError"], run.story()
            # It may only tell of an epoch that was recorded before it was replaced, and not told yet.
            others = set[int]().union(*(committed(one) for one in self.job.runs if one is not run))
            assert committed(run).isdisjoint(others), run.story()
        self.stopped.clear()

    def figures(self) -> str:
        return (
            f"{len(self.taken_s)} takeovers: taken after {statistics.median(self.taken_s):.1f} s "
            f"(at most {max(self.taken_s):.1f} s), first commit after {statistics.median(self.committed_s):.1f} s "
            f"(at most {max(self.committed_s):.1f} s)"
        )


Compare = Callable[[], list[TableDifference]]


@contextmanager
def relayed(
    kind: str, folder: Path, mariadb: MariaDbServer, request: pytest.FixtureRequest
) -> Iterator[tuple[Job, Compare]]:
    """A job into a lake or a database, or with state and lake on an object store; and how its target is compared."""
    database = f"relay_{kind}"
    names = [TableId(database, table) for table in TABLES]

    def compare_files() -> list[TableDifference]:
        with mariadb.connect() as connection:
            return compare_lake(connection, folder / "lake", [(name.db, name.table) for name in names])

    if kind == "store":
        with StoreProxy(request.getfixturevalue("moto")) as store:
            job = replace(on_store(folder, mariadb, database, store), chunk_rows=100)
            lake = lake_beside(job)
            job.sink_keys = f'path = "{lake}"'

            def compare_objects() -> list[TableDifference]:
                found = [(name, read_lake(store, f"{lake}/{name.db}/{name.table}")) for name in names]
                with mariadb.connect() as connection:
                    return [compare_table(connection, name.db, name.table, rows) for name, rows in found]

            yield job, compare_objects
        return
    with mariadb.connect() as connection:
        create_shop(connection, database, SIZE)
    job = Job(folder, mariadb, database, TABLES, local=True, chunk_rows=100)
    if kind == "delta":
        yield job, compare_files
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    with postgres.fresh_database() as home:
        job.sink, job.sink_keys = "jdbc", sink_keys(postgres, home)

        def compare_rows() -> list[TableDifference]:
            with mariadb.connect() as connection:
                schemas = {name: load_table(connection, name).schema() for name in names}
                return [
                    compare_table(connection, name.db, name.table, read_postgres(postgres, home, name, schema))
                    for name, schema in schemas.items()
                ]

        yield job, compare_rows


@pytest.mark.parametrize("kind", ["delta", "postgres", "store"])
def test_a_standby_takes_over_again_and_again(
    mariadb: MariaDbServer,
    tmp_path: Path,
    kind: str,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    with relayed(kind, tmp_path, mariadb, request) as (job, compare):
        size = ON_STORE if kind == "store" else SIZE
        connect = partial(mariadb.connect, database=job.database)
        work = ShopWorkload(connect, seed=7, database=job.database, size=size)
        first = job.start("--standby")
        assert first.wait_for(lambda: bool(told(first, "commit"))), first.story()
        relay = Relay(job, random.Random(TAKEOVERS), first)
        for _ in range(TAKEOVERS):
            with work.running(pause_s=0.01):
                relay.lose()
            running = relay.running
            assert running.wait_for(lambda: not any(one.problems for one in compare())), running.story()
        relay.wake()
        assert relay.running.interrupt() == 130, relay.running.story()
        catch_up(job)
        assert [problem for one in compare() for problem in one.problems] == []
    record_property("kills", TAKEOVERS)
    record_property("figures", relay.figures())


@pytest.mark.parametrize("kind", ["store"])
def test_a_driver_that_is_stopped_in_the_middle_of_a_commit_is_not_waited_for(
    mariadb: MariaDbServer, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """It has the locks of its transaction, which its successor needs."""
    with relayed(kind, tmp_path, mariadb, request) as (job, compare):
        first = job.start(failpoints="in_commit=stop@4")
        assert first.wait_for(lambda: job.stopped_at("in_commit")), first.story()
        second = job.start("--standby")
        assert second.wait_for(lambda: bool(told(second, "took_over")), timeout_s=TAKEN_WITHIN_S), second.story()
        mariadb.execute("UPDATE orders SET quantity = quantity + 1 WHERE id <= 50", database=job.database)
        until_s = time.monotonic() + COMMITTED_WITHIN_S
        assert second.wait_for(lambda: not any(one.problems for one in compare()) or time.monotonic() > until_s)
        assert [problem for one in compare() for problem in one.problems] == [], second.story()
        os.kill(first.process.pid, signal.SIGCONT)
        assert first.wait(timeout_s=120) == 6, first.story()
        assert second.interrupt() == 130, second.story()
        assert [problem for one in compare() for problem in one.problems] == []


def test_a_changelog_has_each_change_once_whoever_wrote_it(
    mariadb: MariaDbServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    database = "relay_changes"
    with mariadb.connect() as connection:
        create_shop(connection, database, SIZE)
    work = ShopWorkload(lambda: mariadb.connect(database=database), seed=8, database=database, size=SIZE)
    job = Job(tmp_path, mariadb, database, TABLES, local=True, chunk_rows=100, write="changelog")
    first = job.start("--standby")
    relay = Relay(job, random.Random(TAKEOVERS + 1), first)
    assert first.wait_for(lambda: bool(told(first, "commit"))), first.story()
    with work.running(pause_s=0.01):
        for _ in range(TAKEOVERS):
            relay.lose()
        relay.wake()
    assert relay.running.interrupt() == 130, relay.running.story()
    catch_up(job)
    for table in TABLES:
        assert check_changelog(read_changelog(job.lake / database / table, "delta"), ["id"]) == []
    record_property("kills", TAKEOVERS)
    record_property("figures", relay.figures())


@pytest.mark.spark
def test_the_actors_of_a_stopped_driver_end_while_it_sleeps(mariadb: MariaDbServer, tmp_path: Path) -> None:
    """Only the driver is stopped: its coordinator and readers go on, until they meet the successor's generation."""
    database = "relay_actors"
    with mariadb.connect() as connection:
        create_shop(connection, database, ON_STORE)
    job = Job(tmp_path, mariadb, database, TABLES)
    connect = partial(mariadb.connect, database=database)
    work = ShopWorkload(connect, seed=9, database=database, size=ON_STORE)
    with work.running(pause_s=0.05):
        first = job.start("--standby")
        assert first.wait_for(lambda: bool(told(first, "commit")) and bool(first.pids()["readers"])), first.story()
        second = job.start("--standby")
        assert second.wait_for(lambda: bool(told(second, "waiting"))), second.story()
        pids = first.pids()
        os.kill(pids["driver"], signal.SIGSTOP)
        assert second.wait_for(lambda: bool(told(second, "commit")), timeout_s=COMMITTED_WITHIN_S), second.story()
        # Ray ends an actor's process when its class has nothing left to do; a reader is one call.
        servers = f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%' AND {CDC}"
        assert second.wait_for(lambda: mariadb.execute(servers) == [(1,)], timeout_s=60), second.story()
        os.kill(pids["driver"], signal.SIGCONT)
        assert first.wait(timeout_s=120) == 6, first.story()
        assert [one["error"] for one in first.events if one["event"] == "error"] == ["FencedError"], first.story()
        assert committed(first).isdisjoint(committed(second))
        assert second.interrupt() == 130, second.story()
    catch_up(replace(job, local=True))
    with mariadb.connect() as connection:
        results = compare_lake(connection, job.lake, [(database, table) for table in TABLES])
    assert [problem for result in results for problem in result.problems] == []
