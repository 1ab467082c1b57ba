"""The columns of a changelog batch inside raycdc.

A batch (`pyarrow.RecordBatch`) holds rows of one table and one schema version: the table's columns in table order, then
`META_FIELDS`. Constant metadata (`_db`, `_table`) is not stored; it is in the segment's descriptor.

* `_op` int8: `RowKind`.
* `_seq` int64: relative order. The absolute number is ``Segment.seq_base + _seq`` (see
  `raycdc.state.manifests.manifest`).
* `_ts_ms` int64: commit time at the source in Unix milliseconds; for snapshot rows the time at which the chunk was
  read.
* `_pos` string: where the row came from, unique per row of the log (MySQL ``binlog.000007:4512:3`` = file, end
  position of the event, row within it); null for snapshot rows.

Batches are immutable after they are built and at most `BATCH_BYTES_MAX` large (one row may exceed it).

The metadata of a batch's schema has the number of **lost values** in the batch: dates that became null, and text with
replaced bytes, according to ``source.types``. The metadata also records if the columns are already **masked**. Most
batches are masked only when they are written to a segment.

`RowKind` has the kinds of changelog rows that Flink has, and truncation.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import numpy as np
import pyarrow as pa

from raycdc.errors import SchemaError
from raycdc.model.column_names import spark_fold
from raycdc.model.schema import TableSchema


class RowKind(IntEnum):
    """The kind of a changelog row. Segments store it as int8 (`_op`); people and sinks see its `symbol`."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3
    TRUNCATE = 4

    @property
    def symbol(self) -> str:
        return SYMBOLS[self]


#: The text of each kind, indexed by its code.
SYMBOLS: tuple[str, ...] = ("+I", "-U", "+U", "-D", "T")


#: The maximum rows and bytes of a batch. In measurements of the bridge, 64k rows and 8 MB were fastest for Spark's
#: workers.
BATCH_ROWS_MAX = 65_536
BATCH_BYTES_MAX = 8 << 20

META_FIELDS: tuple[pa.Field, ...] = (
    pa.field("_op", pa.int8()),
    pa.field("_seq", pa.int64()),
    pa.field("_ts_ms", pa.int64()),
    pa.field("_pos", pa.string()),
)

#: Metadata columns as a changelog sink shows them, after the table's columns.
META_COLUMNS: tuple[str, ...] = ("_op", "_seq", "_ts_ms", "_db", "_table", "_pos")


#: Names that a table's own columns cannot have, in lower case, because segments and targets would have two columns of
#: one name.
_RESERVED = frozenset({*META_COLUMNS, "_deleted", "_raycdc_order", "_raycdc_owner"})


def reserved_column(names: Iterable[str]) -> str:
    """Return why a table with columns of these names is not supported, with advice; empty if it is supported."""
    taken = next((name for name in names if spark_fold(name) in _RESERVED), None)
    if taken is None:
        return ""
    return (
        f"column {taken!r} has a name that raycdc uses for its own columns ({', '.join(sorted(_RESERVED))}). Rename "
        "the column, or leave its table out"
    )


_LOST_VALUES = b"raycdc.lost_values"
_MASKED = b"raycdc.masked"


def lost_values(batch: pa.RecordBatch) -> int:
    """Return the number of values in the batch that differ from the source's."""
    metadata = batch.schema.metadata
    return int(metadata.get(_LOST_VALUES, 0)) if metadata else 0


def with_lost_values(batch: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """Return the batch with the number of its lost values set."""
    return _noted(batch, _LOST_VALUES, str(count) if count else "")


def is_masked(batch: pa.RecordBatch) -> bool:
    """Return True if masks were applied to the batch. Applying them a second time would change the values again."""
    return _MASKED in (batch.schema.metadata or ())


def with_masked(batch: pa.RecordBatch, *, masked: bool) -> pa.RecordBatch:
    """Return the batch, marked as masked or without that mark."""
    return _noted(batch, _MASKED, "1" if masked else "")


def _noted(batch: pa.RecordBatch, note: bytes, value: str) -> pa.RecordBatch:
    others = {key: known for key, known in (batch.schema.metadata or {}).items() if key != note}
    return batch.replace_schema_metadata({**others, **({note: value} if value else {})} or None)


def part_of(batch: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    """Return the rows that `mask` selects, with their share of the lost values, rounded up."""
    kept = batch.filter(mask)
    lost = lost_values(batch)
    return with_lost_values(kept, -(-lost * kept.num_rows // batch.num_rows)) if lost else kept


def changelog_schema(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a batch of `schema`'s table.

    Raises `SchemaError` if it would have two columns of one name.
    """
    if reserved := reserved_column(column.name for column in schema.columns):
        raise SchemaError(f"A {reserved}.")
    return pa.schema([*schema.arrow(), *META_FIELDS])


def as_inserts(batch: pa.RecordBatch, schema: pa.Schema, *, first: int, read_ms: int) -> pa.RecordBatch:
    """Return rows that a snapshot read at `read_ms` as inserts, numbered from `first`.

    The number of lost values is kept.
    """
    count = batch.num_rows
    meta = [
        pa.array(np.full(count, RowKind.INSERT, np.int8)),
        pa.array(np.arange(first, first + count, dtype=np.int64)),
        pa.array(np.full(count, read_ms, np.int64)),
        pa.nulls(count, META_FIELDS[3].type),
    ]
    inserts = pa.RecordBatch.from_arrays([*batch.columns, *meta], schema=schema)
    lost = lost_values(batch)
    return with_lost_values(inserts, lost) if lost else inserts
