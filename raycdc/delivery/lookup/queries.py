"""Queries a dimension in batches of keys, several requests at a time, with retries; and caches recent results.

A dimension (`Dimension`) is a store that returns documents by keys, such as `raycdc.delivery.lookup.mongodb`.

The cache has documents, and also the keys for which no document was found. Its age, keys and bytes are limited. The
cache is columnar, so one hash join finds the requested keys that are cached.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.core.retry import SPACING_S, Backoff, RetryPolicy
from raycdc.core.stopping import StopRequest
from raycdc.errors import RaycdcError, RowRefusedError

#: The column of a result that has the key.
KEY = "_raycdc_key"

_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_OBJECT_ID = "^[0-9a-f]{24}$"
_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_FOUND = "_raycdc_found"
_SINCE = "_raycdc_since"
#: The most bytes of one cache. Documents may have 16 MiB each, and Arrow's text columns are limited to 2 GiB.
CACHE_BYTES_MAX = 256 << 20
#: The pauses between attempts; the user sets the number of attempts.
POLICY = RetryPolicy(longest_s=30.0, retry_s=float("inf"))
#: The most bytes of keys in one request. A message may have 48 MB, and a document 16 MiB.
REQUEST_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The documents found for keys.

    `documents` has the column `KEY` with distinct keys, followed by the columns of the lookup in the lookup's order.
    `lost` is the number of values that are NULL because they do not fit their column.
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
            try:
                return _longs(column)
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


def _longs(column: pa.Array) -> pa.Array:
    """Return whole numbers as int64; NULL for numbers beyond its range, such as BIGINT UNSIGNED has."""
    if not (pa.types.is_decimal(column.type) or column.type == pa.uint64()):
        return column.cast(pa.int64())
    # A decimal of 19 digits can be compared with both bounds.
    wide = column if column.type == pa.uint64() else column.cast(pa.decimal128(38, 0))
    fits = pc.less_equal(wide, pa.scalar(_LONG_MAX).cast(wide.type))
    if pa.types.is_decimal(column.type):
        fits = pc.and_(fits, pc.greater_equal(wide, pa.scalar(_LONG_MIN).cast(wide.type)))
    return pc.if_else(fits, wide, pa.scalar(None, wide.type)).cast(pa.int64())


class Cache:
    """A thread-safe cache of the newest `rows_max` keys and `bytes_max` bytes.

    Each entry is used for `ttl_s` from the start of its query, so no result is older than that.
    """

    def __init__(
        self,
        *,
        rows_max: int,
        ttl_s: float,
        bytes_max: int = CACHE_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        #: The entries, the oldest first. The table is never changed in place.
        self._entries: pa.Table | None = None

    def __repr__(self) -> str:
        return f"Cache({0 if self._entries is None else self._entries.num_rows} of {self._rows_max} keys)"

    def known(self, keys: pa.Array) -> tuple[pa.Table | None, pa.Array]:
        """Return the cached documents of `keys`, and the keys that are not cached.

        A key that is cached without a document is in neither of the two.
        """
        entries = self._fresh(self._entries)
        if entries is None or not entries.num_rows:
            return None, keys
        indexes = pc.index_in(keys, value_set=entries.column(KEY).combine_chunks())
        hits = entries.take(indexes.drop_null())
        documents = hits.filter(hits.column(_FOUND)).drop_columns([_FOUND, _SINCE])
        return documents, keys.filter(indexes.is_null())

    def add(self, asked: pa.Array, documents: pa.Table, *, since: float) -> None:
        """Add a result: `documents` are all that exist for the keys `asked`, at some time after `since`."""
        indexes = pc.index_in(asked, value_set=documents.column(KEY).combine_chunks())
        added = documents.take(indexes).set_column(documents.schema.get_field_index(KEY), KEY, asked)
        added = added.append_column(_FOUND, indexes.is_valid())
        added = added.append_column(_SINCE, pa.array(np.full(len(asked), since)))
        with self._lock:
            entries = self._fresh(self._entries)
            if entries is not None:
                older = pc.is_in(entries.column(KEY), value_set=asked)
                added = pa.concat_tables([entries.filter(pc.invert(older)), added])
            self._entries = self._newest(added).combine_chunks()

    def _newest(self, entries: pa.Table) -> pa.Table:
        entries = entries.slice(max(0, entries.num_rows - self._rows_max))
        while entries.nbytes > self._bytes_max:
            # Keep as many of the newest entries as fit by the mean size of all entries. The newest ones may be larger
            # than the mean, so their size is checked again.
            entries = entries.slice(entries.num_rows - entries.num_rows * self._bytes_max // entries.nbytes)
        return entries

    def _fresh(self, entries: pa.Table | None) -> pa.Table | None:
        if entries is None:
            return None
        return entries.filter(pc.greater(entries.column(_SINCE), self.clock() - self._ttl_s))


@dataclass(slots=True)
class LookupQuery:
    """The queries of one lookup with keys of one type. Thread-safe.

    `requests` is a pool whose size limits the concurrent requests of all threads together. `stopping` ends waits for
    retries. `cache` is None if results are not cached.
    """

    dimension: Dimension
    batch: int
    requests: ThreadPoolExecutor
    retries: int
    retry_wait_s: float
    cache: Cache | None = None
    stopping: StopRequest = field(default_factory=StopRequest)

    def answer(self, keys: pa.Array) -> LookupResult:
        """Return the documents of `keys`, which are distinct and not NULL.

        Blocks; raises the errors of `Dimension.fetch`.
        """
        known, rest = (None, keys) if self.cache is None else self.cache.known(keys)
        pending = [self.requests.submit(self._asked, part) for part in self._parts(rest)]
        try:
            answers = [future.result() for future in pending]
        finally:
            for future in pending:
                future.cancel()
        documents = [one.documents for one in answers]
        if known is not None:
            documents.append(known)
        if not documents:
            documents = [self.dimension.fetch(keys).documents]  # Without keys, the result only has the columns.
        return LookupResult(pa.concat_tables(documents), sum(one.lost for one in answers))

    def close(self) -> None:
        """End waiting for retries, and close connections."""
        self.stopping.set()
        self.dimension.close()

    def _parts(self, keys: pa.Array) -> Iterator[pa.Array]:
        if not len(keys):
            return
        by_bytes = REQUEST_BYTES_MAX * len(keys) // max(keys.nbytes, 1)
        step = max(1, min(self.batch, by_bytes))
        for start in range(0, len(keys), step):
            yield keys.slice(start, step)

    def _asked(self, keys: pa.Array) -> LookupResult:
        """Send one request, with retries, and return its result. Runs on a thread of `requests`."""
        pauses = Backoff(replace(POLICY, first_s=max(self.retry_wait_s, SPACING_S)))
        for attempt in range(self.retries + 1):
            since = 0.0 if self.cache is None else self.cache.clock()
            try:
                answer = self.dimension.fetch(keys)
            except RaycdcError as error:
                if not error.retryable or attempt == self.retries:
                    raise
                pause_s = pauses.failed(time.monotonic())
                if pause_s is None or self.stopping.pause(pause_s):
                    raise
                continue
            if self.cache is not None:
                self.cache.add(keys, answer.documents, since=since)
            return answer
        raise AssertionError("unreachable: the last attempt returns or raises")
