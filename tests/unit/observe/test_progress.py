"""What a run tells of a source of partitions: the lags of all its readers, and what it noted."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from raycdc.config import load_config
from raycdc.core.stopping import StoppedWaitingError
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.epoch_writer import EpochWriter
from raycdc.errors import ConfigError, SinkError, StateError
from raycdc.model import TableId
from raycdc.model.engines import EngineName
from raycdc.observe.events import (
    Committed,
    Lags,
    PartitionLags,
    Recovered,
    RunEvent,
    RunProgress,
    Started,
    TableParked,
    Warned,
)
from raycdc.observe.status import progress
from raycdc.observe.status.progress import TABLES_PER_POLL, ProgressReporter
from raycdc.pipeline import Pipeline
from raycdc.source.protocol.api import TableProgress
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus, TableStatus
from raycdc.source.protocol.metrics import PartitionMetrics, ProcessMetrics, ReaderMetrics
from raycdc.source.tables.table_life import Parked, ParkedPhase
from raycdc.state.opaque import Position
from raycdc.state.store import CheckpointStore
from tests.unit.driver.state_admin.small_pipeline import configured, require_exact


def reader(partitions: PartitionMetrics | None = None, **source: dict[str, int]) -> ReaderStatus:
    metrics, process = ReaderMetrics(partitions=partitions), ProcessMetrics(source=source)
    return ReaderStatus(0, 1, 1, "", ("m:0",), metrics=metrics, process=process)


def status(*readers: ReaderStatus, tables: tuple[str, ...] = (), problems: dict[str, str] | None = None) -> JobStatus:
    figures = {TableId.parse(name): TableStatus(TableProgress("stream")) for name in tables}
    return JobStatus(1, 1, 0, tables=figures, problems=problems or {}, readers=readers)


def told(*statuses: JobStatus) -> list[RunEvent]:
    events: list[RunEvent] = []
    reporter = ProgressReporter({"test": events.append})
    for each in statuses:
        reporter._poll(lambda *, tables, each=each: each)
    return events


def test_rows_are_those_of_the_run_whatever_becomes_of_its_coordinator() -> None:
    def sealed(generation: int, rows: int) -> JobStatus:
        return JobStatus(generation, 1, 0, tables={TableId("m", "t"): TableStatus(TableProgress("stream"), rows)})

    events = told(sealed(1, 10), sealed(1, 25), sealed(2, 0), sealed(2, 5))
    (tables,) = zip(*(event.tables for event in events if isinstance(event, RunProgress)), strict=True)
    # The third has the rate alone for news: nothing comes any more.
    assert [table.rows for table in tables] == [10, 25, 25, 30]
    assert [table.rows_per_s > 0 for table in tables] == [False, True, False, True]


def test_tables_that_changed_are_told() -> None:
    def sealed(rows: int) -> JobStatus:
        tables = {TableId("m", f"t{n:03}"): TableStatus(TableProgress("stream"), 0) for n in range(10)}
        return JobStatus(1, 1, 0, tables=tables | {TableId("m", "t007"): TableStatus(TableProgress("stream"), rows)})

    events = [event for event in told(sealed(0), sealed(0), sealed(5)) if isinstance(event, RunProgress)]
    assert [len(event.tables) for event in events] == [10, 0, 1]
    assert events[-1].tables[0].rows == 5


def test_lag_is_told_at_once_however_long_a_look_at_all_tables_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    # However quick it is here, the next one is due in an hour.
    monkeypatch.setattr(progress, "TABLES_FRACTION", 1e-12)
    many = {TableId("m", f"t{n:04}"): TableStatus(TableProgress("stream"), 0) for n in range(TABLES_PER_POLL + 1)}
    asked: list[bool] = []
    looked = threading.Event()

    def ask(*, tables: bool) -> JobStatus:
        asked.append(tables)
        if len(asked) >= 10:
            looked.set()
        return JobStatus(1, 1, 0, tables=many if tables else {})

    events: list[RunEvent] = []
    reporter = ProgressReporter({"test": events.append})
    with reporter.watching(ask, every_s=0.001):
        assert looked.wait(600)
    # The first look is at all tables, and so is the last one, when the run ends.
    assert asked[:10] == [True, *[False] * 9]
    assert asked[-1]
    assert [len(event.tables) for event in events if isinstance(event, RunProgress)][:2] == [len(many), 0]


def test_the_last_look_of_a_run_tells_all_of_a_few_tables() -> None:
    now = status(tables=("m.a", "m.b"))
    events: list[RunEvent] = []
    reporter = ProgressReporter({"test": events.append})
    with reporter.watching(lambda *, tables: now, every_s=3600):
        reporter._poll(lambda *, tables: now)
    assert [[table.table for table in e.tables] for e in events if isinstance(e, RunProgress)] == [["m.a", "m.b"]] * 2


def test_lags_are_the_worst_of_all_readers_and_what_is_pending_is_added_up() -> None:
    slow = PartitionMetrics(500, 900, 4000, 900, pending_records=70, paused=("m:1",))
    quick = PartitionMetrics(5, None, 10, None, pending_records=2)
    readers = [
        reader(slow),
        reader(quick),
        reader(),
    ]
    (event,) = told(status(*readers))
    assert isinstance(event, RunProgress)
    assert event.lags == PartitionLags(
        Lags(fetch_ms=500, emit_ms=900, idle_ms=10), pending_records=72, watermark_ms=900
    )
    assert [entry.paused for entry in event.readers] == [("m:1",), (), None]


def test_a_table_that_was_parked_and_began_again_between_two_looks_is_told_once() -> None:
    table = TableId("m", "t")

    def looked(*, begun: Parked, parked: Parked | None = None) -> JobStatus:
        now = TableProgress("snapshot", parked=parked, begun=begun)
        return JobStatus(1, 1, 0, tables={table: TableStatus(now, 0)})

    was = Parked(None, True, 3, ParkedPhase.PARKED, "converted from int to varchar(20)", Position(7), 0, again=True)
    later = replace(was, incarnation=5, reason="once more")
    seen = looked(begun=was), looked(begun=was), looked(begun=was, parked=later), looked(begun=later)
    assert [event.parked for event in told(*seen) if isinstance(event, TableParked)] == [was, later]


def test_an_error_in_a_listener_is_reported_once_with_its_name_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before: list[RunEvent] = []
    behind: list[RunEvent] = []
    looked = threading.Semaphore(0)

    def fails(event: RunEvent) -> None:
        raise KeyError(f"no screen for {type(event).__name__}")

    def status_fails(_: JobStatus | None) -> None:
        raise AssertionError("a bug of a hearer")

    reporter = ProgressReporter({"first": before.append, "the screen": fails, "last": behind.append})
    reporter.hearers.on_status.extend([status_fails, lambda _: looked.release()])
    reporter.starting("starting")
    with reporter.watching(lambda *, tables: status(tables=("m.a",)), every_s=0.001):
        assert all(looked.acquire(timeout=600) for _ in range(3)), "the thread that looks lives on"
    assert before == behind
    assert sum(isinstance(event, RunProgress) for event in behind) >= 3
    warnings = [event.text for event in behind if isinstance(event, Warned)]
    assert [re.findall(r"'([^']+)'", text)[0].rpartition(".")[2] for text in warnings] == ["the screen", "status_fails"]
    assert re.search(r"KeyError \(.*test_progress\.py:\d+, in fails\)", warnings[0])
    assert capsys.readouterr().err.splitlines() == warnings


def test_a_run_whose_listener_fails_goes_on_and_its_status_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: RunEvent) -> None:
        raise ZeroDivisionError

    pipeline = Pipeline.from_config(load_config(configured(tmp_path)))
    assert (pipeline.status().step, pipeline.status().end) == ("starting", "")
    pipeline.run(until="caught-up", local=True, listener=fails)
    status = pipeline.status()
    assert (status.step, status.end, status.tables.names) == ("ended", "caught up", ("shop.a", "shop.b"))
    assert status.commits.rows == sum(table.figures.rows for table in status.tables.known.values())
    (warning,) = [note.text for note in status.notices.warnings]
    assert warning.startswith("The listener 'listener of Pipeline.run' of this run failed")
    assert capsys.readouterr().err.splitlines().count(warning) == 1
    require_exact(tmp_path)


def test_a_run_that_failed_has_ended_and_its_status_has_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: EpochLoop) -> None:
        raise SinkError("the disk is full")

    pipeline = Pipeline.from_config(load_config(configured(tmp_path)))
    with monkeypatch.context() as patched:
        patched.setattr(EpochLoop, "run", fails)
        with pytest.raises(SinkError):
            pipeline.run(until="caught-up", local=True)
    status = pipeline.status()
    assert (status.step, status.end, status.ended_in_order) == ("ended", "failed", False)
    assert [note.text for note in status.notices.errors] == ["the disk is full"]
    pipeline.run(until="caught-up", local=True)
    assert (pipeline.status().end, pipeline.status().notices.errors) == ("caught up", ())


def test_a_start_that_is_refused_and_an_interrupt_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: EpochLoop) -> None:
        raise KeyboardInterrupt

    pipeline = Pipeline.from_config(load_config(configured(tmp_path)))
    with pytest.raises(ConfigError):
        pipeline.run(until="tomorrow", local=True)
    assert (pipeline.status().step, pipeline.status().end) == ("ended", "failed")
    monkeypatch.setattr(EpochLoop, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(until="caught-up", local=True)
    assert (pipeline.status().step, pipeline.status().end) == ("ended", "interrupted")


def test_a_run_that_is_stopped_before_it_has_readers_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it waits for a source that does not answer; the next run has nothing to recover from."""
    config = load_config(configured(tmp_path))
    pipeline = Pipeline.from_config(config)
    monkeypatch.setattr("raycdc.pipeline.take_up", lambda _: pipeline.stop())
    pipeline.run(until="caught-up", local=True)
    monkeypatch.setattr("raycdc.pipeline.resolve", stopped_waiting)
    for _ in range(2):
        assert (pipeline.status().step, pipeline.status().end) == ("ended", "stopped")
        _, holder = CheckpointStore(config.pipeline.state, create=False).generations.newest_holder()
        assert holder is not None
        assert (holder.ended, holder.end and holder.end.exit_code) == (True, 0)
        pipeline.run(until="caught-up", local=True)


