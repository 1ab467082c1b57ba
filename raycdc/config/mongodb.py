"""MongoDB's connection strings, parsed without a server and without showing secrets, and the types of documents'
fields.

Pure. Types are named as in the configuration; `raycdc.connectors.mongodb.layout` has the values that they accept and
return.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from raycdc.model import LogicalType, TypeKind
from raycdc.model.types import DECIMAL_PRECISION_MAX

_SRV = "mongodb+srv://"
_SCHEMES = ("mongodb://", _SRV)
_EXAMPLE = "mongodb://user:password@host:27017/?replicaSet=rs0"
_ESCAPED = "with the characters / ? # @ : % of user and password written as %XX"


@dataclass(frozen=True, slots=True)
class MongoDbUri:
    """A parsed connection string.

    `where` is its scheme and hosts, for people. `secrets`, longest first, must be in no message.
    """

    where: str
    secrets: tuple[str, ...]


def parse_mongodb_uri(uri: str) -> MongoDbUri:
    """Parse a connection string.

    Raises `ValueError`, which does not quote the string, if the driver would refuse it, or would use a different host
    than intended because an unescaped slash ends the list of hosts.
    """
    scheme = next((one for one in _SCHEMES if uri.startswith(one)), None)
    if scheme is None:
        raise ValueError("must begin with mongodb:// or mongodb+srv://")
    rest = uri[len(scheme) :]
    hosts = re.match(r"[^/?]*", rest)
    assert hosts is not None
    if "@" in rest[hosts.end() :]:
        raise ValueError(f"has an @ behind its hosts: it looks like {_EXAMPLE}, {_ESCAPED}")
    user, _, names = hosts[0].rpartition("@")
    nodes = [(name, None) for name in names.split(",")] if scheme == _SRV else _nodes(uri)
    if scheme == _SRV:
        # The driver would query name servers to parse this scheme. User and password follow the rules of a plain
        # connection string, so it is parsed as one.
        _nodes(f"mongodb://{hosts[0]}")
    where = scheme + ",".join(_shown(host, port) for host, port in nodes)
    password = user.partition(":")[2]
    secrets = {uri, password, unquote(password)} if password else set()
    return MongoDbUri(where, tuple(sorted(secrets, key=len, reverse=True)))


def open_hosts(uri: str) -> list[str]:
    """Return the hosts of a valid connection string that are reached without TLS; empty if the driver encrypts."""
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
        return []  # pymongo is an optional extra: connecting reports that it is missing.

    try:
        return list(parse_uri(uri, validate=True, warn=False)["nodelist"])
    except (PyMongoError, ValueError) as cause:
        # The text of the error is left out, because it may quote the connection string.
        raise ValueError(
            f"is no connection string that the driver takes ({type(cause).__name__}): it looks like {_EXAMPLE}, "
            f"{_ESCAPED}"
        ) from None


def _shown(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


_SIMPLE = {
    "bool": LogicalType(TypeKind.BOOLEAN, native="bool"),
    "int": LogicalType(TypeKind.INT32, native="int"),
    "long": LogicalType(TypeKind.INT64, native="long"),
    "float": LogicalType(TypeKind.FLOAT32, native="float"),
    "double": LogicalType(TypeKind.FLOAT64, native="double"),
    "decimal128": LogicalType(TypeKind.STRING, native="decimal128"),
    "date": LogicalType(TypeKind.TIMESTAMP, fsp=3, native="date"),
    "day": LogicalType(TypeKind.DATE, native="day"),
    "string": LogicalType(TypeKind.STRING, native="string"),
    "objectId": LogicalType(TypeKind.STRING, native="objectId"),
    # The binary subtype is the same as for the uuid of other databases.
    "uuid": LogicalType(TypeKind.STRING, native="binData(4)"),
    "json": LogicalType(TypeKind.JSON, native="json"),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_BINARY = re.compile(r"binData(?:\(\s*(\d{1,3})\s*\))?")


def type_names() -> tuple[str, ...]:
    """Return every type that the configuration may name. Types with parameters are listed once."""
    return (*_SIMPLE, "decimal(12,2)", "binData")


def parse_type(text: str) -> LogicalType:
    """Return the type that the configuration names by `text`. Raises ValueError with the known types."""
    if text in _SIMPLE:
        return _SIMPLE[text]
    if (decimal := _DECIMAL.fullmatch(text)) is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
        if not 1 <= precision <= DECIMAL_PRECISION_MAX or scale > precision:
            raise ValueError(f'"{text}": at most {DECIMAL_PRECISION_MAX} digits, and no more of them behind the point')
        return LogicalType(TypeKind.DECIMAL, precision=precision, scale=scale, native=f"decimal({precision},{scale})")
    if (binary := _BINARY.fullmatch(text)) is not None and int(binary[1] or 0) <= 255:
        return LogicalType(TypeKind.BINARY, native=f"binData({int(binary[1] or 0)})")
    known = ", ".join([*_SIMPLE, "decimal(p,s)", "binData", "binData(subtype)"])
    raise ValueError(f'"{text}" is none of the types {known}')


def subtype_of(logical: LogicalType) -> int:
    """Return the subtype of BSON binary data that a column takes."""
    match = _BINARY.fullmatch(logical.native)
    return int(match[1] or 0) if match else 0
