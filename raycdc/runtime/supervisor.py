"""Starts, watches, replaces and ends the coordinator and the readers of a job, in one thread of the driver.

The supervisor never decides about data. If a reader ends, the coordinator is notified, and a new incarnation replaces
the reader. If a coordinator ends, a new *generation* of coordinator and readers replaces it and all its readers, and
continues from the last manifest. An error that the coordinator reports ends the job.

| event | reaction |
|---|---|
| reader's process ended | tell the coordinator, start incarnation + 1 (after a pause, if it keeps ending) |
| coordinator fenced a reader | kill the process, start incarnation + 1 |
| coordinator ended or silent | kill everything, raise the generation, start again |
| too many or too few readers for the work | retire some, start more (`raycdc.runtime.scaling`) |
| a new node, or one that could be released | move readers, one at a time, each at a cut |
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from raycdc.core.failpoints import left_out
from raycdc.core.retry import Outage
from raycdc.core.threads import THREADS, Threads
from raycdc.errors import ClusterLostError, RaycdcError
from raycdc.runtime.coordinator.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import CoordinatorHandle, CoordinatorLostError, Launcher, ReaderHandle
from raycdc.runtime.observing import Observer
from raycdc.runtime.reader.reader_worker import ReaderIdentity
from raycdc.runtime.restarts import ProcessEnd, RestartBudget
from raycdc.runtime.scaling import GROW_AFTER_S, Decision, Observation, ReaderLimits, Scaled, ScalingPolicy
from raycdc.source.protocol.job_status import JobStatus
from raycdc.source.tables.parking import Refusal

T = TypeVar("T")

#: Seconds between two checks of the processes.
WATCH_S = 0.2


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """The limits of readers, and the callbacks of the supervisor.

    `on_processes` is called with the process ids of coordinator and readers whenever they change, `on_warning` with
    warnings for the user, and `on_scaled` with the wanted number of readers, their nodes, and the reason. The
    supervisor's thread, which is one of `threads`, calls them without holding the supervisor's lock. Each may call
    `Supervisor.stop`.
    """

    limits: ReaderLimits
    next_generation: Callable[[], int]
    committed: Callable[[], int]
    on_processes: Callable[[int, Sequence[int]], None]
    on_warning: Callable[[str], None] = lambda _: None
    on_scaled: Callable[[Scaled], None] = lambda _: None
    threads: Threads = THREADS


class Generation:
    """A coordinator and its readers, which start and end together.

    Within a generation, a reader may be replaced by new incarnations.
    """

    def __init__(self, launcher: Launcher, number: int, coordinator: CoordinatorHandle) -> None:
        self._launcher = launcher
        self.number, self.coordinator = number, coordinator
        self.readers: dict[int, ReaderHandle] = {}
        self._incarnations: dict[int, int] = {}
        #: The readers that will be replaced, with the time of the replacement.
        self.due: dict[int, float] = {}
        #: The readers that are leaving, and that are not replaced.
        self.leaving: set[int] = set()
        self._stops = False

    def __repr__(self) -> str:
        return f"Generation({self.number}, readers={sorted(self.readers)}, due={sorted(self.due)})"

    def start_reader(self, subtask_id: int, *, node: str = "") -> None:
        """Start the reader's next incarnation; `node` is its intended node, or empty."""
        self.due.pop(subtask_id, None)
        incarnation = self._incarnations.get(subtask_id, 0) + 1
        self._incarnations[subtask_id] = incarnation
        identity = ReaderIdentity(subtask_id, self.number, incarnation)
        self.readers[subtask_id] = self._launcher.start_reader(identity, self.coordinator, node=node)

    def stop(self) -> None:
        """Request once that the coordinator seals the open epoch."""
        if not self._stops:
            self.coordinator.stop()
            self._stops = True

    def take_fenced(self) -> list[tuple[int, ProcessEnd]]:
        """End the readers that the coordinator has given up, and return them with the reason."""
        fenced = []
        for subtask_id, incarnation, reason in self.coordinator.take_lost():
            reader = self.readers.get(subtask_id)
            if reader is not None and reader.identity.incarnation == incarnation:
                # A process on an unreachable machine cannot be ended. If it continues later, its calls are refused.
                self._launcher.avoid(reader.node)
                if not left_out("end_fenced"):
                    reader.kill()
                fenced.append((subtask_id, ProcessEnd(reason)))
        return fenced

    def take_ended(self) -> list[tuple[int, ProcessEnd]]:
        """Return readers whose process has ended and that are not being replaced; the coordinator is notified."""
        ended = []
        for subtask_id, reader in list(self.readers.items()):
            end = reader.ended()
            if end is None or subtask_id in self.due:
                continue
            self.coordinator.reader_lost(subtask_id, reader.identity.incarnation, end.text)
            if subtask_id in self.leaving:
                # The reader was leaving, and the coordinator has its remaining splits now.
                self.readers.pop(subtask_id).kill()
                self.leaving.discard(subtask_id)
            else:
                ended.append((subtask_id, end))
        return ended

    def let_go(self) -> None:
        """Release each reader that is `leaving` and has given its splits back, or never had any."""
        for subtask_id in sorted(self.leaving & self.readers.keys()):
            if (
                subtask_id in self.due
                or not self.readers[subtask_id].has_process
                or self.coordinator.retire(subtask_id)
            ):
                self.due.pop(subtask_id, None)
                self.readers.pop(subtask_id).kill()
                self.leaving.discard(subtask_id)

    def next_subtask(self) -> int:
        """Return the smallest number that no reader has."""
        return next(number for number in range(len(self.readers) + 1) if number not in self.readers)

    def leave(self, timeout_s: float, threads: Threads) -> None:
        """Ask the readers to end by themselves. `end` kills the ones that are still running."""
        self.coordinator.shutdown_readers("the job ends")
        deadline = threads.now_s() + timeout_s
        while threads.now_s() < deadline and any(reader.ended() is None for reader in self.readers.values()):
            threads.wait(threading.Event(), 0.02)

    def end(self) -> None:
        """Kill all processes; sealed epochs stay."""
        for reader in self.readers.values():
            reader.kill()
        self.coordinator.close()


