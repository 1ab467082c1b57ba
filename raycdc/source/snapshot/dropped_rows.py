"""Rows of one table that the log reader dropped lately, and that a SELECT may not see yet: for chunks that open over
them (`raycdc.source.snapshot.hand_off`).

They are in memory, and how much is written meanwhile is the users' matter, so there is a bound: beyond it the oldest
are forgotten (`evict`), and no chunk of the table opens before these are visible to every SELECT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from raycdc.source.snapshot.log_rows import LogRows


class DroppedRows:
    """In the order in which they were dropped; `window_s` is how long a SELECT may not see a row."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._rows: deque[tuple[float, LogRows]] = deque()
        self.bytes = 0
        #: The time at which the forgotten rows are visible.
        self.visible_from_s = 0.0

    def __repr__(self) -> str:
        return f"DroppedRows({len(self._rows)} batches, {self.bytes} bytes)"

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __iter__(self) -> Iterator[LogRows]:
        return (rows for _, rows in self._rows)

    def add(self, dropped: Iterable[LogRows], *, now_s: float) -> None:
        """Remember what is dropped now."""
        for rows in dropped:
            self._rows.append((now_s, rows))
            self.bytes += rows.batch.nbytes

    def trim(self, *, now_s: float) -> None:
        """Forget what is visible by now."""
        while self._rows and self._rows[0][0] < now_s - self._window_s:
            self._forget_oldest()

    def evict(self) -> None:
        """Forget the oldest before it is visible."""
        self.visible_from_s = max(self.visible_from_s, self._forget_oldest() + self._window_s)

    def lose(self, *, now_s: float) -> None:
        """Something was dropped now that nobody can remember."""
        self.visible_from_s = now_s + self._window_s

    def clear(self) -> None:
        """Whatever was dropped is visible."""
        self._rows.clear()
        self.bytes = 0

    def _forget_oldest(self) -> float:
        dropped_s, rows = self._rows.popleft()
        self.bytes -= rows.batch.nbytes
        return dropped_s
