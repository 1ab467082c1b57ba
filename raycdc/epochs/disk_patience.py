"""Patience with a sink whose disk is full or away: nothing is lost by waiting, and no table is to blame."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from raycdc.epochs.parked_targets import Waiting
from raycdc.errors import RaycdcError, SinkError, StateError, TableRefusedError
from raycdc.sinks.absence import is_absent
from raycdc.threads import Threads

#: How long the disk is waited for, as for a source or the state's disk; first and last pause.
DISK_PATIENCE_S = 300.0
DISK_PAUSE_S = 0.25
DISK_PAUSE_MAX_S = 10.0

T = TypeVar("T")


class DiskPatience:
    """See the module's docstring. `stopping` ends the waiting. For any thread."""

    def __init__(self, waiting: Waiting, stopping: threading.Event, threads: Threads) -> None:
        self._waiting = waiting
        self._stopping = stopping
        self._threads = threads

    def __call__(self, act: Callable[[], T]) -> T:
        """The result of `act`, which can be done again: it is tried again while the sink's disk is full or away.
        `SinkError` with the disk's place when that takes too long.
        """
        started, pause_s = self._threads.now_s(), DISK_PAUSE_S
        while True:
            try:
                return act()
            except (OSError, RaycdcError) as cause:
                if isinstance(cause, StateError | TableRefusedError) or not is_absent(cause):
                    raise
                at = f" ({self._waiting.place})" if self._waiting.place else ""
                trouble = f"The sink's disk{at} takes no more: {cause}"
                if self._threads.now_s() - started > DISK_PATIENCE_S or self._stopping.is_set():
                    raise SinkError(
                        f"{trouble}. Make room there, or bring it back, and start again; nothing is lost."
                    ) from cause
                if pause_s == DISK_PAUSE_S:
                    minutes = f"{DISK_PATIENCE_S / 60:.0f} minutes"
                    self._waiting.tell(f"{trouble}. It is tried again for {minutes}; make room.")
            self._threads.wait(self._stopping, pause_s)
            pause_s = min(2 * pause_s, DISK_PAUSE_MAX_S)
