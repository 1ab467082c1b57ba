"""A Ray node dies with sealed epochs in its spool: the job goes on by itself, and source and lake are equal."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from raycdc.pipeline import READ_AGAIN
from raycdc.sandbox.servers import MariaDbServer
from raycdc.sandbox.shop import HotRange, ShopSize, ShopWorkload, create_shop
from raycdc.state.manifests.manifest import STATE_NODE, Manifest
from raycdc.state.store import CheckpointStore
from tests.support.comparing import require_lake_equal
from tests.support.jobs import Job, JobRun, catch_up
from tests.support.ray_cluster import two_nodes

SIZE = ShopSize(customers=500, products=100, orders=20_000)
TABLES = ("customers", "products", "orders")


def warned_and_went_on(run: JobRun) -> bool:
    """Whether epochs were committed after the loss was told."""
    kinds = [event["event"] for event in list(run.events) if event["event"] in ("warning", "commit")]
    lost = [n for n, event in enumerate(run.events) if event["event"] == "warning" and READ_AGAIN in event["text"]]
    return bool(lost) and "commit" in kinds and any(e["event"] == "commit" for e in list(run.events)[lost[0] :])


def waiting(job: Job) -> list[Manifest]:
    """Epochs that are sealed and not committed."""
    store = CheckpointStore(job.state)
    record = store.last_commit()
    return list(store.manifests(record.epoch if record else 0))


def seal_elsewhere_behind_a_stopped_driver(job: Job, run: JobRun) -> None:
    """Stop the driver while no epoch waits for it, then wait for one with segments on another node: it is not staged.

    Only a few are sealed ahead of a driver, so that those with such segments must not be behind others.
    """
    while True:
        assert run.wait_for(lambda: not waiting(job)), run.story()
        os.kill(run.pids()["driver"], signal.SIGSTOP)
        if not waiting(job):
            break
        os.kill(run.pids()["driver"], signal.SIGCONT)
    assert run.wait_for(lambda: any(s.node != STATE_NODE for m in waiting(job) for s in m.segments)), run.story()


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.kill
@pytest.mark.long(suite="kill")
@pytest.mark.timeout(1800)
def test_what_a_dead_nodes_spool_had_is_read_again(mariadb: MariaDbServer, tmp_path: Path) -> None:
    with mariadb.connect() as connection:
        create_shop(connection, "node_death", SIZE)
    work = ShopWorkload(
        lambda: mariadb.connect(database="node_death"),
        seed=3,
        database="node_death",
        size=SIZE,
        hot=lambda: HotRange(1, SIZE.orders // 4),
    )
    with two_nodes(tmp_path) as nodes:
        # There is something to read for as long as the readers of the other node take to begin, and its spool.
        pace = "rows_per_second = 200, connections = 4"
        job = Job(
            tmp_path, mariadb, "node_death", TABLES, readers=4, chunk_rows=100, sections=nodes.section, snapshot=pace
        )
        # Longer than a commit takes, so that nothing waits for the driver at times.
        job.epoch_interval = "10s"
        with work.running(pause_s=0.01):
            run = job.start()
            assert run.wait_for(lambda: bool(nodes.segments())), run.story()
            seal_elsewhere_behind_a_stopped_driver(job, run)
            nodes.kill_other()
            os.kill(run.pids()["driver"], signal.SIGCONT)
            assert run.wait_for(lambda: warned_and_went_on(run)), run.story()
            assert run.interrupt() == 130, run.story()
        job.snapshot, job.epoch_interval = "", "500ms"
        catch_up(job)
    require_lake_equal(job)
