"""Which stage a run waits for: how busy each was in the last minute, of which the busiest holds the others up.

| stage | is at work while |
|---|---|
| `source` | a reader waits for the server's rows |
| `pace` | a reader waits because of `source.rows_per_second` or `bytes_per_second` |
| `decode` | a reader makes batches of them (its CPU time) |
| `hand_off` | a chunk was read, and waits for the log to come past it |
| `bridge` | a reader writes segments |
| `spark` | the driver has an epoch staged: the sink's tasks write its rows |
| `commit` | the driver records an epoch in the sink |

A share is the part of its time that a stage is at work, of all readers together. A pipeline that keeps up waits for
nothing but changes, and has no bottleneck.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from raycdc.control.model import Bottleneck
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus

WINDOW_S = 60.0
#: Figures of so long are one of those that are remembered.
BUCKET_S = 5.0

#: For each stage what is waited for when it is the busiest, and what helps.
WHY = {
    "source": "readers wait for the source's server; more readers or fetchers ask it for more at once",
    "pace": "readers keep to source.rows_per_second or bytes_per_second; raise it if the source can bear more",
    "decode": "readers decode rows; more readers (readers.max) share that, where there are CPUs",
    "hand_off": "chunks that were read wait until the log's reader has passed them",
    "bridge": "readers write segments to their spool; look at the disk of it",
    "spark": "the sink's tasks write the rows of epochs",
    "commit": "the sink takes its time to record an epoch; a longer pipeline.epoch_interval has fewer of them",
}


@dataclass(slots=True)
class _Bucket:
    """The seconds that stages were at work, of `passed_s` that went by; those of readers are of all of them."""

    passed_s: float = 0.0
    readers_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, seconds: Mapping[str, float]) -> None:
        for stage, more in seconds.items():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + more


class Stages:
    """One per run. Not thread-safe."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque([_Bucket()], maxlen=int(WINDOW_S / BUCKET_S))
        self._before: dict[tuple[int, int, int], ReaderStatus] = {}
        self._looked_s: float | None = None

    def look(self, status: JobStatus, *, now_s: float) -> None:
        """A status of the source side; takes as long as there are readers."""
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if self._buckets[-1].passed_s >= BUCKET_S:
            self._buckets.append(_Bucket())
        bucket = self._buckets[-1]
        bucket.passed_s += passed_s
        bucket.readers_s += passed_s * len(status.readers)
        seen = {}
        for reader in status.readers:
            key = (status.generation, reader.subtask, reader.incarnation)
            seen[key] = reader
            if (before := self._before.get(key)) is not None:
                bucket.add(stage_seconds(before.process.seconds, reader.process.seconds))
                if reader.metrics.waits:
                    bucket.add({"hand_off": passed_s})
        self._before = seen

    def committed(self, *, staging_s: float, commit_s: float) -> None:
        """An epoch is in the sink."""
        self._buckets[-1].add({"spark": staging_s, "commit": commit_s})

    def bottleneck(self) -> Bottleneck | None:
        """The busiest stage of the last minute; None where too little is known."""
        total = _Bucket()
        for bucket in self._buckets:
            total.passed_s += bucket.passed_s
            total.readers_s += bucket.readers_s
            total.add(bucket.seconds)
        if total.passed_s < BUCKET_S or not total.readers_s:
            return None
        time_of = {stage: total.passed_s if stage in ("spark", "commit") else total.readers_s for stage in WHY}
        shares = {stage: round(min(1.0, total.seconds.get(stage, 0.0) / time_of[stage]), 3) for stage in WHY}
        stage = max(shares, key=lambda name: shares[name])
        return Bottleneck(stage, shares[stage], WHY[stage], shares) if shares[stage] else None


def stage_seconds(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """The seconds of a reader by stage, between two looks at its stopwatch (`raycdc.runtime.stopwatch`)."""

    def more(name: str) -> float:
        return max(0.0, now.get(name, 0.0) - before.get(name, 0.0))

    read_cpu = more("chunk_read_cpu") + more("log_read_cpu")
    paced = more("paced")
    return {
        "source": max(0.0, more("chunk_read") + more("log_read") - read_cpu - paced),
        "pace": paced,
        "decode": read_cpu,
        "bridge": more("chunk_write") + more("log_write"),
    }
