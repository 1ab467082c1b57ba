"""Work that an ended run of this process has left to end by itself: engines whose start was under way.

A run does not wait for what it does not need any more. What it leaves ends as soon as it can; whoever starts the same
in this process waits for that first, and a command's process ends without waiting (`raycdc.cli.entry`), which takes
Ray's and Spark's processes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from threading import Lock
from typing import Any

_lock = Lock()
_left: list[Future[Any]] = []


def leave(work: Future[Any]) -> None:
    """`work` ends by itself. Callable from any thread."""
    with _lock:
        _left.append(work)


def now() -> Sequence[Future[Any]]:
    """What has not ended yet."""
    with _lock:
        _left[:] = [work for work in _left if not work.done()]
        return tuple(_left)


def wait_for(left: Sequence[Future[Any]]) -> None:
    """Return when all of `left` has ended; its errors are nobody's."""
    wait(left)
