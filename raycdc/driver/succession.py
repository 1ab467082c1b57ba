"""One driver at a time: it takes the state, or waits for it (``raycdc run --standby``), and keeps it to its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from raycdc.checkpoint.folder import Lease
from raycdc.checkpoint.pulse import LOOK_S, SILENT_S, Pulse, Vacancy, Watch
from raycdc.checkpoint.store import CheckpointStore
from raycdc.checkpoint.term import DriverTerm
from raycdc.errors import FencedError, StateError
from raycdc.progress import ProgressReporter

#: How often one that waits looks whether it is to stop.
STOP_S = 0.2


class StoppedWaitingError(Exception):
    """The run was stopped before the state was free."""


class Tenure:
    """A driver's hold of its state, from its beginning to its end. `on_lost` may be called from another thread, once;
    whatever is added when it is lost already is called at once.
    """

    def __init__(self, store: CheckpointStore, term: DriverTerm, lease: Callable[[], Lease | None]) -> None:
        self.store = store
        self.term = term
        self._lock = threading.Lock()
        self._ends: list[Callable[[FencedError], None]] = []
        self._lost: FencedError | None = None
        self._pulse = Pulse(
            store.generations, term.generation, lease=lease, on_lost=self._end, lock=store.lock.identity
        )

    def __repr__(self) -> str:
        return f"Tenure({self.term}, {self._pulse})"

    def on_lost(self, end: Callable[[FencedError], None]) -> None:
        """Call `end` when another driver has taken over, so that nothing waits any more."""
        with self._lock:
            self._ends.append(end)
            lost = self._lost
        if lost is not None:
            end(lost)

    def require_held(self) -> None:
        """`FencedError` where another driver took over."""
        self._pulse.require_held()

    def close(self) -> None:
        """Leave the state to others."""
        self._pulse.close()

    def _end(self, lost: FencedError) -> None:
        with self._lock:
            self._lost, ends = lost, list(self._ends)
        for end in ends:
            end(lost)


def take(
    stack: ExitStack,
    store: CheckpointStore,
    reporter: ProgressReporter,
    *,
    standby: bool,
    stopped: Callable[[], bool],
) -> Tenure:
    """The state of `store` until `stack` ends. `StateError` where another process has it, unless this one is a
    `standby`. `StoppedWaitingError` where it is to stop before it is known that the state is free.
    """
    if not standby:
        lease = store.lease(_Pause(store, reporter, stopped, at_most_s=SILENT_S))
        stack.callback(lease.release)
        tenure = Tenure(store, DriverTerm(store), lambda: lease)
    else:
        tenure = Tenure(store, _waited(store, reporter, stopped), partial(lease_if_free, store))
    stack.callback(tenure.close)
    return tenure


def lease_if_free(store: CheckpointStore) -> Lease | None:
    """The state's lock, or None where another process has it."""
    with suppress(StateError):
        return store.lock.take()
    return None


class _Pause:
    """The time between two looks at a state that another driver has, or may have. That one is told of once."""

    def __init__(
        self,
        store: CheckpointStore,
        reporter: ProgressReporter,
        stopped: Callable[[], bool],
        *,
        at_most_s: float | None = None,
    ) -> None:
        self._where = str(store.place)
        self._reporter = reporter
        self._stopped = stopped
        self._at_most_s = at_most_s
        self.told = ""

    def __call__(self, holder: str) -> None:
        """Blocks for `LOOK_S`. `StoppedWaitingError` where the run is to stop."""
        if holder != self.told:
            self.told = holder
            self._reporter.waiting(holder, self._where, at_most_s=self._at_most_s)
        for _ in range(round(LOOK_S / STOP_S)):
            if self._stopped():
                raise StoppedWaitingError
            time.sleep(STOP_S)


def _waited(store: CheckpointStore, reporter: ProgressReporter, stopped: Callable[[], bool]) -> DriverTerm:
    """A term that began when nobody else had the state any more."""
    watch = Watch(store.generations, store.lock.holder, lock=store.lock.identity)
    pause = _Pause(store, reporter, stopped)
    while True:
        found = watch.look()
        if not isinstance(found, Vacancy):
            pause(found)
        elif (own := store.generations.take_over(found.after)) is not None:
            if pause.told:
                reporter.took_over(found.why, own)
            return DriverTerm(store, own)
        else:
            # Another one that waited was faster, and is found by the next look.
            pause(pause.told)
