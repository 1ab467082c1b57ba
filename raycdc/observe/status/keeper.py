"""The listener that keeps the status of a run up to date."""

from __future__ import annotations

import time
from collections.abc import Callable

from raycdc.config import PipelineConfig
from raycdc.observe.events import RunEvent
from raycdc.observe.status.status import Moment, RunProcess, RunStatus


class StatusKeeper:
    """Keeps the status of a run. `listen` is called by one thread at a time, as the first of the run's listeners.

    Any thread may call the other methods.
    """

    def __init__(
        self,
        run: RunProcess,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._clock, self._wall_ms = clock, wall_ms
        self._status = RunStatus(run, heard=self.now())
        self._moved_s = self._status.heard.s

    @classmethod
    def of(cls, config: PipelineConfig, *, local: bool) -> StatusKeeper:
        """Return a keeper for a run of `config` in this process, which begins now."""
        sink = config.sink
        where = f"{sink.type} {sink.store or sink.folder}".strip()
        return cls(RunProcess.here(config.pipeline.name, where, local=local))

    def __repr__(self) -> str:
        return f"StatusKeeper({self._status.run.pipeline!r}, {self._status.step!r})"

    @property
    def status(self) -> RunStatus:
        """Return the status after the newest event."""
        return self._status

    def now(self) -> Moment:
        """Return the present time, by the clocks of this keeper."""
        return Moment(self._clock(), self._wall_ms())

    def listen(self, event: RunEvent) -> None:
        """Update the status with an event of the run."""
        self._status = self._status.after(event, self.now())

    def ended(self, error: BaseException | None = None) -> None:
        """Note an end of the run without an event.

        The run ended with `error`, which its caller gets. If `error` is None, the caller closed the run.
        """
        self._status = self._status.after_end(error, self.now())

    def moved(self) -> None:
        """Note that the driver's work progressed or that the run checked its processes.

        No figure of the status changes.
        """
        self._moved_s = self._clock()

    def silent_s(self) -> float:
        """Return for how many seconds a running run has neither checked its processes nor reported any progress.

        It is 0 while the run starts, waits or ends, because these have no time limit.
        """
        status = self._status
        return self._clock() - max(status.heard.s, self._moved_s) if status.step == "running" else 0.0
