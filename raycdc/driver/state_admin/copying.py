"""Copies and moves a state. The new location becomes usable only when its copy is complete.

```
meta.json has `copied_from`   the new location is incomplete and refused by every command
files                         row stores, dead letters, segments that epochs wait for
documents                     as of one moment
meta.json has the identity    the new location is a state
```

A copy may be made while a run goes on. All documents of the copy are then of the same moment. Heartbeats are not
copied. Names of documents are those of a state in a folder; on an object store two kinds have other names (`on_store`).

*What if the process dies here?* The old location is unchanged. Every command refuses the new location, except a
repetition of the same copy, which finds its own mark there and writes everything again.

*What if two copies go to one location at the same time?* A lock excludes the second if both run on one machine.
Otherwise each writes its own mark: the last mark is valid, and a copy ends when it finds a mark that is not its own.

A move copies the state and then bars the old location, so that only one of the two goes on:

| step | old location | new location |
|---|---|---|
| only in a repeated move, after a driver started before the old location was barred: the move waits for the lease | \
goes on | refused: incomplete |
| the move has the lease and its own generation | goes on, if the move dies here | – |
| mark, files, documents (as in a copy) | goes on, if the move dies here | refused: incomplete |
| bar | refused: the state was moved | refused: incomplete |
| commands that were given meanwhile | refused | refused: incomplete |
| identity | refused | goes on |

*What if the process dies here?* Before the old location is barred, the pipeline goes on from there, and the move may be
repeated. Afterwards, the same command finishes the move, and every other command gives this advice.

The *bar* is the document ``meta.json`` that bars the old location. The move writes it under its own generation. In a
folder, the write of the bar and the check of the generations are two steps. The move therefore checks the generations a
second time, and removes the bar if a driver has claimed one meanwhile. A driver looks for the bar before and after it
claims a generation, so it finds the bar if the second check came too early to find the claim.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from raycdc.core.failpoints import reach
from raycdc.errors import FencedError, StateError
from raycdc.state.documents import DOCUMENTS
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.drivers.generations import Generations, OwnGeneration
from raycdc.state.drivers.heartbeat import DriverHeartbeat
from raycdc.state.drivers.holder import Holder
from raycdc.state.files.folder import Lease, make_folder, sync_folder
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.identity import NAME, StateIdentity, no_state, read_identity
from raycdc.state.location import StateLocation, StateLock
from raycdc.state.store import CheckpointStore
from raycdc.storage import files
from raycdc.storage.files import Access, AnyPath, any_path

#: The folders of documents; all other files below a state belong to rows or processes.
COMMANDS = "commands"
_FOLDERS = ("generations", "epochs", "bases", "commits", "schemas", "documents", COMMANDS)
_ROOTS = (NAME, "gen", *sorted(DOCUMENTS))

#: In a folder, dead letters that may still change are hidden files next to the visible ones. On a store they are
#: documents.
DEAD_LETTERS_FOLDER = "dead_letters"
LOOKED_UP = "looked_up"
#: The names of these folders on an object store, where their files are objects and not documents.
_STORED = {DEAD_LETTERS_FOLDER: "letters", LOOKED_UP: "joined"}


def document_names(location: StateLocation, folder: StateFolder) -> list[str]:
    """Return the names of all documents. In a folder, files may be added and removed meanwhile."""
    names = [name for name in _ROOTS if folder.read(name) is not None]
    names += [f"{name}/{file}" for name in _FOLDERS for file in folder.list(name) if not _is_heartbeat(file)]
    names += [f"{LOOKED_UP}/{file}" for file in folder.list(LOOKED_UP) if file.endswith(".json")]
    if location.on_store:
        return names + [f"{DEAD_LETTERS_FOLDER}/{file}" for file in folder.list(_STORED[DEAD_LETTERS_FOLDER])]
    letters = Path(location.work) / DEAD_LETTERS_FOLDER
    waiting = [entry.name for entry in os.scandir(letters)] if letters.is_dir() else []
    return names + [
        f"{DEAD_LETTERS_FOLDER}/{file}" for file in sorted(waiting) if file.startswith(".") and _is_whole(file)
    ]


def documents_of(location: StateLocation, folder: StateFolder) -> dict[str, bytes]:
    """Return every document with its content.

    On a store, all are of the same moment; in a folder, they are read one after the other.
    """

    def act() -> dict[str, bytes]:
        documents = {name: folder.read(stored_name(location, name)) for name in document_names(location, folder)}
        return {name: data for name, data in documents.items() if data is not None}

    return folder.atomically(act)


def put_documents(
    location: StateLocation, folder: StateFolder, documents: Mapping[str, bytes], *, keeps: frozenset[str] = frozenset()
) -> None:
    """Write `documents` and delete all other documents, except those with names in `keeps`."""
    folders = {name.partition("/")[0] for name in documents if "/" in name}
    folder.create(*sorted({"epochs", "commits", "schemas", "spool"} | folders))

    def act() -> None:
        for name in document_names(location, folder):
            if name not in documents and name not in keeps:
                folder.delete(stored_name(location, name))
        for name, data in documents.items():
            if name not in keeps:
                folder.write(stored_name(location, name), data)

    folder.atomically(act)


def stored_name(location: StateLocation, name: str) -> str:
    """Return the name under which the storage of `location` keeps a document."""
    folder, _, file = name.partition("/")
    if location.on_store and folder == DEAD_LETTERS_FOLDER:
        return f"{_STORED[DEAD_LETTERS_FOLDER]}/{file}"
    return name


def require_readable(location: StateLocation) -> StateFolder:
    """Return the documents of an existing state, even if it is barred: moved away, or an incomplete copy.

    Raises `StateError` if there is no state.
    """
    folder = location.open()
    if folder.read(NAME) is None and not folder.has_remains():
        raise no_state(folder)
    return folder


def _is_heartbeat(file: str) -> bool:
    return file.endswith(".pulse.json")


def _is_whole(file: str) -> bool:
    return not file.endswith((".tmp", ".part"))


_KNOWN = "known"
_SPOOL = "spool"
#: The name of the folder for segments with looked-up columns on a store.
_JOINED = "joined"


class CopyLocation:
    """A location of a state with its documents and files.

    Files are named as in a folder: ``known/…``, ``spool/…`` and so on.
    """

    def __init__(self, location: StateLocation) -> None:
        self.location = location
        self.folder: StateFolder = location.open()
        self._access = Access(location.settings)

    def __repr__(self) -> str:
        return f"CopyLocation({str(self.location)!r})"

    def documents(self) -> dict[str, bytes]:
        """Return all documents except ``meta.json``.

        They are of the same moment if no process writes, or if the storage has snapshots.
        """
        found = documents_of(self.location, self.folder)
        return {name: data for name, data in found.items() if name != NAME}

    def files(self, segments: Iterable[str] = ()) -> dict[str, tuple[object, ...] | None]:
        """Return the existing files, including the files of `segments`, each with a value that changes with the
        file's content.
        """
        names = [f"{_KNOWN}/{name}" for name in files.files_below(self.path(_KNOWN))]
        names += [
            f"{DEAD_LETTERS_FOLDER}/{name}"
            for name in files.names_in(self.path(DEAD_LETTERS_FOLDER))
            if not name.startswith(".")
        ]
        joined = files.names_in(self._below(_JOINED if self.location.on_store else LOOKED_UP))
        names += [f"{LOOKED_UP}/{name}" for name in joined if not name.startswith(".") and not name.endswith(".json")]
        names += [f"{_SPOOL}/{name}" for name in segments]
        found = {name: files.identity(self.path(name)) for name in names}
        return {name: identity for name, identity in found.items() if identity is not None}

    def path(self, name: str) -> AnyPath:
        """Return the path of the file."""
        folder, _, rest = name.partition("/")
        if folder == _SPOOL:
            return self.location.work / name
        if folder == LOOKED_UP and self.location.on_store:
            return self._below(f"{_JOINED}/{rest}")
        return self._below(name)

    def _below(self, name: str) -> AnyPath:
        return any_path(str(self.location.below(name)), self._access)

    def is_empty(self) -> bool:
        return not files.names_in(any_path(str(self.location.location), self._access))


@dataclass(frozen=True, slots=True)
class Copied:
    """The size of a copy. `missing` are segments of uncommitted epochs that could not be copied."""

    documents: int
    document_bytes: int
    files: int
    file_bytes: int
    missing: list[str]


class Copy:
    """One copy of a state; see the module's docstring.

    If `segments` is True, segments are copied, too, unless both locations share a work folder.
    """

    def __init__(self, source: CopyLocation, target: CopyLocation, *, segments: bool) -> None:
        self._source = source
        self._target = target
        self._segments = segments and source.location.work != target.location.work
        self._identity = read_identity(source.folder)
        self._there: dict[str, tuple[object, ...] | None] = {}
        self._bytes: dict[str, int] = {}
        self._documents: dict[str, bytes] = {}
        self._missing: list[str] = []
        self._mark: StateIdentity | None = None
        self._held = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def begin(self) -> None:
        """Mark the new location for this copy. Raises `StateError` if it is not empty, or if another copy runs."""
        source, target = self._source, self._target
        identity = self._identity
        assert identity is not None
        _require_apart(source.location, target.location)
        if self._segments and target.location.on_store:
            _require_work_apart(source.location, target.location)
        at_ms = time.time_ns() // 1_000_000
        mark = replace(identity, copied_from=str(source.location), at_ms=at_ms, copy=uuid.uuid4().hex)
        if (there := read_identity(target.folder)) is None:
            if not target.is_empty():
                raise StateError(f"{target.location} is not empty: name an empty location, or a new one.")
            target.folder.require_usable()
            target.folder.create(_SPOOL)
            target.folder.create_once(NAME, mark.encoded())
            there = read_identity(target.folder)
        if there is None or (there.checkpoint, there.copied_from) != (mark.checkpoint, mark.copied_from):
            pipeline = "another pipeline" if there is None else f"pipeline {there.pipeline!r}"
            raise StateError(
                f"{target.location} has a state of {pipeline} already: name an empty location, or a new one."
            )
        if not target.location.on_store:
            self._held.enter_context(_lock(target.location))
        if there.copy != mark.copy:
            # The mark is that of an interrupted copy, or of a copy on another machine, which our lock does not exclude.
            target.folder.write(NAME, mark.encoded())
        self._mark = mark
        reach("after_marked")

    def copy_once(self) -> bool:
        """Read the documents and copy the files.

        Returns True if nothing changed meanwhile, so that documents and files are of the same moment.
        """
        self._require_mine()
        documents = self._source.documents()
        segments = self._owed() if self._segments else set()
        there = self._source.files(segments)
        self._missing = sorted(segments - {name.partition("/")[2] for name in there})
        self._write_files(there)
        self._documents = documents
        return self._source.documents() == documents and self._source.files(segments) == there

    def write(self) -> Copied:
        """Write the documents to the new location as `copy_once` read them last, except for ``meta.json``."""
        target, documents = self._target, self._documents

        def act() -> None:
            self._require_mine()
            put_documents(target.location, target.folder, documents, keeps=frozenset({NAME}))

        target.folder.atomically(act)
        sizes = [self._bytes[name] for name in self._there]
        return Copied(len(documents) + 1, sum(map(len, documents.values())), len(sizes), sum(sizes), self._missing)

    def end(self) -> None:
        """Make the new location a state that no driver has."""
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
        """Copy the commands that were given since the documents were copied.

        Called after the bar is written. A process that submits a command checks for the bar after it wrote the
        command's file. Therefore each command is copied, or the process that submitted it gets an error.
        """
        source, target = self._source.folder, self._target.folder
        for file in source.list(COMMANDS):
            name = f"{COMMANDS}/{file}"
            if (data := source.read(name)) is not None:
                target.create(COMMANDS)
                target.create_once(name, data)

    def _require_mine(self) -> None:
        """Raise `StateError` if another copy has the new location.

        A move that is repeated after the old location was barred has no mark.
        """
        if self._mark is None:
            return
        there = read_identity(self._target.folder)
        if there is None or there.copy != self._mark.copy:
            raise StateError(
                f"Another copy to {self._target.location} began while this one was written there, so this one ends, "
                f"and is not used. The state in {self._source.location} is as it was. Name another location for each "
                "copy."
            )

    def _owed(self) -> set[str]:
        return CheckpointStore(self._source.location, create=False).needed_segments()

    def _write_files(self, there: Mapping[str, tuple[object, ...] | None]) -> None:
        if not self._there:
            # A copy that did not end may have left any files.
            files.delete(self._target.path(name) for name in self._target.files() if name not in there)
        files.delete(self._target.path(name) for name in self._there if name not in there)
        parents: set[Path] = set()
        for name, identity in there.items():
            if name in self._there and self._there[name] == identity:
                continue
            target = self._target.path(name)
            try:
                if isinstance(target, Path):
                    _make_private(target.parent, self._target.location.work)
                self._bytes[name] = files.transfer(self._source.path(name), target)
            except FileNotFoundError:
                self._bytes[name] = 0  # The file was deleted meanwhile; the next pass notices that.
            except OSError as cause:
                raise StateError(f"{target} cannot be written: {cause}.") from cause
            parents |= {target.parent} if isinstance(target, Path) else set()
        for parent in parents:
            if parent.is_dir():
                sync_folder(parent)
        self._there = dict(there)


def _make_private(folder: Path, work: Path) -> None:
    """Create a state's folder, and its missing parents, readable for this user only."""
    for one in reversed(folder.parents):
        if one.is_relative_to(work):
            make_folder(one)
    make_folder(folder)


