"""A job whose readers are on two Ray nodes: rows of the other node's spool reach the sink over Arrow Flight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer
from raycdc.sandbox.shop import ShopSize, create_shop
from raycdc.state.manifests.manifest import STATE_NODE
from raycdc.state.store import CheckpointStore
from tests.support.comparing import require_lake_equal
from tests.support.jobs import Job
from tests.support.ray_cluster import TwoNodes, two_nodes

pytestmark = [pytest.mark.server, pytest.mark.spark]

SIZE = ShopSize(customers=300, products=100, orders=20_000)
TABLES = ("customers", "products", "orders")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path) as started:
        yield started


def job_on(nodes: TwoNodes, server: MariaDbServer, folder: Path, database: str) -> Job:
    with server.connect() as connection:
        create_shop(connection, database, SIZE)
    # A reader on the other node is started when the first ones have begun: what there is to read lasts until it is up.
    pace = "rows_per_second = 1500, connections = 5"
    # One more than there is room for: the run begins with four, and says so.
    return Job(folder, server, database, TABLES, readers=5, chunk_rows=500, sections=nodes.section, snapshot=pace)


@pytest.mark.long(suite="elastic")
def test_rows_read_on_another_node_reach_the_lake_over_flight(
    nodes: TwoNodes, mariadb: MariaDbServer, tmp_path: Path
) -> None:
    job = job_on(nodes, mariadb, tmp_path, "two_nodes")
    run = job.start("--until", "caught-up")
    assert run.wait() == 0, run.story()
    told = [(e["readers"], e["waiting"], *e["nodes"].values()) for e in run.events if e["event"] == "scaling"]
    assert (5, 1, 2, 2) in told
    require_lake_equal(job)
    segments = [s for m in CheckpointStore(job.state).manifests() for s in m.segments]
    elsewhere = [segment for segment in segments if segment.node != STATE_NODE]
    assert {segment.kind for segment in elsewhere} >= {"snapshot"}
    assert len({segment.node for segment in segments}) == 2
