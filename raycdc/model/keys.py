"""The comparison form of key columns, in which equal keys have equal values, and hashes of keys.

Every group-by and join over keys uses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import key_hash_loops as loops


def comparable(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the columns `key` of `rows` in a form in which equal keys have equal values: -0.0 is 0.0.

    Texts have 64-bit offsets, so that any number of them fits in one array.
    """
    return pa.table({name: _comparable(rows.column(name)) for name in key})


#: The name under which readers of a segment request the values of `owners` as a column. No segment stores it.
OWNER = "_raycdc_owner"
OWNER_TYPE = pa.binary()


def owners(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array:
    """Return for each row of `batch` the values of `columns` as one binary value; equal rows have equal values.

    Without columns, all rows have the same value.
    """
    if not columns:
        return pa.repeat(pa.scalar(b"", OWNER_TYPE), batch.num_rows)
    pieces: list[Any] = []
    for name in columns:
        text = _text(batch.column(name))
        # The length before each value makes ("a", "bc") differ from ("ab", "c"). NULL has no length.
        length = pc.binary_length(text).cast(pa.string()).cast(OWNER_TYPE)
        pieces.append(pc.binary_join_element_wise(length, text, pa.scalar(b":", OWNER_TYPE)))
    separator = pa.scalar(b",", OWNER_TYPE)
    missing = pa.scalar(b"-", OWNER_TYPE)
    filled = [pc.coalesce(piece, missing) for piece in pieces]
    return filled[0] if len(filled) == 1 else pc.binary_join_element_wise(*filled, separator)


def _text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_floating(kind):
        column = pc.add(column, pa.scalar(0.0, kind))
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.string())
    return column.cast(OWNER_TYPE)


def without(rows: pa.Table, keys: pa.Table) -> np.ndarray:
    """Return for each of the `rows` if its key is not in `keys`.

    `keys` has the key's columns, in the types of `rows`.
    """
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


_NO_NULLS = np.zeros(0, np.uint8)


def key_hashes(batch: pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return a hash per row over the columns `key`.

    Equal keys have equal hashes, even if the widths of their integer or text types differ. Nested types are not
    supported.
    """
    hashes = np.full(batch.num_rows, loops.FNV_OFFSET)
    for name in key:
        _mix(hashes, batch.column(name))
    loops.finish(hashes)
    return hashes


def _mix(hashes: np.ndarray, column: pa.Array) -> None:
    valid = _NO_NULLS if not column.null_count else column.is_valid().cast(pa.uint8()).to_numpy()
    kind = column.type
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind.bit_width < 64):
        column, kind = column.cast(pa.int64()), pa.int64()
    if pa.types.is_floating(kind):
        column = pa.array(column.to_numpy(zero_copy_only=False) + 0.0, kind)  # -0.0 and 0.0 are the same key.
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        column, kind = column.cast(pa.large_binary()), pa.large_binary()
    if pa.types.is_large_binary(kind):
        _, ends, data = column.buffers()
        ends = np.frombuffer(ends, np.int64, count=len(column) + 1, offset=8 * column.offset)
        loops.mix_bytes(hashes, _bytes(data), ends, valid)
        return
    loops.mix_fixed(hashes, _bytes(column.buffers()[1]), column.offset, kind.byte_width, valid)


def _bytes(data: pa.Buffer | None) -> np.ndarray:
    return np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
