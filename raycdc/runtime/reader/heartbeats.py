"""Decides when a reader sends heartbeats, and makes their figures.

`Stopwatch` measures the time of a reader's activities, in seconds and in CPU-seconds of its threads:

| name | activity |
|---|---|
| `chunk_read` | waiting for a chunk's rows and decoding them (their CPU time is the decoding) |
| `chunk_write` | writing a chunk's segments |
| `log_read` | waiting for the log and decoding it |
| `log_write` | writing the open epoch's segments, and finishing them when the epoch is cut |
| `rate_limited` | waiting because of `source.rows_per_second` or `bytes_per_second`; part of the reading times |
| `process_cpu` | all CPU time of the process (there is no `_cpu` value for it) |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from raycdc.core.activity import ActivityTracker
from raycdc.source.protocol.api import SourceReader
from raycdc.source.protocol.metrics import CutProgress, ProcessMetrics
from raycdc.source.protocol.rate_budget import RateDemand
from raycdc.source.protocol.source_event import Heartbeat


class Stopwatch:
    """Sums times per activity, over all threads that measure it. Thread-safe."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Count the block's time, and the thread's CPU time under ``NAME_cpu``."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self._add(name, time.perf_counter() - wall)
            self._add(f"{name}_cpu", time.thread_time() - cpu)

    def seconds(self) -> dict[str, float]:
        """Return the sums so far, to a millisecond."""
        with self._lock:
            seconds = {**self._seconds, "process_cpu": time.process_time()}
        return {name: round(value, 3) for name, value in seconds.items()}

    def _add(self, name: str, seconds: float) -> None:
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds


#: Seconds between two heartbeats of an idle reader. They show the coordinator that the reader lives, and how much it
#: has read. Changes that affect sealing are sent immediately; each call costs both sides about a millisecond.
HEARTBEAT_S = 0.25
#: The longest pause between two heartbeats, with very many readers. The coordinator considers a reader dead after four
#: times as long.
HEARTBEAT_MAX_S = 2.5
#: The maximum fraction of a reader's time for the calls of its heartbeats.
_PAUSES_PER_CALL = 10


def pause_s(took_s: float) -> float:
    """Return the pause after a heartbeat whose call took this long.

    With more readers, calls take longer, so heartbeats become rarer.
    """
    return min(max(HEARTBEAT_S, took_s * _PAUSES_PER_CALL), HEARTBEAT_MAX_S)


class Heartbeats:
    """The heartbeats of one reader; see the module's docstring.

    `statistics` returns the source's own figures, and `demand` the reader's demand for its share of the rate limit.
    Owned by the reader's thread.
    """

    def __init__(
        self,
        stopwatch: Stopwatch,
        tracker: ActivityTracker,
        statistics: Callable[[], Mapping[str, Mapping[str, int]]],
        demand: Callable[[], RateDemand | None],
    ) -> None:
        self._tracker = tracker
        self._demand = demand
        self._stopwatch = stopwatch
        self._statistics = statistics
        self._reported = Heartbeat()
        self._reported_matters: tuple[bool, bool] | None = None
        #: The time at which the next heartbeat is due even if nothing has changed.
        self.due_s = 0.0

    def of(self, reader: SourceReader, *, now_s: float) -> Heartbeat | None:
        """Return the heartbeat to send now.

        None if no heartbeat is due and nothing changed that affects sealing.
        """
        matters = reader.seal_matters
        if now_s < self.due_s and matters == self._reported_matters:
            return None
        tracker = self._tracker
        process = ProcessMetrics(
            self._stopwatch.seconds(), self._statistics(), stalled=tracker.stalled(), moves=tracker.moves
        )
        self._reported_matters = matters
        self._reported = replace(reader.heartbeat(), process=process, rate_demand=self._demand())
        self.due_s = now_s + HEARTBEAT_S
        return self._reported

    def took(self, seconds: float, *, now_s: float) -> None:
        """Note how long the call with the last heartbeat took."""
        self.due_s = max(self.due_s, now_s + pause_s(seconds))

    def of_cut(self, progress: CutProgress, *, now_s: float) -> Heartbeat | None:
        """Return a heartbeat during a cut, which may take minutes on a slow disk; None if it is not due.

        It repeats the figures of the last heartbeat, and adds the progress of the cut.
        """
        if now_s < self.due_s:
            return None
        self.due_s = now_s + HEARTBEAT_S
        return replace(self._reported, process=replace(self._reported.process, sealing=progress))
