"""``python -m tests.support.servers KIND [--port N] [--no-gtid] [--version 7.0]``: a server to play with.

Runs until Ctrl-C; its data goes with it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable

from raycdc.errors import RaycdcError
from raycdc.sandbox.servers import (
    AzuriteServer,
    DatabaseServer,
    GcsServer,
    IcebergRestServer,
    KafkaServer,
    MariaDbServer,
    MongoDb,
    MongoDbServer,
    MotoServer,
    MySqlNewestServer,
    MySqlServer,
    PostgresServer,
    S3MockServer,
)
from raycdc.sandbox.servers.mongodb import VERSIONS
from raycdc.sandbox.servers.private import PrivateServer
from tests.support.servers.secantusdb import SecantusDb

#: Object stores, and the tests that use each.
STORES: dict[str, Callable[..., PrivateServer]] = {
    "moto": MotoServer,
    "s3mock": S3MockServer,
    "azurite": AzuriteServer,
    "gcs": GcsServer,
    "iceberg-rest": IcebergRestServer,
}


def main(arguments: list[str]) -> int:
    """Start the server, print how to reach it, wait for Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.servers", description=__doc__)
    kinds = ["mariadb", "mariadb-embedded", "mysql80", "mysql57", "mysql-newest", "kafka", "mongodb", "secantusdb"]
    kinds += ["postgres", *STORES]
    parser.add_argument("server", choices=kinds)
    parser.add_argument("action", nargs="?", choices=["start", "prepare"], default="start")
    parser.add_argument("--port", type=int, default=None)
    parser.add_argument("--no-gtid", action="store_true", help="MySQL without GTIDs")
    parser.add_argument("--version", choices=VERSIONS, default="7.0", help="what the emulated MongoDB says it is")
    chosen = parser.parse_args(arguments)
    server: PrivateServer
    match chosen.server:
        case "mariadb":
            server = MariaDbServer(port=chosen.port)
        case "mariadb-embedded":
            server = MariaDbServer(embedded=True, port=chosen.port)
        case "kafka":
            server = KafkaServer(port=chosen.port)
        case "mongodb":
            server = MongoDbServer(port=chosen.port, version=chosen.version)
        case "secantusdb":
            server = SecantusDb(port=chosen.port)
        case "postgres":
            server = PostgresServer(port=chosen.port)
        case kind if kind in STORES:
            server = STORES[kind](port=chosen.port)
        case "mysql80":
            server = MySqlServer(version="8.0", gtid=not chosen.no_gtid, port=chosen.port)
        case "mysql-newest":
            server = MySqlNewestServer(port=chosen.port)
        case _:
            server = MySqlServer(version="5.7", gtid=not chosen.no_gtid, port=chosen.port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        if chosen.action == "prepare":
            server.prepare()
            server.close()
            return 0
        with server:
            print(f"{chosen.server} on {server.host}:{server.port}, pid {server.pid}, data in {server.folder}")
            if isinstance(server, DatabaseServer):
                print(f"mysql -h {server.host} -P {server.port} -uroot -proot", flush=True)
            if isinstance(server, MongoDb):
                print(server.uri, flush=True)
            if isinstance(server, MotoServer | S3MockServer | AzuriteServer):
                print("\n".join(f"export {name}='{value}'" for name, value in server.environment.items()), flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except RaycdcError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
