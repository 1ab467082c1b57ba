"""A second driver of one state waits for the first one and takes over, whether that dies, leaves or is stopped."""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.request import urlopen

import pytest

from raycdc.sandbox.compare import compare_lake
from raycdc.sandbox.servers import MariaDbServer
from raycdc.sandbox.servers.private import free_port
from raycdc.sandbox.shop import ShopSize, ShopWorkload, create_shop
from tests.support.jobs import Job, JobRun, catch_up

pytestmark = [pytest.mark.server]

SIZE = ShopSize(customers=100, products=40, orders=1000)
TABLES = ("customers", "products", "orders")


def told(run: JobRun, event: str) -> list[dict[str, object]]:
    return [one for one in list(run.events) if one["event"] == event]


def committed(run: JobRun) -> set[object]:
    """The epochs that a driver said are committed by it."""
    return {one["epoch"] for one in told(run, "commit")}


def started(job: Job, figures: str = "") -> tuple[JobRun, JobRun]:
    """A driver that has committed something, and has the port of its `figures`; and one that waits for it."""
    first = job.start()
    assert first.wait_for(lambda: bool(told(first, "commit"))), first.story()
    assert not figures or first.wait_for(lambda: is_well(figures)), first.story()
    second = job.start("--standby")
    assert second.wait_for(lambda: bool(told(second, "waiting"))), second.story()
    assert not told(second, "started")
    return first, second


def is_well(address: str) -> bool:
    """Whether a run answers there, and moves."""
    try:
        with urlopen(f"http://{address}/healthz", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.long_variants("killed", suite="takeover")
@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped"])
def test_a_standby_takes_over_and_one_that_wakes_up_commits_nothing(
    mariadb: MariaDbServer, tmp_path: Path, *, stopped: bool
) -> None:
    database = f"standby_{stopped}".lower()
    with mariadb.connect() as connection:
        create_shop(connection, database, SIZE)
    figures = f"127.0.0.1:{free_port()}"
    job = Job(tmp_path, mariadb, database, TABLES, local=True, sections=f'[metrics]\naddress = "{figures}"')
    work = ShopWorkload(lambda: mariadb.connect(database=database), seed=5, database=database, size=SIZE)
    with work.running(pause_s=0.02):
        first, second = started(job, figures)
        first.process.send_signal(signal.SIGSTOP if stopped else signal.SIGKILL)
        assert second.wait_for(lambda: bool(told(second, "commit"))), second.story()
        assert len(told(second, "took_over")) == 1
        if stopped:
            first.process.send_signal(signal.SIGCONT)
            assert first.wait() == 6, first.story()
            assert [error["error"] for error in told(first, "error")] == ["FencedError"]
            # It may only tell of an epoch that was recorded before it was replaced, and not told yet.
            assert committed(first).isdisjoint(committed(second))
        else:
            assert first.wait() == -signal.SIGKILL
        # Of the two on one machine the first had the port, and is gone.
        assert second.wait_for(lambda: is_well(figures), timeout_s=30), second.story()
        assert second.interrupt() == 130, second.story()
        assert not told(second, "error")
    catch_up(job)
    with mariadb.connect() as connection:
        results = compare_lake(connection, job.lake, [(database, table) for table in TABLES])
    assert [problem for result in results for problem in result.problems] == []


def test_a_standby_follows_one_that_leaves_and_may_be_stopped_while_it_waits(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    mariadb.execute("CREATE OR REPLACE DATABASE leaves", "CREATE TABLE leaves.t (id INT PRIMARY KEY)")
    mariadb.execute("INSERT INTO leaves.t VALUES (1)")
    job = Job(tmp_path, mariadb, "leaves", ("t",), local=True)
    first, second = started(job)
    third = job.start("--standby")
    assert third.wait_for(lambda: bool(told(third, "waiting"))), third.story()
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 0, second.story()
    first.process.send_signal(signal.SIGTERM)
    assert first.wait() == 0, first.story()
    assert third.wait_for(lambda: bool(told(third, "started"))), third.story()
    refused = job.start()
    assert refused.wait() == 6
    assert "in use by process" in refused.story()
    assert third.interrupt() == 130, third.story()
