"""A thread that waits for a reader loses no news, whenever they come."""

from __future__ import annotations

import threading

from raycdc.source.protocol.api import Availability

PATIENCE_S = 10.0


def test_news_between_the_look_and_the_wait_end_the_wait_at_once() -> None:
    availability = Availability()
    availability.begin()
    availability.notify()
    assert availability.wait(now_s=0.0, until_s=PATIENCE_S)


def test_news_before_the_look_are_taken_by_it() -> None:
    availability = Availability()
    availability.notify()
    availability.begin()
    assert not availability.wait(now_s=5.0, until_s=5.0)


def test_news_from_another_thread_end_a_wait() -> None:
    availability = Availability()
    availability.begin()
    thread = threading.Thread(target=availability.notify)
    thread.start()
    assert availability.wait(now_s=0.0, until_s=PATIENCE_S)
    thread.join()


def test_the_earliest_time_that_was_named_ends_the_wait_until_the_next_look() -> None:
    availability = Availability()
    availability.at(PATIENCE_S)
    availability.at(3.0)
    availability.at(PATIENCE_S)
    assert availability.due_s == 3.0
    assert not availability.wait(now_s=3.0, until_s=PATIENCE_S)
    availability.begin()
    assert availability.due_s is None
