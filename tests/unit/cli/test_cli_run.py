"""`raycdc run` around a scripted pipeline: its three views, signals, lost output, errors."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raycdc.cli import main, run
from raycdc.cli.run import JsonView, RunOptions, View, drive
from raycdc.cli.screens.formatting import duration_text
from raycdc.cli.screens.progress import HEARTBEAT_S, PLAIN_INTERVAL_S, STARTING_S, LiveView, PlainView
from raycdc.config import load_config
from raycdc.driver.resolve import ResolvedRun
from raycdc.errors import ConfigError, SourceError
from raycdc.model.engines import EngineName, EngineRows
from raycdc.observe.events import (
    CaughtUp,
    Committed,
    EnginesAtWork,
    Failed,
    Lags,
    Listener,
    RunEvent,
    RunProgress,
    Scaling,
    Started,
    Starting,
    Stopped,
    TableFigures,
    Warned,
    event_to_json,
)
from raycdc.observe.status import RunProcess, RunStatus, StatusKeeper
from tests.support.clocks import ManualClock
from tests.unit.driver.state_admin.small_pipeline import configured

ON_ENGINES = EnginesAtWork(EngineName.RAY, EngineName.SPARK, from_bytes=4 << 20)
STARTED = Started(10, 11, (12, 13), ON_ENGINES)
CAUGHT_UP = CaughtUp()
BY_ENGINE = "rows read: 3,000 by Ray's readers; rows written: 2,000 by Spark, 1,000 by this process"
READ_AND_WRITES = "Ray reads, Spark writes epochs from 4MiB on and this process smaller ones"
#: Of a run of which nothing is known yet.
STATUS = lambda: StatusKeeper(RunProcess.here("shop")).status  # noqa: E731 - what a view asks


def progress(phase: str, done: int, rows: int, *, table: str = "shop.orders", rate: int = 0) -> RunProgress:
    figures = TableFigures(table, phase, chunks_done=done, chunks_total=4, rows=rows, rows_per_s=rate)
    return RunProgress((figures,), Lags(fetch_ms=5, emit_ms=340, idle_ms=2500), ())


def commit(epoch: int, rows: int) -> Committed:
    writer = EngineName.SPARK if rows >= 1000 else EngineName.DRIVER
    engines = EngineRows({EngineName.RAY: rows}, {writer: rows})
    return Committed(epoch, {"shop.orders": rows}, rows, staging_s=0.1, commit_s=0.02, engines=engines)


class ScriptedPipeline:
    """Sends its events; then does what `then` says (with the pipeline), as a run would in between."""

    def status(self) -> RunStatus:
        return self.keeper.status

    def __init__(self, *events: RunEvent, then: Callable[[ScriptedPipeline], None] = lambda _: None) -> None:
        self._events = events
        self._then = then
        self.keeper = StatusKeeper(RunProcess.here("shop"))
        self.stops = 0

    def run(
        self,
        *,
        until: str | None,
        local: bool,
        standby: bool,
        listener: Listener,
        show_page: Callable[[str, str], None] | None = None,
        planned: ResolvedRun | None = None,
    ) -> None:
        for event in self._events:
            self.keeper.listen(event)
            listener(event)
        self._then(self)

    def stop(self) -> None:
        self.stops += 1


class Shown:
    """A run that a view shows: each event changes its status, and then the view hears of it."""

    def __init__(self, make: Callable[[Callable[[], RunStatus]], PlainView | LiveView], clock: ManualClock) -> None:
        self._keeper = StatusKeeper(RunProcess.here("shop"), clock=clock)
        self.view = make(lambda: self._keeper.status)

    def show(self, *events: RunEvent) -> None:
        for event in events:
            self._keeper.listen(event)
            self.view.show(event)

    def breathe(self) -> None:
        """A second has passed."""
        assert isinstance(self.view, PlainView)
        self.view._breathe()

    def close(self) -> None:
        self.view.close()


def plain(clock: ManualClock | None = None) -> Shown:
    clock = clock or ManualClock(100.0)
    return Shown(lambda status: PlainView(status, "shop", clock), clock)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines on stdout, without date, level and pipeline."""
    return [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]


def test_json_view_prints_each_event_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Starting("not shown, because programs read nothing from it")
    events = (STARTED, progress("snapshot", 1, 10), commit(1, 10), Warned("a name is nobody's"), CAUGHT_UP)
    view = JsonView()
    view.pipeline = "shop"
    assert drive(ScriptedPipeline(silent, *events), view, RunOptions(local=True)) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("ts")) for line in told)
    assert [(line.pop("pipeline"), line.pop("version")) for line in told] == [("shop", 1)] * len(events)
    assert [line.pop("level") for line in told] == ["info", "debug", "info", "warning", "info"]
    assert told == [event_to_json(event) for event in events]


