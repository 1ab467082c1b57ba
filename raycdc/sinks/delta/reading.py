"""Opens a Delta table by its location, and reads its rows in this process.

delta-rs gets the location as a folder of this machine, or as a URL with the options to reach it. Each commit to a store
is one conditional put by delta-rs (``aws_conditional_put`` is ``etag`` for S3; other stores need no option). Spark
never writes to a store, because delta-spark 4.4 puts commits without a condition, so two writers could overwrite each
other's commits.

Rows that deletion vectors mark as deleted are left out. delta-rs' own engine reads a table with deletion vectors and
applies them. Its pyarrow dataset refuses such a table, and reading the files directly would return deleted rows.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import Full, Queue
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from raycdc.sinks.tasks import DataFile
from raycdc.storage.files import AnyPath, StorePath, each_below, is_there, names_in, reading
from raycdc.storage.settings import delta_options

#: The path, relative to the table's folder, of a file that was staged for a partition (`raycdc.sinks.delta.tasks`).
_STAGED = re.compile(r"([^/=]+=[^/]*/)+part-[0-9]{5}-[0-9]{10}-[0-9a-f-]{36}\.snappy\.parquet")

#: The most files of a partition whose names are checked.
_LISTED_MAX = 10_000


def storage_options(path: AnyPath) -> dict[str, str] | None:
    """Return the storage options for delta-rs; None for a folder of this machine."""
    return delta_options(path.location, path.access.settings) if isinstance(path, StorePath) else None


def is_table(path: AnyPath) -> bool:
    """Return True if a Delta table exists there. Raises `OSError` if a store is unreachable."""
    if isinstance(path, StorePath):
        # delta-rs blocks all threads of the process while it queries a store (deltalake 1.6).
        return any(name.endswith((".json", ".parquet")) for name in names_in(path / "_delta_log"))
    return DeltaTable.is_deltatable(str(path))


def foreign(path: AnyPath) -> str:
    """Return the name of a file that another program wrote, in a folder that has no Delta table; empty if there is
    none. Files that readers skip do not count. Files that raycdc staged do not count either: they may remain after a
    table was deleted, or if it was never created.
    """
    for name in names_in(path):
        if name.startswith(("_", ".", "part-")):
            continue
        if "=" not in name:
            return name
        if _is_file(path / name):
            return name
        below = (f"{name}/{file}" for file in islice(each_below(path / name), _LISTED_MAX))
        if invalid := next((file for file in below if not _is_staged(file)), ""):
            return invalid
    return ""


def _is_staged(file: str) -> bool:
    """Return True if raycdc staged the file, or if it is an incomplete file whose writer died."""
    return file.rpartition("/")[2].startswith(".") or _STAGED.fullmatch(file) is not None


def _is_file(path: AnyPath) -> bool:
    return is_there(path) if isinstance(path, StorePath) else path.is_file()


def table_at(path: AnyPath, version: int | None = None) -> DeltaTable:
    """Return the table at a version (None: the newest)."""
    return opened_with(storage_options(path), path, version)


def opened_with(options: dict[str, str] | None, path: AnyPath, version: int | None = None) -> DeltaTable:
    """Return the table like `table_at`, opened with `options`, which it keeps even if the store's keys change."""
    return DeltaTable(str(path), version=version, storage_options=options)


@dataclass(frozen=True, slots=True)
class RewrittenColumn:
    """A column of a rewritten table. Its values are those of the column `origin`, else `constant`, else null."""

    field: pa.Field
    origin: str | None
    constant: pa.Scalar | None = None

    def expression(self) -> Any:
        if self.origin is None:
            return pc.scalar(self._value())
        # A value that does not fit the new type raises an error, and the commit fails.
        return ds.field(self.origin).cast(self.field.type, safe=True)

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        if self.origin is None:
            return pa.repeat(self._value(), batch.num_rows).cast(self.field.type)
        return batch.column(self.origin).cast(self.field.type, safe=True)

    def _value(self) -> pa.Scalar:
        return self.constant if self.constant is not None else pa.scalar(None, self.field.type)


def has_vectors(table: DeltaTable) -> bool:
    """Return True if deletion vectors may mark rows of the table as deleted."""
    return "deletionVectors" in (table.protocol().reader_features or ())


def key_batches(table: DeltaTable, names: Sequence[str], within: Any) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of at least those rows for which the pyarrow filter `within` is true."""
    if has_vectors(table):
        yield from _queried(table, names)
    else:
        rows = table.to_pyarrow_dataset()
        for fragment in rows.get_fragments(filter=within):
            # delta-rs writes views of texts into files that it makes itself, and pyarrow compares no text with a view.
            there = within if not _has_views(fragment.physical_schema) else None
            yield from fragment.scanner(schema=rows.schema, columns=list(names), filter=there).to_batches()


def _has_views(schema: pa.Schema) -> bool:
    return any(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind) for kind in schema.types)


def file_batches(table: DeltaTable, paths: Collection[str], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the columns `names` of the data files `paths`, for a table without deletion vectors."""
    rows = table.to_pyarrow_dataset()
    for fragment in rows.get_fragments():
        if fragment.path in paths:
            yield from fragment.scanner(schema=rows.schema, columns=list(names)).to_batches()


def rewritten_batches(table: DeltaTable, columns: Sequence[RewrittenColumn]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the table in the form of new `columns`. Does not call delta-rs from the consuming thread,
    because delta-rs may be the consumer.
    """
    schema = pa.schema([column.field for column in columns])
    if has_vectors(table):
        # Read at least one column, because a batch without columns has no number of rows.
        origin_names = list(dict.fromkeys(c.origin for c in columns if c.origin is not None))
        batches = _ahead(_queried(table, origin_names or [table.schema().fields[0].name]))
        return (pa.RecordBatch.from_arrays([c.of(batch) for c in columns], schema=schema) for batch in batches)
    rows = table.to_pyarrow_dataset().scanner(columns={c.field.name: c.expression() for c in columns})
    return (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in rows.to_batches())


def staged_batches(files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of staged files, with the columns of `schema`, including the values of their partitions."""
    for file in files:
        with reading(file.path) as source, pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches():
                columns = []
                for field in schema:
                    if field.name in file.partition:
                        value = pa.scalar(file.partition[field.name], pa.string()).cast(field.type)
                        columns.append(pa.repeat(value, batch.num_rows))
                    elif field.name in batch.schema.names:
                        columns.append(batch.column(field.name).cast(field.type))
                    else:
                        columns.append(pa.nulls(batch.num_rows, field.type))
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _queried(table: DeltaTable, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    whole = pa.schema(table.schema().to_arrow())
    schema = pa.schema([whole.field(name) for name in names])
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    reader = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(f"SELECT {quoted} FROM t"))
    for batch in reader:
        arrays = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield `batches`, which a separate thread iterates."""
    found: Queue[pa.RecordBatch | BaseException | None] = Queue(maxsize=2)
    stopped = threading.Event()

    def put(one: pa.RecordBatch | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(Full):
                found.put(one, timeout=0.1)
                return

    def produce() -> None:
        try:
            for batch in batches:
                put(batch)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the batches are wanted
            put(error)

    threading.Thread(target=produce, name="delta-rows", daemon=True).start()
    try:
        while (one := found.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        stopped.set()
