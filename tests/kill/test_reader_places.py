"""Which nodes get readers: those with the labels and resources that are asked for, and none that fell silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.servers import MariaDbServer
from raycdc.sandbox.shop import ShopSize, create_shop
from raycdc.state.manifests.manifest import STATE_NODE
from raycdc.state.store import CheckpointStore
from tests.support.comparing import require_lake_equal
from tests.support.jobs import Job, JobRun
from tests.support.ray_cluster import two_nodes

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.long(suite="elastic"),
    pytest.mark.timeout(600),
]

SIZE = ShopSize(customers=500, products=100, orders=12_000)
TABLES = ("customers", "products", "orders")


def nodes_of(event: dict[str, Any]) -> list[str]:
    return [reader.get("node", "") for reader in event["readers"]]


def looks(run: JobRun) -> list[tuple[int, dict[str, Any]]]:
    return [(n, event) for n, event in enumerate(list(run.events)) if event["event"] == "progress"]


def test_readers_of_a_silent_node_go_elsewhere(mariadb: MariaDbServer, tmp_path: Path) -> None:
    with mariadb.connect() as connection:
        create_shop(connection, "silent_node", SIZE)
    with two_nodes(tmp_path) as nodes:
        pace = "rows_per_second = 200, connections = 2"
        job = Job(
            tmp_path, mariadb, "silent_node", TABLES, readers=2, chunk_rows=100, sections=nodes.section, snapshot=pace
        )
        run = job.start("--until", "caught-up")
        # Two readers, spread over two nodes with room for two each.
        assert run.wait_for(lambda: any(len(set(nodes_of(event))) == 2 for _, event in looks(run))), run.story()
        nodes.silence_other()
        replaced = "is replaced: it was silent"
        assert run.wait_for(lambda: any(replaced in e.get("text", "") for e in list(run.events))), run.story()
        told = next(n for n, event in enumerate(run.events) if replaced in event.get("text", ""))
        # One look may have been on its way when it was told.
        assert run.wait_for(
            lambda: any(nodes_of(event) == [STATE_NODE] * 2 for n, event in looks(run) if n > told + 1)
        ), run.story()
        assert run.wait() == 0, run.story()
        elsewhere = [nodes_of(event) for n, event in looks(run) if n > told + 1 and {*nodes_of(event)} - {STATE_NODE}]
        assert elsewhere == []
    require_lake_equal(job)


def test_a_node_that_was_silent_before_any_reader_was_there_keeps_none_waiting(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    with mariadb.connect() as connection:
        create_shop(connection, "silent_before", SIZE)
    # Ray would wait for the node for as long as the test lasts.
    with two_nodes(tmp_path, given_up=False) as nodes:
        nodes.silence_other()
        pace = "rows_per_second = 200, connections = 2"
        job = Job(
            tmp_path, mariadb, "silent_before", TABLES, readers=2, chunk_rows=100, sections=nodes.section, snapshot=pace
        )
        run = job.start("--until", "caught-up")
        both = [STATE_NODE] * 2
        assert run.wait_for(lambda: any(nodes_of(event) == both for _, event in looks(run))), run.story()
        assert any("does not answer: readers go elsewhere" in e.get("text", "") for e in list(run.events))
        assert run.wait() == 0, run.story()
    require_lake_equal(job)


def test_readers_go_where_labels_and_resources_are(mariadb: MariaDbServer, tmp_path: Path) -> None:
    with mariadb.connect() as connection:
        create_shop(connection, "labels", ShopSize(customers=300, products=100, orders=2_000))
    with two_nodes(tmp_path, labels={"pool": "cdc"}, resources={"reader": 1}) as nodes:
        # It lasts until the reader without a place was told of.
        pace = "rows_per_second = 200, connections = 2"
        job = Job(tmp_path, mariadb, "labels", TABLES, readers=2, chunk_rows=100, sections=nodes.section, snapshot=pace)
        job.readers_keys = 'labels = { pool = "cdc" }\nresources = { reader = 1 }'
        run = job.start("--until", "caught-up")
        assert run.wait() == 0, run.story()
        # The other node has CPUs for both, and the resource for one; the driver's has CPUs and no label.
        told = [(event["waiting"], *event["nodes"].values()) for event in run.events if event["event"] == "scaling"]
        assert (1, 1) in told
    segments = [s for m in CheckpointStore(job.state).manifests() for s in m.segments]
    assert len({segment.node for segment in segments}) == 1
    assert STATE_NODE not in {segment.node for segment in segments}
    require_lake_equal(job)
