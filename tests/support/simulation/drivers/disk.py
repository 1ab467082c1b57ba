"""A disk that survives every process, and forgets what was not synced when the power fails.

A file's content is safe once it was synced, and a name in a folder once the folder was. Of what a folder was told since
then the machine has kept any beginning, and of a file's content any beginning, too.

An object store that survives everything, whose replies may be lost and whose requests may arrive late.

A request whose reply is lost was carried out, or was not, or will be: it is under way until some other moment, and its
condition is judged then.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raycdc.state import codec
from raycdc.state.files.folder import DISK, Disk
from raycdc.state.files.rooted import ROOT, RootedFolder
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.location import StateLocation
from raycdc.storage.api import (
    ConfirmedWrite,
    ObjectWritten,
    PreconditionFailed,
    Stored,
    StoreError,
    UnconfirmedWrite,
    Version,
    resolve_write,
)
from raycdc.storage.url import ObjectLocation, StoreKind
from tests.support.simulation.drivers.fibers import Fibers


@dataclass(slots=True)
class _File:
    content: bytes = b""
    durable: bytes = b""


@dataclass(slots=True)
class _Folder:
    """Names as everybody sees them, as they are safe, and what happened to them in between: one entry for each call."""

    names: dict[str, _File] = field(default_factory=dict)
    durable: dict[str, _File] = field(default_factory=dict)
    since: list[Mapping[str, _File | None]] = field(default_factory=list)

    def change(self, names: Mapping[str, _File | None]) -> None:
        _apply(self.names, names)
        self.since.append(names)

    def keep(self, count: int) -> None:
        """The first so many of what happened since the last sync are safe."""
        for names in self.since[:count]:
            _apply(self.durable, names)
        del self.since[:count]


def _apply(to: dict[str, _File], names: Mapping[str, _File | None]) -> None:
    for name, file in names.items():
        if file is None:
            to.pop(name, None)
        else:
            to[name] = file


class MemoryDisk:
    """The disk; see the module's docstring. `on_file` is called with each file that appears under a name."""

    def __init__(self) -> None:
        self.folders: dict[Path, _Folder] = {}
        self.on_file: Callable[[Path, bytes], None] = lambda *_: None

    def of(self, fibers: Fibers) -> ProcessDisk:
        """Return the disk for a process: other processes may run before each call."""
        return ProcessDisk(self, fibers)

    def fail(self, chance: random.Random) -> None:
        """Cut the power."""
        for folder in self.folders.values():
            folder.keep(chance.randint(0, len(folder.since)))
            folder.since.clear()
            folder.names = dict(folder.durable)
            for file in folder.names.values():
                if file.content != file.durable:
                    file.content = file.durable = file.content[: chance.randint(0, len(file.content))]


