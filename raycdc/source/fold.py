"""Folding held log rows into the rows of a chunk: the last state of each touched key wins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import RowKind

_ORDER = "_raycdc_order"


def fold(chunk: pa.Table, delta: pa.Table, *, key: Sequence[str]) -> pa.Table:
    """The chunk as its SELECT would have seen it after `delta`.

    `chunk` and `delta` have one changelog schema (`raycdc.model.changelog_schema`); `delta` is in log order and holds
    every change of the window, so that a key's last row says what became of it. Keys are compared by value: where a
    collation calls two spellings the same key, an update names both, so both are touched. The result's rows are
    inserts without log position, numbered from 0.
    """
    order = pa.array(np.arange(delta.num_rows, dtype=np.int64))
    keyed = delta.select(list(key)).append_column(_ORDER, order)
    last = keyed.group_by(list(key)).aggregate([(_ORDER, "max")])
    final = delta.take(last.column(f"{_ORDER}_max"))
    alive = pc.is_in(final.column("_op"), pa.array([RowKind.INSERT, RowKind.UPDATE_AFTER], pa.int8()))
    rest = _without(chunk, last.select(list(key)))
    folded = pa.concat_tables([rest, final.filter(alive)])
    return _as_inserts(folded, ts_ms=chunk.column("_ts_ms")[0].as_py() if chunk.num_rows else None)


def _without(chunk: pa.Table, keys: pa.Table) -> pa.Table:
    """Rows of `chunk` whose key is not in `keys`, in their order."""
    order = pa.array(np.arange(chunk.num_rows, dtype=np.int64))
    numbered = chunk.select(keys.column_names).append_column(_ORDER, order)
    kept = numbered.join(keys, keys=keys.column_names, join_type="left anti")
    return chunk.take(pa.array(np.sort(kept.column(_ORDER).to_numpy())))


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
