"""The locations to which `bench.sinks` copies a table: the section of raycdc's configuration, and Spark's writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HOMES = ("delta", "parquet", "jsonl", "iceberg", "postgres", "mysql", "mongodb", "kafka")

_ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_POSTGRES = "org.postgresql:postgresql:42.7.8"
_MONGODB = "org.mongodb.spark:mongo-spark-connector_2.13:10.5.0"


@dataclass(frozen=True, slots=True)
class Home:
    """An empty location. Without `format` Spark has no writer for it here."""

    section: str
    format: str = ""
    options: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    jars: tuple[str, ...] = ()


def jars(coordinates: str) -> tuple[str, ...]:
    """Return the jars of one artifact, downloaded once."""
    from raycdc.sandbox.cache import build_once
    from raycdc.spark.artifacts import fetch

    def download(into: Path) -> None:
        fetch(into, [coordinates])

    return tuple(str(jar) for jar in sorted(build_once(coordinates.split(":")[1], download).glob("*.jar")))


@contextmanager
def home(kind: str, folder: Path) -> Iterator[Home]:
    """Provide a location of `kind`: a folder, or a server that runs within the block."""
    path = folder / "target"
    if kind in ("delta", "parquet", "jsonl"):
        yield Home(f'type = "{kind}"\npath = "{path}"', {"jsonl": "json"}.get(kind, kind))
    elif kind == "iceberg":
        conf = {
            "spark.sql.catalog.peer": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.peer.type": "hadoop",
            "spark.sql.catalog.peer.warehouse": str(folder / "peer"),
        }
        yield Home(f'type = "iceberg"\npath = "{path}"', "iceberg", conf=conf, jars=jars(_ICEBERG))
    else:
        with _SERVERS[kind]() as found:
            yield found


@contextmanager
def _postgres() -> Iterator[Home]:
    from raycdc.sandbox.servers import PostgresServer

    with PostgresServer() as server:
        url = f"jdbc:{server.url()}"
        options = {"url": url, "user": server.user, "password": server.password, "dbtable": "peer"}
        yield Home(_jdbc(url, server.user, server.password), "jdbc", options, jars=jars(_POSTGRES))


@contextmanager
def _mysql() -> Iterator[Home]:
    from raycdc.sandbox.servers import MariaDbServer

    with MariaDbServer({"innodb_buffer_pool_size": "512M"}) as server:
        server.execute("CREATE DATABASE home")
        url = f"jdbc:mysql://127.0.0.1:{server.port}/home"
        options = {
            "url": f"{url}?rewriteBatchedStatements=true",
            "driver": "com.mysql.cj.jdbc.Driver",
            "user": "root",
            "password": server.root_password,
            "dbtable": "peer",
        }
        yield Home(_jdbc(url, "root", server.root_password), "jdbc", options)


@contextmanager
def _mongodb() -> Iterator[Home]:
    from raycdc.sandbox.servers import MongoDbServer

    with MongoDbServer() as server:
        options = {"connection.uri": server.uri, "database": "peer", "collection": "standard"}
        yield Home(f'type = "mongodb"\nuri = "{server.uri}"', "mongodb", options, jars=jars(_MONGODB))


@contextmanager
def _kafka() -> Iterator[Home]:
    """Provide a topic.

    Spark's writer for Kafka is not available as one artifact with its dependencies, so there is no peer.
    """
    from raycdc.sandbox.servers import KafkaServer

    with KafkaServer() as server:
        yield Home(f'type = "kafka"\nbootstrap_servers = "{server.bootstrap_servers}"\nformat = "debezium-json"')


def _jdbc(url: str, user: str, password: str) -> str:
    return f'type = "jdbc"\nurl = "{url}"\nuser = "{user}"\npassword = "{password}"'


_SERVERS = {"postgres": _postgres, "mysql": _mysql, "mongodb": _mongodb, "kafka": _kafka}
