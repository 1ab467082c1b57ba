"""Patience in one place: pauses that grow, a row that ends, and words for people."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raycdc.core.retry import POLICY, SPACING_S, Backoff, Outage, Retrier, RetryPolicy
from raycdc.core.stopping import StopRequest
from raycdc.errors import SinkError, SinkUnavailableError
from tests.support.clocks import ManualClock


def away(cause: Exception) -> Outage | None:
    if isinstance(cause, SinkUnavailableError):
        return Outage(f"The sink is waited for: {cause}", "see that it answers", SinkError)
    return None


def failing(clock: ManualClock, until_s: float, error: type[Exception] = SinkUnavailableError) -> Callable[[], str]:
    def act() -> str:
        if clock.s < until_s:
            raise error("db1 is away.")
        return "done"

    return act


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_pauses_grow_to_the_longest_and_are_never_shorter_than_the_policy_says(chance: float) -> None:
    clock = ManualClock(chance=chance)
    pauses = Backoff(POLICY, clock)
    longer = 1 + POLICY.jitter * chance
    assert [pauses.failed(0.0) for _ in range(7)] == [each * longer for each in (0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0)]


def test_no_policy_tries_more_often_than_twice_a_second() -> None:
    assert POLICY.first_s >= SPACING_S
    with pytest.raises(AssertionError):
        RetryPolicy(first_s=0.1)


def test_what_is_away_for_a_while_is_waited_for_and_told_once() -> None:
    clock, told = ManualClock(), list[str]()
    assert Retrier(notify=told.append, stopping=StopRequest(), threads=clock)(failing(clock, 200.0), away) == "done"
    assert told == [
        "The sink is waited for: db1 is away. It is tried again for 5 minutes; see that it answers.",
    ]


def test_what_stays_away_ends_with_its_place_and_the_advice() -> None:
    clock, told = ManualClock(), list[str]()
    with pytest.raises(SinkError, match=r"for: db1 is away\. See that it answers, and start again; nothing is lost\.$"):
        Retrier(notify=told.append, stopping=StopRequest(), threads=clock)(failing(clock, 1e9), away)
    assert POLICY.retry_s <= clock.s <= POLICY.retry_s + 2 * POLICY.longest_s
    assert len(told) == 1


def test_work_that_was_long_under_way_when_the_server_went_is_tried_again() -> None:
    clock = ManualClock()
    seen: list[float] = []

    def act() -> str:
        seen.append(clock.s)
        clock.s += 2 * POLICY.retry_s
        if len(seen) == 1:
            raise SinkUnavailableError("db1 went.")
        return "done"

    assert Retrier(notify=lambda _: None, stopping=StopRequest(), threads=clock)(act, away) == "done"


def test_an_error_that_waiting_does_not_end_is_raised_as_it_is() -> None:
    clock = ManualClock()
    with pytest.raises(SinkError, match=r"^db1 is away"):
        Retrier(notify=lambda _: None, stopping=StopRequest(), threads=clock)(failing(clock, 1e9, SinkError), away)
    assert not clock.pauses


def test_a_stop_ends_the_waiting() -> None:
    clock, stopping = ManualClock(), StopRequest()
    with pytest.raises(SinkError, match="start again"):
        Retrier(notify=lambda _: stopping.set(), stopping=stopping, threads=clock)(failing(clock, 1e9), away)
    assert len(clock.pauses) == 1
