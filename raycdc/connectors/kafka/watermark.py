"""Event time: the watermark of each partition, and the partitions that wait for others. Pure; times in Unix
milliseconds.

A partition's watermark is the latest event time read from it. Partitions that have been silent for `idle_after_s` are
ignored (Flink's idleness). If all are idle there is no watermark, and none is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class _Clock:
    event_ms: int | None
    active_s: float


class Watermarks:
    """The watermarks of one reader's partitions; owned by its thread."""

    def __init__(self, *, idle_after_s: float) -> None:
        self._idle_after_s = idle_after_s
        self._clocks: dict[str, _Clock] = {}

    def add(self, split_id: str, *, now_s: float) -> None:
        self._clocks[split_id] = _Clock(None, now_s)

    def remove(self, split_id: str) -> None:
        self._clocks.pop(split_id, None)

    def read(self, split_id: str, *, event_ms: int | None, now_s: float) -> None:
        """Record that messages of a partition up to `event_ms` were read."""
        clock = self._clocks[split_id]
        clock.active_s = now_s
        if event_ms is not None:
            clock.event_ms = event_ms if clock.event_ms is None else max(clock.event_ms, event_ms)

    def waits(self, split_id: str, *, now_s: float) -> None:
        """Note that the partition is held back, so that it does not count as idle."""
        self._clocks[split_id].active_s = now_s

    def active(self, *, now_s: float) -> dict[str, int]:
        """Return the watermarks of the partitions that are not idle and have one."""
        return {
            split_id: clock.event_ms
            for split_id, clock in self._clocks.items()
            if clock.event_ms is not None and now_s - clock.active_s < self._idle_after_s
        }

    def ahead(self, limit_ms: int) -> set[str]:
        """Return the partitions whose watermark is beyond `limit_ms`."""
        return {s for s, clock in self._clocks.items() if clock.event_ms is not None and clock.event_ms > limit_ms}


class Alignment:
    """The watermark of the slowest partition of all readers, in the enumerator, and the limit for all others."""

    def __init__(self, *, max_drift_ms: int) -> None:
        self._max_drift_ms = max_drift_ms
        self._readers: dict[int, int | None] = {}
        #: The limit that was last sent to readers.
        self.reported_ms: int | None = None

    def report(self, reader: int, watermarks: Mapping[str, int]) -> None:
        """Record the event times that one reader's active partitions have reached."""
        self._readers[reader] = min(watermarks.values(), default=None)

    def forget(self, reader: int) -> None:
        self._readers.pop(reader, None)

    @property
    def limit_ms(self) -> int | None:
        """Return the event time beyond which a partition waits; None if no partition waits."""
        known = [w for w in self._readers.values() if w is not None]
        return min(known) + self._max_drift_ms if known else None
