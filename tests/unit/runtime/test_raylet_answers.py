"""Who is silent, and who only says something else than was expected."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from raycdc.core.threads import Joinable, Threads
from raycdc.runtime.ray import ray_head as raylet_answers
from raycdc.runtime.ray.ray_head import ASK_EVERY_S, RayletQuestions, answers


def settings(connection: socket.socket) -> None:
    connection.sendall(bytes(9))


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00" + bytes(4))


@pytest.mark.parametrize("told", [settings, reset, lambda _: None], ids=["settings", "reset", "closed"])
def test_whoever_says_anything_is_there(told: Callable[[socket.socket], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            told(connection)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        assert answers("127.0.0.1", server.getsockname()[1])
        thread.join()


def test_one_that_stands_still_and_one_that_is_gone_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raylet_answers, "ANSWER_S", 0.05)
    # The kernel takes connections of a process that stands still.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not answers("127.0.0.1", port)
    assert not answers("127.0.0.1", port)


class Later(Threads):
    """Threads that run when the test says so, and its clock."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def start(self, call: Callable[[], None], name: str) -> Joinable:
        self.calls.append(call)
        return threading.Thread()


def test_a_node_is_asked_one_question_at_a_time_and_its_silence_is_told_once() -> None:
    threads = Later()
    questions = RayletQuestions(lambda host, _: host == "there", threads)
    for _ in range(2):
        questions.ask("a", "there", 1)
        questions.ask("b", "silent", 1)
    assert (len(threads.calls), questions.take_silent()) == (2, set())
    for call in threads.calls:
        call()
    assert (questions.take_silent(), questions.take_silent()) == ({"b"}, set())
    for at_s, asked in ((0.0, 2), (ASK_EVERY_S, 3)):
        threads.at_s = at_s
        questions.ask("b", "silent", 1)
        assert len(threads.calls) == asked
