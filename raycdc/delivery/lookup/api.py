"""The interface of a dimension: a store that returns documents by keys, such as `raycdc.delivery.lookup.mongodb`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import RowRefusedError

#: The column of a result that has the key.
KEY = "_raycdc_key"

_LONG_MAX = pa.scalar((1 << 63) - 1, pa.uint64())
_OBJECT_ID = "^[0-9a-f]{24}$"
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The documents found for keys.

    `documents` has the column `KEY` with distinct keys, followed by the lookup's columns in its order. `lost` is the
    number of values that are NULL because they do not fit their column.
    """

    documents: pa.Table
    lost: int = 0


class Dimension(Protocol):
    """A store of documents. Thread-safe. It holds connections, so it stays in the process that created it."""

    def require(self) -> str:
        """Check that the dimension can be queried. Return a warning, or an empty text. Raises `SourceError`."""

    def fetch(self, keys: pa.Array) -> LookupResult:
        """Return the documents of `keys`, which are distinct and `canonical`. Keys without a document are missing in
        the result.

        Blocks. Raises a `RaycdcError` that is `retryable` if the same call may succeed later.
        """

    def close(self) -> None:
        """Close connections."""


def canonical(column: pa.Array, key_type: str, *, key_path: str) -> pa.Array:
    """Return a row column's values in the form of document keys; NULL for values that no document key can equal.

    Integers become int64, texts stay texts (lower case for an objectId or a uuid), bytes stay bytes.
    """
    match key_type:
        case "long":
            if column.type == pa.uint64():
                column = pc.if_else(pc.less_equal(column, _LONG_MAX), column, pa.scalar(None, column.type))
            try:
                return column.cast(pa.int64())
            except pa.ArrowException:  # Not reached, because columns of wider types are not resolved as long.
                raise RowRefusedError(f"{key_path}: a key is no whole number") from None
        case "objectId" | "uuid":
            lowered = pc.utf8_lower(column)
            fits = pc.match_substring_regex(lowered, _OBJECT_ID if key_type == "objectId" else _UUID)
            return pc.if_else(fits, lowered, pa.scalar(None, lowered.type))
        case "string":
            return column.cast(pa.string())
        case _:
            return column.cast(pa.binary())
