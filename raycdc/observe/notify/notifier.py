"""The notifications of one run: turns its events into messages, and gives these to the receivers (`outbox`)."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from raycdc.config import PipelineConfig
from raycdc.config.sections.notifications import NotificationKind, NotifyOptions
from raycdc.errors import ExitCode, RaycdcError
from raycdc.observe.events import CaughtUp, Failed, RunEvent, Started, Stopped
from raycdc.observe.notify.event_filter import EventFilter, PipelineInfo
from raycdc.observe.notify.messages import Message, TestNotification, message_id
from raycdc.observe.notify.outbox import FILE_NAME, DeliveryLimits, NotificationOutbox, NotificationReceiver, Sent
from raycdc.observe.notify.receivers import CommandReceiver, Webhook
from raycdc.observe.status import StatusKeeper
from raycdc.state.location import state_of

#: Seconds between two queries of the source's log retention, if a receiver wants it. In the first minute, queries are
#: more frequent until one has an answer: before the first epoch there is no position, and so no answer.
RETENTION_EVERY_S = 60.0
FIRST_RETENTION_EVERY_S = 5.0
#: Seconds to deliver messages when Ray is lost. After about this time Ray ends the process itself, with a different
#: exit code.
AT_ONCE_S = 1.0


def receiver_of(options: NotifyOptions) -> NotificationReceiver:
    """Return the receiver that one ``[[notify]]`` describes."""
    return CommandReceiver(options) if options.type == "command" else Webhook(options)


def test_message(pipeline: str) -> Message:
    """Return a message that only tests the delivery."""
    host, now_ms = socket.gethostname(), _now_ms()
    text = f"{pipeline}: this is a test of notifications; nothing happened"
    return Message(
        message_id(pipeline, host, now_ms, os.getpid()), None, now_ms, pipeline, host, text, TestNotification()
    )


@dataclass(frozen=True, slots=True)
class _Addressee:
    """A receiver of a run, with the kinds of events that it wants."""

    wants: frozenset[NotificationKind]
    outbox: NotificationOutbox


class Notifier:
    """Sends the messages of one run. `listen` and `open` are called by the run's threads, one at a time.

    `ended` or `failed` is called once, at the end of the run, and waits for the longest `end_wait` at most. `warning`
    is called for undelivered messages.
    """

    def __init__(self, config: PipelineConfig, keeper: StatusKeeper) -> None:
        self._keeper = keeper
        self._lock = threading.Lock()
        self._warning: Callable[[str], None] = lambda _: None
        self._log_kept_s: Callable[[], float | None] = lambda: None
        location = state_of(config)
        host = socket.gethostname()
        run = f"{host} {os.getpid()} {time.time_ns()}"
        self._filter = EventFilter(PipelineInfo(config.pipeline.name, str(location), host, run))
        self._closed = threading.Event()
        self._watches = False
        sent = Sent(location.work / FILE_NAME) if config.notifications else None
        self._addressees = [] if sent is None else [self._addressee(each, sent) for each in config.notifications]

    def __repr__(self) -> str:
        return f"Notifier({self._addressees})"

    def open(self, warning: Callable[[str], None], log_kept_s: Callable[[], float | None]) -> None:
        """Prepare for the first event. `log_kept_s` returns how long the source keeps its unread log."""
        self._warning = warning
        self._log_kept_s = log_kept_s

    def listen(self, event: RunEvent) -> None:
        """Handle an event of the run; returns immediately."""
        if self._addressees:
            with self._lock:
                self._put(self._filter.heard(event, self._keeper.status, now_s=time.monotonic(), at_ms=_now_ms()))
            if isinstance(event, Started):
                self._watch()

    def ended(self, *, stopped: bool) -> None:
        """Send the end of a successful run, `stopped` or finished, and wait for the delivery of all messages."""
        if self._addressees:
            with self._lock:
                end = Stopped() if stopped else CaughtUp()
                self._put(self._filter.heard(end, self._keeper.status, now_s=time.monotonic(), at_ms=_now_ms()))
        self._close(float("inf"))

    def failed_at_once(self, error: RaycdcError) -> None:
        """Send that the run ends with `error`, and wait for at most one second, because the process ends
        then anyway.
        """
        self.failed(error, wait_s=AT_ONCE_S)

    def failed(self, error: BaseException, *, wait_s: float = float("inf")) -> None:
        """Send that the run ends with `error`. An interrupt is not reported and does not wait."""
        if not isinstance(error, Exception):
            self._close(0.0)
            return
        code = error.exit_code if isinstance(error, RaycdcError) else ExitCode.BUG
        if self._addressees and not self._closed.is_set():
            with self._lock:
                self._put(self._filter.ended(Failed.of(error), int(code), self._keeper.status, at_ms=_now_ms()))
        self._close(wait_s)

    def _close(self, wait_s: float) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        began_s = time.monotonic()
        for each in self._addressees:
            each.outbox.end()
        for each in self._addressees:
            each.outbox.wait(began_s + min(wait_s, each.outbox.limits.end_s))

    def _addressee(self, options: NotifyOptions, sent: Sent) -> _Addressee:
        limits = DeliveryLimits(options.retry_for.total_seconds(), options.end_wait.total_seconds())
        outbox = NotificationOutbox(receiver_of(options), limits, sent, self._warn)
        return _Addressee(frozenset(options.on or NotificationKind), outbox)

    def _warn(self, text: str) -> None:
        self._warning(text)

    def _put(self, messages: Iterable[Message]) -> None:
        for message in messages:
            for each in self._addressees:
                if message.happening in each.wants:
                    each.outbox.put(message)

    def _watch(self) -> None:
        """Watch the retention of the source's log in the background, if a receiver wants it."""
        if self._watches or not any(NotificationKind.RETENTION_AT_RISK in each.wants for each in self._addressees):
            return
        self._watches = True

        def watch() -> None:
            first_s, kept_s = RETENTION_EVERY_S, None
            while True:
                # An unavailable source is reported by the readers.
                with suppress(RaycdcError):
                    kept_s = self._log_kept_s()
                    with self._lock:
                        self._put(self._filter.retention(kept_s, at_ms=_now_ms()))
                pause_s = FIRST_RETENTION_EVERY_S if kept_s is None and first_s > 0 else RETENTION_EVERY_S
                first_s -= pause_s
                if self._closed.wait(pause_s):
                    return

        # If no thread can be started, the run continues without this check.
        with suppress(RuntimeError):
            threading.Thread(target=watch, name="notify room", daemon=True).start()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
