"""The recent history of a run, for charts: samples of its figures, its newest epochs, and schema changes.

Samples are taken every second, every ten seconds and every two minutes, each kept for a limited time, so a day costs
less than a megabyte. The history is made from the events of a run, which come a few times a second at most; no work is
done per row.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Annotated

from pydantic import Field

from raycdc.observe.events import Committed, RunEvent, SchemaChanged
from raycdc.observe.status import Moment, StatusKeeper

#: The seconds of each step, and the number of its samples that are kept: five minutes, an hour, a day.
STEPS = ((1, 300), (10, 360), (120, 720))
#: The maximum number of remembered epochs, of largest tables per epoch, and of schema changes.
EPOCHS_MAX = 300
CHANGES_MAX = 200
#: The time without an epoch after which the rate of committed rows is 0.
PATIENT_S = 5.0
TABLES_OF_EPOCH_MAX = 3


@dataclass(frozen=True, slots=True)
class Series:
    """The samples of one step from a moment on, as columns, oldest first. Steps without data have no sample."""

    step_seconds: int
    count: Annotated[
        int, Field(description="Number of samples that this run has taken so far, including those that are not here.")
    ]
    at_ms: tuple[int, ...]
    read_per_second: Annotated[tuple[float | None, ...], Field(description="Rows read per second.")]
    committed_per_second: Annotated[tuple[float | None, ...], Field(description="Rows committed per second.")]
    lag_ms: Annotated[tuple[int | None, ...], Field(description="The longest lag of the step.")]


@dataclass(frozen=True, slots=True)
class EpochReport:
    """An epoch that this run wrote."""

    epoch: int
    at_ms: Annotated[int, Field(description="The time of its record.")]
    rows: int
    staging_seconds: Annotated[float, Field(description="Time to write its rows.")]
    commit_seconds: Annotated[float, Field(description="Time to record it in the sink.")]
    tables: Annotated[int, Field(description="Number of tables with rows in the epoch.")]
    largest: Annotated[tuple[tuple[str, int], ...], Field(description="The tables with the most rows.")]


@dataclass(frozen=True, slots=True)
class ChangeReport:
    """A change of a table's schema that this run brought to its target."""

    at_ms: int
    epoch: int
    table: str
    target: str
    changes: Annotated[
        tuple[str, ...], Field(description="The changes for people, with names of columns and no values.")
    ]


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ms: int
    read: float | None
    committed: float | None
    lag_ms: int | None


class _Ring:
    """The samples of one step."""

    def __init__(self, step_s: int, kept: int) -> None:
        self.step_s = step_s
        self.count = 0
        self._kept: deque[_Sample] = deque(maxlen=kept)
        self._seen: list[_Sample] = []
        self._step = 0

    def saw(self, sample: _Sample, *, now_s: float) -> None:
        step = int(now_s // self.step_s)
        if self._seen and step != self._step:
            self._kept.append(_summed_up(self._seen))
            self.count += 1
            self._seen = []
        self._step = step
        self._seen.append(sample)

    def since(self, count: int) -> Series:
        """Return the samples after the first `count`, as far as they are still kept."""
        new = min(max(0, self.count - count), len(self._kept))
        samples = [*islice(self._kept, len(self._kept) - new, None)]
        return Series(
            step_seconds=self.step_s,
            count=self.count,
            at_ms=tuple(each.at_ms for each in samples),
            read_per_second=tuple(each.read for each in samples),
            committed_per_second=tuple(each.committed for each in samples),
            lag_ms=tuple(each.lag_ms for each in samples),
        )


class _CommitRate:
    """The rate of committed rows: the rows of the last period of at least one second, divided by its length.

    The rate is 0 when no epoch came for twice that length.
    """

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._waiting = 0
        self._last: tuple[int, float] | None = None

    def saw(self, rows: int, *, now_s: float) -> None:
        self._waiting += rows
        if now_s - self._at_s >= 1:
            self._last = (self._waiting, now_s - self._at_s)
            self._at_s, self._waiting = now_s, 0

    def now(self, now_s: float) -> float | None:
        if self._last is None:
            return None
        rows, took_s = self._last
        return rows / took_s if now_s - self._at_s <= max(2 * took_s, PATIENT_S) else 0.0


def _summed_up(samples: list[_Sample]) -> _Sample:
    """Return one sample that summarises several: the mean of each rate, and the longest lag."""
    lags = [each.lag_ms for each in samples if each.lag_ms is not None]
    return _Sample(
        samples[0].at_ms,
        _mean([each.read for each in samples]),
        _mean([each.committed for each in samples]),
        max(lags, default=None),
    )


def _mean(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known) / len(known), 1) if known else None


class History:
    """The history of one run. `listen` is called by one thread at a time; any thread may call the other methods."""

    def __init__(self, keeper: StatusKeeper) -> None:
        self._keeper = keeper
        self._lock = threading.Lock()
        self._rings = [_Ring(step_s, kept) for step_s, kept in STEPS]
        self._sampled_s = float("-inf")
        self._committed = _CommitRate(keeper.now().s)
        self._epochs: deque[EpochReport] = deque(maxlen=EPOCHS_MAX)
        self._epochs_count = 0
        self._changes: deque[ChangeReport] = deque(maxlen=CHANGES_MAX)

    def __repr__(self) -> str:
        return f"History({self._epochs_count} epochs)"

    def listen(self, event: RunEvent) -> None:
        """Add an event of the run. The keeper of the run's status must get the event first."""
        now = self._keeper.now()
        now_s = now.s
        if isinstance(event, Committed):
            self._commit(event, now)
        elif isinstance(event, SchemaChanged):
            with self._lock:
                self._changes.append(ChangeReport(now.ms, event.epoch, event.table, event.target, event.changes))
        if now_s - self._sampled_s < STEPS[0][0]:
            return
        self._sampled_s = now_s
        status = self._keeper.status
        read = None if status.tables.rows is None else status.tables.rows.now(now_s)
        sample = _Sample(now.ms, read, self._committed.now(now_s), status.behind_ms(now_s))
        with self._lock:
            for ring in self._rings:
                ring.saw(sample, now_s=now_s)

    def _commit(self, event: Committed, now: Moment) -> None:
        self._committed.saw(event.rows, now_s=now.s)
        largest = nlargest(TABLES_OF_EPOCH_MAX, event.tables.items(), key=lambda table: table[1])
        report = EpochReport(
            epoch=event.epoch,
            at_ms=now.ms,
            rows=event.rows,
            staging_seconds=round(event.staging_s, 3),
            commit_seconds=round(event.commit_s, 3),
            tables=sum(1 for rows in event.tables.values() if rows),
            largest=tuple((table, rows) for table, rows in largest if rows),
        )
        with self._lock:
            self._epochs.append(report)
            self._epochs_count += 1

    def series(self, counts: tuple[int, ...]) -> tuple[Series, ...]:
        """Return the samples of each step after the first `counts` ones."""
        with self._lock:
            return tuple(ring.since(count) for ring, count in zip(self._rings, counts, strict=True))

    def epochs(self, count: int) -> tuple[int, tuple[EpochReport, ...]]:
        """Return the number of epochs so far, and those after the first `count` that are still kept, oldest first."""
        with self._lock:
            new = min(max(0, self._epochs_count - count), len(self._epochs))
            return self._epochs_count, tuple(islice(self._epochs, len(self._epochs) - new, None))

    def changes(self) -> tuple[ChangeReport, ...]:
        """Return the newest schema changes, oldest first."""
        with self._lock:
            return tuple(self._changes)
