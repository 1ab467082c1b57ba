"""Batches with masked columns; called in readers before a row is written anywhere but into memory of theirs. Pure."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import DataError
from raycdc.model import META_COLUMNS, TableId
from raycdc.model.batch import is_masked, with_masked
from raycdc.model.mask import Mask, Masks

#: The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2).
_PRIMES = [n for n in range(2, 312) if all(n % d for d in range(2, n))]


def masked(batch: pa.RecordBatch, table: TableId, masks: Masks) -> pa.RecordBatch:
    """`batch` without the columns that are dropped, and others masked. The notes in its schema stay, except that it
    is masked already.
    """
    if is_masked(batch):
        return with_masked(batch, masked=False)
    found = {name: mask for name in batch.schema.names if name not in META_COLUMNS and (mask := masks.of(table, name))}
    if not found:
        return batch
    arrays, fields = [], []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        mask = found.get(name)
        if mask is not None and mask.method == "drop":
            continue
        array = column if mask is None else masked_values(column, mask, f"{table}.{name}")
        arrays.append(array)
        fields.append(pa.field(name, array.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=batch.schema.metadata))


def masked_values(array: pa.Array, mask: Mask, where: str) -> pa.Array:
    """The values as `mask` shows them. `DataError` naming `where` for a type that it cannot be."""
    match mask.method:
        case "mask":
            return pc.if_else(array.is_valid(), pa.scalar("*" * mask.length), pa.scalar(None, pa.string()))
        case "truncate" if pa.types.is_string(array.type):
            return pc.utf8_slice_codeunits(array, 0, mask.length)
        case "truncate" if pa.types.is_binary(array.type):
            return pc.binary_slice(array, 0, mask.length)
        case "hash":
            return _hashed(array, mask.key)
        case method:
            raise DataError(f"mask: {where} cannot be masked by {method}: it is {array.type}.")


def _hashed(array: pa.Array, key: bytes) -> pa.Array:
    from raycdc.transform import hmac_loops as loops

    binary = array.cast(pa.large_binary() if pa.types.is_binary(array.type) else pa.large_string())
    binary = binary.cast(pa.large_binary()).fill_null(b"")
    _, ends, data = binary.buffers()
    offsets = np.frombuffer(ends, np.int64, count=len(binary) + 1, offset=8 * binary.offset)
    values = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    digits = np.empty(loops.DIGITS * len(binary), np.uint8)
    inner, outer, constants = _prepared(key)
    room = (np.empty(8, np.int64), np.empty(loops.BLOCK, np.uint8), np.empty(64, np.int64))
    loops.hex_digests(values, offsets, inner, outer, constants, *room, digits)
    places = np.arange(0, len(digits) + 1, loops.DIGITS, dtype=np.int32)
    text = pa.StringArray.from_buffers(len(binary), pa.py_buffer(places), pa.py_buffer(digits))
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))


@cache
def _prepared(key: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The key's share: the states after its inner and its outer padding block, and SHA-256's constants."""
    from raycdc.transform import hmac_loops as loops

    constants = np.array([_fraction(prime, 3) for prime in _PRIMES[:64]], np.int64)
    initial = np.array([_fraction(prime, 2) for prime in _PRIMES[:8]], np.int64)
    padded = (hashlib.sha256(key).digest() if len(key) > loops.BLOCK else key).ljust(loops.BLOCK, b"\0")
    states = []
    for pad in (0x36, 0x5C):
        state = initial.copy()
        loops.key_state(state, np.frombuffer(padded, np.uint8) ^ np.uint8(pad), np.empty(64, np.int64), constants)
        states.append(state)
    return states[0], states[1], constants


def _fraction(prime: int, root: int) -> int:
    """The first 32 bits of the fractional part of a root of `prime`, in whole numbers."""
    scaled = prime << (32 * root)
    guess: int = round(float(prime) ** (1 / root) * 2**32)
    while guess**root > scaled:
        guess -= 1
    while (guess + 1) ** root <= scaled:
        guess += 1
    return guess & 0xFFFFFFFF
