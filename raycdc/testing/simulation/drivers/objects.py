"""An object store that survives everything, whose replies may be lost and whose requests may arrive late.

A request whose reply is lost was carried out, or was not, or will be: it is under way until some other moment, and its
condition is judged then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from raycdc.checkpoint import codec
from raycdc.checkpoint.disk import DISK, Disk
from raycdc.checkpoint.place import StatePlace
from raycdc.checkpoint.root import ROOT
from raycdc.checkpoint.rooted import RootedFolder
from raycdc.checkpoint.state_folder import StateFolder
from raycdc.stores.api import Stored, StoreError, Taken, Version, Written
from raycdc.stores.conditional import Answered, Unsure, settle
from raycdc.stores.url import ObjectPlace, StoreKind
from raycdc.testing.simulation.drivers.fibers import Fibers

PLACE = ObjectPlace(StoreKind.S3, "simulated", "state")


class MemoryObjects:
    """See the module's docstring. `on_document` hears of each document of a state that appears or changes."""

    def __init__(self, chance: random.Random) -> None:
        self.replies_lost = 0.0
        self.on_document: Callable[[Path, bytes], None] = lambda *_: None
        self.there: dict[str, Stored] = {}
        #: Requests by operation, with the kind of object.
        self.requests: list[tuple[str, str]] = []
        self._chance = chance
        self._number = 0
        self._late: list[tuple[str, bytes, Version | None]] = []
        self._known: dict[str, str] = {}

    def of(self, fibers: Fibers) -> ProcessObjects:
        """The store as a process has it: others may run before each call."""
        return ProcessObjects(self, fibers)

    def write(self, name: str, data: bytes) -> Version:
        self._number += 1
        self.there[name] = Stored(data, Version(str(self._number)))
        if name == ROOT:
            self._tell(data)
        return self.there[name].version

    def attempt(self, name: str, data: bytes, before: Version | None) -> Answered | Unsure:
        """One request to write, under the condition that `before` is there (None: nothing)."""
        fate = self._chance.random() if self._chance.random() < self.replies_lost else 1.0
        if fate < 0.3:
            self._late.append((name, data, before))
        elif fate >= 0.5:
            version = self._carry_out(name, data, before)
            if version is not None and fate == 1.0:
                return Answered(version)
        return Unsure(StoreError(f"no reply to the request for {name}"))

    def arrive(self) -> None:
        """A request that is under way may arrive."""
        if self._late and self._chance.random() < 0.3:
            self._carry_out(*self._late.pop(0))

    def _carry_out(self, name: str, data: bytes, before: Version | None) -> Version | None:
        current = self.there.get(name)
        if (None if current is None else current.version) != before:
            return None
        return self.write(name, data)

    def _tell(self, data: bytes) -> None:
        documents = codec.decode(data, origin=ROOT)["documents"]
        contents = {
            n: e["text"] if "text" in e else self.there[e["object"]].data.decode() for n, e in documents.items()
        }
        new = {name: content for name, content in contents.items() if self._known.get(name) != content}
        self._known = contents
        for name, content in new.items():
            self.on_document(Path(name), content.encode())


class ProcessObjects:
    """See `MemoryObjects.of`; a `Store`."""

    def __init__(self, objects: MemoryObjects, fibers: Fibers) -> None:
        self._objects = objects
        self._fibers = fibers

    @property
    def place(self) -> ObjectPlace:
        return PLACE

    def read(self, name: str) -> Stored | None:
        self._pause("get", name)
        return self._objects.there.get(name)

    def put(self, name: str, data: bytes) -> Written:
        self._pause("put", name)
        return Written(self._objects.write(name, data))

    def put_if_absent(self, name: str, data: bytes) -> Written | Taken:
        return self._conditional(name, data, None)

    def replace_if_match(self, name: str, data: bytes, version: Version) -> Written | Taken:
        return self._conditional(name, data, version)

    def list(self, folder: str) -> list[str]:
        self._pause("list", folder)
        prefix = f"{folder}/" if folder else ""
        return sorted(name.removeprefix(prefix) for name in self._objects.there if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self._pause("delete", name)
        self._objects.there.pop(name, None)

    def _conditional(self, name: str, data: bytes, before: Version | None) -> Written | Taken:
        def attempt() -> Answered | Unsure:
            self._pause("put", name)
            outcome = self._objects.attempt(name, data, before)
            self._fibers.pause("store: reply")
            return outcome

        return settle(attempt, lambda: self.read(name), data, before=before)

    def _pause(self, verb: str, name: str) -> None:
        self._fibers.pause(f"store: {verb}")
        self._objects.arrive()
        self._objects.requests.append((verb, name.partition("/")[0]))


@dataclass(frozen=True, slots=True)
class SimulatedPlace(StatePlace):
    """A state on a simulated store, for one process."""

    store: ProcessObjects | None = field(default=None, compare=False)

    def open(self, disk: Disk = DISK, *, tries_for_s: float = 0) -> StateFolder:
        assert self.store is not None
        return RootedFolder(self.store)
