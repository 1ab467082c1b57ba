"""Tracks the present work of a process: its stage, table and split, a description, and how long it has been stalled.

A thread reports the work that it begins (`ActivityTracker.doing`). Functions that it calls then report their progress
(`moved`), or the thing for which they wait (`note`); they need no reference to the tracker. Reports are made per batch,
statement or file, never per row. `ActivityTracker.stalled` lists work that made no progress for `STANDS_S`. Readers
send this list with their heartbeats, and `raycdc.observe.watch.watchdog` reports it.

| stage | of | is stalled while |
|---|---|---|
| `open` | a source's log or chunk connection, the sink | the server does not accept the connection |
| `ask` | the enumerator's queries | the server does not answer |
| `log` | the log | a fetch does not return (a fetch from an idle log returns without rows) |
| `chunk` | a chunk of a table | no batch of the chunk comes |
| `hand-off` | a chunk of a table | neither the log nor any chunk makes progress |
| `seal` | an epoch | no reader sends a report or syncs a file |
| `enumerator` | the enumerator | the enumerator sends no status, so the stages `ask` to `seal` are unknown |
| `look` | a target | the sink does not return the target's commit vector |
| `schema`, `stage`, `commit` | a target | no statement and no task ends |
| `record` | an epoch | the commit record is not written |

`ActivityTracker.on_part` is called with the duration of each part of an epoch when it ends.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from raycdc.core.threads import THREADS, Threads

#: Work that is stalled for a shorter time is not reported, which keeps heartbeats small.
STANDS_S = 1.0
#: The maximum length of a note.
_NOTE_MAX = 160
#: The beginning of the part of a statement that may contain values of rows.
_VALUES = re.compile(r"\s(?:WHERE|VALUES|SET|LIMIT|HAVING)\b.*|['(].*", re.IGNORECASE | re.DOTALL)


class Stage(StrEnum):
    """The stage of some work; see the module's docstring.

    Events have these names (`raycdc.observe.events`), and programs read them, so they must not change.
    """

    OPEN = "open"
    ASK = "ask"
    LOG = "log"
    CHUNK = "chunk"
    HAND_OFF = "hand-off"
    SEAL = "seal"
    ENUMERATOR = "enumerator"
    INSPECT = "inspect"
    SCHEMA = "schema"
    STAGE = "stage"
    COMMIT = "commit"
    RECORD = "record"


@dataclass(frozen=True, slots=True)
class Stalled:
    """Work without progress for `seconds`: its `stage`, and the names of its `table` and `split` (empty: none).

    `doing` describes the work in words. `note` is the present statement or error (empty: none). The value is sent in
    messages.
    """

    stage: str
    table: str
    split: str
    doing: str
    note: str
    seconds: float


@dataclass(frozen=True, slots=True)
class EpochPart:
    """The part of an epoch that a piece of work does: the `epoch`, its `rows` and `bytes`, and the number
    of `targets`.
    """

    epoch: int
    rows: int
    bytes: int
    targets: int = 1


@dataclass(frozen=True, slots=True)
class EndedPart:
    """A finished part of an epoch, with its begin and end in nanoseconds of the wall clock.

    `error` is the class of the error that ended it (empty: none).
    """

    part: EpochPart
    stage: Stage
    table: str
    began_ns: int
    ended_ns: int
    error: str = ""


@dataclass(slots=True, eq=False)
class _Activity:
    """A piece of work that a thread does. Only this thread changes the object, so no lock is needed."""

    stage: Stage
    table: str
    split: str
    does: str
    moved_s: float
    note: str = ""
    rests: bool = False
    troubled: bool = False


class _Here(threading.local):
    """The activities of a thread, the innermost last, each with the clock of its tracker."""

    def __init__(self) -> None:
        self.running: list[tuple[_Activity, Threads]] = []


_here = _Here()


class ActivityTracker:
    """The present work of a process, or of one reader in it. Thread-safe.

    `around` returns a description of work outside of the tracked threads (jobs of Spark). A changed description counts
    as progress.
    """

    def __init__(self, threads: Threads = THREADS) -> None:
        self._threads = threads
        self._running: set[_Activity] = set()
        self._lock = threading.Lock()
        self.around: Callable[[], str] = lambda: ""
        self._around = ""
        self._around_s = 0.0
        #: The time at which an activity last ended.
        self._ended_s = 0.0
        #: The number of batches that came and of activities that ended. Other threads compare it to detect progress.
        self.moves = 0
        #: Called at the end of each part of an epoch, by the thread that did the part. The function must return
        #: immediately and raise nothing.
        self.on_part: Callable[[EndedPart], None] | None = None

    def __repr__(self) -> str:
        return f"ActivityTracker({[(work.stage, work.table, work.split) for work in self._list()]})"

    @contextmanager
    def doing(
        self, stage: Stage, does: str, *, table: str = "", split: str = "", part: EpochPart | None = None
    ) -> Iterator[None]:
        """Track the calling thread's work within the block.

        `does` is a verb with its object, for people.

        `part` is passed to `on_part`.
        """
        work = self._begun(stage, does, table=table, split=split)
        began_s, error = work.moved_s, ""
        _here.running.append((work, self._threads))
        try:
            yield
        except BaseException as cause:
            error = type(cause).__name__
            raise
        finally:
            _here.running.pop()
            self._ended(work)
            if part is not None and self.on_part is not None:
                # Uses two clocks, because the wall clock may be set while the work runs.
                ended_ns, took_ns = time.time_ns(), int((self._threads.now_s() - began_s) * 1e9)
                self.on_part(EndedPart(part, stage, table, ended_ns - took_ns, ended_ns, error))

    def lasting(self, stage: Stage, does: str) -> RecurringActivity:
        """Return work that is repeated until it is closed; see `RecurringActivity`."""
        work = self._begun(stage, does)
        work.rests = True
        return RecurringActivity(work, self._threads, lambda: self._ended(work))

    def came(self) -> None:
        """Report that a batch came. This is progress of the thread's work, and increases `moves`."""
        self.moves += 1
        moved()

    def stalled(self) -> tuple[Stalled, ...]:
        """Return the activities without progress for `STANDS_S`, in any order."""
        now_s = self._threads.now_s()
        running = [work for work in self._list() if now_s - work.moved_s >= STANDS_S and not work.rests]
        if not running:
            return ()
        around = self._surroundings(now_s)
        found = []
        for work in running:
            words = "; ".join(part for part in (work.note, around) if part)
            # Work that waits for a retry is not advanced by other work.
            stood_s = now_s - (max(work.moved_s, self._around_s) if around and not work.troubled else work.moved_s)
            if stood_s >= STANDS_S:
                found.append(Stalled(work.stage, work.table, work.split, work.does, words, round(stood_s, 1)))
        return tuple(found)

    def moved_last_s(self) -> float:
        """Return the time at which an activity last began, moved or ended, by the clock of its threads; 0 before the
        first.
        """
        running = self._list()
        if running:
            self._surroundings(self._threads.now_s())
        return max(self._ended_s, self._around_s, *(work.moved_s for work in running), 0.0)

    def _begun(self, stage: Stage, does: str, *, table: str = "", split: str = "") -> _Activity:
        work = _Activity(stage, table, split, does, self._threads.now_s())
        with self._lock:
            self._running.add(work)
        return work

    def _ended(self, work: _Activity) -> None:
        with self._lock:
            self._running.discard(work)
            self._ended_s = self._threads.now_s()

    def _surroundings(self, now_s: float) -> str:
        """Return the present text of `around`, and note the time if it has changed."""
        if (words := self.around()) != self._around:
            self._around, self._around_s = words, now_s
        return self._around

    def _list(self) -> list[_Activity]:
        with self._lock:
            return list(self._running)


