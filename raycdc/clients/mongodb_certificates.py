"""MongoDB servers whose certificates the driver refuses: told apart from servers that are away, and explained."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from raycdc.certificate_faults import TlsServer, first_fault

#: Of Python's TLS, once for each server in the driver's text.
_REFUSED = "CERTIFICATE_VERIFY_FAILED"


def refused_certificates(client: MongoClient[Any], uri: str, cause: PyMongoError, *, place: str) -> str:
    """Which certificate is refused, why, and the cure, where `cause` says that of every server that the driver knows;
    else empty: one that is away may come back. `uri` is the connection string of the client, which the configuration
    has at `place`. The server is asked once more.
    """
    servers = client.topology_description.server_descriptions()
    text = str(cause).partition(", Timeout: ")[0]
    if not servers or text.count(_REFUSED) < len(servers):
        return ""
    # Of the file, the client has what is made of it alone.
    given = parse_uri(uri, validate=True, warn=False)["options"]
    ca = given.get("tlsCAFile")
    checked = (
        TlsServer(
            host,
            port or 27017,
            ca_key=f"tlsCAFile of {place}",
            host_key=place,
            ca=None if ca is None else str(ca),
            checks_name=not given.get("tlsAllowInvalidHostnames"),
        )
        for host, port in servers
    )
    return first_fault(checked) or f"{', '.join(f'{host}:{port}' for host, port in servers)}: {text}"
