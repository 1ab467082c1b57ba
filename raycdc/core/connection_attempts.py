"""How often this process tries to connect to one server that does not answer: twice a second, however many threads try.

| the server | then |
|---|---|
| answered a moment ago | whoever wants to connect does so at once |
| is not known to answer: nobody has tried for a moment, or the last try failed | one thread tries at a time, \
and no try begins sooner than half a second after the one before |
| … and fails that one thread in a passing way | those that waited for their turn have the same answer, and pause as \
it does (`raycdc.core.retry`) |

Every connection that we open ourselves is opened within `TRIES.at`. A driver that connects by itself, and tells before
it does, waits in `TRIES.space` for its time (`raycdc.clients.mongodb`); librdkafka has settings of its own.
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

#: A server that answered so short a time ago is not asked again whether it does.
FRESH_S = 0.25
#: A try that takes longer does not keep others from theirs: it waits for a server that accepts and says nothing.
TURN_S = 15.0


@dataclass(slots=True)
class _Server:
    """What is known of one server. Guarded by the lock of its `Tries`."""

    answered_s: float = float("-inf")
    #: When the next try may begin, and until when the one under way has the turn.
    next_s: float = float("-inf")
    turn_until_s: float = float("-inf")
    #: The failures so far, and the last of them.
    failures: int = 0
    failure: BaseException | None = None
    #: Set, and replaced, with each news.
    changed: threading.Event = field(default_factory=threading.Event)


class Tries:
    """See the module's docstring. Thread-safe; a child of a process begins anew."""

    def __init__(self, threads: Threads = THREADS) -> None:
        self._threads = threads
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}

    def __repr__(self) -> str:
        return f"Tries({list(self._servers)})"

    @contextmanager
    def at(self, address: str) -> Iterator[None]:
        """Connect to the server within the block, which an error of it calls a failure. Blocks until it is this
        thread's turn; raises the failure of another thread that had it meanwhile, if that may pass.
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
            # One that answers is not spared: who comes next waits for nothing.
            server.answered_s = server.next_s = self._threads.now_s()
            server.failure = None
            self._notify(server)

    def space(self, address: str) -> None:
        """Wait until this thread may try; nobody hears how it ends but by `answered`."""
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
        """The server let somebody in: others need not wait."""
        with self._lock:
            server = self._servers.setdefault(address, _Server())
            server.answered_s = server.next_s = self._threads.now_s()
            self._notify(server)

    def forget(self) -> None:
        """Begin anew, in a child of a process: it has none of the threads, and none of their turns."""
        self._lock = threading.Lock()
        self._servers = {}

    def _wait(self, server: _Server) -> float:
        """Return when this thread may try, with the time."""
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
        """The turn is over."""
        server.turn_until_s = float("-inf")
        server.changed.set()
        server.changed = threading.Event()


#: Of this process.
TRIES = Tries()
os.register_at_fork(after_in_child=TRIES.forget)
