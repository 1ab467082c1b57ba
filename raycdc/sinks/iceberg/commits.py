"""Makes one commit to an Iceberg table: pyiceberg builds and sends its snapshot and metadata updates.

Called by `table`. Every commit requires the snapshot and the schema on which it was planned. If another writer
committed in between, the catalog refuses the commit, and nothing has changed. Files are on disk before the metadata
names them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
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
from pyiceberg.typedef import EMPTY_DICT

from raycdc.sinks.iceberg.catalog import ReopenedCatalog
from raycdc.sinks.iceberg.files import IcebergColumn, WrittenFile
from raycdc.sinks.iceberg.location import TableFiles, sync_file
from raycdc.sinks.iceberg.metadata import data_file, iceberg_schema, updated
from raycdc.state.files.folder import sync_folder
from raycdc.storage.files import StorePath

#: Manifests are merged up to this size: Iceberg's own default.
MANIFEST_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class CommitContent:
    """The content of one commit: files to add (as tasks wrote them), files to delete, columns, and table properties.

    If `alone` is True, the records of all other pipelines are removed from the table. If `same_rows` is True, the added
    files have the same rows as the deleted files.
    """

    add: Sequence[WrittenFile] = ()
    delete: Sequence[DataFile] = ()
    columns: Sequence[IcebergColumn] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False
    same_rows: bool = False


def _none(_snapshot: int) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class CommitProperties:
    """The metadata of a commit.

    `note` has properties for the snapshot. `properties` returns the properties to set on the table, and gets the
    snapshot's id. The table properties named in `moot` are removed. The snapshots in `left_out` are dropped.
    """

    note: Mapping[str, str]
    properties: Callable[[int], Mapping[str, str]] = _none
    moot: Sequence[str] = ()
    left_out: Sequence[int] = ()


class _Staged(Transaction):
    """pyiceberg's transaction, but its metadata is computed once per update. pyiceberg would compute it at every
    access, with a copy of all snapshots.
    """

    _known: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._known is None or self._known[0] is not self._updates:
            self._known = self._updates, updated(self._table.metadata, self._updates)
        return self._known[1]


class _Overwrite(_OverwriteFiles):
    """pyiceberg's overwrite, with manifests merged like in an append, and without empty manifests."""

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


class _Replace(_Overwrite):
    """A commit that replaces files by new files with the same rows.

    Its snapshot has Iceberg's operation ``replace``: readers that follow the table skip it, and other writers know that
    no row changed. pyiceberg defines the operation, but cannot make such a commit.
    """

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        counted = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **counted.additional_properties)


def publish(
    catalog: ReopenedCatalog,
    table: Table,
    files: TableFiles,
    change: CommitContent,
    commit_properties: CommitProperties,
) -> None:
    """Commit `change` to the version of `table` that was read.

    Raises `CommitFailedException` if the table has changed since.
    """
    metadata = table.metadata
    staged = _Staged(table)
    if change.columns is not None:
        _set_columns(staged, change.columns)
    producer = _producer(staged, table, change, commit_properties)
    with producer:
        for written_file in change.add:
            producer.append_data_file(
                data_file(written_file, files.location(written_file.path), metadata.default_spec_id)
            )
        for replaced in change.delete:
            producer.delete_data_file(replaced)
    if properties := commit_properties.properties(producer.snapshot_id):
        staged.set_properties(dict(properties))
    if commit_properties.moot:
        staged.remove_properties(*commit_properties.moot)
    if commit_properties.left_out:
        # One update per snapshot, because Iceberg's older REST catalogs refuse an update with several.
        staged._apply(tuple(RemoveSnapshotsUpdate(snapshot_ids=[one]) for one in commit_properties.left_out))  # type: ignore[call-arg]
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
        response = catalog.commit_table(table, requirements, updates)
    except ValueError as cause:
        if not commit_properties.left_out or "does not exist" not in str(cause):
            raise
        # Another writer has expired these snapshots.
        raise CommitFailedException(str(cause)) from cause
    with contextlib.suppress(OSError):  # Remaining old metadata only takes space.
        Catalog._delete_old_metadata(table.io, metadata, response.metadata)


def _producer(staged: _Staged, table: Table, change: CommitContent, commit_properties: CommitProperties) -> Any:
    """Return pyiceberg's producer of the snapshot: an append, an overwrite or a replacement, depending on the
    change.
    """
    note = dict(commit_properties.note)
    if not change.delete:
        return staged.update_snapshot(snapshot_properties=note).merge_append()
    kind = _Replace if change.same_rows else _Overwrite
    return kind(Operation.OVERWRITE, staged, table.io, snapshot_properties=note)


def _set_columns(staged: Any, columns: Sequence[IcebergColumn]) -> None:
    metadata = staged.table_metadata
    number = max(schema.schema_id for schema in metadata.schemas) + 1
    wanted = iceberg_schema(columns, number=number, before=metadata.schema())
    same = next((schema.schema_id for schema in metadata.schemas if schema == wanted), None)
    if same is None:
        last = SetCurrentSchemaUpdate()  # The schema that was added last.
        staged._apply((AddSchemaUpdate(schema=wanted), last))
    elif same != metadata.current_schema_id:
        staged._apply((SetCurrentSchemaUpdate(schema_id=same),))  # type: ignore[call-arg]
