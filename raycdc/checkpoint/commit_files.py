"""The files of commit records, and which of them counts: no driver ever writes over the record of another.

A folder cannot make "is my generation still the newest?" and "put this record there" one step, so a driver that was
stopped between the two and wakes up behind its successor may still write. Therefore the first record of an epoch is
made by a link, which nobody can make twice, and whoever replaces it writes a file that has its own generation in its
name.

| of an epoch there are | counts |
|---|---|
| `N.json` alone | it, whoever wrote it: its targets hold the epoch |
| `N.json` and `N.json.GENERATION` of some | that of the newest generation; of one generation, the latter |

What a stale driver writes is thus the record of an epoch that nobody has recorded yet, which is then true, or one that
a newer driver's stands before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from raycdc.checkpoint import codec
from raycdc.checkpoint.epoch_files import epoch_name, numbers
from raycdc.checkpoint.state_folder import StateFolder
from raycdc.errors import StateError

_FOLDER = "commits"
_REPLACED = re.compile(r"(\d{10})\.json\.(\d{10})$")


class CommitFiles:
    """See the module's docstring. Every answer comes from storage."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"CommitFiles({self._folder.where!r})"

    def write(self, epoch: int, generation: int, data: bytes) -> None:
        """Make `data` the record of `epoch`, for the driver of `generation`."""
        name = epoch_name(_FOLDER, epoch)
        self._folder.create_once(name, data)
        if self._folder.read(name) == data:
            return
        self._folder.write(_own_name(epoch, generation), data)

    def newest(self) -> tuple[str, codec.Document] | None:
        """The record that counts of the newest epoch, of whatever version, and its file; None where there is none.

        Whoever wrote it may have died before it was durable: then whoever relies on it would be the only one to know.
        """
        committed = [epoch for epoch, _ in numbers(self._folder, _FOLDER)]
        if not committed:
            return None
        self._folder.sync(_FOLDER)
        epoch = max(committed)
        name = epoch_name(_FOLDER, epoch)
        first = self._read(name)
        others = [generation for number, generation in self._replaced() if number == epoch]
        if not others or max(others) < int(first["generation"]):
            return name, first
        name = _own_name(epoch, max(others))
        return name, self._read(name)

    def all(self) -> Iterator[codec.Document]:
        """Every record that is there, those that do not count among them."""
        for epoch, _ in numbers(self._folder, _FOLDER):
            yield self._read(epoch_name(_FOLDER, epoch))
        for epoch, generation in self._replaced():
            yield self._read(_own_name(epoch, generation))

    def kept(self, count: int) -> int:
        """Delete all but the records of the newest `count` epochs; the first number that is left."""
        committed = sorted(epoch for epoch, _ in numbers(self._folder, _FOLDER))
        first = committed[-count:][0]
        for epoch, generation in self._replaced():
            if epoch < first:
                self._folder.delete(_own_name(epoch, generation))
        for epoch in committed:
            if epoch < first:
                self._folder.delete(epoch_name(_FOLDER, epoch))
        return first

    def _read(self, name: str) -> codec.Document:
        document = codec.read(self._folder, name)
        if document is None:
            origin = self._folder.origin(name)
            raise StateError(f"{origin} disappeared while it was read; is another process deleting it?")
        return document

    def _replaced(self) -> list[tuple[int, int]]:
        matches = (_REPLACED.match(entry) for entry in self._folder.list(_FOLDER))
        return [(int(found[1]), int(found[2])) for found in matches if found]


def _own_name(epoch: int, generation: int) -> str:
    return f"{epoch_name(_FOLDER, epoch)}.{generation:010d}"
