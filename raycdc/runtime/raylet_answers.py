"""Whether the raylet of a node answers. Ray gives a silent node up after half a minute, and chooses it for actors until
then: a reader that waits for longer than it takes to start one asks, and goes elsewhere.

A raylet is a gRPC server, and those send their settings at once (RFC 9113, 3.4). One that closes the connection instead
(it may want TLS) is there as well. Each question has a thread of its own, because nobody may wait.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from raycdc.threads import THREADS, Threads

#: A raylet on a machine that is busy answers much sooner.
ANSWER_S = 5.0
#: How often a node is asked, at most, while somebody waits.
ASK_EVERY_S = 3.0
#: The preface of a client, and its settings, which are none.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000")


def answers(host: str, port: int) -> bool:
    """Whether somebody answers there; blocks for `ANSWER_S` at most for each step."""
    try:
        connection = socket.create_connection((host, port), timeout=ANSWER_S)
    except ConnectionResetError:
        return True
    except OSError:
        return False
    with connection:
        try:
            connection.sendall(_HELLO)
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True
    return True


class RayletQuestions:
    """One question to a node at a time, and not all the time. Called by the supervisor's thread."""

    def __init__(self, ask: Callable[[str, int], bool] = answers, threads: Threads = THREADS) -> None:
        self._ask = ask
        self._threads = threads
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._again_s: dict[str, float] = {}
        self._silent: set[str] = set()

    def __repr__(self) -> str:
        return f"RayletQuestions({sorted(self._asked)})"

    def ask(self, node_id: str, host: str, port: int) -> None:
        """Returns at once; `take_silent` tells."""
        now_s = self._threads.now_s()
        with self._lock:
            self._again_s = {node: at_s for node, at_s in self._again_s.items() if at_s > now_s}
            if node_id in self._asked or node_id in self._again_s:
                return
            self._asked.add(node_id)
            self._again_s[node_id] = now_s + ASK_EVERY_S
        self._threads.start(lambda: self._wait_for(node_id, host, port), "raylet")

    def take_silent(self) -> set[str]:
        """Nodes that were asked and did not answer; each question is told once."""
        with self._lock:
            silent, self._silent = self._silent, set()
        return silent

    def _wait_for(self, node_id: str, host: str, port: int) -> None:
        there = self._ask(host, port)
        with self._lock:
            self._asked.discard(node_id)
            if not there:
                self._silent.add(node_id)
