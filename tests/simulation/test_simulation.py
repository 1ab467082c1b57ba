"""A whole job under random faults keeps its promises, seed after seed."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from tests.support.simulation import Settings, Simulation, TableKind, Visibility

#: Seeds of an ordinary test run, which are the same each time; ``RAYCDC_SIM_SEEDS`` asks for more of each kind (or
#: ``FIRST-LAST`` for some), as the suite ``simulation`` does. The tests beside this one say what a run notices.
SEEDS = 30
FAILOVER_SEEDS = LOSS_SEEDS = AS_OF_SEEDS = LOCK_SEEDS = 10


def seeds(ordinary: int) -> range:
    first, dash, last = os.environ.get("RAYCDC_SIM_SEEDS", str(ordinary)).partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_the_sinks_equal_the_source_whatever_fails(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.parametrize("seed", seeds(FAILOVER_SEEDS))
def test_another_server_takes_over_unnoticed(seed: int) -> None:
    drawn = Settings.of(random.Random(seed), 1500)
    visibility = Visibility.SNAPSHOT if drawn.visibility is Visibility.SNAPSHOT else Visibility.WAIT  # Both have GTIDs.
    Simulation(seed, settings=replace(drawn, visibility=visibility, failovers=0.004)).run()


@pytest.mark.parametrize("seed", seeds(LOSS_SEEDS))
def test_rows_lost_between_the_commits_of_two_tables_are_made_up_for(seed: int) -> None:
    drawn = Settings.of(random.Random(seed), 1500)
    Simulation(seed, settings=replace(drawn, crashes=0.015, half_commits=0.5, losses=1.0)).run()


@pytest.mark.parametrize("seed", seeds(AS_OF_SEEDS))
def test_tables_that_nothing_immutable_cuts_are_read_as_of_one_place(seed: int) -> None:
    drawn = Settings.of(random.Random(seed), 1500)
    kinds = (TableKind.AS_OF, random.Random(seed).choice(list(TableKind)), TableKind.AS_OF)
    Simulation(seed, settings=replace(drawn, kinds=kinds, truncations=0.0)).run()


@pytest.mark.parametrize("seed", seeds(LOCK_SEEDS))
def test_tables_that_somebody_locks_hold_up_no_other(seed: int) -> None:
    drawn = Settings.of(random.Random(seed), 1500)
    Simulation(seed, settings=replace(drawn, readers=random.Random(seed).choice([1, 2]), locks=0.05)).run()


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = Simulation(7), Simulation(7)
    first.run()
    second.run()
    assert list(first.trace) == list(second.trace)
