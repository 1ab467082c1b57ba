"""Runs a `SourceCoordinator`: one lock, one ticking thread, blocking calls from readers and driver.

Runs inside the Ray actor, or in the driver's process with ``--local``; the same class either way. `BackgroundCalls`
does the blocking work of the enumerator (discovery, planning), and passes on the results with the lock held. An error
of any call ends the job, and every caller then gets the first error. A blocking call is retried while the source cannot
be reached (`raycdc.core.retry`).

`Exchanges` are the readers' calls to a coordinator: the packet of each is handled immediately, and the answer may wait
until there are messages. A waiting call is an entry in a table, not a thread, and only messages for its own reader wake
it. Therefore a thousand readers, each of which always has a call open, do not slow each other down. `CoordinatorHost`
has the table. Threads of its own process wait in `exchange`, and the coroutines of an actor in
`raycdc.runtime.coordinator.coordinator_calls`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raycdc.core.activity import ActivityTracker, Stage
from raycdc.core.retry import Retrier
from raycdc.core.stopping import StopRequest
from raycdc.errors import FencedError, StateError
from raycdc.runtime.restarts import source_outage
from raycdc.source.connector import Source
from raycdc.source.protocol.api import EnumeratorStart
from raycdc.source.protocol.coordination import Acknowledgements
from raycdc.source.protocol.coordinator import (
    CoordinatorEnvironment,
    CoordinatorSettings,
    RecoveryPoint,
    SourceCoordinator,
)
from raycdc.source.protocol.job_status import JobStatus, SourceOutages
from raycdc.source.protocol.live_readers import LiveReaders
from raycdc.source.tables.parking import Refusal
from raycdc.state.store import CheckpointStore


class BackgroundCalls:
    """A small pool of threads for blocking calls.

    With the `lock` held, `run` is called with each handler, and `fail` with each error.
    """

    def __init__(
        self,
        lock: threading.Condition,
        *,
        run: Callable[[Callable[[], None]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._lock = lock
        self._run, self._fail = run, fail
        # One thread plans, one may handle locked tables, and one is for short calls.
        self._pool = ThreadPoolExecutor(max_workers=3, thread_name_prefix="enumerator")
        self._closing = StopRequest()
        #: The calls that are running.
        self.tracker = ActivityTracker()
        self._retrier = Retrier(notify=self._notify, stopping=self._closing)
        self._later: list[tuple[float, Callable[[], None]]] = []
        #: The number of retried calls to the source, and the last reason.
        self.outages = 0
        self.outage = ""

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], after_s: float) -> None:
        """Make `call` in a thread, after `after_s`, and pass its result to `handler`. Called with the lock held.

        See `raycdc.source.protocol.coordination.CallAsync`.
        """
        if after_s > 0:
            self._later.append((time.monotonic() + after_s, partial(self.call_async, call, handler, 0.0)))
            return

        def work() -> None:
            try:
                with self.tracker.doing(Stage.ASK, "waits for the source's answer to a question"):
                    result = self._retrier(call, source_outage)
            except BaseException as error:  # noqa: BLE001 - ends the job, raised to every caller
                with self._lock:
                    self._fail(error)
                return
            with self._lock:
                self._run(lambda: handler(result))

        self._pool.submit(work)

    def make_what_is_due(self) -> None:
        """Make the delayed calls that are due now. Called with the lock held."""
        now_s = time.monotonic()
        due = [call for at_s, call in self._later if at_s <= now_s]
        self._later = [entry for entry in self._later if entry[0] > now_s]
        for call in due:
            call()

    def close(self) -> None:
        """Stop. Running calls continue in the background."""
        self._closing.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _notify(self, text: str) -> None:
        """Record an outage of the source for the status."""
        with self._lock:
            self.outages += 1
            self.outage = text


class Exchanges:
    """Answers readers' calls; see the module's docstring.

    `lock` is that of the coordinator. `receive` handles a packet, with the lock held; it may raise an error.
    """

    def __init__(self, lock: threading.Condition, readers: LiveReaders, receive: Callable[[int, bytes], None]) -> None:
        self._lock, self._readers, self._receive = lock, readers, receive
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"Exchanges(waiting={sum(map(len, self._waiting.values()))})"

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        """Handle the packet and return the answer; the calling thread waits for messages.

        See `raycdc.runtime.reader.coordinator_connection.CoordinatorClient`.
        """
        if wait_s <= 0:
            answer = self.begin(subtask_id, incarnation, packet, woken=None)
            assert answer is not None, "it does not wait"
            return answer
        woken = threading.Event()
        answer = self.begin(subtask_id, incarnation, packet, woken=woken.set)
        if answer is None:
            woken.wait(wait_s)
            answer = self.end(subtask_id, incarnation, woken.set)
        return answer

    def begin(
        self, subtask_id: int, incarnation: int, packet: bytes, *, woken: Callable[[], None] | None
    ) -> bytes | None:
        """Handle the packet and return the answer; None if there are no messages yet.

        Then `woken` is called when there are messages, by any thread with the lock held. The caller must call `end`
        after that, or when it stops waiting.
        """
        with self._lock:
            self._receive(subtask_id, packet)
            if woken is None or self._closed or self._readers.has_outgoing(subtask_id):
                return self._answer(subtask_id, incarnation)
            self._waiting.setdefault(subtask_id, []).append(woken)
            return None

    def end(self, subtask_id: int, incarnation: int, woken: Callable[[], None]) -> bytes:
        """Return the answer to a call that waited, with or without messages.

        Raises `FencedError` if the reader was replaced.
        """
        with self._lock:
            waiting = self._waiting.get(subtask_id, [])
            if woken in waiting:
                waiting.remove(woken)
            if not waiting:
                self._waiting.pop(subtask_id, None)
            return self._answer(subtask_id, incarnation)

    def wake(self) -> None:
        """Wake the readers that have messages. Called with the lock held."""
        for subtask_id in self._readers.take_changed():
            for woken in self._waiting.pop(subtask_id, ()):
                woken()

    def close(self) -> None:
        """Wake all waiting calls; no more messages are sent. Called with the lock held."""
        self._closed = True
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all waiting calls. Called with the lock held."""
        waiting, self._waiting = self._waiting, {}
        for calls in waiting.values():
            for woken in calls:
                woken()

    def _answer(self, subtask_id: int, incarnation: int) -> bytes:
        answer = self._readers.outgoing(subtask_id, incarnation)
        if answer is None:
            raise FencedError(f"Reader {subtask_id}.{incarnation} was replaced.")
        return answer


