"""Tells people that an object store does not answer the driver, since when and until when it is asked again, and when
it answers again. One look a second; nothing depends on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raycdc.stores.silence import SILENCES, Silences
from raycdc.threads import THREADS, Threads

LOOK_S = 1.0


@contextmanager
def watching_stores(
    tell: Callable[[str], None], *, silences: Silences = SILENCES, threads: Threads = THREADS
) -> Iterator[None]:
    """Look while the block runs. `tell` is called by a thread of its own."""
    ended = threading.Event()

    def watch() -> None:
        while not threads.wait(ended, LOOK_S):
            for text in silences.look(_time_of_day):
                tell(text)

    thread = threads.start(watch, "stores")
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)


def _time_of_day(from_now_s: float) -> str:
    """Of this machine's zone, as people read it on the screen."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + from_now_s))
