"""The status of a run as one frozen value, and its change by each event of the run.

Pure: no clock, no thread. An event makes a new value that shares its unchanged parts with the previous one, so users
may keep old values. The cost of an event grows with its own size, and not with the number of tables
(`raycdc.observe.status.persistent_map`). Only a new or removed table costs a copy of the sorted names. Memory is one
small record per table, and the last warnings and errors.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from raycdc.model.engines import NO_ENGINE_ROWS, EngineRows
from raycdc.observe.events import (
    CaughtUp,
    Committed,
    Failed,
    Lags,
    RunEvent,
    RunProgress,
    Scaling,
    StageResumed,
    StageStalled,
    StandbyWaiting,
    Started,
    Starting,
    Stopped,
    TableFigures,
    TableParked,
    TablePhaseChanged,
    TookOver,
    Warned,
)
from raycdc.observe.status.persistent_map import PersistentMap
from raycdc.observe.status.stages import Speed, Stages
from raycdc.source.tables.table_life import ParkedPhase, is_nothing

if TYPE_CHECKING:
    from raycdc.source.protocol.job_status import JobStatus

#: The number of remembered warnings and errors.
NOTES_MAX = 50
#: The phases of a table in which its earlier parking no longer matters.
_FOLLOWED = ("snapshot", "stream", "resuming", "ended", "removed")


@dataclass(frozen=True, slots=True)
class Moment:
    """A time: seconds of a monotonic clock, and milliseconds since 1970 in UTC."""

    s: float = 0.0
    ms: int = 0


@dataclass(frozen=True, slots=True)
class RunProcess:
    """The process that runs a pipeline, and the pipeline's name. `sink` is the type and location of its sink."""

    pipeline: str
    sink: str
    local: bool
    host: str
    pid: int
    started_ms: int

    @classmethod
    def here(cls, pipeline: str = "", sink: str = "", *, local: bool = False) -> RunProcess:
        """Return the present process as one that begins a run now."""
        return cls(pipeline, sink, local, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True)
class CommitReport:
    """An epoch that is in the sink."""

    epoch: int
    at_ms: Annotated[
        int | None,
        Field(description="The time of the commit; null if the status comes from a state that does not have it."),
    ]
    rows: Annotated[int | None, Field(description="Rows of the epoch: of the table, or of all tables.")] = None


