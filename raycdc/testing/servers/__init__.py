"""Private servers for tests and the demo: real ones, on free ports of the loopback interface.

``with MariaDbServer() as server: server.execute("…")``. ``python -m raycdc.testing.servers mariadb`` starts one to play
with.
"""

from raycdc.testing.servers.kafka import KafkaServer
from raycdc.testing.servers.mariadb import MariaDbServer
from raycdc.testing.servers.mongodb import ExternalMongoDb, MongoDb, MongoDbServer, mongodb_for_tests
from raycdc.testing.servers.mysql import MySqlServer
from raycdc.testing.servers.mysql_newest import MySqlNewestServer
from raycdc.testing.servers.postgres import PostgresServer
from raycdc.testing.servers.process import ServerError
from raycdc.testing.servers.server import DatabaseServer

__all__ = [
    "DatabaseServer",
    "ExternalMongoDb",
    "KafkaServer",
    "MariaDbServer",
    "MongoDb",
    "MongoDbServer",
    "MySqlNewestServer",
    "MySqlServer",
    "PostgresServer",
    "ServerError",
    "mongodb_for_tests",
]
