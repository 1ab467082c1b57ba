"""Reports the progress of a running pipeline: turns statuses and commits into `raycdc.observe.events`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from raycdc.delivery.lag import Lag
from raycdc.delivery.outcomes import EpochStatistics
from raycdc.errors import RaycdcError
from raycdc.model import TableId
from raycdc.model.engines import EngineName
from raycdc.observe.events import (
    RATE_LIMIT,
    CaughtUp,
    Committed,
    EnginesAtWork,
    Failed,
    Lags,
    Listener,
    Listeners,
    PartitionLags,
    ReaderFigures,
    RunEvent,
    RunProgress,
    Scaling,
    StandbyWaiting,
    Started,
    Starting,
    Stopped,
    TableFigures,
    TableParked,
    TookOver,
    Warned,
)
from raycdc.observe.status import KnownTable, RunProcess, StatusKeeper
from raycdc.runtime.scaling import Scaled
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus, TableStatus
from raycdc.source.protocol.metrics import PartitionMetrics
from raycdc.source.tables.table_life import is_nothing
from raycdc.state.parked import ParkedTarget

#: A poll requests at most this many tables; the last poll of a run requests all of them.
TABLES_PER_POLL = 100
#: Polls for all tables take at most this fraction of the time. A poll of the readers only is cheap, and suffices for
#: the lag, warnings and the watchdog.
TABLES_FRACTION = 0.1


Figure = TypeVar("Figure")


class StatusOf(Protocol):
    """A function that returns the status of the source side, with the figures of each table or without.

    Returns None if there is no status yet.
    """

    def __call__(self, *, tables: bool) -> JobStatus | None: ...


class PollListener(Protocol):
    """A function that is called when polling of the source side's status begins (`asking`) or ends."""

    def __call__(self, *, asking: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class ProgressListeners:
    """The receivers of reports that are not events.

    They are called by the reporting thread, and must return immediately; an error in one is reported like an error of a
    listener, and does not affect the others.
    """

    listeners: Listeners
    #: Called when polling of the source side's status begins, and when it ends.
    on_asking: list[PollListener] = field(default_factory=list)
    #: Called with every status of the source side.
    on_status: list[Callable[[JobStatus | None], None]] = field(default_factory=list)
    #: Called with the targets that refused an epoch, by name, before that epoch is reported as committed.
    on_parked: list[Callable[[Mapping[str, ParkedTarget]], None]] = field(default_factory=list)
    #: Called with the error that ends the process immediately, before it ends.
    on_exit: list[Callable[[RaycdcError], None]] = field(default_factory=list)
    #: Called when the driver's work progresses, even if there is no source side.
    on_moved: list[Callable[[], None]] = field(default_factory=list)

    def asking(self, *, asking: bool) -> None:
        self._call(self.on_asking, asking=asking)

    def status(self, status: JobStatus | None) -> None:
        self._call(self.on_status, status)

    def parked(self, entries: Mapping[str, ParkedTarget]) -> None:
        self._call(self.on_parked, entries)

    def exits(self, error: RaycdcError) -> None:
        self._call(self.on_exit, error)

    def moved(self) -> None:
        self._call(self.on_moved)

    def _call(self, hearers: Sequence[Callable[..., None]], *values: object, **named: object) -> None:
        for hear in hearers:
            self.listeners.guard(getattr(hear, "__qualname__", repr(hear)), partial(hear, *values, **named))


class TablesOfRun:
    """Counts the rows of each table since the run began, over all of its coordinators. Not thread-safe."""

    def __init__(self) -> None:
        self._statuses: dict[TableId, TableStatus] = {}
        self._seen: dict[TableId, tuple[float, int]] = {}
        #: The counts of earlier coordinators.
        self._before: dict[TableId, int] = {}
        self._generation = 0
        #: Tables whose last reported rate is not 0. If such a table becomes idle, its rate of 0 must be reported.
        self._moving: set[TableId] = set()
        self._counts: Mapping[str, Mapping[str, int]] = {}
        self._bad_rows: Mapping[str, int] = {}

    def __len__(self) -> int:
        return len(self._statuses)

    def poll(
        self,
        status: JobStatus,
        bad_rows: Mapping[str, int],
        reported: Mapping[str, KnownTable],
        *,
        now_s: float,
        every: bool = False,
    ) -> tuple[TableFigures, ...]:
        """Return the figures of tables that differ from those in `reported`, or of all tables with `every`; by name.

        Figures are computed for these tables only.
        """
        self._of_generation(status.generation)
        counts = _counts_by_table(status.readers)
        changed = _changed(self._counts, counts) | _changed(self._bad_rows, bad_rows)
        self._counts, self._bad_rows = counts, bad_rows
        again = self._moving | {table for table in map(TableId.parse, changed) if table in status.tables}
        news = []
        for table, now in status.tables.items():
            if every or table in again or self._statuses.get(table) != now:
                self._statuses[table] = now
                figures = self._figures(table, now, now_s=now_s)
                before = reported.get(figures.table)
                if every or before is None or before.figures != figures:
                    news.append(figures)
        return tuple(sorted(news, key=lambda figures: figures.table))

    def _of_generation(self, generation: int) -> None:
        """Note the generation of the coordinator.

        Each coordinator counts rows from zero. A command about a table makes a new coordinator.
        """
        if generation != self._generation:
            self._generation = generation
            self._before = {table: rows for table, (_, rows) in self._seen.items()}
            self._statuses = {}

    def _figures(self, table: TableId, status: TableStatus, *, now_s: float) -> TableFigures:
        name, progress = str(table), status.progress
        rows = self._before.get(table, 0) + (status.rows or 0)
        then_s, before = self._seen.get(table, (now_s, rows))
        self._seen[table] = (now_s, rows)
        rate = round((rows - before) / (now_s - then_s)) if now_s > then_s else 0
        (self._moving.add if rate else self._moving.discard)(table)
        return TableFigures(
            table=name,
            phase=progress.phase,
            chunks_done=progress.chunks_done,
            chunks_total=progress.chunks_total,
            rows=rows,
            rows_per_s=rate,
            lost_values=status.lost_values or 0,
            bad_rows=self._bad_rows.get(name),
            source_counts=self._counts.get(name, {}),
            parked=progress.parked,
            begun=progress.begun,
            amount=progress.amount,
            backfill=progress.backfill,
        )


class LagsOfRun:
    """Computes FLIP-33's lags from the readers' figures and the last commit. Not thread-safe."""

    def __init__(self) -> None:
        self._emit_lag_ms: int | None = None
        self._ordinal: int | None = None
        self._moved_s = time.monotonic()

    def committed(self, figures: EpochStatistics) -> None:
        if figures.watermark_ms is not None:
            self._emit_lag_ms = max(0, figures.committed_ms - figures.watermark_ms)

    def poll(self, readers: Sequence[ReaderStatus], now_s: float) -> Lags | PartitionLags:
        """Return the lags of the log, or those of all partitions together."""
        partitions = [reader.metrics.partitions for reader in readers if reader.metrics.partitions is not None]
        if partitions:
            return _lags_of_partitions(partitions)
        fetch_lag_ms = None
        for reader in readers:
            log = reader.metrics.log
            if log is not None:
                fetch_lag_ms = log.fetch_lag_ms
                if log.ordinal != self._ordinal:
                    self._ordinal, self._moved_s = log.ordinal, now_s
        return Lags(fetch_lag_ms, self._emit_lag_ms, round((now_s - self._moved_s) * 1000))


class ProgressReporter:
    """Turns statuses and commits into events.

    The `keeper` of the run's status gets each event first, and then the `listeners`; they are called from several
    threads, one at a time (`Listeners`).
    """

    def __init__(self, listeners: Mapping[str, Listener], keeper: StatusKeeper | None = None) -> None:
        self._keeper = keeper or StatusKeeper(RunProcess.here())
        self.listeners = Listeners({"status": self._keeper.listen, **listeners})
        self.hearers = ProgressListeners(self.listeners)
        self.hearers.on_moved.append(self._keeper.moved)
        self._parked: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._tables = TablesOfRun()
        self._lags = LagsOfRun()
        self._bad_rows: Mapping[str, int] = {}
        self._lag = Lag()
        #: Commits of the recovery at the start of the run; they are reported after the first processes of the run.
        self._recovered: list[EpochStatistics] = []
        #: Returns the engines that read and write at present, for a given reading engine.
        self.engines: Callable[[EngineName], EnginesAtWork] = EnginesAtWork

    def starting(self, step: str) -> None:
        self.notify(Starting(step))

    def waiting(self, holder: str, state: str, *, at_most_s: float | None = None) -> None:
        self.notify(StandbyWaiting(holder, state, at_most_s))

    def took_over(self, reason: str, generation: int) -> TookOver:
        event = TookOver(reason, generation)
        self.notify(event)
        return event

    def processes(self, enumerator: int, readers: Sequence[int]) -> None:
        driver = self._keeper.status.run.pid
        engine = EngineName.DRIVER if enumerator == driver else EngineName.RAY
        self.notify(Started(driver, enumerator, tuple(readers), self.engines(engine)))
        while self._recovered:
            self.committed(self._recovered.pop(0))

    def scaled(self, scaled: Scaled) -> None:
        self.notify(Scaling(scaled.readers, scaled.waiting, scaled.nodes, scaled.reason))

    def warning(self, text: str) -> None:
        self.notify(Warned(text))

    def failed(self, error: RaycdcError) -> None:
        self.notify(Failed.of(error))

    def committed(self, figures: EpochStatistics) -> None:
        self._lags.committed(figures)
        self._bad_rows = figures.bad_rows
        self._lag.committed(figures.epoch)
        self.notify(
            Committed(
                figures.epoch,
                figures.tables,
                figures.rows,
                staging_s=figures.staging_s,
                commit_s=figures.commit_s,
                engines=figures.engines,
            )
        )

    def recovered(self, figures: EpochStatistics) -> None:
        """Report an epoch that a recovery has committed.

        If the run has no processes yet, the report waits until they are reported.
        """
        if self._keeper.status.started is None:
            self._recovered.append(figures)
        else:
            self.committed(figures)

    def finished(self, *, stopped: bool) -> None:
        while self._recovered:
            self.committed(self._recovered.pop(0))
        engines = self._keeper.status.commits.engines
        self.notify(Stopped(engines) if stopped else CaughtUp(engines))

    def bad_rows(self, before: Mapping[str, int]) -> None:
        """Set the number of rows that earlier runs left out, for each table."""
        self._bad_rows = before

    @contextmanager
    def watching(self, status: StatusOf, *, every_s: float) -> Iterator[None]:
        """Report progress in the background while the block runs, and once more at its end."""
        ended = threading.Event()

        def watch() -> None:
            tables_at_s = 0.0
            while not ended.wait(every_s):
                begun_s = time.monotonic()
                tables = begun_s >= tables_at_s
                if not self._poll_guarded(status, tables=tables):
                    return
                if tables and len(self._tables) > TABLES_PER_POLL:
                    now_s = time.monotonic()
                    tables_at_s = now_s + (now_s - begun_s) / TABLES_FRACTION

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        self.hearers.asking(asking=True)
        thread.start()
        try:
            yield
            ended.set()
            thread.join(timeout=5)
            self._poll_guarded(status, every=len(self._tables) <= TABLES_PER_POLL)
        finally:
            ended.set()
            thread.join(timeout=5)
            self.hearers.asking(asking=False)

    def _poll_guarded(self, status: StatusOf, *, tables: bool = True, every: bool = False) -> bool:
        """Call `_poll`; an error is reported like that of a listener, and does not end the run."""
        goes_on = True

        def poll() -> None:
            nonlocal goes_on
            goes_on = self._poll(status, tables=tables, every=every)

        self.listeners.guard("progress", poll)
        return goes_on

    def _poll(self, status: StatusOf, *, tables: bool = True, every: bool = False) -> bool:
        """Poll and report the status once, with the figures of tables or without; return False if the job has failed.

        The epoch loop reports that failure itself.
        """
        try:
            now = status(tables=tables)
        except RaycdcError:
            self.hearers.asking(asking=False)
            return False
        self._keeper.moved()
        self.hearers.status(now)
        if now is not None:
            self._report_parked(now.tables)
            self._report_problems(now.problems)
            self.notify(self._progress(now, every=every))
        return True

    def _report_parked(self, tables: Mapping[TableId, TableStatus]) -> None:
        begun = {table: now.progress.begun for table, now in tables.items() if now.progress.begun is not None}
        for name, was in sorted((str(table), was) for table, was in begun.items()):
            # The table was parked and resnapshotted between two polls.
            if self._parked.get(name, -1) < was.incarnation:
                self._parked[name] = was.incarnation
                self.notify(TableParked(name, was))
        parked_now = {table: now.progress.parked for table, now in tables.items() if now.progress.parked is not None}
        for name, parked in sorted((str(table), parked) for table, parked in parked_now.items()):
            if parked.again:
                continue  # Until the table is probed, the reaction is unknown. It is reported later.
            # A name without a table is not reported unless it was reported before.
            unheard = is_nothing(parked) and name not in self._parked
            if self._parked.get(name) != parked.incarnation and not unheard:
                self._parked[name] = parked.incarnation
                self.notify(TableParked(name, parked))

    def _report_problems(self, problems: Mapping[str, str]) -> None:
        """Report the problems of the source: a warning for each new one, and for each one that had disappeared and
        is back.
        """
        for subject, text in sorted(problems.items()):
            if self._problems.get(subject) != text:
                self.warning(f"{subject}: {text}")
        self._problems = dict(problems)

    def _progress(self, status: JobStatus, *, every: bool) -> RunProgress:
        now_s = time.monotonic()
        tables = self._changed_tables(status, now_s, every=every) if status.tables else ()
        readers = tuple(map(_figures_of, status.readers))
        now_ms = time.time_ns() // 1_000_000
        self._lag.poll(status, now_ms)
        bottleneck = RATE_LIMIT if status.is_rate_limited else ""
        lags = self._lags.poll(status.readers, now_s)
        return RunProgress(tables, lags, readers, bottleneck, self._lag.behind_ms(now_ms), status)

    def _changed_tables(self, status: JobStatus, now_s: float, *, every: bool) -> tuple[TableFigures, ...]:
        known = self._keeper.status.tables.known
        return self._tables.poll(status, self._bad_rows, known, now_s=now_s, every=every)

    def notify(self, event: RunEvent) -> None:
        """Send an event to the keeper and all listeners."""
        self.listeners.notify(event)


def _figures_of(reader: ReaderStatus) -> ReaderFigures:
    partitions, process = reader.metrics.partitions, reader.process
    return ReaderFigures(
        reader.subtask,
        reader.pid,
        reader.splits,
        process.seconds,
        sealing=None if process.sealing is None else asdict(process.sealing),
        paused=None if partitions is None else partitions.paused,
        node=reader.node,
    )


def _counts_by_table(readers: Sequence[ReaderStatus]) -> Mapping[str, Mapping[str, int]]:
    """Return the sources' figures about tables, summed over all readers since their start.

    Tables without figures are left out.
    """
    total: dict[str, Counter[str]] = {}
    for reader in readers:
        for name, counts in reader.process.source.items():
            for table, count in counts.items():
                if count:
                    total.setdefault(table, Counter())[name] += count
    return {table: dict(counts) for table, counts in total.items()}


def _changed(before: Mapping[str, Figure], now: Mapping[str, Figure]) -> set[str]:
    """Return the names whose values differ in the two mappings."""
    if before == now:
        return set()
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def _lags_of_partitions(readers: Sequence[PartitionMetrics]) -> PartitionLags:
    """Return the lags of all readers together: the worst lag, the longest idle time, the number of unread messages."""

    def known(of: Callable[[PartitionMetrics], int | None]) -> list[int]:
        return [figure for figure in map(of, readers) if figure is not None]

    pending = known(lambda metrics: metrics.pending_records)
    return PartitionLags(
        Lags(
            fetch_ms=max(known(lambda metrics: metrics.fetch_lag_ms), default=None),
            emit_ms=max(known(lambda metrics: metrics.emit_lag_ms), default=None),
            idle_ms=min(known(lambda metrics: metrics.idle_ms), default=None),
        ),
        pending_records=sum(pending) if pending else None,
        watermark_ms=max(known(lambda metrics: metrics.watermark_lag_ms), default=None),
    )
