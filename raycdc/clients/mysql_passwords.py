"""Restricts how a password is sent to a MySQL or MariaDB server over a connection without TLS.

The server chooses the authentication plugin, and so does an attacker that answers in its place. On an unencrypted
connection, plugins that send the password itself are therefore refused, whatever the server requests. One plugin
encrypts the password with an RSA key that the server sends. This is safe only if no other machine can answer in place
of the server, as on a connection within this machine. pymysql gets the plugins of this module from `plugins`.

Sources: MySQL manual, "Caching SHA-2 Pluggable Authentication", "SHA-256 Pluggable Authentication", "Client-Side
Cleartext Pluggable Authentication"; MariaDB manual, "Authentication Plugin - PAM".
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from pymysql._auth import scramble_caching_sha2
from pymysql.connections import Connection

from raycdc.errors import SourceError

#: The answers of caching_sha2_password to a scrambled password: "accepted", and "send the password itself".
_FAST_AUTH_SUCCESS = 3


class PasswordPlugin(Protocol):
    """An authentication plugin as pymysql uses it: created with the connection, and called with each packet of the
    server.
    """

    def __init__(self, connection: Connection[Any]) -> None: ...

    def authenticate(self, packet: Any) -> Any: ...


def plugins(*, is_loopback: bool, takes_server_key: bool) -> dict[str, type[PasswordPlugin]]:
    """Return the plugins that replace pymysql's own on a TCP connection without TLS, by their names.

    If `takes_server_key` is True, the user permits the encryption of the password with a key that the server sends.
    """
    refused: dict[str, type[PasswordPlugin]] = dict.fromkeys(
        ("mysql_clear_password", "dialog", "mysql_old_password"), _Refused
    )
    if is_loopback or takes_server_key:
        return refused
    return refused | {"sha256_password": _KeyRefused, "caching_sha2_password": _ScrambledOnly}


class _Refused:
    """Refuses a plugin that would reveal the password on the connection."""

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
    """Refuses ``sha256_password``, which encrypts the password with a key that the server sends."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._address = f"{connection.host}:{connection.port}"

    def authenticate(self, packet: Any) -> NoReturn:
        raise _key_refused(self._address)


class _ScrambledOnly:
    """Allows ``caching_sha2_password`` only if the server has the password in its cache, because then only a scramble
    is sent.
    """

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        connection = self._connection
        if packet.is_auth_switch_request():  # The name was read already; the rest is the salt.
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
        "encrypted: an attacker in between could send another key, so the password was not sent. Set "
        "source.tls.mode to verify-identity; or set source.tls.allow_public_key_retrieval = true, where nobody else "
        "can be on the way."
    )
