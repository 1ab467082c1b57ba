"""The stage tasks of file-based sinks: each reads segments and writes one file, which the caller names.

A `TaskRunner` runs them in a Spark worker or in the driver process. Each task writes the file ``path`` completely,
syncs it, and returns the description of the file that the sink's commit needs. If a task runs twice, even concurrently,
it writes two temporary files with the same content and renames both to the same name, which is harmless.

JSON Lines, also those of the console sink, are made column by column by Arrow's string functions. Values have the same
form as in ``raycdc inspect binlog``: integers and doubles as JSON numbers, decimals and temporals as text exactly as
MySQL prints them (TIMESTAMP in UTC), bytes as ``{"$binary": base64}``, JSON columns as JSON, null as null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycdc.errors import SinkError
from raycdc.model import RowKind, TableSchema
from raycdc.model.json_text import json_values
from raycdc.model.keys import OWNER, OWNER_TYPE
from raycdc.model.types import LogicalType, TypeKind
from raycdc.sinks.lakes.statistics import delta_statistics
from raycdc.sinks.rows import DELETED, Compacted, last_per_key
from raycdc.sinks.source_tables import CLAIMED, ORIGIN, MergedTarget, last_per_owner
from raycdc.sinks.task_inputs import TableInput, TableTask
from raycdc.storage.files import FileName, StorePath, writing


def json_lines(batch: pa.RecordBatch, schema: TableSchema) -> pa.Buffer:
    """Return `batch` as UTF-8 text, one JSON object per line.

    For columns that are not in `schema`, the Arrow type decides about the form of values.
    """
    if batch.num_rows == 0:
        return pa.py_buffer(b"")
    types = {column.name: column.type for column in schema.columns}
    pieces: list[Any] = []
    lead = "{"
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        pieces.append(f"{lead}{json.dumps(name, ensure_ascii=False)}:")
        pieces.append(json_values(array, types.get(name) or _plain_type(array.type)))
        lead = ","
    pieces.append("}\n")
    lines = pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement="null")
    return _content(lines)


def write_lines(file: Any, batches: Iterable[pa.RecordBatch], schema: TableSchema) -> int:
    """Write all `batches` to a binary file and return the number of rows."""
    rows = 0
    for batch in batches:
        file.write(json_lines(batch, schema))
        rows += batch.num_rows
    return rows


def _plain_type(arrow: pa.DataType) -> LogicalType:
    """Return the type of a metadata column, which is an integer or text."""
    return LogicalType(TypeKind.INT64 if pa.types.is_integer(arrow) else TypeKind.STRING)


def _content(lines: pa.Array) -> pa.Buffer:
    """Return the text of a string array without nulls: its data buffer, which has the values one after the other."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return lines.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


#: The rows of a Parquet row group: enough to compress well, and few enough that a task needs little more memory than
#: for one batch.
ROW_GROUP_ROWS = 1 << 17

#: The most bytes in memory of a row group's rows.
ROW_GROUP_BYTES_MAX = 64 << 20

#: The largest dictionary of a column in bytes. A column that needs a larger dictionary is written without one.
#: Dictionaries of values that repeat often are smaller than this, and building a dictionary for values that do not
#: repeat halves the speed (measured: 1.26 instead of 2.57 M rows per CPU-second).
DICTIONARY_BYTES_MAX = 64 << 10

_PARQUET: dict[str, str | int | bool] = {
    "compression": "snappy",
    "store_schema": False,
    "dictionary_pagesize_limit": DICTIONARY_BYTES_MAX,
}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that a task wrote, with Delta's statistics as JSON text.

    `partition` has the values of the partition columns in the form of the table's log; empty without partitions.
    """

    path: FileName
    rows: int
    size: int
    statistics: str
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompactedFile:
    """A Parquet file with compacted rows.

    `truncated` is True if no older row of the target remains. `new` is True if the target must not have any of the keys
    yet. In memory, the rows need `memory_bytes`.
    """

    path: FileName
    truncated: bool
    memory_bytes: int
    new: bool = False


@dataclass(frozen=True, slots=True)
class LinesFile:
    """A file with a JSON object per row."""

    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class WriteParquet(TableTask[DataFile]):
    """Writes rows unchanged to the Parquet file `path`, as events (`changelog`) or with the table's columns."""

    path: FileName
    changelog: bool

    def run(self) -> DataFile:
        arrow = self.table.arrow(changelog=self.changelog)
        return write_parquet_file(self.path, arrow, self.table.rows(changelog=self.changelog))


@dataclass(frozen=True, slots=True)
class WriteJsonLines(TableTask[LinesFile]):
    """Writes rows as events to the file `path`, one JSON object per line."""

    path: FileName

    def run(self) -> LinesFile:
        with writing(self.path) as file:
            rows = write_lines(file, self.table.rows(changelog=True), self.table.schema)
        return LinesFile(str(self.path), rows)


