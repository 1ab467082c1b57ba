"""Readers that take the next chunk when they are free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.bench.splits.figures import (
    ChunkTiming,
    MeasuredRun,
    Planning,
    StrategyResult,
    filled_in,
    list_schedule,
    spread,
)
from raycdc.source.trials import ServerCosts


def test_a_large_chunk_at_the_end_keeps_one_reader_busy_while_others_wait() -> None:
    found = list_schedule([1.0, 1.0, 1.0, 1.0, 6.0], 2)
    assert found.seconds == 8.0
    assert found.idle == pytest.approx(1 - 10 / 16)
    assert list_schedule([], 4).seconds == 0.0


@given(st.lists(st.floats(0.001, 100), min_size=1), st.integers(1, 20))
def test_a_schedule_is_between_what_is_possible_and_twice_that(times: list[float], readers: int) -> None:
    found = list_schedule(times, readers)
    least = max(*times, sum(times) / readers)
    assert least * (1 - 1e-9) <= found.seconds <= 2 * least * (1 + 1e-9)
    assert -1e-9 <= found.idle < 1


@given(st.integers(0, 500), st.integers(0, 60))
def test_picked_numbers_are_spread_from_the_first_to_the_last(count: int, wanted: int) -> None:
    found = spread(count, wanted)
    assert len(found) == min(count, wanted)
    assert found == sorted(set(found))
    assert all(0 <= number < count for number in found)
    if min(count, wanted) > 1:
        assert (found[0], found[-1]) == (0, count - 1)


def result_of(*runs: MeasuredRun, chunks: int = 16) -> StrategyResult:
    return StrategyResult("even", "", Planning("id", chunks, 0.0, 0.0, ServerCosts()), runs)


def run_of(readers: int, seconds: float, chunk_s: float, count: int = 16) -> MeasuredRun:
    chunks = [ChunkTiming(n, n % readers, 0.0, chunk_s, 1000, 8000) for n in range(count)]
    return MeasuredRun(readers, seconds, chunks, 0.0, 0)


def test_what_is_predicted_is_what_was_measured_and_goes_on_from_there() -> None:
    """One reader 597,000 rows a second, two 580,000: the server is at its limit, and more readers get no more of it."""
    alone, two = run_of(1, 16.0, 1.0), run_of(2, 16.5, 2.06)
    shared = result_of(alone, two)
    assert shared.schedule(1).seconds == pytest.approx(16.0)
    assert shared.schedule(2).seconds == pytest.approx(16.5)
    assert all(shared.schedule(readers).seconds >= 16.0 for readers in (4, 8, 16))
    # Readers that hardly slow one another share the work out, and a little less with each.
    free = result_of(alone, run_of(2, 8.2, 1.02), chunks=160)
    assert free.schedule(4).seconds == pytest.approx(40 * (1 + 3 * 0.025))
    # Of one number of readers alone nobody knows.
    assert result_of(alone).schedule(2).seconds == pytest.approx(8.0)


def test_chunks_that_were_not_read_take_as_long_as_the_nearest() -> None:
    assert filled_in([1.0, 5.0, 2.0], [0, 4, 6], 8) == [1.0, 1.0, 5.0, 5.0, 5.0, 2.0, 2.0, 2.0]
    assert filled_in([], [], 3) == []
