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
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raycdc.connectors.mysql.catalog import load_table
from raycdc.model import TableId
from raycdc.testing.changelog import check_changelog, read_changelog
from raycdc.testing.compare import TableComparison, compare_lake, compare_table
from raycdc.testing.jobs import Job, Run, catch_up
from raycdc.testing.servers import MariaDbServer, PostgresServer
from raycdc.testing.shop import ShopSize, create_shop
from raycdc.testing.workload import ShopWorkload
from tests.e2e.test_jdbc import read_postgres, sink_keys

pytestmark = [pytest.mark.server, pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(3600)]

SIZE = ShopSize(customers=100, products=40, orders=4000)
TABLES = ("customers", "products", "orders")
TAKEOVERS = int(os.environ.get("RAYCDC_TAKEOVERS", "20"))
#: How long after its driver's loss a standby may have the state; and how long until its first commit, on any machine.
TAKEN_WITHIN_S = 30.0
COMMITTED_WITHIN_S = 120.0
#: A driver is lost at some moment of its first seconds: while it starts, reads, seals or commits.
LOST_WITHIN_S = 6.0


def told(run: Run, event: str) -> int:
    return sum(one["event"] == event for one in list(run.events))


@dataclass(slots=True)
class Relay:
    """Drivers of `job`, of which one runs and one waits; and the stopped ones, which are to wake up one day."""

    job: Job
    chance: random.Random
    running: Run
    stopped: list[Run] = field(default_factory=list)
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
            commits = told(run, "commit")
            os.kill(run.process.pid, signal.SIGCONT)
            assert run.wait(timeout_s=120) == 6, run.story()
            assert [one["error"] for one in run.events if one["event"] == "error"] == ["FencedError"], run.story()
            assert told(run, "commit") == commits
        self.stopped.clear()

    def figures(self) -> str:
        return (
            f"{len(self.taken_s)} takeovers: taken after {statistics.median(self.taken_s):.1f} s "
            f"(at most {max(self.taken_s):.1f} s), first commit after {statistics.median(self.committed_s):.1f} s "
            f"(at most {max(self.committed_s):.1f} s)"
        )


@contextmanager
def target(kind: str, job: Job, postgres: PostgresServer) -> Iterator[Callable[[MariaDbServer], list[TableComparison]]]:
    """Give `job` a target of the kind, and say how its rows are compared with the source's."""
    names = [TableId(job.database, table) for table in TABLES]
    if kind == "delta":

        def compare(server: MariaDbServer) -> list[TableComparison]:
            with server.connect() as connection:
                return compare_lake(connection, job.lake, [(name.db, name.table) for name in names])

        yield compare
        return
    with postgres.fresh_database() as home:
        job.sink, job.sink_keys = "jdbc", sink_keys(postgres, home)

        def compare_rows(server: MariaDbServer) -> list[TableComparison]:
            with server.connect() as connection:
                schemas = {name: load_table(connection, name).schema() for name in names}
                return [
                    compare_table(connection, name.db, name.table, read_postgres(postgres, home, name, schema))
                    for name, schema in schemas.items()
                ]

        yield compare_rows


@pytest.mark.parametrize("kind", ["delta", "postgres"])
def test_a_standby_takes_over_again_and_again(
    mariadb: MariaDbServer,
    postgres: PostgresServer,
    tmp_path: Path,
    kind: str,
    record_property: Callable[[str, object], None],
) -> None:
    database = f"relay_{kind}"
    with mariadb.connect() as connection:
        create_shop(connection, database, SIZE)
    chance = random.Random(TAKEOVERS)
    work = ShopWorkload(lambda: mariadb.connect(database=database), seed=7, database=database, size=SIZE)
    job = Job(tmp_path, mariadb, database, TABLES, local=True, chunk_rows=100)
    with target(kind, job, postgres) as compare:
        first = job.start("--standby")
        assert first.wait_for(lambda: bool(told(first, "commit"))), first.story()
        relay = Relay(job, chance, first)
        for _ in range(TAKEOVERS):
            with work.running(pause_s=0.01):
                relay.lose()
            running = relay.running
            assert running.wait_for(lambda: not any(one.problems for one in compare(mariadb))), running.story()
        relay.wake()
        assert relay.running.interrupt() == 130, relay.running.story()
        catch_up(job)
        assert [problem for one in compare(mariadb) for problem in one.problems] == []
    record_property("kills", TAKEOVERS)
    record_property("figures", relay.figures())


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
