"""How long readers take for chunks whose times are known, each taking the next one when it is free.

That is how the enumerator gives chunks out: list scheduling (R. L. Graham, "Bounds for Certain Multiprocessing
Anomalies", 1966), which is never worse than twice the best order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

from raycdc.model.json_value import Json


@dataclass(frozen=True, slots=True)
class Schedule:
    """`seconds` until the last chunk is read, and the share of all readers' time in which they have nothing to do."""

    readers: int
    seconds: float
    idle: float

    def to_json(self) -> dict[str, Json]:
        return {"readers": self.readers, "seconds": round(self.seconds, 4), "idle": round(self.idle, 4)}


def readers_text(count: int) -> str:
    """1 reader, 2 readers."""
    return "1 reader" if count == 1 else f"{count} readers"


def list_schedule(times_s: Sequence[float], readers: int) -> Schedule:
    """`times_s`: seconds per chunk, in the order in which they are given out; no reader slows another one."""
    free_at = [0.0] * readers
    for seconds in times_s:
        heapreplace(free_at, free_at[0] + seconds)
    whole = max(free_at)
    return Schedule(readers, whole, 1 - sum(times_s) / (readers * whole) if whole else 0.0)


def spread(count: int, wanted: int) -> list[int]:
    """At most `wanted` of `count` numbers from 0, evenly spread, with the first and the last one."""
    if wanted >= count:
        return list(range(count))
    if wanted <= 1:
        return list(range(wanted))
    return sorted({round(n * (count - 1) / (wanted - 1)) for n in range(wanted)})


def filled_in(times_s: Sequence[float], numbers: Sequence[int], count: int) -> list[float]:
    """Times of all `count` chunks, where those of some `numbers` are known: each has the time of the nearest known."""
    if not numbers:
        return []
    filled, at = [], 0
    for number in range(count):
        while at + 1 < len(numbers) and abs(numbers[at + 1] - number) <= abs(numbers[at] - number):
            at += 1
        filled.append(times_s[at])
    return filled
