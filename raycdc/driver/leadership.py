"""Leader election between drivers: one takes the state, or waits for it (``raycdc run --standby``), and keeps it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from raycdc.config import PipelineConfig
from raycdc.core.retry import Outage, Retrier
from raycdc.errors import FencedError, StateError
from raycdc.observe.events import TookOver
from raycdc.observe.status.progress import ProgressReporter
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.drivers.heartbeat import POLL_S, SILENT_S, DriverHeartbeat, DriverWatch, Vacancy
from raycdc.state.drivers.holder import ControlEndpoint, Holder, RunEnd
from raycdc.state.files.folder import Lease
from raycdc.state.location import state_of
from raycdc.state.store import CheckpointStore
from raycdc.storage.api import StoreError
from raycdc.storage.silence import watching_stores


class StoppedWaitingError(Exception):
    """The run was stopped before it had readers: it waited for the state, for a server, or for an engine."""


class Leadership:
    """One driver's hold of its state, until `close` or until another driver takes over.

    The function given to `on_lost` may be called from another thread, once; if the state is lost already, it is called
    immediately.
    """

    def __init__(
        self,
        store: CheckpointStore,
        term: DriverGeneration,
        lease: Callable[[], Lease | None],
        before: Holder | TookOver | None = None,
    ) -> None:
        """`before` is the previous holder of the state, or how the state was taken over from it."""
        self.store = store
        self.term = term
        self.before = before
        self._lock = threading.Lock()
        self._ends: list[Callable[[FencedError], None]] = []
        self._lost: FencedError | None = None
        self._run_end: RunEnd | None = None
        self._heartbeat = DriverHeartbeat(
            store.generations, term.generation, lease=lease, on_lost=self._end, lock=store.lock.file
        )

    def __repr__(self) -> str:
        return f"Tenure({self.term}, {self._heartbeat})"

    def on_lost(self, end: Callable[[FencedError], None]) -> None:
        """Call `end` when another driver has taken over, to wake up everything that waits."""
        with self._lock:
            self._ends.append(end)
            lost = self._lost
        if lost is not None:
            end(lost)

    def require_held(self) -> None:
        """Raise `FencedError` if another driver took over."""
        self._heartbeat.require_held()

    def announce(self, door: ControlEndpoint) -> None:
        """Have the next heartbeat say where this run can be asked."""
        self._heartbeat.door = door

    def ends(self, end: RunEnd) -> None:
        """Have the last heartbeat say how the run ended."""
        self._run_end = end

    def close(self) -> None:
        """Leave the state to others."""
        self._heartbeat.close(self._run_end)

    def _end(self, lost: FencedError) -> None:
        with self._lock:
            self._lost, ends = lost, list(self._ends)
        for end in ends:
            end(lost)


def acquire(
    stack: ExitStack, config: PipelineConfig, reporter: ProgressReporter, *, standby: bool, stopping: threading.Event
) -> Leadership:
    """Open the state that `config` names and `take` it. Until `stack` closes, an object store's silence is reported."""
    stack.enter_context(watching_stores(reporter.warning))
    store = CheckpointStore(state_of(config), pipeline=config.pipeline.name)
    return take(stack, store, reporter, standby=standby, stopping=stopping)


def take(
    stack: ExitStack,
    store: CheckpointStore,
    reporter: ProgressReporter,
    *,
    standby: bool,
    stopping: threading.Event,
) -> Leadership:
    """Take the state of `store` until `stack` closes.

    Raises `StateError` if another process has it, unless this one is a `standby`, and `StoppedWaitingError` if the run
    is stopped before the state is free.
    """
    if not standby:
        lease = store.lease(_Pause(store, reporter, stopping, at_most_s=SILENT_S))
        stack.callback(lease.release)
        last = None
        # The previous holder is only mentioned in messages; the start reads what it needs itself and reports errors.
        with suppress(StateError):
            last = _newest_holder(store)
        leadership = Leadership(store, DriverGeneration(store), lambda: lease, last)
    else:
        term, before = _waited(store, reporter, stopping)
        leadership = Leadership(store, term, partial(lease_if_free, store), before)
    stack.callback(leadership.close)
    return leadership


def lease_if_free(store: CheckpointStore) -> Lease | None:
    """Return the state's lock, or None if another process has it."""
    with suppress(StateError):
        return store.lock.take()
    return None


class _Pause:
    """The pause between two checks of a state that another driver has, or may have. Reports that driver once."""

    def __init__(
        self,
        store: CheckpointStore,
        reporter: ProgressReporter,
        stopping: threading.Event,
        *,
        at_most_s: float | None = None,
    ) -> None:
        self._where = str(store.location)
        self._reporter = reporter
        self._stopping = stopping
        self._at_most_s = at_most_s
        self.reported = ""

    def __call__(self, holder: str) -> None:
        """Blocks for `POLL_S`. Raises `StoppedWaitingError` if the run is to stop."""
        if holder != self.reported:
            self.reported = holder
            self._reporter.waiting(holder, self._where, at_most_s=self._at_most_s)
        if self._stopping.wait(POLL_S):
            raise StoppedWaitingError


class _Standby:
    """Polls a state that another driver has until it can be taken."""

    def __init__(self, store: CheckpointStore, stopping: threading.Event) -> None:
        self._store = store
        self._stopping = stopping
        self._watch = self._begun()

    def poll(self) -> tuple[Vacancy | str, OwnGeneration | None]:
        """Return the result of one check, and our new generation if no driver has the state."""
        found = self._watch.poll()
        return found, self._store.generations.take_over(found.after) if isinstance(found, Vacancy) else None

    def outage(self, cause: Exception) -> Outage | None:
        """A store or disk that does not answer is waited for. Raises `StoppedWaitingError` if the run is to stop."""
        if not isinstance(cause.__cause__, OSError | StoreError):
            return None
        if self._stopping.is_set():
            raise StoppedWaitingError from cause
        # Heartbeats may have come while the store was unreachable, so the time without any starts again.
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
    """Wait until the state is free; return our generation, and the previous holder or how it was replaced."""
    standby, pause = _Standby(store, stopping), _Pause(store, reporter, stopping)
    patience = Retrier(notify=reporter.warning, stopping=stopping)
    before: Holder | TookOver | None = patience(partial(_newest_holder, store), standby.outage)
    while True:
        found, own = patience(standby.poll, standby.outage)
        if own is not None:
            assert isinstance(found, Vacancy)
            if pause.reported:
                before = reporter.took_over(found.why, own)
            return DriverGeneration(store, own), before
        # The state was free, but another standby was faster; the next check finds it.
        pause(pause.reported if isinstance(found, Vacancy) else found)
