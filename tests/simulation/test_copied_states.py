"""Two states at once: a copied state and its original never lose a change, nor write one twice."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from raycdc.errors import FencedError
from raycdc.sinks import steps
from tests.support.simulation.drivers import DriverSettings
from tests.support.simulation.drivers.copies import CopiedStateSimulation
from tests.support.simulation.world import SimulationError

SEEDS = range(8)


def simulation(seed: int) -> CopiedStateSimulation:
    settings = replace(
        DriverSettings.of(random.Random(seed)), steps=800, power_failures=0.0, requests=0.0, refusals=0.0
    )
    return CopiedStateSimulation(seed, settings=settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_copied_state_and_its_original_lose_and_repeat_nothing_when_both_run(seed: int) -> None:
    simulation(seed).run()


def test_the_second_writer_is_refused_by_name() -> None:
    story = simulation(1)
    story.run()
    assert any(isinstance(error, FencedError) and "another copy of this state" in str(error) for error in story.refused)


@pytest.mark.parametrize("seed", [1, 23])
def test_without_digests_beside_the_numbers_a_change_is_lost_or_repeated(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "differs", lambda *_: False)
    with pytest.raises(SimulationError, match=r"does not follow the change before it|is inserted twice"):
        simulation(seed).run()
