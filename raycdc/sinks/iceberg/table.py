"""One Iceberg table as this pipeline uses it: its commit vector, and the one kind of commit we make, through pyiceberg.

Called by `sink`, by one thread at a time per table. The vector is a table property of the pipeline's
own (`vector_property`), set in the same commit as the rows. *Every commit makes a snapshot*, one of only a vector too,
and asks for the snapshot and the schema that it was planned against: so no commit passes another of any driver unseen.
The loser looks at the record again and plans anew; pyiceberg's own retries, which would not look, are not used. What a
commit wrote that is said to have failed stays where it is, for `remove_orphan_files`: a catalog's answer may be that to
the second of two tries of which the first went through, and other snapshots may go on from what it refused.

The property names our snapshot, so that a rollback is noticed: the table's current one does not descend from it then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.types import PrimitiveType
from requests import RequestException
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from raycdc.checkpoint.disk import sync_folder
from raycdc.errors import (
    ChangeRefusedError,
    SinkError,
    SinkUnavailableError,
    TargetGoneError,
    TargetTouchedError,
)
from raycdc.model import TableId
from raycdc.model.layout import TableLayout
from raycdc.model.untold import without_quotations
from raycdc.sinks.absence import is_absent, is_refused, refusal_of
from raycdc.sinks.api import CommitVector
from raycdc.sinks.iceberg.descent import (
    CONFIRMED,
    Seen,
    TableRecord,
    check_descent,
    record_of,
    records_of_others,
    vector_property,
)
from raycdc.sinks.iceberg.expiry import Expiry
from raycdc.sinks.iceberg.files import StoredColumn, WrittenFile, is_known, type_text
from raycdc.sinks.iceberg.layout import StoredPartition, transform_text
from raycdc.sinks.iceberg.metadata import data_file, iceberg_schema, partition_spec
from raycdc.sinks.iceberg.places import Reach, sync_file
from raycdc.sinks.iceberg.updates import updated
from raycdc.sinks.library_errors import raised_in
from raycdc.sinks.ownership import Ownership, nothing_left
from raycdc.sinks.steps import Stamp, holds
from raycdc.stores.api import StoreError
from raycdc.stores.files import AnyPath, StorePath

#: Table property that says which pipeline created (or emptied) the table, so that plain appends are right.
CREATED_BY = "raycdc.created-by"

#: Property of the snapshots that pipelines make.
EPOCH_OF_SNAPSHOT = "raycdc.epoch"

#: How often a commit that lost against another writer of the table (a compaction, say) is tried again.
CONFLICT_RETRIES = 5

#: Manifests are merged up to this size: Iceberg's own default.
MANIFEST_BYTES_MAX = 8 << 20

#: What a table that we make says to pyiceberg and Spark: metadata files and manifests do not pile up with the commits.
PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "10",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # Our rewriting reads whole files; so others' deletions must not lie beside them.
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
}


@dataclass(frozen=True, slots=True)
class Change:
    """The content of one commit: files in and out (`add` as tasks wrote them), columns, properties; with `alone` no
    other pipeline has a record in the table any more.
    """

    add: Sequence[WrittenFile] = ()
    delete: Sequence[DataFile] = ()
    columns: Sequence[StoredColumn] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False


class _Staged(Transaction):
    """pyiceberg's, but its metadata is worked out once per update, not at every look with a copy of all snapshots."""

    _known: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._known is None or self._known[0] is not self._updates:
            self._known = self._updates, updated(self._table.metadata, self._updates)
        return self._known[1]


