"""Finds the files of Iceberg tables: their locations in a folder of this machine or on an object store, and the access
to them.

In metadata a file is named by its *location*, a URI. Tasks and the driver use an `AnyPath` of `raycdc.storage.files`
instead. pyiceberg reads and writes metadata, and raycdc reads and writes rows. Both get the same credentials: those of
``[storage]``, of the catalog's properties, or those that a REST catalog returns with a table.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from raycdc.core.certificate_faults import CA_VARIABLE
from raycdc.errors import NameRefusedError, RoutesRefusedError, SinkError
from raycdc.state.files.folder import private_file, sync_folder
from raycdc.storage.files import Access, AnyPath, FileName, StorePath, as_text, has_secrets
from raycdc.storage.settings import StorageSettings, account_of, iceberg_properties
from raycdc.storage.url import FolderLocation, ObjectLocation, StoreKind, parse_location

#: Schemes of object stores in locations, including Hadoop's.
_KINDS = {
    "s3": StoreKind.S3,
    "s3a": StoreKind.S3,
    "s3n": StoreKind.S3,
    "gs": StoreKind.GCS,
    "abfs": StoreKind.AZURE,
    "abfss": StoreKind.AZURE,
}
_LOCATION = re.compile(r"([a-z0-9]+)://([^/]+)/?(.*)", re.DOTALL)

_ENDPOINTS = {
    StoreKind.S3: "s3.endpoint",
    StoreKind.GCS: "gcs.service.host",
    StoreKind.AZURE: "adls.blob-storage-authority",
}
#: Properties for credentials that only pyiceberg supports.
_UNKNOWN = ("s3.role-arn", "client.role-arn", "s3.remote-signing-enabled", "gcs.oauth2.token", "adls.client-secret")

#: Amazon's default region, which other servers accept, too.
_REGION = "us-east-1"


#: The most settings with access keys that are kept. A catalog may return new keys for each table and request. The
#: oldest settings may be forgotten, because tasks that use them have ended.
_KNOWN_MAX = 64
_OF_THIS_MACHINE = Access(StorageSettings())


class StoreFileIO(PyArrowFileIO):
    """pyiceberg's FileIO, which also supports Azure's locations with a container
    (``abfss://CONTAINER@ACCOUNT.dfs…/PATH``).
    """

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
        return scheme, netloc, path.replace(netloc, netloc.partition("@")[0], 1) if "@" in netloc else path

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        """Return pyiceberg's file system, with the certificate authorities that all other clients of the store use."""
        made = super()._initialize_s3_fs(netloc)
        if not (authorities := os.environ.get(CA_VARIABLE)):
            return made
        make, (arguments,) = made.__reduce__()
        again: FileSystem = make({**arguments, "tls_ca_file_path": authorities})
        return again


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table: converts locations to paths, and paths to locations.

    `scheme` is the scheme of the table's locations on an object store; other writers may use ``s3a``.
    """

    access: Access
    scheme: str = ""

    def path(self, location: str) -> AnyPath:
        """Return the path of a location. Raises `SinkError` for a scheme to which raycdc does not write."""
        if is_in_store(location):
            return StorePath(_object_of(location), self.access)
        return local_path(location)

    def location(self, path: FileName) -> str:
        """Return the location of a path, with the scheme of the table's other locations."""
        if not isinstance(path, StorePath):
            return location_of(str(path))
        scheme, _, rest = str(path).partition("://")
        return location_of(f"{self.scheme or scheme}://{rest}")


class Reach:
    """The access to the tables of a sink, by `storage` and the settings of its catalog. Thread-safe.

    If a folder `private` is given, keys are written to files in this folder, and pickles of paths contain only the
    names of these files. `close` deletes the files.
    """

    def __init__(self, storage: StorageSettings, private: Path | None = None, *, login_changes: bool = False) -> None:
        self._storage = storage
        self._private = private
        self._lock = threading.Lock()
        self._known: dict[StorageSettings, Access] = {}
        #: True if the catalog's address or properties may change.
        self.login_changes = login_changes
        #: True if the store's keys may change, some of which may be in the catalog's properties.
        self.keys_change = storage.changes or login_changes

    def files_of(self, location: str, properties: Mapping[str, str]) -> TableFiles:
        """Return the files of the table at `location`, for which the catalog returned these properties."""
        if not is_in_store(location):
            return TableFiles(_OF_THIS_MACHINE)
        settings = settings_of(location, properties, self._storage)
        with self._lock:
            if settings not in self._known:
                while len(self._known) >= _KNOWN_MAX:
                    self._forget(next(iter(self._known)))
                secret = self._private is not None and has_secrets(settings)
                file = str(private_file(self._private, as_text(settings))) if self._private and secret else ""
                self._known[settings] = Access(settings, file)
            access = self._known[settings]
        return TableFiles(access, location.partition("://")[0])

    def close(self) -> None:
        """Delete the files with the keys."""
        with self._lock:
            for settings in list(self._known):
                self._forget(settings)

    def _forget(self, settings: StorageSettings) -> None:
        access = self._known.pop(settings)
        if access.secrets:
            Path(access.secrets).unlink(missing_ok=True)


def is_in_store(location: str) -> bool:
    """Return True if the location is on an object store."""
    return urlsplit(location).scheme in _KINDS


def local_path(location: str) -> Path:
    """Return the path of a ``file:`` location or plain path. Raises `RoutesRefusedError` for another scheme."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file") and parts.netloc in ("", "localhost"):
        return Path(parts.path if parts.scheme else location)
    raise RoutesRefusedError(
        f"{location} is neither in a folder of this machine nor on S3, Google Cloud Storage or Azure, where raycdc "
        "writes the files of Iceberg tables. Mount the storage, or let the catalog place its tables elsewhere."
    )


def location_of(name: str) -> str:
    """Return a path or URL in the form that Iceberg's readers accept, without URI escapes.

    Raises `SinkError` for characters at which readers would cut off the path.
    """
    if bad := sorted(set(name) & set("?#")):
        raise NameRefusedError(
            f"{name} has a {bad[0]!r} in its name, where readers of Iceberg tables would cut it off."
        )
    return name if is_in_store(name) else f"file://{name}"


def warehouse_of(text: str, storage: StorageSettings) -> str:
    """Return the warehouse of a configuration as a path or URL. Raises `SinkError` if Azure's account is unknown."""
    match location := parse_location(text):
        case FolderLocation(path):
            return str(Path(path).absolute())
        case ObjectLocation(StoreKind.AZURE, bucket, prefix):
            account = account_of(location, storage) or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
            if not account:
                raise SinkError(f"{text}: whose account? Set storage.account, which readers of the tables need, too.")
            return str(ObjectLocation(StoreKind.AZURE, bucket, prefix, account))
        case ObjectLocation():
            return str(location)


def store_properties(warehouse: str, given: Mapping[str, str], storage: StorageSettings) -> dict[str, str]:
    """Return the properties `given` to a catalog, completed by the settings of ``[storage]``."""
    locations = [ObjectLocation(kind, "any") for kind in StoreKind] if storage != StorageSettings() else []
    if is_in_store(warehouse):
        locations.append(_object_of(warehouse))
    said: dict[str, str] = {}
    for location in locations:
        said |= iceberg_properties(location, storage)
    properties = {"py-io-impl": f"{StoreFileIO.__module__}.{StoreFileIO.__name__}", **said, **given}
    if "s3.endpoint" in properties:
        # Without a region, pyiceberg asks Amazon for the region, even for a bucket on another server.
        properties.setdefault("s3.region", os.environ.get("AWS_REGION") or _REGION)
    return properties


def settings_of(location: str, properties: Mapping[str, str], storage: StorageSettings) -> StorageSettings:
    """Return `storage` with the settings in a table's `properties`.

    Raises `SinkError` if only pyiceberg could use them.
    """
    kind = _object_of(location).kind
    if invalid := [name for name in _UNKNOWN if properties.get(name)]:
        raise SinkError(
            f"{invalid[0]}: raycdc's tasks cannot get credentials in this way. Set the keys, or leave them to the "
            "environment and the machine's role (see [storage])."
        )

    def said(*names: str, otherwise: str) -> str:
        return next((properties[name] for name in names if properties.get(name)), otherwise)

    settings = replace(
        storage,
        region=said("s3.region", "client.region", otherwise=storage.region),
        account=said("adls.account-name", otherwise=storage.account),
        account_key=said("adls.account-key", otherwise=storage.account_key),
        sas_token=said("adls.sas-token", otherwise=storage.sas_token),
    )
    if key_id := said("s3.access-key-id", "client.access-key-id", otherwise=""):
        # Keys must not be combined from two sources.
        settings = replace(
            settings,
            access_key_id=key_id,
            secret_access_key=said("s3.secret-access-key", "client.secret-access-key", otherwise=""),
            session_token=said("s3.session-token", "client.session-token", otherwise=""),
            profile="",
        )
    if endpoint := properties.get(_ENDPOINTS[kind], ""):
        scheme = properties.get("adls.blob-storage-scheme", "https")
        endpoint = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        if urlsplit(endpoint).netloc == urlsplit(storage.endpoint).netloc:
            endpoint = storage.endpoint  # The endpoint's path is kept; pyiceberg has no property for it.
        settings = replace(settings, endpoint=endpoint, allow_http=settings.allow_http or endpoint[:5] == "http:")
    if virtual := properties.get("s3.force-virtual-addressing"):
        settings = replace(settings, path_style=virtual.lower() != "true")
    return settings


def sync_file(location: str) -> None:
    """Sync a file and its folder entry to disk. Does nothing for an object store."""
    if not is_in_store(location):
        path = local_path(location)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sync_folder(path.parent)


def _object_of(location: str) -> ObjectLocation:
    """Return the object of a location, in any of the forms that other writers use."""
    found = _LOCATION.fullmatch(location)
    if found is None:
        raise SinkError(f"{location} names no bucket or container.")
    scheme, authority, key = found.groups()
    bucket, _, host = authority.partition("@")
    return ObjectLocation(_KINDS[scheme], bucket, key.strip("/"), host.partition(".")[0])
