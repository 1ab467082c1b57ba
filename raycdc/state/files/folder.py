"""A local folder of small durable documents: the storage below `CheckpointStore`, where the state is in a folder.

On an object store the same operations are those of `raycdc.state.files.rooted`. Files are 0600, folders 0700:
positions, schemas and spool belong to the pipeline alone.

The file system below the state's folder: what a crash leaves of a file, and when a machine that loses power has it.

A simulation hands in another one, which forgets what was not synced.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

from raycdc.core.failpoints import reach
from raycdc.errors import StateError

#: Threads that wait for the disk; more of them gain nothing.
_SYNCS_AT_ONCE = 8


class Disk:
    """The file system as a folder asks it. Its calls raise `OSError`.

    What a call did survives the process at once, and the machine only when it was synced: the content of a file by
    `sync`, the names in a folder by `sync_folder`.
    """

    def make_folder(self, folder: Path) -> None:
        make_folder(folder)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def create(self, path: Path, parts: Sequence[bytes]) -> None:
        """A new file of `parts`, written one after the other."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for number, part in enumerate(parts):
                if number:
                    reach("half_written")
                file.write(part)
                file.flush()

    def sync(self, path: Path) -> None:
        """Make the content of a file durable."""
        _sync(path, os.O_RDONLY)

    def sync_all(self, paths: Sequence[Path]) -> None:
        """`sync` for each of them, a few at once: a file system writes what comes together in one go."""
        if len(paths) > 1:
            with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="raycdc-sync") as pool:
                list(pool.map(self.sync, paths))
        else:
            for path in paths:
                self.sync(path)

    def rename(self, path: Path, to: Path) -> None:
        """Give the file another name, in the place of whatever has it."""
        path.rename(to)

    def link(self, path: Path, to: Path) -> None:
        """Give the file another name beside its own. `FileExistsError` where something has it."""
        to.hardlink_to(path)

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def names(self, folder: Path) -> list[str]:
        """Of all that lies in the folder."""
        return [entry.name for entry in folder.iterdir()]

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)


