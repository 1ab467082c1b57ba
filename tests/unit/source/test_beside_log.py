"""Chunks of a backfill: their table's rows pass on, and only what the log did not tell of goes out."""

from __future__ import annotations

from typing import Any

import pytest

from raycdc.source.snapshot.chunk_events import Fate
from raycdc.source.snapshot.handoff.chunk_openings import (
    ChunkOpenings,
    OpeningDeferred,
    OpeningGranted,
    OpeningRefused,
    OpeningRequest,
)
from raycdc.source.snapshot.handoff.hand_off import (
    Decision,
    FoldChunkRequest,
    HandOff,
    LogRows,
    PublishChunkRequest,
    RetryChunkRequest,
)
from raycdc.source.split import BackfillRows, SnapshotSplit
from raycdc.source.tables.table_life import Behind, Live, ParkedPhase, ParkingCause, TableState, TableStates
from raycdc.state.opaque import Position
from tests.protocol.pair import segment
from tests.unit.source.test_hand_off import AFTER, BEFORE, DELETE, INSERT, TABLE, Numbers, log, shown

SPLIT = SnapshotSplit(TABLE, 0, None, None, None, again=BackfillRows("c1", where="id > 3"))
LIVE = Live("f", announced=True, incarnation=0)


def hand_off(state: TableState = LIVE) -> HandOff:
    return HandOff(Numbers(), TableStates({TABLE: state}))


def opened(split: SnapshotSplit = SPLIT) -> HandOff:
    made = hand_off()
    assert made.open(split, now_s=0)
    return made


def close(made: HandOff, *, high: int, log_end: int = 0, split: SnapshotSplit = SPLIT) -> None:
    made.close(split.chunk_id, high=high, log_end=max(high, log_end), exact=False, segments=(segment(split.split_id),))


def passes(made: HandOff, rows: LogRows) -> None:
    assert made.rows(rows, now_s=0) is rows, "rows of a live table pass on"


def decided(made: HandOff, ordinal: int) -> list[Decision]:
    return made.advance(ordinal, now_s=0)


def test_rows_pass_on_while_the_chunk_is_open_and_it_goes_out_as_it_was_read() -> None:
    made = opened()
    close(made, high=5)
    assert decided(made, 4) == []
    assert decided(made, 5) == [PublishChunkRequest(SPLIT, (segment(SPLIT.split_id),), ())]
    assert decided(made, 6) == []


def test_keys_of_the_open_epoch_stay_in_the_chunk_because_its_rows_come_before_them() -> None:
    made = opened()
    passes(made, log((BEFORE, 7, 1), (AFTER, 7, 2), at=3))
    close(made, high=5)
    assert [type(decision) for decision in decided(made, 5)] == [PublishChunkRequest]


def test_keys_that_an_epoch_which_is_cut_told_of_are_left_out() -> None:
    made = opened()
    passes(made, log((BEFORE, 7, 1), (AFTER, 7, 2), at=3))
    passes(made, log((DELETE, 8, 1), at=4))
    made.begin_epoch()
    passes(made, log((INSERT, 9, 1), at=5))
    close(made, high=5)
    (decision,) = decided(made, 5)
    assert isinstance(decision, FoldChunkRequest)
    assert shown(decision.delta) == [(BEFORE, 7), (AFTER, 7), (DELETE, 8)]
    close(made, high=5)
    assert [type(decision) for decision in decided(made, 5)] == [PublishChunkRequest]


def test_an_epoch_that_is_cut_while_keys_are_left_out_has_its_own_left_out_too() -> None:
    made = opened()
    passes(made, log((AFTER, 7, 2), at=3))
    made.begin_epoch()
    close(made, high=3)
    assert [type(decision) for decision in decided(made, 3)] == [FoldChunkRequest]
    passes(made, log((AFTER, 8, 2), at=4))
    made.begin_epoch()
    close(made, high=3)
    (decision,) = decided(made, 4)
    assert isinstance(decision, FoldChunkRequest)
    assert shown(decision.delta) == [(AFTER, 8)]


def test_rows_before_the_opening_do_not_matter() -> None:
    made = hand_off()
    passes(made, log((AFTER, 7, 2), at=1))
    made.open(SPLIT, now_s=0)
    made.begin_epoch()
    close(made, high=2)
    assert [type(decision) for decision in decided(made, 2)] == [PublishChunkRequest]


