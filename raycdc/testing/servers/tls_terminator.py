"""TLS in front of a server that has none, with any certificate: for tests of the certificates that clients believe."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TIMEOUT_S = 20.0


class TlsTerminator:
    """Listens on 127.0.0.1, where a client meets the certificate of `certificates` (``server.pem``, ``server.key``).
    What comes through goes to `port` of this machine as it is; without one, to nobody.
    """

    def __init__(self, certificates: Path, port: int | None = None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        #: Bytes that clients sent through TLS.
        self.received = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no further connection."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.settimeout(_TIMEOUT_S)
            with self._context.wrap_socket(client, server_side=True) as inside:
                if self._target is None:
                    self.received += len(inside.recv(1 << 16))
                    return
                with socket.create_connection(("127.0.0.1", self._target), _TIMEOUT_S) as server:
                    self._relay(inside, server)

    def _relay(self, inside: ssl.SSLSocket, server: socket.socket) -> None:
        """One thread for both ways: a TLS socket belongs to one."""
        inside.settimeout(None)
        server.settimeout(None)
        back = threading.Thread(target=_copy, args=(server, inside), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := inside.recv(1 << 16):
                self.received += len(data)
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        back.join(_TIMEOUT_S)


def _copy(server: socket.socket, inside: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(1 << 16):
            inside.sendall(data)
        inside.shutdown(socket.SHUT_RDWR)


@contextmanager
def tls_in_front(certificates: Path, port: int | None = None) -> Iterator[TlsTerminator]:
    """A terminator, closed at the end."""
    terminator = TlsTerminator(certificates, port)
    try:
        yield terminator
    finally:
        terminator.close()
