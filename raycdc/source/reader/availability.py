"""A condition that says if a reader may have work, for a thread to wait on (FLIP-27's `isAvailable`)."""

from __future__ import annotations

import threading


class Availability:
    """Wakes one waiting thread.

    Any thread may call `notify`. A notification before the wait ends the wait immediately.

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
        """Return the earliest time that was passed to `at` since `begin`."""
        return self._due_s

    def notify(self) -> None:
        """Wake the waiting thread, because there is work. Callable from any thread; never blocks."""
        self._available.set()

    def at(self, due_s: float) -> None:
        """Let the wait end at the monotonic time `due_s`. Called by the waiting thread."""
        self._due_s = due_s if self._due_s is None else min(self._due_s, due_s)

    def begin(self) -> None:
        """Clear the notification; the waiting thread then checks all its queues and inboxes."""
        self._available.clear()
        self._due_s = None

    def wait(self, *, now_s: float, until_s: float) -> bool:
        """Block until notified, or until a time given to `at`, or until `until_s`. Returns True if notified."""
        due_s = until_s if self._due_s is None else min(self._due_s, until_s)
        return self._available.wait(max(0.0, due_s - now_s))
