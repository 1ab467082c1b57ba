"""Keys of documents: their order at the server, and their form in the state.

BSON orders values of different types by their types first (MongoDB manual, "Comparison/Sort Order"). `sort_key` returns
values that Python compares and hashes in the same way; strings follow the simple collation, by their UTF-8 bytes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, assert_never

import bson
import numpy as np
import pyarrow as pa
from bson import json_util

from raycdc.connectors.mongodb.bson.documents import CANONICAL, PLAIN
from raycdc.connectors.mongodb.layout import ID, VALUE, CollectionLayout, subtype_of
from raycdc.errors import ProtocolError
from raycdc.model import LogicalType, TableId, TypeKind
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.key_intervals import ChunkKey, SortKey


@dataclass(frozen=True, slots=True)
class IdBound:
    """A bound in the index of `_id`: a value, which need not be the key of a document."""

    value: Any

    @property
    def index(self) -> tuple[tuple[str, int], ...]:
        return ((ID, 1),)

    def named(self) -> list[tuple[str, Any]]:
        """Return the value by its field; see `IndexBound.named`."""
        return [(ID, self.value)]


@dataclass(frozen=True, slots=True)
class IndexBound:
    """A bound in an index: the fields with their directions (1 or -1), and a value for each.

    Bounds that are compared differ only in fields of direction 1.
    """

    index: tuple[tuple[str, int], ...]
    values: tuple[Any, ...]

    def named(self) -> list[tuple[str, Any]]:
        """Return the values by their fields, as ``min`` and ``max`` of a query expect them."""
        return [(name, value) for (name, _), value in zip(self.index, self.values, strict=True)]


Bound = IdBound | IndexBound


def bound_to_json(bound: Bound) -> str:
    """Return a bound for messages and states, in canonical Extended JSON."""
    match bound:
        case IdBound(value):
            return key_to_json(value)
        case IndexBound(index, values):
            return json_util.dumps({"index": index, "values": values}, json_options=CANONICAL)
        case _:
            assert_never(bound)


def bound_from_json(text: str) -> Bound:
    """Return the inverse of `bound_to_json`."""
    document = json_util.loads(text, json_options=CANONICAL)
    if ID in document:
        return IdBound(document[ID])
    return IndexBound(tuple((name, int(order)) for name, order in document["index"]), tuple(document["values"]))


def key_to_json(key: Any) -> str:
    """Return a key as canonical Extended JSON of ``{"_id": key}``."""
    return json_util.dumps({ID: key}, json_options=CANONICAL)


def key_from_json(text: str) -> Any:
    """Return the inverse of `key_to_json`."""
    return json_util.loads(text, json_options=CANONICAL)[ID]


def sort_key(value: Any) -> SortKey:
    """Return the value's sort key in the order of BSON: a tuple that begins with the rank of its type."""
    for kind, index in _SORT_KEYS:
        if isinstance(value, kind):
            return index(value)
    raise ProtocolError(f"A key of {type(value).__name__} has no place in the order of BSON")


def _document(fields: Iterable[tuple[str, Any]]) -> tuple[Any, ...]:
    """Return the sort key of a document's fields, in their order: by type, then name, then value."""
    parts = []
    for name, value in fields:
        key = sort_key(value)
        parts.append((key[0], name.encode(), key))
    return tuple(parts)


def _number(value: float | bson.Decimal128) -> tuple[Any, ...]:
    """Return the sort key of a number: NaN is less than all other numbers, and numbers of all types compare by
    value.
    """
    number = value.to_decimal() if isinstance(value, bson.Decimal128) else value
    is_nan = number.is_nan() if isinstance(number, Decimal) else math.isnan(number)
    return (0, 0) if is_nan else (1, number)


def _code(value: bson.Code) -> SortKey:
    text = str(value).encode()
    return (13, text) if value.scope is None else (14, text, _document(value.scope.items()))


