"""Starting, watching and ending one server process; free ports; and the errors that show the server's own log.

Called by `server.DatabaseServer`. *Invariant*: no server outlives the process that started it (see `guard`).
"""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, Signals

from raycdc.errors import RaycdcError

_LOG_LINES = 20
_POLL_S = 0.02
_names = itertools.count(1)


class ServerError(RaycdcError):
    """A test server could not be installed, started or stopped; the text ends with the tail of its log."""


def fresh_name(prefix: str) -> str:
    """A name that no other call on this machine returns, for a database, topic or folder of any server.

    One row of numbers for all kinds: a sink names its database after its source's, and must not meet one of its own.
    """
    return f"{prefix}{os.getpid()}_{next(_names)}"


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def held_port() -> Iterator[int]:
    """A free TCP port of the loopback interface, which the kernel gives to nobody else while the block runs. Whoever
    asks for it by its number and with ``SO_REUSEADDR`` gets it, again and again: a socket that is bound and does not
    listen keeps it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Poll `condition` until it holds; `ServerError` naming `what` when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(_POLL_S)


def log_tail(path: Path) -> str:
    """The last lines of a log file, or a word that there is none."""
    if not path.exists():
        return f"({path} was not written)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-_LOG_LINES:])


class GuardedProcess:
    """A running server under its guard. Not restartable: a new start is a new object."""

    def __init__(
        self, command: Sequence[str], *, log: Path, folder: Path | None, environment: Mapping[str, str] | None = None
    ) -> None:
        guard = Path(__file__).with_name("guard.py")
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", str(guard), str(folder) if folder else "-", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        assert self._guard.stdout is not None
        first = self._guard.stdout.readline().strip()
        if not first:
            raise ServerError(f"{command[0]} could not be started:\n{log_tail(log)}")
        self.pid = int(first)

    @property
    def running(self) -> bool:
        """Whether the server process still lives (a stopped, SIGSTOPped one does)."""
        return self._guard.poll() is None

    def send(self, number: Signals) -> None:
        """Send a signal to the server, if it still lives."""
        if self.running:
            os.kill(self.pid, number)

    def end(self, number: Signals, *, timeout_s: float = 30.0) -> None:
        """Send `number`, wait for the end, and release the guard. SIGKILL follows when it takes too long."""
        self.send(number)
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(SIGKILL)
            self._guard.wait(timeout_s)
        for stream in (self._guard.stdin, self._guard.stdout):
            if stream is not None:
                stream.close()