class ProcessDisk(Disk):
    """See `MemoryDisk.of`."""

    def __init__(self, disk: MemoryDisk, fibers: Fibers) -> None:
        self._disk = disk
        self._fibers = fibers

    def make_folder(self, folder: Path) -> None:
        self._disk.folders.setdefault(folder, _Folder())

    def read(self, path: Path) -> bytes:
        self._fibers.pause("disk: read")
        return self._file(path).content

    def create(self, path: Path, parts: Sequence[bytes]) -> None:
        self._fibers.pause("disk: create")
        file = _File()
        self._folder(path).change({path.name: file})
        for part in parts:
            file.content += part
            self._fibers.pause("disk: write")

    def sync(self, path: Path) -> None:
        self._fibers.pause("disk: sync")
        file = self._file(path)
        file.durable = file.content

    def sync_all(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self.sync(path)

    def rename(self, path: Path, to: Path) -> None:
        self._fibers.pause("disk: rename")
        file = self._file(path)
        self._folder(path).change({path.name: None, to.name: file})
        self._disk.on_file(to, file.content)

    def link(self, path: Path, to: Path) -> None:
        self._fibers.pause("disk: link")
        if to.name in self._folder(to).names:
            raise FileExistsError(to)
        file = self._file(path)
        self._folder(to).change({to.name: file})
        self._disk.on_file(to, file.content)

    def delete(self, path: Path) -> None:
        self._fibers.pause("disk: delete")
        if path.name in self._folder(path).names:
            self._folder(path).change({path.name: None})

    def names(self, folder: Path) -> list[str]:
        self._fibers.pause("disk: list")
        if folder not in self._disk.folders:
            raise FileNotFoundError(folder)
        return list(self._disk.folders[folder].names)

    def sync_folder(self, folder: Path) -> None:
        self._fibers.pause("disk: sync folder")
        made = self._disk.folders[folder]
        made.keep(len(made.since))

    def _folder(self, path: Path) -> _Folder:
        if path.parent not in self._disk.folders:
            raise FileNotFoundError(path.parent)
        return self._disk.folders[path.parent]

    def _file(self, path: Path) -> _File:
        file = self._folder(path).names.get(path.name)
        if file is None:
            raise FileNotFoundError(path)
        return file


PLACE = ObjectLocation(StoreKind.S3, "simulated", "state")


class MemoryObjects:
    """The object store; see the module's docstring.

    `on_document` is called with each document that appears or changes.
    """

    def __init__(self, chance: random.Random) -> None:
        self.replies_lost = 0.0
        self.on_document: Callable[[Path, bytes], None] = lambda *_: None
        self.there: dict[str, Stored] = {}
        #: The number of requests by operation and kind of object.
        self.requests: list[tuple[str, str]] = []
        self._chance = chance
        self._number = 0
        self._late: list[tuple[str, bytes, Version | None]] = []
        self._known: dict[str, str] = {}

    def of(self, fibers: Fibers) -> ProcessObjects:
        """Return the store for a process: other processes may run before each call."""
        return ProcessObjects(self, fibers)

    def write(self, name: str, data: bytes) -> Version:
        self._number += 1
        self.there[name] = Stored(data, Version(str(self._number)))
        if name == ROOT:
            self._tell(data)
        return self.there[name].version

    def attempt(self, name: str, data: bytes, before: Version | None) -> ConfirmedWrite | UnconfirmedWrite:
        """Make a request to write, on the condition that `before` is the present content (None: nothing)."""
        fate = self._chance.random() if self._chance.random() < self.replies_lost else 1.0
        if fate < 0.3:
            self._late.append((name, data, before))
        elif fate >= 0.5:
            version = self._carry_out(name, data, before)
            if version is not None and fate == 1.0:
                return ConfirmedWrite(version)
        return UnconfirmedWrite(StoreError(f"no reply to the request for {name}"))

    def arrive(self) -> None:
        """Let a request that is under way arrive, possibly."""
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
    def location(self) -> ObjectLocation:
        return PLACE

    def read(self, name: str) -> Stored | None:
        self._pause("get", name)
        return self._objects.there.get(name)

    def put(self, name: str, data: bytes) -> ObjectWritten:
        self._pause("put", name)
        return ObjectWritten(self._objects.write(name, data))

    def put_if_absent(self, name: str, data: bytes) -> ObjectWritten | PreconditionFailed:
        return self._conditional(name, data, None)

    def replace_if_match(self, name: str, data: bytes, version: Version) -> ObjectWritten | PreconditionFailed:
        return self._conditional(name, data, version)

    def list(self, folder: str) -> list[str]:
        self._pause("list", folder)
        prefix = f"{folder}/" if folder else ""
        return sorted(name.removeprefix(prefix) for name in self._objects.there if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self._pause("delete", name)
        self._objects.there.pop(name, None)

    def _conditional(self, name: str, data: bytes, before: Version | None) -> ObjectWritten | PreconditionFailed:
        def attempt() -> ConfirmedWrite | UnconfirmedWrite:
            self._pause("put", name)
            outcome = self._objects.attempt(name, data, before)
            self._fibers.pause("store: reply")
            return outcome

        return resolve_write(attempt, lambda: self.read(name), data, before=before)

    def _pause(self, verb: str, name: str) -> None:
        self._fibers.pause(f"store: {verb}")
        self._objects.arrive()
        self._objects.requests.append((verb, name.partition("/")[0]))


@dataclass(frozen=True, slots=True)
class SimStateLocation(StateLocation):
    """A state on a simulated store, for one process."""

    store: ProcessObjects | None = field(default=None, compare=False)

    def open(self, disk: Disk = DISK, *, tries_for_s: float = 0) -> StateFolder:
        assert self.store is not None
        return RootedFolder(self.store)
