"""A driver's own generation: claimed when it starts, raised by its own acts alone.

Whatever a driver writes, into the state or a sink, carries the number that it has itself. Were the newest one asked
from the store at the moment of writing, a driver that lost its lease would write under its successor's number, and
nothing could tell the two apart. Who replaces a coordinator raises the number, and the driver knows the new one from
that act; where a successor has a newer one by then, the act is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.drivers.holder import Holder
from raycdc.state.files.folder import sweep_private
from raycdc.state.store import CheckpointStore


class DriverGeneration:
    """See the module's docstring. Begun under the lease, before the driver writes anything; for any thread."""

    def __init__(self, store: CheckpointStore, generation: OwnGeneration | None = None) -> None:
        """`generation` is one that was claimed already."""
        self._store = store
        self._lock = threading.Lock()
        self._generation = store.generations.next() if generation is None else generation
        self._used = False
        store.generations.write_as(self.generation)
        _take_over(store, self._generation)
        sweep_private(store.path / "private")
        store.generations.sweep(self._generation)

    def __repr__(self) -> str:
        return f"DriverGeneration({self._generation})"

    def generation(self) -> OwnGeneration:
        """The driver's own generation now."""
        with self._lock:
            return self._generation

    def for_coordinator(self) -> OwnGeneration:
        """The generation of the coordinator that is started next: the driver's own at first, then one more each time.

        `FencedError` when another driver took over.
        """
        with self._lock:
            if self._used:
                self._generation = self._store.generations.raised(self._generation)
                _take_over(self._store, self._generation)
            self._used = True
            return self._generation


def _take_over(store: CheckpointStore, own: OwnGeneration) -> None:
    """Nothing that older drivers do to the files of epochs and documents counts from here on."""

    def act() -> None:
        store.manifest_files.epochs.take_over(own)
        store.documents.take_over(own)

    store.documents.folder.atomically(act)


@contextmanager
def brief_term(store: CheckpointStore) -> Iterator[None]:
    """A term of whoever changes the state while no driver has it. Under the lease.

    A driver that is only stopped finds what it writes refused when it wakes up: it would write over what was asked for
    meanwhile, because it does not know of it.
    """
    term = DriverGeneration(store)
    try:
        yield
    finally:
        store.generations.show(term.generation(), replace(Holder.myself(), ended=True))
