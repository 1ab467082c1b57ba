"""Tables that are to begin again, and are locked: the log stands while one is looked at, so that is seldom."""

from __future__ import annotations

import itertools

from raycdc.errors import TableLockedError
from raycdc.model import TableId
from raycdc.source.tables.resnapshots import TableProbes, UnfollowableTable

LOCKED, FREE = TableId("shop", "locked"), TableId("shop", "free")
#: A look at a locked table takes so long.
POLL_S = 1.0
FOUND = UnfollowableTable("it is odd", 7)


class Scene:
    """A server on which the first of `wanted` are locked, and a clock that a test moves on."""

    def __init__(self, wanted: list[TableId], locked: set[TableId]) -> None:
        self.locked = locked
        self.now_s = 100.0
        self.looked_at: list[tuple[TableId, float]] = []
        self.looks = TableProbes(self._look_at, wanted, now_s=lambda: self.now_s)

    def _look_at(self, table: TableId) -> UnfollowableTable:
        self.looked_at.append((table, self.now_s))
        if table in self.locked:
            self.now_s += POLL_S
            raise TableLockedError(f"{table} is locked")
        return FOUND

    def pass_units(self, for_s: float) -> float:
        """A unit of the log each 50 ms; returns how long at most one of them was waited for."""
        until_s, longest_s = self.now_s + for_s, 0.0
        while self.now_s < until_s:
            began_s = self.now_s
            self.looks.ready(7)
            longest_s = max(longest_s, self.now_s - began_s)
            self.now_s += 0.05
        return longest_s


def test_a_locked_table_is_looked_at_ever_less_often() -> None:
    scene = Scene([LOCKED], {LOCKED})
    scene.pass_units(300.0)
    times = [at_s for _, at_s in scene.looked_at]
    pauses = [round(later - earlier - POLL_S) for earlier, later in itertools.pairwise(times)]
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]


def test_a_locked_table_begins_again_when_it_is_free_and_others_before() -> None:
    scene = Scene([LOCKED, FREE], {LOCKED})
    assert scene.looks.ready(7) == []
    scene.now_s += 2.0
    assert scene.looks.ready(8) == [(FREE, FOUND)]
    scene.locked.clear()
    scene.now_s += 4.0
    assert scene.looks.ready(9) == [(LOCKED, FOUND)]
    assert scene.looks.ready(9) == []


def test_many_locked_tables_stand_the_log_little_and_each_is_looked_at() -> None:
    tables = [TableId("shop", f"t{number}") for number in range(60)]
    scene = Scene(tables, set(tables))
    assert scene.pass_units(200.0) < 1.5 * POLL_S
    assert {table for table, _ in scene.looked_at} == set(tables)
    begun = len(scene.looked_at)
    assert scene.pass_units(660.0) < 1.5 * POLL_S
    assert begun + 60 <= len(scene.looked_at) <= begun + 66
    assert {table for table, _ in scene.looked_at[begun:]} == set(tables)


def test_tables_that_are_wanted_later_need_not_wait_for_the_pause_of_a_locked_one() -> None:
    scene = Scene([LOCKED], {LOCKED})
    scene.pass_units(100.0)
    scene.now_s += 3.0
    scene.looks.want(FREE)
    assert scene.looks.ready(7) == [(FREE, FOUND)]


def test_tables_that_are_free_together_begin_again_together() -> None:
    tables = [TableId("shop", f"t{number}") for number in range(9)]
    scene = Scene(tables, set(tables))
    scene.pass_units(120.0)
    scene.locked.clear()
    scene.now_s += 60.0
    assert {table for table, _ in scene.looks.ready(7)} == set(tables)
