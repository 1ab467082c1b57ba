"""Helpers for MongoDB's driver: pauses between connection attempts, certificate errors, changed passwords, redacted
texts.

Each client has a monitoring thread for each server, which connects twice a second while a request waits for the server,
and pools, which connect on demand. A process has several clients. The driver reports each connection attempt before it
connects, on the connecting thread, so the listeners of this module can delay the attempt. (pymongo's manual,
"monitoring"; the specification "Connection Monitoring and Pooling".)

Servers whose certificates the driver refuses are distinguished from unreachable servers, and the fault is explained. An
existing client can get a new password: its streams and cursors go on, and it logs in again by itself.

The driver has no API for that, but its pools read the client's settings at each login. (pymongo 4, `PoolOptions`.)

Error texts are stripped of the values of rows that servers and the driver quote.
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

#: Seconds for which the driver looks for a server before it reports that there is none. Longer waits are retries of
#: raycdc, which are reported to people (`raycdc.core.retry`). A ``serverSelectionTimeoutMS`` in the connection string
#: takes precedence.
SELECTION_TIMEOUT_MS = 5_000
Address = tuple[str, int | None]


def spaced() -> list[monitoring._EventListener]:
    """Return the listeners for a client's ``event_listeners``."""
    return [_Heartbeats(), _Connections()]


def _named(address: Address) -> str:
    host, port = address
    return f"{host}:{port}"


class _Heartbeats(monitoring.ServerHeartbeatListener):
    """Reports to `TRIES` when the driver's monitors try a server, and if it answered."""

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None:
        if not event.awaited:  # Otherwise the connection exists, and the server answers when it has changes.
            TRIES.space(_named(event.connection_id))

    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        TRIES.answered(_named(event.connection_id))

    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        """Note that the server did not answer; the next attempt waits."""


class _Connections(monitoring.ConnectionPoolListener):
    """Reports to `TRIES` when a pool opens a connection, and if that succeeded."""

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


#: The beginning of Python's TLS error. The driver's text contains it once for each server whose certificate was
#: refused.
_REFUSED = "CERTIFICATE_VERIFY_FAILED"


def refused_certificates(client: MongoClient[Any], uri: str, cause: PyMongoError, *, key_path: str) -> str:
    """Return a text about the refused certificates, with the reasons and the remedies.

    The text is empty unless `cause` reports a refused certificate for every server that the driver knows, because an
    unreachable server may come back. `uri` is the connection string of the client, which is at `key_path` in the
    configuration. Asks each server once more.
    """
    servers = client.topology_description.server_descriptions()
    text = str(cause).partition(", Timeout: ")[0]
    if not servers or text.count(_REFUSED) < len(servers):
        return ""
    # The client keeps the loaded certificates, but not the path of their file.
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
    """Let new connections of `client` log in with the account of the connection string `uri`.

    Does nothing if `uri` has no account.
    """
    with suppress(PyMongoError, ValueError, AttributeError):
        fresh: MongoClient[Any] = MongoClient(uri, connect=False)
        setattr(client.options.pool_options, _ACCOUNT, fresh.options.pool_options._credentials)
        fresh.close()


#: The error about a denied command quotes the command, with the keys of a query and its embedded documents (mongod,
#: `commands.cpp`).
_DENIED = re.compile(r"not authorized on (?P<database>\S+) to execute command \{ (?P<command>\w+):.*", re.DOTALL)
#: After these words an error quotes values of rows: the document that a validator refused, or the duplicate key.
_QUOTES = (", full error:", " dup key:")


def redacted(text: str) -> str:
    """Return the `text` of a server or of the driver without the parts that may quote a row."""
    for begins in _QUOTES:
        text = text.partition(begins)[0]
    return _DENIED.sub(r"not authorized on \g<database> to execute command \g<command>", text)


def denied_database(text: str) -> str:
    """Return the database in which a user may not run a command; empty if `text` reports something else."""
    found = _DENIED.match(text)
    return found["database"] if found else ""
