"""Turns changelog batches into rows that sinks write: either every row as an event, or the last row of each key. Pure
Arrow, no I/O.

Called inside stage tasks. No function handles single rows in Python. Sinks use `reasons` and `halved` to implement
`raycdc.sinks.api.Sink.unrepresentable`, which finds rows with a value that a target can never have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import META_COLUMNS, Column, RowKind, TableSchema
from raycdc.model.keys import comparable
from raycdc.model.types import LogicalType, TypeKind

#: The column of compacted rows that is True if the key is deleted at the end of the epoch.
DELETED = "_deleted"

#: Types of the metadata columns as targets show them.
META_TYPES: dict[str, LogicalType] = {
    "_op": LogicalType(TypeKind.STRING),
    "_seq": LogicalType(TypeKind.INT64),
    "_ts_ms": LogicalType(TypeKind.INT64),
    "_db": LogicalType(TypeKind.STRING),
    "_table": LogicalType(TypeKind.STRING),
    "_pos": LogicalType(TypeKind.STRING),
}


def changelog_arrow(schema: TableSchema) -> pa.Schema:
    """Return the Arrow schema of a changelog target: the table's columns, then the metadata columns, with `_op` as
    text.
    """
    return pa.schema([*schema.arrow(), *(pa.field(name, META_TYPES[name].arrow()) for name in META_COLUMNS)])


def changelog_names(schema: TableSchema) -> list[str]:
    """Return the column names of a changelog target in order, as `read_segment` takes them with ``symbols=True``."""
    return [*(c.name for c in schema.columns), *META_COLUMNS]


def target_columns(schema: TableSchema, *, changelog: bool) -> list[Column]:
    """Return the columns of a target: the table's, followed by the metadata columns if it is a changelog."""
    meta = [Column(name, META_TYPES[name]) for name in META_COLUMNS] if changelog else []
    return [*schema.columns, *meta]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The last row of each key: the table's columns and `DELETED`.

    `truncated` is True if no older row of the target remains.
    """

    rows: pa.Table
    truncated: bool


def last_per_key(rows: pa.Table, key: Sequence[str], columns: Sequence[str], *, order_by: str = "") -> Compacted:
    """Reduce `rows` (with `_op` codes and absolute `_seq`) to the last row per `key`.

    With `order_by`, the row with the greatest value of that column is kept; if several rows have that value, the last
    of them. All rows must have a value in that column. A before-image counts as a deletion of its key. If the update
    did not change the key, the after-image comes later and is kept. If the update changed the key, the old key is
    deleted. Rows before the last truncation are ignored.
    """
    ops = rows.column("_op").to_numpy()
    seqs = rows.column("_seq").to_numpy()
    #: The indexes of the rows since the last truncation, in order of `_seq`.
    indexes = np.arange(len(ops))
    if len(seqs) > 1 and not bool(np.all(seqs[1:] > seqs[:-1])):
        indexes = np.argsort(seqs, kind="stable")
    truncations = np.flatnonzero(ops[indexes] == RowKind.TRUNCATE)
    if len(truncations):
        indexes = indexes[int(truncations[-1]) + 1 :]
    keys = comparable(rows, [*key, order_by] if order_by else key)
    if len(indexes) < len(ops) or not bool(np.all(indexes[1:] > indexes[:-1])):
        keys = keys.take(pa.array(indexes))
    if order_by:
        ranked = pa.table({"by": keys.column(order_by), "#": np.arange(len(indexes))})
        order = pc.sort_indices(ranked, sort_keys=[("by", "ascending"), ("#", "ascending")])
        keys, indexes = keys.take(order), indexes[order.to_numpy()]
    numbers = [f"k{number}" for number in range(len(key))]
    numbered = pa.table([*(keys.column(name) for name in key), pa.array(np.arange(len(indexes)))], [*numbers, "#"])
    last = numbered.group_by(numbers, use_threads=False).aggregate([("#", "max")]).column("#_max").to_numpy()
    # Filter batch by batch, in the order of `rows`, because one array cannot hold more than 2 GiB of text.
    kept = np.zeros(len(ops), np.bool_)
    kept[indexes[last]] = True
    deleted = np.isin(ops[kept], (RowKind.UPDATE_BEFORE, RowKind.DELETE))
    found = rows.select(list(columns)).filter(pa.array(kept)).append_column(DELETED, pa.array(deleted))
    return Compacted(found, len(truncations) > 0)


def alive(rows: pa.Table) -> pa.Table:
    """Return the rows of a compacted table that are not deletions, without the column `DELETED`."""
    return rows.filter(pc.invert(rows.column(DELETED))).drop_columns([DELETED])


def reasons(rows: int, bad: Iterable[tuple[pa.Array, str]]) -> pa.Array:
    """Return for each row the text of the first mask in `bad` that is true for it, or null."""
    texts = pa.nulls(rows, pa.string())
    for mask, text in bad:
        is_first = pc.and_(pc.is_null(texts), pc.fill_null(mask, fill_value=False))
        texts = pc.if_else(is_first, pa.scalar(text), texts)
    return texts


def value_bytes(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the bytes of each value, 0 for null. Values that are neither text nor binary count as 8 bytes."""
    kind = values.type
    if any(is_one(kind) for is_one in (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string,
                                       pa.types.is_large_binary)):  # fmt: skip
        lengths = pc.fill_null(pc.binary_length(values), 0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
    return np.full(len(values), 8, np.int64)


def halved(rows: pa.RecordBatch, refusal: Callable[[pa.RecordBatch], str]) -> pa.Array:
    """Return for each row the text that `refusal` returns for it, or null if that is empty.

    The rows are halved until the bad ones are found, so that good rows are checked together in few calls.
    """
    waiting, found = [(0, rows.num_rows)], {}
    while waiting:
        start, count = waiting.pop()
        if not count or not (text := refusal(rows.slice(start, count))):
            continue
        if count == 1:
            found[start] = text
        else:
            waiting += [(start, count // 2), (start + count // 2, count - count // 2)]
    return pa.array([found.get(row) for row in range(rows.num_rows)] if found else [None] * rows.num_rows, pa.string())
