"""Where joined segments are kept until their epoch is recorded: in a folder, or beside a state on an object store.

A *note* says of a segment of an epoch which joined one stands for it. There is one note for good: of two drivers that
joined the same segment, the one whose note came second takes the other's.

| | in a folder | on an object store |
|---|---|---|
| the joined segment | a file | a file of this machine, and a copy of it, an object that nobody else writes |
| its note | a file, made by a link | a document of the state, in one step with the look at the generations |

*What if the process dies here?* Before the note the segment was never joined, and what is left of it is deleted at the
next start; after it, it is joined for good, and whichever machine goes on finds the segment.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Protocol

from raycdc.checkpoint.disk import sync_folder
from raycdc.checkpoint.folder import LocalFolder
from raycdc.checkpoint.store import CheckpointStore
from raycdc.errors import StateError

#: Of documents of the state and, on a store, of objects.
_NOTES = "looked_up"
_SEGMENTS = "joined"
_NOTE = ".json"


class Answers(Protocol):
    """See the module's docstring. Callable from any thread. Errors are `StateError`, and `FencedError` where another
    driver took over.
    """

    @property
    def path(self) -> Path:
        """The folder of this machine where joined segments are written."""
        ...

    def note(self, name: str) -> bytes | None:
        """The note `name`; None where there is none."""
        ...

    def keep(self, name: str, note: bytes, file: str) -> bytes:
        """Make `note` that of the segment that was written as `file` (empty: no row is left), unless there is one. The
        note that counts.
        """
        ...

    def fetch(self, file: str) -> None:
        """Have the joined segment `file` on this machine, if that can be."""
        ...

    def forget(self, epoch: int) -> None:
        """`epoch` is recorded: nobody asks for its segments again."""
        ...

    def sweep(self, committed: int) -> None:
        """Delete what is of epochs up to `committed`, and what a process had only begun. While nothing is staged."""
        ...


class FolderAnswers:
    """`Answers` in a folder. Of the driver of `store`, if there is one."""

    def __init__(self, path: Path, store: CheckpointStore | None = None) -> None:
        self.path = path
        self._folder = LocalFolder(path)
        self._store = store

    def __repr__(self) -> str:
        return f"FolderAnswers({str(self.path)!r})"

    def note(self, name: str) -> bytes | None:
        self._folder.create()
        return self._folder.read(name + _NOTE)

    def keep(self, name: str, note: bytes, file: str) -> bytes:
        _require_own(self._store, name)
        self._folder.create_once(name + _NOTE, note)
        found = self._folder.read(name + _NOTE)
        if found is None:
            raise StateError(f"{self._folder.origin(name + _NOTE)} disappeared; is another process deleting it?")
        if found != note and file:
            self._folder.delete(file)
        return found

    def fetch(self, file: str) -> None:
        """It is here."""

    def forget(self, epoch: int) -> None:
        for name in self._folder.list("."):
            if _epoch_of(name) == epoch:
                self._folder.delete(name)

    def sweep(self, committed: int) -> None:
        names = self._folder.list(".")
        notes = {name: self._folder.read(name) or b"" for name in names if name.endswith(_NOTE)}
        # Behind the list: what a newer driver writes is not in it.
        _require_own(self._store, f"the segments joined since epoch {committed}")
        for name in names:
            noted = name in notes or any(name.encode() in note for note in notes.values())
            if not noted or _epoch_of(name) <= committed:
                self._folder.delete(name)


class StoreAnswers:
    """`Answers` of the driver of `store`, which is on an object store; `path` is on this machine, and may be lost."""

    def __init__(self, path: Path, store: CheckpointStore) -> None:
        self.path = path
        self._here = LocalFolder(path)
        self._store = store
        self._state = store.documents.folder

    def __repr__(self) -> str:
        return f"StoreAnswers({self._state.where!r})"

    def note(self, name: str) -> bytes | None:
        self._here.create()
        return self._state.read(f"{_NOTES}/{name}{_NOTE}")

    def keep(self, name: str, note: bytes, file: str) -> bytes:
        if file:
            self._state.write(f"{_SEGMENTS}/{file}", (self.path / file).read_bytes())
        document = f"{_NOTES}/{name}{_NOTE}"

        def act() -> bytes:
            _require_own(self._store, name)
            self._state.create_once(document, note)
            found = self._state.read(document)
            assert found is not None
            return found

        found = self._state.atomically(act)
        if found != note and file:
            self._here.delete(file)
            self._state.delete(f"{_SEGMENTS}/{file}")
        return found

    def fetch(self, file: str) -> None:
        path = self.path / file
        if path.exists():
            return
        data = self._state.read(f"{_SEGMENTS}/{file}")
        if data is None:
            return
        temporary = path.with_name(f".{file}.{uuid.uuid4().hex}.tmp")
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
                copy.write(data)
                copy.flush()
                os.fsync(copy.fileno())
            temporary.rename(path)
            sync_folder(self.path)
        except OSError as cause:
            raise StateError(f"{path} cannot be written: {cause}.") from cause

    def forget(self, epoch: int) -> None:
        self._delete([name for name in self._state.list(_NOTES) if _epoch_of(name) == epoch])

    def sweep(self, committed: int) -> None:
        # In this order: what is not named by a note that is read later was not joined by anybody.
        segments, here = self._state.list(_SEGMENTS), self._here.list(".")
        names = self._state.list(_NOTES)
        done = [name for name in names if _epoch_of(name) <= committed]
        kept = [self._state.read(f"{_NOTES}/{name}") or b"" for name in names if name not in done]
        _require_own(self._store, f"the segments joined since epoch {committed}")
        self._delete(done)
        for file in segments:
            if not any(file.encode() in note for note in kept):
                self._state.delete(f"{_SEGMENTS}/{file}")
        for file in here:
            if not any(file.encode() in note for note in kept):
                self._here.delete(file)

    def _delete(self, names: list[str]) -> None:
        """Delete notes of recorded epochs in one step, then their segments."""
        if not names:
            return

        def act() -> list[str]:
            notes = [self._state.read(f"{_NOTES}/{name}") or b"{}" for name in names]
            for name in names:
                self._state.delete(f"{_NOTES}/{name}")
            return [json.loads(note).get("file", "") for note in notes]

        for file in filter(None, self._state.atomically(act)):
            self._here.delete(file)
            self._state.delete(f"{_SEGMENTS}/{file}")


def answers_of(store: CheckpointStore) -> Answers:
    """Those of the driver that has the state of `store`."""
    path = store.path / _NOTES
    return StoreAnswers(path, store) if store.place.on_store else FolderAnswers(path, store)


def begins(epoch: int) -> str:
    """How the names of an epoch's notes and segments begin."""
    return f"{epoch:010d}-"


def _epoch_of(name: str) -> int:
    """The epoch of a note or a segment; none that was ever recorded for what is neither."""
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else 1 << 62


def _require_own(store: CheckpointStore | None, what: str) -> None:
    if store is not None:
        store.generations.require_own(what)
