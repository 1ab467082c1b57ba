"""Chunks that wait for a reader are ones of their table's present beginning."""

from __future__ import annotations

from typing import Any, cast

from raycdc.model import TableId
from raycdc.source.protocol.api import TableCounts
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


def test_all_tables_together_are_counted_as_their_chunks_come_and_go() -> None:
    planning = planning_of(incarnation=2)
    told = [planning.news.counted.counts()]
    for count in (+1, -1, +2):
        planning.news.counted.published(TABLE, count, ())
        told.append(planning.news.counted.counts())
    planning.news.counted.published(TABLE, -1, ())
    planning.finished(TABLE, ())
    told.append(planning.news.counted.counts())
    assert told == [
        TableCounts(1, 1, 0, 2),
        TableCounts(1, 1, 1, 1),
        TableCounts(1, 1, 0, 2),
        TableCounts(1, 0, 2, 0),
        TableCounts(1, 0, 2, 0),
    ]
