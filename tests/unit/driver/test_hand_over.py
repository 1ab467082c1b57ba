"""A run that begins in process hands over to Ray: nothing is lost or repeated, wherever it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace

import pytest

from raycdc.config import load_config
from raycdc.core import background_tasks, failpoints
from raycdc.driver import engine_promotion
from raycdc.errors import ClusterLostError, ConfigError, EngineNotStartedError
from raycdc.observe.events import CaughtUp, Committed, EnginesPromoted, RunEvent, Started, Stopped, Warned
from raycdc.observe.status.progress import ProgressReporter
from raycdc.pipeline import Pipeline
from raycdc.runtime.launcher import JobSpec, Launcher, LocalLauncher
from raycdc.sandbox.servers.private import wait_until
from raycdc.sinks.jvm_end import LOST
from tests.support.jobs import RUN_TIMEOUT_S
from tests.unit.driver.handed_run import threads_for_engines
from tests.unit.driver.state_admin.small_pipeline import configured, require_exact, run

#: More than come within any hand-over, at 50 a second.
EVENTS = 20_000
POINTS = ("before_hand_over", "in_hand_over", "after_hand_over")


def test_epochs_before_and_after_the_hand_over_have_every_change_once(tmp_path: Path) -> None:
    handed, more = threading.Event(), threading.Event()
    events: list[RunEvent] = []

    def listen(event: RunEvent) -> None:
        events.append(event)
        if isinstance(event, Committed) and event.rows and handed.is_set():
            more.set()

    def reached(name: str) -> None:
        if name == "after_hand_over":
            handed.set()

    pipeline = Pipeline.from_config(load_config(_slow(tmp_path)))
    with threads_for_engines(), failpoints.heard(reached):
        runs = threading.Thread(target=lambda: pipeline.run(listener=listen))
        runs.start()
        assert more.wait(RUN_TIMEOUT_S), events
        pipeline.stop()
        runs.join()
    started = [event for event in events if isinstance(event, Started)]
    assert [event.readers for event in started] == [()] * len(started)
    assert len(started) == 1, "the driver's own threads are no news"
    assert run(configured(tmp_path, events=EVENTS)) == 0
    require_exact(tmp_path, EVENTS)


def test_the_error_of_an_engine_that_does_not_start_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ConfigError("Spark did not start.")

    pipeline = Pipeline.from_config(load_config(_slow(tmp_path)))
    with threads_for_engines():
        monkeypatch.setattr("raycdc.driver.source_side.new_session", fails)
        with pytest.raises(ConfigError, match="Spark did not start"):
            pipeline.run()


@pytest.mark.parametrize("engine", ["Ray", "Spark", "Spark's start"])
def test_an_engine_that_dies_before_the_hand_over_is_started_again(tmp_path: Path, engine: str) -> None:
    """The run goes on in its own process meanwhile, says so, and hands over to the next one."""
    dead, events = [True], list[RunEvent]()
    handed, more = threading.Event(), threading.Event()

    closed: list[Launcher] = []

    class Dies(LocalLauncher):
        def close(self) -> None:
            closed.append(self)

        def poll(self, owing: Collection[str] | None = None) -> None:
            if engine == "Ray" and dead:
                dead.clear()
                raise ClusterLostError("Ray's head is gone: its process raylet (7) ended.", "Run the pipeline again.")

    def session(*_: object) -> object:
        first = bool(dead)
        if engine != "Ray":
            dead.clear()
        if engine == "Spark's start" and first:
            raise EngineNotStartedError("Spark did not start.")
        gone = [1] if engine == "Spark" and first else []
        process = SimpleNamespace(poll=lambda: gone[0] if gone else None)
        context = SimpleNamespace(defaultParallelism=0, _gateway=SimpleNamespace(proc=process))
        return SimpleNamespace(stop=lambda: None, sparkContext=context)

    def listen(event: RunEvent) -> None:
        events.append(event)
        if isinstance(event, EnginesPromoted):
            handed.set()
        if isinstance(event, Committed) and event.rows and handed.is_set():
            more.set()

    def launcher(_config: object, spec: JobSpec, *_: object) -> Launcher:
        return Dies(spec)

    pipeline = Pipeline.from_config(load_config(_slow(tmp_path)))

    def run_to_its_end() -> None:
        try:
            pipeline.run(listener=listen)
        finally:
            more.set()

    with threads_for_engines(launcher, None if engine == "Ray" else session), pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_promotion, "AGAIN_S", 0.0)
        runs = threading.Thread(target=run_to_its_end)
        runs.start()
        assert more.wait(RUN_TIMEOUT_S), events
        pipeline.stop()
        runs.join()
    warnings = [event.text for event in events if isinstance(event, Warned)]
    lost = {"Ray": "Ray's head is gone: its process raylet (7) ended.", "Spark": LOST}.get(
        engine, "Spark did not start."
    )
    assert warnings == [f"{lost} {engine_promotion.STAYS} 0 s."], events
    assert len([event for event in events if isinstance(event, EnginesPromoted)]) == 1
    assert isinstance(events[-1], Stopped)
    assert len(set(map(id, closed))) == 2, "also the one that died"


def test_a_listener_may_stop_the_run_while_another_thread_waits_to_be_heard(tmp_path: Path) -> None:
    """That one has the supervisor's lock, as where a node's server does not start: the two waited for each other."""
    handed, listens, tells, stopped = (threading.Event() for _ in range(4))

    def launcher(_config: object, spec: JobSpec, _store: object, reporter: ProgressReporter, *_: object) -> Launcher:
        class Tells(LocalLauncher):
            def poll(self, owing: Collection[str] | None = None) -> None:
                if owing is not None and listens.is_set() and not tells.is_set():
                    tells.set()
                    reporter.warning("something of a node")

        return Tells(spec)

    def listen(event: RunEvent) -> None:
        if isinstance(event, EnginesPromoted):
            handed.set()
        if handed.is_set() and not stopped.is_set():
            listens.set()
            # The one who tells may wait for its turn here with other news, and tells with a later event then.
            if tells.wait(1):
                pipeline.stop()
                stopped.set()
            listens.clear()

    pipeline = Pipeline.from_config(load_config(_slow(tmp_path)))
    with threads_for_engines(launcher):
        runs = threading.Thread(target=lambda: pipeline.run(listener=listen), daemon=True)
        runs.start()
        assert stopped.wait(RUN_TIMEOUT_S / 3), "both wait"
        runs.join()


@pytest.mark.parametrize("end", ["caught-up", "SIGTERM"])
def test_a_command_that_ends_waits_for_no_engine(tmp_path: Path, end: str) -> None:
    """Its engines never come up here."""
    config = _slow(tmp_path, events=EVENTS if end == "SIGTERM" else 200)
    log = tmp_path / "said.log"
    words = [sys.executable, "-m", "tests.unit.driver.handed_run", "--never", "run", str(config), "--json"]
    with log.open("wb") as said:
        bounds = ["--until", "caught-up"] if end == "caught-up" else []
        process = subprocess.Popen([*words, *bounds], stdout=said, stderr=said)
        try:
            if end == "SIGTERM":
                told = ["it comes up", '"commit"']
                wait_until(
                    lambda: all(text in log.read_text() for text in told), timeout_s=RUN_TIMEOUT_S, what="an engine"
                )
                process.terminate()
            assert process.wait(RUN_TIMEOUT_S) == 0, log.read_text()
        finally:
            process.kill()
    last = json.loads([line for line in log.read_text().splitlines() if line.startswith("{")][-1])
    assert last["event"] == ("stopped" if end == "SIGTERM" else "caught_up")
    assert run(configured(tmp_path, events=1000)) == 0
    require_exact(tmp_path, 1000)


def test_what_a_run_has_left_ends_before_the_next_one_starts_the_same(tmp_path: Path) -> None:
    """In one process: `Pipeline.run` returns while an engine comes up, which is closed when it has."""
    coming, up, closed = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    class Closes(LocalLauncher):
        def close(self) -> None:
            order.append("closed")
            closed.set()

    def launcher(_config: object, spec: JobSpec, *_: object) -> Launcher:
        order.append("made")
        coming.set()
        assert up.wait(RUN_TIMEOUT_S)
        return Closes(spec)

    config = load_config(_slow(tmp_path))
    with threads_for_engines(launcher):
        first = Pipeline.from_config(config)
        runs = threading.Thread(target=first.run)
        runs.start()
        assert coming.wait(RUN_TIMEOUT_S)
        first.stop()
        runs.join()
        assert order == ["made"]
        left = background_tasks.now()
        assert len(left) == 1
        second, events = Pipeline.from_config(config), list[RunEvent]()
        begun = threading.Event()

        def listen(event: RunEvent) -> None:
            events.append(event)
            if isinstance(event, Committed):
                begun.set()

        runs = threading.Thread(target=lambda: second.run(listener=listen))
        runs.start()
        assert begun.wait(RUN_TIMEOUT_S)
        up.set()
        background_tasks.wait_for(left)
        wait_until(
            lambda: any(isinstance(event, EnginesPromoted) for event in events),
            timeout_s=RUN_TIMEOUT_S,
            what="a hand-over",
        )
        second.stop()
        runs.join()
    assert order == ["made", "closed", "made", "closed"]


def test_a_run_that_ends_before_needs_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[RunEvent] = []
    with threads_for_engines():
        # Whoever starts one waits for ever.
        monkeypatch.setattr("raycdc.driver.engine_promotion.START_AFTER_S", RUN_TIMEOUT_S)
        Pipeline.from_config(load_config(_in_process(configured(tmp_path)))).run(
            until="caught-up", listener=events.append
        )
    assert isinstance(events[-1], CaughtUp)
    require_exact(tmp_path)


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_dies_in_the_hand_over_goes_on_from_its_state(tmp_path: Path, point: str) -> None:
    config = _slow(tmp_path)
    code = _handed_run(config, failpoints=f"{point}=kill")
    assert code == -signal.SIGKILL, (tmp_path / "said.log").read_text()
    assert run(configured(tmp_path, events=EVENTS)) == 0
    require_exact(tmp_path, EVENTS)


def _slow(folder: Path, events: int = EVENTS) -> Path:
    """The configuration of a run whose changes come one after the other."""
    path = _in_process(configured(folder, events=None))
    path.write_text(path.read_text().replace("events = 1000", f"events = {events}"))
    return path


def _in_process(path: Path) -> Path:
    path.write_text(path.read_text().replace("[pipeline]", "[pipeline]\nengines = 'auto'"))
    return path


def _handed_run(config: Path, *, failpoints: str) -> int:
    """The exit code of a run that hands over to threads."""
    markers = config.parent / "failpoints"
    markers.mkdir()
    environment = {**os.environ, "RAYCDC_FAILPOINTS": failpoints, "RAYCDC_FAILPOINT_DIR": str(markers)}
    words = [sys.executable, "-m", "tests.unit.driver.handed_run", "run", str(config), "--json"]
    with (config.parent / "said.log").open("wb") as said:
        return subprocess.run(
            words, env=environment, stdout=said, stderr=said, timeout=RUN_TIMEOUT_S, check=False
        ).returncode
