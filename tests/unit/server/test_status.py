"""The figures of a status: rates, the busiest stage, the log's room, and what is remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from raycdc.cli.screens.progress import LiveView
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.client import MySqlServerInfo
from raycdc.connectors.mysql.source import log_retention
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.observe.events import (
    Committed,
    Lags,
    RunProgress,
    Started,
    TableFigures,
    TableParked,
    TablePhaseChanged,
    Warned,
)
from raycdc.observe.status import Moment, RunProcess, RunStatus, Speed, Stages, StatusKeeper
from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.model import VERSION, BackfillReport, Chosen, ResumingReport, Status, TableReport
from raycdc.observe.status.status import NOTES_MAX
from raycdc.sandbox.servers.private import wait_until
from raycdc.server import service as control_room
from raycdc.server.scraping import ScrapeLimits, exposition
from raycdc.server.service import LogRetentionMonitor
from raycdc.source.connector import LogRetention
from raycdc.source.protocol.api import BackfillProgress, SnapshotAmount
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus
from raycdc.source.protocol.metrics import CatchUpOutage, ProcessMetrics, ReaderMetrics
from raycdc.source.tables.table_life import Parked, ParkedPhase
from raycdc.state.opaque import Position

PARKED = Parked("f1", True, 2, ParkedPhase.PARKED, "its key changed", Position.from_json({}), ts_ms=5)


def kept(**clocks: Callable[[], Any]) -> StatusKeeper:
    return StatusKeeper(RunProcess.here("shop", "jsonl out", local=True), **clocks)


def documents_of(keeper: StatusKeeper) -> StatusDocuments:
    return StatusDocuments(keeper, lambda table: (table,))


def test_a_speed_is_the_average_of_the_last_seconds_and_fades() -> None:
    speed = Speed(0.0, 0)
    assert speed.now(0.0) is None
    for second in range(1, 60):
        speed = speed.after(second * 100, now_s=float(second))
    assert speed.now(59.0) == pytest.approx(100)
    assert speed.now(63.0) == pytest.approx(100)
    assert (speed.now(80.0) or 0) < 1
    # Who counts began anew, which is no growth.
    speed = speed.after(0, now_s=81.0).after(50, now_s=82.0)
    assert (speed.now(82.0) or 0) < 100


def test_the_busiest_stage_is_the_bottleneck() -> None:
    stages = Stages()
    for second in range(20):
        seconds = {"chunk_read": second * 0.9, "chunk_read_cpu": second * 0.2, "chunk_write": second * 0.1}
        reader = ReaderStatus(0, 1, 10, "state", process=ProcessMetrics(seconds))
        stages = stages.observed(JobStatus(1, 0, 0, readers=(reader,)), now_s=float(second))
        stages = stages.committed(staging_s=0.3, commit_s=0.05)
    found = stages.bottleneck()
    assert found is not None
    assert found.stage == "source"
    assert found.share == found.shares["source"]
    expected = {
        "source": 0.7,
        "rate_limit": 0.0,
        "decode": 0.2,
        "hand_off": 0.0,
        "bridge": 0.1,
        "spark": 0.3,
        "commit": 0.05,
    }
    assert found.shares == pytest.approx(expected, abs=0.02)


def test_readers_that_keep_to_a_pace_do_not_wait_for_the_source() -> None:
    stages = Stages()
    for second in range(20):
        seconds = {"chunk_read": second * 0.9, "chunk_read_cpu": second * 0.1, "rate_limited": second * 0.7}
        reader = ReaderStatus(0, 1, 10, "state", process=ProcessMetrics(seconds))
        stages = stages.observed(JobStatus(1, 0, 0, readers=(reader,)), now_s=float(second))
    found = stages.bottleneck()
    assert found is not None
    assert found.stage == "rate_limit"
    assert "source.rows_per_second" in found.why
    assert found.shares["source"] == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    ("place", "expires_s", "room"),
    [
        (BinlogOffset("b.2", 70), 3600.0, LogRetention(30, 3600.0)),
        (BinlogOffset("b.2", 100), 0.0, LogRetention(0, forever=True)),
        (BinlogOffset("b.1", 150), 3600.0, LogRetention(150, 0.0)),
        (BinlogOffset("b.0", 4), 3600.0, None),
    ],
    ids=["the newest file", "kept forever", "an old file", "another server's"],
)
def test_the_room_of_a_binlog(place: BinlogOffset, expires_s: float, room: LogRetention | None) -> None:
    info = cast("MySqlServerInfo", SimpleNamespace(expire_logs_s=expires_s))
    assert log_retention(place, info, [("b.1", 200), ("b.2", 100)], 1_000) == room


def test_a_status_is_made_of_events_and_bounded_in_what_it_remembers() -> None:
    now_s = 0.0
    keeper = kept(clock=lambda: now_s, wall_ms=lambda: int(now_s * 1000))
    keeper.listen(Started(1, 1, (1,)))
    for second in range(4):
        now_s = float(second)
        figures = TableFigures("shop.a", "stream", rows=second * 10)
        keeper.listen(RunProgress((figures,), Lags(), (), behind_ms=40))
    keeper.listen(Committed(7, {"shop.a": 30}, 30, staging_s=0.1, commit_s=0.1))
    for number in range(NOTES_MAX + 4):
        keeper.listen(Warned(f"{number}"))
    paused = replace(PARKED, reason="paused by the user", phase=ParkedPhase.PAUSED)
    asked = replace(PARKED, reason="a new snapshot is taken", again=True)
    ended = replace(PARKED, reason="it is gone", phase=ParkedPhase.ENDED)
    for parked in (replace(PARKED, reason="its key changed"), paused, asked, ended):
        keeper.listen(TableParked("shop.a", parked))
    now_s = 5.0
    status = documents_of(keeper).status()
    [table] = status.tables
    assert (table.lag_ms, table.rows_per_second, table.last_commit) == (2040, 10.0, status.job.last_commit)
    told = [*(f"{n}" for n in range(5, NOTES_MAX + 4)), "shop.a is parked: its key changed"]
    assert [note.text for note in status.job.warnings] == told, "what the user asked for is no warning"
    assert Status.from_json(status.to_json()) == status


def test_a_backfill_says_how_far_it_is_and_how_long_it_takes() -> None:
    now_s = 0.0
    keeper = kept(clock=lambda: now_s)

    def heard(backfill: BackfillProgress | None) -> BackfillReport | None:
        keeper.listen(RunProgress((TableFigures("shop.a", "stream", backfill=backfill),), Lags(), ()))
        [table] = documents_of(keeper).status().tables
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
    keeper = kept(wall_ms=lambda: 1000)
    keeper.listen(RunProgress((TableFigures("shop.a", "resuming"), TableFigures("shop.b", "stream")), Lags(), ()))

    def heard(beside: CatchUpOutage | None) -> list[ResumingReport | None]:
        reader = ReaderStatus(0, 1, 10, "state", metrics=ReaderMetrics(catch_up_outage=beside))
        keeper.listen(RunProgress((), Lags(), (), job=JobStatus(1, 0, 0, readers=(reader,))))
        return [table.resuming for table in documents_of(keeper).status().tables]

    assert heard(None) == [None, None]
    assert heard(CatchUpOutage(3, "it was lost.", 250)) == [ResumingReport(3, "it was lost.", 251_000), None]


def test_the_terminal_the_document_and_the_metrics_say_the_same_of_a_status() -> None:
    now_s = 100.0
    keeper = kept(clock=lambda: now_s, wall_ms=lambda: int(now_s * 1000))
    view = LiveView(lambda: keeper.status, "shop", Console(file=StringIO(), width=120), clock=lambda: now_s)
    amount = SnapshotAmount(rows=0, bytes=0, estimate=10_000)
    for second in range(5):
        now_s = 100.0 + second
        rows = 1000 * second
        read = replace(amount, rows=rows)
        figures = TableFigures("shop.a", "snapshot", chunks_done=second, chunks_total=100, rows=rows, amount=read)
        keeper.listen(RunProgress((figures,), Lags(), (), behind_ms=40_000))
    keeper.listen(Committed(7, {"shop.a": 4000}, 4000, staging_s=0.1, commit_s=0.1))
    documents = documents_of(keeper)
    [table] = documents.status().tables
    assert table.snapshot is not None
    assert table.snapshot.eta_seconds == 6.0
    output = Console(file=StringIO(), width=120)
    output.print(view.render())
    view.close()
    assert isinstance(output.file, StringIO)
    shown = output.file.getvalue()
    assert "40.0 s behind" in shown
    assert "epoch 7, 4,000 rows committed" in shown
    assert "6.0 s" in shown.splitlines()[-1]
    page, _ = exposition(documents.status, ScrapeLimits(10), "", version="1")
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    samples = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert samples["raycdc_table_snapshot_eta_seconds"] == 6.0
    assert samples["raycdc_MilliSecondsBehindSource"] == documents.status().job.lag_ms == 40_000
    assert samples["raycdc_rows_committed_total"] == keeper.status.commits.rows == 4000


def test_a_name_that_no_table_was_found_under_is_none_of_the_tables() -> None:
    keeper = kept()
    nothing = replace(PARKED, schema=None, announced=False, phase=ParkedPhase.ENDED)
    gone = replace(PARKED, phase=ParkedPhase.ENDED)
    figures = [("a", "stream", None), ("b", "ended", gone), ("c", "ended", nothing), ("d", "parked", PARKED)]
    first = tuple(TableFigures(f"shop.{name}", phase, parked=parked) for name, phase, parked in figures)
    keeper.listen(RunProgress(first, Lags(), ()))
    before = keeper.status
    keeper.listen(RunProgress((TableFigures("shop.d", "ended", bad_rows=2, parked=nothing),), Lags(), ()))
    assert (before.tables.names, before.tables.phases) == (
        ("shop.a", "shop.b", "shop.d"),
        {"stream": 1, "ended": 1, "parked": 1},
    )
    assert keeper.status.tables.names == ("shop.a", "shop.b")
    assert (keeper.status.tables.phases, keeper.status.tables.rows_left_out) == ({"stream": 1, "ended": 1}, 0)


def test_a_parked_table_is_no_warning_any_more_once_it_is_followed_again() -> None:
    keeper = kept()
    keeper.listen(Warned("The clock is odd."))
    for name in ("shop.a", "shop.b"):
        keeper.listen(TableParked(name, PARKED))
    said = ["The clock is odd.", "shop.a is parked: its key changed", "shop.b is parked: its key changed"]
    assert [note.text for note in documents_of(keeper).status().job.warnings] == said
    keeper.listen(TablePhaseChanged("shop.a", "parked", "snapshot"))
    assert [note.text for note in documents_of(keeper).status().job.warnings] == [said[0], said[2]]
    counts = documents_of(keeper).status().job.counts
    assert counts is not None
    assert counts.warnings == 3


def test_a_status_has_the_tables_that_are_chosen_and_makes_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = kept()
    phases = {"b": "stream", "d": "snapshot", "a": "stream", "c": "parked", "e": "stream"}
    for name, phase in phases.items():
        keeper.listen(RunProgress((TableFigures(f"shop.{name}", phase),), Lags(), ()))
    made: list[str] = []
    report = StatusDocuments._table

    def counted(own: StatusDocuments, status: RunStatus, name: str, now: Moment) -> TableReport:
        made.append(name)
        return report(own, status, name, now)

    monkeypatch.setattr(StatusDocuments, "_table", counted)

    def found(chosen: Chosen) -> tuple[list[str], str | None]:
        made.clear()
        status = documents_of(keeper).status(chosen)
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
        came.append(ends(lambda: keeper.listen(RunProgress((TableFigures("shop.c", "stream"),), Lags(), ()))))
        came.append(ends(lambda: documents.status(Chosen(limit=0))))
        return (table,)

    keeper = kept()
    documents = StatusDocuments(keeper, targets)
    for name in "ab":
        keeper.listen(RunProgress((TableFigures(f"shop.{name}", "stream"),), Lags(), ()))
    assert [table.table for table in documents.status(chosen).tables] == ["shop.a", "shop.b"]
    assert came == [True] * 4
    assert len(documents.reports(["shop.a"])) == 1
    assert came == [True] * 6


def ends(call: Callable[[], object]) -> bool:
    """Whether a call in a thread of its own ends, long before this one would give up."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def test_a_source_that_does_not_say_how_much_of_its_log_it_has_is_asked_by_one_thread() -> None:
    asked, says = threading.Semaphore(0), threading.Event()

    def ask() -> LogRetention | None:
        asked.release()
        assert says.wait(600)
        return LogRetention(7, 60.0)

    room = LogRetentionMonitor(ask)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(control_room, "GOOD_FOR_S", 0.0)
        patched.setattr(control_room, "TIMEOUT_S", 0.0)
        assert [room() for _ in range(3)] == [None] * 3
        assert asked.acquire(timeout=600)
        assert not asked.acquire(blocking=False), "while one question is under way there is no other"
        says.set()
        wait_until(lambda: room() == LogRetention(7, 60.0), timeout_s=600, what="its answer")


def test_a_status_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(StateError, match=f"in version {VERSION + 1}, and this raycdc reads {VERSION}"):
        Status.from_json(f'{{"version": {VERSION + 1}}}'.encode())
