"""A cluster that scales under a run: nodes come, each gets a reader, and all are given back; every row is there once.

In ``make test`` one node comes and goes, by hand. Long: Ray's autoscaler starts and ends raylets, and waits for idle
ones. The suite ``elastic`` plays it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import StateError
from raycdc.sandbox.compare import read_changelog
from raycdc.state.manifests.manifest import STATE_NODE
from raycdc.state.store import CheckpointStore
from tests.support.jobs import Job, JobRun, rows_by
from tests.support.ray_cluster import growing_cluster

pytestmark = [pytest.mark.spark]

#: Read by one reader alone in 40 s, of which a node that is slow to come has some left.
ROWS, ROWS_PER_SECOND = 8000, 200
SHARE_LEAST = 0.15


@dataclass(slots=True)
class Generated(Job):
    """A generated table, which each reader reads slowly: with a pace of the whole source, one reader would do."""

    def source_section(self) -> str:
        # One change, so that there is a log to follow.
        changes = "events = 1\nnew_rows = 1\ndeletes = 0.0"
        table = f'type = "datagen"\ntables = ["shop.t"]\nrows = {ROWS}\nchunk_rows = {self.chunk_rows}'
        return f"{table}\n{changes}\nfaults = {{ chunk_rows_per_second = {ROWS_PER_SECOND} }}"


class Sealed:
    """The rows of a run that were sealed, by node; a state keeps the newest epochs only, so it is asked again."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._epoch = 0
        self.rows: Counter[str] = Counter()

    def look(self) -> None:
        """Count what is new."""
        # Before a run has a state there is none, and what was seen may be pruned before it is read.
        with suppress(StateError, OSError):
            for manifest in CheckpointStore(self._state, create=False).manifests(self._epoch):
                self._epoch = manifest.epoch
                for segment in manifest.segments:
                    self.rows[segment.node] += segment.rows


def nodes_of(run: JobRun) -> set[str]:
    """The nodes that readers are on now, by the newest line of progress."""
    last = next((event for event in reversed(list(run.events)) if event["event"] == "progress"), None)
    return {reader["node"] for reader in last["readers"]} if last else set()


@pytest.mark.timeout(300)
def test_a_node_that_comes_reads_its_part_and_may_go_again(tmp_path: Path) -> None:
    nobody: Any = None
    with growing_cluster(tmp_path / "cluster") as cluster:
        job = Generated(tmp_path, nobody, "shop", ["t"], sink="jsonl", write="changelog", readers=2, chunk_rows=100)
        job.sections = cluster.section
        run, sealed = job.start(), Sealed(job.state)
        run.wait_for(lambda: nodes_of(run) == {STATE_NODE})
        with cluster.another():

            def given_back() -> bool:
                sealed.look()
                done = any(event["event"] == "snapshot_done" for event in list(run.events))
                return done and nodes_of(run) == {STATE_NODE}

            run.wait_for(given_back)
        assert run.interrupt() == 130, run.story()
    assert [event["text"] for event in run.events if event["event"] == "warning"] == []
    shares = {node: rows / sum(sealed.rows.values()) for node, rows in sealed.rows.items()}
    assert len(shares) == 2, shares
    assert min(shares.values()) >= SHARE_LEAST, shares
    by = rows_by(run)
    assert (set(by.read), set(by.written)) == ({"ray"}, {"spark"}), by
    keys = Counter(row["id"] for row in read_changelog(job.lake / "shop" / "t", "jsonl") if row["_op"] == "+I")
    assert set(keys.values()) == {1}
    assert len(keys) >= ROWS


@pytest.mark.long(suite="elastic")
@pytest.mark.server
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("case", ["chunks", "partitions", "beside", "datagen", "autoscaler_v1"])
def test_readers_go_where_nodes_come_and_nodes_are_given_back(case: str) -> None:
    command = [sys.executable, "-m", "bench", "elastic", "--json", "--cases", case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["measurements"]
    assert told["rows"] > 0
    assert (told["lost"], told["repeated"]) == (0, 0)
    assert told["given_back"]
    shares = told["share_of_rows_after_it_came"]
    if case == "beside":
        # Each job has a name of its own for a node, and its log's last reader may stand on one where it reads nothing.
        shares = {node: share for node, share in shares.items() if share}
    assert len(shares) == 4
    assert all(share >= 0.15 for node, share in shares.items() if node != "state"), shares