def _lock(location: StateLocation) -> Lease:
    """Return the lock of a copy to a folder, which is released when its process ends."""
    lock = StateLock(location)
    try:
        return lock.take()
    except StateError as cause:
        if not (holder := lock.holder()):
            raise
        raise StateError(
            f"process {holder} writes a copy to {location} already. Wait until it ended, or name another location."
        ) from cause


def _require_apart(source: StateLocation, target: StateLocation) -> None:
    one, other = f"{source}/", f"{target}/"
    if one.startswith(other) or other.startswith(one):
        raise StateError(f"{target} is not apart from {source}, where the state is: name another location.")


def _require_work_apart(source: StateLocation, target: StateLocation) -> None:
    if target.work.resolve().is_relative_to(source.work.resolve()):
        raise StateError(
            f"The files that the state in {target} keeps on this machine would be in {target.work}, inside "
            f"{source.work}, which the state leaves: set pipeline.work_dir to a folder apart from it, and repeat the "
            "command."
        )


def identity_there(side: CopyLocation) -> StateIdentity:
    """Return the identity of the state at a location. Raises `StateError` if there is none."""
    identity = read_identity(side.folder)
    if identity is None:
        raise StateError(f"There is no raycdc state in {side.location}. Is pipeline.state right?")
    return identity


