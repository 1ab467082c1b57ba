"""Traces on their way: a few at once, kept for a collector that is away, and never in anybody's way."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from raycdc.tracing import outbox
from raycdc.tracing.outbox import NotTakenError, Outbox
from raycdc.tracing.trace import Span

AWAY = NotTakenError("it answers with 503", again=True)


class Taker:
    """Takes traces by the number of their epoch, after it has raised `errors`; blocks until it is `free`."""

    def __init__(self, *errors: Exception, blocks: bool = False) -> None:
        self.errors = [*errors]
        self.free, self.asked = threading.Event(), threading.Event()
        if not blocks:
            self.free.set()
        self.taken: list[int] = []
        self.closed = False

    def made(self, trace: Span) -> int:
        return trace.began_ns

    def send(self, traces: Sequence[int]) -> None:
        self.asked.set()
        self.free.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.taken += traces

    def close(self) -> None:
        self.closed = True


def trace(number: int) -> Span:
    return Span("epoch", number, number + 1, {})


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(outbox, "LONGEST_PAUSE_S", 0.0)
    # A busy machine may need longer for the next try than a run's end would wait.
    monkeypatch.setattr(outbox, "AWAY_WAIT_S", 600.0)


def test_all_traces_arrive_in_order() -> None:
    taker, warnings = Taker(), list[str]()
    box = Outbox(taker, "there", warnings.append)
    for number in range(100):
        box.put(trace(number))
    box.end(600.0)
    assert (taker.taken, warnings, taker.closed) == ([*range(100)], [], True)


def test_one_that_is_away_is_told_of_once_and_once_more_when_it_is_back() -> None:
    taker, warnings = Taker(AWAY, AWAY, AWAY), list[str]()
    box = Outbox(taker, "there", warnings.append)
    for number in range(3):
        box.put(trace(number))
    box.end(600.0)
    assert taker.taken == [0, 1, 2]
    assert warnings == [
        "traces: there does not take them: it answers with 503. The run goes on, and keeps the newest 500.",
        "traces: there takes them again.",
    ]


def test_what_is_never_taken_is_dropped_and_counted() -> None:
    taker, warnings = Taker(NotTakenError("it answers with 400", again=False), UnicodeError("geheim")), list[str]()
    box = Outbox(taker, "there", warnings.append)
    for number in range(3):
        box.put(trace(number))
        # Each is a batch of its own.
        taker.asked.wait()
        taker.asked.clear()
    box.end(600.0)
    assert taker.taken == [2]
    assert warnings[1:] == ["traces: there takes them again; 2 traces were dropped meanwhile."]
    assert "geheim" not in "".join(warnings)


def test_the_oldest_are_dropped_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "WAITING_MAX", 3)
    taker, warnings = Taker(blocks=True), list[str]()
    box = Outbox(taker, "there", warnings.append)
    box.put(trace(0))
    taker.asked.wait()
    for number in range(1, 6):
        box.put(trace(number))
    taker.free.set()
    box.end(600.0)
    assert taker.taken == [0, 3, 4, 5]
    assert warnings == ["traces: 2 traces were not sent to there before the end of the run."]


def test_the_end_does_not_wait_for_one_that_hangs_and_says_what_is_lost() -> None:
    taker, warnings = Taker(blocks=True), list[str]()
    box = Outbox(taker, "there", warnings.append)
    box.put(trace(0))
    taker.asked.wait()
    box.put(trace(1))
    box.end(0.0)
    assert warnings == ["traces: 2 traces were not sent to there before the end of the run."]
    assert taker.closed
    box.put(trace(2))
    taker.free.set()


def test_an_end_without_traces_has_nothing_to_say() -> None:
    taker, warnings = Taker(), list[str]()
    Outbox(taker, "there", warnings.append).end(600.0)
    assert (taker.taken, warnings, taker.closed) == ([], [], True)
