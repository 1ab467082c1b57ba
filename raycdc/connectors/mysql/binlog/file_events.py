"""Events that say where the log goes on: another file, its format, and what a dump by GTID has passed over.

Called by `BinlogDecoder` where its compiled pass leaves an event to Python. An event that nobody can follow, because it
means changes that are not in the log, is refused here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.events import (
    IGNORABLE_FLAG,
    REFUSED_EVENTS,
    event_name,
    parse_format_description,
    parse_rotate,
)
from raycdc.connectors.mysql.binlog.far_places import Jump, jump_of, nearest_place
from raycdc.errors import CorruptLogError, DataError


class FileEvents:
    """See the module's docstring. Moves the cursor along; `mariadb`: the log is one of MariaDB."""

    def __init__(self, cursor: BinlogCursor, *, mariadb: bool) -> None:
        #: Told of an event of a dump by GTID behind what was passed over; answers where it ends.
        self.find_place: Callable[[Jump], int] = nearest_place
        self._cursor = cursor
        self._mariadb = mariadb
        #: A format has come, which says whether events have checksums.
        self._formatted = False
        #: Of a whole file: its last event has come.
        self._ended = False

    def handle(self, event: bytes) -> None:
        """Follow a new file, a format, or an event that may be ignored. Raises `DataError` for any other."""
        kind = event[4]
        with self._cursor.placed():
            match kind:
                case index.ROTATE:
                    self._rotate(event)
                case index.FORMAT_DESCRIPTION:
                    self._format(event)
                case _ if kind not in REFUSED_EVENTS and event[17] & IGNORABLE_FLAG:
                    self._cursor.move_to(self._cursor.end_of(event))
                case _:
                    reason = REFUSED_EVENTS.get(kind, "this version does not know it")
                    raise DataError(f"{event_name(kind)} cannot be followed: {reason}.")

    def jump(self, event: bytes) -> int:
        """A dump by GTID passed over what we have: find where it goes on. Returns the bytes that are done with."""
        cursor, pos = self._cursor, self._cursor.event_position.pos
        jump = jump_of(event, cursor.file, pos, checksum_bytes=cursor.checksum_bytes)
        with cursor.placed():
            end = self.find_place(jump)
        if jump.is_in_file:
            cursor.state[index.S_POS] = end - jump.length
            return 0
        cursor.move_to(max(jump.before, end))
        return len(event)

    def _rotate(self, event: bytes) -> None:
        cursor, state = self._cursor, self._cursor.state
        body = event[index.HEADER_BYTES : len(event) - cursor.checksum_bytes]
        if not self._formatted and len(event) > 32 and zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
            body = event[index.HEADER_BYTES : -4]  # the dump's first event comes before the format that announces CRCs
        file, pos = parse_rotate(body)
        if cursor.in_transaction and file != cursor.file:
            raise CorruptLogError(f"the log goes on in {file} in the middle of a transaction")
        cursor.file = file
        if event[13:17] == bytes(4):
            # Not of this file: it is a relay log, which goes on with another server's positions.
            state[index.S_EXACT] = 0
        self._ended = bool(state[index.S_EXACT])
        cursor.move_to(pos)

    def _format(self, event: bytes) -> None:
        format_ = parse_format_description(event)
        if self._ended:
            raise CorruptLogError("the file goes on behind its last event, which names the next file")
        self._formatted = True
        self._cursor.state[index.S_CHECKSUM] = format_.checksum_bytes
        if "MariaDB" in format_.server_version and not self._mariadb:
            raise DataError(f"the log was written by MariaDB ({format_.server_version}), not by MySQL")
        # The event stands at the file's beginning, so that its position is whole.
        self._cursor.move_to(max(self._cursor.event_position.pos, int.from_bytes(event[13:17], "little")))
