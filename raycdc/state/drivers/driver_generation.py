"""The generation of a driver: a number that the driver claims when it starts, and that only the driver itself raises.

Everything that a driver writes into the state or a sink carries its generation. If a driver read the newest number from
the store at each write, one that lost its lease would write under its successor's number, and the two could not be told
apart. When the driver replaces its coordinator, it raises its generation. The raise is refused if a successor has
already claimed a newer one.
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
    """The generation of one driver; see the module's docstring.

    Created under the lease, before the driver writes anything. Thread-safe.
    """

    def __init__(self, store: CheckpointStore, generation: OwnGeneration | None = None) -> None:
        """Make the generation of a driver. `generation` is already claimed; None claims the next one."""
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
        """Return the driver's present generation."""
        with self._lock:
            return self._generation

    def for_coordinator(self) -> OwnGeneration:
        """Return the generation of the next coordinator: the driver's own at first, then one more each time.

        Raises `FencedError` if another driver took over.
        """
        with self._lock:
            if self._used:
                self._generation = self._store.generations.raised(self._generation)
                _take_over(self._store, self._generation)
            self._used = True
            return self._generation


def _take_over(store: CheckpointStore, own: OwnGeneration) -> None:
    """Take over epochs and documents, so that later changes of older drivers have no effect."""

    def act() -> None:
        store.manifest_files.epochs.take_over(own)
        store.documents.take_over(own)

    store.documents.folder.atomically(act)


@contextmanager
def brief_term(store: CheckpointStore) -> Iterator[None]:
    """Claim a generation and hold it within the block, for a change of the state by a command.

    Call it under the lease.

    The new generation fences a suspended driver. Without it, that driver would wake up and overwrite the change, of
    which it does not know.
    """
    term = DriverGeneration(store)
    try:
        yield
    finally:
        store.generations.show(term.generation(), replace(Holder.myself(), ended=True))
