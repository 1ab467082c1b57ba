"""The reporter of a running pipeline: statuses of its job and commits become the events of `raycdc.run_events`."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from raycdc.epochs.lag import Lag
from raycdc.epochs.outcomes import EpochStatistics
from raycdc.errors import RaycdcError
from raycdc.model import TableId
from raycdc.run_events import (
    PACE,
    CaughtUp,
    Committed,
    Failed,
    Lags,
    Listener,
    PartitionLags,
    Progress,
    ReaderFigures,
    RunEvent,
    Scaling,
    Started,
    Starting,
    Stopped,
    TableFigures,
    TableParked,
    TookOver,
    Waiting,
    Warned,
)
from raycdc.runtime.scaling import Scaled
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus, TableStatus
from raycdc.source.protocol.metrics import PartitionMetrics

#: So many tables are reported of as often as a caller wants, and all of them each time; looking at ten times as many
#: costs ten times as much, and only those that changed are told.
TABLES_PER_LOOK = 100


class TablesOfRun:
    """Rows of each table since the run began, which more than one coordinator may have counted; and what was told of
    each last. Not thread-safe.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}
        #: Those that coordinators before this one counted.
        self._before: dict[str, int] = {}
        self._generation = 0
        self._told: dict[str, TableFigures] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def of_generation(self, generation: int) -> None:
        """A coordinator counts from its beginning on; one that carries out a command about a table is a new one."""
        if generation != self._generation:
            self._generation = generation
            self._before = {name: rows for name, (_, rows) in self._seen.items()}

    def news(self, tables: tuple[TableFigures, ...]) -> tuple[TableFigures, ...]:
        """All of them, or of many those that are others than when they were told last: nobody reads thousands of lines
        twice a second that say what was said before.
        """
        if len(tables) <= TABLES_PER_LOOK:
            return tables
        news = tuple(table for table in tables if self._told.get(table.table) != table)
        self._told.update((table.table, table) for table in news)
        return news

    def look(self, table: str, counted: int, *, now_s: float) -> tuple[int, float]:
        """The rows of the table with those that the coordinator of now has `counted`, and how many a second came since
        the look before.
        """
        rows = self._before.get(table, 0) + counted
        then_s, before = self._seen.get(table, (now_s, rows))
        self._seen[table] = (now_s, rows)
        return rows, (rows - before) / (now_s - then_s) if now_s > then_s else 0.0


