"""Where a reader's time goes: seconds and CPU-seconds of its threads by what they do.

| name | is |
|---|---|
| `chunk_read` | waiting for a chunk's rows and decoding them (their CPU time is the decoding) |
| `chunk_write` | writing a chunk's segments |
| `log_read` | waiting for the log and decoding it |
| `log_write` | writing the open epoch's segments, and finishing them at the cut |
| `paced` | waiting because of `source.rows_per_second` or `bytes_per_second`; part of the reading times too |
| `process_cpu` | all CPU time of the process, whoever used it (no `_cpu` beside it) |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Sums per name, of as many threads as have it. Thread-safe."""

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
        """The sums so far, to a millisecond."""
        with self._lock:
            seconds = {**self._seconds, "process_cpu": time.process_time()}
        return {name: round(value, 3) for name, value in seconds.items()}

    def _add(self, name: str, seconds: float) -> None:
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
