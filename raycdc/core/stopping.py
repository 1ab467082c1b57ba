"""The request to stop a run, which ends every wait of the run.

A run waits in many places: for a server that does not answer, a full disk, a node, a lock. Each wait is a wait for a
`StopRequest`. Use `StopRequest.pause` for it, or pass the request to `raycdc.core.retry.Retrier`. Nothing ends
`time.sleep`, or a wait for an event that no other code knows; `tests/unit/core/test_stopping.py` lists the short ones
that exist.
"""

from __future__ import annotations

import threading

from raycdc.core.threads import THREADS, Threads


class StoppedWaitingError(Exception):
    """Raised if a run was asked to stop while it waited. Nothing sealed is lost, and the run counts as successful."""


class StopRequest(threading.Event):
    """An event that ends waits when it is set. `asked` is True if somebody asked the run to stop; otherwise the waits
    end for another reason, for example because an error has ended the run.

    Thread-safe.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked = False
        self._guard = threading.Lock()
        self._parts: list[StopRequest] = []

    def ask(self) -> None:
        """Request the stop, and end all waits, including those of every `part`."""
        with self._guard:
            self.asked = True
            parts = list(self._parts)
        self.set()
        for part in parts:
            part.ask()

    def part(self) -> StopRequest:
        """Return a request that is made together with this one, and that can also be set by itself."""
        part = StopRequest()
        with self._guard:
            self._parts.append(part)
            asked = self.asked
        if asked:
            part.ask()
        return part

    def clear(self) -> None:
        """Withdraw the request, for the next run. Its parts belong to the earlier run."""
        with self._guard:
            self.asked = False
            self._parts.clear()
        super().clear()

    def pause(self, seconds: float, threads: Threads = THREADS) -> bool:
        """Wait for at most `seconds`. Return True if the wait was ended for another reason than a stop.

        Raises `StoppedWaitingError` if a stop is requested.
        """
        ended = threads.wait(self, seconds)
        self.require_going()
        return ended

    def require_going(self, cause: BaseException | None = None) -> None:
        """Raise `StoppedWaitingError` if a stop is requested, because of `cause` for which the run would wait."""
        if self.asked:
            raise StoppedWaitingError from cause
