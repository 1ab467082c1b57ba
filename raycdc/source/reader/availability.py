"""Whether a reader may have something to do, as a thing that a thread can wait for (FLIP-27's `isAvailable`)."""

from __future__ import annotations

import threading


class Availability:
    """One thread waits, any thread says that there is news. Nothing is lost: news before the wait end it at once.

    The waiting thread takes the news (`begin`) *before* it looks at queues and inboxes. News that arrive behind its
    look are news for the wait that follows, so that nobody has to look again after an interval.
    """

    def __init__(self) -> None:
        self._news = threading.Event()
        self._due_s: float | None = None

    def __repr__(self) -> str:
        return f"Availability({self._news.is_set()}, due_s={self._due_s})"

    @property
    def due_s(self) -> float | None:
        """The earliest time that `at` named since `begin`."""
        return self._due_s

    def notify(self) -> None:
        """There is news. Callable from any thread; never blocks."""
        self._news.set()

    def at(self, due_s: float) -> None:
        """The passing of time will be news at `due_s`, a monotonic time. Called by the waiting thread."""
        self._due_s = due_s if self._due_s is None else min(self._due_s, due_s)

    def begin(self) -> None:
        """The waiting thread is about to look at everything."""
        self._news.clear()
        self._due_s = None

    def wait(self, *, now_s: float, until_s: float) -> bool:
        """Block until there is news, or a time that `at` named, or `until_s`. Whether there is news."""
        due_s = until_s if self._due_s is None else min(self._due_s, until_s)
        return self._news.wait(max(0.0, due_s - now_s))
