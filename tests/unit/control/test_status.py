"""The figures of a status: rates, the busiest stage, the log's room, and what is remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raycdc.checkpoint.opaque import Position
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.client import ServerInfo
from raycdc.connectors.mysql.room import log_room
from raycdc.control import room as control_room
from raycdc.control.collect import NOTES_MAX, About, Collector
from raycdc.control.model import VERSION, BackfillReport, Chosen, ResumingReport, Status
from raycdc.control.rates import Speed
from raycdc.control.room import AskedRoom
from raycdc.control.stages import Stages
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.run_events import Committed, Lags, Progress, Started, TableFigures, TableParked, Warned
from raycdc.source.connector import LogRoom
from raycdc.source.protocol.api import BackfillProgress
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus
from raycdc.source.protocol.metrics import BesideTrouble, ProcessMetrics, ReaderMetrics
from raycdc.source.table_life import Parked, Phase
from raycdc.testing.servers.process import wait_until

PARKED = Parked("f1", True, 2, Phase.PARKED, "its key changed", Position.from_json({}), ts_ms=5)


def test_a_speed_is_the_average_of_the_last_seconds_and_fades() -> None:
    speed = Speed(0.0, 0)
    assert speed.now(0.0) is None
    for second in range(1, 60):
        speed.saw(second * 100, now_s=float(second))
    assert speed.now(59.0) == pytest.approx(100)
    assert speed.now(63.0) == pytest.approx(100)
    assert (speed.now(80.0) or 0) < 1
    # Who counts began anew, which is no growth.
    speed.saw(0, now_s=81.0)
    speed.saw(50, now_s=82.0)
    assert (speed.now(82.0) or 0) < 100


def test_the_busiest_stage_is_the_bottleneck() -> None:
    stages = Stages()
    for second in range(20):
        seconds = {"chunk_read": second * 0.9, "chunk_read_cpu": second * 0.2, "chunk_write": second * 0.1}
        reader = ReaderStatus(0, 1, 10, "state", process=ProcessMetrics(seconds))
        stages.look(JobStatus(1, 0, 0, readers=(reader,)), now_s=float(second))
        stages.committed(staging_s=0.3, commit_s=0.05)
    found = stages.bottleneck()
    assert found is not None
    assert found.stage == "source"
    assert found.share == found.shares["source"]
    expected = {"source": 0.7, "pace": 0.0, "decode": 0.2, "hand_off": 0.0, "bridge": 0.1, "spark": 0.3, "commit": 0.05}
    assert found.shares == pytest.approx(expected, abs=0.02)


def test_readers_that_keep_to_a_pace_do_not_wait_for_the_source() -> None:
    stages = Stages()
    for second in range(20):
        seconds = {"chunk_read": second * 0.9, "chunk_read_cpu": second * 0.1, "paced": second * 0.7}
        reader = ReaderStatus(0, 1, 10, "state", process=ProcessMetrics(seconds))
        stages.look(JobStatus(1, 0, 0, readers=(reader,)), now_s=float(second))
    found = stages.bottleneck()
    assert found is not None
    assert found.stage == "pace"
    assert "source.rows_per_second" in found.why
    assert found.shares["source"] == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    ("place", "expires_s", "room"),
    [
        (BinlogOffset("b.2", 70), 3600.0, LogRoom(30, 3600.0)),
        (BinlogOffset("b.2", 100), 0.0, LogRoom(0, forever=True)),
        (BinlogOffset("b.1", 150), 3600.0, LogRoom(150, 0.0)),
        (BinlogOffset("b.0", 4), 3600.0, None),
    ],
    ids=["the newest file", "kept forever", "an old file", "another server's"],
)
def test_the_room_of_a_binlog(place: BinlogOffset, expires_s: float, room: LogRoom | None) -> None:
    info = cast("ServerInfo", SimpleNamespace(expire_logs_s=expires_s))
    assert log_room(place, info, [("b.1", 200), ("b.2", 100)], 1_000) == room


def test_a_status_is_made_of_events_and_bounded_in_what_it_remembers() -> None:
    now_s = 0.0
    collector = Collector(
        About("shop", "jsonl out", True, targets=lambda table: (table,)),
        clock=lambda: now_s,
        wall_ms=lambda: int(now_s * 1000),
    )
    collector.listen(Started(1, 1, (1,)))
    for second in range(4):
        now_s = float(second)
        figures = TableFigures("shop.a", "stream", rows=second * 10)
        collector.listen(Progress((figures,), Lags(), (), behind_ms=40))
    collector.listen(Committed(7, {"shop.a": 30}, 30, staging_s=0.1, commit_s=0.1))
    for number in range(NOTES_MAX + 4):
        collector.listen(Warned(f"{number}"))
    for reason in ("its key changed", "paused by the user", "a new snapshot was asked for"):
        collector.listen(TableParked("shop.a", replace(PARKED, reason=reason)))
    now_s = 5.0
    status = collector.status()
    [table] = status.tables
    assert (table.lag_ms, table.rows_per_second, table.last_commit) == (2040, 10.0, status.job.last_commit)
    told = [*(f"{n}" for n in range(5, NOTES_MAX + 4)), "shop.a is parked: its key changed"]
    assert [note.text for note in status.job.warnings] == told, "what the user asked for is no warning"
    assert Status.from_json(status.to_json()) == status


def test_a_backfill_says_how_far_it_is_and_how_long_it_takes() -> None:
    now_s = 0.0
    collector = Collector(About("shop", "jsonl out", True, targets=lambda table: (table,)), clock=lambda: now_s)

    def heard(backfill: BackfillProgress | None) -> BackfillReport | None:
        collector.listen(Progress((TableFigures("shop.a", "stream", backfill=backfill),), Lags(), ()))
        [table] = collector.status().tables
        return table.backfill

    assert heard(None) is None
    assert heard(BackfillProgress()) == BackfillReport(0, None, 0)
    for second in range(5):
        now_s = float(second)
        said = heard(BackfillProgress(second, 20, 100 * second))
    assert said == BackfillReport(4, 20, 400, percent=20.0, eta_seconds=16.0)
    assert heard(None) is None
    # The next one begins anew.
    assert heard(BackfillProgress(0, 2)) == BackfillReport(0, 2, 0, percent=0.0)


def test_a_table_that_goes_on_says_what_holds_up_the_second_reading_of_its_log() -> None:
    about = About("shop", "delta ./lake", False, targets=lambda table: (table,))
    collector = Collector(about, wall_ms=lambda: 1000)
    collector.listen(Progress((TableFigures("shop.a", "resuming"), TableFigures("shop.b", "stream")), Lags(), ()))

    def heard(beside: BesideTrouble | None) -> list[ResumingReport | None]:
        reader = ReaderStatus(0, 1, 10, "state", metrics=ReaderMetrics(beside=beside))
        collector.heard(JobStatus(1, 0, 0, readers=(reader,)))
        return [table.resuming for table in collector.status().tables]

    assert heard(None) == [None, None]
    assert heard(BesideTrouble(3, "it was lost.", 250)) == [ResumingReport(3, "it was lost.", 251_000), None]


def test_a_status_has_the_tables_that_are_chosen_and_makes_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector(About("shop", "jsonl out", True, targets=lambda table: (table,)))
    phases = {"b": "stream", "d": "snapshot", "a": "stream", "c": "parked", "e": "stream"}
    for name, phase in phases.items():
        collector.listen(Progress((TableFigures(f"shop.{name}", phase),), Lags(), ()))
    made: list[str] = []
    report = Collector._report

    def counted(own: Collector, figures: TableFigures, *rest: Any, **more: Any) -> Any:
        made.append(figures.table)
        return report(own, figures, *rest, **more)

    monkeypatch.setattr(Collector, "_report", counted)

    def found(chosen: Chosen) -> tuple[list[str], str | None]:
        made.clear()
        status = collector.status(chosen)
        assert [table.table for table in status.tables] == made
        return [name.removeprefix("shop.") for name in made], status.next_after

    assert found(Chosen()) == (["a", "b", "c", "d", "e"], None)
    assert found(Chosen(limit=2)) == (["a", "b"], "shop.b")
    assert found(Chosen(limit=2, after="shop.b")) == (["c", "d"], "shop.d")
    assert found(Chosen(limit=1, after="shop.d")) == (["e"], None)
    assert found(Chosen(phase="stream", limit=2)) == (["a", "b"], "shop.b")
    assert found(Chosen(phase="stream", limit=2, after="shop.b")) == (["e"], None)
    assert found(Chosen(table="shop.c")) == (["c"], None)
    assert found(Chosen(table="shop.x")) == ([], None)
    assert found(Chosen(limit=0)) == ([], None)


@pytest.mark.parametrize("chosen", [Chosen(), Chosen(phase="stream"), Chosen(first="parked", limit=9), Chosen(limit=2)])
def test_the_run_goes_on_while_a_status_is_made(chosen: Chosen) -> None:
    """Of many tables that takes a while; so it does here, of two."""
    came: list[bool] = []

    def targets(table: TableId) -> tuple[TableId, ...]:
        came.append(ends(lambda: collector.listen(Progress((TableFigures("shop.c", "stream"),), Lags(), ()))))
        came.append(ends(lambda: collector.status(Chosen(limit=0))))
        return (table,)

    collector = Collector(About("shop", "jsonl out", True, targets))
    for name in "ab":
        collector.listen(Progress((TableFigures(f"shop.{name}", "stream"),), Lags(), ()))
    assert [table.table for table in collector.status(chosen).tables] == ["shop.a", "shop.b"]
    assert came == [True] * 4
    assert len(collector.reports(["shop.a"])) == 1
    assert came == [True] * 6


def ends(call: Callable[[], object]) -> bool:
    """Whether a call in a thread of its own ends, long before this one would give up."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_a_source_that_does_not_say_how_much_of_its_log_it_has_is_asked_by_one_thread() -> None:
    asked, says = threading.Semaphore(0), threading.Event()

    def ask() -> LogRoom | None:
        asked.release()
        assert says.wait(600)
        return LogRoom(7, 60.0)

    room = AskedRoom(ask)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(control_room, "GOOD_FOR_S", 0.0)
        patched.setattr(control_room, "PATIENCE_S", 0.0)
        assert [room() for _ in range(3)] == [None] * 3
        assert asked.acquire(timeout=600)
        assert not asked.acquire(blocking=False), "while one question is under way there is no other"
        says.set()
        wait_until(lambda: room() == LogRoom(7, 60.0), timeout_s=600, what="its answer")


def test_a_status_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(StateError, match=f"in version {VERSION + 1}, and this raycdc reads {VERSION}"):
        Status.from_json(f'{{"version": {VERSION + 1}}}'.encode())