class ListenerNotifications:
    """Notifications for listeners, to be sent without the supervisor's lock: changed processes, scaling, warnings."""

    def __init__(self, settings: SupervisorSettings) -> None:
        self._settings = settings
        self._pending: list[Callable[[], None]] = []
        self._pids: tuple[int, tuple[int, ...]] | None = None
        self._scaled: tuple[object, float] = (None, 0.0)
        self._reported: object = None
        self._outages = 0

    def processes(self, coordinator: CoordinatorHandle, status: JobStatus | None) -> None:
        """Set the processes that run now."""
        readers = tuple(reader.pid for reader in status.readers if reader.pid) if status else ()
        pids = (coordinator.pid, readers)
        if pids != self._pids:
            self._pids = pids
            self._pending.append(lambda: self._settings.on_processes(*pids))

    def outage(self, status: JobStatus) -> None:
        """Note a warning about an outage of the source.

        The coordinator waits for its end, even while there is no reader that could report it.
        """
        if status.outages.count > self._outages:
            self.warning(status.outages.last)
        self._outages = status.outages.count

    def scaled(self, decision: Decision, seen: Observation, now_s: float) -> None:
        """Note the number of readers or their nodes, when all are up or some have waited for a while."""
        scaled = Scaled.of(decision, seen)
        if scaled.key != self._scaled[0]:
            self._scaled = (scaled.key, now_s)
        is_complete = not scaled.waiting or now_s - self._scaled[1] >= GROW_AFTER_S
        if is_complete and scaled.key != self._reported:
            self._reported = scaled.key
            self._pending.append(lambda: self._settings.on_scaled(scaled))

    def warning(self, text: str) -> None:
        self._pending.append(lambda: self._settings.on_warning(text))

    def take(self) -> list[Callable[[], None]]:
        """Return the collected notifications; each is returned once."""
        pending, self._pending = self._pending, []
        return pending


class StartReader(Protocol):
    """A function that starts reader `subtask_id` of a generation; `node` is its intended node, or empty."""

    def __call__(self, running: Generation, subtask_id: int, *, node: str = "") -> None: ...


