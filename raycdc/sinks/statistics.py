"""Statistics of a Parquet file as Delta keeps them, so that a MERGE by key reads the files it must and no others.

Taken from the Parquet footer, which the writer computed anyway. Method: the Delta protocol, "Per-file Statistics".
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

#: Delta keeps statistics of the first 32 columns unless a table says otherwise.
COLUMNS_MAX = 32

#: Longer texts are cut by Delta; a file whose bounds are longer simply gets none for that column.
TEXT_MAX = 32


def delta_statistics(metadata: Any, schema: pa.Schema) -> dict[str, Any]:
    """``numRecords``, ``minValues``, ``maxValues`` and ``nullCount`` of one file by its footer."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index, field in enumerate(schema):
        if index >= COLUMNS_MAX:
            break
        chunks = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if not chunks or any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[field.name] = sum(chunk.null_count for chunk in chunks)
        valued = [chunk for chunk in chunks if chunk.num_values]
        if not valued or not all(chunk.has_min_max for chunk in valued):
            continue
        bounds = _bounds(field.type, min(chunk.min for chunk in valued), max(chunk.max for chunk in valued))
        if bounds is not None:
            low[field.name], high[field.name] = bounds
    return {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _bounds(arrow: pa.DataType, low: Any, high: Any) -> tuple[Any, Any] | None:
    """The bounds as Delta's JSON has them; None for types whose bounds would need rounding."""
    if pa.types.is_integer(arrow):
        return low, high
    if pa.types.is_date(arrow):
        return low.isoformat(), high.isoformat()
    if pa.types.is_string(arrow) and len(low) <= TEXT_MAX and len(high) <= TEXT_MAX:
        return low, high
    return None
