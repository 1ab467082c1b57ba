"""Makes the statistics of a Parquet file in Delta's form, so that a MERGE by key reads only the necessary files.

They are taken from the Parquet footer, which the writer computed anyway, as described in the Delta protocol, "Per-file
Statistics".

Only integers and dates have statistics. The properties of a table that raycdc creates name the columns with statistics
(`properties`), so that other writers write the same statistics, and readers expect no others. This avoids two problems
of delta-rs. First, it stores bounds of decimals as 64-bit floats, so rows with long decimals would not be found.
Second, if some columns of a file have bounds, its pyarrow dataset assumes that a column without bounds has no values,
so a filter on that column would find nothing. A file therefore has bounds of all columns that its table's properties
name, or no bounds at all (`for_table`). A date that Python cannot represent (in the year 0, or after 9999) is not used
as a bound, because readers written in Python fail on it.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

#: The number of columns with statistics in Delta, unless a table sets another.
COLUMNS_MAX = 32
_EPOCH = datetime.date(1970, 1, 1).toordinal()

_NAMED = "delta.dataSkippingStatsColumns"
_FIRST = "delta.dataSkippingNumIndexedCols"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def properties(schema: pa.Schema, partition_by: Collection[str] = ()) -> dict[str, str]:
    """Return the table properties that name the columns with statistics. Columns in `partition_by` are left out,
    because data files do not contain them.
    """
    stored = [field for field in schema if field.name not in partition_by]
    named = [field.name for field in stored if has_bounds(field.type) and _PLAIN_NAME.fullmatch(field.name)]
    return {_NAMED: ",".join(named[:COLUMNS_MAX])} if named else {_FIRST: "0"}


def delta_statistics(metadata: Any, schema: pa.Schema) -> str:
    """Return ``numRecords``, ``minValues``, ``maxValues`` and ``nullCount`` of a file from its footer, as JSON text."""
    low: dict[str, object] = {}
    high: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for index, field in enumerate(schema):
        if not has_bounds(field.type):
            continue
        chunks = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if not chunks or any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[field.name] = sum(chunk.null_count for chunk in chunks)
        valued = [chunk for chunk in chunks if chunk.num_values]
        if valued and all(chunk.has_min_max for chunk in valued):
            least = _bound(min(_number(chunk, field.type, "min") for chunk in valued), field.type)
            most = _bound(max(_number(chunk, field.type, "max") for chunk in valued), field.type)
            if least is not None and most is not None:
                low[field.name], high[field.name] = least, most
    return json.dumps({"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def for_table(text: str, configuration: Mapping[str, str]) -> str:
    """Return a file's statistics (JSON text), reduced to the columns for which this table's configuration allows
    statistics.

    If a bound is missing for one of these columns, only the number of rows remains.
    """
    statistics = json.loads(text)
    named = configuration.get(_NAMED, "").split(",")
    rows = statistics["numRecords"]
    if all(name in statistics["minValues"] or statistics["nullCount"].get(name) == rows for name in named):
        kept = {
            key: {name: value for name, value in statistics[key].items() if name in named}
            for key in ("minValues", "maxValues", "nullCount")
        }
        return json.dumps({"numRecords": rows, **kept})
    return json.dumps({"numRecords": rows})


def has_bounds(arrow: pa.DataType) -> bool:
    """Return True if columns of the type have statistics."""
    return bool(pa.types.is_integer(arrow) or pa.types.is_date(arrow))


def _number(chunk: Any, arrow: pa.DataType, end: str) -> int:
    """Return the ``min`` or ``max`` of a column chunk; for dates, as stored in the file, in days since 1970."""
    return int(getattr(chunk, f"{end}_raw" if pa.types.is_date(arrow) else end))


def _bound(number: int, arrow: pa.DataType) -> int | str | None:
    """Return the bound in Delta's JSON; None for a date that Python cannot represent."""
    if not pa.types.is_date(arrow):
        return number
    try:
        return datetime.date.fromordinal(_EPOCH + number).isoformat()
    except (ValueError, OverflowError):
        return None
