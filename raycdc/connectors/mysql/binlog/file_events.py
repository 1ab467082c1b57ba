"""Handles events about the continuation of the log: another file, its format, and jumps of a dump by GTID.

Called by `BinlogDecoder` for events that its compiled pass leaves to Python. An event whose changes are not in the log
is refused here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.event_types import (
    CREATE_FILE,
    EVENT_TYPES,
    EXEC_LOAD,
    IGNORABLE_FLAG,
    LOAD,
    NEW_LOAD,
    PARTIAL_ROW_DATA,
    event_name,
)
from raycdc.connectors.mysql.binlog.events import QueryEvent, parse_format_description, parse_load, parse_rotate
from raycdc.connectors.mysql.binlog.positions.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.positions.file_offsets import Jump, jump_of, nearest_position
from raycdc.connectors.mysql.binlog.session import NO_WRITER, LogWriter
from raycdc.errors import CorruptLogError, DataError


class FileEvents:
    """The handler of events about the continuation of the log; see the module's docstring.

    It moves the cursor. `mariadb` is True for a log of MariaDB.
    """

    def __init__(self, cursor: BinlogCursor, *, mariadb: bool) -> None:
        #: Called with an event of a dump by GTID after a jump. Returns the position at which the event ends.
        self.find_position: Callable[[Jump], int] = nearest_position
        #: Called when a file begins, with its name, whether the server started then, and whether the previous file was
        #: read here. Returns True if the state for a restart has changed.
        self.on_file: Callable[[str, bool, bool], bool] | None = None
        #: The server that wrote the events, according to the last format event.
        self.writer: LogWriter = NO_WRITER
        self._cursor = cursor
        self._mariadb = mariadb
        self._new_file = False
        #: The last LOAD DATA of an old server, and the numbers of files whose table a CREATE_FILE named.
        self._load: QueryEvent | None = None
        self._loading: set[int] = set()
        #: True after a format event, which determines if events have checksums.
        self._formatted = False
        #: True after the last event of a whole file.
        self._ended = False
        #: True if a new file was named inside a transaction, which only a server that died can have left open.
        self._left_open = False

    def handle(self, event: bytes) -> None:
        """Handle a new file, a format, or an event that may be ignored. Raises `DataError` for any other event."""
        kind = event[4]
        with self._cursor.locating_errors():
            match kind:
                case index.ROTATE:
                    self._rotate(event)
                case index.FORMAT_DESCRIPTION:
                    self._format(event)
                case _ if kind not in EVENT_TYPES and event[17] & IGNORABLE_FLAG:
                    self._cursor.move_to(self._cursor.end_of(event))
                case _ if kind == PARTIAL_ROW_DATA and self._cursor.state[index.S_TAKEN_BACK]:
                    # `WholeTransactions` has reported the doubt about its table.
                    self._cursor.move_to(self._cursor.end_of(event))
                case _ if kind in (LOAD, CREATE_FILE, NEW_LOAD) or (kind == EXEC_LOAD and self._is_named(event)):
                    self._old_load(event)
                case _:
                    known = EVENT_TYPES.get(kind)
                    reason = "this version does not know it" if known is None else known.why
                    raise DataError(f"{event_name(kind)} cannot be followed: {reason}.")

    def take_load(self) -> QueryEvent | None:
        """Return the LOAD DATA of the last event, once."""
        load, self._load = self._load, None
        return load

    def _is_named(self, event: bytes) -> bool:
        """Return True if an earlier CREATE_FILE named the table of this EXEC_LOAD."""
        return int.from_bytes(event[index.HEADER_BYTES : index.HEADER_BYTES + 4], "little") in self._loading

    def _old_load(self, event: bytes) -> None:
        kind, body = event[4], event[index.HEADER_BYTES : len(event) - self._cursor.checksum_bytes]
        if kind != EXEC_LOAD:
            self._load, number = parse_load(kind, body)
            if kind == CREATE_FILE:
                self._loading.add(number)
        self._cursor.move_to(self._cursor.end_of(event))

    def take_file_changed(self) -> bool:
        """Return True, once, if `on_file` returned True for the last event."""
        new_file, self._new_file = self._new_file, False
        return new_file

    def jump(self, event: bytes) -> int:
        """Find where a dump by GTID continues after skipped transactions that we have.

        Returns the number of bytes handled.
        """
        cursor, pos = self._cursor, self._cursor.event_position.pos
        jump = jump_of(event, cursor.file, pos, checksum_bytes=cursor.checksum_bytes)
        with cursor.locating_errors():
            end = self.find_position(jump)
        if jump.is_in_file:
            cursor.state[index.S_POS] = end - jump.length
            return 0
        cursor.move_to(max(jump.before, end))
        return len(event)

    def _rotate(self, event: bytes) -> None:
        cursor, state = self._cursor, self._cursor.state
        body = event[index.HEADER_BYTES : len(event) - cursor.checksum_bytes]
        if not self._formatted and len(event) > 32 and zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
            # the first event of a dump comes before the format that announces checksums
            body = event[index.HEADER_BYTES : -4]
        file, pos = parse_rotate(body)
        self._left_open = cursor.in_transaction and file != cursor.file
        if self._left_open and state[index.S_EXACT]:
            raise CorruptLogError(_left_open(file))
        cursor.begin_file(file)
        if event[13:17] == bytes(4):
            # This is a relay log, which continues with the positions of another server.
            state[index.S_EXACT] = 0
        self._ended = bool(state[index.S_EXACT])
        cursor.move_to(pos)

    def _format(self, event: bytes) -> None:
        format_ = parse_format_description(event)
        if self._ended:
            raise CorruptLogError("the file goes on after its last event, which names the next file")
        if self.on_file is not None:
            self._new_file = self.on_file(self._cursor.file, format_.started, self._formatted)
        self._formatted = True
        self.writer = LogWriter.of(format_.server_version)
        if self._left_open:
            if not format_.started:
                raise CorruptLogError(_left_open(self._cursor.file))
            self._cursor.forget_transaction()
            self._left_open = False
        self._cursor.state[index.S_CHECKSUM] = format_.checksum_bytes
        if "MariaDB" in format_.server_version and not self._mariadb:
            raise DataError(f"the log was written by MariaDB ({format_.server_version}), not by MySQL")
        self._cursor.marks.formatted(self._cursor.file, event)
        # The event is at the file's beginning, so its position is complete.
        self._cursor.move_to(max(self._cursor.event_position.pos, int.from_bytes(event[13:17], "little")))


def _left_open(file: str) -> str:
    return f"the log goes on in {file} in the middle of a transaction"
