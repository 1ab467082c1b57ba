"""A clock that a test turns. That of the simulation is `tests.support.simulation.network.SimulatedClock`."""

from __future__ import annotations

import threading

from raycdc.core.threads import Threads


class ManualClock(Threads):
    """Seconds that only a test moves on, and whoever waits; also a call that returns them."""

    def __init__(self, s: float = 0.0, *, chance: float = 0.0) -> None:
        self.s = s
        #: How long was waited, each time.
        self.pauses: list[float] = []
        self._chance = chance

    def __call__(self) -> float:
        return self.s

    def now_s(self) -> float:
        return self.s

    def chance(self) -> float:
        return self._chance

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.pauses.append(timeout_s)
        self.s += timeout_s
        return event.is_set()
