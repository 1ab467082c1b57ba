"""Connections to MongoDB, and the translation of its errors into raycdc's errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pymongo import MongoClient
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    ConnectionFailure,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.uri_parser import parse_uri

from raycdc.clients.logins import LOGINS, READ_AGAIN
from raycdc.clients.mongodb import SELECTION_TIMEOUT_MS, redacted, refused_certificates, renew_account, spaced
from raycdc.config import Secret
from raycdc.connectors.mongodb.bson.documents import Document
from raycdc.core.activity import note
from raycdc.core.secrets import newest
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError
from raycdc.source.as_begun import LogOwner

Client = MongoClient[Document]

#: The oldest supported version; change streams of databases exist since then, too.
VERSION_MIN = (4, 0)
#: The first version whose change streams report their position while nothing happens.
VERSION_WITH_POSITIONS = (4, 0, 7)
#: The first version that reports the documents that it drops from a capped collection.
VERSION_WITH_CAPPED_EVENTS = (5, 0)
#: The codes of temporary errors: nodes that step down, start or stop, and lost cursors (MongoDB manual, "Error Codes";
#: the drivers' list of retryable reads, and 43 CursorNotFound).
_RETRYABLE_CODES = frozenset({6, 7, 43, 50, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436})
UNAUTHORIZED = 13
#: The owner of a router's log. States have an empty name for a router, which differs from any replica set's name.
MONGOS = "a mongos or no replica set"
_AUTHENTICATION_FAILED = 18
#: The configured address of each client.
_SECRETS: WeakKeyDictionary[Client, Secret] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class MongoDbServerInfo:
    """The properties of a server. `replica_set` is empty for a server outside of replica sets, and for a ``mongos``."""

    address: str
    version: tuple[int, ...]
    replica_set: str
    is_mongos: bool

    @property
    def owner(self) -> LogOwner:
        """Return the owner of the log to which positions belong."""
        return LogOwner(self.replica_set or MONGOS, self.address, "replica set", "source.uri")

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version[:3]))


def connect(uri: Secret, *, key_path: str = "source.uri") -> Client:
    """Return a client without contacting a server. Raises `ConfigError` for an invalid connection string.

    `key_path` is its configuration key.
    """
    try:
        text = newest(uri.reveal())
        options = parse_uri(text, validate=True, warn=False)["options"]
        known = {name.lower() for name in options}
        ours: Any = {} if "serverselectiontimeoutms" in known else {"serverSelectionTimeoutMS": SELECTION_TIMEOUT_MS}
        client: Client = MongoClient(text, appname="raycdc", event_listeners=spaced(), **ours)
        _SECRETS[client] = uri
        return client
    except (InvalidURI, ConfigurationError, ValueError) as cause:
        # The text of the error is left out, because it may quote the string with its password.
        raise ConfigError(
            f"{key_path} is no connection string that the driver takes ({type(cause).__name__}). It looks like "
            "mongodb://user:password@host:27017/?replicaSet=rs0, with special characters escaped as %XX."
        ) from None


def probe(client: Client, *, key_path: str = "source.uri") -> MongoDbServerInfo:
    """Query a server's version and kind. Raises `SourceError` if it is too old."""
    with errors(client, key_path=key_path):
        hello = client.admin.command("hello")
        version = tuple(client.server_info()["versionArray"][:3])
    info = MongoDbServerInfo(address_of(client), version, hello.get("setName", ""), hello.get("msg") == "isdbgrid")
    if info.version[:2] < VERSION_MIN:
        raise SourceError(f"{info.address} is MongoDB {info.version_text}; raycdc needs 4.0 or later.")
    return info


def address_of(client: Client, key_path: str = "source.uri") -> str:
    """Return the client's address for messages, without credentials."""
    nodes = sorted(f"{host}:{port}" for host, port in client.nodes)
    return ",".join(nodes) or f"the MongoDB of {key_path}"


@contextmanager
def errors(client: Client, what: str = "", *, key_path: str = "source.uri") -> Iterator[None]:
    """Turn driver errors into `SourceUnavailableError` if a retry may help, else into `SourceError`.

    `key_path` is the configuration key of the address.
    """
    if what:
        note(what)
    try:
        yield
        if client in _SECRETS:
            LOGINS.accepted(key_path, str(_SECRETS[client].reveal()))
    except OperationFailure as cause:
        raise _refused(client, what, cause, key_path) from cause
    except (AutoReconnect, ConnectionFailure) as cause:
        secret = _SECRETS[client].reveal() if client in _SECRETS else ""
        if secret and (refused := refused_certificates(client, newest(secret), cause, key_path=key_path)):
            raise SourceError(f"No TLS connection to {refused}") from cause
        where = address_of(client, key_path)
        advice = f" Check {key_path} and that the server is running." if _no_server(cause) else ""
        raise SourceUnavailableError(
            f"{where} does not answer{what and f' ({what})'}: {_without_topology(cause)}.{advice}"
        ) from cause
    except PyMongoError as cause:
        raise SourceError(f"{address_of(client)}{what and f', {what}'}: {cause}") from cause


def _no_server(cause: PyMongoError) -> bool:
    return isinstance(cause, ServerSelectionTimeoutError)


def _without_topology(cause: PyMongoError) -> str:
    """Return the driver's text without its description of the client and the topology, which only adds noise."""
    return re.sub(r" \(configured timeouts: [^()]*\)", "", str(cause).partition(", Timeout: ")[0]).rstrip(".")


def _refused(client: Client, what: str, cause: OperationFailure, key_path: str) -> SourceError:
    text = redacted((cause.details or {}).get("errmsg") or str(cause))
    where = f"{address_of(client)}{what and f', {what}'}"
    if cause.code in _RETRYABLE_CODES or cause.has_error_label("RetryableError"):
        return SourceUnavailableError(f"{where}: {text} (code {cause.code})")
    secret = _SECRETS[client].reveal() if client in _SECRETS else ""
    if cause.code == _AUTHENTICATION_FAILED and LOGINS.may_change(key_path, str(secret), secret):
        renew_account(client, newest(secret))
        return SourceUnavailableError(f"{where}: {text}. {READ_AGAIN}.")
    if cause.code == _AUTHENTICATION_FAILED:
        return SourceError(f"{where}: the user or the password of {key_path} is wrong, or its authSource: {text}")
    if cause.code == UNAUTHORIZED:
        return SourceError(
            f'{where}: {text}. Grant the account of {key_path} the role "read" on each database that is read.'
        )
    return SourceError(f"{where}: {text} (code {cause.code})")
