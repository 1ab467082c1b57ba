"""A handle of one Iceberg table: it reads the pipeline's vector and makes the pipeline's commits (`commits`). Called by
`sink`, by one thread at a time per table. The vector is a table property of the pipeline (`vector_property`), set in
the same commit as the rows. *Every commit makes a snapshot*, even a commit with only a vector. It requires the snapshot
and the schema on which it was planned, so concurrent commits of any driver are detected. The driver whose commit fails
reads the record again and makes a new plan. pyiceberg's own retries do not do that, so they are not used. The files of
a failed commit stay, for ``remove_orphan_files``: if a request was sent twice, the first one may have succeeded
although the second one failed. If there is no answer, the epoch loop retries the commit and reads the record first. If
the first attempt was carried out, the record shows that. If the first attempt is carried out only after the retry, its
requirements are not met and it fails.

The property also names the snapshot of the pipeline's last commit. After a rollback, the table's current snapshot does
not descend from that snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import PrimitiveType

from raycdc.errors import (
    ChangeRefusedError,
    RaycdcError,
    SinkError,
    SinkUnavailableError,
    TargetDroppedError,
    TargetModifiedError,
)
from raycdc.model import TableId
from raycdc.model.redaction import without_quotations
from raycdc.model.rules.layout import TableLayout
from raycdc.sinks.api import CommitVector
from raycdc.sinks.iceberg.catalog import ReopenedCatalog
from raycdc.sinks.iceberg.commits import CommitContent, CommitProperties, publish
from raycdc.sinks.iceberg.files import IcebergColumn, WrittenFile, is_known, type_text
from raycdc.sinks.iceberg.layout import StoredPartition, transform_text
from raycdc.sinks.iceberg.location import Reach
from raycdc.sinks.iceberg.metadata import iceberg_schema, partition_spec
from raycdc.sinks.iceberg.refusals import (
    is_forbidden,
    is_login,
    is_the_catalogs,
    is_the_tables,
    is_unreachable,
    read_file,
)
from raycdc.sinks.iceberg.snapshot_lineage import (
    CONFIRMED,
    DROP_IT,
    Expiry,
    SnapshotLineage,
    TableRecord,
    check_lineage,
    foreign_records,
    record_of,
    vector_property,
)
from raycdc.sinks.lakes.ownership import Ownership, nothing_left
from raycdc.sinks.lakes.unreachable import is_absent, is_refused, refusal_of
from raycdc.sinks.steps import CommitMetadata, holds
from raycdc.storage.files import AnyPath

#: The table property with the name of the pipeline that created or emptied the table. This pipeline may append snapshot
#: rows to the table without a merge.
CREATED_BY = "raycdc.created-by"

#: The property of snapshots that pipelines make.
EPOCH_OF_SNAPSHOT = "raycdc.epoch"

#: The end of an error about a table that the catalog forbids after a successful login.
_FORBIDDEN = ". The catalog lets us in, but not to this table: let our account read and change it there."

#: How often a commit is retried because another writer of the table (for example a compaction) committed first.
CONFLICT_RETRIES = 5

#: The property of snapshots by which maintenance combined small files.
MAINTENANCE_OF_SNAPSHOT = "raycdc.upkeep"

#: The properties of new tables. pyiceberg and Spark obey them, so that metadata files and manifests do not accumulate.
PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "10",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # raycdc rewrites whole data files and does not read delete files, so other writers must not write delete files.
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
}


class IcebergTarget:
    """The handle of one Iceberg table; see the module's docstring. Errors of pyiceberg become a `SinkError` that names
    the table.
    """

    def __init__(
        self,
        catalog: ReopenedCatalog,
        name: TableId,
        app_id: str,
        *,
        seen: SnapshotLineage,
        reach: Reach,
        expiry: Expiry,
    ) -> None:
        self.name = name
        self._seen = seen
        self._catalog = catalog
        self._identifier = (name.db, name.table)
        self._app_id = app_id
        self._table: Table | None = None
        #: The table's files, as of the last `refresh`.
        self.files = reach.files_of("", {})
        self._reach = reach
        #: The pipeline's record in the table at the last `refresh`.
        self.record: TableRecord | None = None
        #: True if the last `refresh` was the first one of the table in this run.
        self.is_new = False
        #: Properties that the next commit sets on the table.
        self.options: Mapping[str, str] = {}
        self._expiry = expiry

    def refresh(self) -> bool:
        """Read the newest metadata. Returns False if there is no table.

        Raises `SinkError` if the table was rolled back to before this pipeline's last commit.
        """
        self._table = None
        # The vector is taken before reading, because another handle may commit meanwhile.
        seen = self._seen.of(self.name)
        self.is_new = seen is None
        try:
            table = self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return False
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            raise self.error("cannot be read", cause) from cause
        self.files = self._reach.files_of(table.location(), table.io.properties)
        self._table = table
        self.record = record_of(table.metadata, self._app_id)
        try:
            check_lineage(self.name, table.metadata, self.record, earlier(table))
        except OSError as cause:
            raise self.error("cannot be read", cause) from cause
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
        """Return the folder of files that belong to no table: keys of compacted rows, and values that rewritten rows
        keep.
        """
        return self.files.path(self.table.location()) / "_raycdc"

    def vector(self) -> CommitVector | None:
        """Return the vector of this pipeline at the last `refresh`."""
        return None if self.record is None else self.record.vector

    @property
    def ownership(self) -> Ownership:
        """Return who created the table."""
        return Ownership.of(self.table.metadata.properties, self._app_id, CREATED_BY)

    def left_empty(self) -> bool:
        """Return True if an earlier start of this pipeline, with another state, created the table and wrote no row."""
        return self.ownership.created_by_pipeline and not self.data_files()

    def columns(self) -> list[IcebergColumn]:
        """Return the table's columns. Raises `SinkError` for a type that this sink does not write."""
        fields = self.table.metadata.schema().fields
        for one in fields:
            if not isinstance(one.field_type, PrimitiveType) or not is_known(str(one.field_type)):
                raise TargetModifiedError(
                    f"The Iceberg table {self.name} has a column {one.name!r} of type {one.field_type}, which raycdc "
                    "does not write. Remove the column, or route the table to another name."
                )
        return [IcebergColumn(one.field_id, one.name, str(one.field_type)) for one in fields]

    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.arrow) for column in self.columns()])

    @property
    def next_id(self) -> int:
        """Return the first field id that no column of the table ever had."""
        return self.table.metadata.last_column_id + 1

    def partitions(self) -> list[StoredPartition]:
        """Return the present partition fields of the table. Older files may have been written with different partition
        fields.
        """
        return [StoredPartition(f.source_id, f.name, str(f.transform)) for f in self.table.metadata.spec().fields]

    def check_layout(self, layout: TableLayout) -> None:
        """Raise `SinkError` if the table has other partitions than the layout requests."""
        names = {column.id: column.name for column in self.columns()}
        there = [(names.get(one.source, ""), one.transform) for one in self.partitions()]
        if layout.partitions and there != [(field.column, transform_text(field)) for field in layout.partitions]:
            shown = ", ".join(f"{transform}({column})" for column, transform in there) or "nothing"
            asked = ", ".join(f"{transform_text(field)}({field.column})" for field in layout.partitions)
            raise TargetModifiedError(
                f"The Iceberg table {self.name} is partitioned by {shown}, and partition_by asks for {asked}: a table "
                "keeps the partitions that it was made with. Take partition_by back, change the table (ALTER TABLE … "
                "REPLACE PARTITION FIELD), or drop it and take a new snapshot of its source table."
            )

    def check_plain(self) -> None:
        """Raise `SinkError` if files written by stage tasks cannot be added to the table."""
        metadata = self.table.metadata
        invalid = [one.transform for one in self.partitions() if not one.is_known]
        special = [f"is partitioned by {invalid[0]}, which raycdc does not know"] if invalid else []
        if metadata.format_version not in (1, 2):
            special.append(f"has format version {metadata.format_version}")
        if special:
            raise TargetModifiedError(
                f"The Iceberg table {self.name} {' and '.join(special)}, and files of rows cannot be added to it. "
                "Route the table to another name, or drop it and let raycdc make it anew."
            )

    def data_files(self) -> list[DataFile]:
        """Return all data files of the current snapshot in the order of their commits.

        Raises `SinkError` if there are delete files.
        """
        snapshot = self.table.metadata.current_snapshot()
        found: list[tuple[int, DataFile]] = []
        for manifest in snapshot.manifests(self.table.io) if snapshot else ():
            entries = manifest.fetch_manifest_entry(self.table.io, discard_deleted=True)
            if manifest.content == ManifestContent.DELETES and entries:
                raise TargetModifiedError(
                    f"The Iceberg table {self.name} has delete files: another writer deleted or updated rows with "
                    "merge-on-read. Have them applied (rewrite_data_files with delete-file-threshold = 1, then "
                    "rewrite_position_delete_files), and set write.delete.mode, write.update.mode and "
                    "write.merge.mode to copy-on-write."
                )
            found += [
                (entry.sequence_number or 0, entry.data_file)
                for entry in entries
                if entry.data_file.content == DataFileContent.DATA
            ]
        return [file for _, file in sorted(found, key=lambda one: (one[0], one[1].file_path))]

    def create(self, columns: pa.Schema, commit_metadata: CommitMetadata, layout: TableLayout) -> None:
        """Create an empty table, which has the vector from the beginning."""
        numbered = [IcebergColumn(at, f.name, type_text(f.type)) for at, f in enumerate(columns, 1)]
        noted = {vector_property(self._app_id): commit_metadata.text(self._app_id, snapshot=None)}
        ours = {CREATED_BY: self._app_id, **nothing_left(self._app_id)}
        properties = {**dict(layout.options), **PROPERTIES, **self._expiry.of_new_tables, **ours, **noted}
        schema = iceberg_schema(numbered)
        spec = partition_spec(layout, {column.name: column.id for column in numbered})
        try:
            self._catalog.create_table(self._identifier, schema, partition_spec=spec, properties=properties)
        except TableAlreadyExistsError as cause:
            # An earlier attempt may have created the table, and its answer was lost.
            if not self.refresh() or not holds(self.vector(), commit_metadata.vector, self.name):
                raise self.error("cannot be created", cause) from cause
            return
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            raise self.error("cannot be created", cause) from cause
        self.refresh()

    def commit(self, commit_metadata: CommitMetadata, plan: Callable[[], CommitContent]) -> None:
        """Commit the change that `plan` returns, with the vector. Does nothing if the table holds the vector already.

        If another writer committed first, `plan` is called again. If that writer was a newer driver of this pipeline,
        raises `FencedError`.
        """
        for attempt in range(CONFLICT_RETRIES + 1):
            if not self.refresh():
                raise TargetDroppedError(f"The Iceberg table {self.name} disappeared. Read its source table anew.")
            if holds(self.vector(), commit_metadata.vector, self.name):
                return
            try:
                self._publish(plan(), commit_metadata)
            except CommitFailedException as cause:
                if attempt == CONFLICT_RETRIES:
                    what = f"cannot be written: other writers were faster {attempt + 1} times"
                    raise self.error(what, cause) from cause
            except Exception as cause:
                if not is_the_tables(cause):
                    raise
                raise self.error("cannot be written", cause) from cause
            else:
                self.refresh()
                return

    def replace_files(self, change: CommitContent) -> None:
        """Commit a replacement of files by files with the same rows, based on the last `refresh`. The commit has no
        epoch. It is not retried: if another writer committed first, `CommitFailedException` is raised.
        """
        commit_properties = CommitProperties({MAINTENANCE_OF_SNAPSHOT: "compaction"})
        publish(self._catalog, self.table, self.files, change, commit_properties)

    def _publish(self, change: CommitContent, commit_metadata: CommitMetadata) -> None:
        check_required(self, change.add)
        metadata = self.table.metadata
        moot = [CONFIRMED] if CONFIRMED in metadata.properties else []
        moot += foreign_records(metadata, self._app_id) if change.alone else []

        def properties(snapshot: int) -> dict[str, str]:
            noted = {vector_property(self._app_id): commit_metadata.text(self._app_id, snapshot=snapshot)}
            return {**self.options, **change.properties, **noted}

        note = {EPOCH_OF_SNAPSHOT: str(commit_metadata.vector.epoch), "raycdc.step": str(commit_metadata.vector.step)}
        commit_properties = CommitProperties(
            note, properties, moot, self._expiry.left_out(self.name, metadata, self._app_id)
        )
        publish(self._catalog, self.table, self.files, change, commit_properties)

    def error(self, what: str, cause: Exception) -> SinkError:
        """Return the error for a library's error, raised while the table was read or written."""
        absent = is_absent(cause) or is_refused(cause) or is_the_catalogs(cause)
        kind = refusal_of(cause, keys_change=self._reach.keys_change) if absent else TargetModifiedError
        away = is_unreachable(cause)
        if away or (self._reach.login_changes and is_login(cause)):
            kind = SinkUnavailableError  # Another login may soon be valid, and a retry opens the catalog with it.
        if away:
            what += f", because the {self._catalog.where} is away"
        if kind is TargetModifiedError and (file := read_file(cause)) is not None:
            return kind(
                f"The Iceberg table {self.name} {what}: its file {file} is missing or damaged ({type(cause).__name__}: "
                f"{cause}). Nothing was written. Bring the file back, or {DROP_IT}."
            )
        # Arrow quotes values, and SQLAlchemy quotes a statement with values.
        text = without_quotations(str(cause)) if isinstance(cause, pa.ArrowException) else str(cause)
        commit_properties = (
            f"The Iceberg table {self.name} {what}: {type(cause).__name__}: {text.partition('[SQL:')[0].strip()}"
        )
        return kind(commit_properties.rstrip(".") + _FORBIDDEN if is_forbidden(cause) else commit_properties)


