"""A cluster that scales under a run: nodes come, each gets a reader, and all are given back; every row is there once.

Long: Ray's autoscaler starts and ends raylets, and waits for idle ones. ``make test-elastic`` plays it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.long, pytest.mark.server, pytest.mark.spark, pytest.mark.timeout(1200)]


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
