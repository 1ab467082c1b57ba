"""Encodes Arrow columns as BSON documents, without an object per row.

Called inside tasks, and by the sink for small epochs. Rows are encoded in slices of a few thousand. For each slice, the
sizes of all elements are computed column by column, then the columns are written. An `Element` is one field of all rows
of a slice. A `Group` is a document that consists of elements. Slices are small, so that the output of one column's loop
is still in the processor's cache when the loop of the next column runs.

Columns of a MongoDB source may have original BSON values (`OWN_FORMS`). If a column has whole documents,
`EncodedFields` adds the fields of these documents to the fields of the other columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import DataError, RowRefusedError
from raycdc.model import Column
from raycdc.model.json_text import decimal_text, timestamp_text
from raycdc.sinks.mongodb import bson_loops
from raycdc.sinks.mongodb.types import DATE_DIGITS, DOCUMENT_BYTES_MAX, BsonForm, form_of, subtype_of

OWN_FORMS = frozenset({BsonForm.OBJECT_ID, BsonForm.UUID, BsonForm.VALUE, BsonForm.FIELDS})
_NULL = b"\x0a"
#: For each form: the byte of the element type, the bytes before the value, and the value's length.
_BLOBS = {BsonForm.OBJECT_ID: (b"\x07", b"", 12), BsonForm.UUID: (b"\x05", b"\x10\0\0\0\x04", 16)}
_WHY = {
    bson_loops.DAMAGED: "bytes that are no BSON, so it was made by something else than a MongoDB source",
    bson_loops.NO_TIMESTAMP: "an empty timestamp as a field, which servers replace by their own time",
    bson_loops.DOLLAR: "a field whose name begins with a dollar sign, which an update takes for an operator",
    bson_loops.TWICE: "a field that a column has, too",
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
        bson_loops.put_blobs(out, at, self.head, self.null, self.blobs, self.valid, self.missing)


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
        bson_loops.put_values(out, at, self.name, self.starts, self.data, self.valid, self.missing)


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
        """Return the fields of the documents in the column `name`. Fields with the name of a column in `made` are left
        out. Raises `UnencodableRowError` for a field that cannot be written, or that has the name of any other column
        in `columns`.
        """
        starts, data = bytes_of(values)
        valid = _valid(values)
        own = {text: column for text, column in columns.items() if text not in made}
        left = _names([text for text in columns if text in made])
        there = np.zeros((len(own), len(values)), np.bool_)
        for number, column in enumerate(own.values()):
            there[number] = _valid(column)
        sizes = np.zeros(len(values), np.int64)
        row, why = bson_loops.check_fields(starts, data, valid, *_names(list(own)), there, *left, sizes)
        if row >= 0:
            raise UnencodableRowError(int(row), name, _WHY[int(why)])
        return cls(starts, data, valid, sizes, left)

    def sizes(self) -> Any:
        return self.bytes

    def write(self, out: np.ndarray, at: np.ndarray) -> None:
        bson_loops.put_fields(out, at, self.starts, self.data, self.valid, *self.left)


def own_element(field: np.ndarray, column: Column, values: pa.Array, *, missing: bool) -> _Blobs | _Values:
    """Return the element for `column`, whose values are original BSON values. `field` is the name of the field, with a
    NUL.

    Raises `UnencodableRowError` for a value that the column's form does not allow.
    """
    form, valid = form_of(column.type), _valid(values)
    starts, data = bytes_of(values)
    if form in _BLOBS:
        tag, before, width = _BLOBS[form]
        blobs = np.zeros((len(values), width), np.uint8)
        row = bson_loops.read_hex(starts, data, valid, form is BsonForm.UUID, blobs)
        if row >= 0:
            raise UnencodableRowError(int(row), column.name, f"a text that is no {column.type.native}")
        head, null = (np.frombuffer(text + field.tobytes(), np.uint8) for text in (tag, _NULL))
        return _Blobs(np.concatenate([head, np.frombuffer(before, np.uint8)]), null, blobs, valid, missing)
    if form is BsonForm.FIELDS:
        # A document in a field is its bytes after the byte of the type.
        values = _typed(values)
        starts, data = bytes_of(values)
    row, why = bson_loops.check_values(starts, data, valid)
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


#: The number of rows in a slice.
SLICE_ROWS = 8192
#: The most bytes of statements in one transaction: half the limit of a command, to leave room for a document of any
#: size.
BATCH_BYTES_MAX = 8 << 20

_DAY_MS = 86_400_000
_TEXT, _DOCUMENT = 0x02, 0x03
_WORDS = {BsonForm.BOOL: (0x08, 1), BsonForm.INT32: (0x10, 4), BsonForm.INT64: (0x12, 8), BsonForm.DOUBLE: (0x01, 8),
          BsonForm.DAY: (0x09, 8), BsonForm.DATE: (0x09, 8)}  # fmt: skip


class Element(Protocol):
    """A field of every row."""

    def sizes(self) -> Any:
        """Return the bytes for each row, as an array, or as one number for all rows."""

    def write(self, out: np.ndarray, at: np.ndarray) -> None: ...


@dataclass(frozen=True, slots=True)
class ConstantElement:
    """The same bytes in every row."""

    text: bytes

    def sizes(self) -> Any:
        return len(self.text)

    def write(self, out: np.ndarray, at: np.ndarray) -> None:
        bson_loops.put_constant(out, at, np.frombuffer(self.text, np.uint8))


@dataclass(frozen=True, slots=True)
class Group:
    """A document that consists of elements. With a name it is a field of another document; without a name it is a whole
    document.
    """

    name: str
    elements: Sequence[Element]

    def inner(self) -> Any:
        """Return the size of the document itself, including its length and its end."""
        return sum((element.sizes() for element in self.elements), np.int64(5))

    def sizes(self) -> Any:
        return self.inner() + (len(_name(self.name)) + 1 if self.name else 0)

    def write(self, out: np.ndarray, at: np.ndarray) -> None:
        if self.name:
            ConstantElement(bytes([_DOCUMENT]) + _name(self.name).tobytes()).write(out, at)
        lengths = np.broadcast_to(np.asarray(self.inner(), np.int64), (len(at),))
        bson_loops.put_lengths(out, at, np.ascontiguousarray(lengths))
        for element in self.elements:
            element.write(out, at)
        ConstantElement(b"\0").write(out, at)


@dataclass(frozen=True, slots=True)
class _Words:
    name: np.ndarray
    tag: int
    width: int
    words: np.ndarray
    valid: np.ndarray
    missing: bool

    def sizes(self) -> Any:
        return _sizes(self.name, self.valid, self.width, self.missing)

    def write(self, out: np.ndarray, at: np.ndarray) -> None:
        bson_loops.put_words(out, at, self.name, self.tag, self.width, self.words, self.valid, self.missing)


@dataclass(frozen=True, slots=True)
class _Decimals:
    name: np.ndarray
    low: np.ndarray
    high: np.ndarray
    small: np.ndarray
    valid: np.ndarray
    missing: bool

    def sizes(self) -> Any:
        return _sizes(self.name, self.valid, np.where(self.small, 8, 16), self.missing)

    def write(self, out: np.ndarray, at: np.ndarray) -> None:
        bson_loops.put_decimals(out, at, self.name, self.low, self.high, self.small, self.valid, self.missing)


@dataclass(frozen=True, slots=True)
class _Texts:
    name: np.ndarray
    tag: int
    subtype: int
    starts: np.ndarray
    data: np.ndarray
    valid: np.ndarray
    missing: bool

    def sizes(self) -> Any:
        # In addition to its bytes, a value has a length, and either a subtype or a final NUL.
        more = 9 if self.subtype == bson_loops.OLD_BINARY else 5
        return _sizes(self.name, self.valid, np.diff(self.starts) + more, self.missing)

    def write(self, out: np.ndarray, at: np.ndarray) -> None:
        given = self.starts, self.data, self.valid, self.missing
        bson_loops.put_texts(out, at, self.name, self.tag, self.subtype, *given)


def element(name: str, column: Column, values: pa.Array, *, missing: bool = False) -> Element:
    """Return the field `name` with the values of `column`. If `missing` is True, the field is left out of documents in
    which the value is NULL. Raises `DataError` for a value that its BSON type cannot hold.
    """
    field, form = _name(name), form_of(column.type)
    if form in OWN_FORMS:
        return own_element(field, column, values, missing=missing)
    valid = np.ascontiguousarray(values.is_valid().to_numpy(zero_copy_only=False))
    if form in _WORDS:
        tag, width = _WORDS[form]
        return _Words(field, tag, width, _words(form, column, values), valid, missing)
    if form in (BsonForm.DECIMAL, BsonForm.UINT64):
        low, high, small = _decimals(form, values)
        return _Decimals(field, low, high, small, valid, missing)
    if form is BsonForm.DIGITS:
        values = decimal_text(values, column.type.scale)
    elif form is BsonForm.MOMENT:
        values = timestamp_text(values, column.type.fsp)
    starts, data = bytes_of(values)
    tag = bson_loops.BINARY if form is BsonForm.BINARY else _TEXT
    return _Texts(field, tag, subtype_of(column.type), starts, data, valid, missing)


def nulls(name: str) -> Element:
    """Return a field that is null in every row."""
    return ConstantElement(bytes([bson_loops.NULL]) + _name(name).tobytes())


def encode(document: Group, rows: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the concatenated documents of `rows` rows in pieces of `BATCH_BYTES_MAX`. Each piece comes with the number
    of its first row, and with the end of its last row.

    Raises `TooLargeError` for a row whose document exceeds the servers' limit.
    """
    sizes = np.ascontiguousarray(np.broadcast_to(np.asarray(document.sizes(), np.int64), (rows,)))
    if rows and int(sizes.max()) > DOCUMENT_BYTES_MAX:
        index = int(sizes.argmax())
        raise TooLargeError(index, int(sizes[index]))
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if rows else 0, np.uint8)
    document.write(out, ends - sizes)
    first = 0
    while first < rows:
        begin = int(ends[first] - sizes[first])
        end = max(first + 1, int(np.searchsorted(ends, begin + BATCH_BYTES_MAX, side="right")))
        yield out[begin : int(ends[end - 1])].tobytes(), first, end
        first = end


