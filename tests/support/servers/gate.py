"""A gate in front of a server: connections pass through it, and the test shuts it, counts who knocks, and opens it.

A shared server seems to be away to one test alone, which neither stops nor starts it. Works for servers whose clients
go where they are told: MySQL, PostgreSQL, a MongoDB with ``directConnection=true``.

How servers of the kit that stand before another server take connections, and pass their bytes on.

TLS in front of a server that has none, with any certificate: for tests of the certificates that clients believe.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Self

LOOPBACK = "127.0.0.1"
_PIECE_BYTES = 1 << 16

#: Called with bytes before they are passed on; it may count them or hold them back.
Before = Callable[[bytes], object]


class ConnectionListener:
    """A port of this machine where each connection is given to `serve`, in its own thread.

    The connection is closed when `serve` returns. An `OSError` of it says that one of both ends has left, which is no
    failure.
    """

    def __init__(self, serve: Callable[[socket.socket], None], *, port: int = 0) -> None:
        """Listen on `port`, which must be free, or on any port (0)."""
        self._serve = serve
        self._listener = socket.create_server((LOOPBACK, port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=f"doorway {self.port}", daemon=True).start()

    def close(self) -> None:
        """Accept no further connection; existing ones go on."""
        # A thread in `accept` is woken by a shutdown, but not by a close.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._take, args=(client,), daemon=True).start()

    def _take(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            self._serve(client)


def as_it_is(_data: bytes) -> None:
    """Pass bytes on immediately."""


def relay(
    client: socket.socket, server: socket.socket, *, asked: Before = as_it_is, answered: Before = as_it_is
) -> None:
    """Pass bytes on, both ways, and return when either side has left; both connections are shut down then.

    `asked` is called with the client's bytes before the server gets them, and `answered` with the server's, each by a
    thread of its own. A timeout of a socket counts as leaving.
    """
    back = threading.Thread(target=pass_on, args=(server, client, answered), daemon=True)
    back.start()
    pass_on(client, server, asked)
    back.join()


def pass_on(source: socket.socket, sink: socket.socket, before: Before = as_it_is) -> None:
    """Pass bytes on in one direction until either side has left; both connections are shut down then."""
    # A TLS connection that the other direction has just shut down raises `ValueError`.
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(_PIECE_BYTES):
            before(data)
            sink.sendall(data)
    for end in (source, sink):
        shut(end)


def shut(end: socket.socket) -> None:
    """Shut a connection down in any state, so that readers on both sides notice its end."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


class GateMode(Enum):
    """The treatment of connections."""

    #: Connections reach the server.
    OPEN = auto()
    #: Existing connections are ended; new ones are counted and ended immediately, as by a server that restarts.
    SHUT = auto()
    #: Bytes wait, also those of new connections, as with a server that is stopped.
    STILL = auto()


class Gate:
    """Passes connections to a server; see the module's docstring.

    ``with Gate(host, port) as gate:`` listens on `gate.port` of 127.0.0.1.
    """

    host = LOOPBACK

    def __init__(self, host: str, port: int, *, listens_on: int = 0, way: GateMode = GateMode.OPEN) -> None:
        """Create the gate; it `listens_on` a free port, or on any port (0)."""
        self._server = (host, port)
        self._way = way
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._shut_s = time.monotonic()
        #: The times of connections while the gate was not open, in monotonic seconds.
        self.knocks: list[float] = []
        self._doorway = ConnectionListener(self._pass, port=listens_on)
        self.port = self._doorway.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, way: GateMode) -> None:
        """Set the mode from now on."""
        with self._changed:
            if self._way is GateMode.OPEN:
                self._shut_s = time.monotonic()
            self._way = way
            if way is GateMode.SHUT:
                self._end_all()
            self._changed.notify_all()

    @contextmanager
    def being(self, way: GateMode) -> Iterator[None]:
        """Set the mode within the block; the gate is open after it."""
        self.set(way)
        try:
            yield
        finally:
            self.set(GateMode.OPEN)

    def wait_for_knocks(self, count: int, *, timeout_s: float = 120.0) -> None:
        """Wait until this many connections have come."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.knocks) >= count, timeout_s):
                raise AssertionError(f"only {len(self.knocks)} knocked within {timeout_s:g} s")

    def is_spared(self, pause_s: float) -> bool:
        """Return True if, since the gate was shut, connections came at most every `pause_s`, except one that was on its
        way.

        Each connection is compared with the time of the shutting, so one that a busy machine notices late does not
        count.
        """
        return all(at - self._shut_s >= (number - 1) * pause_s for number, at in enumerate(self.knocks))

    def close(self) -> None:
        """End all connections, and take no further one."""
        self.set(GateMode.SHUT)
        self._doorway.close()

    def valve(self) -> Before:
        """Holds back the bytes of one direction of a connection while the server must seem stopped."""
        return self._wait

    def _pass(self, client: socket.socket) -> None:
        with self._changed:
            if self._way is not GateMode.OPEN:
                self.knocks.append(time.monotonic())
                self._changed.notify_all()
            if self._way is GateMode.SHUT:
                return
            self._sockets.add(client)
        ends = {client}
        try:
            with socket.create_connection(self._server) as server:
                ends.add(server)
                with self._changed:
                    self._sockets |= ends
                relay(client, server, asked=self.valve(), answered=self.valve())
        finally:
            with self._changed:
                self._sockets -= ends

    def _wait(self, _data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._way is not GateMode.STILL)

    def _end_all(self) -> None:
        for end in self._sockets:
            shut(end)


_TIMEOUT_S = 20.0


class TlsTerminator:
    """Listens on 127.0.0.1, where a client meets the certificate of `certificates` (``server.pem``, ``server.key``).
    What comes through goes to `port` of this machine as it is; without one, to nobody.
    """

    def __init__(self, certificates: Path, port: int | None = None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self._target = port
        #: The bytes that clients sent through TLS.
        self.received = 0
        self._doorway = ConnectionListener(self._serve)
        self.port = self._doorway.port

    def close(self) -> None:
        """Accept no further connection."""
        self._doorway.close()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(_TIMEOUT_S)
        with self._context.wrap_socket(client, server_side=True) as inside:
            if self._target is None:
                self._count(inside.recv(1 << 16))
                return
            with socket.create_connection((LOOPBACK, self._target), _TIMEOUT_S) as server:
                inside.settimeout(None)
                server.settimeout(None)
                relay(inside, server, asked=self._count)

    def _count(self, data: bytes) -> None:
        self.received += len(data)


@contextmanager
def tls_in_front(certificates: Path, port: int | None = None) -> Iterator[TlsTerminator]:
    """Provide a terminator, which is closed at the end."""
    terminator = TlsTerminator(certificates, port)
    try:
        yield terminator
    finally:
        terminator.close()
