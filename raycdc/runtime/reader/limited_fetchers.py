"""Fetchers that keep the source's rate limit: they wait before a fetch until the earlier ones are within the limit.

A log's fetcher waits for at most `TURN_S`, and then returns to its thread without a fetch, so that the thread notices
changes of its splits, or that it is to end. Meanwhile its connection is not read. A chunk's fetcher waits in the middle
of the chunk until it may fetch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import pyarrow as pa

from raycdc.core.activity import resting
from raycdc.errors import SourceError
from raycdc.model.rules.rate_limit import RateLimit
from raycdc.runtime.reader.heartbeats import Stopwatch
from raycdc.source.protocol.rate_budget import Lane, RateDemand
from raycdc.source.reader.reader_quota import ReaderRateLimiter
from raycdc.source.reader.split_reader import FetchedSplit, RecordsWithSplitIds, SplitReader, SplitsChange
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.reader.reading import ChunkReader, HighWatermark
from raycdc.source.split import OpenedAt, SnapshotSplit

ItemT = TypeVar("ItemT")
SplitT = TypeVar("SplitT", bound=FetchedSplit)

#: The longest time that a thread waits for the rate limit before it checks for other work.
TURN_S = 0.1


class ProcessRateLimiter:
    """A `ReaderRateLimiter` for the threads of a reader's process. Any thread may call every method."""

    def __init__(self, rate_limit: RateLimit, stopwatch: Stopwatch, *, reached_s: Callable[[], float]) -> None:
        """Create the limiter. `reached_s` returns the start of the newest call that the coordinator has answered."""
        self._core = ReaderRateLimiter(rate_limit, time.monotonic)
        self._rate_limit = rate_limit
        self._stopwatch = stopwatch
        self._reached_s = reached_s
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"ProcessRateLimiter({self._core!r})"

    def grant(self, number: int, quotas: Mapping[str, int], lease_s: float) -> None:
        """Apply these quotas from now on."""
        with self._changed:
            self._core.reached(self._reached_s())
            self._core.grant(number, quotas, lease_s)
            self._changed.notify_all()

    def demand(self) -> RateDemand:
        """Return the figures for the coordinator."""
        with self._changed:
            return self._core.demand()

    def wait(self, lane: Lane) -> bool:
        """Wait until the lane may fetch, but no longer than `TURN_S`. Return True if it may fetch."""
        with self._changed:
            self._core.reached(self._reached_s())
            wait_s = self._core.free_in_s(lane)
            if wait_s <= 0:
                return True
            began_s = time.monotonic()
            with self._stopwatch.running("rate_limited"):
                self._changed.wait(min(wait_s, TURN_S))
            self._core.held(lane, time.monotonic() - began_s)
            self._core.reached(self._reached_s())
            return self._core.free_in_s(lane) <= 0

    def fetched(self, lane: Lane, *, rows: int | None, size: int) -> None:
        """Count a fetch of `rows` (None: unknown) and `size` bytes."""
        if rows is None and self._rate_limit.rows_per_s is not None:
            raise SourceError(
                "source.rows_per_second: this source does not say how many rows its fetches bring. Use "
                "source.bytes_per_second, or have its reader name them (RecordsWithSplitIds.rows)."
            )
        with self._changed:
            self._core.fetched(lane, rows=rows or 0, size=size)


class RateLimitedSplits(Generic[SplitT, ItemT]):
    """A `SplitReader` that keeps the rate limit."""

    def __init__(self, reader: SplitReader[SplitT, ItemT], gate: ProcessRateLimiter) -> None:
        self._reader = reader
        self._gate = gate

    def fetch(self) -> RecordsWithSplitIds[ItemT] | None:
        if not self._gate.wait(Lane.LOG):
            return None
        fetch = self._reader.fetch()
        if fetch is not None:
            self._gate.fetched(Lane.LOG, rows=fetch.rows, size=fetch.bytes)
        return fetch

    def handle_splits_changes(self, change: SplitsChange[SplitT]) -> None:
        self._reader.handle_splits_changes(change)

    def wake_up(self) -> None:
        self._reader.wake_up()

    def close(self) -> None:
        self._reader.close()


class RateLimitedChunks:
    """A `ChunkReader` that keeps the rate limit."""

    def __init__(self, reader: ChunkReader, gate: ProcessRateLimiter) -> None:
        self._reader = reader
        self._gate = gate
        self._woken = threading.Event()

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        self._wait()
        for batch in self._reader.read(split, opened_at=opened_at, document=document):
            self._gate.fetched(Lane.CHUNKS, rows=batch.num_rows, size=batch.nbytes)
            yield batch
            self._wait()

    def high_watermark(self) -> HighWatermark:
        return self._reader.high_watermark()

    def log_end(self, opened_at: OpenedAt) -> HighWatermark:
        return self._reader.log_end(opened_at)

    def wake_up(self) -> None:
        self._woken.set()
        self._reader.wake_up()

    def close(self) -> None:
        self._reader.close()

    def _wait(self) -> None:
        with resting():
            while not self._woken.is_set() and not self._gate.wait(Lane.CHUNKS):
                continue


def gate_of(
    rate_limit: RateLimit, stopwatch: Stopwatch, *, reached_s: Callable[[], float]
) -> ProcessRateLimiter | None:
    """Return the rate limiter of a reader; None if the source has no rate limit."""
    return ProcessRateLimiter(rate_limit, stopwatch, reached_s=reached_s) if rate_limit else None
