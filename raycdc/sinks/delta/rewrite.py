"""Merging a few rows into a few small files of a Delta table: read, compact, write one file, in this process.

Called by `DeltaTarget.merge`. A general merge plans a join and starts threads for it, which costs more than the work
where a handful of rows meets a file of some kilobytes: measured 15 ms of CPU a table against 4 ms. So: the files that
may hold one of the keys (by their statistics, as a merge would choose them) are read whole, rows with these keys are
left out, and what stays becomes one new file together with the new rows. Where there are many small files they are
taken along, so that a table of small epochs does not fall to pieces.

The commit removes what was read and adds what was written, for the very next version or not at all: nobody else's
commit lies between.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from raycdc.model.keys import without
from raycdc.sinks.rows import alive
from raycdc.sinks.statistics import for_table
from raycdc.sinks.tasks import write_parquet_file

Action = AddAction | RemoveAction

#: Files of so many bytes together are rewritten in this way; above it a merge that streams is worth its start.
REWRITE_BYTES_MAX = 4 << 20

#: And of so many rows: a few bytes may stand for millions of equal values.
REWRITE_ROWS_MAX = 1 << 18

#: Rows that are merged in this way, in memory.
CHANGES_BYTES_MAX = 16 << 20

#: A file below this is small; so many of them are made one with the next rows.
SMALL_FILE_BYTES = 256 << 10
SMALL_FILES_MAX = 8

_DESCRIBED = ["path", "size_bytes", "num_records"]

#: What a table may have beside plain files and columns; anything else is delta-rs's to keep to.
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
#: Names that are spelled in one way, in the log as on the disk.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*")
_SPECIAL_SETTINGS = ("delta.constraints.", "delta.columnMapping.mode", "delta.enable", "delta.appendOnly")


def rewrite(table: DeltaTable, folder: Path, changes: pa.Table, key: Sequence[str]) -> list[Action] | None:
    """What merges compacted `changes` (with `DELETED`) into the snapshot that `table` has; None: not in this way.

    A commit that fails leaves a file that nobody reads, for VACUUM to find: whether it failed before it was in the log
    or after is not always known.
    """
    if changes.nbytes > CHANGES_BYTES_MAX or not _is_plain(table):
        return None
    schema = pa.schema(table.schema().to_arrow())
    if not all(_is_exact(schema.field(name).type) for name in key):
        return None
    found = pa.table(table.get_add_actions(flatten=True))
    chosen = found.select(_DESCRIBED).take(pa.array(_chosen(found, changes.column(key[0]), key[0])))
    paths, sizes, counts = (chosen.column(name).to_pylist() for name in _DESCRIBED)
    if sum(sizes) > REWRITE_BYTES_MAX or not all(map(_PLAIN_NAME.fullmatch, paths)):
        return None
    if None in counts or sum(counts) > REWRITE_ROWS_MAX:
        return None
    there = _read(folder, paths, schema)
    keys = _in_types(changes.select(list(key)), pa.schema([schema.field(name) for name in key]))
    kept = there.filter(pa.array(without(there, keys)))
    new = _in_types(alive(changes), schema)
    if kept.num_rows == there.num_rows and (not new.num_rows or sum(sizes) > SMALL_FILE_BYTES):
        paths, kept = [], kept.slice(0, 0)  # All rows of these files stay where they are.
    now_ms = time.time_ns() // 1_000_000
    actions: list[Action] = [
        RemoveAction(path, data_change=True, deletion_timestamp=now_ms, size=size, partition_values={})
        for path, size in zip(paths, sizes, strict=False)
    ]
    rows = pa.concat_tables([kept, new])
    if not rows.num_rows:
        return actions
    path = folder / f"part-{uuid.uuid4()}.snappy.parquet"
    written = write_parquet_file(path, schema, rows.to_batches())
    statistics = for_table(written["statistics"], table.metadata().configuration)
    actions.append(
        AddAction(
            path=path.name,
            size=written["size"],
            partition_values={},
            modification_time=now_ms,
            data_change=True,
            stats=statistics,
        )
    )
    return actions


def _is_plain(table: DeltaTable) -> bool:
    """Whether the table's files are simply its rows, and nobody asked for more than that."""
    protocol = table.protocol()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    metadata = table.metadata()
    if features - _PLAIN_FEATURES or (not features and protocol.min_writer_version > 2) or metadata.partition_columns:
        return False
    settings = metadata.configuration
    asked = [n for n in settings if n.startswith(_SPECIAL_SETTINGS) and settings[n] not in ("false", "none")]
    return not asked and not any(field.metadata for field in table.schema().fields)


def _is_exact(kind: pa.DataType) -> bool:
    """Whether values of the type are equal in one way only, unlike those of floating point."""
    exact = (pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_date, pa.types.is_timestamp,
             pa.types.is_decimal, pa.types.is_boolean)  # fmt: skip
    return any(is_it(kind) for is_it in exact)


def _has_exact_bounds(kind: pa.DataType) -> bool:
    """Whether every writer's statistics hold: bounds of decimals may be doubles, those of timestamps milliseconds."""
    return bool(pa.types.is_integer(kind) or pa.types.is_date(kind))


def _chosen(found: pa.Table, keys: pa.ChunkedArray, first: str) -> np.ndarray:
    """Numbers of the files that may hold a key, and of small ones where there are many."""
    wanted = np.ones(found.num_rows, np.bool_)
    if f"min.{first}" in found.column_names and len(keys) and _has_exact_bounds(keys.type):
        least, most = pc.min_max(keys).values()
        low, high = found.column(f"min.{first}"), found.column(f"max.{first}")
        beside = pc.or_kleene(pc.less(high.cast(least.type), least), pc.greater(low.cast(most.type), most))
        wanted = ~pc.fill_null(beside, fill_value=False).to_numpy()
    small = found.column("size_bytes").to_numpy() < SMALL_FILE_BYTES
    if int(np.count_nonzero(small & ~wanted)) >= SMALL_FILES_MAX:
        wanted |= small
    return np.flatnonzero(wanted)


def _read(folder: Path, paths: Sequence[str], schema: pa.Schema) -> pa.Table:
    # Spark's old timestamps have nanoseconds, which would end in the year 2262.
    files = (pq.ParquetFile(folder / path, coerce_int96_timestamp_unit="us") for path in paths)
    return pa.concat_tables([schema.empty_table(), *(_in_types(file.read(), schema) for file in files)])


def _in_types(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """`rows` with the columns of the table; those that are missing were added or dropped elsewhere, and are null."""
    columns = [
        rows.column(wanted.name).cast(wanted.type)
        if wanted.name in rows.column_names
        else pa.nulls(rows.num_rows, wanted.type)
        for wanted in schema
    ]
    return pa.table(columns, schema=schema)