class _Overwrite(_OverwriteFiles):
    """pyiceberg's, but with manifests that are merged as an append's are, and none that has no file any more."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        living = [m for m in manifests if m.has_added_files() or m.has_existing_files() or self._is_ours(m)]
        properties = self._transaction.table_metadata.properties
        merging = _ManifestMergeManager(
            target_size_bytes=MANIFEST_BYTES_MAX,
            min_count_to_merge=int(properties.get("commit.manifest.min-count-to-merge", "100")),
            merge_enabled=properties.get("commit.manifest-merge.enabled") == "true",
            snapshot_producer=self,
        )
        return merging.merge_manifests(living)

    def _is_ours(self, manifest: ManifestFile) -> bool:
        return manifest.added_snapshot_id in (None, self.snapshot_id)


class IcebergTarget:
    """See the module's docstring. Errors of pyiceberg become `SinkError` naming the table."""

    def __init__(
        self, catalog: Catalog, name: TableId, app_id: str, *, seen: Seen, reach: Reach, expiry: Expiry
    ) -> None:
        self.name = name
        self._seen = seen
        #: Its owner gives another one, which is the same with other keys; it counts from the next `refresh` on.
        self.catalog = catalog
        self._identifier = (name.db, name.table)
        self._app_id = app_id
        self._table: Table | None = None
        #: The table's files, as of the last `refresh`.
        self.files = reach.files_of("", {})
        self._reach = reach
        #: What the table held of this pipeline at the last `refresh`.
        self.record: TableRecord | None = None
        #: Whether nobody of this run had looked at the table before the last `refresh`.
        self.is_new = False
        #: Properties that the table is to have after its next commit.
        self.options: Mapping[str, str] = {}
        self._expiry = expiry

    def refresh(self) -> bool:
        """Bring the handle to the newest metadata; False when there is no table. `SinkError` when it was rolled back
        behind what this pipeline had written.
        """
        self._table = None
        # Another handle may commit while this one reads.
        seen = self._seen.of(self.name)
        self.is_new = seen is None
        try:
            table = self.catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return False
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            raise self._error("cannot be read", cause) from cause
        self.files = self._reach.files_of(table.location(), table.io.properties)
        self._table = table
        self.record = record_of(table.metadata, self._app_id)
        check_descent(self.name, table.metadata, self.record, earlier(table))
        self._seen.check(self.name, seen, self.vector())
        return True

    @property
    def table(self) -> Table:
        assert self._table is not None, f"{self.name} was not refreshed"
        return self._table

    @property
    def data_folder(self) -> AnyPath:
        properties = self.table.metadata.properties
        return self.files.path(properties.get("write.data.path") or f"{self.table.location().rstrip('/')}/data")

    @property
    def staging_folder(self) -> AnyPath:
        """Of files that no table is to have: keys of compacted rows, and values that rewritten rows keep."""
        return self.files.path(self.table.location()) / "_raycdc"

    def vector(self) -> CommitVector | None:
        """The vector of this pipeline in the metadata of the last `refresh`."""
        return None if self.record is None else self.record.vector

    @property
    def ownership(self) -> Ownership:
        """Whose the table is."""
        return Ownership.of(self.table.metadata.properties, self._app_id, CREATED_BY)

    def left_empty(self) -> bool:
        """Whether the table is an earlier start's of this pipeline, with another state, which wrote no row."""
        return self.ownership.created_by_pipeline and not self.data_files()

    def columns(self) -> list[StoredColumn]:
        """The table's columns. `SinkError` for a type that this sink does not write."""
        fields = self.table.metadata.schema().fields
        for one in fields:
            if not isinstance(one.field_type, PrimitiveType) or not is_known(str(one.field_type)):
                raise TargetTouchedError(
                    f"The Iceberg table {self.name} has a column {one.name!r} of type {one.field_type}, which raycdc "
                    "does not write. Remove the column, or route the table to another name."
                )
        return [StoredColumn(one.field_id, one.name, str(one.field_type)) for one in fields]

    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.arrow) for column in self.columns()])

    @property
    def next_id(self) -> int:
        """The first field id that no column of the table ever had."""
        return self.table.metadata.last_column_id + 1

    def partitions(self) -> list[StoredPartition]:
        """The partitions of the table now; older files may have other ones."""
        return [StoredPartition(f.source_id, f.name, str(f.transform)) for f in self.table.metadata.spec().fields]

    def check_layout(self, layout: TableLayout) -> None:
        """`SinkError` when the table has other partitions than those asked for."""
        names = {column.id: column.name for column in self.columns()}
        there = [(names.get(one.source, ""), one.transform) for one in self.partitions()]
        if layout.partitions and there != [(field.column, transform_text(field)) for field in layout.partitions]:
            shown = ", ".join(f"{transform}({column})" for column, transform in there) or "nothing"
            asked = ", ".join(f"{transform_text(field)}({field.column})" for field in layout.partitions)
            raise TargetTouchedError(
                f"The Iceberg table {self.name} is partitioned by {shown}, and partition_by asks for {asked}: a table "
                "keeps the partitions that it was made with. Take partition_by back, change the table (ALTER TABLE … "
                "REPLACE PARTITION FIELD), or drop it and take a new snapshot of its source table."
            )

    def check_plain(self) -> None:
        """`SinkError` when the table's files are not simply its columns, as those of a stage task are."""
        metadata = self.table.metadata
        odd = [one.transform for one in self.partitions() if not one.is_known]
        special = [f"is partitioned by {odd[0]}, which raycdc does not know"] if odd else []
        if metadata.format_version not in (1, 2):
            special.append(f"has format version {metadata.format_version}")
        if special:
            raise TargetTouchedError(
                f"The Iceberg table {self.name} {' and '.join(special)}, and files of rows cannot be added to it. "
                "Route the table to another name, or drop it and let raycdc make it anew."
            )

    def data_files(self) -> list[DataFile]:
        """All data files of the current snapshot. `SinkError` when rows are deleted beside their files."""
        snapshot = self.table.metadata.current_snapshot()
        found: list[DataFile] = []
        for manifest in snapshot.manifests(self.table.io) if snapshot else ():
            entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
            if manifest.content == ManifestContent.DELETES and entries:
                raise TargetTouchedError(
                    f"The Iceberg table {self.name} has delete files: another writer deleted or updated rows with "
                    "merge-on-read. Have them applied (rewrite_data_files with delete-file-threshold = 1, then "
                    "rewrite_position_delete_files), and set write.delete.mode, write.update.mode and "
                    "write.merge.mode to copy-on-write."
                )
            found += [entry.data_file for entry in entries if entry.data_file.content == DataFileContent.DATA]
        return found

    # -- commits ----------------------------------------------------------------------------------------------------

    def create(self, columns: pa.Schema, stamp: Stamp, layout: TableLayout) -> None:
        """Make an empty table; the vector is in it from the beginning."""
        numbered = [StoredColumn(at, f.name, type_text(f.type)) for at, f in enumerate(columns, 1)]
        noted = {vector_property(self._app_id): stamp.text(self._app_id, snapshot=None)}
        ours = {CREATED_BY: self._app_id, **nothing_left(self._app_id)}
        properties = {**dict(layout.options), **PROPERTIES, **self._expiry.of_new_tables, **ours, **noted}
        schema = iceberg_schema(numbered)
        spec = partition_spec(layout, {column.name: column.id for column in numbered})
        try:
            self.catalog.create_namespace_if_not_exists((self.name.db,))
            self.catalog.create_table(self._identifier, schema, partition_spec=spec, properties=properties)
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            raise self._error("cannot be created", cause) from cause
        self.refresh()

    def commit(self, stamp: Stamp, plan: Callable[[], Change]) -> None:
        """Do what `plan` says of the table as it is, with the vector, in one commit; nothing when the table holds it.

        `plan` is called again when another writer was faster. `FencedError` when that was a newer driver.
        """
        for attempt in range(CONFLICT_RETRIES + 1):
            if not self.refresh():
                raise TargetGoneError(f"The Iceberg table {self.name} disappeared. Read its source table anew.")
            if holds(self.vector(), stamp.vector, self.name):
                return
            try:
                self._publish(plan(), stamp)
            except CommitFailedException as cause:
                if attempt == CONFLICT_RETRIES:
                    what = f"cannot be written: other writers were faster {attempt + 1} times"
                    raise self._error(what, cause) from cause
            except Exception as cause:
                if not is_the_tables(cause):
                    raise
                raise self._error("cannot be written", cause) from cause
            else:
                self.refresh()
                return

    def mark(self, stamp: Stamp) -> None:
        """Commit nothing but the vector, unless the table is there already."""
        self.commit(stamp, Change)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _publish(self, change: Change, stamp: Stamp) -> None:
        table = self.table
        metadata = table.metadata
        staged = _Staged(table)
        if change.columns is not None:
            _set_columns(staged, change.columns)
        note = {EPOCH_OF_SNAPSHOT: str(stamp.vector.epoch), "raycdc.step": str(stamp.vector.step)}
        producer: Any = (
            _Overwrite(Operation.OVERWRITE, staged, table.io, snapshot_properties=note)
            if change.delete
            else staged.update_snapshot(snapshot_properties=note).merge_append()
        )
        with producer:
            for written_file in change.add:
                producer.append_data_file(
                    data_file(written_file, self.files.location(written_file.path), metadata.default_spec_id)
                )
            for gone in change.delete:
                producer.delete_data_file(gone)
        noted = {vector_property(self._app_id): stamp.text(self._app_id, snapshot=producer.snapshot_id)}
        staged.set_properties({**self.options, **change.properties, **noted})
        moot = [CONFIRMED] if CONFIRMED in metadata.properties else []
        moot += records_of_others(metadata, self._app_id) if change.alone else []
        if moot:
            staged.remove_properties(*moot)
        old = self._expiry.left_out(self.name, metadata, self._app_id)
        if old:
            # Older REST catalogs of Iceberg's own making refuse a whole commit with an update that names more than one.
            staged._apply(tuple(RemoveSnapshotsUpdate(snapshot_ids=[one]) for one in old))  # type: ignore[call-arg]
        # pyiceberg has no public name for these; the version is pinned.
        written = [*producer._written_manifests, *producer._written_manifest_lists]
        updates: tuple[TableUpdate, ...] = staged._updates
        for location in written:
            sync_file(location)
        for folder in {Path(file.path).parent for file in change.add if not isinstance(file.path, StorePath)}:
            sync_folder(folder)
        head = metadata.current_snapshot()
        requirements = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId(ref="main", snapshot_id=head.snapshot_id if head else None),  # type: ignore[call-arg]
            AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),  # type: ignore[call-arg]
        )
        try:
            response = self.catalog.commit_table(table, requirements, updates)
        except ValueError as cause:
            if not old or "does not exist" not in str(cause):
                raise
            # Somebody else has expired them meanwhile.
            raise CommitFailedException(str(cause)) from cause
        with contextlib.suppress(OSError):  # Old metadata that stays only costs space.
            Catalog._delete_old_metadata(table.io, metadata, response.metadata)

    def _error(self, what: str, cause: Exception) -> SinkError:
        absent = is_absent(cause) or is_refused(cause) or is_the_catalogs(cause)
        kind = refusal_of(cause, keys_change=self._reach.keys_change) if absent else TargetTouchedError
        if self._reach.login_changes and isinstance(cause, UnauthorizedError | OperationalError):
            kind = SinkUnavailableError  # Others may be right soon, and the next try opens the catalog with them.
        # Arrow quotes values, and SQLAlchemy its statement with them.
        text = without_quotations(str(cause)) if isinstance(cause, pa.ArrowException) else str(cause)
        return kind(
            f"The Iceberg table {self.name} {what}: {type(cause).__name__}: {text.partition('[SQL:')[0].strip()}"
        )


