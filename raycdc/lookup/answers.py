"""Where joined segments are kept until their epoch is recorded: in a folder, or beside a state on an object store.

A *note* says of a segment of an epoch which joined one stands for it. There is one note for good: of two drivers that
joined the same segment, the one whose note came second takes the other's.

| | of a state in a folder | of one on an object store |
|---|---|---|
| the joined segment | a file | a file of this machine, and a copy of it, an object that nobody else writes |
| its note | a file, made by a link | an object, in one step with the look at the generations |

*What if the process dies here?* Before the note the segment was never joined, and what is left of it is deleted at the
next start; after it, it is joined for good, and whichever machine goes on finds the segment.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from raycdc.checkpoint.documents import DriverDocuments
from raycdc.checkpoint.folder import LocalFolder
from raycdc.checkpoint.store import CheckpointStore
from raycdc.errors import StateError

#: Of notes, which are documents of the state, and of the copies of segments on a store.
_NOTES = "looked_up"
_SEGMENTS = "joined"
_NOTE = ".json"


class Answers:
    """See the module's docstring. Callable from any thread. Errors are `StateError`, and `FencedError` where another
    driver took over.

    `path` is the folder of this machine where joined segments are written. Where it may be lost they are `copied`
    beside the `documents` of the state, in which the notes are.
    """

    def __init__(self, path: Path, documents: DriverDocuments, *, copied: bool = False) -> None:
        self.path = path
        self._here = LocalFolder(path)
        self._documents = documents
        self._state = documents.folder
        self._copied = copied

    def __repr__(self) -> str:
        return f"Answers({str(self.path)!r}, {self._state.where!r})"

    def note(self, name: str) -> bytes | None:
        """The note `name`; None where there is none."""
        self._here.create()
        return self._state.read(_document(name))

    def keep(self, name: str, note: bytes, file: str) -> bytes:
        """Make `note` that of the segment that was written as `file` (empty: no row is left), unless there is one. The
        note that counts.
        """
        if file and self._copied:
            self._state.write(_copy(file), (self.path / file).read_bytes())
        found = self._documents.as_driver(name, partial(self._noted, _document(name), note))
        if found != note and file:
            self._delete(file)
        return found

    def fetch(self, file: str) -> None:
        """Have the joined segment `file` on this machine, if that can be."""
        if not self._copied or (self.path / file).exists():
            return
        data = self._state.read(_copy(file))
        if data is not None:
            self._here.write(file, data)

    def forget(self, epoch: int) -> None:
        """`epoch` is recorded: nobody asks for its segments again."""
        names = [name for name in self._notes() if _epoch_of(name) == epoch]
        if names:
            for file in self._state.atomically(partial(self._taken, names)):
                self._delete(file)

    def sweep(self, committed: int) -> None:
        """Delete what is of epochs up to `committed`, and what a process had only begun. While nothing is staged."""
        # In this order: what is not named by a note that is read later was not joined by anybody.
        copies = self._state.list(_SEGMENTS) if self._copied else []
        here = [file for file in self._here.list(".") if not file.endswith(_NOTE)]
        names = self._notes()
        done = [name for name in names if _epoch_of(name) <= committed]
        kept = {_file_of(self._state.read(f"{_NOTES}/{name}")) for name in names if name not in done}
        self._documents.as_driver(f"the segments joined since epoch {committed}", partial(self._taken, done))
        for file in {*copies, *here} - kept:
            self._delete(file)

    def _noted(self, document: str, note: bytes) -> bytes:
        self._state.create_once(document, note)
        found = self._state.read(document)
        if found is None:
            raise StateError(f"{self._state.origin(document)} disappeared; is another process deleting it?")
        return found

    def _notes(self) -> list[str]:
        return [name for name in self._state.list(_NOTES) if name.endswith(_NOTE)]

    def _taken(self, names: list[str]) -> list[str]:
        """Delete the notes; the segments that they named."""
        files = [_file_of(self._state.read(f"{_NOTES}/{name}")) for name in names]
        for name in names:
            self._state.delete(f"{_NOTES}/{name}")
        return [file for file in files if file]

    def _delete(self, file: str) -> None:
        self._here.delete(file)
        if self._copied:
            self._state.delete(_copy(file))


def answers_of(store: CheckpointStore) -> Answers:
    """Those of the driver that has the state of `store`."""
    return Answers(store.path / _NOTES, store.documents, copied=store.place.on_store)


def _document(name: str) -> str:
    return f"{_NOTES}/{name}{_NOTE}"


def _copy(file: str) -> str:
    return f"{_SEGMENTS}/{file}"


def _file_of(note: bytes | None) -> str:
    """The joined segment that a note names; empty where it names none."""
    return str(json.loads(note or b"{}").get("file", ""))


def begins(epoch: int) -> str:
    """How the names of an epoch's notes and segments begin."""
    return f"{epoch:010d}-"


def _epoch_of(name: str) -> int:
    """The epoch of a note or a segment; none that was ever recorded for what is neither."""
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else 1 << 62
