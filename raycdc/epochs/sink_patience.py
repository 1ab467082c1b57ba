"""Patience with a sink that is away, has a lock for somebody else, or has a full disk: waiting loses nothing, and no
table is to blame.

The same for every sink: it says with `SinkUnavailableError`, or with the system's error of a disk, that the same may
succeed later. Its verbs are asked again, from the beginning of their transaction, with pauses that grow; a commit whose
outcome nobody heard is found in the target's record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from raycdc.epochs.parked_targets import Waiting
from raycdc.errors import RaycdcError, SinkError, SinkUnavailableError, StateError, TableRefusedError
from raycdc.sinks.absence import is_absent
from raycdc.threads import Threads

#: How long the sink is waited for, as for a source or the state's disk; first and last pause.
PATIENCE_S = 300.0
PAUSE_S = 0.25
PAUSE_MAX_S = 10.0

T = TypeVar("T")


class SinkPatience:
    """See the module's docstring. `stopping` ends the waiting. For any thread."""

    def __init__(self, waiting: Waiting, stopping: threading.Event, threads: Threads) -> None:
        self._waiting = waiting
        self._stopping = stopping
        self._threads = threads

    def __call__(self, act: Callable[[], T]) -> T:
        """The result of `act`, which can be done again: it is tried again while the sink is away or its disk full.
        `SinkError` with its place when that takes too long.
        """
        started, pause_s = self._threads.now_s(), PAUSE_S
        while True:
            try:
                return act()
            except (OSError, RaycdcError) as cause:
                trouble, advice = self._trouble(cause)
                if not trouble:
                    raise
                if self._threads.now_s() - started > PATIENCE_S or self._stopping.is_set():
                    raise SinkError(
                        f"{trouble}. {advice[0].upper()}{advice[1:]}, and start again; nothing is lost."
                    ) from cause
                if pause_s == PAUSE_S:
                    self._waiting.tell(f"{trouble}. It is tried again for {PATIENCE_S / 60:.0f} minutes; {advice}.")
            self._threads.wait(self._stopping, pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _trouble(self, cause: Exception) -> tuple[str, str]:
        """The trouble that waiting may end, and what people can do; empty where it is another one."""
        if isinstance(cause, SinkUnavailableError):
            return f"The sink is waited for: {str(cause).rstrip('.')}", "see that it answers"
        if isinstance(cause, StateError | TableRefusedError) or not is_absent(cause):
            return "", ""
        at = f" ({self._waiting.place})" if self._waiting.place else ""
        return f"The sink's disk{at} takes no more: {cause}", "make room there, or bring it back"
