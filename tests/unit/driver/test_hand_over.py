"""A run that begins in process hands over to Ray: nothing is lost or repeated, wherever it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from raycdc import failpoints
from raycdc.bridge.tasks import StageTask, ThreadTaskRunner
from raycdc.config import load_config
from raycdc.config.load import config_from_dict
from raycdc.driver import hand_over
from raycdc.driver.hand_over import EnginesDue, HandedLauncher, HandOver, StateAsked, begins_in_process
from raycdc.errors import ClusterLostError, ConfigError, EngineNotStartedError, RaycdcError
from raycdc.pipeline import Pipeline
from raycdc.progress import ProgressReporter
from raycdc.run_events import CaughtUp, Committed, HandedOver, RunEvent, Started, Stopped, Warned
from raycdc.runtime.launcher import JobSpec, Launcher, LocalLauncher
from raycdc.sinks.jvm_end import LOST, MEMORY
from raycdc.source.protocol.api import TableCounts
from raycdc.source.protocol.job_status import JobStatus
from raycdc.spark.lifecycle import AGAIN_S, HERE, LaterTaskRunner, SparkThread
from raycdc.spark.stage import IN_PROCESS_BYTES_MAX
from raycdc.testing.jobs import RUN_TIMEOUT_S
from raycdc.testing.servers.process import wait_until
from raycdc.threads import Joinable, Threads
from raycdc.waiting import left_work
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


@pytest.mark.parametrize("engine", ["Ray", "Spark", "Spark's start"])
def test_an_engine_that_dies_before_the_hand_over_is_started_again(tmp_path: Path, engine: str) -> None:
    """The run goes on in its own process meanwhile, says so, and hands over to the next one."""
    dead, events = [True], list[RunEvent]()
    handed, more = threading.Event(), threading.Event()

    closed: list[Launcher] = []

    class Dies(LocalLauncher):
        def close(self) -> None:
            closed.append(self)

        def look(self, owing: Collection[str] | None = None) -> None:
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
        if isinstance(event, HandedOver):
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
        patch.setattr(hand_over, "AGAIN_S", 0.0)
        runs = threading.Thread(target=run_to_its_end)
        runs.start()
        assert more.wait(RUN_TIMEOUT_S), events
        pipeline.stop()
        runs.join()
    warnings = [event.text for event in events if isinstance(event, Warned)]
    lost = {"Ray": "Ray's head is gone: its process raylet (7) ended.", "Spark": LOST}.get(
        engine, "Spark did not start."
    )
    assert warnings == [f"{lost} {hand_over.STAYS} 0 s."], events
    assert len([event for event in events if isinstance(event, HandedOver)]) == 1
    assert isinstance(events[-1], Stopped)
    assert len(set(map(id, closed))) == 2, "also the one that died"


def test_a_listener_may_stop_the_run_while_another_thread_waits_to_be_heard(tmp_path: Path) -> None:
    """That one has the supervisor's lock, as where a node's server does not start: the two waited for each other."""
    handed, listens, tells, stopped = (threading.Event() for _ in range(4))

    def launcher(_config: object, spec: JobSpec, _store: object, reporter: ProgressReporter, *_: object) -> Launcher:
        class Tells(LocalLauncher):
            def look(self, owing: Collection[str] | None = None) -> None:
                if owing is not None and listens.is_set() and not tells.is_set():
                    tells.set()
                    reporter.warning("something of a node")

        return Tells(spec)

    def listen(event: RunEvent) -> None:
        if isinstance(event, HandedOver):
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


class _Jvm:
    """The process of a JVM, which is there as an ended one only when somebody waits for its end."""

    def __init__(self, code: int) -> None:
        self.returncode: int | None = None
        self._code = code
        self.ends = False

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, _timeout_s: float | None = None) -> int:
        assert self.ends, "it lives"
        self.returncode = self._code
        return self._code


@pytest.mark.parametrize(("code", "said"), [(-9, LOST), (3, f"{LOST} {MEMORY}")])
def test_tasks_run_in_this_process_when_spark_is_lost_until_it_is_up_again(code: int, said: str) -> None:
    """Also those that it had when it went, whose connections broke before its process was seen to have ended."""
    jvms, warnings, clock = list[_Jvm](), list[str](), [0.0]

    def parallelize(*_: object) -> object:
        jvms[-1].ends = True
        raise Py4JNetworkError("Answer from Java side is empty")

    def session(_: object) -> object:
        jvms.append(_Jvm(code))
        gateway = SimpleNamespace(proc=jvms[-1])
        context = SimpleNamespace(defaultParallelism=1, _gateway=gateway, parallelize=parallelize)
        return SimpleNamespace(stop=lambda: None, sparkContext=context)

    spark = SparkThread(session)
    spark.session()
    run_tasks = LaterTaskRunner(spark, ThreadTaskRunner(1), warnings.append, clock=lambda: clock[0])
    for loss in (1, 2):
        assert run_tasks([_Large(1), _Large(2)]) == [1, 2]
        assert run_tasks([_Large(3)]) == [3]
        assert warnings == [f"{said} {HERE}"] * loss
        assert len(jvms) == loss, "it is not started anew at once"
        with pytest.raises(RaycdcError, match="Spark is gone"):
            spark.look()
        clock[0] += 2 * AGAIN_S
        assert run_tasks([_Large(4)]) == [4]
        spark.session()
        assert len(jvms) == loss + 1
    spark.end()


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
        left = left_work.now()
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
        left_work.wait_for(left)
        wait_until(
            lambda: any(isinstance(event, HandedOver) for event in events), timeout_s=RUN_TIMEOUT_S, what="a hand-over"
        )
        second.stop()
        runs.join()
    assert order == ["made", "closed", "made", "closed"]


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
    spark = SparkThread(lambda _: made.append("session"), at_once=False)
    assert spark.now is None
    spark.begin_end()
    with pytest.raises(RuntimeError):
        spark.session()
    spark.end()
    assert made == []


def test_without_a_manifest_there_is_nothing_to_hand_over(tmp_path: Path) -> None:
    """A source that is to begin at its end would begin at another one."""
    launcher: Any = SimpleNamespace(close=lambda: None)
    engine: Any = SimpleNamespace(begin=_up, warm_up=lambda: None, look=lambda: None)
    other: Any = SimpleNamespace(close=lambda: None, look=lambda: None)
    handed = HandedLauncher(launcher, lambda _: other, engine)
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
        state = StateAsked(has_manifest, has_commit=lambda: True, sweep=sweep)
        over = HandOver(handed, side, state, tell=lambda _: None)
        assert side.looked.wait(RUN_TIMEOUT_S)
        assert not side.over.is_set()
        side.sealed = 1
        assert side.over.wait(RUN_TIMEOUT_S)
        over.close()
    assert (side.errors, asked, swept) == ([], [True], [True])
    assert not handed.in_process
    handed.close()


def test_nothing_is_handed_over_once_the_run_ends() -> None:
    """Whoever waits for an epoch's end meanwhile leaves the source side alone."""
    side, watched = _Side(), _WatchedThreads()
    state = StateAsked(has_manifest=lambda: False, has_commit=lambda: True, sweep=lambda: None)
    over = HandOver(_up_and_ready(), side, state, tell=lambda _: None, due=EnginesDue(0.0), threads=watched)
    assert side.looked.wait(RUN_TIMEOUT_S)
    over.close()
    for thread in watched.started:
        thread.join()
    assert not side.over.is_set()


