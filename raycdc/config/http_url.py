"""Addresses of receivers over HTTP, as a configuration has them: of webhooks, and of collectors of traces."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from raycdc.config.tls import is_loopback


def split_url(url: str) -> tuple[SplitResult, str]:
    """The parts of a URL, and its host, which is empty where the text is no URL in ASCII that could be asked."""
    try:
        parts = urlsplit(url)
        host = "" if parts.port == 0 else parts.hostname or ""
    except ValueError:
        return urlsplit(""), ""
    return parts, host if url.isascii() and url.isprintable() and " " not in url else ""


def is_plain_elsewhere(url: str) -> bool:
    """Whether others can read what is sent there: over plain HTTP, and to another machine."""
    parts, host = split_url(url)
    return parts.scheme == "http" and not is_loopback(host)


def server_of(url: str) -> str:
    """Scheme and host, for people: a path may hold a token."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
