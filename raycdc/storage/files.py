"""The operations by which sinks write, read and delete files, on this machine or in an object store.

A file of this machine is named by a path. A file in a store is named by a `StorePath`, which can be joined like a path.
A file is complete or missing; a store guarantees this itself, because a failed upload makes no object. In a store,
folders need not be created, and do not remain after their last file.

*Secrets*: tasks on other machines get a `StorePath` among their arguments, which engines write to disk and to logs. If
the configuration has keys, the arguments therefore name a file that contains them (`Access.secrets`).

Errors are `OSError`. If a store does not answer or refuses a request, their number is `errno.EHOSTDOWN`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from raycdc.core.secrets import Renewed, as_private, from_private, private_text
from raycdc.storage.api import StoreError
from raycdc.storage.object_store import client_of, shown
from raycdc.storage.settings import StorageSettings
from raycdc.storage.url import FolderLocation, ObjectLocation, parse_location

if TYPE_CHECKING:
    from raycdc.storage.object_store import AnyClient

#: Files up to this size are read in one request, and larger ones in pieces of this size on demand.
READ_BYTES = 8 << 20
#: The size of a part of an upload; smaller files are one request. S3 takes 10,000 parts, so a file may have 80 GB.
WRITE_BYTES = 8 << 20
#: The size of the largest object that S3 copies in one request.
COPY_BYTES_MAX = 5 << 30
#: The number of keys that one S3 request deletes.
_DELETED_AT_ONCE = 1_000


class Access:
    """The settings by which a process reaches stores.

    Pickling stores the settings, or only the name of `secrets`, a private file that contains them.
    """

    def __init__(self, settings: StorageSettings, secrets: str = "", *, written: str | None = None) -> None:
        """Create the access to a store with `settings`, whose keys are also in the file `secrets` (empty: no file).

        `written` is the present content of that file, and None in every process that does not write it. The process
        that writes the file puts the store's newest access keys into it whenever it pickles this object.
        """
        self.settings = settings
        self.secrets = secrets
        self._written = written
        self._clients: dict[ObjectLocation, AnyClient] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        self._write_settings()
        return (_from_file, (self.secrets,)) if self.secrets else (Access, (self.settings,))

    def _write_settings(self) -> None:
        """Write the present keys to the file, because tasks on other machines cannot read them themselves."""
        if self._written is None or not self.settings.changes or (settings := as_text(self.settings)) == self._written:
            return
        file = Path(self.secrets)
        new = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as written:
            written.write(settings)
        new.replace(file)
        self._written = settings

    def client(self, location: ObjectLocation) -> AnyClient:
        """Return a client for the bucket of `location`. Raises `OSError` if the settings cannot be used."""
        bucket = replace(location, prefix="")
        if bucket not in self._clients:
            try:
                self._clients[bucket] = client_of(bucket, self.settings)
            except StoreError as cause:
                raise OSError(errno.EHOSTDOWN, str(cause)) from cause
        return self._clients[bucket]


def has_secrets(settings: StorageSettings) -> bool:
    """Return True if the settings contain secrets, which must not be in arguments of tasks."""
    return bool(settings.secret_access_key or settings.session_token or settings.account_key or settings.sas_token)


def as_text(settings: StorageSettings) -> str:
    """Return the content of the file `Access.secrets`: the present keys, and how to read them again."""
    kept = {item.name: getattr(settings, item.name) for item in fields(settings)}
    read_again = {name: as_private(value) for name, value in kept.items() if isinstance(value, Renewed)}
    return json.dumps({"settings": asdict(settings.now()), "read_again": read_again})


def _from_file(path: str) -> Access:
    settings = json.loads(private_text(path))
    read_again = {name: from_private(text) for name, text in settings["read_again"].items()}
    return Access(StorageSettings(**{**settings["settings"], **read_again}), path)


@dataclass(frozen=True, slots=True)
class StorePath:
    """A key of a store, or a prefix of keys. Its text is the URL."""

    location: ObjectLocation
    access: Access

    def __str__(self) -> str:
        return str(self.location)

    def __truediv__(self, name: str) -> StorePath:
        return replace(self, location=self.location.below(name)) if name else self

    @property
    def name(self) -> str:
        return self.location.prefix.rpartition("/")[2]

    @property
    def parent(self) -> StorePath:
        return replace(self, location=replace(self.location, prefix=self.location.prefix.rpartition("/")[0]))

    def relative_to(self, folder: StorePath) -> str:
        """Return the part of the key below `folder`."""
        beginning = _keys_below(folder)
        assert self.location.prefix.startswith(beginning), (self, folder)
        return self.location.prefix[len(beginning) :]


#: A folder, or a file of a folder.
AnyPath = Path | StorePath
#: A file as tasks name it; a `str` is a path of this machine.
FileName = str | Path | StorePath


def keys_change(path: AnyPath) -> bool:
    """Return True if the path is in a store whose access keys may change during the run."""
    return isinstance(path, StorePath) and path.access.settings.changes


def any_path(text: str, access: Access) -> AnyPath:
    """Return the absolute path that a checked text of the configuration names."""
    match parse_location(text):
        case FolderLocation(path):
            return Path(path).absolute()
        case ObjectLocation() as location:
            return StorePath(location, access)


def relative(path: FileName, folder: AnyPath) -> str:
    """Return the name of a file relative to `folder`."""
    if isinstance(path, StorePath):
        assert isinstance(folder, StorePath)
        return path.relative_to(folder)
    return os.path.relpath(path, str(folder))


@contextmanager
def writing(path: FileName) -> Iterator[IO[bytes]]:
    """Open a file to write. It exists, synced, if the block succeeds; otherwise it does not exist."""
    if not isinstance(path, StorePath):
        with _replaced(Path(path)) as local:
            yield local
        return
    import obstore

    client = path.access.client(path.location)
    with _named(path, "written"):
        upload = obstore.open_writer(client, path.location.prefix, buffer_size=WRITE_BYTES)
    try:
        yield cast("IO[bytes]", _Upload(upload, path))
    except BaseException as error:
        # The store drops the parts that were sent, and no object appears.
        with contextlib.suppress(OSError), _named(path, "written"):
            upload.__exit__(type(error), error, None)
        raise
    with _named(path, "written"):
        upload.__exit__(None, None, None)


@contextmanager
def reading(path: FileName) -> Iterator[Any]:
    """Open a file for a reader of Parquet. Yields the path of a file of this machine, or a seekable file object."""
    if not isinstance(path, StorePath):
        yield str(path)
        return
    import obstore

    client, key = path.access.client(path.location), path.location.prefix
    with _named(path, "read"):
        size = obstore.head(client, key)["size"]
        whole = obstore.get(client, key).bytes() if size <= READ_BYTES else None
        file = None if whole is not None else obstore.open_reader(client, key, buffer_size=READ_BYTES)
    if file is None:
        yield io.BytesIO(whole or b"")
        return
    with contextlib.closing(file):
        yield _Download(file, path)


def content(path: AnyPath) -> bytes:
    """Return the content of a file. Raises `FileNotFoundError` if there is none."""
    if isinstance(path, Path):
        return path.read_bytes()
    import obstore

    with _named(path, "read"):
        return bytes(obstore.get(path.access.client(path.location), path.location.prefix).bytes())


def is_there(path: FileName) -> bool:
    """Return True if the file exists. A store is queried each time."""
    return Path(path).exists() if not isinstance(path, StorePath) else _head(path) is not None


def identity(path: AnyPath) -> tuple[object, ...] | None:
    """Return a value that changes if the file is replaced; None if it is missing or the value is unknown."""
    if isinstance(path, StorePath):
        head = _head(path)
        return None if head is None else (head["e_tag"], head["version"], head["last_modified"])
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def modified(path: AnyPath) -> float | None:
    """Return when the file was written, in seconds of the storage's clock; None if it is missing."""
    if isinstance(path, StorePath):
        head = _head(path)
        return None if head is None else head["last_modified"].timestamp()
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def touch(path: AnyPath) -> None:
    """Create an empty file, or set the modification time of an existing one to now."""
    if isinstance(path, StorePath):
        import obstore

        with _named(path, "written"):
            obstore.put(path.access.client(path.location), path.location.prefix, str(time.time()).encode())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def names_in(folder: AnyPath) -> list[str]:
    """Return the sorted names of the files and folders in a folder; none if there is no such folder."""
    if isinstance(folder, Path):
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    import obstore

    beginning = _keys_below(folder)
    with _named(folder, "listed"):
        listing = obstore.list_with_delimiter(folder.access.client(folder.location), beginning or None)
    keys = [*listing["common_prefixes"], *(meta["path"] for meta in listing["objects"])]
    return sorted(key.removeprefix(beginning).rstrip("/") for key in keys)


