"""Arrow columns as rows of a MySQL INSERT, made column by column; no Python object per row.

*Contract*: the session has ``NO_BACKSLASH_ESCAPES``, so that a quote is the only character to double, and utf8mb4.
Called by `jdbc_mysql`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import SinkError

_HEX = np.frombuffer("".join(f"{n:02X}" for n in range(256)).encode(), dtype="<u2")


def value_lists(batch: pa.RecordBatch, *, bytes_max: int) -> Iterator[bytes]:
    """The rows as ``(…),(…)`` in pieces of at most about `bytes_max`; a larger row is a piece of its own."""
    if not batch.num_rows:
        return
    literals = [_literals(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    joined = pc.binary_join_element_wise(*literals, pa.scalar(",", pa.large_string()))
    opening, closing, nothing = (pa.scalar(text, pa.large_string()) for text in ("(", "),", ""))
    rows = pc.binary_join_element_wise(opening, joined, closing, nothing)
    _, offset_buffer, data = rows.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[rows.offset : rows.offset + len(rows) + 1]
    text = memoryview(data)
    first = 0
    while first < len(rows):
        last = int(np.searchsorted(offsets, offsets[first] + bytes_max, side="right")) - 1
        last = max(last, first + 1)
        # Without the comma behind the last row.
        yield bytes(text[offsets[first] : offsets[last] - 1])
        first = last


def _literals(name: str, column: pa.Array) -> pa.Array:
    """Each value as a literal of MySQL's, as large_string without nulls."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = _quoted(pc.replace_substring(column.cast(pa.large_string()), "'", "''"))
    elif pa.types.is_binary(kind):
        text = _hex(column)
    elif pa.types.is_boolean(kind):
        text = column.cast(pa.int8()).cast(pa.large_string())
    elif pa.types.is_timestamp(kind):
        text = _quoted(column.cast(pa.timestamp("us")).cast(pa.large_string()))
    elif pa.types.is_date(kind):
        text = _quoted(column.cast(pa.large_string()))
    elif pa.types.is_floating(kind):
        if pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise SinkError(f"Column {name} has a value (NaN or infinity) that MySQL cannot hold.")
        # A float's value as a double is exact, and so is the shortest text of a double.
        text = column.cast(pa.float64()).cast(pa.large_string())
    elif pa.types.is_decimal(kind):
        # Quoted, because small ones are printed with an exponent, and such a number would be a DOUBLE.
        text = _quoted(column.cast(pa.string()).cast(pa.large_string()))
    else:
        text = column.cast(pa.string()).cast(pa.large_string())
    return pc.fill_null(text, "NULL")


def _quoted(text: pa.Array) -> pa.Array:
    quote, nothing = pa.scalar("'", pa.large_string()), pa.scalar("", pa.large_string())
    return pc.binary_join_element_wise(quote, text, quote, nothing)


def _hex(column: pa.Array) -> pa.Array:
    """Bytes as ``X'…'``."""
    whole = column.cast(pa.large_binary())
    offsets = np.frombuffer(whole.buffers()[1], dtype=np.int64)[whole.offset : whole.offset + len(whole) + 1]
    data = np.frombuffer(whole.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    digits = pa.LargeStringArray.from_buffers(
        len(whole), pa.py_buffer((offsets - offsets[0]) * 2), pa.py_buffer(_HEX[data].tobytes())
    )
    opening, closing, nothing = (pa.scalar(text, pa.large_string()) for text in ("X'", "'", ""))
    text = pc.binary_join_element_wise(opening, digits, closing, nothing)
    return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.large_string()))


def ends_in_space(columns: Sequence[pa.Array]) -> bool:
    """Whether a text ends in a space, which some collations do not see."""
    return any(pc.any(pc.ends_with(column, " ")).as_py() for column in columns if pa.types.is_string(column.type))
