"""Drivers of one state under random faults keep its promises, seed after seed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from raycdc.delivery.targets.parked_targets import ParkedTargets
from raycdc.errors import TargetBlockedError
from tests.support.simulation.drivers import DriverSettings, DriverSimulation

#: Seeds of an ordinary test run; ``RAYCDC_DRIVER_SEEDS`` asks for more (or ``FIRST-LAST`` for some).
SEEDS = 20
SEEDS_ON_A_STORE = 5
SEEDS_OF_COMMANDS = 5
#: Seeds in which a target is parked because it alone is locked.
BLOCKED = (0,)
_HISTORY = """
from tests.support.simulation.drivers import DriverSimulation
simulation = DriverSimulation(11)
simulation.run()
print(list(simulation.trace))
"""


def seeds() -> range:
    first, dash, last = os.environ.get("RAYCDC_DRIVER_SEEDS", str(SEEDS)).partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


def seeds_on_a_store() -> range:
    """Some in an ordinary run, all where more are asked for."""
    return seeds() if "RAYCDC_DRIVER_SEEDS" in os.environ else range(SEEDS_ON_A_STORE)


def seeds_of_commands() -> range:
    return seeds() if "RAYCDC_DRIVER_SEEDS" in os.environ else range(SEEDS_OF_COMMANDS)


@pytest.mark.parametrize("seed", seeds())
def test_the_targets_equal_the_source_whichever_driver_dies_where(seed: int) -> None:
    DriverSimulation(seed).run()


@pytest.mark.parametrize("seed", seeds_on_a_store())
def test_a_state_on_an_object_store_loses_nothing_to_replies_that_are_lost_and_requests_that_are_late(
    seed: int,
) -> None:
    settings = DriverSettings.of(random.Random(seed))
    DriverSimulation(seed, settings=replace(settings, on_store=True)).run()


@pytest.mark.parametrize("seed", seeds_on_a_store())
@pytest.mark.parametrize("on_store", [False, True], ids=["folder", "store"])
def test_manifests_that_are_changes_of_others_keep_the_promises_too(seed: int, *, on_store: bool) -> None:
    settings = DriverSettings.of(random.Random(seed))
    DriverSimulation(seed, settings=replace(settings, changes=True, on_store=on_store)).run()


@pytest.mark.parametrize("seed", seeds_of_commands())
@pytest.mark.parametrize("on_store", [False, True], ids=["folder", "store"])
def test_commands_to_a_driver_that_may_die_anywhere_are_carried_out_once_or_refused(
    seed: int, *, on_store: bool
) -> None:
    settings = DriverSettings.of(random.Random(seed))
    DriverSimulation(seed, settings=replace(settings, commands=0.02, on_store=on_store)).run()


@pytest.mark.parametrize("seed", seeds_of_commands())
@pytest.mark.parametrize("commands", [0.0, 0.02], ids=["", "commands"])
def test_drivers_that_hand_over_to_engines_keep_the_promises_whichever_dies_when(seed: int, commands: float) -> None:
    """Tables get columns and commands meanwhile, whatever the step of the hand-over is."""
    settings = DriverSettings.of(random.Random(seed))
    DriverSimulation(seed, settings=replace(settings, hands_over=True, commands=commands)).run()


@pytest.mark.parametrize("seed", seeds_on_a_store())
def test_a_target_that_somebody_keeps_locked_is_parked_and_holds_up_no_other_whoever_dies_when(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its commits that nobody heard of have landed."""
    parked: list[bool] = []
    real = ParkedTargets.park

    def park(self: ParkedTargets, *of: Any, **how: Any) -> None:
        parked.append(isinstance(of[3], TargetBlockedError))
        real(self, *of, **how)

    monkeypatch.setattr(ParkedTargets, "park", park)
    settings = DriverSettings.of(random.Random(seed))
    DriverSimulation(seed, settings=replace(settings, locks=0.004, tables=3)).run()
    assert any(parked) or seed not in BLOCKED


def test_the_same_seed_gives_the_same_history_in_any_process() -> None:
    histories = [
        subprocess.run(
            [sys.executable, "-c", _HISTORY],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert histories[0] == histories[1]
    assert "starts" in histories[0]
