"""A reader's connection to the coordinator: sends and receives messages, and keeps a long call open in a thread.

There is one kind of call to the coordinator, an *exchange*, which carries a packet in both directions. When the reader
has queued messages, `flush` sends them in an exchange of their own. The receiver's thread always has another exchange
open, so that the coordinator's messages arrive without delay.
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
    """Makes blocking calls to the coordinator, from any thread.

    `FencedError` means that this incarnation was replaced. After other errors the caller retries or gives up.
    """

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        """Deliver `packet`, and return the coordinator's packet.

        If the coordinator has no messages, wait for them for at most `wait_s`.
        """


#: The minimum time that a call to the coordinator waits for messages; the maximum is twice as long.
LONG_POLL_S = 2.0
#: The golden ratio. Its multiples by consecutive numbers, without their whole parts, are spread as evenly as possible.
_SPREAD = 0.618034


def long_poll_s(subtask_id: int) -> float:
    """Return the seconds for which a call of this reader waits for messages.

    The time differs between readers, because a thousand calls that end at the same time would keep the coordinator busy
    for a second.
    """
    return LONG_POLL_S * (1 + subtask_id * _SPREAD % 1)


class CoordinatorConnection:
    """The connection of one reader; see the module's docstring.

    `notify` is called, by any thread, when there are messages or the connection has ended.
    """

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
        #: The start of the newest call that was answered, in monotonic time.
        self.reached_s = -math.inf

    def __repr__(self) -> str:
        return f"CoordinatorConnection({self._link!r}, {len(self._inbox)} in, ended={self._ended!r})"

    def open(self) -> None:
        """Send the queued messages, and start to receive."""
        self._exchange(wait_s=0.0)
        threading.Thread(target=self._receive, name="receiver", daemon=True).start()

    def send(self, message: Message) -> None:
        """Queue a message; it leaves with the next `flush`, or earlier."""
        with self._lock:
            self._link.send(message)
            self._unsent = True

    def flush(self) -> None:
        """Send queued messages now. Blocks for the time of a call."""
        if self._unsent:
            self._exchange(wait_s=0.0)

    def take(self) -> list[Message] | None:
        """Return the received messages in order; None if `end` ended the connection without an error.

        Otherwise raises the error that ended the connection: `FencedError` if the reader was replaced.
        """
        with self._lock:
            messages = list(self._inbox)
            self._inbox.clear()
            ended = self._ended
        if isinstance(ended, BaseException):
            raise ended
        return messages if ended is None else None

    def end(self, why: BaseException | str) -> None:
        """Receive no more messages. Any thread may call it; the first reason counts."""
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
