"""Catalogs of Iceberg tables: pyiceberg's for SQL, REST and Glue, and raycdc's own for a folder (`HadoopCatalog`).

Called by `table`. The essential operation of a catalog replaces a table's metadata. If several writers try that at the
same time, only one of them succeeds.

The warehouse of `HadoopCatalog` is a folder of this machine or of an object store. It has the layout of Spark's and
Flink's ``type = hadoop``: ``WAREHOUSE/DB/TABLE/metadata/vN.metadata.json`` and ``version-hint.text``
(`raycdc.sinks.iceberg.versions`).

`ReopenedCatalog` opens a sink's catalog again when its access keys have changed, or when it refuses the login. A
catalog of pyiceberg keeps the keys with which it was opened, and the token that it got for them. Before a table is read
or changed, the references to keys in the configuration are therefore resolved again. If the keys are newer, a new
catalog is opened with them. Running calls finish with the old catalog.

*A response that forbids a table* may be about the login or about the table. To find out, the catalog is opened again
and the request is repeated once. If the login fails, keys or a token have expired, and the error concerns the whole
catalog. If the login succeeds and the request is forbidden again, the error concerns this table. A forbidden request
was not carried out, so it may be repeated.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import Compressor, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate
from requests.exceptions import SSLError
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from raycdc.core.certificate_faults import TlsServer, first_fault
from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.sinks.iceberg.location import is_in_store, location_of, store_properties, sync_file, warehouse_of
from raycdc.sinks.iceberg.metadata import next_version
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.sinks.iceberg.refusals import is_forbidden, is_unreachable
from raycdc.sinks.iceberg.versions import FolderVersions, StoreVersions, Versions
from raycdc.storage.api import StoreError
from raycdc.storage.object_store import ObjectStore
from raycdc.storage.settings import StorageSettings, with_tls
from raycdc.storage.url import ObjectLocation, parse_location

NO_SETTINGS = StorageSettings()
#: The property that names the file of certificate authorities.
_CA = "ssl.cabundle"
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
#: The most tables whose newest parsed metadata is kept.
_PARSED_MAX = 64


def open_catalog(options: IcebergCatalogOptions, storage: StorageSettings = NO_SETTINGS) -> Catalog:
    """Open the catalog of a configuration. `storage` has the settings to reach tables on an object store.

    Raises `SinkError` if it cannot be opened, and `SinkUnavailableError` if it does not answer.
    """
    warehouse = options.warehouse if options.type == "rest" else warehouse_of(options.warehouse, storage)
    try:
        properties = store_properties(warehouse, options.properties, storage)
        if options.type == "hadoop":
            return HadoopCatalog(options.name, warehouse, storage, **properties)
        named = {"warehouse": location_of(warehouse) if options.type != "rest" else warehouse} if warehouse else {}
        match options.type:
            case "sql":
                if not is_in_store(warehouse):
                    Path(warehouse).mkdir(parents=True, exist_ok=True)
                return _SyncedSqlCatalog(options.name, **{**properties, **named, "uri": options.uri.reveal()})
            case "glue":
                return load_catalog(options.name, **{**properties, **named, "type": "glue"})
            case _:
                given = {**properties, **named, "type": "rest", "uri": options.uri.reveal()}
                return load_catalog(options.name, **with_tls(given))  # type: ignore[arg-type]  # its TLS is nested
    except StoreError as cause:
        raise SinkError(str(cause)) from cause
    except Exception as cause:  # SQLAlchemy's driver, boto3 and the HTTP library raise errors of many classes.
        if isinstance(cause, SSLError) and (fault := _certificate_fault(options)):
            raise SinkError(f"No TLS connection to the catalog at {fault}") from cause
        kind = SinkUnavailableError if is_unreachable(cause) else SinkError
        raise kind(
            f"The {where_is(options)} cannot be opened ({type(cause).__name__}). Check sink.catalog.uri and properties."
        ) from cause


def where_is(options: IcebergCatalogOptions) -> str:
    """Return a description of the catalog for people: its kind, and its server's address, without credentials."""
    address = options.uri.reveal() or options.properties.get("glue.endpoint", "")
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
        at = f" at {parts.hostname}{port}" if parts.hostname else ""
    except ValueError:  # The URL is invalid.
        at = ""
    return f"{options.type} catalog of the Iceberg sink{at}"


