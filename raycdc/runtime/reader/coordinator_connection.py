"""A reader's connection to the coordinator: messages out, messages in, and the thread that keeps a long call open.

Messages leave with an exchange of their own (`flush`) as soon as the reader has said something. The receiver's thread
has one call under way at any time, by which the coordinator's messages come without delay.

How a reader reaches the coordinator: one call that carries packets both ways.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from raycdc.source.protocol.link import Link, read_packet
from raycdc.source.protocol.source_event import Message


class CoordinatorClient(Protocol):
    """Blocking calls from any thread. `FencedError`: this incarnation is over. Other errors: try again or give up."""

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        """Deliver `packet` and return the coordinator's, after at most `wait_s` when it has nothing to say now."""


#: The minimal time that a call to the coordinator waits for messages; the maximum is twice as long.
LONG_POLL_S = 2.0
#: Shares of it by which consecutive numbers are as far from each other as can be (the golden ratio).
_SPREAD = 0.618034


def long_poll_s(subtask_id: int) -> float:
    """Return how long a call of this reader waits for messages.

    It differs between readers, because a thousand calls that end at the same time would keep the coordinator busy for a
    second.
    """
    return LONG_POLL_S * (1 + subtask_id * _SPREAD % 1)


class CoordinatorConnection:
    """See the module's docstring. `notify` is called, by any thread, when there are messages or the end came."""

    def __init__(
        self, coordinator: CoordinatorClient, subtask_id: int, link: Link, *, notify: Callable[[], None]
    ) -> None:
        self._coordinator = coordinator
        self._subtask_id = subtask_id
        self._link = link
        self._notify = notify
        self._lock = threading.Lock()
        self._inbox: deque[Message] = deque()
        self._unsent = False
        self._ended: BaseException | str | None = None
        #: When the newest call began that was answered, a monotonic time.
        self.reached_s = -math.inf

    def __repr__(self) -> str:
        return f"CoordinatorConnection({self._link!r}, {len(self._inbox)} in, ended={self._ended!r})"

    def open(self) -> None:
        """Send the queued messages, and start to receive."""
        self._exchange(wait_s=0.0)
        threading.Thread(target=self._receive, name="receiver", daemon=True).start()

    def send(self, message: Message) -> None:
        """Say something; it leaves with the next `flush`, or before."""
        with self._lock:
            self._link.send(message)
            self._unsent = True

    def flush(self) -> None:
        """Send queued messages now. Blocks for the time of a call."""
        if self._unsent:
            self._exchange(wait_s=0.0)

    def take(self) -> list[Message] | None:
        """Return the received messages in order; None if the connection was ended on purpose.

        Otherwise raises the error that ended it, `FencedError` if another incarnation is at work.
        """
        with self._lock:
            messages = list(self._inbox)
            self._inbox.clear()
            ended = self._ended
        if isinstance(ended, BaseException):
            raise ended
        return messages if ended is None else None

    def end(self, why: BaseException | str) -> None:
        """Hear nothing more. Callable from any thread; the first reason counts."""
        with self._lock:
            self._ended = self._ended or why
        self._notify()

    def _exchange(self, *, wait_s: float) -> None:
        began_s = time.monotonic()
        with self._lock:
            packet = self._link.packet()
            self._unsent = False
        answer = self._coordinator.exchange(self._subtask_id, self._link.identity.incarnation, packet, wait_s=wait_s)
        with self._lock:
            messages = self._link.receive(read_packet(answer))
            self.reached_s = max(self.reached_s, began_s)
            self._inbox.extend(messages)
        if messages:
            self._notify()

    def _receive(self) -> None:
        while self._ended is None:
            try:
                self._exchange(wait_s=long_poll_s(self._subtask_id))
            except BaseException as error:  # noqa: BLE001 - raised again by the reader's thread, in `take`
                self.end(error)
                return
