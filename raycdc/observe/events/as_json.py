"""Converts events to JSON objects for programs: lines of ``run --json``, server-sent events, lines of a log file.

Programs rely on the keys. The package's docstring lists them, and `raycdc.observe.events.lines` describes them as a
schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, assert_never, cast

from raycdc.observe.events.run_events import (
    CaughtUp,
    Commanded,
    Committed,
    EnginesPromoted,
    Failed,
    Lags,
    NewTable,
    PartitionLags,
    ReaderFigures,
    Recovered,
    RunEvent,
    RunProgress,
    Scaling,
    SchemaChanged,
    SnapshotDone,
    SnapshotsDone,
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

if TYPE_CHECKING:
    from raycdc.core.typed_codec import Json

#: The old names of lags, without units. They are removed in the next release.
_OLD_LAGS = {
    "currentFetchEventTimeLag": "current_fetch_event_time_lag_ms",
    "currentEmitEventTimeLag": "current_emit_event_time_lag_ms",
    "sourceIdleTime": "source_idle_time_ms",
    "pendingRecords": "pending_records",
    "watermarkLag": "watermark_lag_ms",
}

_OfProcesses = Starting | StandbyWaiting | TookOver | Started | EnginesPromoted | Scaling
_OfTables = TableParked | Commanded | NewTable | TablePhaseChanged | SnapshotDone | SnapshotsDone | SchemaChanged


def event_to_json(event: RunEvent) -> dict[str, Any]:
    """Return one line of ``run --json``."""
    match event:
        case Starting() | StandbyWaiting() | TookOver() | Started() | EnginesPromoted() | Scaling():
            return _of_processes(event)
        case (
            TableParked()
            | Commanded()
            | NewTable()
            | TablePhaseChanged()
            | SnapshotDone()
            | SnapshotsDone()
            | SchemaChanged()
        ):
            return _of_tables(event)
        case RunProgress():
            return _progress(event)
        case Committed() | Recovered():
            return _of_epochs(event)
        case Warned(text):
            return {"event": "warning", "text": text}
        case StageStalled():
            return {"event": "stalled", **asdict(event), "text": str(event)}
        case StageResumed(stood):
            return {"event": "resumed", **asdict(stood), "text": str(event)}
        case CaughtUp():
            return {"event": "caught_up", **event.engines.to_json()}
        case Stopped():
            return {"event": "stopped", **event.engines.to_json()}
        case Failed(error, text):
            return {"event": "error", "error": error, "text": text}
        case other:
            assert_never(other)


def _of_processes(event: _OfProcesses) -> dict[str, Json]:
    match event:
        case Starting(step):
            return {"event": "starting", "step": step}
        case StandbyWaiting(holder, state, at_most_s):
            limit = {} if at_most_s is None else {"at_most_s": at_most_s}
            return {"event": "waiting", "for": holder, "state": state, **limit}
        case TookOver(reason, generation):
            return {"event": "took_over", "reason": reason, "generation": generation}
        case Started(driver, enumerator, readers, engines):
            return {
                "event": "started",
                "pids": {"driver": driver, "enumerator": enumerator, "readers": [*readers]},
                "read_by": str(engines.read_by),
                "written_by": str(engines.written_by),
                **({} if engines.due_s is None else {"engines_due_s": engines.due_s}),
            }
        case EnginesPromoted(after_s):
            return {"event": "engines_promoted", "after_s": after_s}
        case Scaling():
            return {"event": "scaling", **asdict(event)}


def _of_tables(event: _OfTables) -> dict[str, Json]:
    match event:
        case TableParked(table, parked):
            return {
                "event": "parked",
                "table": table,
                "phase": str(parked.phase),
                "again": parked.again,
                "reason": parked.reason,
                "position": parked.position.to_json(),
                "ts_ms": parked.ts_ms,
            }
        case Commanded(asked):
            return {
                "event": "command",
                "id": asked.command,
                "action": asked.action,
                "table": asked.table,
                "tables": [*asked.tables],
                "refused": asked.refused,
                "text": asked.text,
            }
        case NewTable(table):
            return {"event": "new_table", "table": table, "text": str(event)}
        case TablePhaseChanged(table, before, after):
            return {"event": "table_phase", "table": table, "from": before, "to": after}
        case SnapshotDone(table, rows):
            return {"event": "snapshot_done", "table": table, "rows": rows}
        case SnapshotsDone(tables):
            return {"event": "snapshots_done", "tables": tables}
        case SchemaChanged(table, target, epoch, changes):
            return {"event": "schema_changed", "table": table, "target": target, "epoch": epoch, "changes": [*changes]}


def _of_epochs(event: Committed | Recovered) -> dict[str, Json]:
    match event:
        case Committed(epoch, by_table, rows, staging_s, commit_s):
            return {
                "event": "commit",
                "epoch": epoch,
                "tables": dict(by_table),
                "rows": rows,
                "seconds": round(event.seconds, 3),
                "staging_s": round(staging_s, 3),
                "commit_s": round(commit_s, 3),
                **event.engines.to_json(),
            }
        case Recovered(after, epoch, replayed, dropped):
            done = {"replayed": [*replayed], "dropped": [*dropped]}
            return {"event": "recovered", "after": after, "epoch": epoch, **done, "text": str(event)}


def _progress(progress: RunProgress) -> dict[str, Json]:
    return {
        "event": "progress",
        "tables": [_table(table) for table in progress.tables],
        "lag_ms": progress.behind_ms,
        "lag": _lags(progress.lags),
        "readers": [_reader(reader) for reader in progress.readers],
        **({"bottleneck": progress.bottleneck} if progress.bottleneck else {}),
    }


def _table(table: TableFigures) -> Mapping[str, Json]:
    # The position of a paused table matters only to its connector.
    parked = {} if table.parked is None else {"parked": cast("Json", replace(table.parked, left=None).to_json())}
    return {
        "table": table.table,
        "phase": table.phase,
        "chunks_done": table.chunks_done,
        "chunks_total": table.chunks_total,
        **parked,
        "rows": table.rows,
        "lost_values": table.lost_values,
        "rows_per_s": table.rows_per_s,
        **_snapshot(table),
        **_backfill(table),
        **({} if table.bad_rows is None else {"bad_rows": table.bad_rows}),
        **table.source_counts,
    }


def _snapshot(table: TableFigures) -> dict[str, float | None]:
    """Return the progress of the snapshot; empty for a table without one."""
    if table.amount is None:
        return {}
    return {
        "snapshot_rows": table.amount.rows,
        "snapshot_rows_estimated": table.rows_about,
        "snapshot_bytes": table.amount.bytes,
        "snapshot_percent": None if table.percent is None else round(table.percent, 1),
    }


def _backfill(table: TableFigures) -> dict[str, float | None]:
    """Return the progress of the backfill; empty for a table without one."""
    if (backfill := table.backfill) is None:
        return {}
    return {
        "backfill_rows": backfill.rows,
        "backfill_chunks_done": backfill.chunks_done,
        "backfill_chunks_total": backfill.chunks_total,
        "backfill_percent": None if backfill.percent is None else round(backfill.percent, 1),
    }


def _lags(lags: Lags | PartitionLags) -> Mapping[str, int | None]:
    common = lags if isinstance(lags, Lags) else lags.common
    shown = {
        "current_fetch_event_time_lag_ms": common.fetch_ms,
        "current_emit_event_time_lag_ms": common.emit_ms,
        "source_idle_time_ms": common.idle_ms,
    }
    if isinstance(lags, PartitionLags):
        shown |= {"pending_records": lags.pending_records, "watermark_lag_ms": lags.watermark_ms}
    return shown | {old: shown[new] for old, new in _OLD_LAGS.items() if new in shown}


def _reader(reader: ReaderFigures) -> Mapping[str, Json]:
    return {
        "subtask": reader.subtask,
        "pid": reader.pid,
        "splits": [*reader.splits],
        "seconds": dict(reader.seconds),
        **({"node": reader.node} if reader.node else {}),
        **({} if reader.sealing is None else {"sealing": dict(reader.sealing)}),
        **({} if reader.paused is None else {"paused": [*reader.paused]}),
    }
