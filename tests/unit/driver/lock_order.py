"""Records in which order a run takes its locks: ``python -m tests.unit.driver.lock_order CONFIG`` prints each pair.

Two threads that take two locks in different orders wait for each other, sooner or later. It need not happen to be
found: each thread notes what it holds when it takes another lock, and a ring among these notes is an order that cannot
be. Locks are told apart by where they are made; two that are made at one place count as one, and are not compared.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import raycdc

PACKAGE = Path(raycdc.__file__).parent


class Orders:
    """Which locks were held when which others were taken."""

    def __init__(self) -> None:
        self.pairs: dict[str, set[str]] = defaultdict(set)
        self._held = threading.local()

    def takes(self, place: str) -> None:
        for held in self._of_thread():
            if held != place:
                self.pairs[held].add(place)

    def has(self, place: str) -> None:
        self._of_thread().append(place)

    def leaves(self, place: str) -> None:
        held = self._of_thread()
        # A plain lock may be given back by another thread.
        if place in held:
            held.reverse()
            held.remove(place)
            held.reverse()

    def _of_thread(self) -> list[str]:
        if not hasattr(self._held, "places"):
            self._held.places = []
        places: list[str] = self._held.places
        return places

    def ring(self) -> list[str]:
        """Places that follow each other, the last one before the first; empty where there are none."""
        done: set[str] = set()

        def search(place: str, way: list[str]) -> list[str]:
            if place in way:
                return way[way.index(place) :]
            if place in done:
                return []
            found = next(filter(None, (search(after, [*way, place]) for after in sorted(self.pairs[place]))), [])
            done.add(place)
            return found

        return next(filter(None, (search(place, []) for place in sorted(self.pairs))), [])


class Noted:
    """A lock that tells `orders`, with all that `threading.Condition` asks of one."""

    def __init__(self, inner: Any, place: str, orders: Orders) -> None:
        self._inner, self._place, self._orders = inner, place, orders

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self._orders.takes(self._place)
        taken: bool = self._inner.acquire(blocking, timeout)
        if taken:
            self._orders.has(self._place)
        return taken

    def release(self) -> None:
        self._inner.release()
        self._orders.leaves(self._place)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        # A plain lock has less for a condition than a reentrant one, which then does without.
        if name in ("_release_save", "_acquire_restore", "_is_owned") and hasattr(self._inner, name):
            return getattr(self, f"_its{name}")
        return getattr(self._inner, name)

    def _its_release_save(self) -> Any:
        state = self._inner._release_save()
        self._orders.leaves(self._place)
        return state

    def _its_acquire_restore(self, state: Any) -> None:
        self._inner._acquire_restore(state)
        self._orders.has(self._place)

    def _its_is_owned(self) -> bool:
        return bool(self._inner._is_owned())


def note_locks(orders: Orders) -> None:
    """Have every lock noted that raycdc makes from now on."""

    def noted(make: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            frame = sys._getframe(1)
            while frame.f_code.co_filename == threading.__file__ and frame.f_back is not None:
                frame = frame.f_back
            path = Path(frame.f_code.co_filename)
            if not path.is_relative_to(PACKAGE):
                return make()
            return Noted(make(), f"{path.relative_to(PACKAGE)}:{frame.f_lineno}", orders)

        return made

    for name in ("Lock", "RLock"):
        setattr(threading, name, noted(getattr(threading, name)))


def main(config: str) -> int:
    """A run whose listener stops it, with a page, a log and somebody who is notified; it hands over to threads
    of which one warns while it has the supervisor's lock, as the spool servers of a Ray cluster do.
    """
    orders = Orders()
    note_locks(orders)
    from raycdc.config import load_config
    from raycdc.observe.events import Committed, EnginesPromoted, RunEvent, Warned
    from raycdc.observe.status.progress import ProgressReporter
    from raycdc.pipeline import Pipeline
    from raycdc.runtime.launcher import JobSpec, LocalLauncher
    from tests.unit.driver.handed_run import threads_for_engines

    handed: list[EnginesPromoted] = []
    warned: list[Warned] = []

    def launcher(_config: object, spec: JobSpec, _store: object, reporter: ProgressReporter, *_: object) -> Any:
        class Warns(LocalLauncher):
            def poll(self, owing: Collection[str] | None = None) -> None:
                if owing is not None and not warned:
                    reporter.warning("something of a node")

        return Warns(spec)

    def listen(event: RunEvent) -> None:
        if isinstance(event, EnginesPromoted):
            handed.append(event)
        if isinstance(event, Warned):
            warned.append(event)
        if isinstance(event, Committed) and handed and warned:
            pipeline.stop()

    pipeline = Pipeline.from_config(load_config(config))
    with threads_for_engines(launcher):
        pipeline.run(listener=listen)
    for place, after in sorted(orders.pairs.items()):
        for other in sorted(after):
            sys.stdout.write(f"{place} before {other}\n")
    ring = orders.ring()
    sys.stdout.write("no ring\n" if not ring else f"a ring: {' before '.join([*ring, ring[0]])}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