class Scaler:
    """Carries out the decisions of the policy. Called with the supervisor's lock held."""

    def __init__(self, launcher: Launcher, settings: SupervisorSettings) -> None:
        self.policy = ScalingPolicy(settings.limits)
        self._launcher = launcher
        self._threads = settings.threads
        self._observer = Observer()

    def restart(self, running: Generation, status: JobStatus) -> None:
        """Set the number of readers for a new coordinator."""
        self.policy.restart(self._observe(running, status, self._threads.now_s()))

    def poll(
        self, running: Generation, status: JobStatus, start_reader: StartReader, notifications: ListenerNotifications
    ) -> None:
        """Release readers that are not needed on their nodes, and start missing ones."""
        now_s = self._threads.now_s()
        seen = self._observe(running, status, now_s)
        decision = self.policy.poll(seen, now_s=now_s)
        running.leaving.update(decision.leave)
        running.let_go()
        # A leaving reader counts, so that the limits are never exceeded.
        for _ in range(decision.readers - len(running.readers)):
            start_reader(running, running.next_subtask(), node=decision.node)
        notifications.scaled(decision, seen, now_s)

    def _observe(self, running: Generation, status: JobStatus, now_s: float) -> Observation:
        # Some readers may have been on their way out at the coordinator's last answer.
        running.leaving.update(r.subtask for r in status.readers if r.leaving and r.subtask in running.readers)
        leaving = frozenset(running.leaving)
        return self._observer.poll(status, running.readers, self._launcher.nodes(), leaving=leaving, now_s=now_s)


