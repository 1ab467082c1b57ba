"""The keys of ``run --json``, which are a promise to programs: each kind of event, written out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from raycdc.model.engines import EngineName, EngineRows
from raycdc.observe.events import (
    CaughtUp,
    Commanded,
    Committed,
    EnginesAtWork,
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
    event_to_json,
)
from raycdc.observe.events.lines import LINES_VERSION, check_line, lines_schema
from raycdc.source.protocol.api import BackfillProgress
from raycdc.source.tables.parking import CommandDecision
from raycdc.source.tables.table_life import LeftAt, Parked, ParkedPhase
from raycdc.state.opaque import LogNotes, Position

STOOD = StageStalled("chunk", "shop.b", "shop.b:3", 1, "waits for the server's answer", "SELECT …", 73.2)
WHERE = "shop.b, chunk shop.b:3 on reader 1"
STANDS = {
    "stage": "chunk",
    "table": "shop.b",
    "split": "shop.b:3",
    "reader": 1,
    "doing": "waits for the server's answer",
    "note": "SELECT …",
    "seconds": 73.2,
}
POSITION = {"file": "binlog.000007", "pos": 4}
PARKED = Parked("f1", True, 2, ParkedPhase.PARKED, "its key changed", Position.from_json(POSITION), ts_ms=5)
TOLD = {"phase": "parked", "again": False, "reason": "its key changed", "position": POSITION, "ts_ms": 5}
OF_A_LOG = RunProgress(
    (
        TableFigures("shop.b", "snapshot", chunks_done=1, chunks_total=4, rows=10, rows_per_s=5),
        TableFigures(
            "shop.a", "parked", rows=3, lost_values=1, bad_rows=2, source_counts={"large_documents": 4}, parked=PARKED
        ),
    ),
    Lags(fetch_ms=5, emit_ms=340, idle_ms=2500),
    (ReaderFigures(0, 12, ("binlog",), {"decode": 0.5}, sealing={"files": 2}),),
    behind_ms=40,
)
OF_PARTITIONS = RunProgress(
    (),
    PartitionLags(Lags(fetch_ms=1, idle_ms=2), pending_records=7, watermark_ms=None),
    (ReaderFigures(1, 13, ("m:0",), paused=("m:1",)),),
)
TABLES = [
    {
        "table": "shop.b",
        "phase": "snapshot",
        "chunks_done": 1,
        "chunks_total": 4,
        "rows": 10,
        "lost_values": 0,
        "rows_per_s": 5,
    },
    {
        "table": "shop.a",
        "phase": "parked",
        "chunks_done": 0,
        "chunks_total": 0,
        "parked": {"schema": "f1", "announced": True, "incarnation": 2, **TOLD},
        "rows": 3,
        "lost_values": 1,
        "rows_per_s": 0,
        "bad_rows": 2,
        "large_documents": 4,
    },
]
BACKFILLED = RunProgress(
    (TableFigures("shop.c", "stream", backfill=BackfillProgress(rows=120, chunks_done=1, chunks_total=4)),),
    Lags(),
    (),
)
OF_A_BACKFILL = {
    "table": "shop.c",
    "phase": "stream",
    "chunks_done": 0,
    "chunks_total": 0,
    "rows": 0,
    "lost_values": 0,
    "rows_per_s": 0,
    "backfill_rows": 120,
    "backfill_chunks_done": 1,
    "backfill_chunks_total": 4,
    "backfill_percent": 25.0,
}
LAG_OF_PARTITIONS = {
    "current_fetch_event_time_lag_ms": 1,
    "current_emit_event_time_lag_ms": None,
    "source_idle_time_ms": 2,
    "pending_records": 7,
    "watermark_lag_ms": None,
    "currentFetchEventTimeLag": 1,
    "currentEmitEventTimeLag": None,
    "sourceIdleTime": 2,
    "pendingRecords": 7,
    "watermarkLag": None,
}
LAG_OF_A_LOG = {
    "current_fetch_event_time_lag_ms": 5,
    "current_emit_event_time_lag_ms": 340,
    "source_idle_time_ms": 2500,
    "currentFetchEventTimeLag": 5,
    "currentEmitEventTimeLag": 340,
    "sourceIdleTime": 2500,
}
NO_LAG = dict.fromkeys(LAG_OF_A_LOG)
ENGINES = EngineRows({EngineName.RAY: 10}, {EngineName.SPARK: 8, EngineName.DRIVER: 2})
BY_ENGINE = {"rows_read_by": {"ray": 10}, "rows_written_by": {"spark": 8, "driver": 2}}
COMMIT = {"epoch": 1, "tables": {"shop.b": 10}, "rows": 10, "seconds": 0.12, "staging_s": 0.1, "commit_s": 0.02}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Starting("starting"), {"event": "starting", "step": "starting"}),
        (
            Started(10, 11, (12, 13), EnginesAtWork(EngineName.RAY, EngineName.SPARK)),
            {
                "event": "started",
                "pids": {"driver": 10, "enumerator": 11, "readers": [12, 13]},
                "read_by": "ray",
                "written_by": "spark",
            },
        ),
        (
            Started(10, 10, (), EnginesAtWork(due_s=5.0)),
            {
                "event": "started",
                "pids": {"driver": 10, "enumerator": 10, "readers": []},
                "read_by": "driver",
                "written_by": "driver",
                "engines_due_s": 5.0,
            },
        ),
        (
            OF_A_LOG,
            {
                "event": "progress",
                "tables": TABLES,
                "lag_ms": 40,
                "lag": LAG_OF_A_LOG,
                "readers": [
                    {"subtask": 0, "pid": 12, "splits": ["binlog"], "seconds": {"decode": 0.5}, "sealing": {"files": 2}}
                ],
            },
        ),
        (
            BACKFILLED,
            {"event": "progress", "tables": [OF_A_BACKFILL], "lag_ms": None, "lag": NO_LAG, "readers": []},
        ),
        (
            OF_PARTITIONS,
            {
                "event": "progress",
                "tables": [],
                "lag_ms": None,
                "lag": LAG_OF_PARTITIONS,
                "readers": [{"subtask": 1, "pid": 13, "splits": ["m:0"], "seconds": {}, "paused": ["m:1"]}],
            },
        ),
        (
            Committed(1, {"shop.b": 10}, 10, staging_s=0.1, commit_s=0.02, engines=ENGINES),
            {"event": "commit", **COMMIT, **BY_ENGINE},
        ),
        (Warned("a name is nobody's"), {"event": "warning", "text": "a name is nobody's"}),
        (
            STOOD,
            {"event": "stalled", **STANDS, "text": f"{WHERE}: waits for the server's answer since 73 s (SELECT …)"},
        ),
        (
            StageResumed(STOOD),
            {"event": "resumed", **STANDS, "text": f"{WHERE}: goes on after 73 s (waits for the server's answer)"},
        ),
        (TableParked("shop.a", PARKED), {"event": "parked", "table": "shop.a", **TOLD}),
        (
            Commanded(CommandDecision("0123abcd", "pause", "shop.a", ("shop.a",), "shop.a is paused")),
            {
                "event": "command",
                "id": "0123abcd",
                "action": "pause",
                "table": "shop.a",
                "tables": ["shop.a"],
                "refused": False,
                "text": "shop.a is paused",
            },
        ),
        (EnginesPromoted(5.2), {"event": "engines_promoted", "after_s": 5.2}),
        (
            NewTable("shop.c"),
            {
                "event": "new_table",
                "table": "shop.c",
                "text": "shop.c is new and selected by the configuration, so it is followed",
            },
        ),
        (
            TablePhaseChanged("shop.a", "snapshot", "stream"),
            {"event": "table_phase", "table": "shop.a", "from": "snapshot", "to": "stream"},
        ),
        (SnapshotDone("shop.a", 10), {"event": "snapshot_done", "table": "shop.a", "rows": 10}),
        (SnapshotsDone(3), {"event": "snapshots_done", "tables": 3}),
        (
            SchemaChanged("shop.a", "lake.a", 7, ("add_column note",)),
            {
                "event": "schema_changed",
                "table": "shop.a",
                "target": "lake.a",
                "epoch": 7,
                "changes": ["add_column note"],
            },
        ),
        (
            Recovered("killed", 7, (6, 7), (8,), "process 9 on db1 did not say that it ended"),
            {
                "event": "recovered",
                "after": "killed",
                "epoch": 7,
                "replayed": [6, 7],
                "dropped": [8],
                "text": "process 9 on db1 did not say that it ended; going on behind epoch 7 (replayed epochs 6, 7, "
                "dropped epoch 8)",
            },
        ),
        (CaughtUp(ENGINES), {"event": "caught_up", **BY_ENGINE}),
        (Stopped(ENGINES), {"event": "stopped", **BY_ENGINE}),
        (Failed("SourceError", "db1"), {"event": "error", "error": "SourceError", "text": "db1"}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_each_event_is_one_line_of_json(event: RunEvent, line: dict[str, Any]) -> None:
    assert json.loads(json.dumps(event_to_json(event))) == line
    if line["event"] != "starting":  # It is on the terminal alone.
        check_line(json.dumps({"version": LINES_VERSION, "ts": "2026-01-01T00:00:00.000Z", "pipeline": "shop", **line}))


@pytest.mark.parametrize(
    "event",
    [
        Scaling(3, 1, {"state": 2}, "there is more to read"),
        StandbyWaiting("process 7 on db1", "state", 4.5),
        StandbyWaiting("process 7 on db1", "state", None),
        TookOver("process 7 on db1 ended", 3),
        Stopped(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_the_schema_of_lines_knows_every_event(event: RunEvent) -> None:
    line = {"version": LINES_VERSION, "ts": "2026-01-01T00:00:00.000Z", "pipeline": None, **event_to_json(event)}
    check_line(json.dumps(line))
    # Another version, a key more and a key less are others.
    for other in (line | {"version": 2}, line | {"more": 1}, {k: v for k, v in line.items() if k != "ts"}):
        with pytest.raises(ValueError, match="validation error"):
            check_line(json.dumps(other))


def test_the_line_of_a_paused_table_has_nothing_of_its_connectors_own() -> None:
    left = LeftAt(2, 9, LogNotes.from_json({"gtids": "of the connector"}))
    paused = replace(PARKED, phase=ParkedPhase.PAUSED, left=left)
    line = event_to_json(replace(OF_A_LOG, tables=(TableFigures("shop.a", "paused", parked=paused),)))
    (table,) = line["tables"]
    assert table["parked"] == {"schema": "f1", "announced": True, "incarnation": 2, **TOLD, "phase": "paused"}
    check_line(json.dumps({"version": LINES_VERSION, "ts": "2026-01-01T00:00:00.000Z", "pipeline": "shop", **line}))


def closed_parts(part: object) -> Iterator[object]:
    """The parts of a JSON Schema that allow no key but their own."""
    match part:
        case dict():
            if part.get("additionalProperties") is False:
                yield part
            for inner in part.values():
                yield from closed_parts(inner)
        case list():
            for inner in part:
                yield from closed_parts(inner)
        case _:
            pass


def test_the_printed_schema_allows_keys_that_come_without_a_new_version() -> None:
    schema = lines_schema()
    assert schema["$defs"].keys() >= {"ProgressLine", "ParkedState", "EndLine"}
    assert list(closed_parts(schema)) == []
