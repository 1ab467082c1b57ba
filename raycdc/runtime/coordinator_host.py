"""The mailbox around `SourceCoordinator`: one lock, one ticking thread, blocking calls from readers and driver.

Runs inside the Ray actor, or in the driver's process with ``--local``; the same class either way. Blocking work of the
enumerator (discovery, planning) is made elsewhere (`raycdc.runtime.background_calls`) and comes back through the same
lock. An error of any of them ends the job: every caller then gets the first.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raycdc.checkpoint.store import CheckpointStore
from raycdc.errors import FencedError, StateError
from raycdc.runtime.background_calls import BackgroundCalls
from raycdc.runtime.exchanges import Exchanges
from raycdc.source.connector import Source
from raycdc.source.parking import Refusal
from raycdc.source.protocol.acknowledging import Acknowledgements
from raycdc.source.protocol.api import EnumeratorStart
from raycdc.source.protocol.coordinator import CoordinatorSettings, Recovered, SourceCoordinator, Surroundings
from raycdc.source.protocol.job_status import JobStatus, SourceTroubles

#: How often timers are looked at.
TICK_S = 0.02
#: Work of the core that takes longer is no silence of the readers.
BUSY_S = 0.1
#: How often a coordinator looks whether there is a newer generation: one that seals nothing would not hear of it, and
#: its readers would keep their connections beside the successor's.
SUCCESSOR_LOOK_S = 5.0
#: Longest the end of a run waits until the source has heard of the last commit.
ACKNOWLEDGE_S = 5.0


@dataclass(frozen=True, slots=True)
class CoordinatorStart:
    """Where a coordinator goes on: its generation and the last epoch the sink holds."""

    generation: int
    committed: int


class CoordinatorHost:
    """See the module's docstring. Every public method may be called from any thread."""

    def __init__(
        self,
        store: CheckpointStore,
        source: Source[Any],
        *,
        start: CoordinatorStart,
        begin: EnumeratorStart,
        settings: CoordinatorSettings,
    ) -> None:
        """`begin` is where the source's enumerator begins."""
        #: Process the coordinator lives in.
        self.pid = os.getpid()
        self._condition = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False
        self._closing = threading.Event()
        self._calls = BackgroundCalls(self._condition, run=self._run, fail=self._fail)
        self._acknowledgements = Acknowledgements(source.acknowledge, self._calls.call_async)
        self._core = SourceCoordinator(
            lambda context: source.create_enumerator(context, begin),
            recovered=Recovered(start.generation, begin.last, start.committed, store.next_epoch()),
            settings=settings,
            surroundings=Surroundings(
                store, self._calls.call_async, lambda: time.time_ns() // 1_000_000, self._acknowledgements
            ),
        )
        for manifest in store.manifests(start.committed):
            self._core.epochs.adopt(manifest)
        self.exchanges = Exchanges(self._condition, self._core.readers, self._receive)
        self._manifest_files = store.manifest_files
        self._core.start()
        _look_for_successor(self._calls, store, start.generation)
        self._thread = threading.Thread(target=self._tick, name="coordinator", daemon=True)
        self._thread.start()

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        """`raycdc.runtime.client.CoordinatorClient`."""
        return self.exchanges.exchange(subtask_id, incarnation, packet, wait_s=wait_s)

    def _receive(self, subtask_id: int, packet: bytes) -> None:
        """Called with the lock held."""
        self._check()
        self._guarded(lambda: self._core.receive(subtask_id, packet, now_s=time.monotonic()))

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        """The first sealed epoch after `after` (None: not yet) and the run's final epoch, once known."""
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
            troubles = SourceTroubles(calls.troubles, calls.trouble)
            return replace(status, troubles=troubles, standing=(*calls.board.standing(), *status.standing))

    def stop(self) -> None:
        """Seal what is there; the epoch after that is final."""
        with self._condition:
            self._core.stop()

    def shutdown_readers(self, reason: str) -> None:
        """The run is over: readers leave, and the source hears of the last commit, unless that takes too long: the next
        start tells it.
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
                        # Nobody waits for it: it is written beside the coordinator's work, in many small steps.
                        self._calls.call_async(base, lambda _: None, 0.0)
            # Not a wait on the condition: each packet would end it, and each tick wake everyone for nothing.
            self._closing.wait(TICK_S)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run `action` on the core; its error ends the job, except a fenced sender's, which is the sender's own."""
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
        """Run `action` on the core; wakes all callers unless it answers False: nothing happened."""
        began_s = time.monotonic()
        try:
            if action() is False:
                return
        except BaseException as error:  # noqa: BLE001 - ends the job, told to every caller
            self._fail(error)
        finally:
            self._was_busy(began_s)
        self._notify()

    def _was_busy(self, began_s: float) -> None:
        """Note how long the core was: it may block on the disk (a manifest's sync), and nobody is heard meanwhile."""
        took_s = time.monotonic() - began_s
        if took_s > BUSY_S:
            self._core.readers.was_busy(took_s)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self.exchanges.wake_all()
        self._condition.notify_all()

    def _notify(self) -> None:
        """Wake whom it may concern: readers that are told something, and the driver, which waits for epochs."""
        self.exchanges.wake()
        self._condition.notify_all()

    def _check(self) -> None:
        error = self._error or self._core.failure
        if error is not None:
            raise error


def _look_for_successor(calls: BackgroundCalls, store: CheckpointStore, own: int) -> None:
    """End the job once another driver has taken over; called with the lock held, or before the thread runs."""

    def look() -> None:
        # A disk that fails now is for who needs it to tell.
        with suppress(StateError):
            if store.generations.newest() > own:
                store.generations.require_newest(own, "the coordinator")

    again = partial(_look_for_successor, calls, store, own)
    calls.call_async(look, lambda _: again(), SUCCESSOR_LOOK_S)