@dataclass(frozen=True, slots=True)
class RunMessage:
    """A warning or an error of the run."""

    at_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table of the run: its newest figures, and the rates of its rows, its chunks and its backfill."""

    figures: TableFigures
    rows: Speed
    chunks: Speed
    backfill: Speed | None = None

    @classmethod
    def first(cls, figures: TableFigures, now_s: float) -> KnownTable:
        """Return a table with its first figures."""
        return cls(figures, Speed(now_s, figures.rows), Speed(now_s, figures.chunks_done))

    def after(self, figures: TableFigures, now_s: float) -> KnownTable:
        """Return the table with newer figures."""
        before, backfill = self.figures, self._backfill(figures, now_s)
        if (figures.rows, figures.chunks_done) == (before.rows, before.chunks_done):
            return KnownTable(figures, self.rows, self.chunks, backfill)
        rows, chunks = self.rows.after(figures.rows, now_s=now_s), self.chunks.after(figures.chunks_done, now_s=now_s)
        return KnownTable(figures, rows, chunks, backfill)

    def _backfill(self, figures: TableFigures, now_s: float) -> Speed | None:
        if figures.backfill is None:
            return None
        done = figures.backfill.chunks_done
        if self.backfill is None or done < self.backfill.count:
            return Speed(now_s, done)
        return self.backfill if done == self.backfill.count else self.backfill.after(done, now_s=now_s)

    def snapshot_left_s(self, now_s: float) -> float | None:
        """Return the remaining seconds of the snapshot, by estimated rows or otherwise by known chunks.

        None if unknown.
        """
        figures, about = self.figures, self.figures.rows_about
        rate, left = self.chunks.now(now_s), figures.chunks_total - figures.chunks_done
        if about and figures.amount is not None and (by_rows := self.rows.now(now_s)):
            rate, left = by_rows, about - figures.amount.rows
        return left / rate if rate and figures.phase == "snapshot" else None


@dataclass(frozen=True, slots=True)
class RunTables:
    """Every table of the run, with totals. Names for which no table was found are not counted."""

    known: PersistentMap[str, KnownTable] = field(default_factory=PersistentMap)
    #: In ascending order.
    names: tuple[str, ...] = ()
    #: The number of tables in each phase.
    phases: Mapping[str, int] = field(default_factory=dict)
    rows_left_out: int = 0
    values_lost: int = 0
    #: The sum of the row rates of all tables; None before the first figures.
    rows: Speed | None = None
    rows_read: int = 0

    def in_order(self) -> list[KnownTable]:
        """Return all tables in the order of their names."""
        return [self.known[name] for name in self.names]

    def after(self, tables: Sequence[TableFigures], now_s: float) -> RunTables:
        """Return the tables after newer figures of some of them came."""
        if not tables and self.rows is not None:
            return self
        changed, dropped, phases = dict[str, KnownTable](), set[str](), dict(self.phases)
        left_out, lost, read = self.rows_left_out, self.values_lost, self.rows_read
        for figures in tables:
            name, before = figures.table, changed.get(figures.table) or self.known.get(figures.table)
            if before is not None:
                phases[before.figures.phase] -= 1
                left_out -= before.figures.bad_rows or 0
                lost -= before.figures.lost_values
            if figures.parked is not None and is_nothing(figures.parked):
                if before is not None:
                    dropped.add(name)
                continue
            if before is None:
                changed[name] = KnownTable.first(figures, now_s)
            else:
                read += max(0, figures.rows - before.figures.rows)
                changed[name] = before.after(figures, now_s)
            phases[figures.phase] = phases.get(figures.phase, 0) + 1
            left_out += figures.bad_rows or 0
            lost += figures.lost_values
        rows = self.rows or Speed(now_s, 0)
        return RunTables(
            self.known.with_changes(changed, dropped),
            self._names_after(changed, dropped),
            {phase: count for phase, count in phases.items() if count},
            left_out,
            lost,
            rows if read == rows.count else rows.after(read, now_s=now_s),
            read,
        )

    def _names_after(self, changed: Collection[str], dropped: Collection[str]) -> tuple[str, ...]:
        new = [name for name in changed if name not in self.known]
        if not new and not dropped:
            return self.names
        # Sorting is linear, because all but the new names are sorted already.
        return tuple(sorted((*(name for name in self.names if name not in dropped), *new)))


@dataclass(frozen=True, slots=True)
class RunCommits:
    """The commits of the run.

    `seconds` is the duration of the last epoch, and `by_table` the last epoch with rows of each table. `engines` has
    the engines that read and wrote the rows.
    """

    count: int = 0
    rows: int = 0
    last: CommitReport | None = None
    seconds: float = 0.0
    by_table: PersistentMap[str, CommitReport] = field(default_factory=PersistentMap)
    engines: EngineRows = NO_ENGINE_ROWS

    def after(self, event: Committed, at_ms: int) -> RunCommits:
        """Return the commits with one more epoch."""
        by_table = {name: CommitReport(event.epoch, at_ms, rows) for name, rows in event.tables.items() if rows}
        return RunCommits(
            self.count + 1,
            self.rows + event.rows,
            CommitReport(event.epoch, at_ms, event.rows),
            event.seconds,
            self.by_table.with_changes(by_table),
            self.engines + event.engines,
        )


@dataclass(frozen=True, slots=True)
class Notices:
    """The warnings and errors of a run: their numbers, and the newest ones."""

    #: Each warning with the parked table that it is about, or an empty text.
    _warnings: tuple[tuple[str, RunMessage], ...] = ()
    errors: tuple[RunMessage, ...] = ()
    warnings_count: int = 0
    errors_count: int = 0

    @property
    def warnings(self) -> tuple[RunMessage, ...]:
        """Return the newest warnings, oldest first."""
        return tuple(note for _, note in self._warnings)

    def warned(self, text: str, at_ms: int, *, parked: str = "") -> Notices:
        """Return the notices with one more warning.

        If it is about the parked table `parked`, it is removed when that table is followed again.
        """
        warnings = (*self._warnings, (parked, RunMessage(at_ms, text)))[-NOTES_MAX:]
        return replace(self, _warnings=warnings, warnings_count=self.warnings_count + 1)

    def followed(self, table: str) -> Notices:
        """Return the notices after the table is followed again.

        Warnings about its parking are removed here; the log keeps them.
        """
        if all(parked != table for parked, _ in self._warnings):
            return self
        return replace(self, _warnings=tuple(each for each in self._warnings if each[0] != table))

    def failed(self, text: str, at_ms: int) -> Notices:
        """Return the notices with one more error."""
        return replace(
            self, errors=(*self.errors, RunMessage(at_ms, text))[-NOTES_MAX:], errors_count=self.errors_count + 1
        )


_NO_PROGRESS = RunProgress((), Lags(), ())
_NO_STAGES = Stages()


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run."""

    run: RunProcess
    #: The activity of the run: starting, running or ended; or the description of a step of its start.
    step: str = "starting"
    #: How the run ended: "caught up", "stopped", "failed" or "interrupted"; "closed" by a caller that took its epochs;
    #: empty before.
    end: str = ""
    #: The processes that were started last.
    started: Started | None = None
    #: The reason for the present number of readers.
    scaling: str = ""
    tables: RunTables = RunTables()
    #: The newest figures other than those of tables, and the time of these figures.
    progress: RunProgress = _NO_PROGRESS
    progress_at: Moment | None = None
    commits: RunCommits = RunCommits()
    notices: Notices = Notices()
    stages: Stages = _NO_STAGES
    #: The time of the newest event, or of the start of the run.
    heard: Moment = Moment()

    @property
    def job(self) -> JobStatus | None:
        """Return the newest status of the source side."""
        return self.progress.job

    @property
    def readers(self) -> int:
        """Return the number of readers."""
        return len(self.progress.readers) or (0 if self.started is None else len(self.started.readers))

    @property
    def ended_in_order(self) -> bool:
        """Return True if the run has ended, and no error or interrupt ended it."""
        return self.end in ("caught up", "stopped", "closed")

    def behind_ms(self, now_s: float) -> int | None:
        """Return the lag in milliseconds: now minus the time up to which the source's changes are in the sink.

        None if unknown.
        """
        behind_ms, at = self.progress.behind_ms, self.progress_at
        return None if behind_ms is None or at is None else round(behind_ms + (now_s - at.s) * 1000)

    def after(self, event: RunEvent, now: Moment) -> RunStatus:
        """Return the status after `event`."""
        return replace(self._after(event, now), heard=now)

    def after_end(self, error: BaseException | None, now: Moment) -> RunStatus:
        """Return the status after the end of the run with `error`, which its caller gets.

        None means that the caller closed the run.
        """
        ended = replace(self, step="ended", end="closed", heard=now)
        match error:
            case None:
                return ended
            case Exception():
                text = Failed.of(error).text
                # The loss of a cluster is reported by an event before it ends the run.
                reported = any(text == each.text for each in self.notices.errors)
                notices = self.notices if reported else self.notices.failed(text, now.ms)
                return replace(ended, end="failed", notices=notices)
            case _:
                return replace(ended, end="interrupted")

    def _after(self, event: RunEvent, now: Moment) -> RunStatus:
        match event:
            case Starting(step):
                return replace(self, step=step)
            case StandbyWaiting() | TookOver():
                return replace(self, step=str(event))
            case Started():
                return replace(self, step="running", started=event, progress=replace(self.progress, readers=()))
            case Scaling(reason=reason):
                return replace(self, scaling=reason)
            case CaughtUp() | Stopped():
                return replace(self, step="ended", end="caught up" if isinstance(event, CaughtUp) else "stopped")
            case RunProgress():
                return self._progressed(event, now)
            case Committed():
                stages = self.stages.committed(staging_s=event.staging_s, commit_s=event.commit_s)
                return replace(self, stages=stages, commits=self.commits.after(event, now.ms))
            case _:
                return replace(self, notices=self._noticed(event, now.ms))

    def _progressed(self, event: RunProgress, now: Moment) -> RunStatus:
        job = self.job if event.job is None else event.job
        return replace(
            self,
            tables=self.tables.after(event.tables, now.s),
            progress=replace(event, tables=(), job=job),
            progress_at=now,
            stages=self.stages if event.job is None else self.stages.observed(event.job, now_s=now.s),
        )

    def _noticed(self, event: RunEvent, at_ms: int) -> Notices:
        match event:
            case Warned(text):
                return self.notices.warned(text, at_ms)
            case StageStalled() | StageResumed():
                return self.notices.warned(str(event), at_ms)
            case TableParked(table, parked) if parked.phase is ParkedPhase.PARKED and not parked.again:
                return self.notices.warned(f"{table} is parked: {parked.reason}", at_ms, parked=table)
            case TablePhaseChanged(table, _, phase) if phase in _FOLLOWED:
                return self.notices.followed(table)
            case Failed(_, text):
                return self.notices.failed(text, at_ms)
            case _:
                return self.notices
