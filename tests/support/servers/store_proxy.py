"""A proxy between clients and a server of the S3 API: it serialises writes of a key, and fails as a test demands.

*Why*: S3 decides each conditional put in one step. The servers of the tests look first and write then, so that several
of racing clients win. Behind this proxy all requests that change one key come one after the other.

*Faults* are rules that a test hands over (`StoreProxy.play`). Each names the requests that it is for, and is used up
after so many; the first rule that fits a request is played.

It runs in threads of the process that made it. Of that process some calls of delta-rs must go past it, because they
keep all threads waiting while they ask the store (deltalake 1.6: `restore`, `history`, `is_deltatable`, and
`set_table_properties` of ``alter``): the answer would never come.
"""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self, assert_never
from urllib.parse import unquote, urlsplit

from raycdc.sandbox.servers.s3 import S3Server

_TIMEOUT_S = 120.0
#: Seconds until the end of a test is noticed.
_POLL_S = 0.02
#: Headers that concern only one of the two connections.
_OF_A_CONNECTION = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})

_CONDITIONS = frozenset({"if-match", "if-none-match"})


class Fault(Enum):
    """The kinds of failures of a request."""

    LOST_REPLY = "the server did it, the client's connection ends without a word"
    LOST_REQUEST = "the server never hears of it, the client's connection ends without a word"
    DONE_BUT_FAILED = "the server did it, the client hears 500"
    CONFLICT = "409 ConditionalRequestConflict, nothing was done"
    LOST_RACE = "412 PreconditionFailed, nothing was done"
    ERROR = "500 InternalError, nothing was done"
    SLOW_DOWN = "503 SlowDown, nothing was done"
    DENIED = "403 AccessDenied, nothing was done"
    LATE = "it is done after a delay"
    OVERWRITES = "it is done whatever is there: the server knows no conditions"


_ANSWERS = {
    Fault.CONFLICT: (409, "ConditionalRequestConflict"),
    Fault.LOST_RACE: (412, "PreconditionFailed"),
    Fault.ERROR: (500, "InternalError"),
    Fault.DONE_BUT_FAILED: (500, "InternalError"),
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.DENIED: (403, "AccessDenied"),
}


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A request. `path` is ``/BUCKET/KEY``, decoded; `status` is what the client received, 0 for nothing."""

    method: str
    path: str
    query: str
    conditional: bool
    status: int


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


@dataclass(slots=True)
class Rule:
    """Play `fault` for `times` requests that fit, the first `skip` of them not counted.

    `path` is a regular expression that is searched in the path, `conditional` means only those with If-Match or
    If-None-Match. `delay_s` is that of `LATE`. `played` says how many were.
    """

    fault: Fault
    method: str = "PUT"
    path: str = ""
    conditional: bool = False
    times: int = 1
    skip: int = 0
    delay_s: float = 0.0
    played: int = 0

    def takes(self, method: str, path: str, *, conditional: bool) -> bool:
        """Return True if the rule applies to this request, and count it. Called under the proxy's lock."""
        fits = method == self.method and re.search(self.path, path) and (conditional or not self.conditional)
        if not fits or self.played == self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.played += 1
        return True


