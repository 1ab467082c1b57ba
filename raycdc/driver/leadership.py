"""One driver at a time: it takes the state, or waits for it (``raycdc run --standby``), and keeps it to its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from raycdc.core.retry import Outage, Retrier
from raycdc.errors import FencedError, StateError
from raycdc.observe.events import TookOver
from raycdc.observe.status.progress import ProgressReporter
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.drivers.heartbeat import LOOK_S, SILENT_S, DriverHeartbeat, DriverWatch, Vacancy
from raycdc.state.drivers.holder import ControlEndpoint, Holder, RunEnd
from raycdc.state.files.folder import Lease
from raycdc.state.store import CheckpointStore
from raycdc.storage.api import StoreError


class StoppedWaitingError(Exception):
    """The run was stopped before the state was free."""


class Leadership:
    """A driver's hold of its state, from its beginning to its end. `on_lost` may be called from another thread, once;
    whatever is added when it is lost already is called at once.
    """

    def __init__(
        self,
        store: CheckpointStore,
        term: DriverGeneration,
        lease: Callable[[], Lease | None],
        before: Holder | TookOver | None = None,
    ) -> None:
        """`before` is who had the state before, as it was when this driver began; or how it was taken over."""
        self.store = store
        self.term = term
        self.before = before
        self._lock = threading.Lock()
        self._ends: list[Callable[[FencedError], None]] = []
        self._lost: FencedError | None = None
        self._run_end: RunEnd | None = None
        self._pulse = DriverHeartbeat(
            store.generations, term.generation, lease=lease, on_lost=self._end, lock=store.lock.file
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

    def announce(self, door: ControlEndpoint) -> None:
        """Have the next sign of life say where this run can be asked."""
        self._pulse.door = door

    def ends(self, end: RunEnd) -> None:
        """Have the last sign of life say how the run ended."""
        self._run_end = end

    def close(self) -> None:
        """Leave the state to others."""
        self._pulse.close(self._run_end)

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
    stopping: threading.Event,
) -> Leadership:
    """The state of `store` until `stack` ends. `StateError` where another process has it, unless this one is a
    `standby`. `StoppedWaitingError` where it is to stop before it is known that the state is free.
    """
    if not standby:
        lease = store.lease(_Pause(store, reporter, stopping, at_most_s=SILENT_S))
        stack.callback(lease.release)
        last = None
        # Only words hang on it: what a start needs of the state it reads itself, and complains of.
        with suppress(StateError):
            last = _newest_holder(store)
        tenure = Leadership(store, DriverGeneration(store), lambda: lease, last)
    else:
        term, before = _waited(store, reporter, stopping)
        tenure = Leadership(store, term, partial(lease_if_free, store), before)
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
        stopping: threading.Event,
        *,
        at_most_s: float | None = None,
    ) -> None:
        self._where = str(store.place)
        self._reporter = reporter
        self._stopping = stopping
        self._at_most_s = at_most_s
        self.told = ""

    def __call__(self, holder: str) -> None:
        """Blocks for `LOOK_S`. `StoppedWaitingError` where the run is to stop."""
        if holder != self.told:
            self.told = holder
            self._reporter.waiting(holder, self._where, at_most_s=self._at_most_s)
        if self._stopping.wait(LOOK_S):
            raise StoppedWaitingError


class _Standby:
    """Looks at a state that another driver has, until it can be taken."""

    def __init__(self, store: CheckpointStore, stopping: threading.Event) -> None:
        self._store = store
        self._stopping = stopping
        self._watch = self._begun()

    def look(self) -> tuple[Vacancy | str, OwnGeneration | None]:
        """What a look finds, and the generation that is ours where nobody has the state."""
        found = self._watch.look()
        return found, self._store.generations.take_over(found.after) if isinstance(found, Vacancy) else None

    def trouble(self, cause: Exception) -> Outage | None:
        """A store or disk that does not answer is waited for. `StoppedWaitingError` where the run is to stop."""
        if not isinstance(cause.__cause__, OSError | StoreError):
            return None
        if self._stopping.is_set():
            raise StoppedWaitingError from cause
        # Signs of life may have come meanwhile: the time without any begins anew.
        self._watch = self._begun()
        return Outage(f"The state is waited for: {cause}", "see that it answers", StateError)

    def _begun(self) -> DriverWatch:
        store = self._store
        return DriverWatch(store.generations, store.lock.holder, lock=store.lock.identity)


def _newest_holder(store: CheckpointStore) -> Holder | None:
    return store.generations.newest_holder()[1]


def _waited(
    store: CheckpointStore, reporter: ProgressReporter, stopping: threading.Event
) -> tuple[DriverGeneration, Holder | TookOver | None]:
    """A term that began when nobody else had the state any more, and who had it before; or how it was taken over."""
    standby, pause = _Standby(store, stopping), _Pause(store, reporter, stopping)
    patience = Retrier(tell=reporter.warning, stopping=stopping)
    before: Holder | TookOver | None = patience(partial(_newest_holder, store), standby.trouble)
    while True:
        found, own = patience(standby.look, standby.trouble)
        if own is not None:
            assert isinstance(found, Vacancy)
            if pause.told:
                before = reporter.took_over(found.why, own)
            return DriverGeneration(store, own), before
        # Where it was free, another one that waited was faster, and is found by the next look.
        pause(pause.told if isinstance(found, Vacancy) else found)
