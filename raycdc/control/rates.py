"""How fast a count grows, in the memory of three numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: What was longer ago than about this hardly counts.
MEMORY_S = 10.0
#: Rows come in epochs: between two of them nothing happens, and nothing is slow.
STEP_S = 1.0
FADES_AFTER_S = 5.0


@dataclass(slots=True)
class Speed:
    """An average of the last seconds. `count` may begin anew, which is no growth. Not thread-safe."""

    at_s: float
    count: float
    per_s: float | None = None

    def saw(self, count: float, *, now_s: float) -> None:
        """`count` is the newest; nothing before `STEP_S` has passed."""
        passed = now_s - self.at_s
        if count < self.count:
            self.at_s, self.count = now_s, count
            return
        if passed < STEP_S:
            return
        rate, weight = (count - self.count) / passed, 1 - math.exp(-passed / MEMORY_S)
        self.per_s = rate if self.per_s is None else self.per_s + weight * (rate - self.per_s)
        self.at_s, self.count = now_s, count

    def now(self, now_s: float) -> float | None:
        """Per second, lately; None while too little is known. It fades while nothing grows."""
        if self.per_s is None:
            return None
        idle = now_s - self.at_s
        faded = self.per_s * math.exp(-max(0.0, idle - FADES_AFTER_S) / (MEMORY_S / 4))
        return faded if faded >= 0.05 else 0.0
