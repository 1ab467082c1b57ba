"""Watches for object stores that do not answer this process.

A store's client repeats requests at growing intervals and reports nothing meanwhile (`raycdc.storage.object_store`): a
run whose store became unreachable would wait for minutes without a message. The beginning and end of each request is
therefore noted here, and `Silences.poll` returns the messages to show. Large requests (a copy of a segment), which may
take long, are not noted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from raycdc.core.threads import THREADS, Threads

#: A store without an answer for this long is reported. Documents are small, and a busy store answers within a second.
SILENT_S = 5.0
#: The interval at which `watching_stores` checks.
POLL_S = 1.0


@dataclass(slots=True)
class _Store:
    """The requests to one store.

    `asking` is the number of unanswered requests. `since_s` is the start of the oldest of these, None if there is none.
    `until_s` is the deadline of the newest. The reported values are those of the last message.
    """

    asking: int = 0
    since_s: float | None = None
    until_s: float = 0.0
    reported_since_s: float | None = None
    reported_until_s: float = 0.0


class Silences:
    """The stores that do not answer; see the module's docstring. Its methods may be called by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def __repr__(self) -> str:
        return f"Silences({self._stores})"

    def forget(self) -> None:
        """Forget all requests. Called in a forked child, which does not wait for any of them."""
        self._lock = threading.Lock()
        self._stores: dict[str, _Store] = {}

    @contextmanager
    def asking(self, store: str, *, tries_for_s: float, is_answer: Callable[[BaseException], bool]) -> Iterator[None]:
        """Track a request to the store with the URL `store` during the block.

        The store has answered if the block succeeds, or fails with an error for which `is_answer` returns True. After
        any other error, the store counts as silent since the request began, until it answers a later request.
        """
        now_s = self._clock()
        with self._lock:
            one = self._stores.setdefault(store, _Store())
            one.asking, one.until_s = one.asking + 1, now_s + tries_for_s
            if one.since_s is None:
                one.since_s = now_s
        try:
            yield
        except BaseException as error:
            self._ended(one, answered=is_answer(error))
            raise
        self._ended(one, answered=True)

    def poll(self, time_of_day: Callable[[float], str]) -> list[str]:
        """Return the messages to report now, each once.

        `time_of_day` gets a number of seconds from now, and formats the time of day then.
        """
        said = []
        now_s = self._clock()
        with self._lock:
            for name, one in self._stores.items():
                reported_s, since_s = one.reported_since_s, one.since_s
                if reported_s is not None and (since_s is None or since_s > reported_s):
                    said.append(f"{name} answers again, after {now_s - reported_s:.0f} s.")
                    reported_s = one.reported_since_s = None
                if (
                    since_s is None
                    or now_s - since_s < SILENT_S
                    or (reported_s is not None and now_s < one.reported_until_s)
                ):
                    continue
                if one.until_s > now_s:
                    one.reported_since_s, one.reported_until_s = since_s, one.until_s
                    since, until = time_of_day(since_s - now_s), time_of_day(one.until_s - now_s)
                    said.append(
                        f"{name} has not answered since {since}, for {now_s - since_s:.0f} s. It is asked again until "
                        f"{until}. See that it can be reached, and that it takes requests; nothing is lost."
                    )
        return said

    def _ended(self, one: _Store, *, answered: bool) -> None:
        with self._lock:
            one.asking -= 1
            if answered:
                one.since_s = self._clock() if one.asking else None


#: The instance of this process.
SILENCES = Silences()
os.register_at_fork(after_in_child=SILENCES.forget)


@contextmanager
def watching_stores(
    notify: Callable[[str], None], *, silences: Silences = SILENCES, threads: Threads = THREADS
) -> Iterator[None]:
    """Report stores that do not answer, during the block: when one is silent, until when its requests are repeated, and
    when it answers again.

    A thread calls `notify` with each message.
    """
    ended = threading.Event()

    def watch() -> None:
        while not threads.wait(ended, POLL_S):
            for text in silences.poll(_time_of_day):
                notify(text)

    thread = threads.start(watch, "stores")
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)


def _time_of_day(from_now_s: float) -> str:
    """Return the time of day in the local time zone, for messages on the screen."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + from_now_s))