@contextmanager
def table_errors(target: IcebergTarget) -> Iterator[None]:
    """Turn errors about the table's files or its catalog within the block into a `SinkError`."""
    try:
        yield
    except Exception as cause:
        if isinstance(cause, RaycdcError) or not is_the_tables(cause):
            raise
        raise target.error("cannot be read", cause) from cause


def lacks_replaced(target: IcebergTarget, change: CommitContent, before: TableMetadata) -> bool:
    """Return True if it is certain that no snapshot has the files that `replace_files` tried to add.

    Called after `replace_files` raised `CommitFailedException`. `before` is the metadata before that attempt. Refreshes
    `target`.
    """
    if not target._catalog.refuses_for_certain or not target.refresh():
        return False
    known = {snapshot.snapshot_id for snapshot in before.snapshots}
    for one in target.table.metadata.snapshots:
        replaced = one.summary is not None and one.summary[MAINTENANCE_OF_SNAPSHOT] is not None
        if replaced and one.snapshot_id not in known:
            return False  # The snapshot may be our commit.
    there = {str(target.files.path(file.file_path)) for file in target.data_files()}
    return not any(str(file.path) in there for file in change.add)


def earlier(table: Table) -> Iterator[TableMetadata]:
    """Yield the table's earlier metadata that still exists, newest first.

    Raises `OSError` if the store refuses access.
    """
    for entry in reversed(table.metadata.metadata_log):
        try:
            yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except (OSError, ValueError) as cause:
            if is_absent(cause) or is_refused(cause):
                raise
            return


