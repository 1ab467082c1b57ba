"""A store that does not answer is told of once, again when the tries begin anew, and once more when it answers."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest

from raycdc.storage.silence import SILENT_S, Silences


class Asked:
    """Requests to one store, by a clock of the test's."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.silences = Silences(lambda: self.now_s)

    def begin(self) -> ExitStack:
        stack = ExitStack()
        is_answer = lambda error: isinstance(error, FileNotFoundError)  # noqa: E731
        stack.enter_context(self.silences.asking("s3://shop", tries_for_s=120, is_answer=is_answer))
        return stack

    def end(self, stack: ExitStack, error: type[Exception] | None = None) -> None:
        with suppress(OSError), stack:
            if error is not None:
                raise error

    def told(self, after_s: float = 0.0) -> list[str]:
        self.now_s += after_s
        return self.silences.poll(lambda from_now_s: f"{self.now_s + from_now_s:.0f}")


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_request_that_is_answered_in_time_is_not_told_of(asked: Asked) -> None:
    for error in (None, FileNotFoundError):
        request = asked.begin()
        assert asked.told(SILENT_S - 1) == []
        asked.end(request, error)
        assert asked.told(100) == []


def test_a_silence_is_told_once_until_the_store_answers(asked: Asked) -> None:
    request = asked.begin()
    [text] = asked.told(SILENT_S)
    assert text.startswith("s3://shop has not answered since 1000, for 5 s. It is asked again until 1120. See that")
    assert asked.told(30) == []
    asked.end(request)
    assert asked.told() == ["s3://shop answers again, after 35 s."]
    assert asked.told(100) == []


def test_a_request_that_was_given_up_leaves_the_store_silent(asked: Asked) -> None:
    request = asked.begin()
    asked.now_s += 121
    asked.end(request, TimeoutError)
    # Nobody asks it any more.
    assert asked.told() == []
    for began_s in (1121, 1242):
        request = asked.begin()
        [text] = asked.told()
        assert f"since 1000, for {began_s - 1000} s. It is asked again until {began_s + 120}." in text
        assert asked.told(119) == []
        asked.now_s += 2
        asked.end(request, TimeoutError)
    asked.end(asked.begin())
    assert asked.told() == ["s3://shop answers again, after 363 s."]


def test_an_answer_to_one_request_is_one_for_those_beside_it(asked: Asked) -> None:
    first = asked.begin()
    asked.told(SILENT_S)
    second = asked.begin()
    asked.end(second)
    assert asked.told() == ["s3://shop answers again, after 5 s."]
    assert asked.told(SILENT_S - 1) == []
    [text] = asked.told(1)
    assert "since 1005" in text
    asked.end(first)
