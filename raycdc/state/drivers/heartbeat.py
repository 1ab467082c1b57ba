"""Heartbeats of drivers, which tell a standby (``raycdc run --standby``) that another driver has the state.

Each driver renews a document of its own generation, and a standby checks if the document of the newest generation
changes. A suspended driver that wakes up after it was replaced renews a document that is not read any more. Correctness
does not depend on heartbeats: a driver that is wrongly taken for dead (its disk hung, for example) is fenced by its
generation like any replaced driver.

| newest generation | its driver | decision |
|---|---|---|
| none | | free |
| reports that it ended | | free |
| had the state's lock, on this machine | the lock is free | free: the driver's process has ended |
| had the lock of another work folder, on this machine | that lock is free | free: the driver's process has ended |
| of a raycdc without heartbeats | a process on this machine has the lock | taken |
| … | the lock is free | free |
| any other | its document changed within `SILENT_S`, measured by *our* clock | taken |
| … | its document did not change | free, even if the lock is held: a suspended process keeps a lock |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from raycdc.core.threads import THREADS, Threads
from raycdc.errors import FencedError, RaycdcError, StateError
from raycdc.state.drivers.holder import ControlEndpoint, Holder, LockFile, RunEnd

if TYPE_CHECKING:
    from raycdc.state.drivers.generations import Generations, OwnGeneration
    from raycdc.state.files.folder import Lease

#: The interval at which a driver renews its document, and the time for which the document may stay unchanged. The
#: latter is five intervals, because disks may be slow.
RENEW_S = 3.0
SILENT_S = 15.0
#: How often a standby checks the state.
POLL_S = 1.0


class DriverHeartbeat:
    """The driver's side: renews its document on its own thread, and detects that it was replaced.

    `lease` tries to take the state's lock, which a suspended driver may still hold. `on_lost` is called once, by that
    thread. Disk errors are ignored here, because other parts report them. `lock` is the locked file, if it is not in
    the state's own folder.
    """

    def __init__(
        self,
        generations: Generations,
        generation: Callable[[], OwnGeneration],
        *,
        lease: Callable[[], Lease | None],
        on_lost: Callable[[FencedError], None],
        lock: LockFile | None = None,
        threads: Threads = THREADS,
    ) -> None:
        self._generations = generations
        self._generation = generation
        self._lease = lease
        self._held = lease()
        self._on_lost = on_lost
        self._threads = threads
        self._closed = threading.Event()
        mine = replace(Holder.myself(), locked=self._held is not None)
        self._holder = mine if lock is None else replace(mine, lock=lock.identity, lock_file=lock.path)
        #: The address of the run's control API. It is published with the next heartbeat.
        self.endpoint: ControlEndpoint | None = None
        self.lost: FencedError | None = None
        #: True while the thread waits for the state's disk or store. This may take minutes if it is unreachable.
        self._asks = False
        self._renew()
        self._thread = threads.start(self._run, "pulse")

    def __repr__(self) -> str:
        return f"Pulse({self._holder}, lost={self.lost!r})"

    def require_held(self) -> None:
        """Raise `FencedError` if another driver took over. After `close` it does nothing."""
        if self.lost is not None:
            raise self.lost
        if self._closed.is_set():
            return
        newest, own = self._generations.newest(), self._generation()
        if newest > own:
            self.lost = self._replaced_by(newest, own)
            raise self.lost

    def close(self, end: RunEnd | None = None) -> None:
        """Report that this driver has ended, and its run's result, and release the lock.

        A store that has not answered for `RENEW_S` gets no report. The next driver then waits until heartbeats have
        been missing for `SILENT_S`.
        """
        self._closed.set()
        self._thread.join(timeout=RENEW_S)
        self._holder, self.endpoint = replace(self._holder, ended=True, end=end), None
        if self.lost is None and not self._asks:
            with suppress(StateError):
                self._renew()
        if self._held is not None:
            self._held.release()

    def _run(self) -> None:
        while not self._threads.wait(self._closed, RENEW_S):
            self._asks = True
            with suppress(StateError):
                try:
                    self.require_held()
                except FencedError as lost:
                    self._on_lost(lost)
                    return
                if self._held is None:
                    self._held = self._lease()
                    self._holder = replace(self._holder, locked=self._held is not None)
                self._renew()
            self._asks = False

    def _renew(self) -> None:
        self._holder = replace(self._holder, beat=self._holder.beat + 1, endpoint=self.endpoint)
        self._generations.show(self._generation(), self._holder)

    def _replaced_by(self, newest: int, own: int) -> FencedError:
        other: Holder | None = None
        with suppress(RaycdcError):
            other = self._generations.holder(newest)
        who = f", {other}," if other is not None else ""
        return FencedError(
            f"Another driver{who} took over the state in {self._generations.where}: generation {newest} is the newest, "
            f"and this one has {own}. Nothing more of this one is accepted; it ends."
        )


@dataclass(frozen=True, slots=True)
class Vacancy:
    """The reason why a state may be taken over from the driver of generation `after`."""

    after: int
    why: str


class DriverWatch:
    """The standby's side of heartbeats; see the module's table.

    `locked_by` returns the process on this machine that has the state's lock, or an empty text; `lock` is our lock, as
    `Holder.lock`.
    """

    def __init__(
        self,
        generations: Generations,
        locked_by: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
        *,
        lock: str = "",
    ) -> None:
        self._generations = generations
        self._locked_by = locked_by
        self._clock = clock
        self._lock = lock
        #: The number of noticed changes of the holder, plus one for the first check.
        self.changes = 0
        self._seen: tuple[int, Holder | None] | None = None
        self._since_s = clock()

    def poll(self) -> Vacancy | str:
        """Check the state once. Returns a vacancy, or the driver that has the state. Reads the folder."""
        (newest, holder), now_s = self._generations.newest_holder(), self._clock()
        if newest == 0:
            return Vacancy(0, "nobody had it yet")
        if (newest, holder) != self._seen:
            self._seen, self._since_s = (newest, holder), now_s
            self.changes += 1
        if holder is None:
            locked_by = self._locked_by()
            return f"process {locked_by}" if locked_by else Vacancy(newest, "nobody has it")
        if holder.ended:
            return Vacancy(newest, f"{holder} has ended")
        is_unlocked = not self._locked_by() if holder.meets_lock(self._lock) else holder.has_let_go()
        if holder.locked and is_unlocked:
            return Vacancy(newest, f"{holder} is gone")
        if now_s - self._since_s >= SILENT_S:
            return Vacancy(newest, f"{holder} gave no sign of life for {now_s - self._since_s:.0f} s")
        return str(holder)


def require_vacant(
    generations: Generations,
    where: str,
    *,
    lock: str,
    wait: Callable[[str], None] | None = None,
    threads: Threads = THREADS,
) -> None:
    """Wait until it is certain that no driver has the state at `where`. Raises `StateError` if one has it.

    The caller already has the `lock`, which excludes other drivers on this machine. Therefore a driver that claimed its
    generation on this machine and never sent a heartbeat has ended. `wait` is called between two checks, with the
    driver that may have the state.
    """
    _, holder = generations.newest_holder()
    if holder is not None and not holder.beat and holder.meets_lock(lock):
        return
    watch = DriverWatch(generations, lambda: "", threads.now_s, lock=lock)
    while not isinstance(found := watch.poll(), Vacancy):
        if watch.changes > 1:
            raise StateError(
                f"The state in {where} is in use by {found}. Stop that one first (two drivers on one state would "
                "commit twice), or give this pipeline its own pipeline.state."
            )
        if wait is not None:
            wait(found)
        else:
            threads.wait(threading.Event(), POLL_S)
