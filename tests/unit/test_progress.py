"""What a run tells of a source of partitions: the lags of all its readers, and what it noted."""

from __future__ import annotations

from typing import Any

from raycdc.progress import ProgressReporter


def reader(**metrics: Any) -> dict[str, Any]:
    return {"subtask": 0, "pid": 1, "splits": ["m:0"], "metrics": metrics}


def told(*statuses: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    reporter = ProgressReporter(events.append, driver_pid=1)
    for status in statuses:
        reporter._look(lambda status=status: status)  # type: ignore[misc]
    return events


def test_lags_are_the_worst_of_all_readers_and_what_is_pending_is_added_up() -> None:
    slow = {"currentFetchEventTimeLag": 500, "currentEmitEventTimeLag": 900, "sourceIdleTime": 4000}
    quick = {"currentFetchEventTimeLag": 5, "currentEmitEventTimeLag": None, "sourceIdleTime": 10}
    readers = [
        reader(**slow, pendingRecords=70, watermarkLag=900, waiting=["m:1"]),
        reader(**quick, pendingRecords=2, watermarkLag=None, waiting=[]),
        reader(),
    ]
    (event,) = told({"tables": {}, "readers": readers})
    assert event["lag"] == {
        "currentFetchEventTimeLag": 500,
        "currentEmitEventTimeLag": 900,
        "sourceIdleTime": 10,
        "pendingRecords": 72,
        "watermarkLag": 900,
    }
    assert [entry.get("paused") for entry in event["readers"]] == [["m:1"], [], None]


def test_a_problem_of_the_source_is_a_warning_until_it_is_gone() -> None:
    quiet: dict[str, Any] = {"tables": {}, "readers": []}
    away = {**quiet, "problems": {"discovery": "the cluster was away"}}
    warnings = [event["text"] for event in told(away, away, quiet, away) if event["event"] == "warning"]
    assert warnings == ["discovery: the cluster was away"] * 2


def test_what_sources_count_of_a_table_is_added_up_over_readers() -> None:
    readers = [
        reader(source={"large_documents": {"shop.orders": 2, "shop.users": 1}}),
        reader(source={"large_documents": {"shop.orders": 3}}),
        reader(source={}),
    ]
    (event,) = told({"tables": {"shop.orders": {}, "shop.items": {}}, "readers": readers})
    assert [table.get("large_documents") for table in event["tables"]] == [None, 5]
