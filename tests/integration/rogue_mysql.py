"""Servers of MySQL's protocol that nobody should log in to: a rogue that asks for passwords, and a man in the middle.

Both listen on the loopback interface. Clients reach them there as ``127.0.0.1``, or as ``0.0.0.0``, which the kernel
takes for the same and raycdc does not take for this machine.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from pymysql.constants import CLIENT

from tests.support.servers.gate import pass_on, relay

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
        send(client, 0, greeting(first, _CAPABILITIES))
        number = self._receive(client)
        if self._by_switch:
            prompt = b"\x02Password: " if self._plugin == b"dialog" else _SALT + b"\0"
            send(client, number + 1, b"\xfe" + self._plugin + b"\0" + prompt)
            number = self._receive(client)
        if self._plugin == b"caching_sha2_password":
            send(client, number + 1, b"\x01\x04")  # "I do not know it: send all of it"
            number = self._receive(client)
        if self._public_key:
            send(client, number + 1, b"\x01" + self._public_key)
            number = self._receive(client)
        send(client, number + 1, b"\xff" + struct.pack("<H", 1045) + b"#28000No")

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
            relay(client, server, asked=self.received.extend)


class Turncoat(Listener):
    """A proxy of the real server for `honest` connections; all later ones meet a server of the same name without TLS,
    or with a certificate of another authority in `certificates`. It keeps what these hear.
    """

    def __init__(self, server_port: int, *, honest: int, certificates: Path | None) -> None:
        self._server_port, self._honest, self._certificates = server_port, honest, certificates
        self.betrayed = 0
        super().__init__()

    def _talk(self, client: socket.socket) -> None:
        if self._honest:
            # Side by side: a run holds several connections at once.
            self._honest -= 1
            own = client.dup()
            threading.Thread(target=_relay, args=(own, self._server_port), daemon=True).start()
            return
        self.betrayed += 1
        capabilities = _CAPABILITIES | (CLIENT.SSL if self._certificates else 0)
        send(client, 0, greeting(b"mysql_clear_password", capabilities))
        if self._certificates is None:
            self.received += exactly(client, 1)
            return
        exactly(client, 4 + 32)  # SSLRequest: nothing but capabilities
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificates / "server.pem", self._certificates / "server.key")
        with context.wrap_socket(client, server_side=True) as wrapped:
            self.received += wrapped.recv(1000)


class Meddler(Listener):
    """A man in the middle of connections without TLS: it answers a command in which the pattern `asked` is found in the
    server's place, with each of `answers` in turn, until the client leaves. A login is no command: it is passed on,
    whatever its random bytes are.
    """

    def __init__(self, server_port: int, asked: bytes, answers: Callable[[], Iterator[bytes]]) -> None:
        self._server_port, self._asked, self._answers = server_port, re.compile(asked, re.DOTALL), answers
        #: Bytes that clients took of the answers.
        self.taken = 0
        super().__init__()

    def _talk(self, client: socket.socket) -> None:
        threading.Thread(target=self._meddle, args=(client.dup(),), daemon=True).start()

    def _meddle(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server_port), 10) as server:
            # It says nothing while somebody else answers.
            server.settimeout(None)
            back = threading.Thread(target=pass_on, args=(server, client), daemon=True)
            back.start()
            with contextlib.suppress(OSError, EOFError):
                client.settimeout(60)
                while True:
                    header = exactly(client, 4)
                    command = exactly(client, int.from_bytes(header[:3], "little"))
                    # A command is the first packet of its exchange.
                    if header[3] == 0 and self._asked.search(command):
                        break
                    server.sendall(header + command)
                for answer in self._answers():
                    client.sendall(answer)
                    self.taken += len(answer)
                client.settimeout(10)
                self.received += client.recv(1 << 16)
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def packet(number: int, payload: bytes) -> bytes:
    """A packet of the protocol."""
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def send(client: socket.socket, number: int, payload: bytes) -> None:
    """Send a packet."""
    client.sendall(packet(number, payload))


def greeting(plugin: bytes, capabilities: int) -> bytes:
    """A server's first packet."""
    text = b"\x0a8.0.36\0" + struct.pack("<I", 7) + _SALT[:8] + b"\0"
    text += struct.pack("<HBHHB", capabilities & 0xFFFF, 45, 2, capabilities >> 16, 21)
    return text + bytes(10) + _SALT[8:] + b"\0" + plugin + b"\0"


def _relay(client: socket.socket, server_port: int) -> None:
    with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", server_port), 10) as server:
        client.settimeout(None)
        server.settimeout(None)
        relay(client, server)


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