def check_sources(table: IcebergTarget, columns: Sequence[IcebergColumn]) -> None:
    """Raise `SinkError` if the table cannot be partitioned with its new `columns`."""
    here = {column.id: column for column in table.columns()}
    there = {column.id: column.type for column in columns}
    for one in table.partitions():
        was = here[one.source]
        # Readers interpret a manifest's values of another type in different ways.
        if there.get(one.source) not in (was.type, "long" if was.type == "int" else was.type):
            raise ChangeRefusedError(
                f"{table.name}: column {was.name!r} was dropped, made anew or given another type at the source, and "
                "the Iceberg table is partitioned by it. Take the change back, or drop the Iceberg table and "
                "take a new snapshot."
            )


def check_identifiers(table: IcebergTarget, key: Sequence[str]) -> None:
    """Raise `SinkError` if another writer gave the table identifier fields by which its rows are not unique. The rows
    are unique by `key` (empty: a changelog).
    """
    identifiers = table.table.metadata.schema().identifier_field_names()
    if identifiers and not (key and set(key) <= identifiers):
        unique = f"its rows are unique by ({', '.join(key)}) only" if key else "a changelog has a row many times"
        raise TargetModifiedError(
            f"The Iceberg table {table.name} has the identifier fields ({', '.join(sorted(identifiers))}), and "
            f"{unique}. Drop them (ALTER TABLE … DROP IDENTIFIER FIELDS), or route the table to another name."
        )


def check_required(table: IcebergTarget, files: Iterable[WrittenFile]) -> None:
    """Raise `SinkError` if `files` have NULL in a column that another client made required.

    Neither the format nor a catalog checks it, and readers cannot read such a table.
    """
    required = [field for field in table.table.metadata.schema().fields if field.required]
    for field, file in ((field, file) for file in files for field in required):
        # A file without the column has NULL there.
        if file.rows and file.statistics.nulls.get(field.field_id, file.rows):
            raise TargetModifiedError(
                f"The Iceberg table {table.name} requires a value in column {field.name!r}, because another client "
                "set it NOT NULL, and rows of the source have NULL there. Nothing was written. Take that back "
                f"(ALTER TABLE … ALTER COLUMN {field.name} DROP NOT NULL), or route the table to another name."
            )
