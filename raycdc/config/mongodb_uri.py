"""MongoDB's connection strings, read without a server and without showing what may be secret in them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

_SRV = "mongodb+srv://"
_SCHEMES = ("mongodb://", _SRV)
_LOOKS = "mongodb://user:password@host:27017/?replicaSet=rs0"
_ESCAPED = "with the characters / ? # @ : % of user and password written as %XX"


@dataclass(frozen=True, slots=True)
class MongoDbUri:
    """`where` is for people: the scheme and the hosts, nothing else. `secrets` must be in no message, longest first."""

    where: str
    secrets: tuple[str, ...]


def parse_mongodb_uri(uri: str) -> MongoDbUri:
    """The parts of a connection string. `ValueError`, which quotes nothing of it, for one that the driver would not
    take, or would take for another host than was meant: an unescaped slash ends the hosts, wherever it stands.
    """
    scheme = next((one for one in _SCHEMES if uri.startswith(one)), None)
    if scheme is None:
        raise ValueError("must begin with mongodb:// or mongodb+srv://")
    rest = uri[len(scheme) :]
    hosts = re.match(r"[^/?]*", rest)
    assert hosts is not None
    if "@" in rest[hosts.end() :]:
        raise ValueError(f"has an @ behind its hosts: it looks like {_LOOKS}, {_ESCAPED}")
    user, _, names = hosts[0].rpartition("@")
    nodes = [(name, None) for name in names.split(",")] if scheme == _SRV else _nodes(uri)
    if scheme == _SRV:
        # The driver would ask the name servers; the user's part is written in the same way.
        _nodes(f"mongodb://{hosts[0]}")
    where = scheme + ",".join(_shown(host, port) for host, port in nodes)
    password = user.partition(":")[2]
    secrets = {uri, password, unquote(password)} if password else set()
    return MongoDbUri(where, tuple(sorted(secrets, key=len, reverse=True)))


def open_hosts(uri: str) -> list[str]:
    """The hosts of a valid connection string that are reached without TLS; empty where the driver encrypts."""
    if uri.startswith(_SRV):
        return ["a mongodb+srv host"] if re.search(r"[?&](tls|ssl)=false", uri, re.IGNORECASE) else []
    from pymongo.uri_parser import parse_uri

    parsed = parse_uri(uri, validate=True, warn=False)
    return [] if parsed["options"].get("tls") else [host for host, _ in parsed["nodelist"] if not host.startswith("/")]


def _nodes(uri: str) -> list[tuple[str, int | None]]:
    try:
        from pymongo.errors import PyMongoError
        from pymongo.uri_parser import parse_uri
    except ImportError:
        return []  # an extra: whoever connects says that it is missing

    try:
        return list(parse_uri(uri, validate=True, warn=False)["nodelist"])
    except (PyMongoError, ValueError) as cause:
        # Not its text: it may quote the string.
        raise ValueError(
            f"is no connection string that the driver takes ({type(cause).__name__}): it looks like {_LOOKS}, "
            f"{_ESCAPED}"
        ) from None


def _shown(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"
