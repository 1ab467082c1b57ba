"""Catalogs of Iceberg tables: pyiceberg's for SQL and REST, and a folder of our own making (`HadoopCatalog`).

Called by `table`. A catalog does one thing that matters: it replaces a table's metadata by the
next one, for one writer only.

The folder is that of Spark's and Flink's ``type = hadoop``: ``WAREHOUSE/DB/TABLE/metadata/vN.metadata.json``, and
``version-hint.text``, which names a version not much older than the newest one. Version N + 1 comes into being by a
``link``, which fails when the name exists; the hint follows. Whoever reads begins at the hint and goes on while there
is a next version, so a writer that died between the two loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata

from raycdc.checkpoint.disk import sync_folder
from raycdc.errors import NameRefusedError, SinkError
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions

_VERSION = re.compile(r"v(\d+)(\.gz)?\.metadata\.json")


def open_catalog(options: IcebergCatalogOptions) -> Catalog:
    """The catalog of a configuration. `SinkError` where it cannot be reached."""
    warehouse = Path(options.warehouse).absolute()
    if options.type == "hadoop":
        return HadoopCatalog(options.name, warehouse)
    try:
        if options.type == "sql":
            warehouse.mkdir(parents=True, exist_ok=True)
            place = {"uri": options.uri.reveal(), "warehouse": location_of(warehouse)}
            return _SyncedSqlCatalog(options.name, **options.properties, **place)
        named = {"warehouse": options.warehouse} if options.warehouse else {}
        given = {**options.properties, **named, "type": "rest", "uri": options.uri.reveal()}
        return load_catalog(options.name, **given)
    except Exception as cause:  # whatever SQLAlchemy's driver or the HTTP library raises
        raise SinkError(
            f"The {options.type} catalog of the Iceberg sink cannot be opened ({type(cause).__name__}). Check "
            "sink.catalog.uri and properties."
        ) from cause


def location_of(path: Path) -> str:
    """A path as Iceberg's readers take it: without the escapes of a URI. `SinkError` where they would cut it off."""
    if bad := sorted(set(str(path)) & set("?#")):
        raise NameRefusedError(
            f"{path} has a {bad[0]!r} in its name, where readers of Iceberg tables would cut it off."
        )
    return f"file://{path}"


