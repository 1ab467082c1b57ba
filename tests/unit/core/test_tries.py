"""At most two tries a second at one server, whoever tries; a server that answers is tried by all at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaException

from raycdc.clients.kafka import answer_of
from raycdc.core.connection_attempts import Tries
from raycdc.core.retry import SPACING_S
from raycdc.errors import SourceError, SourceUnavailableError
from raycdc.sinks.kafka.transactions import is_unreachable

SERVER = "db1:3306"


def attempt(tries: Tries, connect: Callable[[], None]) -> str:
    """The outcome of one thread's try."""
    try:
        with tries.at(SERVER):
            connect()
    except SourceError as error:
        return str(error)
    return "connected"


def test_many_threads_try_a_dead_server_twice_a_second_and_share_its_answer() -> None:
    tries, tried = Tries(), list[float]()

    def connect() -> None:
        tried.append(time.monotonic())
        raise SourceUnavailableError(f"db1 is away ({len(tried)}).")

    # From here on, as a thread may be held up between its turn and the note of it.
    began_s = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda _: attempt(tries, connect), range(24)))
    assert len(outcomes) == 24
    assert all(outcome.startswith("db1 is away") for outcome in outcomes)
    assert len(tried) < 24
    assert all(tried_s - began_s >= number * SPACING_S for number, tried_s in enumerate(tried))


def test_a_server_that_answers_is_tried_by_all_at_once() -> None:
    tries = Tries()
    attempt(tries, lambda: None)
    together = threading.Barrier(4, timeout=120)

    def meet() -> None:
        together.wait()

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda _: attempt(tries, meet), range(4)))
    assert outcomes == ["connected"] * 4


def test_a_refusal_of_one_account_is_not_the_answer_for_another() -> None:
    tries, tried = Tries(), list[int]()

    def connect() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise SourceError("The password is wrong.")

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: attempt(tries, connect), range(2)))
    assert sorted(outcomes) == ["The password is wrong.", "connected"]


def test_servers_are_bounded_each_for_itself() -> None:
    tries = Tries()
    with pytest.raises(SourceUnavailableError), tries.at("db1:3306"):
        raise SourceUnavailableError("away")
    with tries.at("db2:3306"):
        pass


def test_drivers_that_connect_by_themselves_wait_for_their_time_until_somebody_is_let_in() -> None:
    tries, tried = Tries(), list[float]()

    def space() -> None:
        tries.space(SERVER)
        tried.append(time.monotonic())

    began_s = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: space(), range(3)))
    assert all(tried_s - began_s >= number * SPACING_S for number, tried_s in enumerate(sorted(tried)))
    tries.answered(SERVER)
    for _ in range(100):
        tries.space(SERVER)  # It returns at once, for as long as the answer is fresh.
        tries.answered(SERVER)


def test_a_question_to_a_broker_that_is_not_answered_says_that_the_broker_is_away() -> None:
    with pytest.raises(KafkaException) as raised:
        answer_of(Future[str](), 0.0)
    assert is_unreachable(raised.value.args[0])
