"""Sends the events of a run over HTTP: each follower has its own limited queue, and none delays the run."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable

from raycdc.core.terminal_text import printable_json
from raycdc.observe.events import RunEvent, event_to_json

#: The limit of concurrent followers.
FOLLOWERS_MAX = 16
#: The longest backlog of a follower; a slower one is disconnected, and may connect again.
BEHIND_MAX = 1000
#: How often a comment is sent to test the connection; the authorization is checked as often.
BREATH_S = 5.0


class EventHub:
    """`notify` is for any thread and returns at once; `follow` is for the door's loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[asyncio.Queue[bytes | None], asyncio.AbstractEventLoop] = {}

    def __repr__(self) -> str:
        return f"EventHub({len(self._followers)} followers)"

    def notify(self, event: RunEvent) -> None:
        """Pass the event on to everybody who follows."""
        if not self._followers:
            return
        document = event_to_json(event)
        text = printable_json(json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=str))
        line = f"event: {document['event']}\ndata: {text}\n\n".encode()
        with self._lock:
            followers = list(self._followers.items())
        for queue, loop in followers:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._put, queue, line)

    @property
    def full(self) -> bool:
        """Return True if no more followers can be added."""
        return len(self._followers) >= FOLLOWERS_MAX

    async def follow(self, authorization: Callable[[], bool] = lambda: True) -> AsyncIterator[bytes]:
        """Lines as server-sent events, until the follower goes, is too slow, or is not `authorization`."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        with self._lock:
            self._followers[queue] = asyncio.get_running_loop()
        try:
            yield b": raycdc\n\n"
            while True:
                try:
                    line = await asyncio.wait_for(queue.get(), BREATH_S)
                except TimeoutError:
                    line = b":\n\n"
                if line is None or not authorization():
                    return
                yield line
        finally:
            with self._lock:
                self._followers.pop(queue, None)

    def _put(self, queue: asyncio.Queue[bytes | None], line: bytes) -> None:
        if queue.qsize() >= BEHIND_MAX:
            with self._lock:
                self._followers.pop(queue, None)
            queue.put_nowait(None)
        else:
            queue.put_nowait(line)
