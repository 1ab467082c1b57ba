"""The base of every private server: a process and a temporary folder that live as long as their owner.

*Invariant*: a server listens only on 127.0.0.1 and has all files in one temporary folder. Process and folder are
removed when the object is closed or its process ends. Data survives ``stop``/``kill`` followed by ``start``.

The module starts, watches and ends one server process, finds free ports, unpacks archives of server binaries, and
raises errors that show the server's own log. *Invariant*: no server outlives the process that started it (see `guard`).
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, Signals
from typing import IO, ClassVar, Literal, Self

from raycdc.errors import RaycdcError

_LOG_LINES = 20
_POLL_S = 0.02
_names = itertools.count(1)


class ServerError(RaycdcError):
    """A test server could not be installed, started or stopped; the text ends with the tail of its log."""


def fresh_name(prefix: str) -> str:
    """Return a name that no other call on this machine returns, for a database, topic or folder of any server.

    All kinds of servers share one sequence of numbers, because a sink names its database after that of its source, and
    the name must not exist yet.
    """
    return f"{prefix}{os.getpid()}_{next(_names)}"


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def held_port() -> Iterator[int]:
    """Yield a free TCP port of the loopback interface, which the kernel gives to no other process during the block.

    A server can still bind it by its number with ``SO_REUSEADDR``, repeatedly: the socket that reserves it is bound but
    does not listen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Poll `condition` until it returns True. Raises `ServerError` with `what` if it does not do so in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"{what} did not happen within {timeout_s:g} s")
        time.sleep(_POLL_S)


def log_tail(path: Path) -> str:
    """Return the last lines of a log file, or a note that there is none."""
    if not path.exists():
        return f"({path} was not written)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-_LOG_LINES:])


class GuardedProcess:
    """A running server with its guard. It cannot be restarted: a new start needs a new object."""

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
        """Return True if the server process still exists, even if it is stopped by SIGSTOP."""
        return self._guard.poll() is None

    def send(self, number: Signals) -> None:
        """Send a signal to the server, if it still lives."""
        if self.running:
            os.kill(self.pid, number)

    def end(self, number: Signals, *, timeout_s: float = 30.0) -> None:
        """Send the signal `number`, wait for the end, and release the guard. If it takes too long, SIGKILL follows."""
        self.send(number)
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(SIGKILL)
            self._guard.wait(timeout_s)
        for stream in (self._guard.stdin, self._guard.stdout):
            if stream is not None:
                stream.close()


_START_TRIES = 3
#: The maximum length of a folder's path, so that sockets in it have a valid name: the kernel allows 108 bytes
#: (unix(7)).
_PATH_MAX = 85


class PrivateServer(ABC):
    """A private server. ``with Server() as server:`` starts it, and removes it with its files."""

    flavor: ClassVar[str]
    #: The server's message about a port that another process uses.
    taken: ClassVar[str] = "Address already in use"
    host = "127.0.0.1"

    def __init__(self, *, port: int | None = None) -> None:
        self.folder = _new_folder(f"raycdc-{self.flavor}-")
        self._fixed_port = port
        self.port = port or 0
        self._process: GuardedProcess | None = None
        self._owner_pid = os.getpid()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process and self._process.running else "stopped"
        return f"{type(self).__name__}({self.host}:{self.port}, {state}, {self.folder})"

    @property
    def pid(self) -> int:
        """Return the process id of the running server."""
        if self._process is None or not self._process.running:
            raise ServerError(f"{self!r} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return True if the server's process lives."""
        return self._process is not None and self._process.running

    @abstractmethod
    def prepare(self) -> None:
        """Download and initialise what a start needs, once per machine. May take a minute; later calls are free."""

    def start(self) -> Self:
        """Start the server (again) on the same ports and data; returns when it answers.

        A server that keeps its data in memory starts empty.
        """
        if self.running:
            return self
        for attempt in range(1, _START_TRIES + 1):
            self._choose_ports()
            try:
                self._launch()
            except ServerError as error:
                if self.taken not in str(error) or self._fixed_port is not None or attempt == _START_TRIES:
                    raise
                # Another process was quicker to bind a free port.
                self._forget_ports()
            else:
                break
        return self

    def stop(self) -> None:
        """Shut down in order (SIGTERM); the data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End with SIGKILL, as a crash does; the data stays, and `start` recovers it."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """Kill the server and remove its files. May be called more than once."""
        self._end(signal.SIGKILL)
        if self.folder.exists() and os.getpid() == self._owner_pid:
            shutil.rmtree(self.folder)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.end(number)
            self._process = None

    @abstractmethod
    def _launch(self) -> None:
        """Run the server (`_run`) on its ports."""

    def _choose_ports(self) -> None:
        """Choose ports that the server did not use before."""
        self.port = self.port or free_port()

    def _forget_ports(self) -> None:
        self.port = 0

    def _listens(self) -> bool:
        """Return True if a server accepts connections at `port`."""
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def _run(
        self,
        command: Sequence[str],
        is_ready: Callable[[], bool],
        *,
        name: str,
        logs: Sequence[Path],
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the process and return when it is ready.

        The process prints to the last of `logs`. If it ends or is not ready in time, the error contains the ends of all
        logs. Output of an earlier run does not count.
        """
        for log in logs:
            log.unlink(missing_ok=True)
        process = GuardedProcess(command, log=logs[-1], folder=self.folder, environment=environment)
        self._process = process
        try:
            wait_until(lambda: not process.running or is_ready(), timeout_s=timeout_s, what=f"start of {name}")
            if not process.running:
                raise ServerError(f"{name} ended at its start")
        except ServerError as error:
            self.kill()
            raise ServerError("\n".join([f"{error}:", *map(log_tail, logs)])) from error


def _new_folder(prefix: str) -> Path:
    """Return a new temporary folder in ``TMPDIR``, unless its path is too long for sockets."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if len(os.fsencode(folder)) <= _PATH_MAX:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))


def unpack_tar(packed: IO[bytes], folder: Path, *, compression: Literal["gz", "xz"]) -> None:
    """Unpack a compressed tar archive into `folder`, with the modes and links of its files."""
    mode: Literal["r|gz", "r|xz"] = "r|gz" if compression == "gz" else "r|xz"
    archive = tarfile.open(fileobj=packed, mode=mode)  # noqa: SIM115
    # Debian 12's Python is older than the filters.
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
    archive.close()
