"""Blocking work of an enumerator: made off the coordinator's lock, with its result handled under it.

A call is tried again while the source cannot be reached (`raycdc.waiting.patience`). Any other error ends the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from raycdc.runtime.restarts import source_away
from raycdc.waiting.patience import Patience
from raycdc.waiting.stages import Board, Stage


class BackgroundCalls:
    """A small pool of threads. `run` gets each handler, `fail` each error; both are called with the `lock` held."""

    def __init__(
        self,
        lock: threading.Condition,
        *,
        run: Callable[[Callable[[], None]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._lock = lock
        self._run, self._fail = run, fail
        # One plans, one may be about tables that are locked, and one is left for whatever is short.
        self._pool = ThreadPoolExecutor(max_workers=3, thread_name_prefix="enumerator")
        self._closing = threading.Event()
        #: Questions that are under way.
        self.board = Board()
        self._patience = Patience(tell=self._tell, stopping=self._closing)
        self._later: list[tuple[float, Callable[[], None]]] = []
        #: How often a question to the source had to be asked again, and why last.
        self.troubles = 0
        self.trouble = ""

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], after_s: float) -> None:
        """`raycdc.source.protocol.acknowledging.CallAsync`; called with the lock held."""
        if after_s > 0:
            self._later.append((time.monotonic() + after_s, partial(self.call_async, call, handler, 0.0)))
            return

        def work() -> None:
            try:
                with self.board.doing(Stage.ASK, "waits for the source's answer to a question"):
                    result = self._patience(call, source_away)
            except BaseException as error:  # noqa: BLE001 - ends the job, told to every caller
                with self._lock:
                    self._fail(error)
                return
            with self._lock:
                self._run(lambda: handler(result))

        self._pool.submit(work)

    def make_what_is_due(self) -> None:
        """Make the calls that were put off until now; called with the lock held."""
        now_s = time.monotonic()
        due = [call for at_s, call in self._later if at_s <= now_s]
        self._later = [entry for entry in self._later if entry[0] > now_s]
        for call in due:
            call()

    def close(self) -> None:
        """Calls under way end when they end; nobody waits for them."""
        self._closing.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _tell(self, text: str) -> None:
        """The source is waited for; whoever asks for the status hears of it."""
        with self._lock:
            self.troubles += 1
            self.trouble = text
