"""A reader's part in keeping partitions together in event time: watermarks told, partitions held back."""

from __future__ import annotations

from collections.abc import Callable

from raycdc.connectors.kafka.events import WatermarksReached
from raycdc.connectors.kafka.held import PartitionFetchers
from raycdc.connectors.kafka.watermark import Watermarks
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.reader.context import ReaderContext

#: How often the enumerator is told the watermarks, when partitions are kept together.
WATERMARKS_EVERY_S = 0.5


class ReaderAlignment:
    """Holds back partitions that are too far ahead. Without `aligned` it knows the watermarks alone.

    Owned by the reader's thread.
    """

    def __init__(
        self,
        context: ReaderContext,
        fetchers: PartitionFetchers,
        *,
        send_event: Callable[[SourceEvent], None],
        idle_after_s: float,
        aligned: bool,
    ) -> None:
        self._now_s = context.now_s
        self._availability = context.availability
        self._fetchers = fetchers
        self._send_event = send_event
        self._aligned = aligned
        self._watermarks = Watermarks(idle_after_s=idle_after_s)
        self._limit_ms: int | None = None
        self._told_s = 0.0
        #: Partitions that are held back.
        self.waiting: set[str] = set()

    def add(self, split_id: str) -> None:
        self._watermarks.add(split_id, now_s=self._now_s())

    def remove(self, split_id: str) -> None:
        """Nothing of the partition is read any more; nor is it to go on when those that wait do."""
        self._watermarks.remove(split_id)
        self.waiting.discard(split_id)

    def read(self, split_id: str, event_ms: int | None) -> None:
        """Messages of the partition up to `event_ms` were emitted."""
        self._watermarks.read(split_id, event_ms=event_ms, now_s=self._now_s())

    def limit(self, limit_ms: int | None) -> None:
        """The enumerator says beyond which event time partitions wait."""
        self._limit_ms = limit_ms

    def watermark_ms(self) -> int | None:
        """The earliest of the watermarks that are not idle."""
        return min(self._watermarks.active(now_s=self._now_s()).values(), default=None)

    def step(self) -> None:
        """Hold back partitions that are too far ahead, let the others go on, tell what ours have reached."""
        if not self._aligned:
            return
        now_s = self._now_s()
        ahead = self._watermarks.ahead(self._limit_ms) if self._limit_ms is not None else set()
        if ahead != self.waiting:
            self._fetchers.pause_or_resume_splits(
                pause=sorted(ahead - self.waiting), resume=sorted(self.waiting - ahead)
            )
            self.waiting = ahead
        for split_id in ahead:
            self._watermarks.waits(split_id, now_s=now_s)
        if now_s >= self._told_s + WATERMARKS_EVERY_S:
            self._told_s = now_s
            self._send_event(WatermarksReached(self._watermarks.active(now_s=now_s)))
        self._availability.at(self._told_s + WATERMARKS_EVERY_S)
