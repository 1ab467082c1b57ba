"""A server of PostgreSQL's protocol that turns to TLS, with a certificate that nobody should believe."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path

from tests.integration.rogue_mysql import Listener, exactly

_SSL_REQUEST = 80877103


class BadCertificate(Listener):
    """It keeps what clients say inside of TLS."""

    def __init__(self, certificates: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        super().__init__()

    def _talk(self, client: socket.socket) -> None:
        _, request = struct.unpack(">II", exactly(client, 8))
        if request != _SSL_REQUEST:  # one that cancels, or encrypts otherwise
            return
        client.sendall(b"S")
        with self._context.wrap_socket(client, server_side=True) as inside:
            self.received += inside.recv(1000)