def earlier(table: Table) -> Iterator[TableMetadata]:
    """The metadata that the table had, newest first, as far as it is kept."""
    for entry in reversed(table.metadata.metadata_log):
        try:
            yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except (OSError, ValueError):
            return


def check_sources(table: IcebergTarget, columns: Sequence[StoredColumn]) -> None:
    """`SinkError` unless `columns`, which the table is to have, are still what it is partitioned by."""
    here = {column.id: column for column in table.columns()}
    there = {column.id: column.type for column in columns}
    for one in table.partitions():
        was = here[one.source]
        # A manifest's tuples of other types are not read alike by all.
        if there.get(one.source) not in (was.type, "long" if was.type == "int" else was.type):
            raise ChangeRefusedError(
                f"{table.name}: column {was.name!r} was dropped, made anew or given another type at the source, and "
                "the Iceberg table is partitioned by it. Take the change back, or drop the Iceberg table and "
                "take a new snapshot."
            )


def _set_columns(staged: Any, columns: Sequence[StoredColumn]) -> None:
    metadata = staged.table_metadata
    wanted = iceberg_schema(columns, number=max(schema.schema_id for schema in metadata.schemas) + 1)
    same = next((schema.schema_id for schema in metadata.schemas if schema == wanted), None)
    if same is None:
        last = SetCurrentSchemaUpdate()  # The last one added.
        staged._apply((AddSchemaUpdate(schema=wanted), last))
    elif same != metadata.current_schema_id:
        staged._apply((SetCurrentSchemaUpdate(schema_id=same),))  # type: ignore[call-arg]


def is_the_catalogs(error: Exception) -> bool:
    """Whether the catalog is away, or refuses us as a whole, so that no single table is concerned. Where a server lets
    us not change a table, or has something against the change itself, that table is.
    """
    if isinstance(error, RESTError):
        return not isinstance(error, BadRequestError | ForbiddenError)
    return isinstance(error, RequestException) or (
        isinstance(error, SQLAlchemyError) and not isinstance(error, IntegrityError)
    )


def is_the_tables(error: Exception) -> bool:
    """Whether it is about the table or its catalog and no bug of ours."""
    known = type(error).__module__.startswith(("pyiceberg.", "requests."))
    if known or isinstance(error, OSError | SQLAlchemyError | StoreError):
        return True
    # Arrow reads the files of a table, which somebody may have damaged; its computing is our own.
    libraries = ("pyiceberg", "pyarrow.parquet", "pyarrow.dataset")
    return isinstance(error, pa.ArrowException | ValueError) and raised_in(error, *libraries)
