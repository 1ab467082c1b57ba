"""Folds held log rows into the rows of a chunk: the last state of each changed key wins.

In a chunk of a backfill (`raycdc.source.snapshot.rereading.backfill`), rows with changed keys are left out instead,
because the log delivers these rows. A requested key that the source does not have becomes a deletion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import RowKind, TableSchema, changelog_schema
from raycdc.model.keys import comparable, without

_ORDER = "_raycdc_order"


def fold(chunk: pa.Table, delta: pa.Table, *, key: Sequence[str]) -> pa.Table:
    """Return the rows of `chunk` with the changes in `delta` applied, as inserts without a log position.

    Both tables have the same changelog schema (`raycdc.model.changelog_schema`). `delta` has all rows that the log
    reader held for the chunk up to H, in log order, so the last row of a key is its final state. The `_seq` of the
    result counts from 0.

    Keys are compared by value, although a collation may treat two spellings as one key. If an update changes only the
    spelling, its two images have both spellings, so both are replaced.
    """
    changed = comparable(delta, key)
    last = _numbered(changed).group_by(changed.column_names).aggregate([(_ORDER, "max")])
    final = delta.filter(_mask(delta.num_rows, last.column(f"{_ORDER}_max")))
    alive = pc.is_in(final.column("_op"), pa.array([RowKind.INSERT, RowKind.UPDATE_AFTER], pa.int8()))
    rest = _without(chunk, last.select(changed.column_names))
    folded = pa.concat_tables([rest, final.filter(alive)])
    return _as_inserts(folded, ts_ms=chunk.column("_ts_ms")[0].as_py() if chunk.num_rows else None)


def left_alone(chunk: pa.Table, changed: pa.Table, *, key: Sequence[str]) -> pa.Table:
    """Return the rows of `chunk` whose keys are not in `changed`, with a `_seq` that counts from 0.

    Both tables have the same changelog schema.
    """
    rest = chunk.filter(pa.array(without(chunk, comparable(changed, key))))
    index = rest.schema.get_field_index("_seq")
    return rest.set_column(index, rest.schema.field(index), pa.array(np.arange(rest.num_rows, dtype=np.int64)))


def deletes(keys: pa.Table, schema: TableSchema, *, first: int, read_ms: int) -> pa.RecordBatch:
    """Return deletions of the rows with these `keys`, with a `_seq` that counts from `first`. Only key columns have
    values.

    Raises `ArrowException` if a key has a value that the table's columns cannot hold.
    """
    count = keys.num_rows
    meta = {
        "_op": pa.array(np.full(count, RowKind.DELETE, np.int8)),
        "_seq": pa.array(np.arange(first, first + count, dtype=np.int64)),
        "_ts_ms": pa.array(np.full(count, read_ms, np.int64)),
    }
    changelog = changelog_schema(schema)
    arrays = [
        meta[field.name]
        if field.name in meta
        else keys.column(field.name).combine_chunks().cast(field.type)
        if field.name in keys.column_names
        else pa.nulls(count, field.type)
        for field in changelog
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=changelog)


def _without(chunk: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows of `chunk` whose keys are not in `keys`, in their order."""
    numbered = _numbered(comparable(chunk, keys.column_names))
    kept = numbered.join(keys, keys=keys.column_names, join_type="left anti")
    return chunk.filter(_mask(chunk.num_rows, kept.column(_ORDER)))


def _numbered(keys: pa.Table) -> pa.Table:
    return keys.append_column(_ORDER, pa.array(np.arange(keys.num_rows, dtype=np.int64)))


def _mask(rows: int, kept: pa.ChunkedArray) -> pa.Array:
    """Return the mask for `filter`, which works batch by batch.

    `take` is not used, because it gathers all texts in one array of at most 2 GiB.
    """
    mask = np.zeros(rows, np.bool_)
    mask[kept.to_numpy()] = True
    return pa.array(mask)


def _as_inserts(rows: pa.Table, *, ts_ms: int | None) -> pa.Table:
    count = rows.num_rows
    columns = {
        "_op": pa.array(np.full(count, RowKind.INSERT, np.int8)),
        "_seq": pa.array(np.arange(count, dtype=np.int64)),
        "_pos": pa.nulls(count, pa.string()),
    }
    if ts_ms is not None:
        columns["_ts_ms"] = pa.array(np.full(count, ts_ms, np.int64))
    for name, column in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows
