"""A local folder of small durable documents: the storage of `CheckpointStore` if the state is in a folder.

For an object store, `raycdc.state.files.rooted` has the same operations. Files are 0600, folders 0700: positions,
schemas and spool belong to the pipeline alone.

`Disk` is the interface to the file system. Its methods say what survives a crash and a power failure, so a simulation
can use a file system of its own, which forgets unsynced data.
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

#: The number of threads that wait for the disk; more threads gain nothing.
_SYNCS_AT_ONCE = 8


class Disk:
    """The file system of a folder. Its methods raise `OSError`.

    The effect of a call survives the death of the process. It survives a power failure only after a sync: `sync` for
    the content of a file, `sync_folder` for the names in a folder.
    """

    def make_folder(self, folder: Path) -> None:
        make_folder(folder)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def create(self, path: Path, parts: Sequence[bytes]) -> None:
        """Create a file with the content of `parts`, which are written one after the other."""
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
        """Call `sync` for each path, a few concurrently: a file system combines such writes."""
        if len(paths) > 1:
            with ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="raycdc-sync") as pool:
                list(pool.map(self.sync, paths))
        else:
            for path in paths:
                self.sync(path)

    def rename(self, path: Path, to: Path) -> None:
        """Rename the file, replacing any file at `to`."""
        path.rename(to)

    def link(self, path: Path, to: Path) -> None:
        """Give the file a second name. Raises `FileExistsError` if that exists."""
        to.hardlink_to(path)

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def names(self, folder: Path) -> list[str]:
        """Return the names in the folder."""
        return [entry.name for entry in folder.iterdir()]

    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)


#: The file system of this machine.
DISK = Disk()


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents durably: each parent that gets a new entry is synced."""
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

#: The prefix of files that only processes of this user may read.
_PRIVATE = "private-"

#: Errors of syncing a folder on a read-only file system.
_NEVER_WRITTEN = (errno.EROFS, errno.EINVAL)

#: A process that reads the holder of a lease has the lock for microseconds. A driver that starts in this moment
#: retries.
_LEASE_TRIES = 5
_LEASE_TRY_S = 0.02


class Lease:
    """An flock that is released when the process ends, for whatever reason.

    Hold it as long as the pipeline runs.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let another process take the state. Harmless when repeated."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class LocalFolder:
    """A local folder as a `StateFolder`.

    Names are relative to `path`, at most one folder deep. Errors of the file system become `StateError`.
    """

    def __init__(self, path: Path, disk: Disk = DISK) -> None:
        self.path = path
        self._disk = disk

    @property
    def where(self) -> str:
        """Return the folder's path, for people."""
        return str(self.path)

    def origin(self, name: str) -> str:
        """Return the path by which errors name the file `name`."""
        return str(self.path / name)

    def atomically(self, act: Callable[[], _Result]) -> _Result:
        """Return the result of `act`.

        Each document is written atomically. Several documents together are not; recovery handles a part of them.
        """
        return act()

    def require_usable(self) -> None:
        """Do nothing: every file system is suitable."""

    def sweep(self, generation: int) -> None:
        """Do nothing: only complete files have their final name."""

    def has_remains(self) -> bool:
        """Return True if there are epochs or commits, even if the state's identity is lost."""
        return bool(self.list("epochs") or self.list("commits"))

    def create(self, *folders: str) -> None:
        try:
            for folder in (self.path, *(self.path / f for f in folders)):
                self._disk.make_folder(folder)
        except OSError as cause:
            raise StateError(f"The state folder {self.path} cannot be created: {cause}.") from cause

    def read(self, name: str) -> bytes | None:
        """Return the content of `name`; None if it does not exist."""
        try:
            return self._disk.read(self.path / name)
        except FileNotFoundError:
            return None
        except OSError as cause:
            raise StateError(f"{self.path / name} cannot be read: {cause}.") from cause

    def write(self, name: str, data: bytes) -> None:
        """Replace `name` by `data`. After a crash, either the old or the new content is complete."""
        self._write(name, data, self._disk.rename)

    def write_all(self, documents: Mapping[str, bytes]) -> None:
        """Write all documents as `write` does, but wait for the disk only once, because hundreds of tables have a
        schema each.
        """
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
        """Write `name` unless it exists; an existing document is not changed."""

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
        """Return the names in `folder`, without leftovers of interrupted writes; empty if there is no such folder."""
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
        """Make the names in `folder` durable, including those of other processes."""
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
        """Return the pid of the process that has the lease `name`, as written in its file; empty if no process on this
        host has it.
        """
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # No process ever took the lease. If the folder is inaccessible, the process that writes into it reports
            # that.
            return ""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _owner(descriptor)
        finally:
            os.close(descriptor)
        return ""

    def lease(self, name: str) -> Lease:
        """Lock `name` for this process. Raises `StateError` that names the pid of the process that has the lock."""
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
    """Return a unique temporary name for the file that becomes `target` once complete."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")


def _halves(data: bytes) -> list[bytes]:
    """Return the data as two writes, between which a test may end the process."""
    return [data[: len(data) // 2], data[len(data) // 2 :]]


def is_free(path: Path) -> bool:
    """Return True if the file exists and no process on this host has it locked; False if that is unknown."""
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
    """Lock the file. Raises `OSError` if another process has the lock for longer than reading its holder takes."""
    for _ in range(_LEASE_TRIES - 1):
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LEASE_TRY_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"


def private_file(folder: Path, text: str) -> Path:
    """Create a file with `text` that only this user can read, for processes that must not get it as an argument.

    Files of a driver that died are deleted when the next one begins (`sweep_private`). A pid does not show that a
    driver died, because another machine or container may reuse it.
    """
    make_folder(folder)
    path = folder / f"{_PRIVATE}{uuid.uuid4().hex}"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def sweep_private(folder: Path) -> None:
    """Delete the private files of earlier drivers. Call it only when a driver begins, under the lease."""
    for left in folder.glob(f"{_PRIVATE}*"):
        left.unlink(missing_ok=True)
