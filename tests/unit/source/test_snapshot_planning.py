"""Chunks that wait for a reader are ones of their table's present beginning."""

from __future__ import annotations

from typing import Any, cast

from raycdc.model import TableId
from raycdc.source.snapshot.enumerator_state import SealedPlanning
from raycdc.source.snapshot.snapshot_planning import SnapshotPlanning
from raycdc.source.split import SnapshotSplit

TABLE = TableId("shop", "orders")


def planning_of(incarnation: int) -> SnapshotPlanning:
    """Of a table that is cut to its end."""
    unused = cast("Any", None)
    planning = SnapshotPlanning(unused, unused, document=unused, on_planned=lambda: None)
    planning.restore({TABLE: SealedPlanning("f", None, None, 2, 0, 2, incarnation)}, [])
    return planning


def chunk(incarnation: int) -> SnapshotSplit:
    return SnapshotSplit(TABLE, 0, "id", None, None, incarnation=incarnation)


def test_a_chunk_that_a_reader_had_comes_back_unless_its_table_began_again() -> None:
    planning = planning_of(incarnation=2)
    planning.put_back(chunk(1))
    assert not planning.pending
    planning.put_back(chunk(2))
    assert [(split.incarnation, split.attempt) for split in planning.pending] == [(2, 1)]


def test_a_refusal_of_an_earlier_beginning_says_nothing_of_this_one() -> None:
    planning = planning_of(incarnation=2)
    planning.leave_alone(chunk(1))
    assert not planning.over
    planning.leave_alone(chunk(2))
    assert planning.over == {TABLE}


def test_a_chunk_of_an_earlier_beginning_that_found_no_table_ends_no_chunk_of_this_one() -> None:
    planning = planning_of(incarnation=2)
    planning.put_back(chunk(2))
    planning.table_gone(chunk(1))
    assert planning.pending
    planning.table_gone(chunk(2))
    assert not planning.pending
