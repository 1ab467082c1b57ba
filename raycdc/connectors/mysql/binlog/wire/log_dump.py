"""The request for a log from a position on, and the server's errors.

Files may be larger than the 32 bits of the dump command's position (one huge transaction is enough). MySQL with GTIDs
has another command with a 64-bit position. All other servers send the file from its beginning, and `FileBeginning`
drops the events before the position. Each start in such a file therefore reads 4 GiB or more that are not needed.
"""

from __future__ import annotations

import logging
import re
import struct
from typing import Any

import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import NET_TIMEOUT_S, address_of, query, query_error, sane_answers
from raycdc.connectors.mysql.binlog.index_loops import FORMAT_DESCRIPTION, ROTATE
from raycdc.connectors.mysql.binlog.positions.gtid import MariaDbGtidSet, MySqlGtidSet
from raycdc.connectors.mysql.binlog.positions.position import RESNAPSHOT_HINT, BinlogOffset
from raycdc.errors import CorruptLogError, LogLostError, SourceError, SourceUnavailableError

_log = logging.getLogger(__name__)

_COM_BINLOG_DUMP = 0x12
_COM_REGISTER_SLAVE = 0x15
_COM_BINLOG_DUMP_GTID = 0x1E
_BINLOG_THROUGH_GTID = 4
#: The flag by which a dump of either server ends at the end of the log.
_NON_BLOCK = 1
#: COM_BINLOG_DUMP has only 32 bits for the position.
_POSITION_MAX = (1 << 32) - 1

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
_DAMAGE_TEXTS = (
    "bogus data", "checksum", "truncated", "corrupt", "max_allowed_packet", "error reading log event",
    "failed to find format descriptor", "could not decrypt",
)  # fmt: skip
#: MariaDB's sql/sql_repl.cc, ``mysql_binlog_send``; MySQL cuts such a file when it starts (``binlog_recover``).
_TORN = "truncated in the middle of event"
_LAST_READ = re.compile(r"the last event read from '([^']++)' at", re.IGNORECASE)
_DUPLICATE_TEXTS = ("same server_uuid/server_id", "same server_uuid", "same server_id", "same server id")


class TornLogError(CorruptLogError):
    """The server cannot send a file to its end, for example because it died while it wrote the last event of `file`."""

    cure = (
        "Nothing if raycdc continues with the next file by itself; otherwise a new snapshot, as the message says "
        '(`pipeline.on_log_lost = "resnapshot"`).'
    )

    def __init__(self, message: str, file: str) -> None:
        super().__init__(message)
        self.file = file


