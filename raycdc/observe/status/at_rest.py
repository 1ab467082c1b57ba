"""The status of a pipeline that is not running, computed from its state."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from raycdc.observe.events import TableFigures
from raycdc.observe.status import CommitReport
from raycdc.observe.status.model import (
    VERSION,
    EndReport,
    JobReport,
    ParkedReport,
    SnapshotReport,
    Status,
    TableReport,
    backfill_report,
)
from raycdc.source.snapshot.enumerator.enumerator_state import SealedEnumerator, SealedPlanning
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.tables.parking import Requests
from raycdc.source.tables.table_commands import as_it_is
from raycdc.source.tables.table_life import Parked, TableState, phase_word
from raycdc.source.tables.table_requests import each_table, requests_of
from raycdc.state.bad_row_counts import bad_rows
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import Position
from raycdc.state.store import CheckpointStore, CommitRecord


def status_at_rest(
    store: CheckpointStore, said: str, position_text: Callable[[Position], str], *, runs: bool = False
) -> Status:
    """Return the status as of the state.

    `said` names the origin of the status for people. If `runs` is True, a run exists, but its control API does not
    answer.
    """
    manifest, record = store.last_manifest(), store.last_commit()
    state = stream_of(manifest)
    tables: tuple[TableReport, ...] = ()
    if manifest is not None and state is None:
        tables = _without_log(manifest)
    elif manifest is not None and state is not None:
        tables = _tables(manifest, as_it_is(state, record), requests_of(store), position_text)
    lost = {} if manifest is None else {str(table): count for table, count in manifest.lost.items()}
    left_out = bad_rows(store, record.epoch if record else 0)
    commit = None if record is None else CommitReport(record.epoch, record.committed_ms)
    routed: dict[str, list[str]] = {}
    for target, each in sorted(record.routes.items()) if record is not None else ():
        for source in each.sources:
            routed.setdefault(source, []).append(target)
    tables = tuple(
        replace(
            table,
            targets=tuple(routed.get(table.table, ())) or table.targets,
            rows_left_out=left_out.get(table.table),
            values_lost=lost.get(table.table, 0),
        )
        for table in tables
    )
    tables = tuple(replace(table, last_commit=_last_commit(table, record)) for table in tables)
    return Status(
        version=VERSION,
        at_ms=time.time_ns() // 1_000_000,
        pipeline=store.pipeline,
        running=False,
        said=said,
        sink=None,
        run=None,
        job=JobReport(last_commit=commit),
        tables=tables,
        last_end=None if runs else _last_end(store),
    )


def _last_end(store: CheckpointStore) -> EndReport | None:
    """Return the end of the last run; None if there was no run, or if the last driver was a command or an older
    version of raycdc.
    """
    _, holder = store.generations.newest_holder()
    if holder is None:
        return None
    if holder.end is None:
        return None if holder.ended else EndReport()
    return EndReport(holder.end.at_ms, holder.end.exit_code, holder.end.error or None, holder.end.text or None)


def _last_commit(table: TableReport, record: CommitRecord | None) -> CommitReport | None:
    """Return the last epoch that wrote to one of the table's targets."""
    if record is None:
        return None
    epochs = [record.tables[target][0] for target in table.targets if target in record.tables]
    if not epochs:
        return None
    return CommitReport(max(epochs), record.committed_ms if max(epochs) == record.epoch else None)


def _without_log(manifest: Manifest) -> tuple[TableReport, ...]:
    """Return the tables of a source with several logs, which have no phases of their own: all tables of the state."""
    return tuple(TableReport(str(table), "stream", (str(table),)) for table in sorted(manifest.tables))


def _tables(
    manifest: Manifest, state: StreamState, requests: Requests, position_text: Callable[[Position], str]
) -> tuple[TableReport, ...]:
    sealed = SealedEnumerator.of(manifest.enumerator)
    snapshots = {str(table): _snapshot(planning) for table, planning in sealed.tables.items()}
    going = [each for each in reversed(sealed.backfills) if each.over is None]
    backfills = {str(each.request.table): backfill_report(each.progress) for each in going}
    return tuple(
        TableReport(
            table=name,
            phase=phase_word(table),
            targets=(name,),
            snapshot=snapshots.get(name),
            parked=_parked(table, position_text),
            asked=None if asked is None else str(asked),
            backfill=backfills.get(name),
        )
        for name, table, asked in each_table(state, requests)
    )


def _snapshot(sealed: SealedPlanning) -> SnapshotReport:
    amount, total = sealed.amount, max(sealed.planned, sealed.estimate)
    figures = TableFigures(
        "",
        "snapshot" if sealed.planner is not None or sealed.finished < total else "stream",
        sealed.finished,
        total,
        amount=amount,
    )
    return SnapshotReport(
        chunks_done=sealed.finished,
        chunks_total=total or None,
        rows_done=amount.rows,
        rows_estimated=figures.rows_about,
        bytes_done=amount.bytes,
        percent=None if figures.percent is None else round(figures.percent, 1),
    )


def _parked(table: TableState, position_text: Callable[[Position], str]) -> ParkedReport | None:
    if not isinstance(table, Parked):
        return None
    return ParkedReport(table.reason, table.again, table.ts_ms, position_text(table.position))
