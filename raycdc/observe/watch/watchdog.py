"""Reports stalled stages of a run: the stage, the table and split, the reader, and the duration.

A poll each second examines existing figures: the driver's activities (`raycdc.core.activity`), those that readers and
the coordinator reported in their heartbeats, chunks that wait for the log, and a running seal. A stage that made no
progress for ``pipeline.watchdog`` is reported. It is reported again each time the duration has doubled, and once more
when it makes progress. The watchdog only reports; retry limits and timeouts end a run. If the enumerator does not
answer for ``pipeline.watchdog``, its silence is reported instead of the stages in its last answer, which may have made
progress since.

A log without changes, a table that waits for its turn, and a reader at its rate limit do not count as stalled.
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
#: The minimum for the enumerator, which may take a second or two to answer while it seals a large epoch.
SILENT_MIN_S = 10.0
#: The activity that is reported for a silent enumerator.
SILENT = "has not reported the progress of the job"
SILENT_NOTE = "what tables and readers wait for is not known meanwhile"
#: A stall is reported again when its duration has grown by this factor.
AGAIN_AFTER = 2.0


@dataclass(frozen=True, slots=True)
class _StallKey:
    stage: str
    table: str = ""
    split: str = ""
    reader: int | None = None


@dataclass(slots=True)
class _LastReport:
    """The last report about a stage, and the duration in seconds at which it is repeated."""

    event: StageStalled
    again_s: float
    #: True if a status of the source side showed the stall, False if the driver's tracker did.
    by_status: bool


@dataclass(slots=True)
class _Since:
    """The time since which the figures `shows`, which change with progress, are unchanged."""

    shows: Hashable
    since_s: float


@dataclass(slots=True)
class StallDetector:
    """Decides which events to report, from activities and statuses; without clock and threads."""

    after_s: float
    _reported: dict[_StallKey, _LastReport] = field(default_factory=dict)
    _since: dict[_StallKey, _Since] = field(default_factory=dict)

    def poll(
        self, now_s: float, tracker: ActivityTracker, status: JobStatus | None, *, heard_s: float | None = None
    ) -> Iterator[RunEvent]:
        """Yield the events to report now.

        `heard_s` is the time of `status`, or of the first request for a status (None: now).
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
        """Yield the stages of the status, with the time that they have not moved."""
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
        """Yield the waits between readers: for each, its text and the figures that change if it makes progress."""
        if status.is_rate_limited:
            return  # Readers wait because of the configured rate limit.
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
    """Watches for stalls in a thread; `notify` is called by this thread.

    `asked` and `heard` are called by the thread that polls statuses. `moved` is called when the driver's activities
    have progressed, at most once per check: during a long recovery, nothing else shows progress.
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
        #: The time of the last status, or of the first request for one; None while no status is requested.
        self._heard_s: float | None = None
        #: The activities of the driver.
        self.tracker = ActivityTracker(threads)

    def asked(self, *, asking: bool) -> None:
        """Note that statuses are requested from now on, or no longer because there is no source side."""
        self._status, self._heard_s = None, self._threads.now_s() if asking else None

    def heard(self, status: JobStatus | None) -> None:
        """Store the newest status of the source side. If it is None, the previous status is kept."""
        # An answer that arrives after the last request is ignored.
        if status is not None and self._heard_s is not None:
            self._status, self._heard_s = status, self._threads.now_s()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for stalls until the end of the block."""
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
        """Check for stalls once, and report them."""
        if (moved_s := self.tracker.moved_last_s()) > self._moved_s:
            self._moved_s = moved_s
            self._moved()
        for event in self._stand_stills.poll(self._threads.now_s(), self.tracker, self._status, heard_s=self._heard_s):
            self._notify(event)
