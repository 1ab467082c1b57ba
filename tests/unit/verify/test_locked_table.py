"""A table that is locked at the source is not compared, and is no reason to end the comparison of the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from raycdc.errors import TableLockedError
from raycdc.verify.table import ATTEMPTS_MAX, ComparisonTimeouts, Reading, Sides, TableComparison
from raycdc.verify.targets.api import NotComparedError


class LockedTable:
    """Both of a `PipelineState` and of a `SourceTableRows`: of a table that nobody can plan now."""

    table = None

    def __init__(self) -> None:
        self.planned = 0

    def held(self) -> LockedTable:
        return self

    def split(self, _: object) -> None:
        return None

    def splits(self) -> Iterator[Any]:
        self.planned += 1
        return map(_refused, [0])


def _refused(_: int) -> Any:
    raise TableLockedError("Another session has shop.t locked.")


def test_a_sample_of_a_locked_table_is_tried_again_and_then_not_compared() -> None:
    locked, stopped = LockedTable(), threading.Event()
    stopped.set()
    unused = cast("Any", None)
    sides = Sides(cast("Any", locked), target=unused, compared=unused, names={})
    terms = ComparisonTimeouts(sample=0.5, stopped=stopped)
    comparison = TableComparison(cast("Any", locked), lambda _: sides, terms, Reading())
    with pytest.raises(NotComparedError, match=r"has shop\.t locked; that was so 3 times"):
        comparison.run()
    assert locked.planned == ATTEMPTS_MAX