class TooLargeError(DataError):
    """The document of the row with the number `index` is larger than MongoDB accepts; it has `size` bytes."""

    cure = "Leave the large column out with a `[[transform]]`, or choose a target that has no such limit."

    def __init__(self, index: int, size: int) -> None:
        super().__init__(f"A row makes a document of {size} bytes, and MongoDB takes {DOCUMENT_BYTES_MAX}.")
        self.index = index
        self.size = size


def _sizes(name: np.ndarray, valid: np.ndarray, values: Any, missing: bool) -> Any:
    """Return the size of an element for each row, where its value has the size `values`."""
    head = 1 + len(name)
    return np.where(valid, values + head, 0 if missing else head)


def _name(name: str) -> np.ndarray:
    return np.frombuffer(name.encode() + b"\0", np.uint8)


def _words(form: BsonForm, column: Column, values: pa.Array) -> np.ndarray:
    if form is BsonForm.DOUBLE:
        doubles = pc.fill_null(values, 0.0).cast(pa.float64()).to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(doubles).view(np.int64)
    if form is BsonForm.BOOL:
        return _int64(values.cast(pa.int8()))
    if form is BsonForm.DAY:
        return _int64(values.cast(pa.int32())) * _DAY_MS
    words = _int64(values)
    if form is BsonForm.DATE:
        words, rest = np.divmod(words, 10 ** (6 - DATE_DIGITS))
        if rest.any():
            raise RowRefusedError(
                f"column {column.name} says of itself that it has {column.type.fsp} digits of a second, and has a "
                "value with microseconds, which a BSON date cannot hold. Round it in a [[transform]] "
                f"(date_trunc('MILLISECOND', {column.name}))."
            )
    return words


def _int64(values: pa.Array) -> np.ndarray:
    filled = pc.fill_null(values.cast(pa.int64()), 0)
    return np.ascontiguousarray(filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False))


def _decimals(form: BsonForm, values: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the low and high words of Decimal128 values, and a mask of the values that are written as int64.

    The format is IEEE 754-2008 with a binary integer significand: sign, exponent + 6176, and 113 bits of digits.
    """
    both = np.frombuffer(values.buffers()[1], np.uint64).reshape(-1, 2)[values.offset : values.offset + len(values)]
    low, high = both[:, 0].copy(), both[:, 1].copy()
    negative = (high >> np.uint64(63)) != 0
    small = (high == 0) & (low < np.uint64(1 << 63)) & (form is BsonForm.UINT64)
    low[negative] = ~low[negative] + np.uint64(1)
    high[negative] = ~high[negative] + (low[negative] == 0)
    scale = values.type.scale
    high |= np.uint64((6176 - scale) << 49)
    high |= negative.astype(np.uint64) << np.uint64(63)
    return low.view(np.int64), high.view(np.int64), np.ascontiguousarray(small)