def test_a_schema_change_voids_the_chunk() -> None:
    made = opened()
    assert made.void_table(TABLE, now_s=0) == [SPLIT]
    close(made, high=1)
    assert decided(made, 9) == []


def test_a_chunk_does_not_enter_the_epoch_that_empties_its_table() -> None:
    made = opened()
    made.truncate(TABLE)
    close(made, high=1)
    assert decided(made, 9) == []
    made.begin_epoch()
    assert [type(decision) for decision in decided(made, 9)] == [PublishChunkRequest]


def test_a_misfit_is_read_again_once_the_log_has_said_why() -> None:
    made = opened()
    made.schema_mismatch(SPLIT.chunk_id, high=4, reason="no column v", now_s=0)
    assert decided(made, 3) == []
    assert decided(made, 4) == [RetryChunkRequest(SPLIT, "no column v")]


def asked(state: TableState, *, ring_s: float = 0.0, split: SnapshotSplit = SPLIT) -> tuple[ChunkOpenings, HandOff]:
    lives = TableStates({TABLE: state})
    made = HandOff(Numbers(), lives, ring_s=ring_s)
    return ChunkOpenings(lives, made, ring_s=ring_s, now_s=0.0), made


def test_a_backfill_of_a_table_that_began_again_is_over() -> None:
    openings, _ = asked(Live("f", announced=True, incarnation=3))
    told = openings.ask(OpeningRequest(SPLIT, 0.0), ordinal=1, now_s=0.0)
    assert told == OpeningRefused("the table began again, which reads all of it", Fate.BACKFILL_OVER)


def test_a_backfill_of_a_paused_table_is_over_with_its_reason() -> None:
    lives = TableStates({TABLE: LIVE})
    lives.parked(
        TABLE, ParkingCause("paused by the user", Position.unknown(), 0, phase=ParkedPhase.PAUSED), announced=True
    )
    openings = ChunkOpenings(lives, HandOff(Numbers(), lives), ring_s=0.0, now_s=0.0)
    told = openings.ask(OpeningRequest(SPLIT, 0.0), ordinal=1, now_s=0.0)
    assert told == OpeningRefused("the table is paused: paused by the user", Fate.BACKFILL_OVER)


def test_a_table_whose_chunks_are_ahead_of_the_log_waits() -> None:
    openings, _ = asked(Behind("f", announced=True, incarnation=0, at=7))
    request = OpeningRequest(SPLIT, 0.0)
    assert openings.ask(request, ordinal=6, now_s=0.0) == OpeningDeferred()
    assert openings.next_due_s() is None
    assert openings.take_due(now_s=0.0) == [request]
    assert openings.ask(request, ordinal=7, now_s=1.0) == OpeningGranted()


def test_where_nothing_tells_what_is_visible_the_select_waits_behind_the_opening() -> None:
    openings, made = asked(LIVE, ring_s=6.0)
    request = OpeningRequest(SPLIT, 10.0)
    assert openings.ask(request, ordinal=1, now_s=10.0) == OpeningDeferred()
    assert openings.next_due_s() == 16.0
    # The rows that pass meanwhile are remembered: the chunk is open already.
    passes(made, log((AFTER, 7, 2), at=3))
    made.begin_epoch()
    assert openings.ask(request, ordinal=3, now_s=16.0) == OpeningGranted()
    close(made, high=3)
    assert [type(decision) for decision in decided(made, 3)] == [FoldChunkRequest]


def test_a_chunk_that_a_schema_change_voided_while_it_waited_is_asked_for_again() -> None:
    openings, made = asked(LIVE, ring_s=6.0)
    request = OpeningRequest(SPLIT, 10.0)
    openings.ask(request, ordinal=1, now_s=10.0)
    made.void_table(TABLE, now_s=11.0)
    told = openings.ask(request, ordinal=3, now_s=16.0)
    assert isinstance(told, OpeningRefused)
    assert told.fate is Fate.READ_AGAIN


@pytest.mark.parametrize("attempt", [0, 2])
def test_only_the_attempt_that_is_open_is_closed(attempt: int) -> None:
    newer = SnapshotSplit(TABLE, 0, None, None, None, attempt=1, again=SPLIT.again)
    made = opened()
    made.open(newer, now_s=0)
    other: Any = SnapshotSplit(TABLE, 0, None, None, None, attempt=attempt, again=SPLIT.again)
    close(made, high=1, split=other)
    assert decided(made, 9) == []
    close(made, high=1, split=newer)
    assert [type(decision) for decision in decided(made, 9)] == [PublishChunkRequest]
