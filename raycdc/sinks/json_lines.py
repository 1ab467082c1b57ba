"""Arrow rows as JSON Lines, column by column in compiled string kernels.

Called inside stage tasks and by the console sink. Values read as ``raycdc inspect binlog`` prints them: integers and
doubles as JSON numbers, decimals and temporals as text exactly as MySQL prints them (TIMESTAMP in UTC), bytes as
``{"$binary": base64}``, JSON columns as JSON, null as null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import TableSchema
from raycdc.model.json_text import json_values
from raycdc.model.types import LogicalType, TypeKind


def json_lines(batch: pa.RecordBatch, schema: TableSchema) -> pa.Buffer:
    """`batch` as UTF-8 bytes, one line per row. Columns that `schema` does not have are typed by their Arrow type."""
    if batch.num_rows == 0:
        return pa.py_buffer(b"")
    types = {column.name: column.type for column in schema.columns}
    pieces: list[Any] = []
    lead = "{"
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        pieces.append(f"{lead}{json.dumps(name, ensure_ascii=False)}:")
        pieces.append(json_values(array, types.get(name) or _plain_type(array.type)))
        lead = ","
    pieces.append("}\n")
    lines = pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement="null")
    return _content(lines)


def write_lines(file: Any, batches: Iterable[pa.RecordBatch], schema: TableSchema) -> int:
    """Write all `batches` to a binary file and return the number of rows."""
    rows = 0
    for batch in batches:
        file.write(json_lines(batch, schema))
        rows += batch.num_rows
    return rows


def _plain_type(arrow: pa.DataType) -> LogicalType:
    """Metadata columns are integers or text."""
    return LogicalType(TypeKind.INT64 if pa.types.is_integer(arrow) else TypeKind.STRING)


def _content(lines: pa.Array) -> pa.Buffer:
    """The bytes of a string array without nulls: its data buffer, which holds the values one after the other."""
    offsets = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return lines.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
