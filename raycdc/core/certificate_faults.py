"""Explains what is wrong with a server's TLS certificate, and how to fix it.

The messages of libraries differ, and those of librdkafka and libpq hardly explain anything. So the server is contacted
again with Python's TLS. The first connection makes the same checks as the failed one. If they fail, a second connection
without checks reads the certificate. Only the TLS handshake is sent, and never a password. The result is used for
messages only; it never permits a connection.

Sources: OpenSSL, ``x509_vfy.h`` (the numbers); PostgreSQL manual, "SSL Session Encryption" (SSLRequest); MySQL manual,
"Protocol::SSLRequest".
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

#: The environment variable that names a file with authorities, in place of the system's, for OpenSSL and for clients of
#: object stores.
CA_VARIABLE = "SSL_CERT_FILE"
#: The timeout of each of the two connections.
_TIMEOUT_S = 5.0
_EXPIRED, _NOT_YET_VALID, _REVOKED = 10, 9, 23
_OTHER_NAME = (62, 64)
#: OpenSSL's numbers for a signer that is not trusted. Number 7 is a signature by a different key of a signer with the
#: same name.
_UNKNOWN_SIGNER = (2, 7, 18, 19, 20, 21, 24, 27)
_NAMES_MAX = 6
_POSTGRES_REQUEST = struct.pack(">II", 8, 80877103)
#: Capabilities of MySQL's handshake: protocol 4.1, secure connection and TLS.
_MYSQL_TLS = 0x800
_MYSQL_FLAGS = 0x200 | 0x8000 | _MYSQL_TLS
_MYSQL_REQUEST = struct.pack("<IIB23x", _MYSQL_FLAGS, 1 << 24, 45)


class Opening(Enum):
    """The way in which a connection changes to TLS: immediately, or after messages of the database's protocol."""

    AT_ONCE = "at once"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"


@dataclass(frozen=True, slots=True)
class TlsServer:
    """The address and TLS settings of a server, as a client uses them.

    `ca` is a file or folder of authorities; None means those of the system. `ca_key` and `host_key` are the
    configuration keys of `ca` and of the host, which advice names.
    """

    host: str
    port: int
    ca_key: str
    host_key: str
    ca: str | None = None
    checks_name: bool = True
    opening: Opening = Opening.AT_ONCE


def certificate_fault(server: TlsServer) -> str:
    """Return one or two sentences about the certificate's fault and how to fix it; empty if no fault is found.

    The text is also empty if the server cannot be reached. Blocks for at most ten seconds and raises nothing.
    """
    try:
        context = ssl.create_default_context()
        if server.ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            is_folder = Path(server.ca).is_dir()
            context.load_verify_locations(**({"capath": server.ca} if is_folder else {"cafile": server.ca}))
    except (OSError, ssl.SSLError) as cause:
        return f"{server.ca_key}: {server.ca!r} holds no certificates that can be used ({cause})."
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = server.checks_name
    try:
        _certificate(server, context)
    except ssl.SSLCertVerificationError as cause:
        unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        with suppress(OSError, ValueError, ImportError):
            return _message(server, cause, _certificate(server, unchecked))
        return f"Its certificate is refused: {cause.verify_message}."
    except (OSError, ValueError):
        return ""
    return ""


def first_fault(servers: Iterable[TlsServer]) -> str:
    """Return the fault of the first of `servers` that has one, with its address."""
    for server in servers:
        if fault := certificate_fault(server):
            return f"{server.host}:{server.port}: {fault}"
    return ""


