"""How many readers a job needs now. Pure: the coordinator's status and a clock are handed in.

| what there is to read | readers |
|---|---|
| nobody knows yet | `readers_max`: a snapshot begins with many chunks |
| chunks | `readers_max` while some wait; then those that have one, and `readers_min` at least |
| one log | `readers_min` |
| partitions | as many as keep the backlog of each below `BACKLOG_TARGET`, one partition each at most |

A phase that needs fewer lets readers go at once. A demand by the backlog alone must last: more readers after
`GROW_AFTER_S`, fewer, one at a time, after `SHRINK_AFTER_S`; starting one costs seconds and moves partitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from raycdc.source.protocol.job_status import JobStatus

#: Records a reader may be behind before another one is worth its start: what it reads in some ten seconds.
BACKLOG_TARGET = 2_000_000
GROW_AFTER_S = 5.0
SHRINK_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand in a status: how many readers could have work, and how many the backlog asks for."""

    useful: int
    by_backlog: int


class Autoscaler:
    """See the module's docstring. One per job; `readers` is its decision."""

    def __init__(self, *, readers_min: int, readers_max: int) -> None:
        self._min = readers_min
        self._max = readers_max
        self._since_s: float | None = None
        self._direction = 0
        self.readers = readers_max

    def __repr__(self) -> str:
        return f"Autoscaler(readers={self.readers}, min={self._min}, max={self._max})"

    def restart(self, status: JobStatus) -> int:
        """A new coordinator: what is known of it decides, without waiting."""
        self._since_s = None
        self.readers = self._clip(self.demand(status).useful)
        return self.readers

    def look(self, status: JobStatus, *, now_s: float) -> int:
        """Take a status in; returns how many readers there should be."""
        demand = self.demand(status)
        useful = self._clip(demand.useful)
        if self.readers > useful:
            self._since_s = None
            self.readers = useful
            return self.readers
        wanted = self._clip(min(demand.useful, demand.by_backlog))
        direction = (wanted > self.readers) - (wanted < self.readers)
        if direction == 0:
            self._since_s = None
        elif self._since_s is None or direction != self._direction:
            self._since_s, self._direction = now_s, direction
        elif now_s - self._since_s >= (GROW_AFTER_S if direction > 0 else SHRINK_AFTER_S):
            self._since_s = None
            self.readers = wanted if direction > 0 else self.readers - 1
        return self.readers

    def demand(self, status: JobStatus) -> Demand:
        """See the module's table."""
        readers = status.readers
        partitions = sum(reader.partitions for reader in readers)
        snapshot = any(table.progress.phase == "snapshot" for table in status.tables.values())
        if partitions:
            # Partitions that nobody has yet count as waiting.
            backlog = sum(reader.pending_records for reader in readers)
            return Demand(partitions + status.chunks_waiting, max(1, math.ceil(backlog / BACKLOG_TARGET)))
        if snapshot:
            busy = sum(reader.chunks > 0 for reader in readers)
            return Demand(self._max, self._max if status.chunks_waiting else max(busy, 1))
        if not status.tables or status.sealed == 0:
            return Demand(self._max, self._max)
        return Demand(self._min, self._min)

    def _clip(self, readers: int) -> int:
        return max(self._min, min(self._max, readers))
