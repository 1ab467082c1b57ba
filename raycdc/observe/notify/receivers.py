"""A receiver over HTTP: a signed POST, as Standard Webhooks 1.0.0 says ("Webhook headers", "Signature scheme").

``webhook-signature`` is ``v1,`` and the base64 of HMAC-SHA256 over ``ID.TIMESTAMP.BODY``. Certificates are verified, no
answer is followed elsewhere, and no body of an answer is read. A try has a deadline whatever the server does: at it the
connection is shut, because a timeout of a socket begins anew with every byte.

A receiver that is a program of this machine: no shell, the message as its standard input, and an end to its time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from raycdc.config.sections.notifications import NotifyOptions
from raycdc.observe.notify.messages import Message
from raycdc.observe.notify.outbox import NotSentError, OfOptions

#: Answers of a client's mistake that time may heal: timeout, too early, too many requests (RFC 9110, 8470, 6585).
_LATER = (408, 425, 429)
#: Answers to an address or a signature that was right before, and may be again once it was read anew.
_REFUSED = (401, 403)
#: For so long, in seconds: what was read is still the same, or was something else each time. Later messages, which wait
#: meanwhile, are refused once and dropped, until one is taken.
SAME_FOR_S, REFUSED_FOR_S = 60.0, 300.0
#: How often a connection that is over its time is looked for.
_POLL_S = 0.5


def signature(key: bytes, message_id: str, at_s: int, body: bytes) -> str:
    """The value of ``webhook-signature``."""
    signed = b".".join((message_id.encode(), str(at_s).encode(), body))
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


@dataclass(frozen=True, slots=True)
class _Refused:
    """The receiver takes nothing since `first_s`, and what it refuses now is `texts`, since `since_s`."""

    first_s: float
    since_s: float
    texts: tuple[str, str] = field(repr=False)


class Webhook(OfOptions):
    """A `raycdc.observe.notify.outbox.NotificationReceiver`."""

    def __init__(self, options: NotifyOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(options)
        self._clock = clock
        self._refused: _Refused | None = None

    def send(self, message: Message) -> None:
        """See `Receiver.send`."""
        try:
            options = self._options.now()
        except ValueError:  # its text may show them
            raise NotSentError("its url or secret has become one that cannot be used") from None
        url, body, now_s = urlsplit(options.url.reveal()), message.body(), int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "raycdc",
            "webhook-id": message.id,
            "webhook-timestamp": str(now_s),
        }
        if key := options.key:
            headers["webhook-signature"] = signature(key, message.id, now_s, body)
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        try:
            connection = self._connection(url)
            with closing(connection), _Deadline(connection, self._timeout_s):
                connection.request("POST", target, body, headers)
                with closing(connection.getresponse()) as answer:
                    status, after_s = answer.status, _after_s(answer)
        except TimeoutError:
            raise NotSentError(f"it did not answer within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as cause:
            # Text of HTTP's own errors may quote what the server said; the kind of error says enough.
            text = (cause.strerror or str(cause)) if isinstance(cause, OSError) else type(cause).__name__
            raise NotSentError(f"the connection failed ({text})") from None
        if 200 <= status < 300:
            self._refused = None
            return
        if 300 <= status < 400:
            raise NotSentError(f"it answers with {status}, and no redirect is followed", again=False)
        again = status >= 500 or status in _LATER or (status in _REFUSED and self._may_be_right_later(options))
        raise NotSentError(f"it answers with {status}", again=again, after_s=after_s)

    def _may_be_right_later(self, options: NotifyOptions) -> bool:
        """Whether what was refused just now is in the middle of a change."""
        if not self._options.may_change:
            return False
        now_s, texts, before = self._clock(), (options.url.reveal(), options.secret.reveal()), self._refused
        if before is None:
            before = _Refused(now_s, now_s, texts)
        elif before.texts != texts:
            before = _Refused(before.first_s, now_s, texts)
        self._refused = before
        return now_s - before.since_s < SAME_FOR_S and now_s - before.first_s < REFUSED_FOR_S

    def _connection(self, url: SplitResult) -> http.client.HTTPConnection:
        host, port = url.hostname or "", url.port
        if url.scheme == "http":
            return http.client.HTTPConnection(host, port or 80, timeout=self._timeout_s)
        context = ssl.create_default_context(cafile=self._options.ca)
        return http.client.HTTPSConnection(host, port or 443, timeout=self._timeout_s, context=context)


class _Deadline:
    """Shuts a connection at its deadline, and says that it was so."""

    def __init__(self, connection: http.client.HTTPConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._passed = False
        self._over = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="notify deadline", daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._over.set()
        # Headers that end there look like an answer.
        if self._passed and (error is None or isinstance(error, Exception)):
            raise TimeoutError from error

    def _watch(self) -> None:
        wait_s = self._timeout_s
        while not self._over.wait(wait_s):
            # Again and again: a connection that is being made has no socket yet.
            self._passed, wait_s = True, _POLL_S
            if (connected := self._connection.sock) is not None:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)


def _after_s(answer: http.client.HTTPResponse) -> float:
    """When to come again, where the answer says so in seconds."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0.0


class CommandReceiver(OfOptions):
    """A `raycdc.observe.notify.outbox.NotificationReceiver`. The program is in a session of its own, so that all of it
    can be ended.
    """

    def send(self, message: Message) -> None:
        """See `Receiver.send`. What the program prints goes nowhere: it may print what it likes."""
        environment = {
            **os.environ,
            "RAYCDC_EVENT": message.type,
            "RAYCDC_EVENT_ID": message.id,
            "RAYCDC_PIPELINE": message.pipeline,
        }
        try:
            process = subprocess.Popen(
                self._options.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as cause:
            raise NotSentError(f"it cannot be started ({cause.strerror})") from None
        try:
            process.communicate(message.body(), timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            # It is not reaped yet, so its number is nobody else's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise NotSentError(f"it did not end within {self._timeout_s:g} s, and was killed") from None
        if process.returncode:
            raise NotSentError(f"it ended with exit code {process.returncode}")
