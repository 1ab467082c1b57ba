"""Asking a dimension: keys in batches, some requests at once, again after a pause where that may help."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa

from raycdc.errors import RaycdcError
from raycdc.lookup.api import Answer, Dimension
from raycdc.lookup.cache import Cache
from raycdc.waiting.patience import SPACING_S, Pauses, Policy

#: The longest pause between two attempts; their number is the user's.
POLICY = Policy(longest_s=30.0, patience_s=float("inf"))
#: Bytes of keys in one request: a message takes 48 MB, and one document 16 MiB.
REQUEST_BYTES_MAX = 4 << 20


@dataclass(slots=True)
class Asking:
    """One lookup with keys of one type. Safe to use from several threads: `requests` bounds what they have under way
    together. `cache` is None where every key is asked for anew.
    """

    dimension: Dimension
    batch: int
    requests: ThreadPoolExecutor
    retries: int
    retry_wait_s: float
    cache: Cache | None = None
    _closed: threading.Event = field(default_factory=threading.Event)

    def answer(self, keys: pa.Array) -> Answer:
        """The documents of `keys`, which are distinct and without NULL. Blocks; raises what `Dimension.fetch` does."""
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
            documents = [self.dimension.fetch(keys).documents]  # no keys: the columns alone
        return Answer(pa.concat_tables(documents), sum(one.lost for one in answers))

    def close(self) -> None:
        """End the pauses, and let go of connections."""
        self._closed.set()
        self.dimension.close()

    def _parts(self, keys: pa.Array) -> Iterator[pa.Array]:
        if not len(keys):
            return
        by_bytes = REQUEST_BYTES_MAX * len(keys) // max(keys.nbytes, 1)
        step = max(1, min(self.batch, by_bytes))
        for start in range(0, len(keys), step):
            yield keys.slice(start, step)

    def _asked(self, keys: pa.Array) -> Answer:
        """The answer to one request. On a thread of `requests`."""
        pauses = Pauses(replace(POLICY, first_s=max(self.retry_wait_s, SPACING_S)))
        for attempt in range(self.retries + 1):
            since = 0.0 if self.cache is None else self.cache.clock()
            try:
                answer = self.dimension.fetch(keys)
            except RaycdcError as error:
                if not error.retryable or attempt == self.retries:
                    raise
                pause_s = pauses.failed(time.monotonic())
                if pause_s is None or self._closed.wait(pause_s):
                    raise
                continue
            if self.cache is not None:
                self.cache.add(keys, answer.documents, since=since)
            return answer
        raise AssertionError("unreachable: the last attempt returns or raises")
