"""The lags of a reader of partitions, as FLIP-33 defines them."""

from __future__ import annotations

from collections.abc import Callable

from raycdc.connectors.kafka.messages import Fetched
from raycdc.source.protocol.metrics import PartitionMetrics


class ReaderFigures:
    """Nothing depends on them. Times are wall-clock milliseconds, but for `now_s`."""

    def __init__(self, *, now_s: Callable[[], float], wall_ms: Callable[[], int]) -> None:
        self._now_s = now_s
        self._wall_ms = wall_ms
        self._fetch_lag_ms: int | None = None
        self._emit_lag_ms: int | None = None
        self._last_row_s = now_s()

    def fetched(self, fetched: Fetched) -> None:
        if fetched.event_ms is not None:
            self._fetch_lag_ms = max(0, fetched.fetched_ms - fetched.event_ms)

    def emitted(self, event_ms: int | None) -> None:
        """Messages up to `event_ms` were emitted now."""
        self._last_row_s = self._now_s()
        if event_ms is not None:
            self._emit_lag_ms = max(0, self._wall_ms() - event_ms)

    def metrics(self, *, watermark_ms: int | None) -> PartitionMetrics:
        """The lags as they are now."""
        return PartitionMetrics(
            fetch_lag_ms=self._fetch_lag_ms,
            emit_lag_ms=self._emit_lag_ms,
            idle_ms=round((self._now_s() - self._last_row_s) * 1000),
            watermark_lag_ms=None if watermark_ms is None else max(0, self._wall_ms() - watermark_ms),
        )