def stopped_waiting(*_: object, **__: object) -> None:
    raise StoppedWaitingError


def test_a_caller_that_takes_epochs_closes_the_run(tmp_path: Path) -> None:
    config = load_config(configured(tmp_path))
    pipeline = Pipeline(source=config.source, name="epochs", state=tmp_path / "epochs")
    for epoch in pipeline.epochs():
        epoch.ack()
        break
    assert (pipeline.status().step, pipeline.status().end) == ("ended", "closed")


def test_an_epoch_is_acknowledged_within_its_run_or_not_at_all(tmp_path: Path) -> None:
    config = load_config(configured(tmp_path))
    pipeline = Pipeline(source=config.source, name="epochs", state=tmp_path / "epochs")
    epochs = pipeline.epochs()
    first = next(epochs)
    epochs.close()  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="was not acknowledged, because its run has ended"):
        first.ack()
    assert not first.acknowledged
    assert CheckpointStore(str(tmp_path / "epochs"), create=False).last_commit() is None
    again = Pipeline(source=config.source, name="epochs", state=tmp_path / "epochs").epochs()
    assert next(again).number == first.number
    again.close()  # type: ignore[attr-defined]


def test_an_error_after_an_acknowledgement_is_told_with_the_next_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StateError("the disk is full")

    config = load_config(configured(tmp_path))
    epochs = Pipeline(source=config.source, name="epochs", state=tmp_path / "epochs").epochs()
    first = next(epochs)
    monkeypatch.setattr("raycdc.driver.consumer.complete_requests", fails)
    first.ack()
    record = CheckpointStore(str(tmp_path / "epochs"), create=False).last_commit()
    assert (first.acknowledged, record and record.epoch) == (True, first.number)
    with pytest.raises(StateError, match="the disk is full"):
        next(epochs)


