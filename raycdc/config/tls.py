"""Options for the encryption of connections to databases, which sources and sinks share, and checks of HTTP addresses.

The addresses are those of webhooks and of collectors of traces.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from raycdc.config.fields import FilePath, Options, option


class TlsMode(StrEnum):
    """The encryption of a connection.

    ``AUTO`` is ``DISABLED`` on loopback or a socket, and ``VERIFY_IDENTITY`` elsewhere.
    """

    AUTO = "auto"
    DISABLED = "disabled"
    REQUIRED = "required"
    VERIFY_CA = "verify-ca"
    VERIFY_IDENTITY = "verify-identity"

    def resolved(self, host: str) -> TlsMode:
        """Return the mode, with ``AUTO`` replaced by the mode for `host`. For a socket, pass ``localhost``."""
        if self is not TlsMode.AUTO:
            return self
        return TlsMode.DISABLED if is_loopback(host) else TlsMode.VERIFY_IDENTITY


class TlsOptions(Options):
    """Encryption of the connections. Default: none on loopback, verify-identity elsewhere."""

    mode: TlsMode = option(TlsMode.AUTO, help="How strictly the server's certificate is checked.")
    ca: FilePath | None = option(None, help="File with the certificate authorities to trust.", example="ca.pem")
    allow_public_key_retrieval: bool = option(
        False,  # noqa: FBT003 - the default
        help="For MySQL without TLS on another machine: allow sending the password encrypted with an RSA key that "
        "the server sends. An attacker in between can send a key of their own.",
    )


def is_loopback(host: str) -> bool:
    """Return True if the name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def split_url(url: str) -> tuple[SplitResult, str]:
    """Return the parts of a URL, and its host, which is empty if the text is not a valid URL in ASCII."""
    try:
        parts = urlsplit(url)
        host = "" if parts.port == 0 else parts.hostname or ""
    except ValueError:
        return urlsplit(""), ""
    return parts, host if url.isascii() and url.isprintable() and " " not in url else ""


def is_plain_elsewhere(url: str) -> bool:
    """Return True if data sent to the URL could be read on the way: it uses plain HTTP and names a different
    machine.
    """
    parts, host = split_url(url)
    return parts.scheme == "http" and not is_loopback(host)


def server_of(url: str) -> str:
    """Return scheme and host, for messages: a path may hold a token."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