#: Seconds between two runs of timers.
TICK_S = 0.02
#: If the coordinator was busy for longer than this, readers do not count as silent for that time.
BUSY_S = 0.1
#: The interval at which a coordinator checks for a newer generation. Without this check, a coordinator that seals
#: nothing would not notice its successor, and its readers would keep their connections while those of the successor
#: open more.
SUCCESSOR_POLL_S = 5.0
#: The longest time that the end of a run waits for the acknowledgement of the last commit at the source.
ACKNOWLEDGE_S = 5.0


@dataclass(frozen=True, slots=True)
class CoordinatorStart:
    """The inputs of a coordinator's start: its generation, and the last epoch that the sink holds."""

    generation: int
    committed: int


class CoordinatorHost:
    """Runs a coordinator; see the module's docstring. Any thread may call the public methods."""

    def __init__(
        self,
        store: CheckpointStore,
        source: Source[Any],
        *,
        start: CoordinatorStart,
        begin: EnumeratorStart,
        settings: CoordinatorSettings,
    ) -> None:
        """Create the coordinator and start its thread; `begin` is the start of the source's enumerator."""
        #: The id of the coordinator's process.
        self.pid = os.getpid()
        self._condition = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._closing = threading.Event()
        self._calls = BackgroundCalls(self._condition, run=self._run, fail=self._fail)
        self._acknowledgements = Acknowledgements(source.acknowledge, self._calls.call_async)
        self._core = SourceCoordinator(
            lambda context: source.create_enumerator(context, begin),
            recovered=RecoveryPoint(start.generation, begin.last, start.committed, store.next_epoch()),
            settings=settings,
            surroundings=CoordinatorEnvironment(
                store, self._calls.call_async, lambda: time.time_ns() // 1_000_000, self._acknowledgements
            ),
        )
        for manifest in store.manifests(start.committed):
            self._core.epochs.adopt(manifest)
        self.exchanges = Exchanges(self._condition, self._core.readers, self._receive)
        self._manifest_files = store.manifest_files
        self._core.start()
        _watch_for_successor(self._calls, store, start.generation)
        self._thread = threading.Thread(target=self._tick, name="coordinator", daemon=True)
        self._thread.start()

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        """Handle an exchange as `raycdc.runtime.reader.coordinator_connection.CoordinatorClient` describes."""
        return self.exchanges.exchange(subtask_id, incarnation, packet, wait_s=wait_s)

    def _receive(self, subtask_id: int, packet: bytes) -> None:
        """Handle the packet of a reader. Called with the lock held."""
        self._check()
        self._guarded(lambda: self._core.receive(subtask_id, packet, now_s=time.monotonic()))

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        """Return the first sealed epoch after `after` (None: not yet), and the run's final epoch if it is known."""
        with self._condition:
            deadline = time.monotonic() + wait_s
            while True:
                self._check()
                if self._core.epochs.sealed_after(after) is not None or self._core.epochs.final is not None:
                    break
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._condition.wait(left_s):
                    break
            return self._core.epochs.sealed_after(after), self._core.epochs.final

    def epoch_committed(self, epoch: int) -> None:
        with self._condition:
            self._core.epoch_committed(epoch)
            self._notify()

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        with self._condition:
            self._guarded(lambda: self._core.park_tables(refusals))

    def reader_lost(self, subtask_id: int, incarnation: int, reason: str) -> None:
        with self._condition:
            self._guarded(lambda: self._core.reader_lost(subtask_id, incarnation, reason))

    def take_lost(self) -> list[tuple[int, int, str]]:
        with self._condition:
            return self._core.readers.take_lost()

    def retire(self, subtask_id: int) -> bool:
        with self._condition:
            retired = self._core.retire(subtask_id)
            self._notify()
            return retired

    def status(self, *, tables: bool = True) -> JobStatus:
        with self._condition:
            self._check()
            calls = self._calls
            status = self._core.status(tables=tables)
            outages = SourceOutages(calls.outages, calls.outage)
            return replace(status, outages=outages, stalled=(*calls.tracker.stalled(), *status.stalled))

    def stop(self) -> None:
        """Seal the open epoch, which becomes the final one."""
        with self._condition:
            self._core.stop()

    def shutdown_readers(self, reason: str) -> None:
        """End the run: readers end, and the source is notified of the last commit.

        If the notification takes too long, the next start makes it.
        """
        with self._condition:
            self._core.readers.shutdown(reason)
            self._notify()
            self._condition.wait_for(lambda: self._error is not None or self._acknowledgements.idle, ACKNOWLEDGE_S)

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self.exchanges.close()
            self._condition.notify_all()
        self._closing.set()
        self._thread.join(timeout=5)
        self._calls.close()

    def _tick(self) -> None:
        while True:
            with self._condition:
                if self._closed:
                    return
                if self._error is None:
                    self._calls.make_what_is_due()
                    self._run(lambda: self._core.tick(now_s=time.monotonic()))
                    if (base := self._manifest_files.take_due()) is not None:
                        # Nothing waits for the base, so a thread writes it in the background, in many small steps.
                        self._calls.call_async(base, lambda _: None, 0.0)
            # Waiting on the condition would end with each packet, and each tick would wake every caller.
            self._closing.wait(TICK_S)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run `action` on the coordinator.

        An error ends the job, except `FencedError`, which concerns only the sender.
        """
        began_s = time.monotonic()
        try:
            action()
        except FencedError:
            raise
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._was_busy(began_s)
            self._notify()

    def _run(self, action: Callable[[], object]) -> None:
        """Run `action` on the coordinator.

        Wakes all callers, unless the action returns False because nothing happened.
        """
        began_s = time.monotonic()
        try:
            if action() is False:
                return
        except BaseException as error:  # noqa: BLE001 - ends the job, raised to every caller
            self._fail(error)
        finally:
            self._was_busy(began_s)
        self._notify()

    def _was_busy(self, began_s: float) -> None:
        """Note how long the coordinator was busy.

        It may block on the disk (a manifest's sync), and receives nothing meanwhile.
        """
        took_s = time.monotonic() - began_s
        if took_s > BUSY_S:
            self._core.readers.was_busy(took_s)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self.exchanges.wake_all()
        self._condition.notify_all()

    def _notify(self) -> None:
        """Wake readers that have messages, and the driver, which waits for epochs."""
        self.exchanges.wake()
        self._condition.notify_all()

    def _check(self) -> None:
        error = self._error or self._core.failure
        if error is not None:
            raise error


def _watch_for_successor(calls: BackgroundCalls, store: CheckpointStore, own: int) -> None:
    """End the job when another driver has taken over. Called with the lock held, or before the thread runs."""

    def poll() -> None:
        # An error of the disk is reported by the code that needs the disk.
        with suppress(StateError):
            if store.generations.newest() > own:
                store.generations.require_newest(own, "the coordinator")

    again = partial(_watch_for_successor, calls, store, own)
    calls.call_async(poll, lambda _: again(), SUCCESSOR_POLL_S)
