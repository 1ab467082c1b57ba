"""Leader election between drivers.

A driver takes the state, or waits for it (``raycdc run --standby``), and then keeps it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from raycdc.config import PipelineConfig
from raycdc.core.retry import Outage, Retrier
from raycdc.core.stopping import StopRequest
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


class Leadership:
    """The ownership of a state by one driver, until `close` or until another driver takes over.

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
        """Take ownership.

        `before` is the previous holder of the state, or a `TookOver` if a standby took the state over.
        """
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
        return f"Leadership({self.term}, {self._heartbeat})"

    def on_lost(self, end: Callable[[FencedError], None]) -> None:
        """Have `end` called when another driver takes over, so that waiting threads can end."""
        with self._lock:
            self._ends.append(end)
            lost = self._lost
        if lost is not None:
            end(lost)

    def require_held(self) -> None:
        """Raise `FencedError` if another driver took over."""
        self._heartbeat.require_held()

    def announce(self, endpoint: ControlEndpoint) -> None:
        """Publish the address of the control API with the next heartbeat."""
        self._heartbeat.endpoint = endpoint

    def ends(self, end: RunEnd) -> None:
        """Publish the end of the run with the last heartbeat."""
        self._run_end = end

    def close(self) -> None:
        """Give up the state, so that other drivers can take it."""
        self._heartbeat.close(self._run_end)

    def _end(self, lost: FencedError) -> None:
        with self._lock:
            self._lost, ends = lost, list(self._ends)
        for end in ends:
            end(lost)


def acquire(
    stack: ExitStack, config: PipelineConfig, reporter: ProgressReporter, *, standby: bool, stopping: StopRequest
) -> Leadership:
    """Open the state that `config` names, and `take` it.

    Until `stack` closes, the run reports an object store that does not answer.
    """
    stack.enter_context(watching_stores(reporter.warning))
    store = CheckpointStore(state_of(config), pipeline=config.pipeline.name)
    return take(stack, store, reporter, standby=standby, stopping=stopping)


def take(
    stack: ExitStack,
    store: CheckpointStore,
    reporter: ProgressReporter,
    *,
    standby: bool,
    stopping: StopRequest,
) -> Leadership:
    """Take the state of `store` until `stack` closes.

    With `standby`, waits until the state is free. Otherwise raises `StateError` if another process has the state.
    Raises `StoppedWaitingError` if the run is stopped before the state is free.
    """
    if not standby:
        lease = store.lease(_Pause(store, reporter, stopping, at_most_s=SILENT_S))
        stack.callback(lease.release)
        last = None
        # The previous holder is only named in messages. The start reads the state itself and reports its errors.
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
        stopping: StopRequest,
        *,
        at_most_s: float | None = None,
    ) -> None:
        self._where = str(store.location)
        self._reporter = reporter
        self._stopping = stopping
        self._at_most_s = at_most_s
        self.reported = ""

    def __call__(self, holder: str) -> None:
        """Wait for `POLL_S`, and report `holder` if it is a new one.

        Raises `StoppedWaitingError` if the run is to stop.
        """
        if holder != self.reported:
            self.reported = holder
            self._reporter.waiting(holder, self._where, at_most_s=self._at_most_s)
        self._stopping.pause(POLL_S)


class _Standby:
    """Polls a state that another driver has, until the state can be taken."""

    def __init__(self, store: CheckpointStore, stopping: StopRequest) -> None:
        self._store = store
        self._stopping = stopping
        self._watch = self._begun()

    def poll(self) -> tuple[Vacancy | str, OwnGeneration | None]:
        """Return the result of one check, and the new generation if no driver has the state."""
        found = self._watch.poll()
        return found, self._store.generations.take_over(found.after) if isinstance(found, Vacancy) else None

    def outage(self, cause: Exception) -> Outage | None:
        """Return the outage if `cause` is an error of the store or disk, which is retried; else None."""
        if not isinstance(cause.__cause__, OSError | StoreError):
            return None
        # Heartbeats may have come while the store was unreachable, so the count of seconds without one starts again.
        self._watch = self._begun()
        return Outage(f"Waiting for the state: {cause}", "check that the storage answers", StateError)

    def _begun(self) -> DriverWatch:
        store = self._store
        return DriverWatch(store.generations, store.lock.holder, lock=store.lock.identity)


def _newest_holder(store: CheckpointStore) -> Holder | None:
    return store.generations.newest_holder()[1]


def _waited(
    store: CheckpointStore, reporter: ProgressReporter, stopping: StopRequest
) -> tuple[DriverGeneration, Holder | TookOver | None]:
    """Wait until the state is free.

    Returns the new generation, and the previous holder or the reason for its replacement.
    """
    standby, pause = _Standby(store, stopping), _Pause(store, reporter, stopping)
    retry = Retrier(notify=reporter.warning, stopping=stopping)
    before: Holder | TookOver | None = retry(partial(_newest_holder, store), standby.outage)
    while True:
        found, own = retry(standby.poll, standby.outage)
        if own is not None:
            assert isinstance(found, Vacancy)
            if pause.reported:
                before = reporter.took_over(found.why, own)
            return DriverGeneration(store, own), before
        # The state was free, but another standby took it first. The next check finds that driver.
        pause(pause.reported if isinstance(found, Vacancy) else found)
