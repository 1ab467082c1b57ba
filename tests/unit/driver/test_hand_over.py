"""A run that begins in process hands over to Ray: nothing is lost or repeated, wherever it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raycdc import failpoints
from raycdc.config import load_config
from raycdc.config.load import config_from_dict
from raycdc.driver.hand_over import HandedLauncher, HandOver, begins_in_process
from raycdc.errors import ConfigError
from raycdc.pipeline import Pipeline
from raycdc.run_events import CaughtUp, Committed, RunEvent, Started
from raycdc.spark.lifecycle import SparkThread
from raycdc.testing.jobs import RUN_TIMEOUT_S
from tests.unit.driver.handed_run import threads_for_engines
from tests.unit.upkeep.small_pipeline import configured, require_exact, run

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
        monkeypatch.setattr("raycdc.pipeline.new_session", fails)
        with pytest.raises(ConfigError, match="Spark did not start"):
            pipeline.run()


def test_a_run_that_ends_before_needs_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[RunEvent] = []
    with threads_for_engines():
        # Whoever starts one waits for ever.
        monkeypatch.setattr("raycdc.driver.hand_over.START_AFTER_S", RUN_TIMEOUT_S)
        Pipeline.from_config(load_config(_in_process(configured(tmp_path)))).run(
            until="caught-up", listener=events.append
        )
    assert isinstance(events[-1], CaughtUp)
    require_exact(tmp_path)


def test_spark_is_not_started_when_nobody_would_end_it() -> None:
    made: list[str] = []
    spark = SparkThread(lambda: made.append("session"), at_once=False)
    assert spark.now is None
    spark.begin_end()
    with pytest.raises(RuntimeError):
        spark.session()
    spark.end()
    assert made == []


def test_without_a_manifest_there_is_nothing_to_hand_over(tmp_path: Path) -> None:
    """A source that is to begin at its end would begin at another one."""
    launcher: Any = SimpleNamespace(close=lambda: None)
    engine: Any = SimpleNamespace(begin=lambda: None, warm_up=lambda: None)
    handed = HandedLauncher(launcher, lambda _: SimpleNamespace(close=lambda: None), engine)
    side = _Side()
    asked: list[bool] = []
    swept: list[bool] = []

    def has_manifest() -> bool:
        asked.append(True)
        return False

    def sweep() -> None:
        assert handed.in_process
        assert not side.over.is_set()
        swept.append(True)

    with threads_for_engines(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("raycdc.driver.hand_over.EPOCH_S", 0.0)
        over = HandOver(handed, side, has_manifest=has_manifest, has_commit=lambda: True, sweep=sweep)
        assert side.looked.wait(RUN_TIMEOUT_S)
        assert not side.over.is_set()
        side.sealed = 1
        assert side.over.wait(RUN_TIMEOUT_S)
        over.close()
    assert (asked, swept) == ([True], [True])
    assert not handed.in_process
    handed.close()


@pytest.mark.parametrize(
    ("sections", "whether"),
    [
        ({}, True),
        ({"pipeline": {"start_in_process": False}}, False),
        ({"ray": {"address": "auto"}}, False),
        ({"spark": {"master": "spark://host:7077"}}, False),
        ({"transform": [{"table": "shop.a", "projection": "id, 1 AS one"}]}, True),
        ({"transform": [{"table": "shop.a", "filter": "id > 1"}]}, False),
        ({"transform": [{"table": "shop.a", "projection": "id + 1 AS id"}]}, False),
    ],
)
def test_a_run_begins_in_process_where_no_row_needs_another(
    tmp_path: Path, sections: dict[str, Any], whether: bool
) -> None:
    """Engines of somebody else's, and rows that Spark goes through, are waited for."""
    document: dict[str, Any] = tomllib.loads(configured(tmp_path).read_text())
    document["pipeline"]["start_in_process"] = True
    for name, section in sections.items():
        document[name] = section if isinstance(section, list) else {**document.get(name, {}), **section}
    assert begins_in_process(config_from_dict(document), local=False) is whether


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_dies_in_the_hand_over_goes_on_from_its_state(tmp_path: Path, point: str) -> None:
    config = _slow(tmp_path)
    code = _handed_run(config, failpoints=f"{point}=kill")
    assert code == -signal.SIGKILL, (tmp_path / "said.log").read_text()
    assert run(configured(tmp_path, events=EVENTS)) == 0
    require_exact(tmp_path, EVENTS)


def _slow(folder: Path) -> Path:
    """The configuration of a run whose changes come one after the other."""
    path = _in_process(configured(folder, events=None))
    path.write_text(path.read_text().replace("events = 1000", f"events = {EVENTS}"))
    return path


def _in_process(path: Path) -> Path:
    path.write_text(path.read_text().replace("[pipeline]", "[pipeline]\nstart_in_process = true"))
    return path


class _Side:
    """A source side that seals nothing until it is told to."""

    ending = False

    def __init__(self) -> None:
        self._asked = 0
        self.sealed = 0
        #: It was asked again and again.
        self.looked = threading.Event()
        self.over = threading.Event()

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        self._asked += 1
        if self._asked > 3:
            self.looked.set()
        return self.sealed if self.sealed > after else None, None

    def status(self, *, tables: bool) -> None:
        return None

    def start_over(self, recover: Callable[[], None]) -> None:
        recover()
        self.over.set()

    def fail(self, error: BaseException) -> None:
        raise error


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
