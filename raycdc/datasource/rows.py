"""Rows as Spark sees them: a table's columns, the changelog's, and two that follow from those. Pure Arrow.

| column | type | is |
|---|---|---|
| `_op`, `_seq`, `_ts_ms`, `_db`, `_table`, `_pos` | | as in a changelog target |
| `_sign` | int | 1 for ``+I`` and ``+U``, -1 for ``-U`` and ``-D``: ``sum(weight * _sign)`` is the sum over the table |
| `_watermark_ms` | bigint | event time, Unix milliseconds, that no later epoch's rows of the log are older than |

Both doors have the same columns, so that a query is the same over a stream and over a bounded read, in which rows as
they are have the `_op` ``+I`` and the `_sign` 1.

Called on the driver (schemas) and inside Spark's tasks (rows), never with a row in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from raycdc.bridge import ANYWHERE, SegmentAccess, read_segment
from raycdc.checkpoint.manifest import Segment
from raycdc.errors import DataError, SchemaError
from raycdc.model import META_COLUMNS, RowKind, TableId, TableSchema
from raycdc.model.row_kind import SYMBOLS
from raycdc.model.view import RowView
from raycdc.schema.merge import merge_schemas
from raycdc.sinks.plan import Input
from raycdc.sinks.rows import META_TYPES

SIGN = "_sign"
WATERMARK = "_watermark_ms"

#: The columns that are not the table's.
ADDED = (*META_COLUMNS, SIGN, WATERMARK)

#: By `RowKind`. A truncation has none: which rows it takes away is not known.
_SIGNS = (1, -1, 1, -1, None)


def changelog_ddl(schema: TableSchema) -> str:
    """Spark SQL column list of a stream. `SchemaError` where the table has one of our columns."""
    clashes = {column.name.casefold() for column in schema.columns} & {SIGN, WATERMARK}
    if clashes:
        raise SchemaError(f"Column {min(clashes)} of the table has the name of one that the data source adds.")
    meta = ", ".join(f"`{name}` {META_TYPES[name].spark()}" for name in META_COLUMNS)
    return f"{schema.spark_ddl()}, {meta}, `{SIGN}` int, `{WATERMARK}` bigint"


def as_rows(rows: pa.RecordBatch, names: Sequence[str], *, watermark_ms: int | None) -> pa.RecordBatch:
    """Rows of the table as they are, with the columns `names`, in the same form as changes."""
    constant = {
        "_op": pa.scalar(RowKind.INSERT.symbol, pa.string()),
        SIGN: pa.scalar(1, pa.int32()),
        WATERMARK: pa.scalar(watermark_ms, pa.int64()),
    }
    arrays = [pa.repeat(constant[n], rows.num_rows) if n in constant else rows.column(n) for n in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def stored_names(names: Sequence[str]) -> list[str]:
    """The columns to read of a segment for `names`."""
    return [name for name in names if name not in (SIGN, WATERMARK, "_op")]


def column_types(schema: TableSchema) -> dict[str, str]:
    """Each column's type in Spark SQL."""
    return {column.name: column.type.spark() for column in schema.columns}


def widened(table: TableId, known: TableSchema | None, schema: TableSchema) -> TableSchema:
    """`known`, with what rows of another version of the same table need. `SchemaError` when its key changed."""
    return schema if known is None else merge_schemas(table, known, table, schema)


def seen_as(segment: Segment, own: TableSchema, target: TableSchema) -> Segment:
    """The segment with the columns of `target`, which has all of its own; those it lacks are null."""
    return segment if own.arrow().equals(target.arrow()) else replace(segment, view=RowView(own, target))


def changelog_batches(
    entry: Input, names: Sequence[str], *, watermark_ms: int | None, truncate: str
) -> Iterator[pa.RecordBatch]:
    """Batches with the columns `names`. `DataError` at a truncation, unless that is to be a ``row``."""
    anywhere = SegmentAccess(ANYWHERE)
    for batch in read_segment(entry.segment, [*stored_names(names), "_op"], access=anywhere, part=entry.part):
        ops = batch.column("_op")
        if truncate == "fail" and bool(np.any(ops.to_numpy() == RowKind.TRUNCATE)):
            raise DataError(
                f"{entry.segment.table} was emptied, or begins again, and its changes have no rows that would take the "
                "earlier ones out of sums again. Begin with a new checkpoint and another option state, or set "
                "truncate = \"row\" and treat rows with _op = 'T' yourself."
            )
        columns: Mapping[str, pa.Array] = {
            "_op": pa.array(SYMBOLS, pa.string()).take(ops),
            SIGN: pa.array(_SIGNS, pa.int32()).take(ops),
            WATERMARK: pa.repeat(pa.scalar(watermark_ms, pa.int64()), batch.num_rows),
        }
        arrays = [columns[name] if name in columns else batch.column(name) for name in names]
        yield pa.RecordBatch.from_arrays(arrays, names=list(names))
