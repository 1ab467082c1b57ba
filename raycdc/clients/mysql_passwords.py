"""How a password may be sent to a MySQL or MariaDB server over a connection without TLS.

The server chooses the way of logging in, so whoever answers in its place chooses it, too. On a connection that is not
encrypted, the ways that hand over the password itself are therefore refused here, whatever the server asks for. One way
encrypts the password with an RSA key that the server sends along; it is safe only where nobody can answer instead of
the server, which is on this machine. `plugins` is what pymysql asks for each way.

Sources: MySQL manual, "Caching SHA-2 Pluggable Authentication", "SHA-256 Pluggable Authentication", "Client-Side
Cleartext Pluggable Authentication"; MariaDB manual, "Authentication Plugin - PAM".
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from pymysql._auth import scramble_caching_sha2
from pymysql.connections import Connection

from raycdc.errors import SourceError

#: The answers to a scrambled password of caching_sha2_password: "that is it", and "send the password itself".
_FAST_AUTH_SUCCESS = 3


class PasswordPlugin(Protocol):
    """One way of logging in, as pymysql uses it: made of the connection, given each packet of the server's."""

    def __init__(self, connection: Connection[Any]) -> None: ...

    def authenticate(self, packet: Any) -> Any: ...


def plugins(*, is_loopback: bool, takes_server_key: bool) -> dict[str, type[PasswordPlugin]]:
    """The ways of logging in that differ from pymysql's own on a TCP connection without TLS, by their names.

    `takes_server_key`: the user permitted to encrypt the password with a key that the server sends.
    """
    refused: dict[str, type[PasswordPlugin]] = dict.fromkeys(
        ("mysql_clear_password", "dialog", "mysql_old_password"), _Refused
    )
    if is_loopback or takes_server_key:
        return refused
    return refused | {"sha256_password": _KeyRefused, "caching_sha2_password": _ScrambledOnly}


class _Refused:
    """A way that tells the password to whoever reads the connection."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._address = f"{connection.host}:{connection.port}"

    def authenticate(self, packet: Any) -> NoReturn:
        raise SourceError(
            f"{self._address} asks for the password in a form that everybody on the way can read, and the connection "
            "is not encrypted: the password was not sent. Set source.tls.mode to verify-identity (or to required on "
            "this machine), or give the account another authentication plug-in; if the account has none that "
            "asks for this, then another server answers at that address."
        )


class _KeyRefused:
    """``sha256_password``, which encrypts the password with a key that the server sends."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._address = f"{connection.host}:{connection.port}"

    def authenticate(self, packet: Any) -> NoReturn:
        raise _key_refused(self._address)


class _ScrambledOnly:
    """``caching_sha2_password`` as far as the server has the password in its cache, and only its scramble is sent."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        connection = self._connection
        if packet.is_auth_switch_request():  # its name is read; the rest of the packet is the salt
            salt = packet.read_all().removesuffix(b"\0")
            connection.write_packet(scramble_caching_sha2(connection.password, salt))
            packet = connection._read_packet()
            if not packet.is_extra_auth_data():
                return packet
        if packet.get_all_data()[1:2] != bytes([_FAST_AUTH_SUCCESS]):
            raise _key_refused(f"{connection.host}:{connection.port}")
        return connection._read_packet()


def _key_refused(address: str) -> SourceError:
    return SourceError(
        f"{address} wants the password encrypted with an RSA key that it sends itself, and the connection is not "
        "encrypted: whoever stands in between could send a key of their own, so the password was not sent. Set "
        "source.tls.mode to verify-identity; or set source.tls.allow_public_key_retrieval = true, where nobody else "
        "can be on the way."
    )
