"""The start of a JVM, which another thread may cancel, so that a run that ends need not wait for the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from threading import Lock
from typing import Any

#: A shell adds this number to the signal that ended a process.
_BY_SIGNAL = 128


class JvmStart:
    """The start of a JVM, which another thread may cancel."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._starts = Lock()
        self._process: Popen[Any] | None = None
        self._broken_off = False

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Hold off `break_off` during the block, which starts the process and waits until it is up.

        Raises `RuntimeError` if the start was already cancelled.
        """
        with self._starts:
            if self._broken_off:
                raise RuntimeError("the start of Spark was broken off")
            yield

    def started(self, process: Popen[Any]) -> None:
        """Note the started process, and kill it if the start was cancelled."""
        with self._lock:
            self._process = process
            if self._broken_off:
                process.kill()

    @property
    def was_killed(self) -> bool:
        """Return True if a signal ended the process, for example because the machine had no memory left."""
        with self._lock:
            code = None if self._process is None else self._process.poll()
        return code is not None and (code < 0 or code > _BY_SIGNAL)

    def break_off(self) -> None:
        """Cancel the start: kill the process, and wait until the block of `under_way` has ended."""
        with self._lock:
            self._broken_off = True
            if self._process is not None:
                self._process.kill()
        with self._starts:
            return
