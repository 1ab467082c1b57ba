"""Monitors Ray's head and the driver's own node.

Ray itself reports their loss only after a minute, and then its own code ends this process (`ray_environment` makes it
wait longer). A separate thread makes the checks, because a call to Ray may block until Ray gives up. `ray_launcher`
reads the result before and between its calls. The processes of a private Ray are children of this process, so their end
is noticed immediately. For a joined cluster, the check connects to the head at intervals. It also keeps a connection to
this node's raylet, which breaks when the raylet ends.

`RayletQuestions` checks if the raylet of a node answers. Ray declares a silent node dead after half a minute, and
chooses it for actors until then. So if a reader waits longer than a start takes, its node is checked, and if the node
is silent, the reader starts on a different node. A raylet is a gRPC server, which sends its settings immediately (RFC
9113, 3.4). A raylet that closes the connection instead (it may require TLS) counts as alive, too. Each check has its
own thread, because it must not block the other checks.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from threading import Event

from raycdc.core.threads import THREADS, Threads
from raycdc.errors import ClusterLostError

#: Seconds between two checks, and the seconds for which a joined cluster's head may be unreachable. Ray does not
#: restart a head by itself.
POLL_EVERY_S = 0.5
UNREACHABLE_MAX_S = 8.0
_CONNECT_S = 1.0
#: If the run has not begun to end this many seconds after the loss, a call to Ray is stuck.
STUCK_S = 20.0


class RayHead:
    """Monitors Ray for one launcher. `ended` returns the name of a process of this node that has ended, or an empty
    text.

    A `private` Ray was started by this run, and all its processes are on this node.
    """

    def __init__(
        self, address: str, *, private: bool, ended: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.address = address
        self.private = private
        #: Set when the head is lost, and never reset, because a new head at the same address does not know the actors
        #: of this job.
        self.lost: ClusterLostError | None = None
        #: True if the head answered the last check.
        self.answering = True
        self._ended = ended
        self._clock = clock
        self._seen_s = clock()
        self._closed = Event()

    def poll(self) -> None:
        """Raise `ClusterLostError` if the head is lost. Never blocks."""
        if self.lost is not None:
            raise ClusterLostError(self.lost.what, self.lost.advice)

    def watch(
        self,
        on_lost: Callable[[ClusterLostError], None],
        on_stuck: Callable[[ClusterLostError], None],
        threads: Threads = THREADS,
    ) -> None:
        """Check on a separate thread. It calls `on_lost` when the head is lost, and later `on_stuck`.

        `on_stuck` is called if `close` is not called within `STUCK_S` after the loss; it must end the process.
        """

        def run() -> None:
            while self.lost is None:
                if threads.wait(self._closed, POLL_EVERY_S):
                    return
                self.step()
            on_lost(self.lost)
            if not threads.wait(self._closed, STUCK_S):
                on_stuck(self.lost)

        threads.start(run, "ray-head")

    def close(self) -> None:
        """Stop the checks."""
        self._closed.set()

    def step(self) -> None:
        """Check once. Blocks for a second at most."""
        if gone := self._ended():
            self.answering = False
            self.lost = self._error(f"its process {gone} ended" if self.private else f"{gone} of this machine ended")
            return
        if self.private:
            return
        now_s = self._clock()
        self.answering = self._answers()
        if self.answering:
            self._seen_s = now_s
        elif now_s - self._seen_s >= UNREACHABLE_MAX_S:
            self.lost = self._error(f"it has not answered for {UNREACHABLE_MAX_S:g} s")

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
                return True
        except OSError:
            return False

    def _error(self, what: str) -> ClusterLostError:
        first = "" if self.private else 'Start the cluster again ("ray start --head" on its first node). '
        return ClusterLostError(
            f"Ray's head at {self.address} is gone: {what}.",
            f"{first}Nothing that was sealed is lost: run the pipeline again, and it goes on from there.",
        )


class Raylet:
    """An idle connection to the raylet of this node, whose socket is `path`. It ends when the raylet does."""

    def __init__(self, path: str) -> None:
        self._ended_early = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_CONNECT_S)
        try:
            self._socket.connect(path)
            self._socket.settimeout(0)
        except OSError:
            self._ended_early = True

    def ended(self) -> str:
        """Return the raylet's name if it has ended, else an empty text."""
        if not self._ended_early:
            try:
                self._ended_early = not self._socket.recv(1, socket.MSG_PEEK)
            except OSError as error:
                # The raylet sends nothing on this connection while it lives.
                self._ended_early = not isinstance(error, BlockingIOError)
        return "the raylet" if self._ended_early else ""

    def close(self) -> None:
        self._socket.close()


#: The time limit of a raylet's answer. Even on a busy machine a raylet answers much sooner.
ANSWER_S = 5.0
#: The shortest time between two checks of a node during a wait.
ASK_EVERY_S = 3.0
#: The preface of an HTTP/2 client, with empty settings.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000")


def answers(host: str, port: int) -> bool:
    """Return True if a server answers at this address. Blocks for at most `ANSWER_S` per step."""
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
    """Checks nodes, one check per node at a time and with pauses. Called by the supervisor's thread."""

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
        """Start a check without blocking; `take_silent` returns a failure."""
        now_s = self._threads.now_s()
        with self._lock:
            self._again_s = {node: at_s for node, at_s in self._again_s.items() if at_s > now_s}
            if node_id in self._asked or node_id in self._again_s:
                return
            self._asked.add(node_id)
            self._again_s[node_id] = now_s + ASK_EVERY_S
        self._threads.start(lambda: self._wait_for(node_id, host, port), "raylet")

    def take_silent(self) -> set[str]:
        """Return the nodes that did not answer; each is returned once per check."""
        with self._lock:
            silent, self._silent = self._silent, set()
        return silent

    def _wait_for(self, node_id: str, host: str, port: int) -> None:
        there = self._ask(host, port)
        with self._lock:
            self._asked.discard(node_id)
            if not there:
                self._silent.add(node_id)