def files_below(folder: AnyPath) -> list[str]:
    """Return the sorted paths, relative to a folder, of all files in it and its subfolders; none if there is no such
    folder.
    """
    if isinstance(folder, Path):
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    import obstore

    beginning = _keys_below(folder)
    with _named(folder, "listed"):
        client = folder.access.client(folder.location)
        keys = [meta["path"] for chunk in obstore.list(client, beginning or None) for meta in chunk]
    return sorted(key.removeprefix(beginning) for key in keys)


def each_below(folder: AnyPath) -> Iterator[str]:
    """Yield the paths that `files_below` returns, in any order and lazily, so that a caller may stop early.

    Files that are created or deleted meanwhile may be among them.
    """
    if isinstance(folder, Path):
        for location, _, names in os.walk(folder):
            yield from (str(Path(location, name).relative_to(folder)) for name in names)
        return
    import obstore

    beginning = _keys_below(folder)
    with _named(folder, "listed"):
        for chunk in obstore.list(folder.access.client(folder.location), beginning or None):
            yield from (meta["path"].removeprefix(beginning) for meta in chunk)


def transfer(file: AnyPath, to: AnyPath) -> int:
    """Copy a file, completely or not at all, and return its size in bytes.

    A copy on this machine is readable by this user only. Raises `FileNotFoundError` if there is no such file.
    """
    with reading(file) as source, writing(to) as whole:
        if isinstance(to, Path):
            os.fchmod(whole.fileno(), 0o600)
        if not isinstance(source, str):
            return _piecewise(source, whole)
        with Path(source).open("rb") as opened:
            return _piecewise(opened, whole)


