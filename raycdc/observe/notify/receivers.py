"""The receivers: a signed POST over HTTP, as in Standard Webhooks 1.0.0, and a local program.

The POST follows the sections "Webhook headers" and "Signature scheme": ``webhook-signature`` is ``v1,`` and the base64
of HMAC-SHA256 over ``ID.TIMESTAMP.BODY``. Certificates are verified, redirects are not followed, and the body of an
answer is not read. Each try has a deadline, at which the connection is shut down, because a timeout of a socket starts
again with every byte.

The program runs without a shell, with the message as its standard input, and with a time limit.
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

#: Client errors that may disappear with time: timeout, too early, too many requests (RFC 9110, 8470, 6585).
_LATER = (408, 425, 429)
#: Client errors that may disappear after the secrets were read again: the address or the signature may have been
#: changed.
_REFUSED = (401, 403)
#: The seconds after which a message is dropped because the receiver refused all attempts. The first number applies if
#: the secrets did not change, the second if they changed each time. Each later message is then tried only once, until
#: the receiver accepts one.
SAME_FOR_S, REFUSED_FOR_S = 60.0, 300.0
#: Seconds between two checks of a connection against its deadline.
_POLL_S = 0.5


def signature(key: bytes, message_id: str, at_s: int, body: bytes) -> str:
    """Return the value of the header ``webhook-signature``."""
    signed = b".".join((message_id.encode(), str(at_s).encode(), body))
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


@dataclass(frozen=True, slots=True)
class _Refused:
    """A series of refusals.

    The receiver has refused all messages since `first_s`. It has refused them with the present secrets `texts` since
    `since_s`.
    """

    first_s: float
    since_s: float
    texts: tuple[str, str] = field(repr=False)


class Webhook(OfOptions):
    """Sends messages by HTTP POST; a `raycdc.observe.notify.outbox.NotificationReceiver`."""

    def __init__(self, options: NotifyOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(options)
        self._clock = clock
        self._refused: _Refused | None = None

    def send(self, message: Message) -> None:
        """Send the message as `NotificationReceiver.send` describes."""
        try:
            options = self._options.now()
        except ValueError:  # The error's text may show the address or the secret.
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
            # Texts of HTTP errors may quote the server's answer; the kind of error is enough.
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
        """Return True if the refusal may be due to a change of the secret that is not complete yet."""
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
    """Shuts a connection at its deadline, and records that it did."""

    def __init__(self, connection: http.client.HTTPConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._passed = False
        self._over = threading.Event()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="notify deadline", daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._over.set()
        # If the connection was shut within the headers, the library takes them for a complete answer.
        if self._passed and (error is None or isinstance(error, Exception)):
            raise TimeoutError from error

    def _watch(self) -> None:
        wait_s = self._timeout_s
        while not self._over.wait(wait_s):
            # The check is repeated, because a connection that is being opened has no socket yet.
            self._passed, wait_s = True, _POLL_S
            if (connected := self._connection.sock) is not None:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)


def _after_s(answer: http.client.HTTPResponse) -> float:
    """Return the delay of the answer's Retry-After, in seconds."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0.0


class CommandReceiver(OfOptions):
    """Runs a program for each message; a `raycdc.observe.notify.outbox.NotificationReceiver`.

    The program has its own session, so that it can be killed with all its children.
    """

    def send(self, message: Message) -> None:
        """Run the program with the message, as `NotificationReceiver.send` describes.

        The program's output is discarded.
        """
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
            # The process is not reaped yet, so no other process has its id.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise NotSentError(f"it did not end within {self._timeout_s:g} s, and was killed") from None
        if process.returncode:
            raise NotSentError(f"it ended with exit code {process.returncode}")
