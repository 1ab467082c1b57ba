"""Computes how far the sink is behind the source, even while the source is idle.

Readers report the time up to which they have seen their source (`raycdc.source.protocol.metrics.LogMetrics.seen_ms`).
All changes until that time are in the epoch that was open when the report was made, or in an earlier one. Once the sink
holds that epoch, the sink is current up to that time. While no reader has undelivered changes and no epoch is being
written, the sink is as current as the readers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from raycdc.source.protocol.job_status import JobStatus, ReaderStatus

#: The most epochs that are remembered; fewer are being written at a time.
EPOCHS_MAX = 64


class Lag:
    """The lag of one run. Thread-safe: the thread that watches the run passes in statuses, and the threads of the epoch
    loop pass in commits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held_ms: int | None = None
        #: For each epoch, the time up to which the source was seen before the epoch was cut.
        self._seen: dict[int, int] = {}
        self._generation = 0

    def __repr__(self) -> str:
        return f"Lag(held up to {self._held_ms})"

    def poll(self, status: JobStatus, now_ms: int) -> None:
        """Process a status of the source side, which is as old as its readers' last heartbeats."""
        with self._lock:
            self._poll(status, now_ms)

    def committed(self, epoch: int) -> None:
        """Note that the sink holds all epochs up to `epoch`."""
        with self._lock:
            for done in [number for number in self._seen if number <= epoch]:
                self._hold(self._seen.pop(done))

    def behind_ms(self, now_ms: int) -> int | None:
        """Return how far the sink is behind the source at `now_ms`, in milliseconds; None while that is unknown."""
        with self._lock:
            return None if self._held_ms is None else max(0, now_ms - self._held_ms)

    def _poll(self, status: JobStatus, now_ms: int) -> None:
        if status.generation != self._generation:
            # A new coordinator continues after the last sealed epoch and reads all later changes again.
            self._generation, self._seen = status.generation, {}
        times = list(_seen(status.readers, now_ms))
        if not times:
            return
        seen_ms = min(times)
        on_its_way = status.sealing is not None or status.sealed > status.committed
        if on_its_way or any(reader.open_bytes for reader in status.readers):
            epoch = (status.sealed if status.sealing is None else status.sealing.epoch) + 1
            self._seen[epoch] = max(seen_ms, self._seen.get(epoch, seen_ms))
            while len(self._seen) > EPOCHS_MAX:
                del self._seen[min(self._seen)]
        else:
            self._hold(seen_ms)

    def _hold(self, seen_ms: int) -> None:
        self._held_ms = seen_ms if self._held_ms is None else max(seen_ms, self._held_ms)


def _seen(readers: tuple[ReaderStatus, ...], now_ms: int) -> Iterator[int]:
    """Yield the time up to which each reader has seen its log, or the messages of its topics."""
    for reader in readers:
        log, partitions = reader.metrics.log, reader.metrics.partitions
        if log is not None and log.seen_ms is not None:
            yield log.seen_ms
        if partitions is None or not reader.partitions:
            continue
        if partitions.pending_records == 0:
            yield now_ms
        elif partitions.watermark_lag_ms is not None:
            yield now_ms - partitions.watermark_lag_ms
