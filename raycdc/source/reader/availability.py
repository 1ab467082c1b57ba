"""Whether a reader may have something to do, as a thing that a thread can wait for (FLIP-27's `isAvailable`)."""

from __future__ import annotations

import threading


class Availability:
    """Wakes one waiting thread; any thread may notify it. A notification before the wait ends the wait immediately.

    The waiting thread clears the notification (`begin`) *before* it reads queues and inboxes. A notification after that
    ends its next wait, so no polling is needed.
    """

    def __init__(self) -> None:
        self._available = threading.Event()
        self._due_s: float | None = None

    def __repr__(self) -> str:
        return f"Availability({self._available.is_set()}, due_s={self._due_s})"

    @property
    def due_s(self) -> float | None:
        """The earliest time that `at` named since `begin`."""
        return self._due_s

    def notify(self) -> None:
        """There is news. Callable from any thread; never blocks."""
        self._available.set()

    def at(self, due_s: float) -> None:
        """The passing of time will be news at `due_s`, a monotonic time. Called by the waiting thread."""
        self._due_s = due_s if self._due_s is None else min(self._due_s, due_s)

    def begin(self) -> None:
        """The waiting thread is about to look at everything."""
        self._available.clear()
        self._due_s = None

    def wait(self, *, now_s: float, until_s: float) -> bool:
        """Block until notified, or until a time given to `at`, or until `until_s`. Returns True if notified."""
        due_s = until_s if self._due_s is None else min(self._due_s, until_s)
        return self._available.wait(max(0.0, due_s - now_s))
