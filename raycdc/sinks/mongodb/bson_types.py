"""Elements (`documents`) of a MongoDB source's columns, which keep original BSON values (`OWN_FORMS`).

`EncodedFields` adds the fields of a document that is stored as one value, besides those of the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import DataError
from raycdc.model import Column
from raycdc.sinks.mongodb import value_loops
from raycdc.sinks.mongodb.types import BsonForm, form_of

OWN_FORMS = frozenset({BsonForm.OBJECT_ID, BsonForm.UUID, BsonForm.VALUE, BsonForm.FIELDS})
_NULL = b"\x0a"
#: For each form: the byte of the element type, the bytes before the value, and the value's length.
_BLOBS = {BsonForm.OBJECT_ID: (b"\x07", b"", 12), BsonForm.UUID: (b"\x05", b"\x10\0\0\0\x04", 16)}
_WHY = {
    value_loops.DAMAGED: "bytes that are no BSON, so it was made by something else than a MongoDB source",
    value_loops.NO_TIMESTAMP: "an empty timestamp as a field, which servers replace by their own time",
    value_loops.DOLLAR: "a field whose name begins with a dollar sign, which an update takes for an operator",
    value_loops.TWICE: "a field that a column has, too",
}


class UnencodableRowError(DataError):
    """The row with the number `index` has a value that no document can have."""

    cure = "Rename the field at the source or leave it out; then take a new snapshot of the table."

    def __init__(self, index: int, column: str, why: str) -> None:
        super().__init__(f"Column {column} has {why}.")
        self.index = index


@dataclass(frozen=True, slots=True)
class _Blobs:
    head: np.ndarray
    null: np.ndarray
    blobs: np.ndarray
    valid: np.ndarray
    missing: bool

    def sizes(self) -> Any:
        full = len(self.head) + self.blobs.shape[1]
        return np.where(self.valid, full, 0 if self.missing else len(self.null))

    def write(self, out: np.ndarray, at: np.ndarray) -> None:
        value_loops.put_blobs(out, at, self.head, self.null, self.blobs, self.valid, self.missing)


@dataclass(frozen=True, slots=True)
class _Values:
    name: np.ndarray
    starts: np.ndarray
    data: np.ndarray
    valid: np.ndarray
    missing: bool

    def sizes(self) -> Any:
        # The value includes the byte of its type.
        head = 1 + len(self.name)
        return np.where(self.valid, np.diff(self.starts) + len(self.name), 0 if self.missing else head)

    def write(self, out: np.ndarray, at: np.ndarray) -> None:
        value_loops.put_values(out, at, self.name, self.starts, self.data, self.valid, self.missing)


@dataclass(frozen=True, slots=True)
class EncodedFields:
    """The fields of each row's document, without ``_id`` and without fields with the names in `left`."""

    starts: np.ndarray
    data: np.ndarray
    valid: np.ndarray
    bytes: np.ndarray
    left: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(
        cls, name: str, values: pa.Array, columns: Mapping[str, pa.Array], *, made: Collection[str] = ()
    ) -> EncodedFields:
        """Return the fields of the column `name`, without those that have the name of a column in `made`.

        Raises `UnencodableRowError` for a field that cannot be written, or has the name of another one of `columns`.
        """
        starts, data = bytes_of(values)
        valid = _valid(values)
        own = {text: column for text, column in columns.items() if text not in made}
        left = _names([text for text in columns if text in made])
        there = np.zeros((len(own), len(values)), np.bool_)
        for number, column in enumerate(own.values()):
            there[number] = _valid(column)
        sizes = np.zeros(len(values), np.int64)
        row, why = value_loops.check_fields(starts, data, valid, *_names(list(own)), there, *left, sizes)
        if row >= 0:
            raise UnencodableRowError(int(row), name, _WHY[int(why)])
        return cls(starts, data, valid, sizes, left)

    def sizes(self) -> Any:
        return self.bytes

    def write(self, out: np.ndarray, at: np.ndarray) -> None:
        value_loops.put_fields(out, at, self.starts, self.data, self.valid, *self.left)


def own_element(field: np.ndarray, column: Column, values: pa.Array, *, missing: bool) -> _Blobs | _Values:
    """Return the field `field` (its name with NUL) with the values of `column`, like `documents.element`.

    Raises `UnencodableRowError` for a value that the column's form does not allow.
    """
    form, valid = form_of(column.type), _valid(values)
    starts, data = bytes_of(values)
    if form in _BLOBS:
        tag, before, width = _BLOBS[form]
        blobs = np.zeros((len(values), width), np.uint8)
        row = value_loops.read_hex(starts, data, valid, form is BsonForm.UUID, blobs)
        if row >= 0:
            raise UnencodableRowError(int(row), column.name, f"a text that is no {column.type.native}")
        head, null = (np.frombuffer(text + field.tobytes(), np.uint8) for text in (tag, _NULL))
        return _Blobs(np.concatenate([head, np.frombuffer(before, np.uint8)]), null, blobs, valid, missing)
    if form is BsonForm.FIELDS:
        # A document in a field is its bytes after the byte of the type.
        values = _typed(values)
        starts, data = bytes_of(values)
    row, why = value_loops.check_values(starts, data, valid)
    if row >= 0:
        raise UnencodableRowError(int(row), column.name, _WHY[int(why)])
    return _Values(field, starts, data, valid, missing)


def bytes_of(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets and bytes of a text or binary column, without copying the bytes."""
    large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    _, offsets, data = values.buffers()
    indexes = np.frombuffer(offsets, np.int64 if large else np.int32)[values.offset : values.offset + len(values) + 1]
    found = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return indexes.astype(np.int64), found


def _names(names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated names, each with its NUL, and for each name its first byte and its length."""
    texts = [name.encode() + b"\0" for name in names]
    spans = np.zeros((len(texts), 2), np.int64)
    spans[:, 1] = [len(text) for text in texts]
    spans[:, 0] = np.cumsum(spans[:, 1]) - spans[:, 1]
    return np.frombuffer(b"".join(texts) or b"\0", np.uint8), spans


def _typed(values: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(b"\x03"), values, pa.scalar(b""))


def _valid(values: pa.Array) -> np.ndarray:
    return np.ascontiguousarray(values.is_valid().to_numpy(zero_copy_only=False))
