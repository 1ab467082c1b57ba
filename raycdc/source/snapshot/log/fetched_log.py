"""The log as the reader sees it: one fetcher thread connects and reads the stream split sequentially."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import assert_never

from raycdc.source.reader.fetcher_manager import Sequential
from raycdc.source.reader.source_reader_base import FetcherThreads
from raycdc.source.reader.split_reader import (
    RecordsWithSplitIds,
    SplitRecords,
    SplitsAddition,
    SplitsChange,
    SplitsPause,
    SplitsRemoval,
)
from raycdc.source.snapshot.log.log_unit import LogUnit, bytes_of, rows_of
from raycdc.source.snapshot.reader.reading import BlockingLog
from raycdc.source.split import StreamSplit


class StreamSplitReader:
    """The `raycdc.source.reader.split_reader.SplitReader` of the stream split.

    It wraps a connector's `BlockingLog`.
    """

    def __init__(self, open_log: Callable[[StreamSplit], BlockingLog]) -> None:
        self._open_log = open_log
        self._log: BlockingLog | None = None
        self._split_id = ""
        self._woken = False
        #: The wall time up to which the log was fetched.
        self.seen_ms: int | None = None

    def fetch(self) -> RecordsWithSplitIds[LogUnit] | None:
        assert self._log is not None, "no stream split was given"
        unit = self._log.fetch()
        if unit is None:
            self.seen_ms = time.time_ns() // 1_000_000
            return None
        rows = sum(part.batch.num_rows for part in rows_of(unit))
        return RecordsWithSplitIds((SplitRecords(self._split_id, unit),), bytes=bytes_of(unit), rows=rows)

    def handle_splits_changes(self, change: SplitsChange[StreamSplit]) -> None:
        """Connect, and read the log from the position of the split. Blocks."""
        match change:
            case SplitsAddition((split,)):
                self._split_id = split.split_id
                self._log = self._open_log(split)
                if self._woken:
                    self._log.wake_up()
            case SplitsAddition() | SplitsRemoval() | SplitsPause():
                raise AssertionError("the stream split stays with its reader, and is its only one")
            case _:
                assert_never(change)

    def wake_up(self) -> None:
        """Wake the log's blocked read. If the log is still connecting, it is woken after it has connected."""
        self._woken = (
            True  # Set before the log is used here: `handle_splits_changes` does the two in the opposite order.
        )
        if self._log is not None:
            self._log.wake_up()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


class FetchedLog:
    """The `raycdc.source.snapshot.log.log_unit.LogSource` of units that the fetcher of one stream split
    has read ahead.
    """

    def __init__(
        self, threads: FetcherThreads, open_log: Callable[[StreamSplit], BlockingLog], split: StreamSplit
    ) -> None:
        self._units: deque[LogUnit] = deque()
        self._reader = StreamSplitReader(open_log)
        #: The reader's `seen_ms` at a time when all fetched rows were passed on.
        self._seen_ms: int | None = None
        self._fetchers = threads.start(lambda: self._reader, name="log_read", threading=Sequential())
        self._fetchers.add_splits((split,))

    def poll(self) -> LogUnit | None:
        # Read before the queue, so that everything fetched by that time is in the queue.
        seen_ms = self._reader.seen_ms
        if not self._units and (fetch := self._fetchers.poll()) is not None:
            self._units.extend(part.batch for part in fetch.records)
        if not self._units:
            self._seen_ms = seen_ms
            return None
        return self._units.popleft()

    @property
    def seen_ms(self) -> int | None:
        return self._seen_ms

    def close(self) -> None:
        self._fetchers.close()