class ProgressReporter:
    """Turns statuses and commits into events. `listener` is called from several threads, one at a time."""

    def __init__(self, listener: Listener, *, driver_pid: int) -> None:
        self._listener = listener
        #: Each hears every status of the source side that is looked at.
        self.on_status: list[Callable[[JobStatus | None], None]] = []
        self._driver_pid = driver_pid
        self._lock = threading.Lock()
        self._parked: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._tables = TablesOfRun()
        self._emit_lag_ms: int | None = None
        self._bad_rows: Mapping[str, int] = {}
        self._lag = Lag()
        self._ordinal: int | None = None
        self._moved_s = time.monotonic()

    def starting(self, step: str) -> None:
        self._tell(Starting(step))

    def waiting(self, holder: str, state: str, *, at_most_s: float | None = None) -> None:
        self._tell(Waiting(holder, state, at_most_s))

    def took_over(self, reason: str, generation: int) -> None:
        self._tell(TookOver(reason, generation))

    def processes(self, enumerator: int, readers: Sequence[int]) -> None:
        self._tell(Started(self._driver_pid, enumerator, tuple(readers)))

    def scaled(self, scaled: Scaled) -> None:
        self._tell(Scaling(scaled.readers, scaled.waiting, scaled.nodes, scaled.reason))

    def warning(self, text: str) -> None:
        self._tell(Warned(text))

    def failed(self, error: RaycdcError) -> None:
        self._tell(Failed.of(error))

    def committed(self, figures: EpochStatistics) -> None:
        if figures.watermark_ms is not None:
            self._emit_lag_ms = max(0, figures.committed_ms - figures.watermark_ms)
        self._bad_rows = figures.bad_rows
        self._lag.committed(figures.epoch)
        self._tell(
            Committed(
                figures.epoch, figures.tables, figures.rows, staging_s=figures.staging_s, commit_s=figures.commit_s
            )
        )

    def finished(self, *, stopped: bool) -> None:
        self._tell(Stopped() if stopped else CaughtUp())

    def bad_rows(self, before: Mapping[str, int]) -> None:
        """Rows of each table that earlier runs left out."""
        self._bad_rows = before

    @contextmanager
    def watching(self, status: Callable[[], JobStatus | None], *, every_s: float) -> Iterator[None]:
        """Report progress in the background while the block runs, and once more at its end."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(every_s * max(1.0, len(self._tables) / TABLES_PER_LOOK)):
                if not self._look(status):
                    return

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        thread.start()
        try:
            yield
            self._look(status)
        finally:
            ended.set()
            thread.join(timeout=5)

    def _look(self, status: Callable[[], JobStatus | None]) -> bool:
        """Report once; False when the job has failed, which the epoch loop tells in its own words."""
        try:
            now = status()
        except RaycdcError:
            return False
        for hear in self.on_status:
            hear(now)
        if now is not None:
            self._tell_parked(now.tables)
            self._tell_problems(now.problems)
            self._tell(self._progress(now))
        return True

    def _tell_parked(self, tables: Mapping[TableId, TableStatus]) -> None:
        for name, table in _by_name(tables):
            parked = table.progress.parked
            if parked is not None and self._parked.get(name) != parked.incarnation:
                self._parked[name] = parked.incarnation
                self._tell(TableParked(name, parked))

    def _tell_problems(self, problems: Mapping[str, str]) -> None:
        """Harmless notes of the source: a warning for each, and again when it went away and came back."""
        for place, text in sorted(problems.items()):
            if self._problems.get(place) != text:
                self.warning(f"{place}: {text}")
        self._problems = dict(problems)

    def _progress(self, status: JobStatus) -> Progress:
        now_s = time.monotonic()
        self._tables.of_generation(status.generation)
        tables = tuple(
            self._table(name, table, _counts_of(status.readers, name), now_s=now_s)
            for name, table in _by_name(status.tables)
        )
        tables = self._tables.news(tables)
        readers = tuple(map(_figures_of, status.readers))
        now_ms = time.time_ns() // 1_000_000
        self._lag.look(status, now_ms)
        bottleneck = PACE if status.is_paced else ""
        lags = self._lags(status.readers, now_s)
        return Progress(tables, lags, readers, bottleneck, self._lag.behind_ms(now_ms))

    def _table(self, name: str, table: TableStatus, counts: Mapping[str, int], *, now_s: float) -> TableFigures:
        progress = table.progress
        rows, rate = self._tables.look(name, table.rows or 0, now_s=now_s)
        return TableFigures(
            table=name,
            phase=progress.phase,
            chunks_done=progress.chunks_done,
            chunks_total=progress.chunks_total,
            rows=rows,
            rows_per_s=round(rate),
            lost_values=table.lost_values or 0,
            bad_rows=self._bad_rows.get(name),
            source_counts=counts,
            parked=progress.parked,
            amount=progress.amount,
        )

    def _lags(self, readers: Sequence[ReaderStatus], now_s: float) -> Lags | PartitionLags:
        """The lags of the log, or those of all partitions together."""
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

    def tell(self, event: RunEvent) -> None:
        """Tell an event that somebody else has made."""
        self._tell(event)

    def _tell(self, event: RunEvent) -> None:
        with self._lock:
            self._listener(event)


def _by_name(tables: Mapping[TableId, TableStatus]) -> list[tuple[str, TableStatus]]:
    return sorted(((str(table), status) for table, status in tables.items()), key=lambda entry: entry[0])


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


def _counts_of(readers: Sequence[ReaderStatus], table: str) -> dict[str, int]:
    """The sources' figures about a table, in all readers since these began; empty where there are none."""
    total: Counter[str] = Counter()
    for reader in readers:
        for name, counts in reader.process.source.items():
            total[name] += counts.get(table, 0)
    return {name: count for name, count in total.items() if count}


def _lags_of_partitions(readers: Sequence[PartitionMetrics]) -> PartitionLags:
    """Those of all readers together: the worst lag, how long nobody has read anything, what is still to be read."""

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
