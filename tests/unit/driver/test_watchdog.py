"""What stands still is told, again later and later, and once more when it goes on; what moves or rests is not."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from raycdc.core import activity
from raycdc.core.activity import ActivityTracker, Stage
from raycdc.core.retry import Outage, Retrier
from raycdc.core.stopping import StopRequest
from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.model import TableId
from raycdc.observe.events import RunEvent, StageResumed, StageStalled
from raycdc.observe.status.progress import ProgressReporter
from raycdc.observe.watch.watchdog import StallDetector, Watchdog
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus, Seals, SealStatus
from raycdc.source.protocol.metrics import HandOffWait, LogMetrics, ProcessMetrics, ReaderMetrics
from raycdc.source.protocol.rate_budget import WHOLE, Lane, LaneDemand, RateDemand
from tests.support.clocks import ManualClock

CHUNK = ("chunk", "shop.orders", "shop.orders:12")


def told(
    stand_stills: StallDetector, clock: ManualClock, board: ActivityTracker, status: JobStatus | None = None
) -> list[str]:
    """What a look tells: ``stalled`` or ``resumed`` with the seconds."""
    said = []
    for event in stand_stills.poll(clock.s, board, status):
        if isinstance(event, StageStalled):
            said.append(f"standing {event.seconds:.0f}")
        elif isinstance(event, StageResumed):
            said.append(f"moving {event.stood.seconds:.0f}")
    return said


def test_a_work_is_told_when_it_stands_again_when_twice_as_long_and_when_it_goes_on() -> None:
    clock = ManualClock()
    board, stand_stills, said = ActivityTracker(clock), StallDetector(60.0), {}
    with board.doing(Stage.COMMIT, "commits epoch 3", table="shop.orders"):
        for second in range(0, 301, 10):
            clock.s = float(second)
            if news := told(stand_stills, clock, board):
                said[second] = news
    assert said == {60: ["standing 60"], 120: ["standing 120"], 240: ["standing 240"]}
    assert told(stand_stills, clock, board) == ["moving 300"]
    assert told(stand_stills, clock, board) == []


def test_whoever_moves_or_rests_stands_nowhere() -> None:
    clock = ManualClock()
    board, stand_stills = ActivityTracker(clock), StallDetector(60.0)
    with board.doing(Stage.CHUNK, "waits", table="shop.orders"):
        for _ in range(10):
            clock.s += 50
            assert told(stand_stills, clock, board) == []
            board.came()
        with activity.resting():
            clock.s += 500
            assert board.stalled() == ()
        clock.s += 50
        assert told(stand_stills, clock, board) == []
    assert board.moves == 10


def test_a_note_says_what_is_waited_for_up_to_where_values_may_begin() -> None:
    clock = ManualClock()
    board = ActivityTracker(clock)
    with board.doing(Stage.CHUNK, "waits for the server's answer", table="shop.orders"):
        activity.note_statement("SELECT `id`, `v`\n FROM `shop`.`orders` WHERE `id` > 'secret' ORDER BY id")
        clock.s = 73.0
        assert board.stalled()[0].note == "SELECT `id`, `v` FROM `shop`.`orders` …"
        activity.note_statement("INSERT INTO `t` VALUES ('secret')")
        assert board.stalled() == ()
        clock.s += 5
        assert "secret" not in board.stalled()[0].note
    activity.note("nobody has a board here")


def test_work_that_is_tried_again_stands_until_it_succeeds() -> None:
    clock = ManualClock()
    board, stood = ActivityTracker(clock), list[str]()

    def act() -> None:
        activity.note_statement("BEGIN")  # A try that begins is no movement.
        stood.extend(f"{one.note} {one.seconds}" for one in board.stalled())
        if clock.s < 20:
            raise SinkUnavailableError("db1 is away.")

    def away(cause: Exception) -> Outage:
        return Outage(f"The sink is waited for: {cause}", "see that it answers", SinkError)

    with board.doing(Stage.COMMIT, "commits epoch 3"):
        Retrier(notify=lambda _: None, stopping=StopRequest(), threads=clock)(act, away)
        assert board.stalled() == ()
    assert stood[-1] == "The sink is waited for: db1 is away. 25.5"


def test_a_commit_that_fails_and_is_tried_again_has_not_gone_on_whatever_others_do_meanwhile() -> None:
    clock = ManualClock()
    board, stand_stills, said = ActivityTracker(clock), StallDetector(60.0), {}
    board.around = lambda: f"Spark: {int(clock.s) // 30} of 99 tasks"
    with board.doing(Stage.COMMIT, "commits epoch 3", table="shop.orders"):
        activity.note_statement("LOCK TABLE t")
        for second in range(0, 601, 10):
            clock.s = float(second)
            if second == 60:
                activity.failing("It is locked.")
            if news := told(stand_stills, clock, board):
                said[second] = news
    assert said == {60: ["standing 60"], 120: ["standing 120"], 240: ["standing 240"], 480: ["standing 480"]}
    assert told(stand_stills, clock, board) == ["moving 600"]


def test_jobs_of_an_engine_that_go_on_move_what_waits_for_them() -> None:
    clock = ManualClock()
    board = ActivityTracker(clock)
    board.around = lambda: f"Spark: {int(clock.s) // 30} of 8 tasks"
    with board.doing(Stage.STAGE, "writes an epoch's rows"):
        for second in range(1, 100):
            clock.s = float(second)
            assert all(one.seconds <= 31 for one in board.stalled())
        clock.s = 119.0
        board.stalled()
        assert board.stalled()[0].note == "Spark: 3 of 8 tasks"


def status(**changes: object) -> JobStatus:
    return replace(JobStatus(1, 0, 0, readers=(ReaderStatus(1, 1, 12, "n"),)), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("moves", ["nothing", "a chunk", "the log"])
def test_a_chunk_that_waits_for_the_log_stands_while_neither_moves(moves: str) -> None:
    clock = ManualClock()
    stand_stills, board = StallDetector(60.0), ActivityTracker(clock)
    wait = HandOffWait(TableId("shop", "orders"), "shop.orders:12", "waits for the log's reader to open it")
    said = []
    for second in range(0, 100, 10):
        clock.s = float(second)
        log = LogMetrics(second if moves == "the log" else 0)
        reader = ReaderStatus(
            1,
            1,
            12,
            "n",
            metrics=ReaderMetrics(log, waits=(wait,)),
            process=ProcessMetrics(moves=second if moves == "a chunk" else 0),
        )
        said += told(stand_stills, clock, board, status(readers=(reader,)))
    assert said == (["standing 60"] if moves == "nothing" else [])


def test_a_chunk_and_a_seal_that_wait_for_the_pace_of_the_source_stand_nowhere() -> None:
    clock = ManualClock()
    stand_stills, board = StallDetector(60.0), ActivityTracker(clock)
    wait = HandOffWait(TableId("shop", "orders"), "shop.orders:12", "waits for the log's reader to open it")
    said = {}
    for held in (0, WHOLE):
        pace = RateDemand(1, {Lane.LOG: LaneDemand(used=WHOLE, held=held)})
        reader = ReaderStatus(1, 1, 12, "n", metrics=ReaderMetrics(LogMetrics(0), waits=(wait,)), rate_demand=pace)
        found = []
        for _ in range(10):
            clock.s += 10
            found += told(stand_stills, clock, board, status(readers=(reader,), seals=Seals(SealStatus(7, (1,)))))
        said[held] = found
    assert said == {0: ["standing 60", "standing 60"], WHOLE: ["moving 90", "moving 90"]}


def test_a_seal_that_waits_for_a_reader_names_it() -> None:
    clock = ManualClock()
    stand_stills, board = StallDetector(5.0), ActivityTracker(clock)
    sealing = status(seals=Seals(SealStatus(7, (1, 2))))
    assert told(stand_stills, clock, board, sealing) == []
    clock.s = 5.0
    (event,) = stand_stills.poll(clock.s, board, sealing)
    assert str(event) == "epoch 7 waits for reader 1, 2 to seal its part since 5 s"
    assert told(stand_stills, clock, board, status()) == ["moving 5"]


def waits(second: float) -> JobStatus:
    """A chunk waits for the log, which is at this place."""
    wait = HandOffWait(TableId("shop", "orders"), "shop.orders:12", "waits for the log's reader to open it")
    return status(readers=(ReaderStatus(1, 1, 12, "n", metrics=ReaderMetrics(LogMetrics(int(second)), waits=(wait,))),))


def test_an_enumerator_that_is_silent_is_told_of_and_nothing_of_what_it_said_before() -> None:
    clock = ManualClock()
    events: list[RunEvent] = []
    watchdog = Watchdog(60.0, events.append, threads=clock)
    reporter = ProgressReporter({})
    reporter.hearers.on_status.append(watchdog.heard)
    reporter.hearers.on_asking.append(watchdog.asked)
    heard, stuck, answers = threading.Semaphore(0), threading.Event(), threading.Event()
    reporter.hearers.on_status.append(lambda _: heard.release())
    asked = 0

    def ask(*, tables: bool) -> JobStatus:
        nonlocal asked
        asked += 1
        if asked == 2:
            stuck.set()
            assert answers.wait(600)
        return waits(0)

    def told_at(second: float) -> list[str]:
        clock.s, before = second, len(events)
        watchdog.poll()
        return [f"{type(event).__name__} {event}" for event in events[before:]]

    where = "shop.orders, chunk shop.orders:12 on reader 1"
    assert told_at(1000.0) == [], "nobody has asked yet"
    with reporter.watching(ask, every_s=0.001):
        assert stuck.wait(600)
        assert told_at(1001.0) == []
        assert told_at(1059.0) == []
        (silent,) = told_at(1060.0)
        assert silent == (
            "StageStalled the enumerator: has not reported the progress of the job since 60 s (what tables and "
            "readers wait for is not known meanwhile)"
        )
        assert told_at(1100.0) == []
        (again,) = told_at(1120.0)
        assert again.startswith("StageStalled the enumerator: has not reported the progress of the job since 120 s")
        answers.set()
        for _ in range(2):
            assert heard.acquire(timeout=600)
        assert told_at(1120.0) == [
            "StageResumed the enumerator: goes on after 120 s (has not reported the progress of the job)",
            # It still does, and the log is where it was.
            f"StageStalled {where}: waits for the log's reader to open it since 120 s",
        ]
    assert told_at(1121.0) == [f"StageResumed {where}: goes on after 120 s (waits for the log's reader to open it)"]
    assert told_at(5000.0) == [], "nobody asks any more"


def test_what_stood_before_the_enumerator_was_silent_neither_goes_on_nor_grows_meanwhile() -> None:
    clock = ManualClock()
    board, stand_stills = ActivityTracker(clock), StallDetector(60.0)
    assert told(stand_stills, clock, board, waits(0)) == []
    clock.s = 60.0
    assert told(stand_stills, clock, board, waits(0)) == ["standing 60"]
    said = {}
    for second in range(70, 1000, 10):
        clock.s = float(second)
        events = list(stand_stills.poll(clock.s, board, waits(0), heard_s=60.0))
        if events:
            said[second] = [str(event).partition(":")[0] for event in events]
    assert said == {120: ["the enumerator"], 180: ["the enumerator"], 300: ["the enumerator"], 540: ["the enumerator"]}
    # The chunk went on meanwhile.
    assert told(stand_stills, clock, board, status()) == ["moving 60", "moving 930"]


def test_the_text_names_table_chunk_and_reader() -> None:
    event = StageStalled(*CHUNK, 1, "waits for the server's answer", "SELECT …", 73.2)
    where = "shop.orders, chunk shop.orders:12 on reader 1"
    assert str(event) == f"{where}: waits for the server's answer since 73 s (SELECT …)"
    assert str(StageResumed(event)) == f"{where}: goes on after 73 s (waits for the server's answer)"


def test_a_work_that_is_done_again_and_again_stands_in_a_turn_or_for_a_trouble_that_lasts() -> None:
    clock = ManualClock()
    board = ActivityTracker(clock)
    work = board.lasting(Stage.LOG, "fetches and decodes")
    clock.s = 100.0
    assert board.stalled() == ()
    with work.turn():
        clock.s += 5
        assert [one.seconds for one in board.stalled()] == [5.0]
    clock.s += 100
    assert board.stalled() == ()
    for _ in range(3):
        with work.turn():
            activity.failing("all brokers are down")
            clock.s += 1
        clock.s += 10
    assert [(one.note, one.seconds) for one in board.stalled()] == [("all brokers are down", 33.0)]
    with work.turn():
        activity.over()
    clock.s += 100
    assert board.stalled() == ()
    work.close()
