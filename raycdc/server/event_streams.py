"""Sends the events of a run over HTTP: each follower has its own limited queue, and none delays the run."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable

from raycdc.core.terminal_text import printable_json
from raycdc.observe.events import RunEvent, event_to_json

#: The maximum number of concurrent followers.
FOLLOWERS_MAX = 16
#: The maximum number of waiting events of a follower; a slower follower is disconnected, and may connect again.
BACKLOG_MAX = 1000
#: Seconds between two comments that test the connection; the authorization is checked as often.
KEEPALIVE_S = 5.0


class EventHub:
    """Sends events to followers.

    `notify` may be called by any thread and does not block; `follow` runs in the server's event loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: dict[asyncio.Queue[bytes | None], asyncio.AbstractEventLoop] = {}

    def __repr__(self) -> str:
        return f"EventHub({len(self._followers)} followers)"

    def notify(self, event: RunEvent) -> None:
        """Send the event to all followers."""
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
        """Yield server-sent events, until the follower disconnects, is too slow, or `authorization` returns False."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        with self._lock:
            self._followers[queue] = asyncio.get_running_loop()
        try:
            yield b": raycdc\n\n"
            while True:
                try:
                    line = await asyncio.wait_for(queue.get(), KEEPALIVE_S)
                except TimeoutError:
                    line = b":\n\n"
                if line is None or not authorization():
                    return
                yield line
        finally:
            with self._lock:
                self._followers.pop(queue, None)

    def _put(self, queue: asyncio.Queue[bytes | None], line: bytes) -> None:
        if queue.qsize() >= BACKLOG_MAX:
            with self._lock:
                self._followers.pop(queue, None)
            queue.put_nowait(None)
        else:
            queue.put_nowait(line)
