"""How servers of the kit that stand before another server take connections, and pass their bytes on."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

LOOPBACK = "127.0.0.1"
_PIECE_BYTES = 1 << 16

#: What is done with bytes before they go on: they may be counted, or held back.
Before = Callable[[bytes], object]


class Doorway:
    """A port of this machine where each connection is given to `serve`, in a thread of its own.

    The connection is closed when `serve` returns. An `OSError` of it says that one of both ends has left, which is no
    failure.
    """

    def __init__(self, serve: Callable[[socket.socket], None], *, port: int = 0) -> None:
        """`port` is one that nobody has, or any (0)."""
        self._serve = serve
        self._listener = socket.create_server((LOOPBACK, port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name=f"doorway {self.port}", daemon=True).start()

    def close(self) -> None:
        """Take no further connection; those that there are go on."""
        # Whoever waits in `accept` hears of a shutdown, and of no close.
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
    """Bytes that go on at once."""


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
    """Pass bytes on one way until either side has left; both connections are shut down then."""
    # A TLS connection that the other direction has just shut down raises `ValueError`.
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(_PIECE_BYTES):
            before(data)
            sink.sendall(data)
    for end in (source, sink):
        shut(end)


def shut(end: socket.socket) -> None:
    """Shut a connection down, whatever its state: who reads from it hears of its end, here and at the other side."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
