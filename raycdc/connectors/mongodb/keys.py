"""Keys of documents: their order at the server, and how state writes them.

BSON orders values of different types by their types first (MongoDB manual, "Comparison/Sort Order"). `sort_key` gives
values that Python compares and hashes alike; strings as the simple collation has them, by their UTF-8 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import bson
import numpy as np
import pyarrow as pa
from bson import json_util
from bson.json_util import JSONMode, JSONOptions

from raycdc.connectors.mongodb.layout import ID
from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.intervals import SortKey
from raycdc.source.split import ChunkKey

_CANONICAL: JSONOptions = JSONOptions(
    json_mode=JSONMode.CANONICAL, datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_MS
)


def key_to_json(value: Any) -> str:
    """A key as messages and state hold it: canonical Extended JSON of ``{"_id": key}``."""
    return json_util.dumps({ID: value}, json_options=_CANONICAL)


def key_from_json(text: str) -> Any:
    """Inverse of `key_to_json`."""
    return json_util.loads(text, json_options=_CANONICAL)[ID]


def sort_key(value: Any) -> SortKey:
    """The value's place in the order of BSON, as a tuple that begins with the rank of its type."""
    for kind, place in _PLACES:
        if isinstance(value, kind):
            return place(value)
    raise ProtocolError(f"A key of {type(value).__name__} has no place in the order of BSON")


def _document(document: Mapping[str, Any]) -> tuple[Any, ...]:
    """Fields in their order: by type, then name, then value."""
    parts = []
    for name, value in document.items():
        key = sort_key(value)
        parts.append((key[0], name.encode(), key))
    return tuple(parts)


def _number(value: float | bson.Decimal128) -> tuple[Any, ...]:
    """NaN is less than all other numbers; those of different types compare by their values."""
    number = value.to_decimal() if isinstance(value, bson.Decimal128) else value
    is_nan = number.is_nan() if isinstance(number, Decimal) else math.isnan(number)
    return (0, 0) if is_nan else (1, number)


def _code(value: bson.Code) -> SortKey:
    text = str(value).encode()
    return (13, text) if value.scope is None else (14, text, _document(value.scope))


#: By class, those that are kinds of others first.
_PLACES: tuple[tuple[Any, Callable[[Any], SortKey]], ...] = (
    (bson.MinKey, lambda _: (1,)),
    (type(None), lambda _: (2,)),
    (bool, lambda value: (9, value)),
    ((int, float, bson.Decimal128), lambda value: (3, *_number(value))),
    (bson.Code, _code),
    (str, lambda value: (4, value.encode("utf-8", "surrogatepass"))),
    (bson.DBRef, lambda value: (5, _document(value.as_doc()))),
    (Mapping, lambda value: (5, _document(value))),
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
    """`raycdc.source.hand_off.KeyOrder` of a snapshot without a log: bounds only, as no row is ever held."""

    def use(self, table: TableId, key: ChunkKey | None, document: dict[str, Any]) -> None:
        """Nothing is remembered of a table."""

    def forget(self, table: TableId) -> None:
        """As there is nothing to forget."""

    def bound(self, table: TableId, raw: Any) -> SortKey:
        return sort_key(key_from_json(raw))

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[SortKey]) -> np.ndarray:
        raise ProtocolError(f"{table} has a row of a log, and its source follows none")
