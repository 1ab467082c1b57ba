"""Whether a simulation without one of its rules breaks a promise within so many runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raycdc.testing.simulation import Settings, Simulation, SimulationError

#: Runs after which a rule counts as not needed. Most are missed at once, the rarest in one run of ten.
SEEDS_MAX = 120

#: Turns a rule off.
Switch = Callable[[pytest.MonkeyPatch], None]


def name_of(value: object) -> str:
    """What the switch does, as its name says; nothing for other parameters of a test."""
    return str(getattr(value, "__name__", ""))


def is_noticed(circumstances: Settings, first: int) -> bool:
    """Whether one of the runs from seed `first` on fails."""
    for seed in range(first, first + SEEDS_MAX):
        try:
            Simulation(seed, settings=circumstances).run()
        except SimulationError:
            return True
    return False