#: The longest time to find a moment without changes. Each pass copies only new files, so passes become shorter. In the
#: end a pass takes milliseconds, and fits between two steps of the run.
STILL_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy in `location`.

    `epoch` is the newest epoch that is known to be in the sink, committed at `committed_ms`.
    """

    location: str
    pipeline: str
    epoch: int | None
    committed_ms: int | None
    copied: Copied


def back_up(source: StateLocation, target: StateLocation) -> Backup:
    """Copy the state at `source` to `target`, an empty location.

    Raises `StateError` if the target is not suitable, or if the state never stays unchanged long enough.
    """
    side = CopyLocation(source)
    identity = identity_there(side)
    if identity.barred:
        raise StateError(identity.bar(str(source)))
    with Copy(side, CopyLocation(target), segments=not target.on_store) as copy:
        copied = _copied(source, copy)
    record = CheckpointStore(target, create=False).last_commit()
    return Backup(
        str(target),
        identity.pipeline,
        None if record is None else record.epoch,
        None if record is None else record.committed_ms,
        copied,
    )


def _copied(source: StateLocation, copy: Copy) -> Copied:
    """Run `copy` to its end, and return the size of the copy."""
    copy.begin()
    until = time.monotonic() + STILL_WITHIN_S
    while not copy.copy_once():
        if time.monotonic() > until:
            raise StateError(
                f"The state in {source} changed faster than it could be copied, for {STILL_WITHIN_S:.0f} s. Stop the "
                f"pipeline, or raise pipeline.epoch_interval, and repeat the command."
            )
    copied = copy.write()
    copy.end()
    return copied


@dataclass(frozen=True, slots=True)
class Moved:
    """A state that was moved to `location`. `copied` is None if an earlier command had copied it."""

    pipeline: str
    before: str
    location: str
    copied: Copied | None


def move(source: StateLocation, target: StateLocation) -> Moved:
    """Move the state from `source` to `target`, an empty location, and bar `source`.

    Repeating the command finishes an interrupted move. Raises `StateError` if a process has the state, or `target` is
    not suitable.
    """
    old = CopyLocation(source)
    identity = identity_there(old)
    if identity.copied_from or identity.moved_to not in ("", str(target)):
        raise StateError(identity.bar(str(source)))
    new = CopyLocation(target)
    if identity.moved_to:
        if _is_finished(old, new, identity):
            return Moved(identity.pipeline, str(source), str(target), None)
        # A driver had taken the state before the bar was written, and continued with it.
        old.folder.write(NAME, replace(identity, moved_to="", at_ms=0).encoded())
    with ExitStack() as stack:
        store = CheckpointStore(source, create=False)
        lease = store.lease()
        stack.callback(lease.release)
        term = DriverGeneration(store)
        heartbeat = _heartbeat(store, term, lease)
        stack.callback(heartbeat.close)
        copy = stack.enter_context(Copy(old, new, segments=True))
        copy.begin()
        copy.copy_once()  # No process writes to the state, so one pass is enough.
        copied = copy.write()
        reach("after_copied")
        _bar(store, term, old, target)
        reach("after_barred")
        copy.follow_commands()
        copy.end()
        return Moved(identity.pipeline, str(source), str(target), copied)


def _is_finished(old: CopyLocation, new: CopyLocation, identity: StateIdentity) -> bool:
    """Finish an interrupted move whose old location is already barred, and return True.

    Return False if the copy is not the newest any more.
    """
    there = read_identity(new.folder)
    if there is None or there.checkpoint != identity.checkpoint:
        raise StateError(
            f"{identity.bar(str(old.location))} But the state is not in {new.location}: bring that location back. The "
            f"copy in {old.location} is as it was when the state left it."
        )
    if not there.barred:
        return True
    if there.copied_from != str(old.location):
        raise StateError(there.bar(str(new.location)))
    if Generations(old.folder).newest() != Generations(new.folder).newest():
        return False
    copy = Copy(old, new, segments=True)
    copy.follow_commands()
    copy.end()
    return True


def _bar(store: CheckpointStore, term: DriverGeneration, old: CopyLocation, target: StateLocation) -> None:
    """Bar the old location.

    Raises `FencedError` if a driver took over meanwhile. The state then stays in use at the old location.
    """
    identity = identity_there(old)
    barred = replace(identity, moved_to=str(target), at_ms=time.time_ns() // 1_000_000)
    store.documents.as_driver("the move", lambda: old.folder.write(NAME, barred.encoded()))
    try:
        store.generations.require_newest(term.generation(), "the move")
    except FencedError:
        old.folder.write(NAME, identity.encoded())
        raise


def _heartbeat(store: CheckpointStore, term: DriverGeneration, lease: Lease) -> DriverHeartbeat:
    """Return a heartbeat that keeps a standby on another machine waiting while files are copied."""
    return DriverHeartbeat(
        store.generations, term.generation, lease=lambda: lease, on_lost=lambda _: None, lock=store.lock.file
    )