def test_epochs_that_a_recovery_commits_are_in_the_counts_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are reported behind the line with the processes, which is the first one of a run."""

    def fails(*_: object) -> None:
        raise SinkError("the disk is full")

    config = load_config(configured(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(EpochWriter, "commit", fails)
        with pytest.raises(SinkError):
            Pipeline.from_config(config).run(until="caught-up", local=True)
    sealed = {
        manifest.epoch: manifest.rows for manifest in CheckpointStore(config.pipeline.state, create=False).manifests(0)
    }
    assert sealed
    events: list[RunEvent] = []
    pipeline = Pipeline.from_config(config)
    pipeline.run(until="caught-up", local=True, listener=events.append)
    kinds = [type(event) for event in events if isinstance(event, Started | Recovered | Committed)]
    assert kinds[0] is Started
    committed = {event.epoch: event for event in events if isinstance(event, Committed)}
    assert {epoch: committed[epoch].rows for epoch in sealed} == sealed
    commits = pipeline.status().commits
    assert (commits.count, commits.rows) == (len(committed), sum(event.rows for event in committed.values()))
    assert commits.engines.written == {EngineName.DRIVER: commits.rows}
    # The run before had read these rows.
    assert commits.engines.read.get(EngineName.DRIVER, 0) == commits.rows - sum(sealed.values())
    require_exact(tmp_path)


def test_a_problem_of_the_source_is_a_warning_until_it_is_gone() -> None:
    quiet, away = status(), status(problems={"discovery": "the cluster was away"})
    warnings = [event.text for event in told(away, away, quiet, away) if isinstance(event, Warned)]
    assert warnings == ["discovery: the cluster was away"] * 2


def test_what_sources_count_of_a_table_is_added_up_over_readers() -> None:
    readers = [
        reader(large_documents={"shop.orders": 2, "shop.users": 1}),
        reader(large_documents={"shop.orders": 3}),
        reader(),
    ]
    (event,) = told(status(*readers, tables=("shop.orders", "shop.items")))
    assert isinstance(event, RunProgress)
    assert [table.source_counts for table in event.tables] == [{}, {"large_documents": 5}]
