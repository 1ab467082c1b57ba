"""The interface of a dimension: a store that answers keys with documents, such as `raycdc.delivery.lookup.mongodb`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import RowRefusedError

#: The column of an answer that has the key.
KEY = "_raycdc_key"

_LONG_MAX = pa.scalar((1 << 63) - 1, pa.uint64())
_OBJECT_ID = "^[0-9a-f]{24}$"
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Documents by their `KEY`, which no two share, with the columns of the lookup in its order; how many of their
    values are NULL because no column could hold them.
    """

    documents: pa.Table
    lost: int = 0


class Dimension(Protocol):
    """Safe to call from several threads. Holds connections, so it stays in the process that made it."""

    def require(self) -> str:
        """Refuse early what could not work, and return what to warn of, if anything. Raises `SourceError`."""

    def fetch(self, keys: pa.Array) -> LookupResult:
        """The documents of `keys`, which are distinct and `canonical`; those without one are not in the answer.

        Blocks. Raises a `RaycdcError`, `retryable` where the same may work later.
        """

    def close(self) -> None:
        """Let go of connections."""


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
            except pa.ArrowException:  # no type that is resolved as long is wider
                raise RowRefusedError(f"{key_path}: a key is no whole number") from None
        case "objectId" | "uuid":
            lowered = pc.utf8_lower(column)
            fits = pc.match_substring_regex(lowered, _OBJECT_ID if key_type == "objectId" else _UUID)
            return pc.if_else(fits, lowered, pa.scalar(None, lowered.type))
        case "string":
            return column.cast(pa.string())
        case _:
            return column.cast(pa.binary())
