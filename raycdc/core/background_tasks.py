"""Background work left by an ended run of this process: engines whose start was in progress.

A run does not wait for engines that it no longer needs. Their start ends as soon as it can; a later run in this process
that starts the same engines waits for that first, and a command's process ends without waiting (`raycdc.cli.entry`),
which ends Ray's and Spark's processes, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from threading import Lock
from typing import Any

_lock = Lock()
_left: list[Future[Any]] = []


def leave(work: Future[Any]) -> None:
    """Keep track of `work`, which the ended run leaves to end by itself. Callable from any thread."""
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
