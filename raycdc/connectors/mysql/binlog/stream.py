"""The log connection: hands out complete events from a position on.

`BinlogStream` is the only part of the log path that does I/O. Its one reading thread calls `read` in a loop and feeds
the result to a `BinlogDecoder`; another thread may call `close` at any time. It never retries and never sleeps: a
lost connection is a `SourceUnavailableError`, after which the caller opens a new stream at the decoder's position.

Back-pressure: a caller that stops reading leaves the server blocked in a write; ``net_write_timeout`` of the session
is raised (by `connection.connect`, and again by `LogDump`) so that it waits instead of dropping us.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from contextlib import suppress
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import close_quietly
from raycdc.connectors.mysql.binlog.event_buffer import EventBuffer
from raycdc.connectors.mysql.binlog.log_dump import FileBeginning, LogDump
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.errors import CorruptLogError, SourceError, SourceUnavailableError

#: The server says at least this often that an idle log has nothing else, so that people see how far behind they are.
_SAYS_EVERY_S = 1.0
#: Received at a time at least, however few bytes are asked for: a call to the system costs as much as so many.
_RECEIVE_BYTES_MIN = 4 << 10
#: Silence of this many heartbeats means that the peer is gone.
_SILENT_HEARTBEATS = 3


class BinlogStream:
    """A replication connection from `offset` on, reading as the replica `server_id`.

    `connection` is a fresh connection (see `connection.connect`); the stream owns it from now on. The server sends a
    heartbeat every `heartbeat_s` when the log is idle. Raises `SourceError` and its kinds as `read` does.
    """

    def __init__(
        self, connection: Connection[Any], *, server_id: int, offset: BinlogOffset, heartbeat_s: float = 30.0
    ) -> None:
        self._connection = connection
        self._dump = LogDump(connection, server_id=server_id, offset=offset)
        self._silence_max_s = max(_SILENT_HEARTBEATS * heartbeat_s, 10.0)
        heartbeat_s = min(heartbeat_s, _SAYS_EVERY_S)
        self._closed = False
        self._buffer = EventBuffer()
        self._failure: SourceError | CorruptLogError | None = None
        self.received_bytes = 0
        try:
            from_the_beginning = self._dump.start(heartbeat_s=heartbeat_s)
        except BaseException:
            close_quietly(connection)
            raise
        #: While the beginning of a file is passed over.
        self._beginning = FileBeginning(offset, self._dump.address) if from_the_beginning else None
        self._socket: socket.socket = connection._sock
        self._socket.settimeout(0)
        self._poll = select.poll()
        self._poll.register(self._socket.fileno(), select.POLLIN)
        self._heard_at = time.monotonic()

    def __repr__(self) -> str:
        dump = self._dump
        return f"BinlogStream({dump.address}, server_id={dump.server_id}, from={dump.offset})"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def is_silent(self) -> bool:
        """Whether the server says nothing, although it should have said that there is nothing else."""
        return time.monotonic() - self._heard_at > 2 * _SAYS_EVERY_S

    def read(self, *, bytes_max: int, timeout_s: float) -> memoryview:
        """Complete events received, at least one unless nothing came within `timeout_s`; empty after `close`.

        What lies before our position in a file that is sent from its beginning does not count.
        About `bytes_max` at most, except that one event may be larger. The memory is valid until the next call.
        Raises `SourceUnavailableError` when the connection is lost, `LogLostError` when the server no longer has the
        position, `CorruptLogError` when it cannot read its own log, `SourceError` when it refuses us.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            events = self._read(bytes_max, deadline)
            if self._beginning is None or len(events) == 0:
                return events
            rest = self._beginning.rest_of(bytes(events))
            if self._beginning.is_over:
                self._beginning = None
            if rest or time.monotonic() >= deadline:
                return memoryview(rest)

    def close(self) -> None:
        """Close the connection; a `read` that waits in another thread returns."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        close_quietly(self._connection)

    def _read(self, bytes_max: int, deadline: float) -> memoryview:
        buffer = self._buffer
        buffer.drop_taken()
        while not self._closed and self._failure is None:
            complete = buffer.complete
            if complete >= bytes_max:
                break
            wait_s = 0.0 if complete else max(0.0, deadline - time.monotonic())
            if not self._receive(wait_s, bytes_max):
                break
        if buffer.complete == 0 and not self._closed:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() - self._heard_at > self._silence_max_s:
                raise SourceUnavailableError(
                    f"{self._dump.address} sent neither events nor heartbeats for {self._silence_max_s:.0f} s; "
                    "the connection is taken for lost."
                )
        return buffer.take()

    def _receive(self, wait_s: float, bytes_max: int) -> bool:
        """Receive once and strip packet headers; False when nothing came within `wait_s`."""
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        if not pending and not self._poll.poll(wait_s * 1000):
            return False
        try:
            count = self._socket.recv_into(self._buffer.free[: max(bytes_max, _RECEIVE_BYTES_MIN)])
        except (ssl.SSLWantReadError, BlockingIOError):
            return True
        except OSError as cause:
            self._failure = None if self._closed else self._dump.lost(str(cause))
            return False
        if count == 0:
            self._failure = None if self._closed else self._dump.lost("the server closed it")
            return False
        self._heard_at = time.monotonic()
        self.received_bytes += count
        try:
            packet = self._buffer.received(count)
        except CorruptLogError as cause:
            self._failure = CorruptLogError(f"{self._dump.address}: {cause}. See which server answers there.")
            return False
        if packet is not None:
            self._failure = self._dump.ended_by(packet[4:])
        return True
