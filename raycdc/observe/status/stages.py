"""Finds the bottleneck of a run: the stage that was busy for the largest part of the last minute.

| stage | is busy while |
|---|---|
| `source` | a reader waits for the server's rows |
| `rate_limit` | a reader waits because of `source.rows_per_second` or `bytes_per_second` |
| `decode` | a reader makes batches of the rows (its CPU time) |
| `hand_off` | a finished chunk waits for the log to pass it |
| `bridge` | a reader writes segments |
| `spark` | the driver stages an epoch: the sink's tasks write its rows |
| `commit` | the driver records an epoch in the sink |

A share is the fraction of the time in which a stage is busy, over all readers. A pipeline that keeps up with its
source waits for changes, and has no bottleneck.

`Speed` computes the growth rate of a count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Annotated

from pydantic import Field

from raycdc.source.protocol.job_status import JobStatus, ReaderStatus

WINDOW_S = 60.0
#: The length of the period whose figures one bucket adds up.
BUCKET_S = 5.0

#: The explanation of each stage as the bottleneck, with a remedy.
WHY = {
    "source": "readers wait for the source's server; more readers or fetchers ask it for more at once",
    "rate_limit": "readers keep to source.rows_per_second or bytes_per_second; raise it if the source can bear more",
    "decode": "readers decode rows; more readers (readers.max) share that, where there are CPUs",
    "hand_off": "chunks that were read wait until the log's reader has passed them",
    "bridge": "readers write segments to their spool; check its disk",
    "spark": "the sink's tasks write the rows of epochs",
    "commit": "the sink takes its time to record an epoch; a longer pipeline.epoch_interval has fewer of them",
}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The stage for which the run waits most."""

    stage: Annotated[str, Field(description="source, rate_limit, decode, hand_off, bridge, spark or commit")]
    share: Annotated[float, Field(description="The fraction of the time that the stage takes, 0 to 1.")]
    why: str
    shares: Annotated[Mapping[str, float], Field(description="The fraction of each stage that is known.")]


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The busy seconds of each stage in a period of `passed_s` seconds; those of readers are sums over all readers."""

    passed_s: float = 0.0
    readers_s: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)

    def plus(self, more: _Bucket) -> _Bucket:
        """Return the sum of both buckets."""
        seconds = {stage: self.seconds.get(stage, 0.0) + s for stage, s in more.seconds.items()}
        return _Bucket(self.passed_s + more.passed_s, self.readers_s + more.readers_s, {**self.seconds, **seconds})


_Reader = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Stages:
    """The busy seconds of each stage in the last minute. Immutable; the last bucket is the present one."""

    _buckets: tuple[_Bucket, ...] = (_Bucket(),)
    _before: Mapping[_Reader, ReaderStatus] = field(default_factory=dict)
    _polled_s: float | None = None

    def observed(self, status: JobStatus, *, now_s: float) -> Stages:
        """Return the stages after a status of the source side. The cost grows with the number of readers."""
        passed_s = 0.0 if self._polled_s is None else now_s - self._polled_s
        buckets = self._buckets
        if buckets[-1].passed_s >= BUCKET_S:
            buckets = (*buckets, _Bucket())[-int(WINDOW_S / BUCKET_S) :]
        bucket = buckets[-1].plus(_Bucket(passed_s, passed_s * len(status.readers)))
        seen = {(status.generation, reader.subtask, reader.incarnation): reader for reader in status.readers}
        for key, reader in seen.items():
            if (before := self._before.get(key)) is not None:
                more = stage_seconds(before.process.seconds, reader.process.seconds)
                waited_s = {"hand_off": passed_s} if reader.metrics.waits else {}
                bucket = bucket.plus(_Bucket(seconds={**more, **waited_s}))
        return Stages((*buckets[:-1], bucket), seen, now_s)

    def committed(self, *, staging_s: float, commit_s: float) -> Stages:
        """Return the stages after one more committed epoch."""
        bucket = self._buckets[-1].plus(_Bucket(seconds={"spark": staging_s, "commit": commit_s}))
        return Stages((*self._buckets[:-1], bucket), self._before, self._polled_s)

    def bottleneck(self) -> Bottleneck | None:
        """Return the busiest stage of the last minute; None if too little is known."""
        total = reduce(_Bucket.plus, self._buckets)
        if total.passed_s < BUCKET_S or not total.readers_s:
            return None
        time_of = {stage: total.passed_s if stage in ("spark", "commit") else total.readers_s for stage in WHY}
        shares = {stage: round(min(1.0, total.seconds.get(stage, 0.0) / time_of[stage]), 3) for stage in WHY}
        stage = max(shares, key=lambda name: shares[name])
        return Bottleneck(stage, shares[stage], WHY[stage], shares) if shares[stage] else None


def stage_seconds(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a reader by stage, from two readings of its stopwatch.

    See `raycdc.runtime.reader.heartbeats`.
    """

    def more(name: str) -> float:
        return max(0.0, now.get(name, 0.0) - before.get(name, 0.0))

    read_cpu = more("chunk_read_cpu") + more("log_read_cpu")
    limited = more("rate_limited")
    return {
        "source": max(0.0, more("chunk_read") + more("log_read") - read_cpu - limited),
        "rate_limit": limited,
        "decode": read_cpu,
        "bridge": more("chunk_write") + more("log_write"),
    }


#: The time constant of the average: figures older than this hardly count.
MEMORY_S = 10.0
#: Growth is measured over at least this time, because counts of rows grow only at the end of an epoch.
STEP_S = 1.0
FADES_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Speed:
    """The growth rate of a count, as an average of the last seconds.

    If the count becomes smaller, it has started again from 0.
    """

    at_s: float
    count: float
    per_s: float | None = None

    def after(self, count: float, *, now_s: float) -> Speed:
        """Return the speed after the count became `count`; unchanged if less than `STEP_S` has passed."""
        passed = now_s - self.at_s
        if count < self.count:
            return Speed(now_s, count, self.per_s)
        if passed < STEP_S:
            return self
        rate, weight = (count - self.count) / passed, 1 - math.exp(-passed / MEMORY_S)
        return Speed(now_s, count, rate if self.per_s is None else self.per_s + weight * (rate - self.per_s))

    def now(self, now_s: float) -> float | None:
        """Return the present growth per second; None if too little is known.

        It decreases to 0 while the count does not grow.
        """
        if self.per_s is None:
            return None
        idle = now_s - self.at_s
        faded = self.per_s * math.exp(-max(0.0, idle - FADES_AFTER_S) / (MEMORY_S / 4))
        return faded if faded >= 0.05 else 0.0
