"""Processes and their threads, of which one runs at a time, in an order that is drawn from the seed.

The product's code is not written in steps, so each of its threads is one here, too. It stops at every *pause*: before
each call to the disk, the sink or a fail point, and wherever it waits. The scheduler then draws who goes on, so the
same seed gives the same history. A process that dies raises `ProcessDiedError` in each of its threads at the next
pause, and none of them gets past another one: nothing that it does on its way out can be seen.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from typing import Any

from raycdc.core.threads import Threads
from tests.support.simulation.network import SimulatedClock


class ProcessDiedError(BaseException):
    """Raised in a process that dies. It is no `Exception`, so the product cannot catch it."""


class Process:
    """Threads that live and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False

    def __repr__(self) -> str:
        return f"{self.name}{'' if self.alive else ', dead'}{', paused' if self.paused else ''}"


def taken_lock() -> threading.Lock:
    """What one thread waits for and another one gives, in turn: a plain lock is the cheapest of what can do that."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Fiber:
    """One thread of a process. `ready` says whether it could go on; `held` that it must not."""

    def __init__(self, process: Process, name: str, call: Callable[[], None], back: threading.Lock) -> None:
        self.process = process
        self.name = name
        self.ready: Callable[[], bool] = lambda: True
        self.held = False
        self.done = False
        #: The number of blocks of this thread in which no other thread may run.
        self.atomic = 0
        self._call = call
        self._back = back
        self._turn = taken_lock()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}"

    @property
    def runs(self) -> bool:
        if not self.process.alive:
            return True  # To its end.
        return not (self.process.paused or self.held) and self.ready()

    def resume(self) -> None:
        """Let the thread run until its next pause, or its end."""
        if self._thread is None:
            if not self.process.alive:
                self.done = True
                return
            self._thread = threading.Thread(target=self._run, name=repr(self), daemon=True)
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()

    def pause(self) -> None:
        self._back.release()
        self._turn.acquire()

    def join(self, timeout: float | None = None) -> None:
        """Do nothing: threads end by themselves."""

    def _run(self) -> None:
        try:
            # A dead process reports nothing.
            with suppress(ProcessDiedError):
                self._call()
        finally:
            self.done = True
            self._back.release()


class Fibers:
    """The scheduler. `on_pause` is called at each pause before others run, and may end or pause processes."""

    def __init__(self, chance: random.Random, clock: SimulatedClock) -> None:
        self.clock = clock
        self.on_pause: Callable[[Fiber, str], None] = lambda *_: None
        self._chance = chance
        self._fibers: list[Fiber] = []
        self._current: Fiber | None = None
        self._back = taken_lock()

    def chance(self) -> float:
        """Return a number from 0 to 1, by the seed."""
        return self._chance.random()

    def start(self, process: Process, name: str, call: Callable[[], None]) -> Fiber:
        fiber = Fiber(process, name, call, self._back)
        self._fibers.append(fiber)
        return fiber

    def step(self) -> bool:
        """Let one thread run to its next pause; return False if none can."""
        self._bury()
        runnable = [fiber for fiber in self._fibers if fiber.runs]
        if not runnable:
            return False
        self._resume(self._chance.choice(runnable))
        self._bury()
        return True

    def pause(self, place: str) -> None:
        """Let other threads run. Called by a thread of a process."""
        fiber = self._current
        if fiber is None:
            return  # The simulation itself calls.
        self._live(fiber)
        self.on_pause(fiber, place)
        self._live(fiber)
        if not fiber.atomic:
            fiber.pause()
            self._live(fiber)

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Pause until the condition holds, or the time is over."""
        fiber = self._current
        assert fiber is not None
        assert not fiber.atomic, "whoever waits keeps everybody from what is waited for"
        until_s = float("inf") if timeout_s is None else self.clock.now_s + timeout_s
        self._live(fiber)
        fiber.ready = lambda: done() or self.clock.now_s >= until_s
        fiber.pause()
        fiber.ready = lambda: True
        self._live(fiber)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Keep other threads from running within the block, because the product holds a lock there.

        The process may die.
        """
        fiber = self._current
        if fiber is None:
            yield
            return
        fiber.atomic += 1
        try:
            yield
        finally:
            fiber.atomic -= 1

    def kill(self) -> None:
        """End every process where it is."""
        for fiber in self._fibers:
            fiber.process.alive = False

    def end(self) -> None:
        """End all threads."""
        self.kill()
        self._bury()

    def _live(self, fiber: Fiber) -> None:
        if not fiber.process.alive:
            raise ProcessDiedError

    def _resume(self, fiber: Fiber) -> None:
        self._current = fiber
        fiber.resume()
        self._current = None

    def _bury(self) -> None:
        """End the threads of dead processes immediately."""
        for fiber in [fiber for fiber in self._fibers if not fiber.process.alive]:
            while not fiber.done:
                self._resume(fiber)
        self._fibers = [fiber for fiber in self._fibers if not fiber.done]


class FiberThreads(Threads):
    """The threads and the clock of one process."""

    def __init__(self, fibers: Fibers, process: Process) -> None:
        self._fibers = fibers
        self._process = process
        self.started: list[Fiber] = []

    def now_s(self) -> float:
        return self._fibers.clock.now_s

    def chance(self) -> float:
        return self._fibers.chance()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self._fibers.wait(event.is_set, timeout_s)
        return event.is_set()

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Keep threads of this name from running within the block, because a lock that they need is taken."""
        held = [fiber for fiber in self.started if fiber.name == name]
        for fiber in held:
            fiber.held = True
        try:
            yield
        finally:
            for fiber in held:
                fiber.held = False

    def wait_for(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the condition holds, or the time is over."""
        self._fibers.wait(done, timeout_s)

    def pool(self, count: int, name: str) -> Executor:
        return FiberPool(self._fibers, self._process, name)

    def start(self, call: Callable[[], None], name: str) -> Fiber:
        fiber = self._fibers.start(self._process, name, call)
        self.started.append(fiber)
        return fiber


class FiberFuture(Future[Any]):
    """A future whose `result` lets other threads run until it is there."""

    def __init__(self, fibers: Fibers) -> None:
        super().__init__()
        self._fibers = fibers

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self._fibers.wait(self.done)
        return super().result(timeout)


class FiberPool(Executor):
    """Runs each call in its own thread; the block ends when all have ended."""

    def __init__(self, fibers: Fibers, process: Process, name: str) -> None:
        self._fibers = fibers
        self._process = process
        self._name = name
        self._futures: list[FiberFuture] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> FiberFuture:
        future = FiberFuture(self._fibers)

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - raised again by who asks for the result
                future.set_exception(error)
            else:
                future.set_result(result)

        self._futures.append(future)
        self._fibers.start(self._process, self._name, run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if not all(future.done() for future in self._futures):
            self._fibers.wait(lambda: all(future.done() for future in self._futures))