@dataclass(frozen=True, slots=True)
class CompactToParquet(TableTask[CompactedFile]):
    """Writes the last row of each key to a Parquet file with the column `DELETED`, for a merge. With `order_by`, the
    row with the greatest value of that column is written. If the target is `merged` (`raycdc.sinks.source_tables`), the
    file also has the column `CLAIMED`, and an error is raised if a key has two owners.
    """

    path: FileName
    order_by: str = ""
    merged: MergedTarget | None = None

    def run(self) -> CompactedFile:
        flags = [pa.field(DELETED, pa.bool_())]
        if self.merged is None:
            compacted, new = compacted_rows(self.table, order_by=self.order_by), False
        else:
            flags.append(pa.field(CLAIMED, pa.bool_()))
            compacted = compacted_merged(self.table, self.merged)
            new = bool(pc.all(compacted.rows.column(CLAIMED)).as_py())
        described = pa.schema([*self.table.schema.arrow(), *flags])
        write_parquet_file(self.path, described, compacted.rows.to_batches(max_chunksize=ROW_GROUP_ROWS))
        return CompactedFile(self.path, compacted.truncated, compacted.rows.nbytes, new)


def compacted_rows(table: TableInput, *, order_by: str = "") -> Compacted:
    """Return the last row of each key, with the column `DELETED`. With `order_by`, return the row with the greatest
    value of that column.
    """
    rows = _changes(table, [("_op", pa.int8()), ("_seq", pa.int64())])
    return last_per_key(rows, table.schema.primary_key, table.schema.arrow().names, order_by=order_by)


def compacted_merged(table: TableInput, merged: MergedTarget) -> Compacted:
    """Return the last row of each key like `compacted_rows`, with `CLAIMED`, for a `merged` target.

    `Compacted.truncated` is True only if the target has a single source table, because rows of several tables in a
    target cannot be distinguished.
    """
    origin = ((name, pa.string()) for name in ORIGIN)
    rows = _changes(table, [("_op", pa.int8()), ("_seq", pa.int64()), *origin, (OWNER, OWNER_TYPE)])
    compacted = last_per_owner(rows, table.schema.primary_key, table.schema.arrow().names, merged)
    emptied = pc.any(pc.equal(rows.column("_op"), pa.scalar(RowKind.TRUNCATE, pa.int8()))).as_py()
    return Compacted(compacted, merged.alone and bool(emptied))


def _changes(table: TableInput, meta: Sequence[tuple[str, pa.DataType]]) -> pa.Table:
    stored = pa.schema([*table.schema.arrow(), *(pa.field(name, kind) for name, kind in meta)])
    return pa.Table.from_batches([_as(batch, stored) for batch in table.batches(stored.names)], schema=stored)


@dataclass(frozen=True, slots=True)
class WrittenParquet:
    """A Parquet file that was written, with its footer."""

    path: FileName
    rows: int
    size: int
    footer: pq.FileMetaData


def write_parquet(
    path: FileName, schema: pa.Schema, batches: Iterable[pa.RecordBatch], **options: Any
) -> WrittenParquet:
    """Write `batches` to the file `path`. `options` are further options of `pq.ParquetWriter`."""
    rows = 0
    footers: list[pq.FileMetaData] = []
    with writing(path) as file:
        with _parquet_writer(file, schema, footers, **options) as writer:
            for group in _row_groups(_as(batch, schema) for batch in batches):
                writer.write_table(pa.Table.from_batches(group, schema), row_group_size=ROW_GROUP_ROWS)
                rows += sum(batch.num_rows for batch in group)
        size = file.tell()
    return WrittenParquet(path if isinstance(path, StorePath) else str(path), rows, size, footers[0])


@contextmanager
def _parquet_writer(
    file: Any, schema: pa.Schema, footers: list[pq.FileMetaData], **options: Any
) -> Iterator[pq.ParquetWriter]:
    """Yield a writer to `file`, and close it, which adds the file's footer to `footers`.

    If the block fails, its error is raised. `ParquetWriter.__exit__` would raise an error of its own instead, because a
    writer that could not write its footer has no metadata.
    """
    writer = pq.ParquetWriter(file, schema, **_PARQUET, **options, metadata_collector=footers)
    try:
        yield writer
    except BaseException:
        with suppress(OSError, RuntimeError, pa.ArrowException):
            writer.close()
        raise
    writer.close()


def write_parquet_file(
    path: FileName, schema: pa.Schema, batches: Iterable[pa.RecordBatch], **options: Any
) -> DataFile:
    """Write `batches` like `write_parquet`, and return the file with its statistics."""
    written = write_parquet(path, schema, batches, **options)
    return DataFile(written.path, written.rows, written.size, delta_statistics(written.footer, schema))


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return `batch` with exactly the types of `schema`. Raises `SinkError` if the types of the segment are different,
    which is a bug.
    """
    if not batch.schema.equals(schema):
        different = [
            f"{want.name} is {have.type} instead of {want.type}"
            for want, have in zip(schema, batch.schema, strict=True)
            if want.name != have.name or want.type != have.type
        ]
        if different:
            raise SinkError(f"A segment does not have the types of its schema: {'; '.join(different)}.")
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield lists of batches that each fill a row group, because each call of a Parquet writer begins a new one."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for part in _parts(batch):
            if group and size + part.nbytes > ROW_GROUP_BYTES_MAX:
                yield group
                group, rows, size = [], 0, 0
            group.append(part)
            rows += part.num_rows
            size += part.nbytes
            if rows >= ROW_GROUP_ROWS:
                yield group
                group, rows, size = [], 0, 0
    if group:
        yield group


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch, divided into slices of about the size of a row group if it is larger."""
    count = min(-(-batch.nbytes // ROW_GROUP_BYTES_MAX), batch.num_rows)
    if count <= 1:
        yield batch
        return
    rows = -(-batch.num_rows // count)
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)
