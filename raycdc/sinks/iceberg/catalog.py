"""Catalogs of Iceberg tables: pyiceberg's for SQL, REST and Glue, and a folder of our own making (`HadoopCatalog`).

Called by `table`. A catalog does one thing that matters: it replaces a table's metadata by the
next one, for one writer only.

The folder is that of Spark's and Flink's ``type = hadoop``: ``WAREHOUSE/DB/TABLE/metadata/vN.metadata.json``, and
``version-hint.text`` (`raycdc.sinks.iceberg.versions`), in a folder of this machine or on an object store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import Compressor, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate
from requests.exceptions import SSLError
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from raycdc.certificate_faults import TlsServer, first_fault
from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.sinks.iceberg.places import is_in_store, location_of, store_properties, sync_file, warehouse_of
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.sinks.iceberg.refusals import is_away
from raycdc.sinks.iceberg.updates import next_version
from raycdc.sinks.iceberg.versions import FolderVersions, StoreVersions, Versions
from raycdc.stores.api import StoreError
from raycdc.stores.libraries import with_tls
from raycdc.stores.object_store import ObjectStore
from raycdc.stores.settings import StorageSettings
from raycdc.stores.url import ObjectPlace, place_of

NO_SETTINGS = StorageSettings()
#: The property that names the authorities.
_CA = "ssl.cabundle"
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
#: Tables whose newest metadata are kept as they were parsed.
_PARSED_MAX = 64


def open_catalog(options: IcebergCatalogOptions, storage: StorageSettings = NO_SETTINGS) -> Catalog:
    """The catalog of a configuration, whose tables may be on an object store that `storage` says how to reach.
    `SinkError` where it cannot be opened, and `SinkUnavailableError` where it does not answer, or not now.
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
    except Exception as cause:  # whatever SQLAlchemy's driver, boto3 or the HTTP library raises
        if isinstance(cause, SSLError) and (fault := _certificate_fault(options)):
            raise SinkError(f"No TLS connection to the catalog at {fault}") from cause
        kind = SinkUnavailableError if is_away(cause) else SinkError
        raise kind(
            f"The {where_is(options)} cannot be opened ({type(cause).__name__}). Check sink.catalog.uri and properties."
        ) from cause


def where_is(options: IcebergCatalogOptions) -> str:
    """The catalog for people: its kind, and its server's address, without a login."""
    address = options.uri.reveal() or options.properties.get("glue.endpoint", "")
    try:
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
        at = f" at {parts.hostname}{port}" if parts.hostname else ""
    except ValueError:  # what is no URL
        at = ""
    return f"{options.type} catalog of the Iceberg sink{at}"


def _certificate_fault(options: IcebergCatalogOptions) -> str:
    """What is wrong with the certificate of a REST catalog's server."""
    parts = urlsplit(options.uri.reveal())
    # The HTTP library's authorities are its own, and a variable goes before what its session was told.
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
    """Metadata is on the disk before the database points to it, and no named snapshot is left out of it."""

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
    """See the module's docstring. Every call looks at the folder; metadata that is what it was is not parsed again,
    because that takes seconds where there are thousands of snapshots. May be used by several threads.
    """

    def __init__(
        self, name: str, warehouse: Path | str, storage: StorageSettings = NO_SETTINGS, **properties: str
    ) -> None:
        root = str(warehouse)
        super().__init__(name, **properties, warehouse=location_of(root))
        self._root = root
        place = place_of(root) if is_in_store(root) else None
        self._versions: Versions = (
            StoreVersions(ObjectStore(place, storage)) if isinstance(place, ObjectPlace) else FolderVersions(Path(root))
        )
        #: Of a table the metadata that were parsed or written last, by the digest of their bytes. Nobody changes them.
        self._parsed: dict[str, tuple[bytes, TableMetadata]] = {}
        #: One for all tables, so that connections are kept.
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
        """Raises `CommitFailedException` when a requirement is not met, another writer was faster, or what would be
        left out is the head of a branch or tag.
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
        """The metadata of the file at `location`, as `pyiceberg.serializers.FromInputFile` reads them."""
        with io.new_input(location).open() as raw, Compressor.get_compressor(location).stream_decompressor(raw) as file:
            content = file.read()
        digest = sha256(content).digest()
        known = self._parsed.get(folder)
        if known is not None and known[0] == digest:
            return known[1]
        metadata = TableMetadataUtil.parse_raw(content.decode())
        self._keep(folder, digest, metadata)
        return metadata

    def _keep(self, folder: str, digest: bytes, metadata: TableMetadata) -> None:
        # One that another thread put there meanwhile is as good, and one that is taken out is parsed again.
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
    """`CommitFailedException` where an update leaves out a snapshot that got a branch or tag since we looked: pyiceberg
    would take the name away as well, and say nothing.
    """
    left_out = {
        number for update in updates if isinstance(update, RemoveSnapshotsUpdate) for number in update.snapshot_ids
    }
    if named := sorted(name for name, ref in metadata.refs.items() if ref.snapshot_id in left_out):
        raise CommitFailedException(f"A snapshot that would be left out has the name {named[0]} now")


def _text_of(metadata: TableMetadata) -> bytes:
    return metadata.model_dump_json(exclude_none=True).encode()
