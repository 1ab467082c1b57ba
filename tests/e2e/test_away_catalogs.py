"""A catalog of Iceberg tables goes and comes back under a run of the command: the run waits, and goes on by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer
from tests.e2e.test_rotation_catalogs import RotatedCatalog, job_into
from tests.integration.sinks.iceberg_server import Server
from tests.support.jobs import Job, Run

pytestmark = pytest.mark.server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "lake")
    yield started
    started.close()


def warnings(live: Run) -> list[str]:
    return [event["text"] for event in live.events if event["event"] == "warning"]


def job_at(server: Server, mariadb: MariaDbServer, database: str, folder: Path) -> tuple[Job, RotatedCatalog]:
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", database=database)
    options = {"type": "rest", "uri": server.uri, "properties": {}}
    world = RotatedCatalog(options, lambda _: None, lambda: server.guard.refused, lambda: server.catalog)
    return job_into(options, mariadb, database, folder, "t"), world


def answers(server: Server, status: int) -> None:
    server.guard.away = status


@pytest.mark.long_variants("0", "502", suite="stories")
@pytest.mark.parametrize("status", [0, 502, 503])
def test_a_run_waits_for_a_catalog_and_goes_on_by_itself(
    status: int, server: Server, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    """Twice: with changes that came before it went, and a start in the middle of its absence. 0: nobody listens."""
    go: Callable[[], None] = server.close if status == 0 else lambda: answers(server, status)
    come: Callable[[], None] = server.start if status == 0 else lambda: answers(server, 0)
    job, world = job_at(server, mariadb, mariadb_database, tmp_path)
    live = job.start()
    world.wait_for_keys(live, mariadb_database, [1])
    go()
    mariadb.execute("INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)", database=mariadb_database)
    assert live.wait_for(lambda: bool(warnings(live))), live.story()
    mariadb.execute("DELETE FROM t WHERE id = 2", database=mariadb_database)
    come()
    world.wait_for_keys(live, mariadb_database, [1, 3])
    waited = [text for text in warnings(live) if text.startswith("The sink is waited for: ")]
    at = server.uri.removeprefix("http://")
    assert waited
    assert f"rest catalog of the Iceberg sink at {at}" in waited[0]
    assert waited[0].endswith("It is tried again for 5 minutes; see that it answers.")
    assert live.interrupt() in (0, 130), live.story()
    go()
    mariadb.execute("INSERT INTO t VALUES (4)", database=mariadb_database)
    again = job.start()
    assert again.wait_for(lambda: bool(warnings(again))), again.story()
    come()
    world.wait_for_keys(again, mariadb_database, [1, 3, 4])
    assert again.interrupt() in (0, 130), again.story()
    assert "parked" not in live.story() + again.story()


def test_a_first_start_says_at_once_that_the_catalog_is_away(
    server: Server, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    job, _ = job_at(server, mariadb, mariadb_database, tmp_path)
    server.close()
    first = job.run()
    assert first.wait() == 5, first.story()
    assert server.uri.removeprefix("http://") in first.events[-1]["text"]
    assert not warnings(first)
