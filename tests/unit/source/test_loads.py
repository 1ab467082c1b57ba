"""Partitions are shared out by what they bring: a hot one gets a reader of its own, and nothing moves to and fro."""

from __future__ import annotations

import random

import pytest

from raycdc.source.partitions.assigner import (
    POLL_EVERY_S,
    WINDOW_S,
    LoadPoll,
    SplitRates,
    moves_by_load,
    overloaded,
    weights,
)
from raycdc.source.protocol.metrics import SplitLoad

MB = float(1 << 20)


def moved(owned: dict[int, list[str]], weight: dict[str, float]) -> dict[int, list[str]]:
    """Who has what after a round."""
    after = {reader: list(names) for reader, names in owned.items()}
    for name, (source, target) in moves_by_load(owned, weight, overloaded(owned, weight)).items():
        after[source].remove(name)
        after[target].append(name)
    return {reader: sorted(names) for reader, names in after.items()}


def test_a_hot_partition_gets_a_reader_of_its_own() -> None:
    weight = {"hot": 20 * MB, **{f"p{n}": MB for n in range(7)}}
    after = moved({0: ["hot", "p0", "p1", "p2"], 1: ["p3", "p4", "p5", "p6"]}, weight)
    assert after == {0: ["hot"], 1: [f"p{n}" for n in range(7)]}
    assert moved(after, weight) == after


def test_a_reader_that_comes_gets_a_part_of_the_load_not_of_the_number() -> None:
    weight = {"a": 8 * MB, "b": 4 * MB, "c": 4 * MB}
    assert moved({0: ["a", "b", "c"], 1: []}, weight) == {0: ["b", "c"], 1: ["a"]}


def test_a_backlog_counts_as_what_it_takes_to_read_it() -> None:
    found = weights({"behind": SplitLoad(0.0, 600 * MB), "quick": SplitLoad(10 * MB)})
    assert found["behind"] == pytest.approx(found["quick"])


def test_partitions_that_bring_next_to_nothing_are_shared_out_by_their_number() -> None:
    assert weights({"a": SplitLoad(100.0), "b": SplitLoad(0.0)}) == {}


@pytest.mark.parametrize("seed", range(50))
def test_rounds_come_to_rest_and_never_make_the_greatest_load_greater(seed: int) -> None:
    chance = random.Random(seed)
    weight = {f"p{n}": MB * chance.choice([0.1, 1, 1, 3, 30]) for n in range(chance.randint(1, 40))}
    owned: dict[int, list[str]] = {reader: [] for reader in range(chance.randint(1, 8))}
    for name in weight:
        owned[chance.choice(sorted(owned))].append(name)
    for _ in range(12):
        after = moved(owned, weight)
        assert sorted(name for names in after.values() for name in names) == sorted(weight)
        greatest = [max(sum(weight[n] for n in names) for names in each.values()) for each in (owned, after)]
        assert greatest[1] <= greatest[0]
        if after == {reader: sorted(names) for reader, names in owned.items()}:
            return
        owned = after
    raise AssertionError(f"they move for ever: {owned}")


def test_a_burst_moves_nothing() -> None:
    look = LoadPoll()
    assert look.lasting({1}, polls=True) == set()
    assert look.lasting({2}, polls=True) == set()
    assert look.lasting({2, 3}, polls=True) == {2}
    assert look.lasting({7}, polls=False) == {7}


@pytest.mark.parametrize("seals_of_a_look", [1, 10, 300])
def test_loads_are_looked_at_as_often_however_often_epochs_are_sealed(seals_of_a_look: int) -> None:
    look = LoadPoll()
    seals_s = [number * POLL_EVERY_S / seals_of_a_look for number in range(30 * seals_of_a_look + 1)]
    assert sum(look.is_due(seal_s) for seal_s in seals_s) == 30


def test_rates_are_those_of_the_last_window_and_a_backlog_is_told_in_bytes() -> None:
    now_s = 0.0
    rates = SplitRates(lambda: now_s)
    rates.fetched("a", size=1000, records=10)
    assert rates.loads({"a": 5}) == {"a": SplitLoad(0.0)}
    assert rates.loads({"a": 4}) is None, "they are told once per window"
    now_s = WINDOW_S
    assert rates.loads({"a": 5, "b": None}) == {"a": SplitLoad(200.0, 500.0), "b": SplitLoad(0.0)}
    assert rates.loads({"a": 5}) == {"a": SplitLoad(200.0, 500.0)}, "another has b"
    now_s = 2 * WINDOW_S
    assert rates.loads({"a": 5}) == {"a": SplitLoad(0.0, 500.0)}
