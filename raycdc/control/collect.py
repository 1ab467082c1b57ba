"""Keeps what a running pipeline tells of itself, and makes its `Status` for whoever asks.

The events of a run (`raycdc.run_events`) and the statuses of its source side come in; what is done with each follows
what changed, and the document is made when somebody asks for it. Memory is one small record per table, and the last
warnings and errors.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

from raycdc.control.history import Pace
from raycdc.control.model import (
    EVERY_TABLE,
    VERSION,
    BackfillReport,
    Backlog,
    Chosen,
    Commit,
    Counts,
    JobReport,
    LagReport,
    Note,
    ParkedReport,
    ReaderReport,
    ResumingReport,
    Run,
    SnapshotReport,
    Status,
    TableReport,
    backfill_report,
)
from raycdc.control.rates import Speed
from raycdc.control.stages import Stages
from raycdc.control.table_order import Known
from raycdc.model import TableId
from raycdc.run_events import (
    CaughtUp,
    Committed,
    Failed,
    Lags,
    PartitionLags,
    Progress,
    RunEvent,
    Started,
    Starting,
    StoodStill,
    Stopped,
    TableFigures,
    TableParked,
    TookOver,
    Waiting,
    Warned,
    WentOn,
)
from raycdc.source.connector import LogRoom
from raycdc.source.parking import TableRequest
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus
from raycdc.source.split import STREAM_SPLIT_ID
from raycdc.source.table_life import Parked

#: So many warnings and errors are remembered.
NOTES_MAX = 50
#: So many tables are picked at once; of more a copy is looked through, while events come in.
FEW = 1000
#: The reasons of what a user asked for, which is no warning: the table's own line says it for as long as it is so.
_ASKED_FOR = frozenset(request.reason for request in TableRequest) - {TableRequest.RESUME.reason}
#: A pipeline that is less behind is held up by nothing but its epochs.
KEEPS_UP_MS = 10_000


@dataclass(frozen=True, slots=True)
class About:
    """What is known of a run before it begins. `place_text` writes a parked table's position for people; `log_room`
    asks the source, and may take a moment.
    """

    pipeline: str
    sink: str
    local: bool
    targets: Callable[[TableId], tuple[TableId, ...]]
    log_room: Callable[[], LogRoom | None] = lambda: None
    place_text: Callable[[Parked], str] = lambda _: ""


class Collector:
    """See the module's docstring. `listen` and `heard` are called by one thread at a time, `status` by any."""

    def __init__(
        self,
        about: About,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._about = about
        self._clock, self._wall_ms = clock, wall_ms
        self._lock = threading.Lock()
        self._run = Run(socket.gethostname(), os.getpid(), wall_ms(), "starting", about.local)
        self._job: JobStatus | None = None
        #: When the run looked at its processes last, or said something, or its driver's work moved.
        self._heard_s = clock()
        self._tables = Tables()
        self._stages = Stages()
        self._journal = Journal(wall_ms)
        self._lag: LagReport | None = None
        #: How far the sink was behind, and when that was so.
        self._behind: tuple[int, float] | None = None

    def __repr__(self) -> str:
        return f"Collector({self._about.pipeline!r}, {self._run.step!r})"

    def heard(self, status: JobStatus | None) -> None:
        """The newest status of the source side; while there is none, the last one stays."""
        self._heard_s = self._clock()
        if status is None:
            return
        with self._lock:
            self._job = status
            self._stages.look(status, now_s=self._clock())

    def moved(self) -> None:
        """The driver's work goes on."""
        self._heard_s = self._clock()

    def listen(self, event: RunEvent) -> None:
        """An event of the run."""
        self._heard_s = self._clock()
        with self._lock:
            self._heed(event)

    @property
    def pipeline(self) -> str:
        """The pipeline's name."""
        return self._about.pipeline

    @property
    def step(self) -> str:
        """What the run does now, as `Run.step`."""
        return self._run.step

    def silent_s(self) -> float:
        """For how long a run that reads and writes has neither looked at its processes nor said anything, and nothing
        of its driver's work has moved, in seconds; 0 while it starts, waits or ends, which may take as long as it does.
        """
        return self._clock() - self._heard_s if self._run.step == "running" else 0.0

    @property
    def job(self) -> JobStatus | None:
        """The newest status of the source side."""
        return self._job

    def pace(self) -> Pace:
        """The figures of now that charts are made of; at hand."""
        now_s = self._clock()
        with self._lock:
            return Pace(_rounded(self._tables.speed.now(now_s)), self._behind_ms(now_s))

    def known(self) -> Known:
        """Every table as it is now; it takes as long as there are tables."""
        with self._lock:
            return self._tables.known()

    def reports(self, names: Iterable[str]) -> tuple[TableReport, ...]:
        """The reports of these tables, as they are in a status; none of one that the run does not know."""
        now_s = self._clock()
        with self._lock:
            lag_ms = self._behind_ms(now_s)
            known = [self._tables.of(name) for name in names if name in self._tables]
        return tuple(self._report(*each, lag_ms=lag_ms, now_s=now_s) for each in known)

    def _behind_ms(self, now_s: float) -> int | None:
        return None if self._behind is None else round(self._behind[0] + (now_s - self._behind[1]) * 1000)

    def _heed(self, event: RunEvent) -> None:
        journal = self._journal
        match event:
            case Starting(step):
                self._step(step)
            case Waiting() | TookOver():
                self._step(str(event))
            case Started(driver, enumerator):
                self._step("running")
                self._run = replace(self._run, in_process=enumerator == driver)
            case CaughtUp() | Stopped():
                self._step("ended")
            case Progress(tables):
                now_s = self._clock()
                self._tables.progress(tables, now_s=now_s)
                self._behind = None if event.behind_ms is None else (event.behind_ms, now_s)
                self._lag = _lag(event.lags)
            case Committed(epoch, by_table, rows):
                self._stages.committed(staging_s=event.staging_s, commit_s=event.commit_s)
                at_ms = journal.committed(epoch, rows)
                self._tables.committed(epoch, by_table, at_ms=at_ms)
            case Warned(text):
                journal.warned(text)
            case StoodStill() | WentOn():
                journal.warned(str(event))
            case TableParked(table, parked) if parked.reason not in _ASKED_FOR:
                journal.warned(f"{table} is {parked.phase}: {parked.reason}")
            case Failed(_, text):
                journal.failed(text)
            case _:
                pass

    def _step(self, step: str) -> None:
        self._run = replace(self._run, step=step)

    def status(self, chosen: Chosen = EVERY_TABLE) -> Status:
        """The document of now, with the tables that are `chosen`; reports are made of these alone, and while they are,
        nobody waits: an event of the run comes in as ever.
        """
        room = self._about.log_room()
        job, about, now_s = self._job, self._about, self._clock()
        with self._lock:
            speed = self._tables.speed.now(now_s)
            lag_ms = self._behind_ms(now_s)
            pick = self._tables.picking(chosen)
            waits = bool(self._tables.in_snapshot) or not _keeps_up(lag_ms)
            bottleneck = self._stages.bottleneck()
            counts = replace(
                self._journal.counts,
                rows_left_out=self._tables.rows_left_out,
                values_lost=self._tables.values_lost,
                tables=dict(sorted(self._tables.phases.items())),
            )
            lag = self._lag
            warnings, errors = tuple(self._journal.warnings), tuple(self._journal.errors)
        figures, next_after = pick()
        tables = tuple(self._report(*each, lag_ms=lag_ms, now_s=now_s) for each in figures)
        readers = tuple(map(_reader, job.readers)) if job is not None else ()
        return Status(
            version=VERSION,
            at_ms=self._wall_ms(),
            pipeline=about.pipeline,
            running=True,
            said=f"process {self._run.pid} on {self._run.host}, which runs the pipeline",
            sink=about.sink,
            run=self._run,
            job=JobReport(
                readers=readers,
                nodes=dict(Counter(reader.node for reader in readers)),
                chunks_waiting=None if job is None else job.chunks_waiting,
                rows_per_second=_rounded(speed),
                last_commit=self._journal.last_commit,
                lag_ms=lag_ms,
                lag=lag,
                backlog=_backlog(job, room),
                counts=counts,
                bottleneck=bottleneck if waits else None,
                warnings=warnings,
                errors=errors,
            ),
            tables=tables,
            next_after=next_after,
        )

    def _report(
        self, figures: TableFigures, commit: Commit | None, speeds: Speeds, *, lag_ms: int | None, now_s: float
    ) -> TableReport:
        parked = figures.parked
        return TableReport(
            table=figures.table,
            phase=figures.phase,
            targets=tuple(map(str, self._about.targets(TableId.parse(figures.table)))),
            snapshot=_snapshot(figures, speeds, now_s) if figures.chunks_total else None,
            rows=figures.rows,
            rows_per_second=_rounded(speeds.rows.now(now_s)),
            last_commit=commit,
            lag_ms=lag_ms if figures.phase == "stream" else None,
            parked=None
            if parked is None
            else ParkedReport(parked.reason, parked.again, parked.ts_ms, self._about.place_text(parked)),
            rows_left_out=figures.bad_rows,
            values_lost=figures.lost_values,
            backfill=_backfill(figures, speeds, now_s),
            resuming=self._resuming() if figures.phase == "resuming" else None,
        )

    def _resuming(self) -> ResumingReport | None:
        """What holds up the tables that go on; there is one second reading for all of them."""
        readers = () if self._job is None else self._job.readers
        away = next((reader.metrics.beside for reader in readers if reader.metrics.beside is not None), None)
        return None if away is None else ResumingReport(away.tries, away.text, self._wall_ms() + 1000 * away.left_s)


class Journal:
    """What happened in the run: counted, and the newest remembered. Not thread-safe."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self.warnings: deque[Note] = deque(maxlen=NOTES_MAX)
        self.errors: deque[Note] = deque(maxlen=NOTES_MAX)
        self.last_commit: Commit | None = None
        self.counts = Counts()

    def warned(self, text: str) -> None:
        self.warnings.append(Note(self._wall_ms(), text))
        self.counts = replace(self.counts, warnings=self.counts.warnings + 1)

    def failed(self, text: str) -> None:
        self.errors.append(Note(self._wall_ms(), text))
        self.counts = replace(self.counts, errors=self.counts.errors + 1)

    def committed(self, epoch: int, rows: int) -> int:
        """When that was."""
        at_ms = self._wall_ms()
        self.last_commit = Commit(epoch, at_ms, rows)
        counts = self.counts
        self.counts = replace(counts, commits=counts.commits + 1, rows_committed=counts.rows_committed + rows)
        return at_ms


@dataclass(slots=True)
class Speeds:
    """How fast a table's rows and chunks are read."""

    rows: Speed
    chunks: Speed
    #: Of the backfill that goes on.
    backfill: Speed | None = None

    def saw_backfill(self, figures: TableFigures, now_s: float) -> None:
        """The newest figures of the table."""
        if figures.backfill is None:
            self.backfill = None
        elif self.backfill is None or figures.backfill.chunks_done < self.backfill.count:
            self.backfill = Speed(now_s, figures.backfill.chunks_done)
        elif figures.backfill.chunks_done != self.backfill.count:
            self.backfill.saw(figures.backfill.chunks_done, now_s=now_s)


#: The newest of a table.
Figures = tuple[TableFigures, Commit | None, Speeds]


class Tables:
    """The newest figures of every table. Not thread-safe."""

    def __init__(self) -> None:
        self._figures: dict[str, TableFigures] = {}
        self._speeds: dict[str, Speeds] = {}
        self._commits: dict[str, Commit] = {}
        #: All names, ascending.
        self._names: list[str] = []
        self.in_snapshot: set[str] = set()
        #: How many tables are in each phase, and what all of them have lost, kept as figures come.
        self.phases: Counter[str] = Counter()
        self.rows_left_out = self.values_lost = 0
        self._rows = 0
        self.speed = Speed(0.0, 0)

    def progress(self, tables: tuple[TableFigures, ...], *, now_s: float) -> None:
        for figures in tables:
            before = self._figures.get(figures.table)
            self._figures[figures.table] = figures
            self._count(before, figures)
            (self.in_snapshot.add if figures.phase == "snapshot" else self.in_snapshot.discard)(figures.table)
            if before is None:
                insort(self._names, figures.table)
                self._speeds[figures.table] = Speeds(Speed(now_s, figures.rows), Speed(now_s, figures.chunks_done))
                continue
            self._speeds[figures.table].saw_backfill(figures, now_s)
            if (figures.rows, figures.chunks_done) != (before.rows, before.chunks_done):
                speeds = self._speeds[figures.table]
                speeds.rows.saw(figures.rows, now_s=now_s)
                speeds.chunks.saw(figures.chunks_done, now_s=now_s)
                self._rows += max(0, figures.rows - before.rows)
        if not self.speed.at_s:
            self.speed.at_s = now_s
        if self._rows != self.speed.count:
            self.speed.saw(self._rows, now_s=now_s)

    def _count(self, before: TableFigures | None, figures: TableFigures) -> None:
        if before is not None:
            self.phases[before.phase] -= 1
            self.rows_left_out -= before.bad_rows or 0
            self.values_lost -= before.lost_values or 0
            if not self.phases[before.phase]:
                del self.phases[before.phase]
        self.phases[figures.phase] += 1
        self.rows_left_out += figures.bad_rows or 0
        self.values_lost += figures.lost_values or 0

    def committed(self, epoch: int, rows: Mapping[str, int], *, at_ms: int) -> None:
        for table, count in rows.items():
            if count:
                self._commits[table] = Commit(epoch, at_ms, count)

    def __contains__(self, name: str) -> bool:
        return name in self._figures

    def known(self) -> Known:
        """All of them, as they are now."""
        speeds = self._speeds.copy()
        return Known(self._figures.copy(), self._commits.copy(), lambda name, now_s: speeds[name].rows.now(now_s))

    def of(self, name: str) -> Figures:
        """The newest of a table."""
        return self._figures[name], self._commits.get(name), self._speeds[name]

    def picking(self, chosen: Chosen) -> Callable[[], tuple[list[Figures], str | None]]:
        """Gives those that are chosen, as they are now, and the last one's name where more would be. What takes as long
        as there are tables is done when it is called, and not here.
        """
        if chosen.table or (chosen.limit is not None and chosen.limit <= FEW and not chosen.phase and not chosen.first):
            few = _Listed(self._names, self._figures, self._commits, self._speeds).picked(chosen)
            return lambda: few
        copied = _Listed(self._names.copy(), self._figures.copy(), self._commits.copy(), self._speeds.copy())
        return partial(copied.picked, chosen)


@dataclass(frozen=True, slots=True)
class _Listed:
    """Tables as they are at one moment: their names, ascending, and the newest of each."""

    names: Sequence[str]
    figures: Mapping[str, TableFigures]
    commits: Mapping[str, Commit]
    speeds: Mapping[str, Speeds]

    def picked(self, chosen: Chosen) -> tuple[list[Figures], str | None]:
        """Those that are chosen, and the last one's name where more would be."""
        names, next_after = self._chosen(chosen)
        return [(self.figures[name], self.commits.get(name), self.speeds[name]) for name in names], next_after

    def _chosen(self, chosen: Chosen) -> tuple[list[str], str | None]:
        if chosen.table:
            names: Iterable[str] = [chosen.table] if chosen.table in self.figures else []
        else:
            names = islice(self.names, bisect_right(self.names, chosen.after), None)
        if chosen.first:
            # Of many tables few are in a phase that one wants to see first.
            ahead = [name for name in names if self.figures[name].phase == chosen.first]
            names = chain(ahead, (name for name in self.names if self.figures[name].phase != chosen.first))
            return list(islice(names, chosen.limit)), None
        passing = (name for name in names if chosen.phase in ("", self.figures[name].phase) and name > chosen.after)
        if chosen.limit is None:
            return list(passing), None
        found = list(islice(passing, chosen.limit))
        return found, found[-1] if found and next(passing, None) is not None else None


def _keeps_up(lag_ms: int | None) -> bool:
    return lag_ms is None or lag_ms < KEEPS_UP_MS


def _snapshot(figures: TableFigures, speeds: Speeds, now_s: float) -> SnapshotReport:
    done, total, amount, about = figures.chunks_done, figures.chunks_total, figures.amount, figures.rows_about
    rows = None if amount is None else amount.rows
    rate, left = (speeds.chunks.now(now_s), total - done)
    if about and rows is not None and (by_rows := speeds.rows.now(now_s)):
        rate, left = by_rows, about - rows
    return SnapshotReport(
        chunks_done=done,
        chunks_total=total or None,
        rows_done=rows,
        rows_estimated=about,
        bytes_done=None if amount is None else amount.bytes,
        bytes_estimated=round(amount.bytes * about / amount.rows) if amount is not None and about and rows else None,
        percent=None if figures.percent is None else round(figures.percent, 1),
        eta_seconds=round(left / rate, 1) if rate and figures.phase == "snapshot" else None,
    )


def _backfill(figures: TableFigures, speeds: Speeds, now_s: float) -> BackfillReport | None:
    if figures.backfill is None:
        return None
    # Read once: it goes when the backfill is done, which may be now.
    speed = speeds.backfill
    rate = None if speed is None else speed.now(now_s)
    return backfill_report(figures.backfill, chunks_per_s=rate)


def _reader(reader: ReaderStatus) -> ReaderReport:
    return ReaderReport(
        reader=reader.subtask,
        node=reader.node,
        pid=reader.pid,
        reads_log=STREAM_SPLIT_ID in reader.splits,
        chunks=reader.chunks,
        partitions=reader.partitions,
        open_bytes=reader.open_bytes,
    )


def _backlog(job: JobStatus | None, room: LogRoom | None) -> Backlog:
    partitions = [] if job is None else [r.metrics.partitions for r in job.readers if r.metrics.partitions is not None]
    kept_s = None if room is None or room.kept_s is None else round(room.kept_s)
    kept = None if room is None else room.forever
    if not partitions:
        size_unread = None if room is None else room.unread_bytes
        return Backlog(size_unread, retention_headroom_seconds=kept_s, kept_until_deleted=kept)
    known = [each.pending_records for each in partitions if each.pending_records is not None]
    loads = [load for each in partitions for load in (each.loads or {}).values()]
    size, rate = sum(load.backlog_bytes for load in loads), sum(load.bytes_per_s for load in loads)
    return Backlog(
        bytes=round(size) if loads else None,
        records=sum(known) if known else None,
        seconds=round(size / rate, 1) if rate else None,
        retention_headroom_seconds=kept_s,
        kept_until_deleted=kept,
    )


def _lag(lags: Lags | PartitionLags) -> LagReport:
    common = lags if isinstance(lags, Lags) else lags.common
    shown = LagReport(common.fetch_ms, common.emit_ms, common.idle_ms)
    if isinstance(lags, Lags):
        return shown
    return replace(shown, pending_records=lags.pending_records, watermark_lag_ms=lags.watermark_ms)


def _rounded(per_s: float | None) -> float | None:
    return None if per_s is None else round(per_s, 1)
