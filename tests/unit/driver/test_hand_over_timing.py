"""When a hand-over happens, and what it waits for: of a source side that seals nothing until it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raycdc.core.threads import Joinable, Threads
from raycdc.driver import engine_promotion
from raycdc.driver.engine_promotion import EnginePromotion, EnginesDue, PromotableLauncher, PromotionState
from raycdc.errors import ClusterLostError
from raycdc.sandbox.servers.private import wait_until
from raycdc.source.protocol.api import TableCounts
from raycdc.source.protocol.job_status import JobStatus
from tests.support.clocks import ManualClock
from tests.support.jobs import RUN_TIMEOUT_S
from tests.unit.driver.handed_run import threads_for_engines


def test_without_a_manifest_there_is_nothing_to_hand_over(tmp_path: Path) -> None:
    """A source that is to begin at its end would begin at another one."""
    launcher: Any = SimpleNamespace(close=lambda: None)
    engine: Any = SimpleNamespace(begin=_up, warm_up=lambda: None, poll=lambda: None)
    other: Any = SimpleNamespace(close=lambda: None, poll=lambda: None)
    handed = PromotableLauncher(launcher, lambda _: other, engine)
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
        patch.setattr("raycdc.driver.engine_promotion.EPOCH_S", 0.0)
        state = PromotionState(has_manifest, has_commit=lambda: True, sweep=sweep)
        over = EnginePromotion(handed, side, state, notify=lambda _: None)
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
    state = PromotionState(has_manifest=lambda: False, has_commit=lambda: True, sweep=lambda: None)
    over = EnginePromotion(_up_and_ready(), side, state, notify=lambda _: None, due=EnginesDue(0.0), threads=watched)
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
        (
            TableCounts(tables=500, in_snapshot=100, chunks_done=400, chunks_left=100),
            True,
            engine_promotion.ENDS_SOON_S,
        ),
        (TableCounts(tables=500, chunks_done=500), True, engine_promotion.ENDS_SOON_S),
        (TableCounts(tables=500, chunks_done=500), False, 0),
        # Of one large table nobody knows how much is left: it is planned while it is read.
        (TableCounts(tables=1, in_snapshot=1, chunks_done=90, chunks_left=10), True, 0),
    ],
)
def test_a_run_that_is_about_to_end_starts_no_engine_for_a_while(
    monkeypatch: pytest.MonkeyPatch, counts: TableCounts | None, ends_by_itself: bool, waits_s: float
) -> None:
    monkeypatch.setattr(engine_promotion, "EPOCH_S", 0.0)
    side, clock = _Side(), ManualClock()
    side.sealed = 1
    if counts is not None:
        side.counted = JobStatus(generation=1, sealed=1, committed=1, counts=counts)
    begun_s: list[float] = []

    def begin() -> Future[None]:
        begun_s.append(clock.now_s())
        return _up()

    nothing: Any = SimpleNamespace(close=lambda: None, poll=lambda: None)
    engine: Any = SimpleNamespace(begin=begin, warm_up=lambda: None, poll=lambda: None)
    state = PromotionState(has_manifest=lambda: True, has_commit=lambda: True, sweep=lambda: None)
    handed = PromotableLauncher(nothing, lambda _: nothing, engine)
    over = EnginePromotion(
        handed, side, state, notify=lambda _: None, due=EnginesDue(5.0, ends_by_itself=ends_by_itself), threads=clock
    )
    assert side.over.wait(RUN_TIMEOUT_S)
    over.close()
    handed.close()
    assert side.errors == []
    assert begun_s == [pytest.approx(5.0 + waits_s, abs=2 * engine_promotion.POLL_S)]


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

    state = PromotionState(has_manifest=lambda: True, has_commit=lambda: True, sweep=sweep)
    over = EnginePromotion(_up_and_ready(), side, state, notify=lambda _: None, due=EnginesDue(0.0), threads=watched)
    assert ended.wait(RUN_TIMEOUT_S)
    assert meanwhile.is_set()
    assert side.over.is_set()


def test_ray_may_die_while_spark_comes_up() -> None:
    """It is not waited for: what is left of the other says nothing of it."""

    def poll() -> None:
        raise ClusterLostError("Ray's head is gone.")

    class Impatient(Threads):
        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            raise AssertionError("nobody looked whether Ray is there")

    ray: Any = SimpleNamespace(close=lambda: None, poll=poll)
    spark: Any = SimpleNamespace(begin=Future, warm_up=lambda: None, poll=lambda: None)
    local: Any = SimpleNamespace(close=lambda: None)
    handed = PromotableLauncher(local, lambda _: ray, spark, threads=Impatient())
    with pytest.raises(ClusterLostError):
        handed.prepare(1)
    handed.close()


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
        if timeout_s == engine_promotion.CLOSING_POLL_S:
            self.closing.set()
        return super().wait(event, timeout_s)

    def start(self, call: Callable[[], None], name: str) -> Joinable:
        self.started.append(super().start(call, name))
        return self.started[-1]


def _up_and_ready() -> PromotableLauncher:
    """A launcher whose engines come up at once."""
    nothing: Any = SimpleNamespace(close=lambda: None, poll=lambda: None)
    engine: Any = SimpleNamespace(begin=_up, warm_up=lambda: None, poll=lambda: None)
    return PromotableLauncher(nothing, lambda _: nothing, engine)


def _up() -> Future[None]:
    """The start of an engine that is up."""
    future: Future[None] = Future()
    future.set_result(None)
    return future
