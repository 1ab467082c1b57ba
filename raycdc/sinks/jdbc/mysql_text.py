"""Turns Arrow columns into the rows of a MySQL INSERT, column by column and without a Python object per row. The
session must use utf8mb4 and ``NO_BACKSLASH_ESCAPES``, so that only quotes need escaping. Called by `mysql`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import ValueRefusedError


def value_lists(batch: pa.RecordBatch, *, bytes_max: int) -> Iterator[bytes]:
    """Yield the rows as ``(…),(…)`` in pieces of about `bytes_max` at most. A larger row is a piece of its own."""
    if not batch.num_rows:
        return
    joined = pc.binary_join_element_wise(*_columns(batch), pa.scalar(b",", pa.large_binary()))
    opening, closing, nothing = (pa.scalar(text, pa.large_binary()) for text in (b"(", b"),", b""))
    rows = pc.binary_join_element_wise(opening, joined, closing, nothing)
    _, offset_buffer, data = rows.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[rows.offset : rows.offset + len(rows) + 1]
    text = memoryview(data)
    first = 0
    while first < len(rows):
        last = int(np.searchsorted(offsets, offsets[first] + bytes_max, side="right")) - 1
        last = max(last, first + 1)
        # Leave out the comma after the last row.
        yield bytes(text[offsets[first] : offsets[last] - 1])
        first = last


def widest(batch: pa.RecordBatch, *, bytes_max: int) -> tuple[str, int]:
    """Return, for the first row larger than `bytes_max`, the column with the largest literal, and its size in bytes."""
    sizes = literal_sizes(batch)
    row = int(np.argmax(sizes.sum(axis=0) + len(sizes) + 1 > bytes_max))
    column = int(np.argmax(sizes[:, row]))
    return str(batch.schema.names[column]), int(sizes[column, row])


def literal_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """Return the size in bytes of each value's literal, by column and row."""
    return np.stack([pc.binary_length(column).to_numpy() for column in _columns(batch)])


def _columns(batch: pa.RecordBatch) -> list[pa.Array]:
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return [_literals(name, column).cast(pa.large_binary()) for name, column in columns]


def _literals(name: str, column: pa.Array) -> pa.Array:
    """Return each value as a MySQL literal, as text or bytes without nulls."""
    kind = column.type
    if pa.types.is_binary(kind):
        return pc.fill_null(_bytes(column), b"NULL")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        text = _quoted(pc.replace_substring(column.cast(pa.large_string()), "'", "''"))
    elif pa.types.is_boolean(kind):
        text = column.cast(pa.int8()).cast(pa.large_string())
    elif pa.types.is_timestamp(kind):
        text = _quoted(column.cast(pa.timestamp("us")).cast(pa.large_string()))
    elif pa.types.is_date(kind):
        text = _quoted(column.cast(pa.large_string()))
    elif pa.types.is_floating(kind):
        if pc.any(pc.invert(pc.is_finite(column))).as_py():
            raise ValueRefusedError(f"Column {name} has a value (NaN or infinity) that MySQL cannot hold.")
        # A float is converted to a double exactly, and the shortest text of a double is exact.
        text = column.cast(pa.float64()).cast(pa.large_string())
        # Without an exponent, the server would read an exact number, which has no negative zero.
        text = pc.if_else(pc.and_(pc.equal(column, 0), pc.starts_with(text, "-")), "-0e0", text)
    elif pa.types.is_decimal(kind):
        # Decimals are quoted, because small ones are printed with an exponent, which would make them a DOUBLE.
        text = _quoted(column.cast(pa.string()).cast(pa.large_string()))
    else:
        text = column.cast(pa.string()).cast(pa.large_string())
    return pc.fill_null(text, "NULL")


def _quoted(text: pa.Array) -> pa.Array:
    quote, nothing = pa.scalar("'", pa.large_string()), pa.scalar("", pa.large_string())
    return pc.binary_join_element_wise(quote, text, quote, nothing)


def _bytes(column: pa.Array) -> pa.Array:
    """Return each value as ``_binary'…'``, which no server takes for text. Quotes in the bytes can be doubled safely,
    because in utf8mb4 a quote is never part of another character.
    """
    doubled = pc.replace_substring(column.cast(pa.large_binary()), b"'", b"''")
    opening, closing, nothing = (pa.scalar(text, pa.large_binary()) for text in (b"_binary'", b"'", b""))
    return pc.binary_join_element_wise(opening, doubled, closing, nothing)


def ends_in_space(columns: Sequence[pa.Array]) -> bool:
    """Return True if a text ends in a space, which some collations ignore."""
    return any(pc.any(pc.ends_with(column, " ")).as_py() for column in columns if pa.types.is_string(column.type))