def _certificate_fault(options: IcebergCatalogOptions) -> str:
    """Return the problem of a REST catalog's certificate."""
    parts = urlsplit(options.uri.reveal())
    # The HTTP library has its own certificate authorities, and an environment variable overrides the setting of a
    # session.
    key = f'sink.catalog.properties."{_CA}"'
    authorities = options.properties.get(_CA) or DEFAULT_CA_BUNDLE_PATH
    if variable := next((name for name in _CA_VARIABLES if os.environ.get(name)), ""):
        key, authorities = f"the variable {variable}, which goes before {key}", os.environ[variable]
    server = TlsServer(
        parts.hostname or "",
        parts.port or 443,
        ca_key=key,
        host_key="sink.catalog.uri",
        ca=authorities,
    )
    return first_fault([server])


class _SyncedSqlCatalog(SqlCatalog):
    """pyiceberg's SQL catalog with three changes: metadata is on disk before the database points to it; a commit never
    drops a snapshot that has a branch or tag; and several processes may open a new catalog at the same time.
    """

    def create_tables(self) -> None:
        """Create those of the catalog's own tables that are missing.

        SQLAlchemy first checks if a table exists and then creates it, so another process may create it in between.
        """
        for _ in SqlCatalogBaseTable.metadata.tables:
            try:
                super().create_tables()
            except (OperationalError, ProgrammingError, IntegrityError):
                continue
            return
        super().create_tables()

    def _update_and_stage_table(
        self, current_table: Any, table_identifier: Any, requirements: Any, updates: Any
    ) -> Any:
        if current_table is not None:
            _require_unnamed(current_table.metadata, updates)
        return super()._update_and_stage_table(current_table, table_identifier, requirements, updates)

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: Any, metadata_path: str) -> None:
        ToOutputFile.table_metadata(metadata, io.new_output(metadata_path))
        sync_file(metadata_path)


