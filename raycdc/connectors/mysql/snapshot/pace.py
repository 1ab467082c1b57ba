"""Holding a chunk reader back, so that a snapshot leaves the source room for its own work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from raycdc.waiting.stages import resting


class ConnectionPace:
    """At most `rows_per_s` on average. `passed` waits; `end` may come from another thread, and ends all waiting.

    Unused time is not saved up: after a pause it goes on at the same pace. A batch is waited for after it was
    read, so the server meanwhile waits for us to take more of the result, and does nothing.
    """

    def __init__(self, rows_per_s: float, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._rows_per_s = rows_per_s
        self._now_s = now_s
        self._free_at_s = 0.0
        self._ended = threading.Event()

    def passed(self, rows: int) -> float:
        """Count `rows`, and wait until their time is over. Returns the seconds that were waited."""
        now = self._now_s()
        self._free_at_s = max(self._free_at_s, now) + rows / self._rows_per_s
        waiting = self._free_at_s - now
        with resting():
            self._ended.wait(waiting)
        return waiting

    def end(self) -> None:
        """Wait no more."""
        self._ended.set()
