"""The clock, the chance and the threads of a process, as a value that is handed in.

A simulation hands in others, so that one seed decides the time, every random choice, and which thread runs next. For
that, code that got this value takes no other clock, chance or thread: it waits for a thread by the future that `pool`
gives, and for time by `wait`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol


class Joinable(Protocol):
    """A call that runs beside its caller."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, for so many seconds at most."""


class Threads:
    """Those of this process."""

    def now_s(self) -> float:
        """Seconds that only ever grow."""
        return time.monotonic()

    def chance(self) -> float:
        """A number from 0 to 1, which nobody can foresee."""
        return random.random()  # noqa: S311 - no secret

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set, for so long at most; whether it is."""
        return event.wait(timeout_s)

    def pool(self, count: int, name: str) -> Executor:
        """As many threads, which end with the block."""
        return ThreadPoolExecutor(count, thread_name_prefix=f"raycdc-{name}")

    def start(self, call: Callable[[], None], name: str) -> Joinable:
        """Run `call` beside the caller; it does not keep the process from ending."""
        thread = threading.Thread(target=call, name=name, daemon=True)
        thread.start()
        return thread


#: Those of this process, which nobody has to order.
THREADS = Threads()
