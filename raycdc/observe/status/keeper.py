"""The listener that keeps the status of a run up to date."""

from __future__ import annotations

import time
from collections.abc import Callable

from raycdc.config import PipelineConfig
from raycdc.observe.events import RunEvent
from raycdc.observe.status.status import Moment, RunProcess, RunStatus


class StatusKeeper:
    """`listen` is called by one thread at a time, as the first of a run's listeners; everything else by any thread."""

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
        """Keep the status of a run of `config` in this process, from now on."""
        sink = config.sink
        where = f"{sink.type} {sink.store or sink.folder}".strip()
        return cls(RunProcess.here(config.pipeline.name, where, local=local))

    def __repr__(self) -> str:
        return f"StatusKeeper({self._status.run.pipeline!r}, {self._status.step!r})"

    @property
    def status(self) -> RunStatus:
        """The status after the newest event."""
        return self._status

    def now(self) -> Moment:
        """The time by the clocks that the status is kept with."""
        return Moment(self._clock(), self._wall_ms())

    def listen(self, event: RunEvent) -> None:
        """An event of the run."""
        self._status = self._status.after(event, self.now())

    def ended(self, error: BaseException | None = None) -> None:
        """Note an end without an event: with `error`, which the caller of the run gets, or as it closed the run."""
        self._status = self._status.after_end(error, self.now())

    def moved(self) -> None:
        """Note that the driver's work moved, or the run checked its processes; no figure of the status changed."""
        self._moved_s = self._clock()

    def silent_s(self) -> float:
        """Return for how many seconds a running run has neither checked its processes nor reported any progress.

        It is 0 while the run starts, waits or ends, which have no time limit.
        """
        status = self._status
        return self._clock() - max(status.heard.s, self._moved_s) if status.step == "running" else 0.0
