"""The calls of other processes to a coordinator, as coroutines: a waiting call occupies no thread.

An actor with one thread per call has a fixed number of threads, and readers that wait for messages would use all of
them: with 500 readers and 128 threads, heartbeats waited for seconds. Only the actor imports this module, because
asyncio costs a run in one process 30 ms at its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from raycdc.runtime.coordinator.coordinator_host import CoordinatorHost

#: Threads that handle packets. More would only wait for the coordinator's lock.
_PACKETS = 4
#: The number of threads for the driver's calls. Few calls run at a time, and some of them wait for an epoch.
_OTHERS = 16


class CoordinatorCalls:
    """Answers calls as coroutines, which belong to one event loop; see the module's docstring."""

    def __init__(self, host: CoordinatorHost) -> None:
        self._host = host
        self._packets = ThreadPoolExecutor(_PACKETS, thread_name_prefix="packets")
        self._executor = ThreadPoolExecutor(_OTHERS, thread_name_prefix="calls")

    async def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        """Handle an exchange as `raycdc.runtime.reader.coordinator_connection.CoordinatorClient` describes."""
        loop, exchanges, wake = asyncio.get_running_loop(), self._host.exchanges, asyncio.Event()

        def woken() -> None:
            loop.call_soon_threadsafe(wake.set)

        begin = partial(exchanges.begin, subtask_id, incarnation, packet, woken=woken if wait_s > 0 else None)
        answer = await loop.run_in_executor(self._packets, begin)
        if answer is not None:
            return answer
        with suppress(TimeoutError):
            await asyncio.wait_for(wake.wait(), wait_s)
        return await loop.run_in_executor(self._packets, exchanges.end, subtask_id, incarnation, woken)

    async def call(self, act: Callable[[CoordinatorHost], Any]) -> Any:
        """Run any other call, which may block, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, act, self._host)

    def close(self) -> None:
        """Stop the threads; each ends when its call does."""
        self._packets.shutdown(wait=False)
        self._executor.shutdown(wait=False)