#: The function that makes a value's sort key, by the value's class. Subclasses come first.
_SORT_KEYS: tuple[tuple[Any, Callable[[Any], SortKey]], ...] = (
    (IdBound, lambda bound: sort_key(bound.value)),
    (IndexBound, lambda bound: tuple(sort_key(value) for value in bound.values)),
    (bson.MinKey, lambda _: (1,)),
    (type(None), lambda _: (2,)),
    (bool, lambda value: (9, value)),
    ((int, float, bson.Decimal128), lambda value: (3, *_number(value))),
    (bson.Code, _code),
    (str, lambda value: (4, value.encode("utf-8", "surrogatepass"))),
    (bson.DBRef, lambda value: (5, _document(value.as_doc().items()))),
    (Mapping, lambda value: (5, _document(value.items()))),
    (bson.Binary, lambda value: (7, len(value), value.subtype, bytes(value))),
    (bytes, lambda value: (7, len(value), 0, value)),
    (Sequence, lambda value: (6, tuple(sort_key(item) for item in value))),
    (bson.ObjectId, lambda value: (8, value.binary)),
    (bson.DatetimeMS, lambda value: (10, int(value))),
    (bson.Timestamp, lambda value: (11, value.time, value.inc)),
    (bson.Regex, lambda value: (12, str(value.pattern), int(value.flags))),
    (bson.MaxKey, lambda _: (127,)),
)


class SnapshotKeyOrder:
    """The key order of a snapshot without a log, which compares no keys of rows because no row is held."""

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None:
        """Do nothing, because no table is remembered."""

    def forget(self, table: TableId) -> None:
        """Do nothing, because no table is remembered."""

    def bound(self, table: TableId, raw: Any) -> SortKey:
        return sort_key(bound_from_json(raw))

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[SortKey]) -> np.ndarray:
        raise ProtocolError(f"{table} has a row of a log, and its source follows none")


class StreamKeyOrder:
    """The key order of collections that are followed while they are read.

    A key has the form of its column, and is compared as BSON. A column holds its keys exactly, so the layout determines
    the type of each. Relaxed JSON may have turned an int into a long, which is the same key.
    """

    def __init__(self, layouts: Mapping[TableId, CollectionLayout]) -> None:
        self._types = {table: layout.columns[0].type for table, layout in layouts.items()}

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None:
        self._types[table] = CollectionLayout.from_document(document).columns[0].type

    def forget(self, table: TableId) -> None:
        """Do nothing: the remembered type of a key is small."""

    def bound(self, table: TableId, raw: Any) -> SortKey:
        return sort_key(bound_from_json(raw))

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[SortKey]) -> np.ndarray:
        """Return the chunk of each key; see `KeyOrder.classify`.

        Each distinct key is classified once; no key is NULL.
        """
        if not bounds:
            return np.zeros(len(keys), np.int64)
        logical = self._types[table]
        if logical.kind in (TypeKind.INT32, TypeKind.INT64) and (cuts := _whole_cuts(bounds)) is not None:
            found: np.ndarray = np.searchsorted(cuts, keys.to_numpy(zero_copy_only=False), side="right")
            return found.astype(np.int64, copy=False)
        encoded = keys.dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        cells = [bisect_right(bounds, sort_key(as_bson(value, logical))) for value in distinct]
        each: np.ndarray = np.array(cells, np.int64)[encoded.indices.to_numpy()]
        return each


def _whole_cuts(bounds: Sequence[SortKey]) -> np.ndarray | None:
    """Return the bounds as whole numbers, or None if a bound is not a whole number."""
    values = [bound[2] for bound in bounds if bound[:2] == (3, 1) and isinstance(bound[2], int)]
    return np.array(values, np.int64) if len(values) == len(bounds) else None


def as_bson(value: Any, logical: LogicalType) -> Any:
    """Return the BSON key of a column's value."""
    match logical.native:
        case "objectId":
            return bson.ObjectId(value)
        case VALUE.native:
            body = value[:1] + ID.encode() + b"\0" + value[1:]
            return bson.decode((len(body) + 5).to_bytes(4, "little") + body + b"\0", PLAIN)[ID]
        case "uuid" | "binData(4)" if logical.kind is TypeKind.STRING:
            return bson.Binary(bytes.fromhex(value.replace("-", "")), bson.binary.UUID_SUBTYPE)
        case "decimal128":
            return bson.Decimal128(value)
        case "date" | "day":
            return bson.DatetimeMS(_millis(value))
        case "json":
            return json_util.loads(f'{{"{ID}": {value}}}', json_options=CANONICAL)[ID]
        case _ if logical.kind is TypeKind.BINARY:
            return bson.Binary(value, subtype_of(logical))
        case _ if logical.kind is TypeKind.DECIMAL:
            return bson.Decimal128(value)
        case _:
            return value


def _millis(value: Any) -> int:
    """Return a day or a moment as Unix milliseconds."""
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    since: timedelta = value - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
