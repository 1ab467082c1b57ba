"""Half-open intervals of chunk keys, and sets of intervals in which adjacent ones are merged.

A chunk key has the columns by which a table is cut into chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

#: A sort key: it compares, equals and hashes as the key does in the server. All keys of a table are of one kind.
SortKey = Any


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval [lower, upper) of sort keys; None means unbounded. `lower_raw` and `upper_raw` are the bounds from
    which the sort keys were made; the state stores these.
    """

    lower: SortKey | None
    upper: SortKey | None
    lower_raw: Any = None
    upper_raw: Any = None


class IntervalSet:
    """Disjoint intervals in order. An interval that touches another one is merged with it, so 100,000 chunks become few
    intervals.
    """

    def __init__(self) -> None:
        self._intervals: list[Interval] = []

    def __iter__(self) -> Iterator[Interval]:
        return iter(self._intervals)

    def __len__(self) -> int:
        return len(self._intervals)

    @property
    def covers_all(self) -> bool:
        return any(i.lower is None and i.upper is None for i in self._intervals)

    def add(self, new: Interval) -> None:
        """Add `new`, which overlaps no interval of the set but may touch its neighbours."""
        if new.lower is not None and new.lower == new.upper:
            return
        lower, lower_raw, upper, upper_raw = new.lower, new.lower_raw, new.upper, new.upper_raw
        rest: list[Interval] = []
        for old in self._intervals:
            if old.upper is not None and old.upper == lower:
                lower, lower_raw = old.lower, old.lower_raw
            elif old.lower is not None and old.lower == upper:
                upper, upper_raw = old.upper, old.upper_raw
            else:
                rest.append(old)
        rest.append(Interval(lower, upper, lower_raw, upper_raw))
        rest.sort(key=lambda i: (i.lower is not None, i.lower))
        self._intervals = rest


def cells(layers: Sequence[tuple[Interval, int]], *, default: int) -> tuple[list[SortKey], list[int]]:
    """Cut the key range at every bound of disjoint intervals, each of which has a code.

    Returns the ascending bounds b1 < … < bn and n + 1 codes: of keys below b1, of [b1, b2), …, of keys from bn on.
    """
    edges: set[Any] = {e for interval, _ in layers for e in (interval.lower, interval.upper) if e is not None}
    bounds: list[SortKey] = sorted(edges)
    codes = [default] * (len(bounds) + 1)
    for interval, code in layers:
        first = 0 if interval.lower is None else bisect_right(bounds, interval.lower)
        last = len(bounds) if interval.upper is None else bisect_right(bounds, interval.upper) - 1
        for cell in range(first, last + 1):
            codes[cell] = code
    return bounds, codes


#: One column, or several that are compared one after the other.
ChunkKey = str | tuple[str, ...]


def key_names(key: ChunkKey | None) -> tuple[str, ...]:
    """Return the columns of a chunk key; none for a table that is read as a single chunk."""
    return () if key is None else (key,) if isinstance(key, str) else tuple(key)


def key_from_json(data: Any) -> ChunkKey | None:
    """Return a chunk key from its form in states and messages."""
    return data if data is None or isinstance(data, str) else tuple(data)
