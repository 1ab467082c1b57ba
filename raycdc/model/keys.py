"""Key columns as they are compared: by every group-by and join over keys, so that all agree which rows are one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def comparable(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The columns `key` of `rows` so that equal keys have equal values: -0.0 is 0.0.

    Texts have offsets of 64 bits, so that any number of them may be gathered in one array.
    """
    return pa.table({name: _comparable(rows.column(name)) for name in key})


def without(rows: pa.Table, keys: pa.Table) -> np.ndarray:
    """Which of `rows` have none of `keys`, whose columns are the key's, in types that `rows` has them in."""
    names = keys.column_names
    have, deleted = comparable(rows, names), comparable(keys, names)
    if len(names) == 1:
        is_deleted: np.ndarray = pc.is_in(have.column(0), value_set=pc.unique(deleted.column(0))).to_numpy()
        return ~is_deleted
    columns = [f"k{number}" for number in range(len(names))]
    numbered = pa.table([*have.columns, pa.array(np.arange(rows.num_rows))], [*columns, "#"])
    left = numbered.join(deleted.rename_columns(columns), keys=columns, join_type="left anti", use_threads=False)
    kept = np.zeros(rows.num_rows, np.bool_)
    kept[left.column("#").to_numpy()] = True
    return kept


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.add(column, pa.scalar(0.0, kind))
    if pa.types.is_string(kind):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary(kind) else column
