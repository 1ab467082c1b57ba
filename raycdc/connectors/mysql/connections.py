"""Connections to the server of a source: for questions, to the very server whose log is read, and to the log itself."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import close_quietly, connect
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.binlog.stream import BinlogStream
from raycdc.connectors.mysql.checks import lease_server_id
from raycdc.connectors.mysql.client import ServerInfo, ensure_available, probe
from raycdc.connectors.mysql.failover import require_same_server
from raycdc.connectors.mysql.plugin import MySqlSourceConfig

#: Seconds more than a heartbeat until the server has surely noticed that a log connection is gone.
_HEARTBEAT_MARGIN_S = 2.0


class Connections:
    """Opens connections where the configuration says. Picklable: it holds none."""

    def __init__(self, config: MySqlSourceConfig) -> None:
        self._config = config
        self._info: ServerInfo | None = None

    def connect(self) -> Connection[Any]:
        return connect(self._config.settings())

    def connect_to(self, place: BinlogOffset) -> Connection[Any]:
        """A connection to the very server of `place`, for answers whose position is compared with the log's."""
        connection = self.connect()
        try:
            require_same_server(connection, probe(connection), place)
        except BaseException:
            close_quietly(connection)
            raise
        return connection

    def server(self) -> ServerInfo:
        """The server as it was when this process first asked."""
        if self._info is None:
            with closing(self.connect()) as connection:
                self._info = probe(connection)
        return self._info

    def open_log(self, start: BinlogOffset) -> BinlogStream:
        """The log from `start` on, under a server id that nobody else uses. Raises `LogLostError`."""
        config = self._config
        heartbeat_s = config.heartbeat.total_seconds()
        ids = range(config.server_id.first, config.server_id.last + 1)
        connection = self.connect()
        try:
            # Asked on this very connection: behind one address another server may answer the next one.
            info = probe(connection)
            require_same_server(connection, info, start)
            ensure_available(connection, info, start)
            server_id = lease_server_id(connection, info, ids, wait_s=heartbeat_s + _HEARTBEAT_MARGIN_S)
        except BaseException:
            close_quietly(connection)
            raise
        return BinlogStream(connection, server_id=server_id, offset=start, heartbeat_s=heartbeat_s)
