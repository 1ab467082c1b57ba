"""The limits of a run: its end, and the rate at which its source is read.

The configuration sets them, and readers keep them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Until(StrEnum):
    """The end of a bounded run: the source's end at the time when the run began, or the end of the snapshot."""

    CAUGHT_UP = "caught-up"
    SNAPSHOT = "snapshot"


#: One fetch reads about as much as the limit allows in this many seconds, so that readers never wait for long
#: afterwards.
FETCH_S = 0.5
#: The minimum number of bytes in one fetch. A smaller fetch might return no row.
FETCH_BYTES_MIN = 4 << 10
#: The assumed size of a row if it is unknown.
ROW_BYTES = 32


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The maximum number of rows, and of bytes, per second in the whole job; None is no limit.

    The value is false if neither is limited.
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
        """Return how many rows one fetch should bring at most, if a connector would fetch `most` without a limit."""
        return most if self.rows_per_s is None else max(1, min(most, int(self.rows_per_s * FETCH_S)))

    def bytes_at_once(self, most: int) -> int:
        """Return how many bytes one fetch should bring at most, if a connector would fetch `most` without a limit."""
        limits = [most]
        if self.rows_per_s is not None:
            limits.append(max(FETCH_BYTES_MIN, int(self.rows_per_s * FETCH_S) * ROW_BYTES))
        if self.bytes_per_s is not None:
            limits.append(max(FETCH_BYTES_MIN, int(self.bytes_per_s * FETCH_S)))
        return min(limits)


#: No limit.
UNLIMITED = RateLimit()
