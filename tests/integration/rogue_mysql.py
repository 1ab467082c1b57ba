"""Servers of MySQL's protocol that nobody should log in to: a rogue that asks for passwords, and a man in the middle.

Both listen on the loopback interface. Clients reach them there as ``127.0.0.1``, or as ``0.0.0.0``, which the kernel
takes for the same and raycdc does not take for this machine.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from pymysql.constants import CLIENT

#: Of a server that can do everything a client asks for, except TLS.
_CAPABILITIES = (
    CLIENT.LONG_PASSWORD
    | CLIENT.PROTOCOL_41
    | CLIENT.SECURE_CONNECTION
    | CLIENT.PLUGIN_AUTH
    | CLIENT.PLUGIN_AUTH_LENENC_CLIENT_DATA
    | CLIENT.CONNECT_ATTRS
    | CLIENT.TRANSACTIONS
)
_SALT = bytes(range(1, 21))
#: Where the lower half of the capabilities stands behind the server's version in a greeting: thread id, salt, filler.
_BEHIND_VERSION = 4 + 8 + 1


class Listener:
    """A server on a free port; a thread serves one connection after another, and keeps what clients sent."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.received = bytearray()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError, EOFError):
                client.settimeout(10)
                self._talk(client)

    def _talk(self, client: socket.socket) -> None:
        raise NotImplementedError


class RogueServer(Listener):
    """It offers no TLS, asks for the password by `plugin`, at once or by a switch, and keeps the answers."""

    def __init__(self, plugin: str, *, by_switch: bool, public_key: bytes = b"") -> None:
        self._plugin, self._by_switch, self._public_key = plugin.encode(), by_switch, public_key
        super().__init__()

    def _talk(self, client: socket.socket) -> None:
        first = b"mysql_native_password" if self._by_switch else self._plugin
        greeting = b"\x0a8.0.36\0" + struct.pack("<I", 7) + _SALT[:8] + b"\0"
        greeting += struct.pack("<HBHHB", _CAPABILITIES & 0xFFFF, 45, 2, _CAPABILITIES >> 16, 21)
        greeting += bytes(10) + _SALT[8:] + b"\0" + first + b"\0"
        self._send(client, 0, greeting)
        number = self._receive(client)
        if self._by_switch:
            prompt = b"\x02Password: " if self._plugin == b"dialog" else _SALT + b"\0"
            self._send(client, number + 1, b"\xfe" + self._plugin + b"\0" + prompt)
            number = self._receive(client)
        if self._plugin == b"caching_sha2_password":
            self._send(client, number + 1, b"\x01\x04")  # "I do not know it: send all of it"
            number = self._receive(client)
        if self._public_key:
            self._send(client, number + 1, b"\x01" + self._public_key)
            number = self._receive(client)
        self._send(client, number + 1, b"\xff" + struct.pack("<H", 1045) + b"#28000No")

    def _send(self, client: socket.socket, number: int, payload: bytes) -> None:
        client.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)

    def _receive(self, client: socket.socket) -> int:
        """Keep one packet; returns its number. `EOFError` when the client left."""
        header = exactly(client, 4)
        self.received += exactly(client, int.from_bytes(header[:3], "little"))
        return header[3]


class TlsStripper(Listener):
    """A man in the middle: it takes the offer of TLS out of the real server's greeting, and passes the rest on."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        super().__init__()

    def _talk(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._server_port), 10) as server:
            header = exactly(server, 4)
            greeting = bytearray(exactly(server, int.from_bytes(header[:3], "little")))
            at = greeting.index(0, 1) + 1 + _BEHIND_VERSION
            (lower,) = struct.unpack_from("<H", greeting, at)
            assert lower & CLIENT.SSL, "the real server offers TLS"
            struct.pack_into("<H", greeting, at, lower & ~CLIENT.SSL)
            client.sendall(header + greeting)
            back = threading.Thread(target=_copy, args=(server, client), daemon=True)
            back.start()
            while data := client.recv(1 << 16):
                self.received += data
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)
            back.join(10)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)


def exactly(peer: socket.socket, count: int) -> bytes:
    """So many bytes. `EOFError` when the peer leaves before."""
    data = b""
    while len(data) < count:
        more = peer.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


@contextlib.contextmanager
def rogue(plugin: str, *, by_switch: bool = True, public_key: bytes = b"") -> Iterator[RogueServer]:
    """A rogue server, closed at the end."""
    with contextlib.closing(RogueServer(plugin, by_switch=by_switch, public_key=public_key)) as server:
        yield server


@contextlib.contextmanager
def tls_stripper(server_port: int) -> Iterator[TlsStripper]:
    """A man in the middle before the server at `server_port`, closed at the end."""
    with contextlib.closing(TlsStripper(server_port)) as proxy:
        yield proxy
