"""A table that is to begin again, and is locked, is looked at ever less often: the log stands while it is."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pytest

from raycdc.connectors.mysql import table_look
from raycdc.connectors.mysql.locks import locked_error
from raycdc.connectors.mysql.table_look import Looks
from raycdc.errors import TableLockedError
from raycdc.model import TableId
from raycdc.source.new_beginnings import TableLooks, Unfit

LOCKED, FREE = TableId("shop", "locked"), TableId("shop", "free")


class Scene:
    """A server on which `locked` tables are, and a clock that a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.locked = {LOCKED}
        self.now_s = 100.0
        self.looked_at: list[tuple[TableId, float]] = []
        unused = cast("Any", None)
        self.looks = Looks(unused, unused, unused, now_s=lambda: self.now_s)
        monkeypatch.setattr(table_look, "look_at", self._look_at)

    def _look_at(self, _: Any, table: TableId, *__: Any) -> Unfit:
        self.looked_at.append((table, self.now_s))
        if table in self.locked:
            raise locked_error(table)
        return Unfit("it is odd", 7)


def test_a_locked_table_is_looked_at_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for _ in range(300):
        with pytest.raises(TableLockedError):
            scene.looks(LOCKED)
        scene.now_s += 1.0
    times = [at_s for _, at_s in scene.looked_at]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_a_locked_table_begins_again_when_it_is_free_and_others_before(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    begin = TableLooks(scene.looks, [LOCKED, FREE])
    assert begin.ready(7) == [(FREE, Unfit("it is odd", 7))]
    scene.locked.clear()
    assert begin.ready(8) == []
    scene.now_s += 2.0
    assert begin.ready(9) == [(LOCKED, Unfit("it is odd", 7))]
    assert begin.ready(9) == []
