"""The stage tasks of the file-based sinks: segments in, one file out, named by the caller.

Run by a `TaskRunner` in a Spark worker or in the driver process. Each writes ``path``, whole and synced, and returns
what the sink's commit needs to know of it. A task that runs twice, even at the same time, writes under two temporary
names and renames the same content over the same name: harmless.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycdc.bridge.access import SegmentAccess
from raycdc.bridge.reading import read_segment
from raycdc.errors import SinkError
from raycdc.model import RowKind, TableSchema
from raycdc.sinks.json_lines import write_lines
from raycdc.sinks.origins import CLAIMED, ORIGIN, last_per_origin
from raycdc.sinks.plan import Input
from raycdc.sinks.rows import DELETED, Compacted, changelog_arrow, changelog_names, last_per_key
from raycdc.sinks.statistics import delta_statistics

#: Rows per Parquet row group: large enough to compress well, small enough that a task's memory stays near one batch.
ROW_GROUP_ROWS = 1 << 17

#: A dictionary that grows beyond this is given up early: building one for values that do not repeat halves the speed
#: (measured 1.26 against 2.57 M rows per CPU-second), and those that repeat fit.
DICTIONARY_BYTES_MAX = 64 << 10

_PARQUET: dict[str, Any] = {
    "compression": "snappy",
    "store_schema": False,
    "dictionary_pagesize_limit": DICTIONARY_BYTES_MAX,
}


def write_parquet(
    inputs: list[dict[str, Any]], schema: dict[str, Any], path: str, changelog: bool, node: str, token: str
) -> dict[str, Any]:
    """Rows as they are, as events (`changelog`) or as the table's columns (snapshot rows, which are all inserts)."""
    table = TableSchema.from_json(schema)
    arrow = changelog_arrow(table) if changelog else table.arrow()
    names = changelog_names(table) if changelog else [c.name for c in table.columns]
    batches = read_inputs(inputs, names, access=SegmentAccess(node, token), symbols=changelog)
    return write_parquet_file(Path(path), arrow, batches)


def write_json_lines(
    inputs: list[dict[str, Any]], schema: dict[str, Any], path: str, node: str, token: str
) -> dict[str, Any]:
    """Rows as events, one JSON object per line."""
    table = TableSchema.from_json(schema)
    batches = read_inputs(inputs, changelog_names(table), access=SegmentAccess(node, token), symbols=True)
    with _Replaced(Path(path)) as file:
        rows = write_lines(file, batches, table)
    return {"path": path, "rows": rows}


def compact(
    inputs: list[dict[str, Any]], schema: dict[str, Any], path: str, node: str, token: str, order_by: str = ""
) -> dict[str, Any]:
    """The last row of each key (by `order_by`, where that is given) with `DELETED`, as Parquet, for a merge."""
    table = TableSchema.from_json(schema)
    compacted = compacted_rows(
        map(Input.from_json, inputs), table, access=SegmentAccess(node, token), order_by=order_by
    )
    written = write_parquet_file(Path(path), pa.schema([*table.arrow(), pa.field(DELETED, pa.bool_())]),
                                 compacted.rows.to_batches(max_chunksize=ROW_GROUP_ROWS))  # fmt: skip
    return {**written, "truncated": compacted.truncated, "memory_bytes": compacted.rows.nbytes}


def compacted_rows(
    inputs: Iterable[Input], table: TableSchema, *, access: SegmentAccess, order_by: str = ""
) -> Compacted:
    """The last row of each key (by `order_by`, where that is given) with `DELETED`, in memory."""
    columns = [c.name for c in table.columns]
    stored = pa.schema([*table.arrow(), pa.field("_op", pa.int8()), pa.field("_seq", pa.int64())])
    batches = _read(inputs, [*columns, "_op", "_seq"], access=access, symbols=False)
    rows = pa.Table.from_batches([_as(batch, stored) for batch in batches], schema=stored)
    return last_per_key(rows, table.primary_key, columns, order_by=order_by)


def compact_origins(
    inputs: list[dict[str, Any]],
    schema: dict[str, Any],
    path: str,
    node: str,
    token: str,
    target: str,
    beginning: list[str],
    alone: bool,
) -> dict[str, Any]:
    """As `compact`, for rows of several source tables, or of one under another key (`alone`): with `CLAIMED` too, and
    refused where two have one key.
    """
    table = TableSchema.from_json(schema)
    columns = [c.name for c in table.columns]
    read = [*columns, "_op", "_seq", *ORIGIN]
    batches = list(read_inputs(inputs, read, access=SegmentAccess(node, token), symbols=False))
    stored = pa.schema([*table.arrow(), ("_op", pa.int8()), ("_seq", pa.int64()), *((n, pa.string()) for n in ORIGIN)])
    rows = pa.Table.from_batches([_as(batch, stored) for batch in batches], schema=stored)
    compacted = last_per_origin(rows, table.primary_key, columns, target=target, beginning=beginning, alone=alone)
    described = pa.schema([*table.arrow(), pa.field(DELETED, pa.bool_()), pa.field(CLAIMED, pa.bool_())])
    written = write_parquet_file(Path(path), described, compacted.to_batches(max_chunksize=ROW_GROUP_ROWS))
    new = bool(pc.all(compacted.column(CLAIMED)).as_py())
    truncated = alone and bool(pc.any(pc.equal(rows.column("_op"), pa.scalar(RowKind.TRUNCATE, pa.int8()))).as_py())
    return {**written, "truncated": truncated, "memory_bytes": compacted.nbytes, "new": new}


def write_parquet_file(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], **options: Any
) -> dict[str, Any]:
    """Write `batches` as `path` and describe it: rows, size, and Delta's statistics as JSON text.

    `options` are further ones of `pq.ParquetWriter`.
    """
    rows = 0
    with _Replaced(path) as file:
        with pq.ParquetWriter(file, schema, **_PARQUET, **options) as writer:
            for group in _row_groups(_as(batch, schema) for batch in batches):
                writer.write_table(pa.Table.from_batches(group, schema), row_group_size=ROW_GROUP_ROWS)
                rows += sum(batch.num_rows for batch in group)
        size = file.tell()
    statistics = delta_statistics(pq.read_metadata(path), schema)
    return {"path": str(path), "rows": rows, "size": size, "statistics": json.dumps(statistics)}


def read_inputs(
    inputs: list[dict[str, Any]], columns: list[str], *, access: SegmentAccess, symbols: bool = False
) -> Iterator[pa.RecordBatch]:
    """The batches of `inputs` (`Input.to_json`) in order."""
    return _read(map(Input.from_json, inputs), columns, access=access, symbols=symbols)


def _read(
    inputs: Iterable[Input], columns: list[str], *, access: SegmentAccess, symbols: bool
) -> Iterator[pa.RecordBatch]:
    for entry in inputs:
        yield from read_segment(entry.segment, columns, access=access, part=entry.part, symbols=symbols)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with exactly the types of `schema`; a segment that has others was written by a bug and is refused."""
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
    """Batches gathered until they fill a row group; each call of a Parquet writer begins a new one."""
    group: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        group.append(batch)
        rows += batch.num_rows
        if rows >= ROW_GROUP_ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


class _Replaced:
    """A file written under a temporary name, synced and renamed to its own when the block ends well."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")

    def __enter__(self) -> IO[bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._temporary.open("wb")
        return self._file

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if error is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError:
            self._discard()
            raise
        if error is not None:
            self._discard()
            return
        self._file.close()
        self._temporary.rename(self._path)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):  # A full disk does not take what is still buffered.
            self._file.close()
        self._temporary.unlink(missing_ok=True)