@pytest.mark.parametrize(
    ("counts", "ends_by_itself", "waits_s"),
    [
        (None, True, 0),
        # A run that begins with the log may have all of it before it.
        (TableCounts(tables=500), True, 0),
        (TableCounts(tables=500, in_snapshot=400, chunks_done=100, chunks_left=400), True, 0),
        (TableCounts(tables=500, in_snapshot=100, chunks_done=400, chunks_left=100), True, hand_over.ENDS_SOON_S),
        (TableCounts(tables=500, chunks_done=500), True, hand_over.ENDS_SOON_S),
        (TableCounts(tables=500, chunks_done=500), False, 0),
        # Of one large table nobody knows how much is left: it is planned while it is read.
        (TableCounts(tables=1, in_snapshot=1, chunks_done=90, chunks_left=10), True, 0),
    ],
)
def test_a_run_that_is_about_to_end_starts_no_engine_for_a_while(
    monkeypatch: pytest.MonkeyPatch, counts: TableCounts | None, ends_by_itself: bool, waits_s: float
) -> None:
    monkeypatch.setattr(hand_over, "EPOCH_S", 0.0)
    side, clock = _Side(), _Clock()
    side.sealed = 1
    if counts is not None:
        side.counted = JobStatus(generation=1, sealed=1, committed=1, counts=counts)
    begun_s: list[float] = []

    def begin() -> Future[None]:
        begun_s.append(clock.now_s())
        return _up()

    nothing: Any = SimpleNamespace(close=lambda: None, look=lambda: None)
    engine: Any = SimpleNamespace(begin=begin, warm_up=lambda: None, look=lambda: None)
    state = StateAsked(has_manifest=lambda: True, has_commit=lambda: True, sweep=lambda: None)
    handed = HandedLauncher(nothing, lambda _: nothing, engine)
    over = HandOver(
        handed, side, state, tell=lambda _: None, due=EnginesDue(5.0, ends_by_itself=ends_by_itself), threads=clock
    )
    assert side.over.wait(RUN_TIMEOUT_S)
    over.close()
    handed.close()
    assert side.errors == []
    assert begun_s == [pytest.approx(5.0 + waits_s, abs=2 * hand_over.LOOK_S)]


