"""Decodes raw BSON into Arrow: calls the compiled loops, enlarges their buffers, and explains values that do not fit.

One decoder reads the documents of one collection in one layout. The server's bytes are not trusted: a damaged batch is
a `DataError` after the rows before the damage, in time and memory bounded by its size.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mongodb.bson import code_loops as codes
from raycdc.connectors.mongodb.bson.event_loops import document_rows
from raycdc.connectors.mongodb.bson.walk_loops import FieldArrays, decode, enter
from raycdc.connectors.mongodb.layout import FIELDS, ID, VALUE, CollectionLayout, OnTypeMismatch, Spelling, subtype_of
from raycdc.errors import DataError
from raycdc.formats.decoding.arena import Arena, WireColumn
from raycdc.model import LogicalType, TypeKind, with_lost_values
from raycdc.model.batch import BATCH_ROWS_MAX

#: The size of a batch is checked each time this many bytes of BSON were decoded, because their text may be many times
#: as long.
WINDOW_BYTES = 1 << 20
#: A batch ends when its columns have this many bytes. Together with one more window, it stays near the limit of
#: `BATCH_BYTES_MAX`.
BATCH_BYTES = 6 << 20
_GUESSES = 256
_RESTS_FIRST = 256
#: The number of slots for names with types (half of them are used), and of the names reported in one call.
_MET_SLOTS = 2048
_FRESH_MAX = 64

_TEXT_WIRES = {"objectId": codes.AS_OBJECT_ID, "binData(4)": codes.AS_UUID, "decimal128": codes.AS_DECIMAL128}
#: Schema documents of earlier versions use this name.
_TEXT_WIRES["uuid"] = codes.AS_UUID
_BYTES_WIRES = {VALUE.native: codes.AS_VALUE, FIELDS.native: codes.AS_FIELDS}
_MISMATCH_CODES = {
    OnTypeMismatch.FAIL: codes.ON_MISMATCH_FAIL,
    OnTypeMismatch.NULL: codes.ON_MISMATCH_NULL,
    OnTypeMismatch.REST: codes.ON_MISMATCH_REST,
}
#: The names of element types, as in ``$type`` of the server's query language.
TYPE_NAMES = {
    1: "double",
    2: "string",
    3: "object",
    4: "array",
    5: "binData",
    6: "undefined",
    7: "objectId",
    8: "bool",
    9: "date",
    10: "null",
    11: "regex",
    12: "dbPointer",
    13: "javascript",
    14: "symbol",
    15: "javascriptWithScope",
    16: "int",
    17: "timestamp",
    18: "long",
    19: "decimal",
    127: "maxKey",
    255: "minKey",
}


class DocumentDecoder:
    """The decoder of one collection; see the module's docstring. One thread at a time.

    `collection`, and the `section` of the configuration with its columns, are for messages.
    """

    def __init__(
        self, layout: CollectionLayout, *, collection: str, section: str = "source", watched: bool = False
    ) -> None:
        """Prepare the buffers. If `watched` is set, `met` returns the elements without a column."""
        self._layout = layout
        self._collection = collection
        self._section = section
        self._schema = layout.schema().arrow()
        self._arena = Arena([_wire_column(c.name, c.type, layout.json) for c in layout.columns])
        own = {column.name for column in layout.fields}
        names = [c.name.encode() if c.name in own else None for c in layout.columns]
        self._fields = fields_of(names, len(layout.columns), others=layout.overflow_at(), watched=watched)
        whole = len(layout.columns) - 1 if layout.whole else -1
        self._how = (0, whole, layout.rest_at, _MISMATCH_CODES[layout.on_type_mismatch])

    def __repr__(self) -> str:
        return f"DocumentDecoder({self._collection}, rows={self._arena.rows})"

    def decode(self, documents: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of concatenated documents, in batches that own their memory.

        Rows that fill no batch stay here until `flush`, or the next call. Raises `DataError`.
        """
        data = np.frombuffer(documents, np.uint8)
        at, size = 0, len(data)
        while at < size:
            status = int(decode(data, at, min(at + WINDOW_BYTES, size), self._fields, self._arena.view, *self._how))
            at = int(self._fields.state[codes.AT])
            yield from self._after(status, documents, at)

    def decode_at(self, documents: bytes, indexes: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the documents at `indexes`, in that order, and keep none back.

        A negative index is the offset of a document with only a key (see
        `raycdc.connectors.mongodb.bson.event_loops.document_rows`). Raises `DataError`.
        """
        data = np.frombuffer(documents, np.uint8)
        sizes = np.array([data[np.abs(indexes) + i].astype(np.int64) << (8 * i) for i in range(4)]).sum(axis=0)
        ends = np.cumsum(sizes)
        at = 0
        while at < len(indexes):
            before = int(ends[at - 1]) if at else 0
            stop = max(at + 1, int(np.searchsorted(ends, before + WINDOW_BYTES)))
            view = self._arena.view
            status = int(document_rows(data, indexes, at, stop, self._fields, view, *self._how))
            at = int(self._fields.state[codes.AT])
            yield from self._after(status, documents, abs(int(indexes[min(at, len(indexes) - 1)])))
        yield from self.flush()

    def _after(self, status: int, documents: bytes, at: int) -> Iterator[pa.RecordBatch]:
        """Provide what the loops lack, or yield a full batch, so that they can continue.

        `status` is why they stopped; `at` is the offset of the document at which they stopped.
        """
        match status:
            case codes.DONE:
                if self._bytes() >= BATCH_BYTES:
                    yield self._take()
            case codes.ROWS_FULL if self._arena.rows < BATCH_ROWS_MAX:
                self._arena.grow_rows(min(4 * self._arena.rows, BATCH_ROWS_MAX))
            case codes.ROWS_FULL:
                yield self._take()
            case codes.TEXT_FULL:
                self._arena.grow_text()
            case codes.REST_FULL:
                room = np.zeros(4 * len(self._fields.rest), np.int64)
                self._fields = self._fields._replace(rest=room)
            case _:
                yield from self.flush()
                raise self._error(documents, at)

    def met(self, documents: bytes) -> list[bytes]:
        """Return elements without a column in the last decoded `documents`: one of each name and type.

        Each element is returned only once. The decoder returns at most a thousand elements in all, to bound their
        number.
        """
        count = int(self._fields.state[codes.FRESH])
        self._fields.state[codes.FRESH] = 0
        return [documents[first:last] for first, last in self._fields.fresh[:count].tolist()]

    @property
    def met_all(self) -> bool:
        """Return True if the limit of elements without a column is reached."""
        return 2 * int(self._fields.state[codes.MET]) >= len(self._fields.met)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the undelivered rows, if there are any."""
        if self._arena.rows:
            yield self._take()

    def _bytes(self) -> int:
        return self._arena.text_bytes + 8 * len(self._layout.columns) * self._arena.rows

    def _take(self) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_arrays(self._arena.take(), schema=self._schema)
        lost = int(self._fields.state[codes.LOST])
        self._fields.state[codes.LOST] = 0
        return with_lost_values(batch, lost) if lost else batch

    def _key_fix(self, name: str) -> str:
        """Return the advice for a key that its column cannot hold: a configuration that lists all wanted columns."""
        types = {column.name: _named(column.type) for column in self._layout.fields} | {name: "json"}
        shown = list(types.items())[:_COLUMNS_SHOWN]
        listed = ", ".join(f"{_toml(column)} = {_toml(text)}" for column, text in shown)
        more = ", …" if len(types) > len(shown) else ""
        return (
            f'It is the key, which cannot be left out: have {self._section}.columns give it the type "json", and name '
            f"every other field that is wanted there, because fields that are not listed are left out: "
            f"{_toml(self._collection)} = {{ {listed}{more} }}"
        )

    def _error(self, documents: bytes, at: int) -> DataError:
        """Return the error for the value at which the loops stopped, in the document at `at`."""
        state = self._fields.state
        code, kind, column = (int(state[i]) for i in (codes.CODE_AT, codes.ELEMENT_TYPE, codes.FAILED_COLUMN))
        if code == codes.DAMAGED:
            return DataError(
                f"{self._collection}: what the server sent is no BSON at byte {at} of a batch of {len(documents)}. "
                "Read it again; if that repeats, validate the collection at the server."
            )
        where = f"{self._collection}: a document"
        if column < 0 or self._layout.columns[column].name not in {c.name for c in self._layout.fields}:
            what = "text that is not UTF-8" if code == codes.BAD_UTF8 else "documents nested too deep"
            return DataError(f"{where} has {what}. Correct it at the source, or leave its field out.")
        name, logical = self._layout.columns[column].name, self._layout.columns[column].type
        problem = {
            codes.MISMATCH: f"is of type {_type_name(kind)}",
            codes.OUT_OF_RANGE: "is beyond its range",
            codes.INEXACT: "cannot be written exactly",
            codes.BAD_UTF8: "has text that is not UTF-8",
            codes.TOO_DEEP: f"is nested deeper than {codes.DEPTH_MAX} levels",
            codes.TWICE: "is there twice",
            codes.MISSING: "is missing",
        }[code]
        apart = 'keep such values apart with source.on_type_mismatch = "rest"'
        if self._section != "source":
            apart = f'let such values be NULL with {self._section}.on_type_mismatch = "null"'
        fix = f'Give it another type in {self._section}.columns ("json" takes everything), or {apart}.'
        if column == 0:
            fix = self._key_fix(name)
        if code == codes.MISMATCH and kind in TYPE_NAMES:
            problem += f' (find such documents with {{"{name}": {{"$type": "{TYPE_NAMES[kind]}"}}}})'
        return DataError(f"{where}: {name}, a column of type {logical.native}, {problem}. {fix}")


#: The number of columns that a message lists at most.
_COLUMNS_SHOWN = 50


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _named(logical: LogicalType) -> str:
    """Return the type's name in the configuration."""
    return "uuid" if logical.kind is TypeKind.STRING and logical.native == "binData(4)" else logical.native


def _wire_column(name: str, logical: LogicalType, spelling: Spelling) -> WireColumn:
    match logical.kind:
        case TypeKind.JSON:
            wire = codes.CANONICAL if spelling is Spelling.CANONICAL else codes.RELAXED
            wire |= codes.AS_KEY if name == ID else 0
        case TypeKind.BINARY:
            wire = _BYTES_WIRES.get(logical.native, subtype_of(logical))
        case TypeKind.STRING:
            wire = _TEXT_WIRES.get(logical.native, codes.AS_STRING)
        case _:
            wire = 0
    return WireColumn(name, logical, wire)


def fields_of(
    names: Sequence[bytes | None], columns: int, *, others: Sequence[int] = (), watched: bool = False
) -> FieldArrays:
    """Return the table from field names to columns.

    `names` are the fields of the first columns; None for a column without a field. `others` are `FieldArrays.others` of
    these columns.
    """
    lengths = np.array([-1 if name is None else len(name) for name in names], np.int64)
    taken = np.maximum(lengths, 0)
    spans = np.full((columns, 2), -1, np.int64)
    spans[: len(names), 0] = np.cumsum(taken) - taken
    spans[: len(names), 1] = lengths
    aside = np.full(columns, -1, np.int64)
    aside[: len(others)] = others
    indexes = 1 << (4 * columns).bit_length()
    found = FieldArrays(
        names=_bytes(b"".join(filter(None, names))),
        spans=spans,
        table=np.full(indexes, -1, np.int64),
        guess=np.full(_GUESSES, -1, np.int64),
        seen=np.zeros(columns, np.int64),
        rest=np.zeros(_RESTS_FIRST, np.int64),
        others=aside,
        met=np.full(_MET_SLOTS if watched else 0, -1, np.int64),
        fresh=np.zeros((_FRESH_MAX, 2), np.int64),
        stack=np.zeros((codes.DEPTH_MAX, 2), np.int64),
        scratch=np.zeros(128, np.uint8),
        state=np.zeros(codes.STATE_SIZE, np.int64),
    )
    enter(found)
    return found


def _bytes(text: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text + b"\0", np.uint8).copy()


def _type_name(kind: int) -> str:
    return TYPE_NAMES.get(kind, f"0x{kind:02x}")