#: The file system of this machine.
DISK = Disk()


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents, durably: each parent that got a new entry is synced."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for made in reversed(missing):
        sync_folder(made.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_Result = TypeVar("_Result")

#: Begins the names of files that other processes of this user read, and nobody else.
_PRIVATE = "private-"

#: What syncing a folder says where nobody can write.
_NEVER_WRITTEN = (errno.EROFS, errno.EINVAL)

#: Whoever asks for the holder of a lease has it for microseconds: a driver that starts just then tries again.
_LEASE_TRIES = 5
_LEASE_TRY_S = 0.02


class Lease:
    """An flock that ends with the process, however it dies; hold it as long as the pipeline runs."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let another process take the state; calling it twice is harmless."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class LocalFolder:
    """Names are relative to `path`, at most one folder deep. Errors of the file system become `StateError`."""

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        self.path = path
        self._disk = disk

    @property
    def where(self) -> str:
        """The folder's path, for people."""
        return str(self.path)

    def origin(self, name: str) -> str:
        """The path by which errors name the file `name`."""
        return str(self.path / name)

    def atomically(self, act: Callable[[], _Result]) -> _Result:
        """`act`. A document is atomic; several are not, which recovery is made for."""
        return act()

    def require_usable(self) -> None:
        """Every file system has what is needed."""

    def sweep(self, generation: int) -> None:
        """Whatever has its name counts; what was interrupted before has none."""

    def has_remains(self) -> bool:
        """Whether there are epochs or commits, although the state's identity may be lost."""
        return bool(self.list("epochs") or self.list("commits"))

    def create(self, *folders: str) -> None:
        try:
            for folder in (self.path, *(self.path / f for f in folders)):
                self._disk.make_folder(folder)
        except OSError as cause:
            raise StateError(f"The state folder {self.path} cannot be created: {cause}.") from cause

    def read(self, name: str) -> bytes | None:
        """Content of `name`, None when it does not exist."""
        try:
            return self._disk.read(self.path / name)
        except FileNotFoundError:
            return None
        except OSError as cause:
            raise StateError(f"{self.path / name} cannot be read: {cause}.") from cause

    def write(self, name: str, data: bytes) -> None:
        """Replace `name` by `data` so that after a crash either the old or the new content is there, whole."""
        self._write(name, data, self._disk.rename)

    def write_all(self, documents: Mapping[str, bytes]) -> None:
        """`write` for each. The disk is waited for together: hundreds of tables have a schema each."""
        locations = {_temporary(target): target for target in (self.path / name for name in documents)}
        try:
            for temporary, data in zip(locations, documents.values(), strict=True):
                self._disk.create(temporary, _halves(data))
            self._disk.sync_all(list(locations))
            for temporary, target in locations.items():
                self._disk.rename(temporary, target)
            for folder in {target.parent for target in locations.values()}:
                self._disk.sync_folder(folder)
        except OSError as cause:
            for temporary in locations:
                with suppress(OSError):
                    self._disk.delete(temporary)
            raise StateError(f"{self.path / next(iter(documents))} cannot be written: {cause}.") from cause

    def create_once(self, name: str, data: bytes) -> None:
        """`write`, unless `name` exists: then its content stays."""

        def link(temporary: Path, target: Path) -> None:
            with suppress(FileExistsError):
                self._disk.link(temporary, target)
            self._disk.delete(temporary)

        self._write(name, data, link)

    def _write(self, name: str, data: bytes, rename: Callable[[Path, Path], object]) -> None:
        target = self.path / name
        temporary = _temporary(target)
        try:
            self._disk.create(temporary, _halves(data))
            self._disk.sync(temporary)
            rename(temporary, target)
            self._disk.sync_folder(target.parent)
        except OSError as cause:
            with suppress(OSError):
                self._disk.delete(temporary)
            raise StateError(f"{target} cannot be written: {cause}.") from cause

    def list(self, folder: str) -> list[str]:
        """Names in `folder`, without leftovers of interrupted writes; empty when there is no such folder."""
        try:
            return [name for name in self._disk.names(self.path / folder) if not name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as cause:
            raise StateError(f"{self.path / folder} cannot be read: {cause}.") from cause

    def rename(self, name: str, to: str) -> None:
        try:
            self._disk.rename(self.path / name, self.path / to)
            self._disk.sync_folder((self.path / to).parent)
        except OSError as cause:
            raise StateError(f"{self.path / name} cannot be renamed to {self.path / to}: {cause}.") from cause

    def sync(self, folder: str) -> None:
        """Make the names in `folder` durable, whoever wrote there."""
        try:
            self._disk.sync_folder(self.path / folder)
        except OSError as cause:
            if cause.errno in _NEVER_WRITTEN:
                return
            raise StateError(f"{self.path / folder} cannot be synced: {cause}.") from cause

    def delete(self, name: str) -> None:
        try:
            self._disk.delete(self.path / name)
        except OSError as cause:
            raise StateError(f"{self.path / name} cannot be deleted: {cause}.") from cause

    def holder(self, name: str) -> str:
        """The pid of the process that has the lease `name`, as it says itself; empty where none on this host has it."""
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""  # There never was a lease, or whoever may write here must say what is wrong.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _owner(descriptor)
        finally:
            os.close(descriptor)
        return ""

    def lease(self, name: str) -> Lease:
        """Lock `name` for this process; `StateError` names the pid that has it."""
        path = self.path / name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as cause:
            raise StateError(f"{path} cannot be opened: {cause}.") from cause
        try:
            _lock(descriptor)
        except OSError as cause:
            owner = _owner(descriptor)
            os.close(descriptor)
            raise StateError(
                f"The state in {self.path} is in use by process {owner}. Stop that one first (two drivers on one state "
                f"would commit twice), or give this pipeline its own pipeline.state."
            ) from cause
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return Lease(path, descriptor)


def _temporary(target: Path) -> Path:
    """A name of its own for what becomes `target` when it is whole."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")


def _halves(data: bytes) -> list[bytes]:
    """In two writes, between which a test may end the process."""
    return [data[: len(data) // 2], data[len(data) // 2 :]]


def is_free(path: Path) -> bool:
    """Whether the file is there, and nobody on this host has it locked; False where that cannot be told."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _lock(descriptor: int) -> None:
    """`OSError` where somebody else has the lock, for longer than it takes to ask for its holder."""
    for _ in range(_LEASE_TRIES - 1):
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LEASE_TRY_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"


def private_file(folder: Path, text: str) -> Path:
    """A new file of this user's alone with `text`, for processes that must not be told it in words.

    What a driver that died left of them goes when the next one begins (`sweep_private`): whether it died cannot be
    told from its pid, which another machine or container gives to others.
    """
    make_folder(folder)
    path = folder / f"{_PRIVATE}{uuid.uuid4().hex}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def sweep_private(folder: Path) -> None:
    """Remove the private files of earlier drivers; only for one that begins, under the lease."""
    for left in folder.glob(f"{_PRIVATE}*"):
        left.unlink(missing_ok=True)