def test_whoever_ends_the_run_waits_for_a_hand_over_under_way() -> None:
    """The processes of the source side are being ended then, and nobody else may."""
    side, watched = _Side(), _WatchedThreads()
    side.sealed = 1
    meanwhile, ended = threading.Event(), threading.Event()

    def end() -> None:
        over.close()
        ended.set()

    def sweep() -> None:
        threading.Thread(target=end).start()
        wait_until(lambda: watched.closing.is_set() or ended.is_set(), timeout_s=RUN_TIMEOUT_S, what="an end")
        if not ended.is_set():
            meanwhile.set()

    state = StateAsked(has_manifest=lambda: True, has_commit=lambda: True, sweep=sweep)
    over = HandOver(_up_and_ready(), side, state, tell=lambda _: None, due=EnginesDue(0.0), threads=watched)
    assert ended.wait(RUN_TIMEOUT_S)
    assert meanwhile.is_set()
    assert side.over.is_set()


def test_ray_may_die_while_spark_comes_up() -> None:
    """It is not waited for: what is left of the other says nothing of it."""

    def look() -> None:
        raise ClusterLostError("Ray's head is gone.")

    class Impatient(Threads):
        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            raise AssertionError("nobody looked whether Ray is there")

    ray: Any = SimpleNamespace(close=lambda: None, look=look)
    spark: Any = SimpleNamespace(begin=Future, warm_up=lambda: None, look=lambda: None)
    local: Any = SimpleNamespace(close=lambda: None)
    handed = HandedLauncher(local, lambda _: ray, spark, threads=Impatient())
    with pytest.raises(ClusterLostError):
        handed.prepare(1)
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


def _slow(folder: Path, events: int = EVENTS) -> Path:
    """The configuration of a run whose changes come one after the other."""
    path = _in_process(configured(folder, events=None))
    path.write_text(path.read_text().replace("events = 1000", f"events = {events}"))
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
        self.counted: JobStatus | None = None
        #: It was asked again and again.
        self.looked = threading.Event()
        self.over = threading.Event()
        self.errors: list[BaseException] = []

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        self._asked += 1
        if self._asked > 3:
            self.looked.set()
        return self.sealed if self.sealed > after else None, None

    def status(self, *, tables: bool) -> JobStatus | None:
        return self.counted

    def start_over(self, recover: Callable[[], None]) -> None:
        recover()
        self.over.set()
        self.looked.set()

    def fail(self, error: BaseException) -> None:
        self.errors.append(error)
        self.over.set()
        self.looked.set()


class _WatchedThreads(Threads):
    """Those of this process, which tell that somebody waits for the end of a hand-over."""

    def __init__(self) -> None:
        self.started: list[Joinable] = []
        self.closing = threading.Event()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if timeout_s == hand_over.CLOSING_LOOK_S:
            self.closing.set()
        return super().wait(event, timeout_s)

    def start(self, call: Callable[[], None], name: str) -> Joinable:
        self.started.append(super().start(call, name))
        return self.started[-1]


class _Clock(Threads):
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self._now_s += timeout_s
        return event.is_set()


def _up_and_ready() -> HandedLauncher:
    """A launcher whose engines come up at once."""
    nothing: Any = SimpleNamespace(close=lambda: None, look=lambda: None)
    engine: Any = SimpleNamespace(begin=_up, warm_up=lambda: None, look=lambda: None)
    return HandedLauncher(nothing, lambda _: nothing, engine)


class _Large(StageTask[int]):
    """Too much for the threads that Spark's runner has of its own."""

    input_bytes = IN_PROCESS_BYTES_MAX + 1

    def __init__(self, answer: int) -> None:
        self._answer = answer

    def run(self) -> int:
        return self._answer


def _up() -> Future[None]:
    """The start of an engine that is up."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


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


def test_the_ray_that_a_run_before_left_to_its_end_is_not_taken_for_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run of the process begins while it ends: nothing is left of it a moment later."""
    left: Future[None] = Future()

    def wait_for(works: Collection[Future[Any]]) -> None:
        assert left in works
        left.set_result(None)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: not left.done()))
    monkeypatch.setattr(left_work, "wait_for", wait_for)
    left_work.leave(left)
    document = tomllib.loads(configured(tmp_path).read_text())
    document["pipeline"]["start_in_process"] = True
    try:
        assert begins_in_process(config_from_dict(document), local=False)
    finally:
        left.cancel()
