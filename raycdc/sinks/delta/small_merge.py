"""Merges a few rows into a few small files of a Delta table, in this process: read, compact, write one file.

Called by `DeltaTarget.merge`. A general merge plans a join and starts threads, which costs more than the work itself if
a few rows are merged into a file of some kilobytes (measured 15 ms of CPU per table instead of 4 ms). This module reads
the files completely whose statistics allow one of the changed keys. It writes the new rows and those old rows that do
not have a changed key to one new file. If there are many small files, they are rewritten, too, so that small epochs do
not accumulate files. The commit removes the files that were read and adds the new file. It is only valid as the next
version, so no other commit can come in between.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from raycdc.model.keys import without
from raycdc.sinks.delta.layout import OPTIONS, folder_of, unfit, value_text
from raycdc.sinks.delta.table_constraints import TableConstraints
from raycdc.sinks.lakes.partitioning import Values, split
from raycdc.sinks.lakes.statistics import for_table
from raycdc.sinks.rows import alive
from raycdc.sinks.tasks import write_parquet_file
from raycdc.storage.files import AnyPath, reading, relative

Action = AddAction | RemoveAction

#: The most bytes of files that are rewritten in this way. For more bytes, delta-rs's merge is faster in spite of its
#: fixed cost.
REWRITE_BYTES_MAX = 4 << 20

#: The most rows of these files, because a few bytes may encode millions of equal values.
REWRITE_ROWS_MAX = 1 << 18

#: The most bytes in memory of rows that are merged in this way.
CHANGES_BYTES_MAX = 16 << 20

#: A file below this size is small. When there are so many small ones, the next merge combines them.
SMALL_FILE_BYTES = 256 << 10
SMALL_FILES_MAX = 8

_DESCRIBED = ["path", "size_bytes", "num_records"]
_PARTITION = "partition."

#: Table features that this rewriting supports. A table with any other feature is merged by delta-rs.
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
#: File names that every writer writes in the same way into the log, where some characters are escaped.
_PLAIN_NAME = re.compile(r"(?:[A-Za-z0-9_.=~\-]|%25)+(/(?:[A-Za-z0-9_.=~\-]|%25)+)*")
_SPECIAL_SETTINGS = ("delta.constraints.", "delta.columnMapping.mode", "delta.enable", "delta.appendOnly")


def rewrite(table: DeltaTable, folder: AnyPath, changes: pa.Table, key: Sequence[str]) -> list[Action] | None:
    """Return the actions that merge compacted `changes` (with `DELETED`) into the snapshot of `table`; None if that is
    impossible.

    Rows of each partition are rewritten separately. If a row moves to another partition, its old version is removed
    from the file of the old partition, and its new version is written to a new file of the new partition. If the commit
    fails, the new files are not deleted, because it is not always known if the commit is in the log. They are never
    read, and VACUUM finds them.
    """
    if changes.nbytes > CHANGES_BYTES_MAX or not is_plain(table) or TableConstraints.of(table):
        return None
    schema = pa.schema(table.schema().to_arrow())
    if not all(_is_exact(schema.field(name).type) for name in key):
        return None
    metadata = table.metadata()
    partition_by = list(metadata.partition_columns)
    found = pa.table(table.get_add_actions(flatten=True))
    if not _has_values(found, partition_by, schema):
        return None
    chosen = found.take(pa.array(_chosen(found, changes.column(key[0]), key[0], partition_by)))
    files = _described(chosen, partition_by)
    if sum(file.size for file in files) > REWRITE_BYTES_MAX or not all(_PLAIN_NAME.fullmatch(f.path) for f in files):
        return None
    if any(file.rows is None for file in files) or sum(file.rows or 0 for file in files) > REWRITE_ROWS_MAX:
        return None
    keys = in_types(changes.select(list(key)), pa.schema([schema.field(name) for name in key]))
    new = in_types(alive(changes), schema)
    arriving = {
        values: new.take(pa.array(rows)) for values, rows in split([new.column(n) for n in partition_by], len(new))
    }
    of_partition: dict[Values, list[SnapshotFile]] = {values: [] for values in arriving}
    for file in files:
        of_partition.setdefault(file.values, []).append(file)
    actions: list[Action] = []
    for values, old in of_partition.items():
        there = _read(folder, old, schema, partition_by)
        staying = there.filter(pa.array(without(there, keys)))
        rows = arriving.get(values, new.slice(0, 0))
        small_files = sum(file.size < SMALL_FILE_BYTES for file in old) >= SMALL_FILES_MAX
        stay = staying.num_rows == there.num_rows and not (rows.num_rows and _small(old)) and not small_files
        partition = {name: value_text(value) for name, value in zip(partition_by, values, strict=True)}
        if not stay:
            actions += [file.removed(partition) for file in old]
            rows = pa.concat_tables([staying, rows])
        if rows.num_rows:
            actions.append(_written(folder, rows, partition, metadata.configuration))
    return actions


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A data file of the snapshot: its path in the log, its size, and the values of its partition."""

    path: str
    size: int
    rows: int | None
    values: Values

    def removed(self, partition: Mapping[str, str | None]) -> RemoveAction:
        now_ms = time.time_ns() // 1_000_000
        return RemoveAction(
            # delta-rs writes the path into the log unchanged.
            unquote(self.path),
            data_change=True,
            deletion_timestamp=now_ms,
            size=self.size,
            partition_values=dict(partition),
        )