class HadoopCatalog(MetastoreCatalog):
    """A catalog in a folder; see the module's docstring.

    Every call reads the folder. Unchanged metadata is not parsed again, because parsing takes seconds if there are
    thousands of snapshots. Thread-safe.
    """

    def __init__(
        self, name: str, warehouse: Path | str, storage: StorageSettings = NO_SETTINGS, **properties: str
    ) -> None:
        root = str(warehouse)
        super().__init__(name, **properties, warehouse=location_of(root))
        self._root = root
        location = parse_location(root) if is_in_store(root) else None
        self._versions: Versions = (
            StoreVersions(ObjectStore(location, storage))
            if isinstance(location, ObjectLocation)
            else FolderVersions(Path(root))
        )
        #: For each table the metadata that was last read or written, with the digest of its bytes. Metadata is never
        #: changed in place.
        self._parsed: dict[str, tuple[bytes, TableMetadata]] = {}
        #: One FileIO for all tables, so that connections are reused.
        self._io = self._load_file_io(location=location_of(root))

    def load_table(self, identifier: Any) -> Table:
        folder = self._metadata_folder(identifier)
        found = self._versions.newest(folder)
        if found is None:
            raise NoSuchTableError(f"There is no Iceberg table in {self._root}/{folder}")
        location = self._location(found[1])
        metadata = self._read(folder, self._io, location)
        return Table(Catalog.identifier_to_tuple(identifier), metadata, location, self._io, self)

    def create_table(
        self,
        identifier: Any,
        schema: Any,
        location: str | None = None,
        partition_spec: Any = UNPARTITIONED_PARTITION_SPEC,
        sort_order: Any = UNSORTED_SORT_ORDER,
        properties: Any = None,
    ) -> Table:
        folder = self._metadata_folder(identifier)
        if self._versions.newest(folder) is not None:
            raise TableAlreadyExistsError(f"There is an Iceberg table in {self._root}/{folder}")
        metadata = new_table_metadata(
            schema=self._convert_schema_if_needed(schema),
            partition_spec=partition_spec,
            sort_order=sort_order,
            location=location or self._location(folder.removesuffix("/metadata")),
            properties=properties or {},
        )
        try:
            self._versions.add(folder, 1, _text_of(metadata))
        except CommitFailedException as cause:
            raise TableAlreadyExistsError(str(cause)) from cause
        return self.load_table(identifier)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Commit `updates` to the table.

        Raises `CommitFailedException` if a requirement is not met, if another writer was faster, or if a snapshot that
        `updates` remove is the head of a branch or tag.
        """
        folder = self._metadata_folder(table.name())
        found = self._versions.newest(folder)
        if found is None:
            raise NoSuchTableError(f"There is no Iceberg table in {self._root}/{folder}")
        version, name = found
        current = self._read(folder, table.io, self._location(name))
        for requirement in requirements:
            requirement.validate(current)
        _require_unnamed(current, updates)
        changed = next_version(current, updates, location=self._location(name))
        text = _text_of(changed)
        written = self._versions.add(folder, version + 1, text)
        self._keep(folder, sha256(text).digest(), changed)
        return CommitTableResponse(metadata=changed, metadata_location=self._location(written))  # type: ignore[call-arg]

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        self._versions.make_folder(self.identifier_to_database(namespace))

    def create_namespace_if_not_exists(self, namespace: Any, properties: Any = None) -> None:
        self.create_namespace(namespace)

    def list_namespaces(self, namespace: Any = ()) -> list[Any]:
        return [] if namespace else [(folder,) for folder in self._versions.folders("")]

    def list_tables(self, namespace: Any) -> list[Any]:
        space = self.identifier_to_database(namespace)
        names = self._versions.folders(space)
        return [(space, name) for name in names if self._versions.newest(f"{space}/{name}/metadata") is not None]

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        return {}

    def _metadata_folder(self, identifier: Any) -> str:
        namespace, name = self.identifier_to_database_and_table(identifier)
        return f"{self.identifier_to_database(namespace)}/{name}/metadata"

    def _read(self, folder: str, io: FileIO, location: str) -> TableMetadata:
        """Return the metadata of the file at `location`, read like `pyiceberg.serializers.FromInputFile`."""
        try:
            with (
                io.new_input(location).open() as raw,
                Compressor.get_compressor(location).stream_decompressor(raw) as file,
            ):
                content = file.read()
            digest = sha256(content).digest()
            known = self._parsed.get(folder)
            if known is not None and known[0] == digest:
                return known[1]
            metadata = TableMetadataUtil.parse_raw(content.decode())
        except (ValueError, EOFError, zlib.error) as cause:
            raise ValidationError(f"its metadata file {location} is damaged: {cause}") from cause
        self._keep(folder, digest, metadata)
        return metadata

    def _keep(self, folder: str, digest: bytes, metadata: TableMetadata) -> None:
        # No lock is needed: another thread's entry is equally valid, and a removed one is parsed again.
        if folder not in self._parsed and len(self._parsed) >= _PARSED_MAX:
            self._parsed.clear()
        self._parsed[folder] = digest, metadata

    def _location(self, name: str) -> str:
        return location_of(f"{self._root}/{name}")

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("A warehouse folder is written to by raycdc; use Spark for the rest.")

    drop_table = rename_table = register_table = drop_namespace = update_namespace_properties = _refused
    list_views = view_exists = drop_view = load_view = register_view = _refused


def _require_unnamed(metadata: TableMetadata, updates: Iterable[TableUpdate]) -> None:
    """Raise `CommitFailedException` if an update drops a snapshot that has a branch or tag by now.

    pyiceberg would silently remove the branch or tag as well.
    """
    left_out = {
        number for update in updates if isinstance(update, RemoveSnapshotsUpdate) for number in update.snapshot_ids
    }
    if named := sorted(name for name, ref in metadata.refs.items() if ref.snapshot_id in left_out):
        raise CommitFailedException(f"A snapshot that would be left out has the name {named[0]} now")


def _text_of(metadata: TableMetadata) -> bytes:
    return metadata.model_dump_json(exclude_none=True).encode()


T = TypeVar("T")


class ReopenedCatalog:
    """A catalog that is opened again when needed; see the module's docstring. Callable from any thread.

    Raises the errors of pyiceberg's catalogs. Raises `SinkError` if the catalog cannot be opened. It is a
    `SinkUnavailableError` if the catalog does not answer, or if it could be opened before and new keys may come.
    """

    def __init__(self, options: IcebergCatalogOptions, storage: StorageSettings) -> None:
        """Create it without opening the catalog."""
        self._options = options
        self._storage = storage
        self._lock = threading.Lock()
        self._catalog: Catalog | None = None
        #: The catalog's and the store's settings with which the catalog was opened.
        self._opened_as: tuple[IcebergCatalogOptions, StorageSettings] | None = None

    @property
    def where(self) -> str:
        """Return a description of the catalog for people."""
        return where_is(self._options)

    def open(self) -> None:
        """Open the catalog now, unless it is already open with the present keys."""
        self._newest()

    @property
    def refuses_for_certain(self) -> bool:
        """Return True if a conflict error proves that our commit failed.

        With a server in between, a retried request can report a conflict with our own first commit.
        """
        return self._options.type in ("hadoop", "sql")

    def load_table(self, name: tuple[str, str]) -> Table:
        """Return the table with its newest metadata."""
        return self._asked(lambda catalog: catalog.load_table(name))

    def create_table(self, name: tuple[str, str], schema: Any, *, partition_spec: Any, properties: Any) -> None:
        """Create a table, and its namespace if there is none."""

        def make_in_namespace(catalog: Catalog) -> None:
            catalog.create_table(name, schema, partition_spec=partition_spec, properties=properties)

        def make(catalog: Catalog) -> None:
            try:
                make_in_namespace(catalog)
            except NoSuchNamespaceError:
                # A missing namespace is created. An existing one is not, because an account that may create tables
                # often may not create namespaces.
                catalog.create_namespace_if_not_exists(name[:1])
                make_in_namespace(catalog)

        self._asked(make)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Apply `updates` to the metadata of a table, if the metadata meets the `requirements`."""
        return self._asked(lambda catalog: catalog.commit_table(table, requirements, updates))

    def close(self) -> None:
        """Close the connections."""
        if self._catalog is not None:
            self._catalog.close()

    def _asked(self, ask: Callable[[Catalog], T]) -> T:
        catalog = self._newest()
        try:
            return ask(catalog)
        except Exception as cause:
            if not is_forbidden(cause):
                raise
            return ask(self._newest(refused=catalog))

    def _newest(self, *, refused: Catalog | None = None) -> Catalog:
        """Return the catalog opened with the present keys. If the catalog `refused` is given, return a new catalog
        instead.
        """
        with self._lock:
            now, storage = self._options.now(), self._storage.now()
            before = self._catalog
            if before is None:
                self._catalog, self._opened_as = open_catalog(now, self._storage), (now, storage)
            elif before is refused or self._opened_as != (now, storage):
                try:
                    self._catalog, self._opened_as = open_catalog(now, self._storage), (now, storage)
                except SinkError as cause:
                    if not (self._options.changes or self._storage.changes):
                        raise
                    # The login was valid before, so the keys are probably being replaced one by one.
                    raise SinkUnavailableError(str(cause)) from cause
                # Connections in use are closed when they are returned.
                before.close()
            assert self._catalog is not None
            return self._catalog
