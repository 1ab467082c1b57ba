"""The kill story of a lake in an object store: killed at every step, while the store loses replies and slows down."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from raycdc.sandbox.compare import compare_table
from raycdc.sandbox.servers import MariaDbServer, MotoServer
from raycdc.sinks.delta.reading import table_at
from raycdc.storage.files import Access, StorePath, any_path
from tests.kill.test_kills import COORDINATOR_POINTS, DRIVER_POINTS, TABLES, play
from tests.support.jobs import Job, require_engines
from tests.support.servers.store_proxy import Fault, Rule, StoreProxy

pytestmark = [pytest.mark.server, pytest.mark.kill, pytest.mark.long(suite="stores")]

COMMITS = r"/_delta_log/\d+\.json$"
FAULTS = (
    Rule(Fault.LOST_REPLY, path=COMMITS, skip=2, times=2),
    Rule(Fault.DONE_BUT_FAILED, path=COMMITS, skip=6, times=2),
    Rule(Fault.CONFLICT, path=COMMITS, skip=10, times=2),
    Rule(Fault.LOST_REQUEST, path=COMMITS, skip=14),
    Rule(Fault.SLOW_DOWN, path=r"\.parquet$", skip=3, times=5),
    Rule(Fault.LOST_REPLY, path=r"\.parquet$", skip=20, times=2),
    Rule(Fault.LATE, path=COMMITS, skip=18, times=5, delay_s=0.5),
)


def require_equal_at(job: Job, root: StorePath) -> None:
    with job.server.connect() as connection:
        results = [
            compare_table(connection, job.database, table, table_at(root / job.database / table).to_pyarrow_table())
            for table in job.tables
        ]
    assert [problem for result in results for problem in result.problems] == []


def story(tmp_path: Path, server: MariaDbServer, moto: MotoServer, *, name: str, local: bool) -> None:
    url = f"s3://{moto.create_bucket(name.replace('_', '-'))}/lake"
    points = (*COORDINATOR_POINTS, *DRIVER_POINTS) if local else ("in_commit", "between_tables", "after_last_commit")
    with StoreProxy(moto) as proxy, proxy.play(*FAULTS) as rules:
        job = Job(tmp_path, server, name, TABLES, local=local, sink_keys=f'path = "{url}"', sections=proxy.section)
        deaths = play(job, 1, points)
        if local:
            assert deaths == [-signal.SIGKILL] * len(points)
        else:
            # The last one reads on to the end of the source by itself.
            require_engines(*job.runs[:-1])
        assert sum(rule.played for rule in rules) > 0
        root = any_path(url, Access(proxy.settings))
        assert isinstance(root, StorePath)
        require_equal_at(job, root)


@pytest.mark.timeout(1800)
def test_a_lake_in_a_store_survives_a_kill_at_every_step(
    mariadb: MariaDbServer, moto: MotoServer, tmp_path: Path
) -> None:
    story(tmp_path, mariadb, moto, name="kill_store", local=True)


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_driver_is_killed_around_commits_to_a_store_with_ray_and_spark(
    mariadb: MariaDbServer, moto: MotoServer, tmp_path: Path
) -> None:
    story(tmp_path, mariadb, moto, name="kill_store_spark", local=False)