def _small(files: Sequence[SnapshotFile]) -> bool:
    return sum(file.size for file in files) <= SMALL_FILE_BYTES


def snapshot_files(table: DeltaTable) -> list[SnapshotFile] | None:
    """Return the data files of the snapshot of `table`; None if another writer described a file in a form that this
    module does not read.
    """
    partition_by = table.metadata().partition_columns
    found = pa.table(table.get_add_actions(flatten=True))
    if not _has_values(found, partition_by, pa.schema(table.schema().to_arrow())):
        return None
    files = _described(found, partition_by)
    plain = all(_PLAIN_NAME.fullmatch(file.path) and file.rows is not None for file in files)
    return files if plain else None


def _has_values(files: pa.Table, partition_by: Sequence[str], schema: pa.Schema) -> bool:
    """Return True if the partition values of the files can be read, and have types that all writers encode in the same
    way.
    """
    if any(unfit(name, schema.field(name).type) for name in partition_by):
        return False
    return not files.num_rows or {f"{_PARTITION}{name}" for name in partition_by} <= set(files.column_names)


def _described(files: pa.Table, partition_by: Sequence[str]) -> list[SnapshotFile]:
    paths, sizes, counts = (files.column(name).to_pylist() for name in _DESCRIBED)
    columns = [files.column(f"{_PARTITION}{name}").to_pylist() for name in partition_by if files.num_rows]
    values = list(zip(*columns, strict=True)) if columns else [()] * files.num_rows
    return list(map(SnapshotFile, paths, sizes, counts, values))


def _written(
    folder: AnyPath, rows: pa.Table, partition: Mapping[str, str | None], settings: Mapping[str, str]
) -> AddAction:
    """Write `rows` to a new file, and return the action that adds it."""
    stored = rows.drop_columns(list(partition))
    path = folder / folder_of(partition) / f"part-{uuid.uuid4()}.snappy.parquet"
    written = write_parquet_file(path, stored.schema, stored.to_batches())
    return AddAction(
        path=relative(path, folder),
        size=written.size,
        partition_values=dict(partition),
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=for_table(written.statistics, settings),
    )


def is_plain(table: DeltaTable) -> bool:
    """Return True if the table's files simply contain its rows, and need no unsupported feature."""
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    metadata = table.metadata()
    if features - _PLAIN_FEATURES or (not features and protocol.min_writer_version > 2):
        return False
    settings = metadata.configuration
    asked = [
        n
        for n in settings
        if n.startswith(_SPECIAL_SETTINGS) and n not in OPTIONS and settings[n] not in ("false", "none")
    ]
    return not asked and not any(field.metadata for field in table.schema().fields)


def _is_exact(kind: pa.DataType) -> bool:
    """Return True if equal values of the type are always identical, which is not so for floating point."""
    exact = (pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_date, pa.types.is_timestamp,
             pa.types.is_decimal, pa.types.is_boolean)  # fmt: skip
    return any(is_it(kind) for is_it in exact)


def _has_exact_bounds(kind: pa.DataType) -> bool:
    """Return True if every writer's bounds for values of the type are exact. For example, bounds of decimals may be
    doubles, and bounds of timestamps may be cut to milliseconds.
    """
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind))


def _chosen(files: pa.Table, keys: pa.ChunkedArray, first: str, partition_by: Sequence[str]) -> np.ndarray:
    """Return the numbers of the files that may have a key, and of all small files of a partition that has many of
    them.
    """
    wanted = np.ones(files.num_rows, np.bool_)
    if f"min.{first}" in files.column_names and len(keys) and _has_exact_bounds(keys.type):
        least, most = pc.min_max(keys).values()
        low, high = files.column(f"min.{first}"), files.column(f"max.{first}")
        outside = pc.or_kleene(pc.less(high.cast(least.type), least), pc.greater(low.cast(most.type), most))
        wanted = ~pc.fill_null(outside, fill_value=False).to_numpy()
    small = files.column("size_bytes").to_numpy() < SMALL_FILE_BYTES
    partitions = [files.column(f"{_PARTITION}{name}") for name in partition_by] if files.num_rows else []
    for _, rows in split(partitions, files.num_rows):
        if int(np.count_nonzero(small[rows] & ~wanted[rows])) >= SMALL_FILES_MAX:
            wanted[rows] |= small[rows]
    return np.flatnonzero(wanted)


def _read(folder: AnyPath, files: Sequence[SnapshotFile], schema: pa.Schema, partition_by: Sequence[str]) -> pa.Table:
    tables = [schema.empty_table()]
    for file in files:
        # Old timestamps of Spark would be read as nanoseconds, whose range ends in the year 2262.
        with reading(folder / unquote(file.path)) as source:
            rows = pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read()
        for name, value in zip(partition_by, file.values, strict=True):
            # The value in the log applies, even if the file has the column, too.
            rows = rows.drop_columns([name] if name in rows.column_names else [])
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, schema.field(name).type), rows.num_rows))
        tables.append(in_types(rows, schema))
    return pa.concat_tables(tables)


def in_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `rows` with the columns of `schema`.

    Columns that are missing, because they were added or dropped, are null.
    """
    columns = [
        rows.column(wanted.name).cast(wanted.type)
        if wanted.name in rows.column_names
        else pa.nulls(rows.num_rows, wanted.type)
        for wanted in schema
    ]
    return pa.table(columns, schema=schema)
