"""Detects rows and files of an Iceberg table that other writers removed or changed since this pipeline's last commit.

Called by `target` before each commit, on its thread. Another writer's snapshot is harmless if it only appends, or
replaces files by others with the same rows (a compaction). After any other snapshot, the rows are compared
(`raycdc.sinks.lakes.ownership`), because the summaries of an UPDATE, a DELETE and pyiceberg's ``overwrite`` look the
same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus
from pyiceberg.table.snapshots import Operation, Snapshot

from raycdc.errors import TargetModifiedError
from raycdc.sinks.iceberg.files import IcebergColumn, read_columns
from raycdc.sinks.iceberg.snapshot_lineage import CONFIRMED
from raycdc.sinks.iceberg.table import EPOCH_OF_SNAPSHOT, IcebergTarget, earlier
from raycdc.sinks.lakes.ownership import COMPARED_BYTES_MAX, are_kept
from raycdc.sinks.targets import absent, lost_files

_HARMLESS = (Operation.APPEND, Operation.REPLACE)

#: The most rows of a data file in memory during a comparison.
_BATCH_ROWS = 1 << 16


def check_unchanged(target: IcebergTarget, source: Collection[str]) -> None:
    """Raise `SinkError` if other writers removed rows, or changed values of the columns `source`, since this pipeline's
    last commit.

    Only for a table that this pipeline created. The error's text says how a user can accept the table's present
    content.
    """
    _check_ids(target, source)
    record, metadata = target.record, target.table.metadata
    head = metadata.current_snapshot_id
    if record is None or record.snapshot is None or record.snapshot == head or not target.ownership.created_by_us:
        return
    if str(head) == metadata.properties.get(CONFIRMED):
        return
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    before = earlier(target.table)
    while record.snapshot not in known and (older := next(before, None)) is not None:
        # pyiceberg removes the id of an expired parent from a snapshot. Older metadata still has it.
        known |= {snapshot.snapshot_id: snapshot for snapshot in older.snapshots}
    suspects = [one for one in _until(record.snapshot, head, known) if not _is_harmless(one)]
    if suspects and not _has_rows_of(target, known.get(record.snapshot), suspects, source):
        raise TargetModifiedError(
            f"The Iceberg table {target.name} has other rows than this pipeline had written: another writer deleted, "
            f"changed or overwrote them (snapshot {suspects[-1].snapshot_id}). Nothing more was written. Roll the "
            f"table back to snapshot {record.snapshot}, or drop it, or vouch for it as it is (ALTER TABLE … SET "
            f"TBLPROPERTIES ('{CONFIRMED}' = '{head}')), and read its source table anew."
        )


def _check_ids(target: IcebergTarget, source: Collection[str]) -> None:
    """Raise `SinkError` if another writer dropped or renamed one of the columns `source` since this pipeline's last
    commit, and added a column with its name: the new column has another field id, and no value in existing rows. No
    snapshot shows such a change.
    """
    record, metadata = target.record, target.table.metadata
    ours = None if record is None or record.snapshot is None else metadata.snapshot_by_id(record.snapshot)
    if ours is None or ours.schema_id is None or not target.ownership.created_by_us:
        return
    before = next((schema for schema in metadata.schemas if schema.schema_id == ours.schema_id), None)
    ids = {} if before is None else {field.name: field.field_id for field in before.fields}
    for field in metadata.schema().fields:
        if field.name in source and ids.get(field.name, field.field_id) != field.field_id:
            raise TargetModifiedError(
                f"The Iceberg table {target.name} has another column {field.name!r} than this pipeline had written: "
                "another writer dropped or renamed that column, and added one with its name, in which existing rows "
                "have no value. Nothing more was written. Drop the table, and read its source table anew."
            )


def check_files(target: IcebergTarget) -> None:
    """Raise `SinkError` if files of this pipeline's last commit are missing. The driver may have died before it made
    this check.
    """
    record = target.record
    made = None if record is None or record.snapshot is None else target.table.metadata.snapshot_by_id(record.snapshot)
    if record is None or made is None:
        return
    io = target.table.io
    manifests = [one for one in made.manifests(io) if one.added_snapshot_id == made.snapshot_id]
    entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(io)]
    added = [
        target.files.path(entry.data_file.file_path)
        for entry in entries
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == made.snapshot_id
    ]
    if missing := absent(added):
        # Files that a later compaction replaced may have been deleted.
        named = {str(target.files.path(file.file_path)) for file in target.data_files()}
        if lost := [path for path in missing if path in named]:
            raise lost_files(f"The Iceberg table {target.name}", record.vector.epoch, lost)


def _until(ours: int | None, head: int | None, known: dict[int, Snapshot]) -> Iterator[Snapshot]:
    """Yield the known snapshots from the `head` back to `ours`, without `ours`."""
    number = head
    while number is not None and number != ours and (snapshot := known.get(number)) is not None:
        yield snapshot
        number = snapshot.parent_snapshot_id


def _is_harmless(snapshot: Snapshot) -> bool:
    """Return True if a snapshot cannot remove a row.

    Snapshots of pipelines are trusted, because they follow the same rules.
    """
    summary = snapshot.summary
    return summary is not None and (summary.operation in _HARMLESS or summary[EPOCH_OF_SNAPSHOT] is not None)


def _has_rows_of(
    target: IcebergTarget, ours: Snapshot | None, suspects: Sequence[Snapshot], source: Collection[str]
) -> bool:
    """Return True if the table has all rows that it had at the snapshot `ours`, compared by the `source`'s columns."""
    try:
        if ours is None:
            return _counts_say_so(suspects)
        before = {file.file_path: file for file in _files_of(target, ours)}
        after = {file.file_path: file for file in target.data_files()}
        missing = [file for path, file in before.items() if path not in after]
        new = [file for path, file in after.items() if path not in before]
        if not missing:
            return True
        counts = [sum(file.record_count for file in files) for files in (missing, new)]
        if counts[1] < counts[0] or sum(file.file_size_in_bytes for file in (*missing, *new)) > COMPARED_BYTES_MAX:
            return counts[1] >= counts[0]
        columns = [column for column in target.columns() if column.name in source]
        names = [column.name for column in columns]
        return are_kept(_rows(target, missing, columns), _rows(target, new, columns), names)
    except (OSError, pa.ArrowException):
        return _counts_say_so(suspects)  # The replaced files do not exist any more.


def _counts_say_so(suspects: Sequence[Snapshot]) -> bool:
    """Return True if other writers added at least as many rows as they deleted, according to the counts in their
    snapshots.
    """
    each = [one.summary for one in suspects if one.summary is not None]
    added, deleted = (sum(int(one[name] or 0) for one in each) for name in ("added-records", "deleted-records"))
    return added >= deleted


def _files_of(target: IcebergTarget, snapshot: Snapshot) -> list[DataFile]:
    io = target.table.io
    entries = [entry for manifest in snapshot.manifests(io) for entry in manifest.fetch_manifest_entry(io)]
    return [entry.data_file for entry in entries if entry.data_file.content == DataFileContent.DATA]


def _rows(
    target: IcebergTarget, files: Sequence[DataFile], columns: Sequence[IcebergColumn]
) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from read_columns(target.files.path(file.file_path), columns, rows=_BATCH_ROWS, only=True)
