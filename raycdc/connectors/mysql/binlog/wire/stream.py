"""The log connection: hands out complete events from a position on.

`BinlogStream` is the only part between the server's log and the decoder that does I/O. One thread calls `read` in a
loop and passes the result to a `BinlogDecoder`; another thread may call `close` at any time. It never retries and never
sleeps. If the connection is lost, it raises `SourceUnavailableError`, and the caller opens a new stream at the
decoder's position.

Back-pressure: a caller that stops reading leaves the server blocked in a write; ``net_write_timeout`` of the session is
raised (by `raycdc.clients.mysql.connect`, and again by `LogDump`), so that the server waits instead of closing the
connection.

`EventBuffer` is the memory between the socket and the decoder: the socket receives into `free`; `received` strips the
packets' headers (`packet_loops`), so that events are contiguous; `take` returns the complete events. One thread.

`TornFiles` handles files that end in the middle of an event, because the server died while it wrote it. MariaDB leaves
such a file unchanged, and refuses to send it to its end; MySQL cuts it when it starts. `TornFiles` continues with the
next file of the log. A replica of the server receives only the files after the torn one, too.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pymysql.connections import Connection

from raycdc.clients.mysql import close_quietly
from raycdc.connectors.mysql.binlog.events import parse_format_description
from raycdc.connectors.mysql.binlog.index_loops import FORMAT_DESCRIPTION
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.wire import packet_loops as packets
from raycdc.connectors.mysql.binlog.wire.log_dump import FileBeginning, LogDump, TornLogError, file_after
from raycdc.errors import CorruptLogError, SourceError, SourceUnavailableError

#: The bytes requested from the socket at a time: one system call per megabyte costs nothing, and the buffer stays in
#: the cache.
_RECEIVE_BYTES = 1 << 20
#: The largest event: a server's ``max_allowed_packet`` is at most 1 GiB.
EVENT_BYTES_MAX = 1 << 30


class EventBuffer:
    """The memory between socket and decoder; see the module's docstring.

    It grows to the largest event, and keeps its size.
    """

    def __init__(self) -> None:
        self._raw = np.empty(_RECEIVE_BYTES, np.uint8)
        self._raw_used = 0
        self._out = np.empty(2 * _RECEIVE_BYTES, np.uint8)
        self._state = np.zeros(packets.P_SIZE, np.int64)
        self._given = 0

    @property
    def free(self) -> memoryview:
        """Return the memory that the socket receives into."""
        return self._raw.data[self._raw_used :]

    @property
    def complete(self) -> int:
        """Return the number of bytes of complete events."""
        return int(self._state[packets.P_COMPLETE])

    def take(self) -> memoryview:
        """Return the complete events; valid until `drop_taken`."""
        self._given = self.complete
        return self._out.data[: self._given]

    def drop_taken(self) -> None:
        """Drop the events of the last `take`, and move the incomplete event to the front."""
        state = self._state
        if self._given:
            rest = int(state[packets.P_OUT]) - self._given
            self._out[:rest] = self._out[self._given : self._given + rest]
            state[packets.P_OUT] = rest
            state[packets.P_COMPLETE] = 0
            self._given = 0

    def received(self, count: int) -> bytes | None:
        """Process `count` bytes that were received into `free`.

        Returns the packet by which the server ends the stream, if it is complete.
        """
        self._raw_used += count
        at, last = 0, None
        while True:
            code, at = packets.strip_packets(self._raw, at, self._raw_used, self._out, self._state)
            if code != packets.PACKETS_ROOM:
                break
            if len(self._out) > EVENT_BYTES_MAX:
                raise CorruptLogError(f"an event of the log is larger than {EVENT_BYTES_MAX} bytes")
            self._out = np.concatenate([self._out, np.empty_like(self._out)])
        if code == packets.PACKETS_STATUS:
            packet = self._raw[at : self._raw_used].tobytes()
            if len(packet) >= 4 + int.from_bytes(packet[:3], "little"):
                last = packet
        rest = self._raw_used - at
        self._raw[:rest] = self._raw[at : self._raw_used].copy()
        self._raw_used = rest
        return last


_log = logging.getLogger(__name__)


class TornFiles:
    """The torn files of one stream; see the module's docstring.

    `connect_again` makes another connection to the same server; None: not possible. `is_positioned` is True if the
    requested position is known to be between events.
    """

    def __init__(self, connect_again: Callable[[], Connection[Any]] | None, *, is_positioned: bool) -> None:
        self._connect_again = connect_again
        self._is_positioned = is_positioned
        #: The error of the last torn file that was left, until the next file shows that the server was restarted.
        self._torn: TornLogError | None = None

    def leave(self, torn: TornLogError, position: BinlogOffset) -> tuple[Connection[Any], BinlogOffset]:
        """Return a new connection, and the position at which a dump over it begins.

        The dump begins with the next file. If nothing of the torn file was received yet, the dump begins with the torn
        file, which is read up to `position`, because a position inside an event causes the same error. Raises `torn` if
        there is no next file.
        """
        if self._connect_again is None or (not self._is_positioned and torn.file != position.file):
            raise torn
        connection = self._connect_again()
        if not self._is_positioned:
            self._is_positioned = True
            return connection, BinlogOffset(torn.file, 4)
        file = file_after(connection, torn.file)
        if file is None:
            close_quietly(connection)
            raise torn
        self._torn = torn
        return connection, BinlogOffset(file, 4)

    def inspect(self, events: memoryview, address: str) -> None:
        """Note what the first events of a dump show about its position. Raises `TornLogError`."""
        at = 0
        while at < len(events) and not (self._is_positioned and self._torn is None):
            length = int.from_bytes(events[at + 9 : at + 13], "little")
            if events[at + 4] == FORMAT_DESCRIPTION and self._torn is not None:
                if not parse_format_description(bytes(events[at : at + length])).started:
                    raise self._torn
                _log.warning(
                    "%s died while it wrote %s, whose last transaction is incomplete: it was rolled back, and the log "
                    "continues after it. What the server had committed but not written to its log is not in the "
                    "target: raycdc verify finds it (sync_binlog = 1 prevents it)", address, self._torn.file,
                )  # fmt: skip
                self._torn = None
            # A format that the server sends because a dump begins inside a file has no position.
            self._is_positioned = self._is_positioned or events[at + 13 : at + 17] != bytes(4)
            at += length


#: The server reports an idle log at least this often, so that the displayed lag is recent.
_SAYS_EVERY_S = 1.0
#: The least number of bytes per receive, even if fewer are requested: a system call costs as much as receiving these.
_RECEIVE_BYTES_MIN = 4 << 10
#: After this many heartbeat intervals of silence, the peer counts as gone.
_SILENT_HEARTBEATS = 3


@dataclass(slots=True)
class _Silence:
    """The time since the server's last message. After `lost_s`, the connection counts as lost."""

    lost_s: float
    heard_at: float = field(default_factory=time.monotonic)

    def heard(self) -> None:
        """Note that a message of the server came."""
        self.heard_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds since the last message."""
        return time.monotonic() - self.heard_at


class BinlogStream:
    """A replication connection from `offset` on, reading as the replica `server_id`.

    With `server_id` 0 it ends at the log's end, and affects no other replica. `connection` is a fresh connection
    (`raycdc.clients.mysql.connect`), owned by the stream from now on. `connect_again` makes another connection to the
    same server, to continue after a torn file (`TornFiles`). The server sends a heartbeat every `heartbeat_s` when the
    log is idle. Raises `SourceError` and its subclasses, like `read`.
    """

    def __init__(
        self,
        connection: Connection[Any],
        *,
        server_id: int,
        offset: BinlogOffset,
        heartbeat_s: float = 30.0,
        connect_again: Callable[[], Connection[Any]] | None = None,
    ) -> None:
        self._connection = connection
        self._dump = LogDump(connection, server_id=server_id, offset=offset)
        lost_s = max(_SILENT_HEARTBEATS * heartbeat_s, 10.0)
        heartbeat_s = min(heartbeat_s, _SAYS_EVERY_S)
        self._closed = False
        #: True if the server has sent its whole log, to a stream with the server id 0.
        self.ended = False
        self._buffer = EventBuffer()
        self._failure: SourceError | CorruptLogError | None = None
        self.received_bytes = 0
        try:
            from_the_beginning = self._dump.start(heartbeat_s=heartbeat_s)
        except BaseException:
            close_quietly(connection)
            raise
        #: The beginning of a file, while its events are dropped.
        self._beginning = FileBeginning(offset, self._dump.address) if from_the_beginning else None
        is_positioned = offset.by_gtid or offset.pos == 4 or from_the_beginning
        self._torn_files = TornFiles(connect_again, is_positioned=is_positioned)
        self._listen()
        self._silence = _Silence(lost_s)

    def _listen(self) -> None:
        self._socket: socket.socket = self._connection._sock
        self._socket.settimeout(0)
        self._poll = select.poll()
        self._poll.register(self._socket.fileno(), select.POLLIN)

    def __repr__(self) -> str:
        dump = self._dump
        return f"BinlogStream({dump.address}, server_id={dump.server_id}, from={dump.offset})"

    @property
    def address(self) -> str:
        """Return the address of the server."""
        return self._dump.address

    @property
    def closed(self) -> bool:
        """Return True if `close` was called."""
        return self._closed

    @property
    def is_silent(self) -> bool:
        """Return True if the server is silent although it should have reported an idle log."""
        return self._silence.seconds > 2 * _SAYS_EVERY_S

    def read(self, *, bytes_max: int, timeout_s: float) -> memoryview:
        """Return complete events, at least one unless none came within `timeout_s`; empty after `close`.

        If a file is sent from its beginning, events before our position are dropped. Returns about `bytes_max` bytes at
        most, except that one event may be larger. The memory is valid until the next call. Raises
        `SourceUnavailableError` when the connection is lost, `LogLostError` when the server no longer has the position,
        `CorruptLogError` when it cannot read its own log, `SourceError` when it refuses us.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                events = self._read(bytes_max, deadline)
            except TornLogError as torn:
                self._read_on(torn)
                continue
            self._torn_files.inspect(events, self._dump.address)
            if self._beginning is None or len(events) == 0:
                return events
            rest = self._beginning.rest_of(bytes(events))
            if self._beginning.is_over:
                self._beginning = None
            if rest or time.monotonic() >= deadline:
                return memoryview(rest)

    def _read_on(self, torn: TornLogError) -> None:
        """Continue after a torn file, or read it from its beginning. Raises `torn`."""
        before, position = self._dump, self._dump.offset
        if self._beginning is not None:
            raise torn
        close_quietly(self._connection)
        self._connection, start = self._torn_files.leave(torn, position)
        self._dump = LogDump(self._connection, server_id=before.server_id, offset=start)
        self._dump.start(heartbeat_s=before.heartbeat_s)
        self._listen()
        self._buffer, self._failure = EventBuffer(), None
        self._silence.heard()
        if start.file == position.file:
            self._beginning = FileBeginning(position, self._dump.address)
        if self._closed:
            close_quietly(self._connection)

    def close(self) -> None:
        """Close the connection; a `read` that waits in another thread returns."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        close_quietly(self._connection)

    def _read(self, bytes_max: int, deadline: float) -> memoryview:
        buffer = self._buffer
        buffer.drop_taken()
        while not self._closed and not self.ended and self._failure is None:
            complete = buffer.complete
            if complete >= bytes_max:
                break
            wait_s = 0.0 if complete else max(0.0, deadline - time.monotonic())
            if not self._receive(wait_s, bytes_max):
                break
        if buffer.complete == 0 and not self._closed:
            if self._failure is not None:
                raise self._failure
            if self._silence.seconds > self._silence.lost_s:
                raise SourceUnavailableError(
                    f"{self._dump.address} sent neither events nor heartbeats for {self._silence.lost_s:.0f} s; "
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
        self._silence.heard()
        self.received_bytes += count
        try:
            packet = self._buffer.received(count)
        except CorruptLogError as cause:
            self._failure = CorruptLogError(f"{self._dump.address}: {cause}. See which server answers there.")
            return False
        if packet is not None and self._dump.is_over(packet[4:]):
            self.ended = True
        elif packet is not None:
            self._failure = self._dump.ended_by(packet[4:])
        return True