def test_plain_view_tells_news_and_keeps_quiet_in_between(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(100.0)
    view = plain(clock)
    for event in (STARTED, progress("snapshot", 1, 1000, rate=500), progress("snapshot", 2, 2000), commit(1, 2000)):
        view.show(event)
    clock.s += 5
    for event in (progress("snapshot", 3, 3000), commit(2, 500), commit(3, 500), progress("stream", 4, 4000)):
        view.show(event)
    view.show(CAUGHT_UP)
    view.close()
    assert lines(capsys) == [
        f"started: {READ_AND_WRITES} (driver 10, enumerator 11, readers 12, 13)",
        "shop.orders: snapshot 1/4 chunks, 1,000 rows, 500 rows/s",
        "committed up to epoch 1: 2,000 rows of 1 table, lag 340 ms, source idle 2.5 s",
        "shop.orders: snapshot 3/4 chunks, 3,000 rows",
        "committed up to epoch 2: 500 rows of 1 table, lag 340 ms, source idle 2.5 s",
        "shop.orders: stream 4/4 chunks, 4,000 rows",
        "committed up to epoch 3: 500 rows of 1 table, lag 340 ms, source idle 2.5 s",
        "caught up with the source",
        f"caught up after 0:05: 3,000 rows committed up to epoch 3; {BY_ENGINE}",
    ]


def test_a_restart_in_the_same_process_is_told_after_a_warning_only(capsys: pytest.CaptureFixture[str]) -> None:
    view, alone, one = plain(), Started(10, 10, (10,)), Scaling(1, 0, {}, "one log is left")
    for event in (Started(10, 10, ()), alone, one, one, Warned("reader 0 ended"), alone, STARTED):
        view.show(event)
    view.close()
    assert lines(capsys) == [
        "started: this process reads and writes, without Ray and Spark (process 10)",
        "1 reader: one log is left",
        "reader 0 ended",
        "started: this process reads and writes, without Ray and Spark (process 10)",
        f"started: {READ_AND_WRITES} (driver 10, enumerator 11, readers 12, 13)",
    ]


def test_hundreds_of_tables_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(100.0)
    view = plain(clock)
    for done in (0, 100, 300):
        tables = tuple(
            TableFigures(
                f"shop.t{n:03d}",
                "stream" if n < done else "snapshot",
                chunks_done=int(n < done),
                chunks_total=1,
                rows=2,
                rows_per_s=1,
            )
            for n in range(300)
        )
        view.show(RunProgress(tables, Lags(), ()))
        clock.s += PLAIN_INTERVAL_S / 2
    assert lines(capsys) == [
        "300 tables: 300 snapshot 0/300 chunks, 600 rows, 300 rows/s",
        "300 tables: 300 stream 300/300 chunks, 600 rows, 300 rows/s",
    ]


def test_plain_view_says_at_times_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(100.0)
    view = plain(clock)
    view.show(Starting("starting Ray and Spark"))
    clock.s += STARTING_S
    view.breathe()
    tables = (TableFigures("shop.orders", "stream", rows=3),)
    view.show(RunProgress(tables, Lags(), (), behind_ms=400))
    clock.s += HEARTBEAT_S
    view.breathe()
    view.breathe()
    view.show(Stopped())
    view.close()
    assert lines(capsys) == [
        "starting Ray and Spark",
        "starting Ray and Spark, since 5 s",
        "shop.orders: stream, 3 rows",
        "up to date, 400 ms behind, nothing committed yet",
        "stopped after 1:05: nothing was committed",
    ]


def test_what_holds_a_run_back_is_told_beside_how_far_it_is_behind(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(100.0)
    view = plain(clock)
    tables = (TableFigures("shop.orders", "stream", rows=3),)
    view.show(RunProgress(tables, Lags(), (), behind_ms=40_000, bottleneck="rate_limit"))
    clock.s += HEARTBEAT_S
    view.breathe()
    view.close()
    assert lines(capsys)[1] == "40.0 s behind, bottleneck: rate limit, nothing committed yet"


def test_plain_view_is_silent_about_empty_commits(capsys: pytest.CaptureFixture[str]) -> None:
    view = plain()
    view.show(commit(1, 0))
    view.close()
    assert lines(capsys) == []


def screen(*events: RunEvent, height: int = 20) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=height, color_system=None)
    clock = ManualClock(100.0)
    shown = Shown(lambda status: LiveView(status, "shop", console, clock), clock)
    clock.s += 75
    shown.show(*events)
    shown.close()
    output = Console(file=io.StringIO(), width=110, height=height, color_system=None)
    assert isinstance(shown.view, LiveView)
    output.print(shown.view.render())
    assert isinstance(output.file, io.StringIO)
    return [line.rstrip() for line in output.file.getvalue().splitlines()]


def test_live_view_shows_phase_chunks_rows_and_lag() -> None:
    head, columns, row, engines = screen(STARTED, progress("snapshot", 3, 1_234_567, rate=98_765), commit(7, 5000))
    assert head == (
        "shop  1:15 · 2 readers · epoch 7, 5,000 rows committed (last in 0.12 s) · lag 340 ms, source idle 2.5 s"
    )
    assert columns.split() == ["table", "phase", "snapshot", "rows", "rows/s", "left"]
    assert row.split()[:2] == ["shop.orders", "snapshot"]
    assert row.split()[-3:] == ["3/4", "1,234,567", "98,765"]
    assert engines == READ_AND_WRITES


def test_a_run_says_when_ray_and_spark_take_over(capsys: pytest.CaptureFixture[str]) -> None:
    view = plain()
    view.show(Started(10, 10, (10,), EnginesAtWork(due_s=5.0)))
    view.close()
    told = "this process reads and writes; Ray and Spark are started after 5 s and take over"
    assert lines(capsys) == [f"started: {told} (process 10)"]


@pytest.mark.parametrize(
    ("way", "engines"),
    [
        (RunOptions(), "auto"),
        (RunOptions(local=True), "never"),
        (RunOptions(engines="always"), "always"),
        (RunOptions(local=True, engines="never"), "never"),
    ],
)
def test_the_command_may_choose_other_engines(tmp_path: Path, way: RunOptions, engines: str) -> None:
    assert way.configured(load_config(configured(tmp_path))).pipeline.engines == engines


@pytest.mark.parametrize(
    ("way", "why"),
    [
        (RunOptions(engines="sometimes"), '--engines "sometimes" is unknown; it is one of auto, always, never'),
        (RunOptions(local=True, engines="auto"), "--local is --engines never, and --engines auto says otherwise"),
    ],
)
def test_engines_that_a_command_cannot_choose_are_refused(tmp_path: Path, way: RunOptions, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        way.configured(load_config(configured(tmp_path)))


def test_live_view_shows_tables_being_read_first_and_counts_the_rest() -> None:
    many = [progress("stream", 4, n, table=f"shop.t{n:02}") for n in range(20)]
    shown = screen(*many, progress("snapshot", 1, 5, table="shop.z"), height=10)
    assert shown[2].split()[0] == "shop.z"
    assert shown[-1] == "… and 18 more tables"
    assert len(shown) < 10


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (2100, "2.1 s"),
        (240_000, "4 min"),
        (10_800_000, "3 h"),
        (27_306_000_000, "316 days"),
        (-5, "0 ms"),
    ],
)
def test_durations_are_as_exact_as_is_useful(ms: float, text: str) -> None:
    assert duration_text(ms) == text