def _message(server: TlsServer, cause: ssl.SSLCertVerificationError, certificate: Certificate) -> str:
    code, names = cause.verify_code, _names(certificate)
    if code == _EXPIRED:
        # OpenSSL checks each certificate of the chain, so the fault may be in the server's certificate or in that of
        # its authority.
        ended = certificate.not_valid_after_utc
        return (
            f"Its certificate (for {names}) has expired: it was valid until {ended:%Y-%m-%d %H:%M} UTC. Renew it on "
            "the server; if that day is not over, the certificate of its authority has expired, or the clock here is "
            "wrong."
        )
    if code == _NOT_YET_VALID:
        begins = certificate.not_valid_before_utc
        return f"Its certificate is valid from {begins:%Y-%m-%d %H:%M} UTC on. Compare the clocks of both machines."
    if code == _REVOKED:
        return "Its certificate has been revoked. Give the server another one."
    if code in _OTHER_NAME:
        return (
            f"Its certificate is for {names}, and not for {server.host}. Write one of these names in "
            f"{server.host_key}, or give the server a certificate for {server.host}."
        )
    if code in _UNKNOWN_SIGNER:
        signer = _signer(certificate)
        if server.ca is None:
            return (
                f"Its certificate is signed by {signer}, which this machine does not trust. Name the file with the "
                f"certificate of that authority in {server.ca_key}."
            )
        return (
            f"Its certificate is signed by {signer}, and by no authority in {server.ca}. Name the file with the "
            f"certificate of that authority in {server.ca_key}."
        )
    return f"Its certificate (for {names}) is refused: {cause.verify_message}."


def _certificate(server: TlsServer, context: ssl.SSLContext) -> Certificate:
    """Return the certificate that the server shows under the checks of `context`."""
    from cryptography.x509 import load_der_x509_certificate

    with socket.create_connection((server.host, server.port), _TIMEOUT_S) as plain:
        _ask_for_tls(plain, server.opening)
        with context.wrap_socket(plain, server_hostname=server.host) as wrapped:
            shown = wrapped.getpeercert(binary_form=True)
    if not shown:
        raise ValueError("no certificate was shown")
    return load_der_x509_certificate(shown)


def _ask_for_tls(plain: socket.socket, opening: Opening) -> None:
    """Send the protocol's request for TLS. Raises `OSError` or `ValueError` if the server does not agree to TLS."""
    if opening is Opening.POSTGRESQL:
        plain.sendall(_POSTGRES_REQUEST)
        if plain.recv(1) != b"S":
            raise ValueError("no TLS")
    elif opening is Opening.MYSQL:
        header = _exactly(plain, 4)
        greeting = _exactly(plain, int.from_bytes(header[:3], "little"))
        # After the server's version come the thread's number, the salt and a filler, then the lower half of the
        # capabilities.
        at = greeting.index(0, 1) + 1 + 13
        if not int.from_bytes(greeting[at : at + 2], "little") & _MYSQL_TLS:
            raise ValueError("no TLS")
        plain.sendall(struct.pack("<I", len(_MYSQL_REQUEST))[:3] + b"\x01" + _MYSQL_REQUEST)


def _exactly(plain: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = plain.recv(count - len(data))
        if not more:
            raise ValueError("the server left")
        data += more
    return data


def _names(certificate: Certificate) -> str:
    """Return a few of the names for which the certificate is valid.

    They are escaped, because they may contain any character.
    """
    from cryptography.x509 import DNSName, ExtensionNotFound, IPAddress, SubjectAlternativeName
    from cryptography.x509.oid import NameOID

    try:
        found = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
        names = [*found.get_values_for_type(DNSName), *map(str, found.get_values_for_type(IPAddress))]
    except ExtensionNotFound:
        names = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    shown = [ascii(name)[1:-1] for name in names[:_NAMES_MAX]]
    return ", ".join(shown) + (f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else "") or "no name"


def _signer(certificate: Certificate) -> str:
    """Return the issuer, or ``itself`` if it is self-signed."""
    if certificate.issuer == certificate.subject:
        return "itself"
    return ascii(certificate.issuer.rfc4514_string())


def endpoint(address: str, port: int) -> tuple[str, int]:
    """Return host and port of ``host``, ``host:port``, ``[v6]:port`` or ``scheme://host:port``.

    Without a port in the text, `port` is returned.
    """
    text = address.strip().rpartition("://")[2].partition("/")[0]
    host, _, digits = text.rpartition(":")
    with suppress(ValueError):
        if not host:
            return text, port
        if ip_address(text).version:
            return text, port
    return (host.strip("[]"), int(digits)) if host and digits.isdigit() else (text.strip("[]"), port)
