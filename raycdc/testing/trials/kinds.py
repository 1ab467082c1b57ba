"""The kinds of trial servers, by the names that people type."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raycdc.errors import ConfigError
from raycdc.testing.servers import (
    AzuriteServer,
    GcsServer,
    KafkaServer,
    MariaDbServer,
    MongoDbServer,
    MotoServer,
    MySqlNewestServer,
    MySqlServer,
    PostgresServer,
    S3MockServer,
)
from raycdc.testing.servers.private import PrivateServer
from raycdc.testing.trials.databases import MariaDbTrial, MySqlTrial, PostgresTrial
from raycdc.testing.trials.kafka import KafkaTrial
from raycdc.testing.trials.mongodb import MongoDbTrial
from raycdc.testing.trials.stores import CatalogTrial, StoreTrial
from raycdc.testing.trials.trial import Trial

Maker = Callable[[int | None], Trial]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of trial server: what it is, and how one is made, on a given port or on any."""

    summary: str
    make: Maker
    #: Where such servers are usually found; 0: nowhere.
    standard_port: int = 0


#: Those that have a shop.
SOURCES: Mapping[str, Kind] = {
    "mariadb": Kind("MariaDB, source or target", lambda port: MariaDbTrial(MariaDbServer(port=port)), 3306),
    "mysql": Kind("MySQL 8.0, source or target", lambda port: MySqlTrial(MySqlServer(port=port)), 3306),
    "mysql57": Kind(
        "MySQL 5.7, source or target", lambda port: MySqlTrial(MySqlServer(version="5.7", port=port)), 3306
    ),
    "mysql-newest": Kind(
        "MySQL 9, from Debian's packages", lambda port: MySqlTrial(MySqlNewestServer(port=port)), 3306
    ),
    "mongodb": Kind(
        "MongoDB's protocol (an emulation), source or target",
        lambda port: MongoDbTrial(MongoDbServer(port=port)),
        27017,
    ),
    "kafka": Kind("Kafka, source or target", lambda port: KafkaTrial(KafkaServer(port=port)), 9092),
}

KINDS: Mapping[str, Kind] = {
    **SOURCES,
    "postgres": Kind("PostgreSQL, target", lambda port: PostgresTrial(PostgresServer(port=port)), 5432),
    "s3": Kind("S3 (moto), for lakes and states", lambda port: StoreTrial(MotoServer(port=port))),
    "s3mock": Kind("S3 (S3Mock), for lakes and states", lambda port: StoreTrial(S3MockServer(port=port))),
    "azurite": Kind("Azure's blobs (Azurite), for lakes and states", lambda port: StoreTrial(AzuriteServer(port=port))),
    "gcs": Kind("Google Cloud Storage's protocol, for lakes and states", lambda port: StoreTrial(GcsServer(port=port))),
    "iceberg-rest": Kind("Iceberg's REST catalog on an S3 of its own", lambda port: CatalogTrial(port=port)),
}


def new_trial(kind: str, *, port: int | None = None, standard: bool = False) -> Trial:
    """A trial server of one of `KINDS`, to be started as a block.

    `port` is taken as it is; `ConfigError` where it is in use. With `standard` the usual port is taken where none is
    given and it is free. The first start of a kind on a machine may take minutes, because it is downloaded; a
    `ServerError` then says what is missing.
    """
    found = KINDS[kind]
    # Asked before the start: a client that waits for the new server would find the one that is there.
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
