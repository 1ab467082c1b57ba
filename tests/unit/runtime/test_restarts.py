"""Budgets of restarts: an outage is survived however many readers there are, a crash in a loop is not."""

from __future__ import annotations

import pickle
import traceback

import pytest

from raycdc.core.retry import POLICY, SPACING_S
from raycdc.errors import RaycdcError, SourceUnavailableError, UnexpectedError
from raycdc.runtime.restarts import (
    BUG_RESTARTS_MAX,
    RESTARTS_MAX,
    STABLE_S,
    ProcessEnd,
    RestartBudget,
)
from raycdc.runtime.unexpected import unexpected

AWAY = ProcessEnd("db1:3306 refused the connection.", "SourceUnavailableError")
CRASH = ProcessEnd("its process ended")
OUTAGE_MAX_S = POLICY.retry_s
PAUSE_MAX_S = POLICY.longest_s * (1 + POLICY.jitter)


def lives(budget: RestartBudget, end: ProcessEnd, *, lived_s: float, until_s: float) -> tuple[float, float | None]:
    """Start and end again and again; when the last life ended, and what the budget said of it."""
    now_s, pause_s = 0.0, 0.0
    answer: float | None = 0.0
    while answer is not None and now_s < until_s:
        now_s += pause_s
        budget.started(now_s)
        now_s += lived_s
        answer = budget.pause_after(end, now_s)
        pause_s = answer or 0.0
    return now_s, answer


@pytest.mark.parametrize("lived_s", [0.01, 1.0, 10.0])
def test_a_source_that_is_away_for_minutes_is_waited_for(lived_s: float) -> None:
    ended_s, answer = lives(RestartBudget(), AWAY, lived_s=lived_s, until_s=OUTAGE_MAX_S - PAUSE_MAX_S - lived_s)
    assert ended_s > 240
    assert answer is not None


def test_a_source_that_stays_away_ends_the_job_with_its_own_error() -> None:
    budget = RestartBudget()
    ended_s, answer = lives(budget, AWAY, lived_s=1.0, until_s=10 * OUTAGE_MAX_S)
    assert answer is None
    assert OUTAGE_MAX_S < ended_s < OUTAGE_MAX_S + 3 * PAUSE_MAX_S
    error = budget.give_up(AWAY, what="A reader", now_s=ended_s)
    assert isinstance(error, SourceUnavailableError)
    assert "db1:3306 refused the connection" in str(error)


def test_a_process_that_ends_at_once_again_and_again_is_given_up_sooner() -> None:
    budget = RestartBudget()
    _, answer = lives(budget, CRASH, lived_s=0.5, until_s=OUTAGE_MAX_S)
    assert answer is None
    assert repr(budget) == f"RestartBudget(restarts={RESTARTS_MAX + 1}, failures={RESTARTS_MAX + 1})"
    assert type(budget.give_up(CRASH, what="A reader", now_s=1.0)) is RaycdcError


def raised(error: Exception) -> ProcessEnd:
    """The end of a process in which a library raised `error` while this test's package was at work."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - whatever it is
        # As it arrives from another process.
        return ProcessEnd.of(pickle.loads(pickle.dumps(unexpected(caught, lives))))


@pytest.mark.parametrize("error", [AttributeError("x"), KeyError("x"), AssertionError(), ZeroDivisionError("x")])
def test_a_bug_that_will_come_again_is_given_up_after_few_tries_with_its_traceback(error: Exception) -> None:
    budget, bug = RestartBudget(), raised(error)
    _, answer = lives(budget, bug, lived_s=0.5, until_s=OUTAGE_MAX_S)
    assert answer is None
    assert f"restarts={BUG_RESTARTS_MAX + 1}," in repr(budget)
    given_up = budget.give_up(bug, what="A reader", now_s=1.0)
    assert type(given_up) is UnexpectedError
    assert f"{type(error).__name__}" in str(given_up)
    assert f"({__file__}:" in str(given_up)
    assert "raise error" in "".join(traceback.format_exception(given_up))


@pytest.mark.parametrize("error", [ConnectionResetError("x"), ValueError("x"), RuntimeError("x")])
def test_an_error_of_the_world_that_nobody_named_is_tried_as_often_as_any_crash(error: Exception) -> None:
    budget, end = RestartBudget(), raised(error)
    lives(budget, end, lived_s=0.5, until_s=OUTAGE_MAX_S)
    assert f"restarts={RESTARTS_MAX + 1}," in repr(budget)
    assert "raise error" in "".join(traceback.format_exception(budget.give_up(end, what="A reader", now_s=1.0)))


def test_a_process_that_lived_begins_a_new_row() -> None:
    budget = RestartBudget()
    lives(budget, CRASH, lived_s=0.5, until_s=20.0)
    budget.started(100.0)
    assert budget.pause_after(CRASH, 100.0 + STABLE_S) == 0.0


def pauses(end: ProcessEnd) -> list[float | None]:
    """Those of a process that ends once a second."""
    budget, said = RestartBudget(), []
    for now_s in range(20):
        budget.started(float(now_s))
        said.append(budget.pause_after(end, float(now_s)))
    return said


def test_the_first_replacement_comes_at_once_and_later_ones_later_and_later() -> None:
    first, *later = [pause for pause in pauses(CRASH) if pause is not None]
    assert first == 0.0
    assert later[0] >= SPACING_S
    assert POLICY.longest_s <= max(later) <= PAUSE_MAX_S


def test_a_server_that_is_away_is_not_tried_at_once() -> None:
    assert all(pause is not None and pause >= SPACING_S for pause in pauses(AWAY))


def test_an_error_of_a_plug_in_or_none_counts_as_a_crash() -> None:
    assert not ProcessEnd("SourceUnavailableError: it says so itself").is_unreachable
    assert not ProcessEnd("words", "SomeoneElsesError").is_unreachable
    assert AWAY.is_unreachable
