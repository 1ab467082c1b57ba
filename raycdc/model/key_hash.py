"""Hashes of keys that are the same in every process. They decide to which partition a key belongs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.model import key_hash_loops as loops

_NO_NULLS = np.zeros(0, np.uint8)


def key_hashes(batch: pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return a hash per row over the columns `key`.

    Equal keys have equal hashes, in integers and texts of any width.

    Nested types are not supported.
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
