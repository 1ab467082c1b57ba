"""Limits the connection attempts to an unreachable server to two per second, for all threads of the process.

| the server | effect |
|---|---|
| answered a moment ago | threads connect immediately |
| has not answered lately, or the last attempt failed | only one thread at a time connects, half a second after the \
previous attempt at the earliest |
| … and that attempt fails temporarily | threads that waited for their turn get the same error, and pause as the \
failed thread does (`raycdc.core.retry`) |

Code of raycdc opens every connection within `TRIES.at`. A client library that connects by itself, but calls a function
of raycdc first, waits in `TRIES.space` (`raycdc.clients.mongodb`). librdkafka limits its attempts by its own settings.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from raycdc.core.retry import SPACING_S
from raycdc.core.threads import THREADS, Threads
from raycdc.errors import RaycdcError

#: If a server answered less than this time ago, other threads connect without waiting.
FRESH_S = 0.25
#: An attempt that takes longer than this does not block other threads. Its server probably accepts connections but does
#: not answer.
TURN_S = 15.0


@dataclass(slots=True)
class _Server:
    """The state of one server. Guarded by the lock of its `Tries`."""

    answered_s: float = float("-inf")
    #: The time at which the next attempt may begin, and the time until which the present attempt excludes others.
    next_s: float = float("-inf")
    turn_until_s: float = float("-inf")
    #: The number of failures so far, and the last one.
    failures: int = 0
    failure: BaseException | None = None
    #: Set, and replaced by a new event, after each change.
    changed: threading.Event = field(default_factory=threading.Event)


class Tries:
    """Connection attempts by server; see the module's docstring. Thread-safe; a forked child starts empty."""

    def __init__(self, threads: Threads = THREADS) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}

    def __repr__(self) -> str:
        return f"Tries({list(self._servers)})"

    @contextmanager
    def at(self, address: str) -> Iterator[None]:
        """Let this thread connect to the server within the block; an error of the block counts as a failure.

        Blocks until it is this thread's turn. If another thread's attempt fails temporarily meanwhile, its error is
        raised.
        """
        with self._lock:
            server = self._servers.setdefault(address, _Server())
        began_s = self._wait(server)
        try:
            yield
        except BaseException as error:
            with self._lock:
                server.answered_s, server.failure = float("-inf"), error
                server.failures += 1
                server.next_s = max(server.next_s, began_s + SPACING_S)
                self._notify(server)
            raise
        with self._lock:
            # A server that answers is not limited: the next thread need not wait.
            server.answered_s = server.next_s = self._threads.now_s()
            server.failure = None
            self._notify(server)

    def space(self, address: str) -> None:
        """Wait until this thread may try to connect. Only `answered` reports the result."""
        with self._lock:
            server = self._servers.setdefault(address, _Server())
            may_s = max(server.next_s, self._threads.now_s())
            server.next_s = may_s + SPACING_S
        while True:
            with self._lock:
                now_s = self._threads.now_s()
                if now_s < server.answered_s + FRESH_S or now_s >= may_s:
                    return
                changed = server.changed
            self._threads.wait(changed, may_s - now_s)

    def answered(self, address: str) -> None:
        """Report that the server accepted a connection, so that others need not wait."""
        with self._lock:
            server = self._servers.setdefault(address, _Server())
            server.answered_s = server.next_s = self._threads.now_s()
            self._notify(server)

    def forget(self) -> None:
        """Start empty in a forked child, which has none of the parent's threads."""
        self._lock = threading.Lock()
        self._servers = {}

    def _wait(self, server: _Server) -> float:
        """Wait until this thread may try, and return the time."""
        with self._lock:
            seen = server.failures
        while True:
            with self._lock:
                now_s = self._threads.now_s()
                if now_s < server.answered_s + FRESH_S:
                    return now_s
                failure = server.failure
                if server.failures != seen and isinstance(failure, RaycdcError) and failure.retryable:
                    raise type(failure)(str(failure)) from failure
                may_s = max(server.next_s, server.turn_until_s)
                if may_s <= now_s:
                    server.next_s, server.turn_until_s = now_s + SPACING_S, now_s + TURN_S
                    return now_s
                changed = server.changed
            self._threads.wait(changed, may_s - now_s)

    def _notify(self, server: _Server) -> None:
        """End the turn of the present attempt, and wake the waiting threads."""
        server.turn_until_s = float("-inf")
        server.changed.set()
        server.changed = threading.Event()


#: The attempts of this process.
TRIES = Tries()
os.register_at_fork(after_in_child=TRIES.forget)
