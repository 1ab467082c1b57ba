"""Whether a simulation without one of its rules breaks a promise within so many runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from raycdc.errors import RaycdcError
from tests.support.simulation import Settings, Simulation, SimulationError
from tests.support.simulation.chunk_source import SimChunkSource

#: Runs after which a rule counts as not needed. Most are missed at once, the rarest in one run of ten.
SEEDS_MAX = 120

#: How a run that has no fault in its promises may end where a rule is missing: an assertion of the model or of the
#: product, an error that the product has a name for, a segment that was deleted while somebody needed it, and rows of
#: two schemas in one chunk. Whatever else is raised is an accident of the switch, which says nothing about the rule.
NOTICED = (AssertionError, RaycdcError, FileNotFoundError, pa.ArrowInvalid)

#: Turns a rule off.
Switch = Callable[[pytest.MonkeyPatch], None]


def select_at_once(patch: pytest.MonkeyPatch) -> None:
    """No SELECT of a chunk waits until it sees what it must see."""
    real = SimChunkSource.__init__

    def init(self: SimChunkSource, *values: Any) -> None:
        real(self, *values)
        self.waits = False

    patch.setattr(SimChunkSource, "__init__", init)


def name_of(value: object) -> str:
    """What the switch does, as its name says; nothing for other parameters of a test."""
    return str(getattr(value, "__name__", ""))


def is_noticed(circumstances: Settings, first: int) -> bool:
    """Whether one of the runs from seed `first` on breaks a promise, or is refused by name."""
    for seed in range(first, first + SEEDS_MAX):
        try:
            Simulation(seed, settings=circumstances).run()
        except SimulationError as error:
            if error.__cause__ is None or isinstance(error.__cause__, NOTICED):
                return True
    return False


def require_noticed(switch: Switch, circumstances: Settings, first: int, patch: pytest.MonkeyPatch) -> None:
    """An `AssertionError` if all runs are right although the rule is switched off."""
    switch(patch)
    assert is_noticed(circumstances, first), f"{SEEDS_MAX} runs passed although the job would {name_of(switch)}"
