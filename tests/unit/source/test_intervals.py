"""Sets of key ranges: adding chunks in any order covers what the chunks cover, in as few ranges as possible."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from raycdc.source.snapshot.key_intervals import Interval, IntervalSet, cells

Bound = int | None


def chunks_of(cuts: list[int]) -> list[Interval]:
    """The chunks between `cuts`, together the whole line."""
    bounds: list[Bound] = [None, *sorted(set(cuts)), None]
    return [Interval(low, high, low, high) for low, high in pairwise(bounds)]


def holds(interval: Interval, key: int) -> bool:
    return (interval.lower is None or interval.lower <= key) and (interval.upper is None or key < interval.upper)


@st.composite
def some_chunks(draw: st.DrawFn) -> tuple[list[Interval], list[int]]:
    chunks = chunks_of(draw(st.lists(st.integers(-9, 9), max_size=8)))
    numbers = draw(st.permutations(range(len(chunks))))
    return chunks, list(numbers[: draw(st.integers(0, len(chunks)))])


@given(some_chunks())
def test_a_set_covers_exactly_what_was_added_in_whatever_order(drawn: tuple[list[Interval], list[int]]) -> None:
    chunks, taken = drawn
    closed = IntervalSet()
    for number in taken:
        closed.add(chunks[number])
    for key in range(-11, 12):
        assert any(holds(i, key) for i in closed) == any(holds(chunks[n], key) for n in taken)
    assert closed.covers_all == (len(taken) == len(chunks))


@given(some_chunks())
def test_neighbours_are_merged_and_keep_their_raw_bounds(drawn: tuple[list[Interval], list[int]]) -> None:
    chunks, taken = drawn
    closed = IntervalSet()
    for number in taken:
        closed.add(chunks[number])
    runs = sum(1 for n in taken if n - 1 not in taken)
    assert len(closed) == runs
    assert all((i.lower, i.upper) == (i.lower_raw, i.upper_raw) for i in closed)


@given(some_chunks())
def test_cells_give_each_key_the_code_of_its_interval(drawn: tuple[list[Interval], list[int]]) -> None:
    chunks, taken = drawn
    layers = [(chunks[number], 10 + number) for number in taken]
    bounds, codes = cells(layers, default=0)
    assert bounds == sorted(bounds)
    assert len(codes) == len(bounds) + 1
    for key in range(-11, 12):
        expected = [code for interval, code in layers if holds(interval, key)] or [0]
        assert codes[bisect_right(bounds, key)] == expected[0]


def test_an_empty_interval_changes_nothing() -> None:
    closed = IntervalSet()
    closed.add(Interval(3, 3))
    assert list(closed) == []
