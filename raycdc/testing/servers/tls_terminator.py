"""TLS in front of a server that has none, with any certificate: for tests of the certificates that clients believe."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raycdc.testing.servers.relay import LOOPBACK, Doorway, relay

_TIMEOUT_S = 20.0


class TlsTerminator:
    """Listens on 127.0.0.1, where a client meets the certificate of `certificates` (``server.pem``, ``server.key``).
    What comes through goes to `port` of this machine as it is; without one, to nobody.
    """

    def __init__(self, certificates: Path, port: int | None = None) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        self._target = port
        #: Bytes that clients sent through TLS.
        self.received = 0
        self._doorway = Doorway(self._serve)
        self.port = self._doorway.port

    def close(self) -> None:
        """Take no further connection."""
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
    """A terminator, closed at the end."""
    terminator = TlsTerminator(certificates, port)
    try:
        yield terminator
    finally:
        terminator.close()
