"""One state written to another place, which may be used only when all of it is there.

```
meta.json says `copied_from`   nobody may go on from the new place
files                          known rows, rows left out, segments that epochs wait for
documents                      as of one moment
meta.json says whose it is     the new place is a state
```

*What if the process dies here?* The old place is as it was, and the new one is refused by every command, with the one
that goes on: the same copy again finds its own mark there, and writes everything anew.

*What if two copies go to one place at once?* A lock keeps the second out where both are on one machine. Where no lock
meets the other one, each has a mark of its own: the last one counts, and whoever finds another than its own ends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from raycdc.checkpoint.disk import make_folder, sync_folder
from raycdc.checkpoint.folder import Lease
from raycdc.checkpoint.generations import Generations, OwnGeneration
from raycdc.checkpoint.holder import Holder
from raycdc.checkpoint.identity import NAME, Identity, read_identity
from raycdc.checkpoint.place import StateLock, StatePlace
from raycdc.checkpoint.state_folder import StateFolder
from raycdc.checkpoint.store import CheckpointStore
from raycdc.errors import StateError
from raycdc.failpoints import reach
from raycdc.stores import files
from raycdc.stores.files import Access, AnyPath, any_path
from raycdc.upkeep.documents import COMMANDS, LETTERS, LOOKED_UP, documents_of, put_documents

_KNOWN = "known"
_SPOOL = "spool"
#: Segments with what was looked up, as a store has them.
_JOINED = "joined"


class Side:
    """A place with its documents and files. Files are called as in a folder: ``known/…``, ``spool/…`` and so on."""

    def __init__(self, place: StatePlace) -> None:
        self.place = place
        self.folder: StateFolder = place.open()
        self._access = Access(place.settings)

    def __repr__(self) -> str:
        return f"Side({str(self.place)!r})"

    def documents(self) -> dict[str, bytes]:
        """All but ``meta.json``, as of one moment where nobody writes them or the storage can tell."""
        found = documents_of(self.place, self.folder)
        return {name: data for name, data in found.items() if name != NAME}

    def files(self, segments: Iterable[str] = ()) -> dict[str, tuple[object, ...] | None]:
        """The files that are there, of `segments` those too, each with a value that changes with its content."""
        names = [f"{_KNOWN}/{name}" for name in files.files_below(self.path(_KNOWN))]
        names += [f"{LETTERS}/{name}" for name in files.names_in(self.path(LETTERS)) if not name.startswith(".")]
        joined = files.names_in(self._below(_JOINED if self.place.on_store else LOOKED_UP))
        names += [f"{LOOKED_UP}/{name}" for name in joined if not name.startswith(".") and not name.endswith(".json")]
        names += [f"{_SPOOL}/{name}" for name in segments]
        found = {name: files.identity(self.path(name)) for name in names}
        return {name: identity for name, identity in found.items() if identity is not None}

    def path(self, name: str) -> AnyPath:
        """Where the file is."""
        folder, _, rest = name.partition("/")
        if folder == _SPOOL:
            return self.place.work / name
        if folder == LOOKED_UP and self.place.on_store:
            return self._below(f"{_JOINED}/{rest}")
        return self._below(name)

    def _below(self, name: str) -> AnyPath:
        return any_path(str(self.place.below(name)), self._access)

    def is_empty(self) -> bool:
        return not files.names_in(any_path(str(self.place.place), self._access))


@dataclass(frozen=True, slots=True)
class Copied:
    """The size of a copy. `missing` are segments of epochs that wait which could not be copied."""

    documents: int
    document_bytes: int
    files: int
    file_bytes: int
    missing: list[str]


class Copy:
    """See the module's docstring. `segments`: whether those go along; they stay where both have one work folder."""

    def __init__(self, source: Side, target: Side, *, segments: bool) -> None:
        self._source = source
        self._target = target
        self._segments = segments and source.place.work != target.place.work
        self._identity = read_identity(source.folder)
        self._there: dict[str, tuple[object, ...] | None] = {}
        self._bytes: dict[str, int] = {}
        self._documents: dict[str, bytes] = {}
        self._missing: list[str] = []
        self._mark: Identity | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def begin(self) -> None:
        """Mark the new place, and have it for this copy. `StateError` where something else is there, or another copy on
        its way.
        """
        source, target = self._source, self._target
        identity = self._identity
        assert identity is not None
        _require_apart(source.place, target.place)
        if self._segments and target.place.on_store:
            _require_work_apart(source.place, target.place)
        at_ms = time.time_ns() // 1_000_000
        mark = replace(identity, copied_from=str(source.place), at_ms=at_ms, copy=uuid.uuid4().hex)
        if (there := read_identity(target.folder)) is None:
            if not target.is_empty():
                raise StateError(f"There is something in {target.place} already: name an empty place, or a new one.")
            target.folder.require_usable()
            target.folder.create(_SPOOL)
            target.folder.create_once(NAME, mark.encoded())
            there = read_identity(target.folder)
        if there is None or (there.checkpoint, there.copied_from) != (mark.checkpoint, mark.copied_from):
            pipeline = "somebody" if there is None else f"pipeline {there.pipeline!r}"
            raise StateError(f"{target.place} has a state of {pipeline} already: name an empty place, or a new one.")
        if not target.place.on_store:
            self._held.enter_context(_lock(target.place))
        if there.copy != mark.copy:
            # Of a copy that did not end, or does not meet our lock.
            target.folder.write(NAME, mark.encoded())
        self._mark = mark
        reach("after_marked")

    def look(self) -> bool:
        """Read the documents and copy the files; whether nothing changed meanwhile, so that both are of one moment."""
        self._require_mine()
        documents = self._source.documents()
        segments = self._owed() if self._segments else set()
        there = self._source.files(segments)
        self._missing = sorted(segments - {name.partition("/")[2] for name in there})
        self._write_files(there)
        self._documents = documents
        return self._source.documents() == documents and self._source.files(segments) == there

    def write(self) -> Copied:
        """Make the documents of the new place as they were at the last look, but for ``meta.json``."""
        target, documents = self._target, self._documents

        def act() -> None:
            self._require_mine()
            put_documents(target.place, target.folder, documents, keeps=frozenset({NAME}))

        target.folder.atomically(act)
        sizes = [self._bytes[name] for name in self._there]
        return Copied(len(documents) + 1, sum(map(len, documents.values())), len(sizes), sum(sizes), self._missing)

    def end(self) -> None:
        """The new place is a state, which nobody has."""
        identity, folder = self._identity, self._target.folder
        assert identity is not None
        self._require_mine()
        generations = Generations(folder)
        if newest := generations.newest():
            generations.show(OwnGeneration(newest), replace(Holder.myself(), ended=True))

        def act() -> None:
            self._require_mine()
            folder.write(NAME, replace(identity, moved_to="", copied_from="", at_ms=0, copy="").encoded())

        folder.atomically(act)

    def follow_commands(self) -> None:
        """Copy the commands that were given since the documents were copied. Behind the bar, which whoever gives one
        looks for after its file is there: so each of them is copied, or its giver knows that it may not be.
        """
        source, target = self._source.folder, self._target.folder
        for file in source.list(COMMANDS):
            name = f"{COMMANDS}/{file}"
            if (data := source.read(name)) is not None:
                target.create(COMMANDS)
                target.create_once(name, data)

    def _require_mine(self) -> None:
        """`StateError` where another copy has the new place. One that goes on behind a bar has no mark of its own."""
        if self._mark is None:
            return
        there = read_identity(self._target.folder)
        if there is None or there.copy != self._mark.copy:
            raise StateError(
                f"Another copy to {self._target.place} began while this one was written there, so this one ends, and "
                f"is not used. The state in {self._source.place} is as it was. Name another place for each copy."
            )

    def _owed(self) -> set[str]:
        return CheckpointStore(self._source.place, create=False).needed_segments()

    def _write_files(self, there: Mapping[str, tuple[object, ...] | None]) -> None:
        if not self._there:
            # Of a copy that did not end there may be any.
            files.delete(self._target.path(name) for name in self._target.files() if name not in there)
        files.delete(self._target.path(name) for name in self._there if name not in there)
        parents: set[Path] = set()
        for name, identity in there.items():
            if name in self._there and self._there[name] == identity:
                continue
            target = self._target.path(name)
            try:
                if isinstance(target, Path):
                    _make_private(target.parent, self._target.place.work)
                self._bytes[name] = files.transfer(self._source.path(name), target)
            except FileNotFoundError:
                self._bytes[name] = 0  # It went meanwhile, which the next look finds.
            except OSError as cause:
                raise StateError(f"{target} cannot be written: {cause}.") from cause
            parents |= {target.parent} if isinstance(target, Path) else set()
        for parent in parents:
            if parent.is_dir():
                sync_folder(parent)
        self._there = dict(there)


