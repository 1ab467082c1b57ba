"""Reads rows of a Delta table by their keys from its files, except files whose footers rule the keys out.

For tables that only this pipeline writes to. The key columns of each row group are read first. Its remaining columns
are read only if the row group has one of the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycdc.errors import TargetModifiedError
from raycdc.model import key_hashes
from raycdc.sinks.delta.small_merge import in_types, snapshot_files
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.storage.files import AnyPath, reading


def rows_with(target: DeltaTarget, keys: pa.Table) -> pa.Table:
    """Return the rows that have one of `keys`, as of the last `refresh`. The result may also contain a few rows with
    different keys.
    """
    schema = target.arrow()
    files = snapshot_files(target.table)
    if files is None:
        raise TargetModifiedError(f"{target.location} has files that somebody else wrote.")
    names = keys.column_names
    wanted = in_types(keys, pa.schema([schema.field(name) for name in names])).combine_chunks()
    found = [schema.empty_table()]
    if wanted.num_rows:
        hashes = np.unique(np.concatenate([key_hashes(batch, names) for batch in wanted.to_batches()]))
        bounds = _bounds(wanted.column(0))
        for file in files:
            found += _of_file(target.path / file.path, names, hashes, bounds, schema)
    return pa.concat_tables(found)


def _of_file(path: AnyPath, names: Sequence[str], hashes: np.ndarray, bounds: Any, schema: pa.Schema) -> list[pa.Table]:
    found = []
    with reading(path) as source, pq.ParquetFile(source) as file:
        first = file.schema_arrow.get_field_index(names[0])
        for group in range(file.num_row_groups):
            if _excludes(file.metadata.row_group(group).column(first).statistics, bounds):
                continue
            there = in_types(file.read_row_group(group, columns=list(names)), _part(schema, names)).combine_chunks()
            hits = [np.isin(key_hashes(batch, names), hashes) for batch in there.to_batches()]
            mask = np.concatenate(hits) if hits else np.zeros(0, np.bool_)
            if mask.any():
                # Cast to the table's types before filtering, because files of delta-rs may have types that cannot be
                # filtered.
                found.append(in_types(file.read_row_group(group), schema).filter(pa.array(mask)))
    return found


def _part(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names])


def _bounds(keys: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return the least and the greatest key; None for types whose order differs between writers."""
    kind = keys.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return None
    found = pc.min_max(keys).as_py()
    return None if found["min"] is None or keys.null_count else (found["min"], found["max"])


def _excludes(statistics: Any, bounds: tuple[Any, Any] | None) -> bool:
    """Return True if the row group with these statistics has no key within `bounds`."""
    if bounds is None or statistics is None or not statistics.has_min_max:
        return False
    return bool(statistics.max < bounds[0] or statistics.min > bounds[1])