def local_path(location: str) -> Path:
    """The path of a ``file:`` location or plain path. `SinkError` for another scheme."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file") and parts.netloc in ("", "localhost"):
        return Path(parts.path if parts.scheme else location)
    raise SinkError(
        f"{location} is not in a folder of this machine, where raycdc writes the files of Iceberg tables. Mount the "
        "storage, or let the catalog place its tables under a file: location."
    )


def sync_file(location: str) -> None:
    """Have a file and its name on the disk."""
    path = local_path(location)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(path.parent)


class _SyncedSqlCatalog(SqlCatalog):
    """Metadata is on the disk before the database points to it."""

    @staticmethod
    def _write_metadata(metadata: TableMetadata, io: Any, metadata_path: str) -> None:
        ToOutputFile.table_metadata(metadata, io.new_output(metadata_path))
        sync_file(metadata_path)


class HadoopCatalog(MetastoreCatalog):
    """See the module's docstring. Holds no state: every call looks at the folder. May be used by several threads."""

    def __init__(self, name: str, warehouse: Path) -> None:
        super().__init__(name, warehouse=location_of(warehouse))
        self._root = warehouse

    def load_table(self, identifier: Any) -> Table:
        folder = self._metadata_folder(identifier)
        found = _newest(folder)
        if found is None:
            raise NoSuchTableError(f"There is no Iceberg table in {folder.parent}")
        location = location_of(found[1])
        io = self._load_file_io(location=location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table(Catalog.identifier_to_tuple(identifier), metadata, location, io, self)

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
        if _newest(folder) is not None:
            raise TableAlreadyExistsError(f"There is an Iceberg table in {folder.parent}")
        metadata = new_table_metadata(
            schema=self._convert_schema_if_needed(schema),
            partition_spec=partition_spec,
            sort_order=sort_order,
            location=location or location_of(folder.parent),
            properties=properties or {},
        )
        try:
            self._write(folder, 1, metadata)
        except CommitFailedException as cause:
            raise TableAlreadyExistsError(str(cause)) from cause
        return self.load_table(identifier)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Raises `CommitFailedException` when a requirement is not met or another writer was faster."""
        folder = self._metadata_folder(table.name())
        found = _newest(folder)
        if found is None:
            raise NoSuchTableError(f"There is no Iceberg table in {folder.parent}")
        version, path = found
        current = FromInputFile.table_metadata(table.io.new_input(location_of(path)))
        for requirement in requirements:
            requirement.validate(current)
        changed = update_table_metadata(current, updates, metadata_location=location_of(path))
        written = self._write(folder, version + 1, changed)
        return CommitTableResponse(metadata=changed, metadata_location=location_of(written))  # type: ignore[call-arg]

    def create_namespace(self, namespace: Any, properties: Any = None) -> None:
        self._namespace_folder(namespace).mkdir(parents=True, exist_ok=True)

    def create_namespace_if_not_exists(self, namespace: Any, properties: Any = None) -> None:
        self.create_namespace(namespace)

    def list_namespaces(self, namespace: Any = ()) -> list[Any]:
        folders = self._root.iterdir() if self._root.is_dir() and not namespace else []
        return [(folder.name,) for folder in folders if folder.is_dir()]

    def list_tables(self, namespace: Any) -> list[Any]:
        folder = self._namespace_folder(namespace)
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        return [(folder.name, name) for name in names if _newest(folder / name / "metadata") is not None]

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        return {}

    def _write(self, folder: Path, version: int, metadata: TableMetadata) -> Path:
        """Make `metadata` the given version, or raise `CommitFailedException` when there is one."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"v{version}.metadata.json"
        temporary = folder / f"{uuid.uuid4()}.metadata.json.tmp"
        with temporary.open("wb") as file:
            file.write(metadata.model_dump_json(exclude_none=True).encode())
            file.flush()
            os.fsync(file.fileno())
        try:
            if (folder / f"v{version}.gz.metadata.json").exists():
                raise FileExistsError(target)
            os.link(temporary, target)
        except FileExistsError as cause:
            raise CommitFailedException(f"Version {version} was committed by another writer: {target}") from cause
        finally:
            temporary.unlink()
        sync_folder(folder)
        # Who slept since the version before may find the name free, because old versions are removed.
        if (newest := _hint(folder)) is not None and newest > version + 1:
            target.unlink(missing_ok=True)
            raise CommitFailedException(f"Version {version} is long gone: {target}")
        hint = folder / f"version-hint.{uuid.uuid4()}.tmp"
        hint.write_text(str(version))
        hint.rename(folder / "version-hint.text")
        return target

    def _metadata_folder(self, identifier: Any) -> Path:
        namespace, name = self.identifier_to_database_and_table(identifier)
        return self._namespace_folder(namespace) / name / "metadata"

    def _namespace_folder(self, namespace: Any) -> Path:
        return self._root / self.identifier_to_database(namespace)

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("A warehouse folder is written to by raycdc; use Spark for the rest.")

    drop_table = rename_table = register_table = drop_namespace = update_namespace_properties = _refused
    list_views = view_exists = drop_view = load_view = register_view = _refused


def _hint(folder: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((folder / "version-hint.text").read_text())
    return None


def _newest(folder: Path) -> tuple[int, Path] | None:
    """The newest version of a table and its file; None when there is no table."""
    version = _hint(folder)
    if version is None or _file_of(folder, version) is None:
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        version = max((int(match[1]) for name in names if (match := _VERSION.fullmatch(name))), default=None)
        if version is None:
            return None
    while _file_of(folder, version + 1) is not None:
        version += 1
    path = _file_of(folder, version)
    assert path is not None
    return version, path


def _file_of(folder: Path, version: int) -> Path | None:
    names = (f"v{version}.metadata.json", f"v{version}.gz.metadata.json")
    return next((folder / name for name in names if (folder / name).exists()), None)
