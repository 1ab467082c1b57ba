"""The log connection: registers as a replica, asks for the log from a position, hands out complete events.

`BinlogStream` is the only part of the log path that does I/O. Its one reading thread calls `read` in a loop and feeds
the result to a `BinlogDecoder`; another thread may call `close` at any time. It never retries and never sleeps: a
lost connection is a `SourceUnavailableError`, after which the caller opens a new stream at the decoder's position.

Back-pressure: a caller that stops reading leaves the server blocked in a write; ``net_write_timeout`` of the session
is raised (by `connection.connect`, and again here) so that it waits instead of dropping us.

Files may be larger than the 32 bits of the dump command's position (one huge transaction is enough). MySQL with GTIDs
has another command, whose position is 64 bits wide. Everywhere else the file is sent from its beginning, and what lies
before the position is dropped here, event by event: that reads 4 GiB and more once at each start in such a file.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import NET_TIMEOUT_S, address_of, close_quietly, query, query_error
from raycdc.connectors.mysql.binlog import packet_loops as packets
from raycdc.connectors.mysql.binlog.gtid import MariaDbGtidSet, MySqlGtidSet
from raycdc.connectors.mysql.binlog.position import READ_ANEW, BinlogOffset
from raycdc.errors import CorruptLogError, LogLostError, SourceError, SourceUnavailableError

_log = logging.getLogger(__name__)

_COM_BINLOG_DUMP = 0x12
_COM_REGISTER_SLAVE = 0x15
_COM_BINLOG_DUMP_GTID = 0x1E
_BINLOG_THROUGH_GTID = 4
_ROTATE, _FORMAT_DESCRIPTION = 4, 15
#: Bytes asked of the socket at a time: a system call per megabyte is nothing, and the buffer stays in the cache.
_RECEIVE_BYTES = 1 << 20
#: COM_BINLOG_DUMP has a 32-bit position.
_POSITION_MAX = (1 << 32) - 1
#: Silence of this many heartbeats means that the peer is gone.
_SILENT_HEARTBEATS = 3

_ER_FATAL_READING = 1236
_DENIED = frozenset({1044, 1045, 1142, 1227})
_LOST_TEXTS = (
    "gtid state",
    "requested slave state",
    "missing transactions",
    "not in the master's binlog",
    "could not find first log",
    "position >",
    "impossible position",
    "purged",
    "not found in binary log",
)
_DAMAGE_TEXTS = ("bogus data", "checksum", "truncated", "corrupt")
_DUPLICATE_TEXTS = ("same server_uuid/server_id", "same server_uuid", "same server_id", "same server id")


class BinlogStream:
    """A replication connection from `offset` on, reading as the replica `server_id`.

    `connection` is a fresh connection (see `connection.connect`); the stream owns it from now on. The server sends a
    heartbeat every `heartbeat_s` when the log is idle. Raises `SourceError` and its kinds as `read` does.
    """

    def __init__(
        self, connection: Connection[Any], *, server_id: int, offset: BinlogOffset, heartbeat_s: float = 30.0
    ) -> None:
        self._connection = connection
        self._server_id = server_id
        self._offset = offset
        self._address = address_of(connection)
        self._silence_max_s = max(_SILENT_HEARTBEATS * heartbeat_s, 10.0)
        self._closed = False
        self._raw = np.empty(_RECEIVE_BYTES, np.uint8)
        self._raw_view = self._raw.data
        self._raw_used = 0
        self._out = np.empty(2 * _RECEIVE_BYTES, np.uint8)
        self._state = np.zeros(packets.P_SIZE, np.int64)
        self._given = 0
        #: While the beginning of a file is passed over: where its last event ended. None otherwise.
        self._passing: int | None = None
        self._failure: SourceError | CorruptLogError | None = None
        self.received_bytes = 0
        try:
            self._start(heartbeat_s)
        except BaseException:
            close_quietly(connection)
            raise
        self._socket: socket.socket = connection._sock
        self._socket.settimeout(0)
        self._poll = select.poll()
        self._poll.register(self._socket.fileno(), select.POLLIN)
        self._heard_at = time.monotonic()

    def __repr__(self) -> str:
        return f"BinlogStream({self._address}, server_id={self._server_id}, from={self._offset})"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

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
            if events or self._given == 0 or time.monotonic() >= deadline:
                return events

    def _read(self, bytes_max: int, deadline: float) -> memoryview:
        self._drop_given()
        while not self._closed and self._failure is None:
            complete = int(self._state[packets.P_COMPLETE])
            if complete >= bytes_max:
                break
            wait_s = 0.0 if complete else max(0.0, deadline - time.monotonic())
            if not self._receive(wait_s):
                break
        complete = int(self._state[packets.P_COMPLETE])
        if complete == 0 and not self._closed:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() - self._heard_at > self._silence_max_s:
                raise SourceUnavailableError(
                    f"{self._address} sent neither events nor heartbeats for {self._silence_max_s:.0f} s; "
                    "the connection is taken for lost."
                )
        self._given = complete
        if self._passing is not None and complete:
            return memoryview(self._behind_the_beginning(bytes(self._out.data[:complete])))
        return self._out.data[:complete]

    def close(self) -> None:
        """Close the connection; a `read` that waits in another thread returns."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        close_quietly(self._connection)

    def _behind_the_beginning(self, events: bytes) -> bytes:
        """Of a file sent from its beginning: the format, and what lies behind our position."""
        at, kept = 0, []
        while at < len(events) and self._passing is not None:
            length = int.from_bytes(events[at + 9 : at + 13], "little")
            end = int.from_bytes(events[at + 13 : at + 17], "little")
            if end:  # Zero: an event of the dump, not of the file. Ends have 32 bits; not every event is sent.
                self._passing += (end - self._passing) % (1 << 32)
            if events[at + 4] in (_ROTATE, _FORMAT_DESCRIPTION):
                kept.append(events[at : at + length])
            at += length
            if self._passing == self._offset.pos:
                self._passing = None
            elif self._passing > self._offset.pos:
                raise LogLostError(
                    f"{self._offset} is not the end of an event in the log of {self._address}: the log was reset, or "
                    f"this is another server. {READ_ANEW}."
                )
        return b"".join([*kept, events[at:]])

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _drop_given(self) -> None:
        """Move the incomplete event to the front; its beginning is all that is left of the last read."""
        state = self._state
        if self._given:
            rest = int(state[packets.P_OUT]) - self._given
            self._out[:rest] = self._out[self._given : self._given + rest]
            state[packets.P_OUT] = rest
            state[packets.P_COMPLETE] = 0
            self._given = 0

    def _receive(self, wait_s: float) -> bool:
        """Receive once and strip packet headers; False when nothing came within `wait_s`."""
        pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        if not pending and not self._poll.poll(wait_s * 1000):
            return False
        try:
            count = self._socket.recv_into(self._raw_view[self._raw_used :])
        except (ssl.SSLWantReadError, BlockingIOError):
            return True
        except OSError as cause:
            self._failure = None if self._closed else self._lost(str(cause))
            return False
        if count == 0:
            self._failure = None if self._closed else self._lost("the server closed it")
            return False
        self._heard_at = time.monotonic()
        self.received_bytes += count
        self._raw_used += count
        self._strip()
        return True

    def _strip(self) -> None:
        at = 0
        while True:
            code, at = packets.strip_packets(self._raw, at, self._raw_used, self._out, self._state)
            if code != packets.PACKETS_ROOM:
                break
            self._out = np.concatenate([self._out, np.empty_like(self._out)])
        if code == packets.PACKETS_STATUS:
            packet = self._raw[at : self._raw_used].tobytes()
            if len(packet) >= 4 + int.from_bytes(packet[:3], "little"):
                self._stopped(packet)
        rest = self._raw_used - at
        self._raw[:rest] = self._raw[at : self._raw_used].copy()
        self._raw_used = rest

    def _stopped(self, packet: bytes) -> None:
        """The server ended the stream: an error packet, or an end packet."""
        payload = packet[4:]
        if payload[:1] == b"\xff" and len(payload) >= 3:
            code = int.from_bytes(payload[1:3], "little")
            text = payload[3:].decode("utf-8", "replace")
            self._failure = self._refused(code, text[6:] if text.startswith("#") else text)
        else:
            self._failure = self._lost("the server ended the stream")

    # -- starting -----------------------------------------------------------------------------------------------------

    def _start(self, heartbeat_s: float) -> None:
        connection, offset = self._connection, self._offset
        nanoseconds = int(heartbeat_s * 1e9)
        for statement in (
            "SET @master_binlog_checksum = @@global.binlog_checksum",
            "SET @source_binlog_checksum = @@global.binlog_checksum",
            f"SET @master_heartbeat_period = {nanoseconds}, @source_heartbeat_period = {nanoseconds}",
            "SET @mariadb_slave_capability = 4",
            f"SET SESSION net_write_timeout = {NET_TIMEOUT_S}, SESSION net_read_timeout = {NET_TIMEOUT_S}",
            *_mariadb_state(offset),
        ):
            query(connection, statement)
        register = struct.pack("<I", self._server_id) + b"\0\0\0" + struct.pack("<HII", 0, 0, 0)
        try:
            self._command(_COM_REGISTER_SLAVE, register)
            connection._read_packet()
        except pymysql.Error as cause:
            code = cause.args[0] if cause.args and isinstance(cause.args[0], int) else 0
            if code in _DENIED:
                raise self._refused(code, str(cause.args[-1])) from cause
            raise query_error(connection, "COM_REGISTER_SLAVE", cause) from cause
        far = offset.pos > _POSITION_MAX and not offset.by_gtid
        if far and ":" in offset.gtid_set:
            self._dump_gtid(offset.file, offset.pos)
        elif not offset.by_gtid:
            if far:
                self._passing = 4
                _log.warning(
                    "%s lies beyond what a start by position can name: %s sends the file from its beginning, and "
                    "%.1f GiB of it are passed over", offset, self._address, offset.pos / (1 << 30),
                )  # fmt: skip
            start = struct.pack("<IHI", 4 if far else offset.pos, 0, self._server_id)
            self._command(_COM_BINLOG_DUMP, start + offset.file.encode())
        elif _is_mariadb_position(offset):
            # The position was set as @slave_connect_state; no file is named.
            self._command(_COM_BINLOG_DUMP, struct.pack("<IHI", 4, 0, self._server_id))
        else:
            self._dump_gtid("", 4)

    def _dump_gtid(self, file: str, pos: int) -> None:
        """All that the set lacks, from there; without a file the server looks for the first that has something.

        flags(2) server_id(4) name_length(4) name pos(8) length(4) set.
        """
        gtids, name = MySqlGtidSet.parse(self._offset.gtid_set).encode(), file.encode()
        head = struct.pack("<HII", _BINLOG_THROUGH_GTID, self._server_id, len(name)) + name
        self._command(_COM_BINLOG_DUMP_GTID, head + struct.pack("<QI", pos, len(gtids)) + gtids)

    def _command(self, number: int, body: bytes) -> None:
        connection: Any = self._connection
        payload = bytes([number]) + body
        connection._next_seq_id = 1
        connection._write_bytes(struct.pack("<I", len(payload))[:3] + b"\0" + payload)

    # -- errors -------------------------------------------------------------------------------------------------------

    def _lost(self, reason: str) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"The log connection to {self._address} was lost ({reason}). If this repeats, another replica may be using "
            f"server_id {self._server_id}."
        )

    def _refused(self, code: int, text: str) -> SourceError | CorruptLogError:
        low = text.lower()
        if any(part in low for part in _DUPLICATE_TEXTS):
            return SourceError(
                f"{self._address} ended the log stream because another replica uses server_id {self._server_id}. "
                "Give each job a range of its own with source.server_id."
            )
        if code in _DENIED:
            user = self._connection.user
            name = user.decode() if isinstance(user, bytes) else user
            return SourceError(
                f"{self._address} does not let user {name!r} read the log ({text}). "
                f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{name}'@'%';"
            )
        if code == _ER_FATAL_READING:
            if any(part in low for part in _DAMAGE_TEXTS):
                return CorruptLogError(f"{self._address} cannot read its log after {self._offset}: {text}")
            if any(part in low for part in _LOST_TEXTS):
                return LogLostError(
                    f"{self._offset} is not in the log of {self._address} any more ({text}). "
                    f"{READ_ANEW}; with a greater binlog_expire_logs_seconds the server keeps more."
                )
        if code in (1053, 1317, 1927):
            return self._lost(text)
        return SourceError(f"{self._address} ended the log stream with error {code}: {text}")


def _is_mariadb_position(offset: BinlogOffset) -> bool:
    """``0-1-5``, not ``uuid:1-5``."""
    return ":" not in offset.gtid_set


def _mariadb_state(offset: BinlogOffset) -> tuple[str, ...]:
    """MariaDB knowledge base, "Replica: requesting a GTID position"."""
    if not offset.by_gtid or not _is_mariadb_position(offset):
        return ()
    position = ",".join(part.strip() for part in offset.gtid_set.split(","))
    return (
        f"SET @slave_connect_state = '{MariaDbGtidSet.parse(position)}'",
        "SET @slave_gtid_strict_mode = 0",
        "SET @slave_gtid_ignore_duplicates = 0",
    )
