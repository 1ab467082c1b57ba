"""Private servers for tests and the demo: real ones, on free ports of the loopback interface.

``with MariaDbServer() as server: server.execute("…")``. ``python -m tests.support.servers mariadb`` starts one to try
things on.
"""

from raycdc.sandbox.servers.azurite import AzuriteServer
from raycdc.sandbox.servers.gcs import GcsServer
from raycdc.sandbox.servers.iceberg_rest import IcebergRestServer
from raycdc.sandbox.servers.kafka import KafkaServer
from raycdc.sandbox.servers.mariadb import MariaDbServer
from raycdc.sandbox.servers.mongodb import ExternalMongoDb, MongoDb, MongoDbServer
from raycdc.sandbox.servers.mysql import MySqlServer
from raycdc.sandbox.servers.mysql_newest import MySqlNewestServer
from raycdc.sandbox.servers.postgres import PostgresServer
from raycdc.sandbox.servers.private import ServerError
from raycdc.sandbox.servers.s3 import MotoServer, S3MockServer
from raycdc.sandbox.servers.server import DatabaseServer

__all__ = [
    "AzuriteServer",
    "DatabaseServer",
    "ExternalMongoDb",
    "GcsServer",
    "IcebergRestServer",
    "KafkaServer",
    "MariaDbServer",
    "MongoDb",
    "MongoDbServer",
    "MotoServer",
    "MySqlNewestServer",
    "MySqlServer",
    "PostgresServer",
    "S3MockServer",
    "ServerError",
]
