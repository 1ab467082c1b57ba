"""Tells people where a run stands still, and since when: which stage of which table and split, on which reader.

One look a second, at figures that are there anyway: the works of the driver (`raycdc.waiting.stages`), those that
readers and the coordinator told with their heartbeats, chunks that wait for the log, and a seal under way. Work that
has not moved for ``pipeline.watchdog`` is told, again when it has stood twice as long, and once more when it goes on.
Nothing else depends on it: it never ends a run, which patience and time-outs do.

A log without changes, a table that waits for its turn and a reader that keeps to a rate are no work that stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from raycdc.run_events import RunEvent, StoodStill, WentOn
from raycdc.source.protocol.job_status import JobStatus
from raycdc.threads import THREADS, Threads
from raycdc.waiting.stages import Board, Stage

LOOK_S = 1.0
#: A stand-still is told again when it has lasted this many times as long.
AGAIN_AFTER = 2.0


@dataclass(frozen=True, slots=True)
class _Place:
    stage: str
    table: str = ""
    split: str = ""
    reader: int | None = None


@dataclass(slots=True)
class _Told:
    """What was told last of a place, and after how many seconds it is told again."""

    event: StoodStill
    again_s: float


@dataclass(slots=True)
class _Since:
    """Since when nothing of a place has changed that shows a movement."""

    shows: Hashable
    since_s: float


@dataclass(slots=True)
class StandStills:
    """The decisions, without clock and threads: statuses in, events out."""

    after_s: float
    _told: dict[_Place, _Told] = field(default_factory=dict)
    _since: dict[_Place, _Since] = field(default_factory=dict)

    def look(self, now_s: float, board: Board, status: JobStatus | None) -> Iterator[RunEvent]:
        """The events to tell now."""
        found = dict(self._found(now_s, board, status))
        for place, told in list(self._told.items()):
            if place not in found or found[place].seconds < self.after_s:
                del self._told[place]
                yield WentOn(told.event)
        for place, event in found.items():
            before = self._told.get(place)
            if event.seconds < self.after_s:
                continue
            if before is None or event.seconds >= before.again_s:
                self._told[place] = _Told(event, event.seconds * AGAIN_AFTER)
                yield event
            else:
                before.event = event

    def over(self) -> list[RunEvent]:
        """The events of an end at which nothing stands any more."""
        told, self._told = self._told, {}
        return [WentOn(each.event) for each in told.values()]

    def _found(self, now_s: float, board: Board, status: JobStatus | None) -> Iterator[tuple[_Place, StoodStill]]:
        for one in board.standing():
            yield self._event(_Place(one.stage, one.table, one.split), one.doing, one.seconds, one.note)
        if status is None:
            return
        for one in status.standing:
            yield self._event(_Place(one.stage, one.table, one.split), one.doing, one.seconds, one.note)
        for reader in status.readers:
            for one in reader.process.standing:
                place = _Place(one.stage, one.table, one.split, reader.subtask)
                yield self._event(place, one.doing, one.seconds, one.note)
        seen = dict(self._observed(status))
        self._since = {place: since for place, since in self._since.items() if place in seen}
        for place, (doing, shows) in seen.items():
            since = self._since.get(place)
            if since is None or since.shows != shows:
                since = self._since[place] = _Since(shows, now_s)
            yield self._event(place, doing, now_s - since.since_s)

    def _observed(self, status: JobStatus) -> Iterator[tuple[_Place, tuple[str, Hashable]]]:
        """What readers wait for in each other: in words, and by what one sees that it moves."""
        if status.is_paced:
            return  # They wait for the pace that was asked for.
        moves = sum(reader.process.moves for reader in status.readers)
        places = tuple(reader.metrics.log.ordinal for reader in status.readers if reader.metrics.log is not None)
        for reader in status.readers:
            for wait in reader.metrics.waits:
                place = _Place(Stage.HAND_OFF, str(wait.table), wait.split, reader.subtask)
                yield place, (wait.doing, (wait.doing, places, moves))
        if (sealing := status.sealing) is not None:
            named = ", ".join(map(str, sealing.waiting))
            files = tuple(reader.process.sealing for reader in status.readers)
            doing = f"epoch {sealing.epoch} waits for reader {named} to seal its part"
            yield _Place(Stage.SEAL), (doing, (sealing.epoch, sealing.waiting, files))

    def _event(self, place: _Place, doing: str, seconds: float, note: str = "") -> tuple[_Place, StoodStill]:
        event = StoodStill(place.stage, place.table, place.split, place.reader, doing, note, round(seconds, 1))
        return place, event


class Watchdog:
    """See the module's docstring. `tell` is called by its thread; `heard` by whoever has a new status. `moved` hears
    that works of the driver have moved, at most once a look: a recovery may take long, and has no other sign of life.
    """

    def __init__(
        self,
        after_s: float,
        tell: Callable[[RunEvent], None],
        moved: Callable[[], None] = lambda: None,
        *,
        threads: Threads = THREADS,
    ) -> None:
        self._stand_stills = StandStills(after_s)
        self._tell = tell
        self._moved = moved
        self._moved_s = 0.0
        self._threads = threads
        self._status: JobStatus | None = None
        #: The works of the driver.
        self.board = Board(threads)

    def heard(self, status: JobStatus | None) -> None:
        """The newest status of the source side; None while there is none."""
        self._status = status

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look while the block runs."""
        ended = threading.Event()

        def watch() -> None:
            while not self._threads.wait(ended, LOOK_S):
                self.look()

        thread = self._threads.start(watch, "watchdog")
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=5)
        for event in self._stand_stills.over():
            self._tell(event)

    def look(self) -> None:
        """Look once."""
        if (moved_s := self.board.moved_last_s()) > self._moved_s:
            self._moved_s = moved_s
            self._moved()
        for event in self._stand_stills.look(self._threads.now_s(), self.board, self._status):
            self._tell(event)
