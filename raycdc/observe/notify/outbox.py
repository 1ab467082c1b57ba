"""A queue of messages for one receiver: sent in order, retried after pauses, and limited in number.

Each receiver has its own sending thread, so a receiver that hangs does not delay the others. Delivered ids are
remembered in a file next to the state, so that a later run does not send the same event again; if the file is lost, the
event is sent again with the same id.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raycdc.config.sections.notifications import NotifyOptions
from raycdc.errors import StateError
from raycdc.observe.notify.messages import Message
from raycdc.state.files.folder import LocalFolder

#: The maximum number of waiting messages for one receiver. A message has a few hundred bytes, and a run sends few. If
#: so many messages wait, the receiver has been unavailable for long. The oldest messages matter most, so newer ones are
#: dropped.
WAITING_MAX = 1000
#: The number of ids that are remembered per receiver.
SENT_MAX = 2000
#: The pauses between attempts double from the first to the longest.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0

FILE_VERSION = 1
FILE_NAME = "notified.json"


class NotSentError(Exception):
    """Raised if a receiver did not accept a message. The text is the reason, without secrets.

    If `again` is False, a further attempt is useless. `after_s` is the pause that the receiver requested, in seconds.
    """

    def __init__(self, text: str, *, again: bool = True, after_s: float = 0.0) -> None:
        super().__init__(text)
        self.again = again
        self.after_s = after_s


class NotificationReceiver(Protocol):
    """Delivers one message at a time, in one thread."""

    @property
    def name(self) -> str:
        """Return the name of the receiver for people, without secrets."""

    @property
    def key(self) -> str:
        """Return a text that identifies the receiver among those of any configuration, without secrets."""

    def send(self, message: Message) -> None:
        """Send the message. Blocks for the receiver's timeout at most.

        Raises `NotSentError` if the receiver did not accept it.
        """


class OfOptions:
    """The base class of receivers, made from one ``[[notify]]``; subclasses have the method `send`."""

    def __init__(self, options: NotifyOptions) -> None:
        self._options = options
        self._timeout_s = options.timeout.total_seconds()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def name(self) -> str:
        return self._options.receiver

    @property
    def key(self) -> str:
        return self._options.digest


class Sent:
    """The ids of messages that receivers have accepted. Thread-safe.

    They are in a file, which is read at the first use. It is not read earlier, because while a driver waits for the
    state, the present driver may still send messages.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._ids: dict[str, list[str]] = {}
        self._was_read = False

    def __repr__(self) -> str:
        return f"Sent({str(self._path)!r})"

    def has(self, receiver: str, message: str) -> bool:
        if not self._was_read:
            with self._lock:
                self._read()
        return message in self._ids.get(receiver, ())

    def add(self, receiver: str, message: str) -> None:
        """Remember that the receiver has accepted the message.

        An error of the file is ignored, because it causes only a repeated message.
        """
        with self._lock:
            self._read()
            self._ids[receiver] = [*self._ids.get(receiver, ()), message][-SENT_MAX:]
            data = json.dumps({"version": FILE_VERSION, "sent": self._ids}).encode()
            with suppress(StateError):
                LocalFolder(self._path.parent).write(self._path.name, data)

    def _read(self) -> None:
        if self._was_read:
            return
        with suppress(OSError, ValueError, AttributeError, TypeError, KeyError):
            document = json.loads(self._path.read_bytes())
            if document["version"] == FILE_VERSION:
                self._ids = {str(name): [str(one) for one in ids] for name, ids in document["sent"].items()}
        self._was_read = True


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """The seconds for which a message is retried, and for which the end of a run waits for unsent messages."""

    retry_s: float
    end_s: float


class NotificationOutbox:
    """Sends the messages of one receiver, in their order.

    `put` and `close` may be called by any thread. `warn` is called by the outbox's own thread and, at the end, by the
    thread that calls `close`.
    """

    def __init__(
        self,
        receiver: NotificationReceiver,
        limits: DeliveryLimits,
        sent: Sent,
        warn: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._receiver = receiver
        self.limits = limits
        self._sent = sent
        self._warn = warn
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: deque[Message] = deque()
        self._known: set[str] = set()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._dropped = 0

    def __repr__(self) -> str:
        return f"Outbox({self._receiver.name!r}, {len(self._waiting)} waiting)"

    def put(self, message: Message) -> None:
        """Queue a message to send; returns immediately.

        A message that was sent or is waiting is not queued again.
        """
        with self._changed:
            if message.id in self._known or self._sent.has(self._receiver.key, message.id):
                return
            if len(self._waiting) >= WAITING_MAX:
                self._dropped += 1
                return
            self._known.add(message.id)
            self._waiting.append(message)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="notify", daemon=True)
                # If no thread can be started, the next message tries again, and the end of the run reports the waiting
                # ones.
                with suppress(RuntimeError):
                    thread.start()
                    self._thread = thread
            self._changed.notify_all()

    def end(self) -> None:
        """Accept no more messages; the waiting ones are sent immediately, without pauses."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def wait(self, until_s: float) -> None:
        """Wait until all messages were sent or dropped, or until the clock shows `until_s`.

        Then report the unsent ones.
        """
        with self._changed:
            while self._waiting and (left_s := until_s - self._clock()) > 0:
                self._changed.wait(left_s)
            left = [*self._waiting]
            self._waiting.clear()
            dropped = self._dropped
        if left:
            named = ", ".join(dict.fromkeys(message.type for message in left))
            self._warn(
                f"{self._receiver.name} has not taken everything before the end of the run; notifications that are "
                f"dropped: {len(left)} ({named})."
            )
        if dropped:
            self._warn(f"{dropped} notifications to {self._receiver.name} were dropped: {WAITING_MAX} waited already.")

    def _work(self) -> None:
        while (message := self._next()) is not None:
            self._deliver(message)
            with self._changed:
                if self._is_next(message):
                    self._waiting.popleft()
                self._changed.notify_all()

    def _next(self) -> Message | None:
        """Return the next message, which stays in the queue while it is sent; None if no more messages follow."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            return self._waiting[0]

    def _deliver(self, message: Message) -> None:
        """Send the message, with retries; report if it is dropped."""
        began_s, pause_s = self._clock(), FIRST_PAUSE_S
        while True:
            try:
                self._receiver.send(message)
            except NotSentError as refused:
                late = self._clock() - began_s + pause_s > self.limits.retry_s
                if not refused.again or late or not self._pause(max(pause_s, refused.after_s), message):
                    self._give_up(message, str(refused))
                    return
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            except Exception as wrong:  # noqa: BLE001 - of the URL or this machine; its text may be secret
                self._give_up(message, type(wrong).__name__)
                return
            else:
                self._sent.add(self._receiver.key, message.id)
                return

    def _pause(self, seconds: float, message: Message) -> bool:
        """Wait before the next attempt. Return False if the message was removed from the queue meanwhile.

        The end of the run ends the pause. Afterwards there is an attempt each second.
        """
        with self._changed:
            closing = self._closing
            until_s = self._clock() + (FIRST_PAUSE_S if closing else min(seconds, LONGEST_PAUSE_S))
            while self._is_next(message) and self._closing == closing and (left_s := until_s - self._clock()) > 0:
                self._changed.wait(left_s)
            return self._is_next(message)

    def _is_next(self, message: Message) -> bool:
        return bool(self._waiting) and self._waiting[0] is message

    def _give_up(self, message: Message, why: str) -> None:
        with self._changed:
            if not self._is_next(message):
                return  # The end of the run has reported it.
        self._warn(f"The notification {message.type} was not taken by {self._receiver.name}, and is dropped: {why}.")