class RecurringActivity:
    """A repeated activity of one thread. It cannot be stalled between two turns, except while it is `failing`."""

    def __init__(self, work: _Activity, threads: Threads, end: Callable[[], None]) -> None:
        self._work = work
        self._threads = threads
        self.close = end

    def __repr__(self) -> str:
        return f"RecurringActivity({self._work})"

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Mark this thread as doing the activity during the block."""
        work = self._work
        if not work.troubled:
            work.moved_s, work.rests = self._threads.now_s(), False
        _here.running.append((work, self._threads))
        try:
            yield
        finally:
            _here.running.pop()
            work.rests = not work.troubled


def note(words: str) -> None:
    """Note what the calling thread's work does or waits for now. Does nothing in a process without a tracker."""
    if _here.running:
        work, threads = _here.running[-1]
        if not work.troubled:
            work.note, work.moved_s = words[:_NOTE_MAX], threads.now_s()


def note_statement(sql: str) -> None:
    """`note` a statement, up to where values of rows may begin."""
    if _here.running:
        note(" ".join(_VALUES.sub(" …", sql[: 4 * _NOTE_MAX]).split()))


def moved() -> None:
    """Report progress of the calling thread's work."""
    if _here.running:
        work, threads = _here.running[-1]
        if not work.troubled:
            work.moved_s = threads.now_s()


def failing(words: str) -> None:
    """Report that the calling thread's work failed and is retried.

    The work counts as stalled until `over` is called.
    """
    if _here.running and not (work := _here.running[-1][0]).troubled:
        # A failure is no progress: stalled work stays stalled.
        work.note, work.troubled = words[:_NOTE_MAX], True


def over() -> None:
    """Report that the retried work succeeded, or that it was given up."""
    if _here.running:
        _here.running[-1][0].troubled = False
        note("")


@contextmanager
def resting() -> Iterator[None]:
    """Mark the calling thread as waiting on purpose within the block, so that it does not count as stalled."""
    if not _here.running:
        yield
        return
    work, threads = _here.running[-1]
    work.rests = True
    try:
        yield
    finally:
        work.rests, work.moved_s = False, threads.now_s()
