"""A pool of this process's idle connections to target databases.

Opening one costs a server's password check and, with ADBC, a read of its catalogue: a tenth of a second, more than most
epochs of a table take. Used by `postgres` on the driver and in the processes that run tasks.
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
    """An idle connection that is `alive`, or None. It belongs to the caller until it is given back."""
    while True:
        with _lock:
            # A child of this process must not use its connections.
            found = _idle.get((os.getpid(), key))
            if not found:
                return None
            connection = found.pop()
        if alive(connection):
            return connection


def give_back(key: Hashable, connection: Any) -> bool:
    """Keep `connection`, which is not in a transaction; False when there are enough and the caller should close it."""
    with _lock:
        kept = _idle.setdefault((os.getpid(), key), [])
        if len(kept) >= IDLE_MAX:
            return False
        kept.append(connection)
        return True


def drain(key: Hashable) -> list[Any]:
    """All idle connections, for the caller to close."""
    with _lock:
        return _idle.pop((os.getpid(), key), [])
