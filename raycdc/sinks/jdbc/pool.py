"""A pool of this process's idle connections to target databases.

Opening a connection costs the server's check of the password and, with ADBC, reading its catalogue. This takes a tenth
of a second, which is more than most epochs of a table take. Used by `postgres` on the driver and in the processes that
run tasks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any

#: The number of idle connections kept per database: as many as the epoch loop's threads and a stage use concurrently.
IDLE_MAX = 8

_lock = threading.Lock()
_idle: dict[tuple[int, Hashable], list[Any]] = {}


def take(key: Hashable, *, alive: Callable[[Any], bool]) -> Any:
    """Return an idle connection that is `alive`, or None. It belongs to the caller until it is given back."""
    while True:
        with _lock:
            # A forked child must not use its parent's connections.
            found = _idle.get((os.getpid(), key))
            if not found:
                return None
            connection = found.pop()
        if alive(connection):
            return connection


def give_back(key: Hashable, connection: Any) -> bool:
    """Keep `connection`, which must not be in a transaction.

    Returns False if there are enough, and the caller should close it.
    """
    with _lock:
        kept = _idle.setdefault((os.getpid(), key), [])
        if len(kept) >= IDLE_MAX:
            return False
        kept.append(connection)
        return True


def drain(key: Hashable) -> list[Any]:
    """Return all idle connections, which the caller closes."""
    with _lock:
        return _idle.pop((os.getpid(), key), [])
