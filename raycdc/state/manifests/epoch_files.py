"""The files of epochs, and the rules that decide which of them are valid.

A folder cannot check the newest generation and rename a manifest in one step, so a driver that was suspended between
the two may rename or write a manifest after its successor has taken over. Each driver therefore first records which
epochs of older generations are valid, in a document of its own generation. Only the newest such document is read, so
later changes of a stale driver have no effect.

| epoch's number | its file | valid |
|---|---|---|
| in the newest document | sealed, or marked as dropped by a stale driver later | yes |
| used before the document was written, but not in it | any | no: the epoch was dropped, or not sealed yet |
| used later | sealed, by a generation not older than the document's | yes |
| … | sealed by an older generation, or dropped | no |

Without such a document, in a state of an older version, a manifest is valid until it is renamed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from raycdc.state import codec
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.files.state_folder import StateFolder

_EPOCH_FILE = re.compile(r"(\d{10})\.json(\.dropped)?$")
#: Version 2 has the same content as version 1. The number is higher because a raycdc that knows only version 1 would
#: not find documents that are files of a generation, as this one is.
VERSION = 2
_UPGRADES: dict[int, codec.Upgrade] = {1: lambda document: {**document, "version": 2}}
_DOCUMENT = re.compile(r"(\d{10})\.epochs\.json$")


@dataclass(frozen=True, slots=True)
class Inherited:
    """The valid epochs of generations older than `generation`, and the first epoch number that no such generation
    used.
    """

    generation: int
    epochs: frozenset[int]
    next: int


class EpochFiles:
    """The files of epochs; see the module's docstring.

    Every answer comes from storage, except for the generation that sealed an epoch, which never changes.
    """

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._sealed_by: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"EpochFiles({self._folder.where!r})"

    def sealed(self, after: int = -1) -> list[int]:
        """Return the numbers of the valid epochs greater than `after`, ascending."""

        def act() -> list[int]:
            files = [(epoch, dropped) for epoch, dropped in numbers(self._folder, "epochs") if epoch > after]
            inherited = self._inherited()
            if inherited is None:
                return [epoch for epoch, dropped in files if not dropped]
            return [epoch for epoch, dropped in files if self._counts(epoch, inherited, dropped=dropped)]

        return self._folder.atomically(act)

    def read(self, epoch: int) -> bytes | None:
        """Return the document of the manifest of `epoch`; None if there is none, or if it was dropped."""
        name = epoch_name("epochs", epoch)
        data = self._folder.read(name)
        inherited = self._inherited() if data is None else None
        if inherited is not None and epoch in inherited.epochs:
            # A driver that was replaced has renamed the file.
            data = self._folder.read(name + ".dropped")
        return data

    def next(self) -> int:
        """Return the first number that no epoch has used, including dropped ones; 1 at a first start."""

        def act() -> int:
            return max((e for folder in ("epochs", "commits") for e, _ in numbers(self._folder, folder)), default=0) + 1

        return self._folder.atomically(act)

    def note(self, epoch: int, generation: int) -> None:
        """Remember the generation that sealed `epoch`."""
        self._sealed_by[epoch] = generation

    def take_over(self, own: OwnGeneration) -> None:
        """Take over the present epochs for the new driver of generation `own`.

        Later changes of older drivers to their files have no effect.
        """
        self._folder.atomically(lambda: self._write(own, self.sealed()))

    def drop_after(self, epoch: int, own: OwnGeneration | None) -> list[int]:
        """Make all epochs greater than `epoch` invalid, and return their numbers.

        Their files are renamed, the newest first. `own` is the generation of the calling driver, if it is one.
        """
        dropped = self.sealed(epoch)
        if own is not None:
            self._write(own, [number for number in self.sealed() if number <= epoch])
        there = {number for number, renamed in numbers(self._folder, "epochs") if not renamed}
        for number in reversed([number for number in dropped if number in there]):
            name = epoch_name("epochs", number)
            self._folder.rename(name, name + ".dropped")
        return dropped

    def _counts(self, epoch: int, inherited: Inherited, *, dropped: bool) -> bool:
        if epoch in inherited.epochs:
            return True
        return epoch >= inherited.next and not dropped and self._generation_of(epoch) >= inherited.generation

    def _generation_of(self, epoch: int) -> int:
        if epoch not in self._sealed_by:
            name = epoch_name("epochs", epoch)
            document = codec.read(self._folder, name)
            if document is None:
                return -1  # The epoch has just been pruned or dropped.
            self._sealed_by[epoch] = int(document["generation"])
        return self._sealed_by[epoch]

    def _inherited(self) -> Inherited | None:
        """Return the newest document about inherited epochs; None if there is none."""
        while generations := self._documents():
            newest = max(generations)
            document = codec.read(self._folder, _name(newest))
            if document is not None:
                origin = self._folder.origin(_name(newest))
                document = codec.upgrade(document, origin=origin, current=VERSION, upgrades=_UPGRADES)
                return Inherited(newest, frozenset(document["epochs"]), document["next"])
            # A newer document has just replaced it.
        return None

    def _write(self, own: OwnGeneration, epochs: Sequence[int]) -> None:
        document = {"version": VERSION, "epochs": sorted(epochs), "next": self.next()}
        self._folder.write(_name(own), codec.encode(document))
        for older in self._documents():
            if older < own:
                self._folder.delete(_name(older))

    def _documents(self) -> list[int]:
        return [int(found[1]) for name in self._folder.list("generations") if (found := _DOCUMENT.match(name))]


def numbers(folder: StateFolder, name: str) -> list[tuple[int, bool]]:
    """Return the epochs that have files in the folder `name` of a state, ascending, each with True if it
    was dropped.
    """
    matches = (_EPOCH_FILE.match(entry) for entry in folder.list(name))
    return sorted((int(m[1]), m[2] is not None) for m in matches if m)


def epoch_name(folder: str, epoch: int) -> str:
    """Return the document name of `epoch` in one of the state's folders."""
    return f"{folder}/{epoch:010d}.json"


def _name(generation: int) -> str:
    return f"generations/{generation:010d}.epochs.json"
