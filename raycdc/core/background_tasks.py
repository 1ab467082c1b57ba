"""Background work left by an ended run of this process: engines whose start was in progress.

A run does not wait for engines that it no longer needs: their start continues in the background until it can be
aborted. A later run in this process waits for that before it starts the same engines. A command's process does not wait
(`raycdc.cli.entry`); its end also ends the processes of Ray and Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from threading import Lock
from typing import Any

_lock = Lock()
_left: list[Future[Any]] = []


def leave(work: Future[Any]) -> None:
    """Register `work`, which ends by itself after the run. Callable from any thread."""
    with _lock:
        _left.append(work)


def now() -> Sequence[Future[Any]]:
    """Return the work of ended runs that has not ended yet."""
    with _lock:
        _left[:] = [work for work in _left if not work.done()]
        return tuple(_left)


def wait_for(left: Sequence[Future[Any]]) -> None:
    """Wait until all work in `left` has ended. Its errors are ignored."""
    wait(left)
