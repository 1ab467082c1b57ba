"""How the tests that wait for servers and Spark are shared out over processes: the longest first, one at a time.

A unit goes to the next process that is free, in the order of this page. Most units of `kill`, `e2e` and `epochs` are
single tests, so that no process is left with a long file when the others are done. Other folders go by file, because
their tests share what a file prepares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

#: Folders whose tests are units of their own, apart from those of `TOGETHER`.
SINGLE = frozenset({"kill", "e2e", "epochs"})
#: Files, or a folder, whose tests are one unit, and the unit's name.
TOGETHER = {
    # A test process keeps the first JVM that it starts; these have Spark in it one after the other, before `spark`.
    "tests/e2e/test_datasource.py": "Spark by itself",
    "tests/e2e/test_worked_example.py": "Spark by itself",
    "tests/integration/test_check_and_run.py": "Spark by itself",
    # One Ray for all (`tests/e2e/conftest.py`).
    "tests/e2e/test_shop_tutorial.py": "Ray and Spark",
    "tests/e2e/test_transforms.py": "Ray and Spark",
    "tests/e2e/test_bad_rows.py": "Ray and Spark",
    "tests/e2e/test_mongodb_sink.py": "Ray and Spark",
    "tests/e2e/test_spark_elsewhere.py": "Ray and Spark",
    # One session for all.
    "tests/spark/": "Spark",
    "tests/epochs/test_delta_partitions.py": "Spark",
    # A module's fixture is made once.
    "tests/e2e/test_failover.py": "failover",
    "tests/e2e/test_lookups.py": "look-ups",
    "tests/epochs/test_custom_sink.py": "custom sink",
}
#: Where the units come from that are given out first, the longest first; all others follow in the order of the files.
FIRST = (
    "tests/kill/test_kills.py",
    "tests/e2e/test_datasource.py",
    "tests/e2e/test_worked_example.py",
    "tests/kill/",
    "tests/e2e/test_shop_tutorial.py",
    "tests/e2e/test_transforms.py",
    "tests/e2e/test_ways_out.py",
    "tests/e2e/test_bench.py",
    "tests/e2e/test_two_nodes.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_masked_state.py",
    "tests/e2e/test_failover.py",
    "tests/e2e/test_routes.py",
    "tests/e2e/test_bad_rows.py",
    "tests/e2e/",
    "tests/spark/",
    "tests/epochs/test_delta_partitions.py",
    "tests/blackbox/",
)
#: Small units of even length: they fill the end.
LAST = "tests/epochs/"


def rank(nodeid: str) -> int:
    """The place of a test in the order."""
    for place, start in enumerate(FIRST):
        if nodeid.startswith(start):
            return place
    return len(FIRST) + nodeid.startswith(LAST)


def unit(nodeid: str) -> str:
    """The name of the unit that a test belongs to."""
    for start, name in TOGETHER.items():
        if nodeid.startswith(start):
            return name
    folder = nodeid.split("/")[1]
    if folder in SINGLE:
        return nodeid
    file, _, test = nodeid.partition("::")
    if folder == "blackbox":
        # What is played on one server is played in one process.
        return f"{file}::{test.partition('[')[2].partition('-')[0]}"
    return file


class ByUnit(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's scheduler with the units of this page, in the order in which the tests were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order in which they are given out."""
    return sorted(items, key=lambda item: rank(item.nodeid))
