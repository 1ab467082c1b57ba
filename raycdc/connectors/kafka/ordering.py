"""``source.order_by``: changes of one key in several partitions, put in order by a column of theirs. Pure.

Each row has the column's value; of all rows of a key the one with the greatest is what an upsert target holds, whoever
read it first: a sink that `keeps_greatest` takes it from an epoch's rows, and leaves what it holds where that is
greater. So a before-image says nothing (the row it takes back may be an older one than the target's), and only new
images go on. Rows with equal values stand in the order in which they were read, which between partitions is any.

A change that leaves nothing behind to compare with cannot be ordered, and is refused: a deletion, a key that moves, a
truncation. An older change from another partition would bring the row back.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import DataError
from raycdc.model import RowKind, TableId, TableSchema, TypeKind

#: Types whose order is the same everywhere, and stays so when they become wider.
_ORDERED = frozenset(
    {
        *(TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64, TypeKind.UINT64, TypeKind.DECIMAL),
        *(TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP),
    }
)


def new_images(
    table: TableId, batch: pa.RecordBatch, schema: TableSchema, *, order_by: str, split_id: str
) -> pa.RecordBatch:
    """The rows of `batch` (of `schema`) that say what a row is now. Raises `DataError` where they have no order."""
    _check_column(table, schema, order_by)
    ops = batch.column("_op").to_numpy()
    before = np.flatnonzero(ops == RowKind.UPDATE_BEFORE)
    if np.isin(ops, (RowKind.DELETE, RowKind.TRUNCATE)).any() or not _keep_their_key(batch, schema, ops, before):
        raise DataError(
            f"{table}: partition {split_id} deletes a row or changes its key, which source.order_by = {order_by!r} "
            "cannot put in order: nothing is left to compare an older change from another partition with. Produce the "
            "changes by the table's key, one partition for each key, and leave source.order_by out."
        )
    rows = batch.filter(pa.array(ops != RowKind.UPDATE_BEFORE)) if len(before) else batch
    if rows.column(order_by).null_count:
        raise DataError(
            f"{table}: a row in partition {split_id} has no value in {order_by!r}, which source.order_by needs of all."
        )
    return rows


def _check_column(table: TableId, schema: TableSchema, order_by: str) -> None:
    column = next((column for column in schema.columns if column.name == order_by), None)
    if column is None:
        raise DataError(
            f"{table} has no column {order_by!r}, which source.order_by names. Name one that all tables have; a field "
            "beside the row becomes a column with source.format.metadata."
        )
    if column.type.kind not in _ORDERED:
        raise DataError(
            f"{table}: column {order_by!r} is {column.type.kind.value}, which source.order_by cannot go by. It takes "
            "integers, decimals, dates and moments; give the column's type in source.format."
        )


def _keep_their_key(batch: pa.RecordBatch, schema: TableSchema, ops: np.ndarray, before: np.ndarray) -> bool:
    """Whether each before-image is followed by the new image of the same key."""
    if not len(before):
        return True
    after = before + 1
    if after[-1] >= len(ops) or not np.all(ops[after] == RowKind.UPDATE_AFTER):
        return False
    pairs = (batch.take(pa.array(before)), batch.take(pa.array(after)))
    same = (pc.equal(*(rows.column(name) for rows in pairs)) for name in schema.primary_key)
    # A null is no key.
    return all(pc.all(equal, skip_nulls=False).as_py() for equal in same)
