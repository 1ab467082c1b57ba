"""The clock, randomness and threads of a process, as a value that is passed to the code that needs them.

A simulation passes a value of its own. One seed then decides the time, every random choice, and the thread that runs
next. Code that gets this value must therefore use no other clock, source of randomness or thread. It waits for a thread
by the future that `pool` returns, and for time by `wait`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol


class Joinable(Protocol):
    """A call that runs concurrently with its caller."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the call, for at most `timeout` seconds."""


class Threads:
    """The real clock, randomness and threads of this process."""

    def now_s(self) -> float:
        """Return seconds of a clock that never goes back."""
        return time.monotonic()

    def chance(self) -> float:
        """Return an unpredictable number from 0 to 1."""
        return random.random()  # noqa: S311 - no secret

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set, for at most `timeout_s`; return True if it is set."""
        return event.wait(timeout_s)

    def pool(self, count: int, name: str) -> Executor:
        """Return a pool with this many threads, which end with the block."""
        return ThreadPoolExecutor(count, thread_name_prefix=f"raycdc-{name}")

    def start(self, call: Callable[[], None], name: str) -> Joinable:
        """Run `call` concurrently on a daemon thread, which does not keep the process alive."""
        thread = threading.Thread(target=call, name=name, daemon=True)
        thread.start()
        return thread


#: The real threads of this process, without a simulated order.
THREADS = Threads()