class StoreProxy(S3Server):
    """``with StoreProxy(moto) as store:``; clients use `store.endpoint`. Without `serialised` it only plays faults."""

    host = "127.0.0.1"

    def __init__(self, server: S3Server, *, serialised: bool = True) -> None:
        self.server = server
        self.serialised = serialised
        #: The only accepted access key; empty: every key is accepted.
        self.is_authorized = ""
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._seen: list[StoreRequest] = []
        self._of_key: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._http = _Listening((self.host, 0), self)
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": _POLL_S}, name="store-proxy", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._http.hang_up()
        self._thread.join()

    @contextmanager
    def play(self, *rules: Rule) -> Iterator[Sequence[Rule]]:
        """Apply `rules` until the block ends."""
        with self._lock:
            self._rules.extend(rules)
        try:
            yield rules
        finally:
            with self._lock:
                self._rules = [rule for rule in self._rules if all(rule is not one for one in rules)]

    @property
    def seen(self) -> list[StoreRequest]:
        """Return all requests so far, in the order of their ends."""
        with self._lock:
            return list(self._seen)

    # -- called by the threads of connections

    def fault_for(self, method: str, path: str, *, conditional: bool) -> Rule | None:
        """Return the rule that applies to a request."""
        with self._lock:
            return next((rule for rule in self._rules if rule.takes(method, path, conditional=conditional)), None)

    def note(self, request: StoreRequest) -> None:
        """Remember a request that has ended."""
        with self._lock:
            self._seen.append(request)

    @contextmanager
    def turn(self, method: str, path: str) -> Iterator[None]:
        """Hold the key of a request that changes it."""
        if method in {"GET", "HEAD"} or not self.serialised:
            yield
            return
        with self._lock:
            lock = self._of_key[path]
        with lock:
            yield


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], proxy: StoreProxy) -> None:
        super().__init__(address, _Connection)
        self.proxy = proxy
        self._open: set[socket.socket] = set()

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open.discard(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that hung up."""

    def hang_up(self) -> None:
        """End open connections: clients keep them for the next request."""
        for connection in list(self._open):
            _hang_up(connection)


class _Connection(BaseHTTPRequestHandler):
    """A client's connection, and one to the server for it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listening

    def setup(self) -> None:
        super().setup()
        behind = self.server.proxy.server
        self._behind = http.client.HTTPConnection(behind.host, behind.port, timeout=_TIMEOUT_S)

    def finish(self) -> None:
        self._behind.close()
        super().finish()

    def log_message(self, *_: object) -> None:
        """Print nothing; tests use `StoreProxy.seen`."""

    def _serve(self) -> None:
        body = self._body()
        proxy, target = self.server.proxy, urlsplit(self.path)
        path = unquote(target.path)
        conditional = any(self.headers.get(name) is not None for name in _CONDITIONS)
        if proxy.is_authorized and f"Credential={proxy.is_authorized}/" not in self.headers.get("Authorization", ""):
            reply: _Reply | None = _failed(403, "InvalidAccessKeyId")
        else:
            reply = self._reply(proxy.fault_for(self.command, path, conditional=conditional), path, body)
        proxy.note(StoreRequest(self.command, path, target.query, conditional, reply.status if reply else 0))
        if reply:
            self._send(reply)
        else:
            self.close_connection = True
            _hang_up(self.connection)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

    def _reply(self, rule: Rule | None, path: str, body: bytes) -> _Reply | None:
        """Send the reply to the client; none if its connection just ends."""
        match rule.fault if rule else None:
            case None:
                return self._asked(path, body)
            case Fault.LATE:
                assert rule is not None
                time.sleep(rule.delay_s)
                return self._asked(path, body)
            case Fault.OVERWRITES:
                return self._asked(path, body, without=_CONDITIONS)
            case Fault.LOST_REPLY:
                self._asked(path, body)
                return None
            case Fault.LOST_REQUEST:
                return None
            case Fault.DONE_BUT_FAILED as fault:
                self._asked(path, body)
                return _failed(*_ANSWERS[fault])
            case Fault.CONFLICT | Fault.LOST_RACE | Fault.ERROR | Fault.SLOW_DOWN | Fault.DENIED as fault:
                return _failed(*_ANSWERS[fault])
            case never:
                assert_never(never)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _asked(self, path: str, body: bytes, *, without: frozenset[str] = frozenset()) -> _Reply:
        """Return the server's reply."""
        left = _OF_A_CONNECTION | {"content-length", "expect"} | without
        headers = {key: value for key, value in self.headers.items() if key.lower() not in left}
        headers["Content-Length"] = str(len(body))
        with self.server.proxy.turn(self.command, path):
            try:
                return self._once(headers, body)
            except http.client.RemoteDisconnected:
                # The server had ended a kept connection, and ignored the request that followed.
                self._behind.close()
                return self._once(headers, body)

    def _once(self, headers: dict[str, str], body: bytes) -> _Reply:
        self._behind.request(self.command, self.path, body=body, headers=headers)
        reply = self._behind.getresponse()
        return _Reply(reply.status, reply.getheaders(), reply.read())

    def _send(self, reply: _Reply) -> None:
        self.send_response_only(reply.status)
        for key, value in reply.headers:
            if key.lower() not in _OF_A_CONNECTION | {"content-length"}:
                self.send_header(key, value)
        length = next((value for key, value in reply.headers if key.lower() == "content-length"), "0")
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)


def _failed(status: int, code: str) -> _Reply:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the test demands</Message></Error>"
    return _Reply(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(text)))], text.encode())


def _hang_up(connection: socket.socket) -> None:
    """Shut the connection down, which the client notices even if a forked process has the socket, too."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
