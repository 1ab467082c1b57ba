"""The rate limit of a source: a value that configurations make and readers obey."""

from __future__ import annotations

from dataclasses import dataclass

#: One fetch reads about as much as the limit allows in this many seconds, so that readers never wait long afterwards.
FETCH_S = 0.5
#: The least bytes of one fetch: fewer would be calls without rows.
FETCH_BYTES_MIN = 4 << 10
#: The assumed size of a row if it is unknown.
ROW_BYTES = 32


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The most rows, and the most bytes, per second in the whole job; None: no limit.

    False if there is no limit at all.
    """

    rows_per_s: int | None = None
    bytes_per_s: int | None = None

    def __bool__(self) -> bool:
        return self.rows_per_s is not None or self.bytes_per_s is not None

    def __str__(self) -> str:
        rows = [] if self.rows_per_s is None else [f"{self.rows_per_s:,} rows"]
        size = [] if self.bytes_per_s is None else [f"{self.bytes_per_s:,} bytes"]
        return " and ".join([*rows, *size]) + " a second"

    def seconds_of_rows(self, rows: int) -> float:
        """Return how long the whole budget takes for this many rows."""
        return 0.0 if self.rows_per_s is None else rows / self.rows_per_s

    def seconds_of_bytes(self, size: int) -> float:
        """Return how long the whole budget takes for this many bytes."""
        return 0.0 if self.bytes_per_s is None else size / self.bytes_per_s

    def rows_at_once(self, most: int) -> int:
        """The rows that one fetch should bring at most, where a connector would take `most`."""
        return most if self.rows_per_s is None else max(1, min(most, int(self.rows_per_s * FETCH_S)))

    def bytes_at_once(self, most: int) -> int:
        """The bytes that one fetch should bring at most, where a connector would take `most`."""
        limits = [most]
        if self.rows_per_s is not None:
            limits.append(max(FETCH_BYTES_MIN, int(self.rows_per_s * FETCH_S) * ROW_BYTES))
        if self.bytes_per_s is not None:
            limits.append(max(FETCH_BYTES_MIN, int(self.bytes_per_s * FETCH_S)))
        return min(limits)


#: As fast as can be.
UNLIMITED = RateLimit()