def _make_private(folder: Path, work: Path) -> None:
    """Make a folder of a state, and those that it is in, for this user alone."""
    for one in reversed(folder.parents):
        if one.is_relative_to(work):
            make_folder(one)
    make_folder(folder)


def _lock(place: StatePlace) -> Lease:
    """The lock of a copy to a folder, which ends with its process."""
    lock = StateLock(place)
    try:
        return lock.take()
    except StateError as cause:
        if not (holder := lock.holder()):
            raise
        raise StateError(
            f"process {holder} writes a copy to {place} already. Wait until it ended, or name another place."
        ) from cause


def _require_apart(source: StatePlace, target: StatePlace) -> None:
    one, other = f"{source}/", f"{target}/"
    if one.startswith(other) or other.startswith(one):
        raise StateError(f"{target} is not apart from {source}, where the state is: name another place.")


def _require_work_apart(source: StatePlace, target: StatePlace) -> None:
    if target.work.resolve().is_relative_to(source.work.resolve()):
        raise StateError(
            f"The files that the state in {target} keeps on this machine would be in {target.work}, inside "
            f"{source.work}, which the state leaves: set pipeline.work to a folder apart from it, and repeat the "
            "command."
        )


def identity_there(side: Side) -> Identity:
    """Of the state on a side. `StateError` where there is none."""
    identity = read_identity(side.folder)
    if identity is None:
        raise StateError(f"There is no raycdc state in {side.place}. Is pipeline.state right?")
    return identity
