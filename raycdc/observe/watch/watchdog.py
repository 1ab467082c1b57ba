"""Reports stalled stages of a run, and since when: the stage, the table and split, and the reader.

One look a second, at figures that are there anyway: the works of the driver (`raycdc.core.activity`), those that
readers and the coordinator told with their heartbeats, chunks that wait for the log, and a seal under way. Work that
has not moved for ``pipeline.watchdog`` is told, again when it has stood twice as long, and once more when it goes on.
Nothing else depends on it: it never ends a run, which patience and time-outs do.

An enumerator that says nothing for as long is reported instead of what it and its readers waited for when it spoke
last: that may have gone on since, and it is unknown.

A log without changes, a table that waits for its turn and a reader that keeps to a rate are no work that stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from raycdc.core.activity import ActivityTracker, Stage
from raycdc.core.threads import THREADS, Threads
from raycdc.observe.events import RunEvent, StageResumed, StageStalled
from raycdc.source.protocol.job_status import JobStatus

POLL_S = 1.0
#: An enumerator that seals much takes a second or two for an answer, whatever `pipeline.watchdog` is.
SILENT_MIN_S = 10.0
#: The activity of a silent enumerator.
SILENT = "has not said how far the job is"
SILENT_NOTE = "what tables and readers wait for is not known meanwhile"
#: A stall is reported again when it has lasted this many times as long.
AGAIN_AFTER = 2.0


@dataclass(frozen=True, slots=True)
class _StallKey:
    stage: str
    table: str = ""
    split: str = ""
    reader: int | None = None


@dataclass(slots=True)
class _LastReport:
    """The last report about a stage, and after how many seconds it is repeated."""

    event: StageStalled
    again_s: float
    #: Whether it was reported from a status of the source side, and not from the driver.
    by_status: bool


@dataclass(slots=True)
class _Since:
    """Since when nothing of a place has changed that shows a movement."""

    shows: Hashable
    since_s: float


@dataclass(slots=True)
class StallDetector:
    """The decisions, without clock and threads: statuses in, events out."""

    after_s: float
    _reported: dict[_StallKey, _LastReport] = field(default_factory=dict)
    _since: dict[_StallKey, _Since] = field(default_factory=dict)

    def poll(
        self, now_s: float, tracker: ActivityTracker, status: JobStatus | None, *, heard_s: float | None = None
    ) -> Iterator[RunEvent]:
        """Yield the events to report now.

        `heard_s` is the time of `status`, or of the first request for one (None: now).
        """
        heard_s = now_s if heard_s is None else heard_s
        silent = now_s - heard_s >= max(self.after_s, SILENT_MIN_S)
        of_driver = dict(self._of_driver(tracker))
        if silent:
            of_driver |= [self._event(_StallKey(Stage.ENUMERATOR), SILENT, now_s - heard_s, SILENT_NOTE)]
        of_status = {} if silent or status is None else dict(self._of_status(heard_s, status))
        found = of_driver | of_status
        for key, reported in list(self._reported.items()):
            # While the enumerator is silent, it is unknown whether the stage has moved.
            if reported.by_status and silent:
                continue
            if key not in found or found[key].seconds < self.after_s:
                del self._reported[key]
                yield StageResumed(reported.event)
        for key, event in found.items():
            before = self._reported.get(key)
            if event.seconds < self.after_s:
                continue
            if before is None or event.seconds >= before.again_s:
                self._reported[key] = _LastReport(event, event.seconds * AGAIN_AFTER, key in of_status)
                yield event
            else:
                before.event = event

    def over(self) -> list[RunEvent]:
        """Return the events that end all reported stalls."""
        reported, self._reported = self._reported, {}
        return [StageResumed(each.event) for each in reported.values()]

    def _of_driver(self, tracker: ActivityTracker) -> Iterator[tuple[_StallKey, StageStalled]]:
        for one in tracker.stalled():
            yield self._event(_StallKey(one.stage, one.table, one.split), one.doing, one.seconds, one.note)

    def _of_status(self, heard_s: float, status: JobStatus) -> Iterator[tuple[_StallKey, StageStalled]]:
        """Yield the stages that had stalled at the time of the status, and for how long."""
        for one in status.stalled:
            yield self._event(_StallKey(one.stage, one.table, one.split), one.doing, one.seconds, one.note)
        for reader in status.readers:
            for one in reader.process.stalled:
                key = _StallKey(one.stage, one.table, one.split, reader.subtask)
                yield self._event(key, one.doing, one.seconds, one.note)
        seen = dict(self._observed(status))
        self._since = {key: since for key, since in self._since.items() if key in seen}
        for key, (doing, shows) in seen.items():
            since = self._since.get(key)
            if since is None or since.shows != shows:
                since = self._since[key] = _Since(shows, heard_s)
            yield self._event(key, doing, heard_s - since.since_s)

    def _observed(self, status: JobStatus) -> Iterator[tuple[_StallKey, tuple[str, Hashable]]]:
        """Yield the waits between readers: their text, and the figures that show whether they move."""
        if status.is_rate_limited:
            return  # They wait because of the configured rate limit.
        moves = sum(reader.process.moves for reader in status.readers)
        places = tuple(reader.metrics.log.ordinal for reader in status.readers if reader.metrics.log is not None)
        for reader in status.readers:
            for wait in reader.metrics.waits:
                key = _StallKey(Stage.HAND_OFF, str(wait.table), wait.split, reader.subtask)
                yield key, (wait.doing, (wait.doing, places, moves))
        if (sealing := status.sealing) is not None:
            named = ", ".join(map(str, sealing.waiting))
            files = tuple(reader.process.sealing for reader in status.readers)
            doing = f"epoch {sealing.epoch} waits for reader {named} to seal its part"
            yield _StallKey(Stage.SEAL), (doing, (sealing.epoch, sealing.waiting, files))

    def _event(self, key: _StallKey, doing: str, seconds: float, note: str = "") -> tuple[_StallKey, StageStalled]:
        event = StageStalled(key.stage, key.table, key.split, key.reader, doing, note, round(seconds, 1))
        return key, event


class Watchdog:
    """Watches for stalls; see the module's docstring. `notify` is called by its thread.

    `asked` and `heard` are called by the thread that requests statuses. `moved` is called when the driver's works have
    moved, at most once per check: a long recovery has no other heartbeat.
    """

    def __init__(
        self,
        after_s: float,
        notify: Callable[[RunEvent], None],
        moved: Callable[[], None] = lambda: None,
        *,
        threads: Threads = THREADS,
    ) -> None:
        self._stand_stills = StallDetector(after_s)
        self._notify = notify
        self._moved = moved
        self._moved_s = 0.0
        self._threads = threads
        self._status: JobStatus | None = None
        #: The time of the last status, or of the first request for one; None while none is requested.
        self._heard_s: float | None = None
        #: The works of the driver.
        self.tracker = ActivityTracker(threads)

    def asked(self, *, asking: bool) -> None:
        """Note that statuses are requested from now on, or no more because there is no source side."""
        self._status, self._heard_s = None, self._threads.now_s() if asking else None

    def heard(self, status: JobStatus | None) -> None:
        """Note the newest status of the source side; without one, the last one's stalls are kept."""
        # A status after the last request is a late answer.
        if status is not None and self._heard_s is not None:
            self._status, self._heard_s = status, self._threads.now_s()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look while the block runs."""
        ended = threading.Event()

        def watch() -> None:
            while not self._threads.wait(ended, POLL_S):
                self.poll()

        thread = self._threads.start(watch, "watchdog")
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=5)
        for event in self._stand_stills.over():
            self._notify(event)

    def poll(self) -> None:
        """Look once."""
        if (moved_s := self.tracker.moved_last_s()) > self._moved_s:
            self._moved_s = moved_s
            self._moved()
        for event in self._stand_stills.poll(self._threads.now_s(), self.tracker, self._status, heard_s=self._heard_s):
            self._notify(event)
