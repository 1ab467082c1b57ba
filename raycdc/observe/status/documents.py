"""The status of a running pipeline as documents: `Status` and its parts, made from a `RunStatus` on request.

Each document is made from one frozen value, without locks, so the run processes events meanwhile. The cost grows with
the number of chosen tables.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain, islice

from raycdc.model import TableId
from raycdc.observe.events import Lags, PartitionLags
from raycdc.observe.status import KnownTable, Moment, RunStatus, StatusKeeper
from raycdc.observe.status.model import (
    EVERY_TABLE,
    VERSION,
    BackfillReport,
    Backlog,
    Chosen,
    JobReport,
    LagReport,
    ParkedReport,
    ReaderReport,
    ResumingReport,
    RunCounts,
    RunReport,
    SnapshotReport,
    Status,
    TableReport,
    backfill_report,
)
from raycdc.observe.status.status import RunTables
from raycdc.source.connector import LogRetention
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus
from raycdc.source.split import STREAM_SPLIT_ID
from raycdc.source.tables.table_life import Parked

#: A pipeline with a lag below this has no bottleneck other than the length of its epochs.
KEEPS_UP_MS = 10_000


@dataclass(frozen=True, slots=True)
class StatusDocuments:
    """Makes the documents of one run. Any thread may call it.

    `position_text` formats a parked table's position for people; `log_retention` queries the source, and may block for
    a moment.
    """

    keeper: StatusKeeper
    targets: Callable[[TableId], tuple[TableId, ...]]
    log_retention: Callable[[], LogRetention | None] = lambda: None
    position_text: Callable[[Parked], str] = lambda _: ""

    def status(self, chosen: Chosen = EVERY_TABLE) -> Status:
        """Return the present status, with the `chosen` tables."""
        retention = self.log_retention()
        status, now = self.keeper.status, self.keeper.now()
        names, next_after = chosen_names(status.tables, chosen)
        return Status(
            version=VERSION,
            at_ms=now.ms,
            pipeline=status.run.pipeline,
            running=True,
            said=f"process {status.run.pid} on {status.run.host}, which runs the pipeline",
            sink=status.run.sink,
            run=_run(status),
            job=_job(status, retention, now.s),
            tables=tuple(self._table(status, name, now) for name in names),
            next_after=next_after,
        )

    def reports(self, names: Iterable[str]) -> tuple[TableReport, ...]:
        """Return the reports of these tables in the present status; unknown tables are left out."""
        status, now = self.keeper.status, self.keeper.now()
        return tuple(self._table(status, name, now) for name in names if name in status.tables.known)

    def _table(self, status: RunStatus, name: str, now: Moment) -> TableReport:
        table = status.tables.known[name]
        figures = table.figures
        # The reason for a resnapshot is shown during the whole snapshot.
        parked = figures.begun if figures.parked is None and figures.phase == "snapshot" else figures.parked
        return TableReport(
            table=name,
            phase=figures.phase,
            targets=tuple(map(str, self.targets(TableId.parse(name)))),
            snapshot=_snapshot(table, now.s) if figures.chunks_total else None,
            rows=figures.rows,
            rows_per_second=_rounded(table.rows.now(now.s)),
            last_commit=status.commits.by_table.get(name),
            lag_ms=status.behind_ms(now.s) if figures.phase == "stream" else None,
            parked=None
            if parked is None
            else ParkedReport(parked.reason, parked.again, parked.ts_ms, self.position_text(parked)),
            rows_left_out=figures.bad_rows,
            values_lost=figures.lost_values,
            backfill=_backfill(table, now.s),
            resuming=_resuming(status.job, now.ms) if figures.phase == "resuming" else None,
        )


def chosen_names(tables: RunTables, chosen: Chosen) -> tuple[list[str], str | None]:
    """Return the names of the chosen tables, and the last of them if more tables follow, else an empty text."""
    known = tables.known
    if chosen.table:
        return ([chosen.table] if chosen.table in known else []), None
    if chosen.first:
        # Only few of many tables are in a phase that is shown first.
        count = tables.phases.get(chosen.first, 0)
        ahead = [*islice((name for name in tables.names if known[name].figures.phase == chosen.first), count)]
        names = chain(ahead, (name for name in tables.names if known[name].figures.phase != chosen.first))
        return list(islice(names, chosen.limit)), None
    after = bisect_right(tables.names, chosen.after)
    behind = islice(tables.names, after, None)
    passing = (name for name in behind if chosen.phase in ("", known[name].figures.phase))
    if chosen.limit is None:
        return list(passing), None
    found = list(islice(passing, chosen.limit))
    return found, found[-1] if found and next(passing, None) is not None else None


def _run(status: RunStatus) -> RunReport:
    run, engines = status.run, None if status.started is None else status.started.engines
    read_by, written_by = (None, None) if engines is None else (str(engines.read_by), str(engines.written_by))
    return RunReport(run.host, run.pid, run.started_ms, status.step, run.local, read_by, written_by)


def _job(status: RunStatus, room: LogRetention | None, now_s: float) -> JobReport:
    job, tables, notices, commits = status.job, status.tables, status.notices, status.commits
    readers = () if job is None else tuple(map(_reader, job.readers))
    lag_ms, by_engine = status.behind_ms(now_s), commits.engines.to_json()
    waits = bool(tables.phases.get("snapshot")) or (lag_ms is not None and lag_ms >= KEEPS_UP_MS)
    return JobReport(
        readers=readers,
        nodes=dict(Counter(reader.node for reader in readers)),
        chunks_waiting=None if job is None else job.chunks_waiting,
        rows_per_second=None if tables.rows is None else _rounded(tables.rows.now(now_s)),
        last_commit=commits.last,
        lag_ms=lag_ms,
        lag=None if status.progress_at is None else _lag(status.progress.lags),
        backlog=_backlog(job, room),
        counts=RunCounts(
            commits=commits.count,
            rows_committed=commits.rows,
            warnings=notices.warnings_count,
            errors=notices.errors_count,
            rows_left_out=tables.rows_left_out,
            values_lost=tables.values_lost,
            tables=dict(sorted(tables.phases.items())),
            rows_read_by=by_engine["rows_read_by"],
            rows_written_by=by_engine["rows_written_by"],
        ),
        bottleneck=status.stages.bottleneck() if waits else None,
        warnings=notices.warnings,
        errors=notices.errors,
    )


def _resuming(job: JobStatus | None, now_ms: int) -> ResumingReport | None:
    """Return the problem that delays the resumed tables. One second reader of the log serves all of them."""
    readers = () if job is None else job.readers
    outage = next(
        (reader.metrics.catch_up_outage for reader in readers if reader.metrics.catch_up_outage is not None), None
    )
    return None if outage is None else ResumingReport(outage.tries, outage.text, now_ms + 1000 * outage.left_s)


def _snapshot(table: KnownTable, now_s: float) -> SnapshotReport:
    figures = table.figures
    amount, about = figures.amount, figures.rows_about
    rows, left_s = None if amount is None else amount.rows, table.snapshot_left_s(now_s)
    return SnapshotReport(
        chunks_done=figures.chunks_done,
        chunks_total=figures.chunks_total or None,
        rows_done=rows,
        rows_estimated=about,
        bytes_done=None if amount is None else amount.bytes,
        bytes_estimated=round(amount.bytes * about / amount.rows) if amount is not None and about and rows else None,
        percent=None if figures.percent is None else round(figures.percent, 1),
        eta_seconds=None if left_s is None else round(left_s, 1),
    )


def _backfill(table: KnownTable, now_s: float) -> BackfillReport | None:
    if table.figures.backfill is None:
        return None
    rate = None if table.backfill is None else table.backfill.now(now_s)
    return backfill_report(table.figures.backfill, chunks_per_s=rate)


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


def _backlog(job: JobStatus | None, room: LogRetention | None) -> Backlog:
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
