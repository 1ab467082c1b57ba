"""Key columns as they are compared: by every group-by and join over keys, so that all agree which rows are one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc


def comparable(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The columns `key` of `rows` so that equal keys have equal values: -0.0 is 0.0.

    Texts have offsets of 64 bits, so that any number of them may be gathered in one array.
    """
    return pa.table({name: _comparable(rows.column(name)) for name in key})


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.add(column, pa.scalar(0.0, kind))
    if pa.types.is_string(kind):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary(kind) else column
