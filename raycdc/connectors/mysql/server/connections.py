"""Opens connections to the server of a source: for any queries, for queries at the log's server, and to the log
itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import close_quietly, connect, is_of_locked_table
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.log.log_proof import prove
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.server.checks import ServerIdsInUseError, lease_server_id
from raycdc.connectors.mysql.server.client import MySqlServerInfo, ensure_available, probe
from raycdc.connectors.mysql.server.failover import require_same_server
from raycdc.errors import SourceUnavailableError

#: The time after a heartbeat when the server has certainly noticed that a log connection is gone.
_HEARTBEAT_MARGIN_S = 10.0
#: The longest wait of a catch-up stream until the main log has its server id. The two are opened together.
_ID_WITHIN_S = 5.0
_PAUSE_S = 0.02


class SharedConnection:
    """One connection for consecutive queries of one thread; close it at the end.

    After an error a new connection is opened, because the session's state is unknown. Only a lock timeout leaves a
    session unchanged, so its connection is used further.
    """

    def __init__(self, connect: Callable[[], Connection[Any]]) -> None:
        self._connect = connect
        self._connection: Connection[Any] | None = None

    @contextmanager
    def borrow(self) -> Iterator[Connection[Any]]:
        """Open the connection if necessary, and yield it. Blocks, and raises the errors of connecting."""
        if self._connection is None:
            self._connection = self._connect()
        try:
            yield self._connection
        except BaseException as error:
            if not is_of_locked_table(error.__cause__):
                self.close()
            raise

    def close(self) -> None:
        """Close the connection, if it is open."""
        if (connection := self._connection) is not None:
            self._connection = None
            close_quietly(connection)


class Connections:
    """The factory of connections, by the configuration. Picklable: it holds none."""

    def __init__(self, config: MySqlSourceConfig) -> None:
        self._config = config
        self._info: MySqlServerInfo | None = None
        #: The server id with which this process follows the log.
        self._leased: int | None = None

    def connect(self) -> Connection[Any]:
        return connect(self._config.settings())

    def connect_to(self, position: BinlogOffset) -> Connection[Any]:
        """Return a connection to the server of `position`, for answers that are compared with its log.

        Raises `SourceUnavailableError` if another server answers.
        """
        connection = self.connect()
        try:
            require_same_server(connection, probe(connection), position)
        except BaseException:
            close_quietly(connection)
            raise
        return connection

    def server(self) -> MySqlServerInfo:
        """Return the server as it was when this process first queried it."""
        if self._info is None:
            with closing(self.connect()) as connection:
                self._info = probe(connection)
        return self._info

    def open_log(self, start: BinlogOffset) -> BinlogStream:
        """Open the log from `start` on, under an unused server id. Raises `LogLostError`."""
        return self._stream(start, self._ids())[0]

    def follow(self, start: BinlogOffset) -> BinlogStream:
        """Open the log with `open_log`, for as long as this process reads."""
        self._leased = None
        stream, self._leased = self._stream(start, self._ids())
        return stream

    def follow_catch_up(self, start: BinlogOffset) -> BinlogStream:
        """Open a catch-up stream, with a different server id than the main log, after the main log has its id.

        If there is no unused id, raise `SourceUnavailableError`, because another job may free its id.
        """
        deadline = time.monotonic() + _ID_WITHIN_S
        while self._leased is None:
            if time.monotonic() > deadline:
                raise SourceUnavailableError("the main log connection has no server id yet")
            time.sleep(_PAUSE_S)
        try:
            return self._stream(start, [id_ for id_ in self._ids() if id_ != self._leased])[0]
        except ServerIdsInUseError as error:
            raise SourceUnavailableError(str(error)) from error

    def _ids(self) -> Sequence[int]:
        return range(self._config.server_id.first, self._config.server_id.last + 1)

    def _stream(self, start: BinlogOffset, ids: Sequence[int]) -> tuple[BinlogStream, int]:
        """Open the log from `start` on; return it with the server id from `ids` that it uses."""
        heartbeat_s = self._config.heartbeat.total_seconds()
        connection = self.connect()
        try:
            # Checked on the connection itself: several servers may have one address.
            info = probe(connection)
            require_same_server(connection, info, start)
            ensure_available(connection, info, start)
            prove(partial(self.connect_to, start), info, start)
            server_id = lease_server_id(connection, info, ids, wait_s=heartbeat_s + _HEARTBEAT_MARGIN_S)
        except BaseException:
            close_quietly(connection)
            raise
        stream = BinlogStream(
            connection,
            server_id=server_id,
            offset=start,
            heartbeat_s=heartbeat_s,
            connect_again=lambda: self.connect_to(start),
        )
        return stream, server_id