def _piecewise(source: Any, to: IO[bytes]) -> int:
    size = 0
    while piece := source.read(READ_BYTES):
        size += to.write(piece)
    return size


def names_after(folder: StorePath, beginning: str, after: str = "") -> list[str]:
    """Return the sorted names of objects directly in a folder that begin with `beginning` and follow `after`."""
    import obstore

    location = _keys_below(folder)
    found: list[str] = []
    with _named(folder, "listed"):
        # The library accepts only whole parts of a key as a prefix, so too many keys may be listed. Stores list keys in
        # order, so the listing can end early.
        for chunk in obstore.list(
            folder.access.client(folder.location), location, offset=f"{location}{after or beginning}"
        ):
            names = [meta["path"].removeprefix(location) for meta in chunk]
            found += [name for name in names if name.startswith(beginning)]
            if not names or not names[-1].startswith(beginning):
                break
    return sorted(found)


def copy(file: StorePath, to: StorePath) -> None:
    """Copy an object to a new name in the same bucket, completely or not at all.

    The store makes the copy itself if it supports that.
    """
    import obstore

    client = file.access.client(file.location)
    with _named(file, "copied"):
        if obstore.head(client, file.location.prefix)["size"] < COPY_BYTES_MAX:
            obstore.copy(client, file.location.prefix, to.location.prefix)
            return
        parts = obstore.get(client, file.location.prefix).stream(WRITE_BYTES)
    with writing(to) as whole:
        for part in parts:
            whole.write(bytes(part))


def delete(files: Iterable[FileName]) -> None:
    """Delete unused files. Ignores errors, because a remaining file only takes space."""
    for file in files:
        with contextlib.suppress(OSError):
            if isinstance(file, StorePath):
                _delete_keys(file, [file.location.prefix])
            else:
                Path(file).unlink(missing_ok=True)


def delete_table(folder: AnyPath, log: str) -> None:
    """Delete a folder with its content.

    In a store, the files of its `log` are deleted first, from newest to oldest, so that no version of the table names
    missing files.
    """
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    import obstore

    for beginning in (folder / log, folder):
        with _named(folder, "deleted"):
            client = folder.access.client(folder.location)
            keys = [meta["path"] for chunk in obstore.list(client, _keys_below(beginning)) for meta in chunk]
        _delete_keys(folder, sorted(keys, reverse=True), at_once=1 if beginning != folder else _DELETED_AT_ONCE)


def _delete_keys(path: StorePath, keys: Sequence[str], *, at_once: int = _DELETED_AT_ONCE) -> None:
    import obstore

    with _named(path, "deleted"):
        for first in range(0, len(keys), at_once):
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(path.access.client(path.location), list(keys[first : first + at_once]))


def _head(path: StorePath) -> Any:
    import obstore

    with _named(path, "looked for"):
        try:
            return obstore.head(path.access.client(path.location), path.location.prefix)
        except FileNotFoundError:
            return None


def _keys_below(folder: StorePath) -> str:
    return f"{folder.location.prefix}/" if folder.location.prefix else ""


@contextmanager
def _named(path: StorePath, verb: str) -> Iterator[None]:
    """Turn errors of the library into `OSError` with the object's URL."""
    from obstore import exceptions

    try:
        yield
    except FileNotFoundError as cause:
        raise FileNotFoundError(errno.ENOENT, "there is no such object", str(path)) from cause
    except exceptions.BaseError as cause:
        raise OSError(errno.EHOSTDOWN, f"{path} cannot be {verb}: {shown(cause)}") from cause


class _Upload:
    """An upload with the file interface that Arrow expects, including its position."""

    closed = False

    def __init__(self, file: Any, path: StorePath) -> None:
        self._file = file
        self._path = path
        self._bytes = 0

    def write(self, data: Any) -> int:
        """Send the bytes of any object that has the buffer interface."""
        part = bytes(data)
        with _named(self._path, "written"):
            self._file.write(part)
        self._bytes += len(part)
        return len(part)

    def tell(self) -> int:
        return self._bytes

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing, because the object appears only at the end."""

    def close(self) -> None:
        """Do nothing, because `writing` ends the upload."""


class _Download:
    """An object in a store with the file interface that Arrow expects."""

    closed = False

    def __init__(self, file: Any, path: StorePath) -> None:
        self._file = file
        self._path = path

    def read(self, size: int | None = None) -> bytes:
        with _named(self._path, "read"):
            return bytes(self._file.read(size))

    def seek(self, offset: int, whence: int = 0) -> int:
        with _named(self._path, "read"):
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing, because `reading` closes the file."""


@contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file with a temporary name, which is synced and renamed if the block succeeds."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = temporary.open("wb")
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):  # Closing writes the buffered bytes, which fails on a full disk.
            file.close()
        temporary.unlink(missing_ok=True)
        raise
    file.close()
    temporary.rename(path)
