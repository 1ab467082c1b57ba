"""A clock that a test advances. The simulation has its own: `tests.support.simulation.network.SimulatedClock`."""

from __future__ import annotations

import threading

from raycdc.core.threads import Threads


class ManualClock(Threads):
    """A monotonic clock, in seconds, that only a test and waiting threads advance; calling it returns the time."""

    def __init__(self, s: float = 0.0, *, chance: float = 0.0) -> None:
        self.s = s
        #: The length of each wait.
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
