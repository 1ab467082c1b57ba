"""PostgreSQL sinks: whose certificate is believed, and who hears the password."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.config.tls import TlsMode
from raycdc.errors import SinkError
from raycdc.sandbox.servers.certificates import write_certificates
from raycdc.sandbox.servers.postgres import PostgresServer
from raycdc.sinks.jdbc.plugin import Address
from raycdc.sinks.jdbc.postgres import PostgresDatabase
from tests.integration.rogue_mysql import Listener, exactly

PASSWORD = "Tell-n0body"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One of its own, because its certificate changes."""
    with PostgresServer() as own:
        yield own


def address(port: int, mode: TlsMode, ca: Path | None = None, host: str = "127.0.0.1") -> Address:
    return Address("postgresql", host, port, "postgres", "postgres", "postgres", mode, str(ca) if ca else None)


def encrypted(where: Address) -> bool:
    with PostgresDatabase(where).session() as session:
        ((used,),) = session.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    return bool(used)


@pytest.mark.server
def test_the_right_certificate_alone_is_believed(server: PostgresServer, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="does not support SSL"):
        encrypted(address(server.port, TlsMode.REQUIRED))
    ca = server.use_tls() / "ca.pem"
    write_certificates(tmp_path)
    assert encrypted(address(server.port, TlsMode.REQUIRED))
    assert encrypted(address(server.port, TlsMode.VERIFY_CA, ca))
    assert encrypted(address(server.port, TlsMode.VERIFY_IDENTITY, ca))
    assert encrypted(address(server.port, TlsMode.VERIFY_CA, ca, "0.0.0.0"))
    with pytest.raises(SinkError, match="does not match host name"):
        encrypted(address(server.port, TlsMode.VERIFY_IDENTITY, ca, "0.0.0.0"))
    for mode in (TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY):
        with pytest.raises(SinkError, match="SSL error") as refused:
            encrypted(address(server.port, mode, tmp_path / "ca.pem"))
        assert not refused.value.retryable
    old = server.use_tls(expired=True) / "ca.pem"
    with pytest.raises(SinkError, match="certificate verify failed") as refused:
        encrypted(address(server.port, TlsMode.VERIFY_IDENTITY, old))
    assert not refused.value.retryable


class RoguePostgres(Listener):
    """It has no TLS, and asks for the password as it is."""

    def _talk(self, client: socket.socket) -> None:
        while True:
            (size,) = struct.unpack(">I", exactly(client, 4))
            message = exactly(client, size - 4)
            if struct.unpack(">I", message[:4])[0] != 80877103:  # SSLRequest
                break
            client.sendall(b"N")
        client.sendall(b"R" + struct.pack(">II", 8, 3))  # AuthenticationCleartextPassword
        while data := client.recv(1000):
            self.received += data


@pytest.mark.parametrize(("host", "sent"), [("0.0.0.0", False), ("127.0.0.1", True)])
def test_the_password_as_it_is_goes_to_this_machine_alone(host: str, sent: bool) -> None:
    with contextlib.closing(RoguePostgres()) as rogue:
        where = Address("postgresql", host, rogue.port, "d", "cdc", PASSWORD, TlsMode.DISABLED, None)
        with pytest.raises(SinkError) as refused, PostgresDatabase(where).session():
            pass
        rogue.close()
    assert (PASSWORD.encode() in rogue.received) is sent
    assert ("it was not sent. Set sink.tls.mode." in str(refused.value)) is not sent
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("mode", [TlsMode.REQUIRED, TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY])
def test_a_server_without_tls_hears_nothing_of_a_client_that_asks_for_it(mode: TlsMode, tmp_path: Path) -> None:
    write_certificates(tmp_path)
    with contextlib.closing(RoguePostgres()) as rogue:
        where = Address("postgresql", "127.0.0.1", rogue.port, "d", "cdc", PASSWORD, mode, str(tmp_path / "ca.pem"))
        with pytest.raises(SinkError, match="SSL"), PostgresDatabase(where).session():
            pass
        rogue.close()
    assert not rogue.received
