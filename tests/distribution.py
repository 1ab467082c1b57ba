"""How the tests that wait for servers and Spark are shared out over processes: the longest first, one at a time.

A unit goes to the next process that is free, in the order of this page. Most units of `kill`, `e2e` and `epochs` are
single tests, so that no process is left with a long file when the others are done. Other folders go by file, because
their tests share what a file prepares. Each process has servers of its own, and starts one when a test asks for it:
among units of the same rank it prefers those whose servers it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import chain
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
    "tests/spark/",
    "tests/e2e/test_shop_tutorial.py",
    "tests/e2e/test_transforms.py",
    "tests/blackbox/",
    "tests/kill/",
    "tests/e2e/test_ways_out.py",
    "tests/e2e/test_bench.py",
    "tests/e2e/test_demo.py",
    "tests/e2e/test_masked_state.py",
    "tests/e2e/test_failover.py",
    "tests/e2e/test_routes.py",
    "tests/e2e/test_bad_rows.py",
    "tests/e2e/",
    "tests/integration/connectors/mysql/test_mysql_types.py",
)
#: Servers that only some tests need, by the words of their ids that tell so. MariaDB and MySQL 8.0 are everywhere.
RARE = {
    "kafka": ("kafka", "topic"),
    "mongodb": ("mongodb", "collection"),
    "postgres": ("postgres", "jdbc"),
    "mysql57": ("mysql57",),
    "mysql_newest": ("mysql_newest",),
    "mysql80_nogtid": ("nogtid",),
}
#: Those of them whose tests are one unit each: so they are started once, or twice.
ALONE = ("mysql57", "mysql_newest", "mysql80_nogtid")
#: Small units of even length: they fill the end.
LAST = "tests/epochs/"


@cache
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
    for server in ALONE:
        if server in needs(nodeid):
            return server
    file, _, test = nodeid.partition("::")
    if folder == "blackbox":
        # What is played on one server is played in one process.
        return f"{file}::{test.partition('[')[2].partition('-')[0]}"
    return file


@cache
def needs(nodeid: str) -> frozenset[str]:
    """The rare servers that a test probably needs."""
    return frozenset(server for server, words in RARE.items() if any(word in nodeid for word in words))


def preferred(units: Mapping[str, str], mine: AbstractSet[str], anybody: AbstractSet[str]) -> str:
    """The unit for a process that has the servers `mine`, of `units` with a test of each, in the order of this page.

    Of those with the rank of the first one: one whose rare servers it has, else one whose rare servers nobody of
    `anybody` has, else one that needs none, else the first.
    """
    first = next(iter(units))
    equal = {name: needs(test) for name, test in units.items() if rank(test) == rank(units[first])}
    rare = {name: servers for name, servers in equal.items() if servers}
    mine_first = (name for name, servers in rare.items() if servers <= mine)
    nobodys = (name for name, servers in rare.items() if not servers & anybody)
    common = (name for name in equal if name not in rare)
    return next(chain(mine_first, nobodys, common, (first,)))


class ByUnit(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's scheduler with the units of this page, in the order in which the tests were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._servers: dict[Any, set[str]] = {}

    def _assign_work_unit(self, node: Any) -> None:
        units = {name: next(iter(tests)) for name, tests in self.workqueue.items()}
        mine = self._servers.setdefault(node, set())
        name = preferred(units, mine, set().union(*self._servers.values()))
        for test in self.workqueue[name]:
            mine |= needs(test)
        self.workqueue.move_to_end(name, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


def longest_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order in which they are given out."""
    return sorted(items, key=lambda item: rank(item.nodeid))
