"""The readers' calls to a coordinator: what each says is handled at once, and an answer may wait for something to say.

A call that waits is a callback in a table, not a thread, and only news for its own reader wake it: with a thousand
readers, each of which has such a call open all the time, neither their number nor one of them costs the others time.
`CoordinatorHost` holds the table; threads of its own process wait by `exchange`, and an actor's coroutines by
`raycdc.runtime.coordinator_calls`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from raycdc.errors import FencedError
from raycdc.source.protocol.live_readers import LiveReaders


class Exchanges:
    """See the module's docstring. `lock` is the coordinator's; `receive` handles a packet with it held, or raises."""

    def __init__(self, lock: threading.Condition, readers: LiveReaders, receive: Callable[[int, bytes], None]) -> None:
        self._lock, self._readers, self._receive = lock, readers, receive
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"Exchanges(waiting={sum(map(len, self._waiting.values()))})"

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        """`raycdc.runtime.client.CoordinatorClient`: the calling thread waits."""
        if wait_s <= 0:
            answer = self.begin(subtask_id, incarnation, packet, woken=None)
            assert answer is not None, "it does not wait"
            return answer
        woken = threading.Event()
        answer = self.begin(subtask_id, incarnation, packet, woken=woken.set)
        if answer is None:
            woken.wait(wait_s)
            answer = self.end(subtask_id, incarnation, woken.set)
        return answer

    def begin(
        self, subtask_id: int, incarnation: int, packet: bytes, *, woken: Callable[[], None] | None
    ) -> bytes | None:
        """Handle the packet, and answer; None where there is nothing to say yet: `woken` is called once there is, by
        any thread with the lock held, and `end` is the caller's to call then, or when it waits no more.
        """
        with self._lock:
            self._receive(subtask_id, packet)
            if woken is None or self._closed or self._readers.has_outgoing(subtask_id):
                return self._answer(subtask_id, incarnation)
            self._waiting.setdefault(subtask_id, []).append(woken)
            return None

    def end(self, subtask_id: int, incarnation: int, woken: Callable[[], None]) -> bytes:
        """The answer to a call that waited, whatever there is to say now. `FencedError`: its sender was replaced."""
        with self._lock:
            waiting = self._waiting.get(subtask_id, [])
            if woken in waiting:
                waiting.remove(woken)
            if not waiting:
                self._waiting.pop(subtask_id, None)
            return self._answer(subtask_id, incarnation)

    def wake(self) -> None:
        """Something happened: wake those who are told of it. Called with the lock held."""
        for subtask_id in self._readers.take_told():
            for woken in self._waiting.pop(subtask_id, ()):
                woken()

    def close(self) -> None:
        """Nobody is told anything any more: wake all. Called with the lock held."""
        self._closed = True
        self.wake_all()

    def wake_all(self) -> None:
        """There is news for everybody. Called with the lock held."""
        waiting, self._waiting = self._waiting, {}
        for calls in waiting.values():
            for woken in calls:
                woken()

    def _answer(self, subtask_id: int, incarnation: int) -> bytes:
        answer = self._readers.outgoing(subtask_id, incarnation)
        if answer is None:
            raise FencedError(f"Reader {subtask_id}.{incarnation} was replaced.")
        return answer