class LogDump:
    """A dump of the log from `offset` on, to the replica `server_id`, over a fresh connection.

    With `server_id` 0 the dump does not register as a replica, like ``mysqlbinlog``: it ends at the end of the log, and
    disturbs no replica.
    """

    def __init__(self, connection: Connection[Any], *, server_id: int, offset: BinlogOffset) -> None:
        self.address = address_of(connection)
        self.server_id = server_id
        self.offset = offset
        self.heartbeat_s = 0.0
        self._connection = connection

    def start(self, *, heartbeat_s: float) -> bool:
        """Register as a replica and begin the dump; the server sends a heartbeat every `heartbeat_s` while it is idle.

        Returns True if the file is sent from its beginning, although the position is later. Raises `SourceError`.
        """
        connection, offset = self._connection, self.offset
        self.heartbeat_s, nanoseconds = heartbeat_s, int(heartbeat_s * 1e9)
        for statement in (
            "SET @master_binlog_checksum = @@global.binlog_checksum",
            "SET @source_binlog_checksum = @@global.binlog_checksum",
            f"SET @master_heartbeat_period = {nanoseconds}, @source_heartbeat_period = {nanoseconds}",
            "SET @mariadb_slave_capability = 4",
            f"SET SESSION net_write_timeout = {NET_TIMEOUT_S}, SESSION net_read_timeout = {NET_TIMEOUT_S}",
            *_mariadb_state(offset),
        ):
            query(connection, statement)
        if self.server_id:
            self._register()
        flags = 0 if self.server_id else _NON_BLOCK
        far = offset.pos > _POSITION_MAX and not offset.by_gtid
        from_the_beginning = far and ":" not in offset.gtid_set
        if far and not from_the_beginning:
            self._dump_gtid(offset.file, offset.pos)
        elif not offset.by_gtid:
            if from_the_beginning:
                _log.warning(
                    "%s lies beyond what a start by position can name: %s sends the file from its beginning, and "
                    "%.1f GiB of it are skipped", offset, self.address, offset.pos / (1 << 30),
                )  # fmt: skip
            start = struct.pack("<IHI", 4 if from_the_beginning else offset.pos, flags, self.server_id)
            self._command(_COM_BINLOG_DUMP, start + offset.file.encode())
        elif _is_mariadb_position(offset):
            # The position was set as @slave_connect_state, so no file is named.
            self._command(_COM_BINLOG_DUMP, struct.pack("<IHI", 4, flags, self.server_id))
        else:
            self._dump_gtid("", 4)
        return from_the_beginning

    def _register(self) -> None:
        register = struct.pack("<I", self.server_id) + b"\0\0\0" + struct.pack("<HII", 0, 0, 0)
        try:
            with sane_answers(self.address):
                self._command(_COM_REGISTER_SLAVE, register)
                self._connection._read_packet()
        except pymysql.Error as cause:
            code = cause.args[0] if cause.args and isinstance(cause.args[0], int) else 0
            if code in _DENIED:
                raise self.refused(code, str(cause.args[-1])) from cause
            raise query_error(self._connection, "COM_REGISTER_SLAVE", cause) from cause

    def lost(self, reason: str) -> SourceUnavailableError:
        """Return the error for a lost connection."""
        return SourceUnavailableError(
            f"The log connection to {self.address} was lost ({reason}). If this repeats, another replica may be using "
            f"server_id {self.server_id}."
        )

    def refused(self, code: int, text: str) -> SourceError | CorruptLogError:
        """Return the error for the server's answer, by its kind, with advice."""
        low = text.lower()
        if any(part in low for part in _DUPLICATE_TEXTS):
            return SourceError(
                f"{self.address} ended the log stream because another replica uses server_id {self.server_id}. "
                "Give each job a range of its own with source.server_id."
            )
        if code in _DENIED:
            user = self._connection.user
            name = user.decode() if isinstance(user, bytes) else user
            return SourceError(
                f"{self.address} does not let user {name!r} read the log ({text}). "
                f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{name}'@'%';"
            )
        if code == _ER_FATAL_READING:
            if _TORN in low and (torn := _LAST_READ.search(text)):
                message = f"{self.address} cannot read its log after {self.offset}: {text}"
                return TornLogError(message, torn[1].rpartition("/")[2])
            if any(part in low for part in _DAMAGE_TEXTS):
                return LogLostError(
                    f"{self.address} cannot read its log after {self.offset}: {text}. {RESNAPSHOT_HINT}."
                )
            if any(part in low for part in _LOST_TEXTS):
                return LogLostError(
                    f"{self.offset} is not in the log of {self.address} any more ({text}). "
                    f"{RESNAPSHOT_HINT}; with a greater binlog_expire_logs_seconds the server keeps more."
                )
        if code in (1053, 1317, 1927):
            return self.lost(text)
        return SourceError(f"{self.address} ended the log stream with error {code}: {text}")

    def ended_by(self, payload: bytes) -> SourceError | CorruptLogError:
        """Return the error for the packet by which the server ended the stream: an error packet, or an end packet."""
        if payload[:1] == b"\xff" and len(payload) >= 3:
            code = int.from_bytes(payload[1:3], "little")
            text = payload[3:].decode("utf-8", "replace")
            return self.refused(code, text[6:] if text.startswith("#") else text)
        return self.lost("the server ended the stream")

    def is_over(self, payload: bytes) -> bool:
        """Return True if this packet ends the dump of a whole log without a replica id."""
        return not self.server_id and payload[:1] == b"\xfe"

    def _dump_gtid(self, file: str, pos: int) -> None:
        """Request all transactions after a position that the GTID set lacks. Without a file, the server finds the first
        such file.

        flags(2) server_id(4) name_length(4) name pos(8) length(4) set.
        """
        gtids, name = MySqlGtidSet.parse(self.offset.gtid_set).encode(), file.encode()
        head = struct.pack("<HII", _BINLOG_THROUGH_GTID, self.server_id, len(name)) + name
        self._command(_COM_BINLOG_DUMP_GTID, head + struct.pack("<QI", pos, len(gtids)) + gtids)

    def _command(self, number: int, body: bytes) -> None:
        connection: Any = self._connection
        payload = bytes([number]) + body
        connection._next_seq_id = 1
        connection._write_bytes(struct.pack("<I", len(payload))[:3] + b"\0" + payload)


def file_after(connection: Connection[Any], file: str) -> str | None:
    """Return the file of the log after `file`."""
    files = [str(row[0]) for row in query(connection, "SHOW BINARY LOGS")]
    return files[files.index(file) + 1] if file in files[:-1] else None


class FileBeginning:
    """The beginning of a file up to `offset`, which the server at `address` sends because it cannot start later."""

    def __init__(self, offset: BinlogOffset, address: str) -> None:
        self._offset = offset
        self._address = address
        #: The end of the last event received.
        self._end = 4

    @property
    def is_over(self) -> bool:
        """Return True if the next event is the first one requested."""
        return self._end == self._offset.pos

    def rest_of(self, events: bytes) -> bytes:
        """Return the format and the events after `offset` among the next events. Raises `LogLostError`."""
        at, kept = 0, []
        while at < len(events) and not self.is_over:
            length = int.from_bytes(events[at + 9 : at + 13], "little")
            end = int.from_bytes(events[at + 13 : at + 17], "little")
            if end:  # Zero: an event of the dump, not of the file. Ends have 32 bits, and some events are not sent.
                self._end += (end - self._end) % (1 << 32)
            if events[at + 4] in (ROTATE, FORMAT_DESCRIPTION):
                kept.append(events[at : at + length])
            at += length
            if self._end > self._offset.pos:
                raise LogLostError(
                    f"{self._offset} is not the end of an event in the log of {self._address}: the log was reset, or "
                    f"this is another server. {RESNAPSHOT_HINT}."
                )
        return b"".join([*kept, events[at:]])


def _is_mariadb_position(offset: BinlogOffset) -> bool:
    """Return True for a GTID set of MariaDB (``0-1-5``), not of MySQL (``uuid:1-5``)."""
    return ":" not in offset.gtid_set


def _mariadb_state(offset: BinlogOffset) -> tuple[str, ...]:
    """Set the GTID position of MariaDB (knowledge base, "Replica: requesting a GTID position")."""
    if not offset.by_gtid or not _is_mariadb_position(offset):
        return ()
    position = ",".join(part.strip() for part in offset.gtid_set.split(","))
    return (
        f"SET @slave_connect_state = '{MariaDbGtidSet.parse(position)}'",
        "SET @slave_gtid_strict_mode = 0",
        "SET @slave_gtid_ignore_duplicates = 0",
    )
