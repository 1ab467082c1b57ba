"""Encryption of connections to databases: the options that sources and sinks share."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_address

from raycdc.config.fields import FilePath, Options, option


class TlsMode(StrEnum):
    """How a connection is encrypted. ``AUTO``: not on loopback or a socket, ``VERIFY_IDENTITY`` elsewhere."""

    AUTO = "auto"
    DISABLED = "disabled"
    REQUIRED = "required"
    VERIFY_CA = "verify-ca"
    VERIFY_IDENTITY = "verify-identity"

    def resolved(self, host: str) -> TlsMode:
        """The mode itself, and for ``AUTO`` the one that `host` asks for; a socket is told as ``localhost``."""
        if self is not TlsMode.AUTO:
            return self
        return TlsMode.DISABLED if is_loopback(host) else TlsMode.VERIFY_IDENTITY


class TlsOptions(Options):
    """Encryption of the connections. Default: none on loopback, verify-identity elsewhere."""

    mode: TlsMode = option(TlsMode.AUTO, help="How much of the server's certificate is checked.")
    ca: FilePath | None = option(None, help="File with the certificate authorities to trust.", example="ca.pem")
    allow_public_key_retrieval: bool = option(
        False,  # noqa: FBT003 - the default
        help="MySQL without TLS, beyond this machine: whether the password may be sent encrypted with an RSA key that "
        "the server sends. Whoever stands in between can send a key of their own.",
    )


def is_loopback(host: str) -> bool:
    """Whether the name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
