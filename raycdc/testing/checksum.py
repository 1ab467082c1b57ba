"""Order-independent checksums of Arrow tables, and the rows in which two of them differ.

Called by `compare` and the kill tests. *Contract*: two tables have equal `Checksum`s when they hold the same rows the
same number of times, whatever the order; every column takes part, each value in an exact text (floats by their
shortest round-trip form, instants as microseconds). The sum of 128-bit row hashes is what tells multisets apart: an
exclusive-or would not see a row that is there twice.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

_HASH_BYTES = 16
_NULL = b"\xff"


@dataclass(frozen=True, slots=True)
class Checksum:
    """Number of rows and the sum of their hashes modulo 2^128."""

    rows: int
    digest: int

    def __str__(self) -> str:
        return f"{self.digest:032x}"


def checksum(table: pa.Table) -> Checksum:
    """The checksum of all columns, in the table's column order. Costs about a microsecond a row."""
    total = 0
    for row in row_bytes(table):
        total += int.from_bytes(hashlib.blake2b(row, digest_size=_HASH_BYTES).digest(), "big")
    return Checksum(rows=table.num_rows, digest=total % (1 << 8 * _HASH_BYTES))


def differing_rows(left: pa.Table, right: pa.Table, *, limit: int = 5) -> tuple[list[str], list[str]]:
    """Up to `limit` rows that only `left` holds, and that only `right` holds, as text.

    A row counts as often as it is there.
    """
    counts_left, counts_right = Counter(row_bytes(left)), Counter(row_bytes(right))
    only_left, only_right = counts_left - counts_right, counts_right - counts_left
    return _show(left, only_left, limit), _show(right, only_right, limit)


def row_bytes(table: pa.Table) -> Iterator[bytes]:
    """Each row as bytes that are equal exactly when all its values are: ``length:value`` per column."""
    for batch in table.to_batches():
        if batch.num_columns == 0 or batch.num_rows == 0:
            continue
        parts = [part for column in batch.columns for part in _length_and_value(column)]
        nothing = pa.scalar(b"", pa.large_binary())
        joined = pc.binary_join_element_wise(*parts, nothing, null_handling="replace", null_replacement=_NULL)
        yield from joined.to_pylist()


def _length_and_value(column: pa.Array) -> Sequence[pa.Array]:
    text = _exact_text(column)
    length = pc.cast(pc.cast(pc.binary_length(text), pa.string()), pa.large_binary())
    return length, pa.scalar(b":", pa.large_binary()), text


def _exact_text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.large_binary())
    return column.cast(pa.large_string()).cast(pa.large_binary())


def _show(table: pa.Table, wanted: Counter[bytes], limit: int) -> list[str]:
    shown: list[str] = []
    left = Counter(wanted)
    for number, row in enumerate(row_bytes(table)):
        if len(shown) == limit:
            break
        if left[row] > 0:
            left[row] -= 1
            shown.append(str(table.slice(number, 1).to_pylist()[0]))
    return shown
