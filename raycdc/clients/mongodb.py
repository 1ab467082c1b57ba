"""How often MongoDB's driver tries a server that does not answer: its monitors and pools wait for their time.

Each client has a thread per server that asks it twice a second while somebody waits for it, and pools that connect when
they are asked; a process has several clients. The driver tells of both before it connects, on the thread that does.
(pymongo's manual, "monitoring"; the specification "Connection Monitoring and Pooling".)

MongoDB servers whose certificates the driver refuses: told apart from servers that are away, and explained.

Another password for a MongoDB client that is there: its streams and cursors go on, and it logs in again by itself.

The driver has no word for that; its pools ask the client's settings at each login. (pymongo 4, `PoolOptions`.)

The texts of MongoDB's errors without the values of rows that its servers and its driver quote. Pure.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from pymongo import MongoClient, monitoring
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from raycdc.core.certificate_faults import TlsServer, first_fault
from raycdc.core.connection_attempts import TRIES

#: How long the driver looks for a server before whoever asked hears that there is none: waiting longer is ours, which
#: people are reported (`raycdc.core.retry`). A ``serverSelectionTimeoutMS`` in the connection string goes before.
SELECTION_TIMEOUT_MS = 5_000
Address = tuple[str, int | None]


def spaced() -> list[monitoring._EventListener]:
    """Return the listeners for a client's ``event_listeners``."""
    return [_Heartbeats(), _Connections()]


def _named(address: Address) -> str:
    host, port = address
    return f"{host}:{port}"


class _Heartbeats(monitoring.ServerHeartbeatListener):
    """Reports to `TRIES` when the driver's monitors try a server, and whether it answered."""

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None:
        if not event.awaited:  # Else the connection is there, and the server answers when it has news.
            TRIES.space(_named(event.connection_id))

    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        TRIES.answered(_named(event.connection_id))

    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        """The next one waits."""


class _Connections(monitoring.ConnectionPoolListener):
    """Reports to `TRIES` when a pool opens a connection, and whether it was made."""

    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        TRIES.space(_named(event.address))

    def connection_ready(self, event: monitoring.ConnectionReadyEvent) -> None:
        TRIES.answered(_named(event.address))

    def pool_created(self, event: monitoring.PoolCreatedEvent) -> None: ...

    def pool_ready(self, event: monitoring.PoolReadyEvent) -> None: ...

    def pool_cleared(self, event: monitoring.PoolClearedEvent) -> None: ...

    def pool_closed(self, event: monitoring.PoolClosedEvent) -> None: ...

    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None: ...

    def connection_check_out_started(self, event: monitoring.ConnectionCheckOutStartedEvent) -> None: ...

    def connection_check_out_failed(self, event: monitoring.ConnectionCheckOutFailedEvent) -> None: ...

    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None: ...

    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None: ...


#: Python's TLS error. The driver's text has it once for each server whose certificate was refused.
_REFUSED = "CERTIFICATE_VERIFY_FAILED"


def refused_certificates(client: MongoClient[Any], uri: str, cause: PyMongoError, *, key_path: str) -> str:
    """Which certificate is refused, why, and the cure, where `cause` says that of every server that the driver knows;
    else empty: one that is away may come back. `uri` is the connection string of the client, which the configuration
    has at `key_path`. The server is asked once more.
    """
    servers = client.topology_description.server_descriptions()
    text = str(cause).partition(", Timeout: ")[0]
    if not servers or text.count(_REFUSED) < len(servers):
        return ""
    # The client keeps the loaded certificates, and not the path of their file.
    given = parse_uri(uri, validate=True, warn=False)["options"]
    ca = given.get("tlsCAFile")
    checked = (
        TlsServer(
            host,
            port or 27017,
            ca_key=f"tlsCAFile of {key_path}",
            host_key=key_path,
            ca=None if ca is None else str(ca),
            checks_name=not given.get("tlsAllowInvalidHostnames"),
        )
        for host, port in servers
    )
    return first_fault(checked) or f"{', '.join(f'{host}:{port}' for host, port in servers)}: {text}"


#: The private attribute of `PoolOptions` that holds the account, under its mangled name.
_ACCOUNT = "_PoolOptions__credentials"


def renew_account(client: MongoClient[Any], uri: str) -> None:
    """Let new connections of `client` log in as the connection string `uri` says; nothing where that is none."""
    with suppress(PyMongoError, ValueError, AttributeError):
        fresh: MongoClient[Any] = MongoClient(uri, connect=False)
        setattr(client.options.pool_options, _ACCOUNT, fresh.options.pool_options._credentials)
        fresh.close()


#: A command that its user may not give is told as it came, with the keys of a query and the documents that are no
#: sequence of their own (mongod, `commands.cpp`).
_DENIED = re.compile(r"not authorized on (?P<database>\S+) to execute command \{ (?P<command>\w+):.*", re.DOTALL)
#: Values of rows follow these words in an error: the driver's copy of the reply has the document that a validator
#: refused, or the duplicate key.
_QUOTES = (", full error:", " dup key:")


def redacted(text: str) -> str:
    """`text` of a server or of the driver, as far as it says nothing of a row."""
    for begins in _QUOTES:
        text = text.partition(begins)[0]
    return _DENIED.sub(r"not authorized on \g<database> to execute command \g<command>", text)


def denied_database(text: str) -> str:
    """The database in which a user may not give a command; empty if `text` does not say so."""
    found = _DENIED.match(text)
    return found["database"] if found else ""