class Supervisor:
    """Supervises one job; see the module's docstring. Any thread may call the public methods."""

    def __init__(self, launcher: Launcher, settings: SupervisorSettings) -> None:
        self._launcher = launcher
        self._settings = settings
        self._lock = threading.RLock()
        #: The number of the newest generation.
        self.generation = 0
        #: The present generation.
        self._running: Generation | None = None
        self._budgets: dict[int | None, RestartBudget] = {}
        self._scaler = Scaler(launcher, settings)
        self._error: BaseException | None = None
        self._closed = threading.Event()
        #: Also set by `close`, which wakes waiting threads.
        self._stopping = threading.Event()
        self._notifications = ListenerNotifications(settings)
        try:
            self._step()
        except BaseException:
            self._end_generation()
            raise
        self._thread = self._settings.threads.start(self._watch, "supervisor")

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        """Return the result of `CoordinatorHost.next_sealed`.

        A lost coordinator is waited for until it is replaced. Raises the job's error.
        """
        try:
            return self._handle().next_sealed(after, wait_s=wait_s)
        except CoordinatorLostError:
            self._settings.threads.wait(self._closed, WATCH_S)
            return None, None

    def epoch_committed(self, epoch: int) -> None:
        """Report a commit to the coordinator. A later coordinator reads the commit record instead."""
        try:
            self._handle().epoch_committed(epoch)
        except CoordinatorLostError:
            return

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """Park tables at the coordinator.

        A later coordinator reads the parked tables from the commit record instead.
        """
        with suppress(CoordinatorLostError):
            self._handle().park_tables(refusals)

    def status(self, *, tables: bool = True) -> JobStatus | None:
        """Return the coordinator's status, with or without each table; None if there is no coordinator."""
        try:
            return self._handle().status(tables=tables)
        except CoordinatorLostError:
            return None

    @property
    def ending(self) -> bool:
        """Return True if the last epoch of the job is sealed, or about to be. Raises the job's error."""
        if self._stopping.is_set():
            return True
        _, final = self.next_sealed(sys.maxsize, wait_s=0)
        return final is not None

    def stop(self) -> None:
        """Request that the open epoch is sealed. The job ends when this epoch is committed.

        Returns immediately without taking a lock, because a listener may call it while the supervisor's lock is held by
        a thread that calls listeners. The supervisor's thread notifies the coordinator.
        """
        self._stopping.set()

    def start_over(self, recover: Callable[[], T]) -> T:
        """End every process of the job, run `recover` while none of them reads or seals, and start again."""
        with self._lock:
            self._end_generation()
            # This fences a coordinator whose end could not be waited for.
            self._settings.next_generation()
            return recover()

    def fail(self, error: BaseException) -> None:
        """End the job with `error`, which every later call raises; the first error counts."""
        with self._lock:
            self._error = self._error or error

    def close(self) -> None:
        """End every process of the job; the caller closes the launcher. Nothing sealed is lost."""
        self._closed.set()
        self._stopping.set()
        self._thread.join(timeout=30)
        with self._lock:
            if self._running is not None:
                # A lost coordinator cannot notify the readers; they are killed in any case.
                with suppress(CoordinatorLostError, ClusterLostError):
                    self._running.leave(2.0, self._settings.threads)
                self._running.end()

    def _handle(self) -> CoordinatorHandle:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._running is None:
                raise CoordinatorLostError("being replaced")
            return self._running.coordinator

    def _start_generation(self) -> None:
        with self._lock:
            self.generation = self._settings.next_generation()
            start = CoordinatorStart(self.generation, self._settings.committed())
            coordinator = self._launcher.start_coordinator(start)
            self._running = Generation(self._launcher, self.generation, coordinator)
            if self._stopping.is_set():
                self._running.stop()
            with suppress(RaycdcError):  # The job has failed already, which `_watch` reports.
                self._scaler.restart(self._running, coordinator.status(tables=False))
            self._notifications.processes(coordinator, None)
            self._budget(None).started(self._settings.threads.now_s())
            self._launcher.request_readers(self._scaler.policy.readers)
            for subtask_id in range(self._scaler.policy.readers):
                self._start_reader(self._running, subtask_id)

    def _start_reader(self, running: Generation, subtask_id: int, *, node: str = "") -> None:
        running.start_reader(subtask_id, node=node)
        self._budget(subtask_id).started(self._settings.threads.now_s())

    def _budget(self, subtask_id: int | None) -> RestartBudget:
        """Return the restart budget of the reader, or of the coordinator (None)."""
        return self._budgets.setdefault(subtask_id, RestartBudget(self._settings.threads))

    def _watch(self) -> None:
        seen = False
        while True:
            # A stop is carried out immediately.
            self._settings.threads.wait(self._closed if seen else self._stopping, WATCH_S)
            if self._closed.is_set():
                return
            seen = self._stopping.is_set()
            try:
                self._step()
            except BaseException as error:  # noqa: BLE001 - ends the job, raised to every caller
                self.fail(error)
                return

    def _step(self) -> None:
        """Check the processes once.

        If a coordinator is found to be lost, even during its start, the next step replaces it.
        """
        with self._lock:
            try:
                self._poll()
            except CoordinatorLostError as lost:
                self._end_generation()
                self._pause(None, ProcessEnd(f"the coordinator was lost ({lost})"))
            notifications = self._notifications.take()
        for notify in notifications:
            notify()

    def _poll(self) -> None:
        running = self._running
        if running is None:
            self._launcher.poll()
            self._start_generation()
            return
        if self._stopping.is_set():
            running.stop()
        for subtask_id, end in running.take_fenced():
            if subtask_id not in running.due:  # Otherwise the process ended by itself.
                self._notifications.warning(f"Reader {subtask_id} is replaced: it was {end.text}.")
            self._schedule(subtask_id, end)
        for subtask_id, end in running.take_ended():
            self._schedule(subtask_id, end)
        status = running.coordinator.status(tables=False)
        self._launcher.poll(status.owing)
        for subtask_id in [s for s, due_s in running.due.items() if due_s <= self._settings.threads.now_s()]:
            self._start_reader(running, subtask_id)
        self._notifications.outage(status)
        self._scaler.poll(running, status, self._start_reader, self._notifications)
        self._notifications.processes(running.coordinator, status)

    def _schedule(self, subtask_id: int, end: ProcessEnd) -> None:
        """Have the reader replaced, after a pause that grows with the number of its recent ends."""
        pause_s = self._pause(subtask_id, end)
        if self._running is not None:
            self._running.due.setdefault(subtask_id, self._settings.threads.now_s() + pause_s)
        if end.is_unreachable and self._budget(subtask_id).is_new_row:
            outage = Outage(f"Reader {subtask_id} ended ({end.text})", "see that it answers", end.kind)
            self._notifications.warning(outage.message())
        elif end.error and not end.is_unreachable:
            self._notifications.warning(
                f"Reader {subtask_id} ended ({end.text}); it is started again in {pause_s:.1f} s."
            )

    def _pause(self, subtask_id: int | None, end: ProcessEnd) -> float:
        """Return the seconds to wait before the successor starts.

        Raises the error that ends the job if the process has ended too often.
        """
        budget, now_s = self._budget(subtask_id), self._settings.threads.now_s()
        pause_s = budget.pause_after(end, now_s)
        if pause_s is None:
            raise budget.give_up(end, what="The coordinator" if subtask_id is None else "A reader", now_s=now_s)
        return pause_s

    def _end_generation(self) -> None:
        with self._lock:
            running, self._running = self._running, None
            if running is not None:
                running.end()
