"""A disk that survives every process, and forgets what was not synced when the power fails.

A file's content is safe once it was synced, and a name in a folder once the folder was. Of what a folder was told since
then the machine has kept any beginning, and of a file's content any beginning, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raycdc.checkpoint.disk import Disk
from raycdc.testing.simulation.drivers.fibers import Fibers


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
    """See the module's docstring. `on_file` hears of each file that appears under a name."""

    def __init__(self) -> None:
        self.folders: dict[Path, _Folder] = {}
        self.on_file: Callable[[Path, bytes], None] = lambda *_: None

    def of(self, fibers: Fibers) -> ProcessDisk:
        """The disk as a process has it: others may run before each call."""
        return ProcessDisk(self, fibers)

    def fail(self, chance: random.Random) -> None:
        """The power fails."""
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