def test_an_error_is_an_event_and_goes_on_to_main(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: ScriptedPipeline) -> None:
        raise SourceError("db1:3306 refused us")

    with pytest.raises(SourceError):
        drive(ScriptedPipeline(then=fail), JsonView(), RunOptions(local=True))
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told == told | {"event": "error", "error": "SourceError", "text": "db1:3306 refused us"}


def test_an_error_the_pipeline_told_is_not_told_twice(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_: ScriptedPipeline) -> None:
        raise SourceError("x")

    told = Failed("SourceError", "x")
    with pytest.raises(SourceError):
        drive(ScriptedPipeline(told, then=fail), JsonView(), RunOptions(local=True))
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_first_signal_stops_in_order(number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = ScriptedPipeline(then=lambda _: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    assert drive(pipeline, PlainView(STATUS), RunOptions(local=True)) == code
    assert pipeline.stops == 1
    assert signal.getsignal(number) is before
    text = "Stopping: rows that were read are sealed and committed. Press Ctrl-C again to stop immediately."
    assert lines(capsys) == [text]


def test_a_signal_waits_for_no_lock_that_the_interrupted_code_may_hold() -> None:
    """A stop that was carried out by the handler waited for ever for a thread that waited for the main one."""
    went_on, stopped = threading.Event(), threading.Event()

    class Locked(ScriptedPipeline):
        def stop(self) -> None:
            if went_on.wait(60):
                stopped.set()

    def interrupted(_: ScriptedPipeline) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        went_on.set()
        assert stopped.wait(60)

    assert drive(Locked(then=interrupted), PlainView(STATUS), RunOptions(local=True)) == 130


def test_a_stop_waits_for_no_words_about_it() -> None:
    stopped = threading.Event()

    class Held(PlainView):
        """On a terminal that somebody holds (Ctrl-S), or into a pipe that nobody reads."""

        def note(self, text: str) -> None:
            stopped_first.append(stopped.wait(60))
            raise ValueError("I/O operation on closed file.")

    class Stopping(ScriptedPipeline):
        def stop(self) -> None:
            super().stop()
            stopped.set()

    def terminated(_: ScriptedPipeline) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(20), "the stop waited for the words about it"

    stopped_first: list[bool] = []
    pipeline = Stopping(then=terminated)
    assert drive(pipeline, Held(STATUS), RunOptions(local=True)) == 0
    assert (pipeline.stops, stopped_first) == (1, [True])


def test_words_that_cannot_be_said_keep_no_later_stop() -> None:
    class Closed(PlainView):
        def note(self, text: str) -> None:
            raise ValueError("I/O operation on closed file.")

        def show(self, event: RunEvent) -> None:
            raise BrokenPipeError

    told = threading.Event()

    class Stopping(ScriptedPipeline):
        def run(self, *, listener: Listener, **_: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            listener(STARTED)
            assert told.wait(20), "the thread that stops the pipeline ended with the words"

        def stop(self) -> None:
            super().stop()
            if self.stops == 2:
                told.set()

    with pytest.raises(BrokenPipeError):
        drive(Stopping(), Closed(STATUS), RunOptions(local=True))


def test_the_second_signal_interrupts_at_once() -> None:
    def twice(_: ScriptedPipeline) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    pipeline = ScriptedPipeline(then=twice)
    with pytest.raises(KeyboardInterrupt):
        drive(pipeline, PlainView(STATUS), RunOptions(local=True))
    assert pipeline.stops == 1


def test_output_nobody_reads_stops_the_pipeline() -> None:
    class ClosedView(JsonView):
        def show(self, event: Any) -> None:
            raise BrokenPipeError

    view: View = ClosedView()
    pipeline = ScriptedPipeline(STARTED, CAUGHT_UP)
    with pytest.raises(BrokenPipeError):
        drive(pipeline, view, RunOptions(local=True))
    assert pipeline.stops == 1


NOISY = """
import os, sys
from raycdc.cli import main, run

def noisy(path):
    os.write(1, b"(raylet) The node with node id 0 has died\\n")
    os.system("echo from a process")
    print("from a library")
    raise AssertionError("a bug")

if sys.argv[1] == "noisy":
    run.load_config = noisy
sys.exit(main(["run", "--json", "none.toml"]))
"""


@pytest.mark.parametrize(
    ("kind", "code", "event"),
    [
        ("quiet", 2, {"event": "error", "error": "ConfigError"}),
        ("noisy", 1, {"event": "error", "error": "AssertionError", "text": "a bug"}),
    ],
)
def test_json_lines_have_every_error_and_nothing_that_others_print(
    kind: str, code: int, event: dict[str, Any], tmp_path: Path
) -> None:
    """Also errors before there is a pipeline, and what libraries write to the file descriptor itself."""
    done = subprocess.run(
        [sys.executable, "-c", NOISY, kind], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    told = json.loads(done.stdout)
    assert (done.returncode, told | event) == (code, told), done.stderr
    if kind == "noisy":
        lines = done.stderr.splitlines()
        assert lines[0] == "(raylet) The node with node id 0 has died"
        assert "from a process" in lines


def test_a_package_that_is_missing_is_no_bug_wherever_it_is_imported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(_path: Path) -> None:
        raise ModuleNotFoundError("No module named 'confluent_kafka.admin'", name="confluent_kafka.admin")

    monkeypatch.setattr(run, "load_config", lacking)
    assert main(["run", str(tmp_path / "none.toml")]) == 2
    errors = capfd.readouterr().err
    assert "pip install 'raycdc[kafka]'" in errors
    assert "Traceback" not in errors


def test_sigterm_before_the_pipeline_runs_is_a_clean_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "load_config", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert main(["run", str(tmp_path / "shop.toml"), "--json"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().out == ""
