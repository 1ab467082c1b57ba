"""Private servers for tests and the demo: real ones, on free ports of the loopback interface.

``with MariaDbServer() as server: server.execute("…")``. ``python -m raycdc.testing.servers mariadb`` starts one to play
with.
"""

from raycdc.testing.servers.azurite import AzuriteServer
from raycdc.testing.servers.gcs import GcsServer
from raycdc.testing.servers.iceberg_rest import IcebergRestServer
from raycdc.testing.servers.kafka import KafkaServer
from raycdc.testing.servers.mariadb import MariaDbServer
from raycdc.testing.servers.mongodb import ExternalMongoDb, MongoDb, MongoDbServer
from raycdc.testing.servers.mongodb_choice import mongodb_for_tests
from raycdc.testing.servers.moto import MotoServer
from raycdc.testing.servers.mysql import MySqlServer
from raycdc.testing.servers.mysql_newest import MySqlNewestServer
from raycdc.testing.servers.postgres import PostgresServer
from raycdc.testing.servers.process import ServerError
from raycdc.testing.servers.s3mock import S3MockServer
from raycdc.testing.servers.server import DatabaseServer
from raycdc.testing.servers.store_proxy import StoreProxy

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
    "StoreProxy",
    "mongodb_for_tests",
]
