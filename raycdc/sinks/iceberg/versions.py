"""Reads and writes the versions of a table's metadata in a warehouse of ``type = hadoop``: ``vN.metadata.json`` and
``version-hint.text``.

The file ``version-hint.text`` names the newest version or a slightly older one. Version N + 1 is created by an
operation that fails if that version exists: a ``link`` in a folder, a conditional put on an object store. The hint is
written afterwards. A reader begins at the version of the hint and continues while there is a next version, so nothing
is lost if a writer dies before it writes the hint.

Called by `raycdc.sinks.iceberg.catalog`. Names are relative to the warehouse. Thread-safe.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from abc import ABC, abstractmethod
from pathlib import Path

from pyiceberg.exceptions import CommitFailedException

from raycdc.state.files.folder import sync_folder
from raycdc.storage.api import PreconditionFailed, Store

_VERSION = re.compile(r"v(\d+)(\.gz)?\.metadata\.json")
_HINT = "version-hint.text"


class Versions(ABC):
    """The versions of tables' metadata; see the module's docstring.

    Its subclasses are for folders and for object stores.
    """

    def newest(self, folder: str) -> tuple[int, str] | None:
        """Return the newest version of a table and its file; None if there is no table. `folder` is the folder of the
        table's metadata.
        """
        version = self._hint(folder)
        if version is None or self._file_of(folder, version) is None:
            found = (_VERSION.fullmatch(name) for name in self._names(folder))
            version = max((int(match[1]) for match in found if match), default=None)
            if version is None:
                return None
        while self._file_of(folder, version + 1) is not None:
            version += 1
        name = self._file_of(folder, version)
        assert name is not None
        return version, name

    def add(self, folder: str, version: int, data: bytes) -> str:
        """Write `data` as the given version, and return the name of its file.

        Raises `CommitFailedException` if the version exists.
        """
        name = f"{folder}/v{version}.metadata.json"
        if self._has(f"{folder}/v{version}.gz.metadata.json") or not self._put_if_absent(name, data):
            raise CommitFailedException(f"Version {version} was committed by another writer: {name}")
        # A suspended writer must not create a version that is older than the newest one. Its name may be free, because
        # old versions are removed.
        if (newest := self._hint(folder)) is not None and newest > version + 1:
            self._delete(name)
            raise CommitFailedException(f"Version {version} is long gone: {name}")
        self._put(f"{folder}/{_HINT}", str(version).encode())
        return name

    @abstractmethod
    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""

    def make_folder(self, folder: str) -> None:  # noqa: B027
        """Create a folder, if the storage has folders."""

    def _hint(self, folder: str) -> int | None:
        text = self._read(f"{folder}/{_HINT}")
        with contextlib.suppress(ValueError):
            return None if text is None else int(text)
        return None

    def _file_of(self, folder: str, version: int) -> str | None:
        names = (f"{folder}/v{version}.metadata.json", f"{folder}/v{version}.gz.metadata.json")
        return next((name for name in names if self._has(name)), None)

    @abstractmethod
    def _names(self, folder: str) -> list[str]: ...

    @abstractmethod
    def _has(self, name: str) -> bool: ...

    @abstractmethod
    def _read(self, name: str) -> bytes | None: ...

    @abstractmethod
    def _put(self, name: str, data: bytes) -> None: ...

    @abstractmethod
    def _put_if_absent(self, name: str, data: bytes) -> bool: ...

    @abstractmethod
    def _delete(self, name: str) -> None: ...


class FolderVersions(Versions):
    """Versions in a folder of this machine. Writes are durable."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folders(self, folder: str) -> list[str]:
        location = self._root / folder
        return [entry.name for entry in location.iterdir() if entry.is_dir()] if location.is_dir() else []

    def make_folder(self, folder: str) -> None:
        (self._root / folder).mkdir(parents=True, exist_ok=True)

    def _names(self, folder: str) -> list[str]:
        location = self._root / folder
        return [entry.name for entry in location.iterdir()] if location.is_dir() else []

    def _has(self, name: str) -> bool:
        return (self._root / name).exists()

    def _read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def _put(self, name: str, data: bytes) -> None:
        path = self._root / name
        temporary = path.with_name(f"{path.stem}.{uuid.uuid4()}.tmp")
        temporary.write_bytes(data)
        temporary.rename(path)

    def _put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{uuid.uuid4()}.metadata.json.tmp")
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_folder(path.parent)
        return True

    def _delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)


class StoreVersions(Versions):
    """Versions on an object store. Raises `StoreError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def folders(self, folder: str) -> list[str]:
        return sorted({name.partition("/")[0] for name in self._store.list(folder) if "/" in name})

    def _names(self, folder: str) -> list[str]:
        return self._store.list(folder)

    def _has(self, name: str) -> bool:
        return self._store.read(name) is not None

    def _read(self, name: str) -> bytes | None:
        found = self._store.read(name)
        return None if found is None else found.data

    def _put(self, name: str, data: bytes) -> None:
        self._store.put(name, data)

    def _put_if_absent(self, name: str, data: bytes) -> bool:
        # The snapshot's random id makes the bytes unique.
        return not isinstance(self._store.put_if_absent(name, data), PreconditionFailed)

    def _delete(self, name: str) -> None:
        self._store.delete(name)
