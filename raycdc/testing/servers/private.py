"""The base of every private server: a process and a temporary folder that live as long as their owner.

*Invariant*: a server listens on 127.0.0.1 alone, keeps all its files in one temporary folder, and both are gone when
the object is closed or its process ends. Data survives ``stop``/``kill`` followed by ``start``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from raycdc.testing.servers.process import GuardedProcess, ServerError, free_port, log_tail, wait_until

_START_TRIES = 3
#: Of a folder's path, so that sockets in it have a name that the kernel takes: it keeps 108 bytes (unix(7)).
_PATH_MAX = 85


class PrivateServer(ABC):
    """``with Server() as server:`` starts it and removes it with its files."""

    flavor: ClassVar[str]
    #: What the server says of a port that another process has.
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
        """Process id of the running server."""
        if self._process is None or not self._process.running:
            raise ServerError(f"{self!r} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self._process is not None and self._process.running

    @abstractmethod
    def prepare(self) -> None:
        """Download and initialise whatever a start needs, once per machine. May take a minute; later calls are free."""

    def start(self) -> Self:
        """Start (again) on the same ports, and on the same data where it keeps any; returns when the server answers."""
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
        """Those it has not had yet."""
        self.port = self.port or free_port()

    def _forget_ports(self) -> None:
        self.port = 0

    def _listens(self) -> bool:
        """Whether somebody takes connections at `port`."""
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
        """Start the process and return once it is ready. It prints to the last of `logs`; the ends of all are told
        where it ends or is not ready in time. Output of an earlier run does not count for this one.
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
    """A new temporary folder, where ``TMPDIR`` says, unless sockets could not be there."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    if len(os.fsencode(folder)) <= _PATH_MAX:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
