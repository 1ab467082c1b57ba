"""The kinds of sandbox servers, by the names that people type.

Object stores, and an Iceberg catalog on such a store, have no shop; they give their sections of a configuration.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Self

from raycdc.errors import ConfigError
from raycdc.sandbox.servers import (
    AzuriteServer,
    GcsServer,
    IcebergRestServer,
    KafkaServer,
    MariaDbServer,
    MongoDbServer,
    MotoServer,
    MySqlNewestServer,
    MySqlServer,
    PostgresServer,
    S3MockServer,
)
from raycdc.sandbox.servers.private import PrivateServer
from raycdc.sandbox.trials.databases import MariaDbSandbox, MySqlSandbox, PostgresSandbox
from raycdc.sandbox.trials.kafka import KafkaSandbox
from raycdc.sandbox.trials.mongodb import MongoDbSandbox
from raycdc.sandbox.trials.trial import SandboxServer

#: The existing bucket or container.
BUCKET = "lake"


class ObjectStoreSandbox(SandboxServer):
    """An object store with an empty bucket. It accepts every key."""

    title: ClassVar[str] = "An object store"

    def __init__(self, server: MotoServer | S3MockServer | AzuriteServer | GcsServer) -> None:
        super().__init__(server)
        self._store = server

    def prepare(self) -> None:
        if isinstance(self._store, AzuriteServer):
            self._store.create_container(BUCKET)
        else:
            self._store.create_bucket(BUCKET)

    @property
    def version(self) -> str:
        kinds = {MotoServer: "S3 (moto)", S3MockServer: "S3 (S3Mock)", AzuriteServer: "Azure's blobs (Azurite)"}
        return kinds.get(type(self._store), "Google Cloud Storage (fake-gcs-server)")

    @property
    def url(self) -> str:
        scheme = {AzuriteServer: "az", GcsServer: "gs"}.get(type(self._store), "s3")
        return f"{scheme}://{BUCKET}/tables"

    @property
    def piece(self) -> str:
        sink = f'[sink]\ntype = "delta"\npath = "{self.url}"\n'
        store = self._store
        if isinstance(store, AzuriteServer):
            keys = f'account = "{store.account}"\naccount_key = "{store.key}"\n'
            return f'{sink}\n[storage]\nendpoint = "{store.endpoint}"\n{keys}allow_http = true\n'
        return sink + store.section


class CatalogSandbox(SandboxServer):
    """Iceberg's REST catalog, on its own S3 server."""

    title: ClassVar[str] = "Iceberg's REST catalog"

    def __init__(self, *, port: int | None = None) -> None:
        self._store = MotoServer()
        catalog = IcebergRestServer(self._store, f"s3://{BUCKET}/tables", port=port)
        super().__init__(catalog)
        self._catalog = catalog
        self._all = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            started.callback(self._catalog.close)
            server: PrivateServer = started.enter_context(self._store)
            assert server is self._store
            self._store.create_bucket(BUCKET)
            started.enter_context(self._catalog)
            self._all = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()

    @property
    def url(self) -> str:
        return self._catalog.uri

    @property
    def piece(self) -> str:
        return f'[sink]\ntype = "iceberg"\ncatalog = {{ type = "rest", uri = "{self.url}" }}\n{self._store.section}'


Maker = Callable[[int | None], SandboxServer]


@dataclass(frozen=True, slots=True)
class SandboxKind:
    """A kind of sandbox server: a summary, and a function that creates a server on a given port or on any port."""

    summary: str
    make: Maker
    #: The usual port of such servers; 0: none.
    standard_port: int = 0


#: The kinds of servers with a shop.
SOURCES: Mapping[str, SandboxKind] = {
    "mariadb": SandboxKind("MariaDB, source or target", lambda port: MariaDbSandbox(MariaDbServer(port=port)), 3306),
    "mysql": SandboxKind("MySQL 8.0, source or target", lambda port: MySqlSandbox(MySqlServer(port=port)), 3306),
    "mysql57": SandboxKind(
        "MySQL 5.7, source or target", lambda port: MySqlSandbox(MySqlServer(version="5.7", port=port)), 3306
    ),
    "mysql-newest": SandboxKind(
        "MySQL 9, from Debian's packages", lambda port: MySqlSandbox(MySqlNewestServer(port=port)), 3306
    ),
    "mongodb": SandboxKind(
        "MongoDB's protocol (an emulation), source or target",
        lambda port: MongoDbSandbox(MongoDbServer(port=port)),
        27017,
    ),
    "kafka": SandboxKind("Kafka, source or target", lambda port: KafkaSandbox(KafkaServer(port=port)), 9092),
}

KINDS: Mapping[str, SandboxKind] = {
    **SOURCES,
    "postgres": SandboxKind("PostgreSQL, target", lambda port: PostgresSandbox(PostgresServer(port=port)), 5432),
    "s3": SandboxKind("S3 (moto), for lakes and states", lambda port: ObjectStoreSandbox(MotoServer(port=port))),
    "s3mock": SandboxKind(
        "S3 (S3Mock), for lakes and states", lambda port: ObjectStoreSandbox(S3MockServer(port=port))
    ),
    "azurite": SandboxKind(
        "Azure's blobs (Azurite), for lakes and states", lambda port: ObjectStoreSandbox(AzuriteServer(port=port))
    ),
    "gcs": SandboxKind(
        "Google Cloud Storage's protocol, for lakes and states", lambda port: ObjectStoreSandbox(GcsServer(port=port))
    ),
    "iceberg-rest": SandboxKind(
        "Iceberg's REST catalog with its own S3 server", lambda port: CatalogSandbox(port=port)
    ),
}


def new_trial(kind: str, *, port: int | None = None, standard: bool = False) -> SandboxServer:
    """Return a sandbox server of one of `KINDS`, which a ``with`` block starts.

    The server uses `port` if it is given; `ConfigError` is raised if the port is in use. If `standard` is True and no
    port is given, the usual port is used if it is free. The first start of a kind on a machine downloads the server,
    which may take minutes. A `ServerError` names missing parts.
    """
    found = KINDS[kind]
    # The port is checked before the start, because a client that waits for the new server would find the existing one.
    if port is not None and not _is_free(port):
        raise ConfigError(f"Port {port} of {PrivateServer.host} is in use. Name another one, or leave --port out.")
    if port is None and standard and found.standard_port and _is_free(found.standard_port):
        port = found.standard_port
    return found.make(port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        if probe.connect_ex((PrivateServer.host, port)) == 0:
            return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((PrivateServer.host, port))
        except OSError:
            return False
    return True
