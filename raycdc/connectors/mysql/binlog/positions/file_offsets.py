"""Finds the position of an event in a log file after a dump by GTID has skipped earlier ones.

An event's header has only the lower 32 bits of its end. The upper bits are known while events follow each other. A dump
by GTID skips the transactions that we have. In a file larger than 4 GiB (one huge transaction is enough), the next
event may then end at one of several positions, 4 GiB apart. A wrong position would be compared with the high watermarks
of chunks.

The file's size limits the candidates. If several are left, the server is queried for the event at each of them; it
verifies the checksum there, so bytes in the middle of an event are not mistaken for one. If the position is not found
that way, the run is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import address_of, query
from raycdc.connectors.mysql.binlog.index_loops import (
    ANONYMOUS_GTID,
    GTID,
    GTID_TAGGED,
    HEADER_BYTES,
    MARIADB_GTID,
    ROTATE,
    STOP,
    has_position,
)
from raycdc.connectors.mysql.binlog.positions.gtid import gtid_text
from raycdc.errors import CorruptLogError, SourceError, SourceUnavailableError
from raycdc.state.codec import NEW_STATE

#: Positions in headers of events have 32 bits.
WRAP = 1 << 32


@dataclass(frozen=True, slots=True)
class Jump:
    """An event that does not follow the previous one, which ended at `before`; `end` is the nearest possible end.

    `length` is 0 for a virtual event (`index_loops.has_position`). `gtid` is the GTID in the event, if it has one.
    """

    file: str
    before: int
    end: int
    length: int
    kind: int
    server_id: int
    gtid: str | None
    checksum: bool

    @property
    def is_in_file(self) -> bool:
        return self.length > 0

    def ends(self, size: int) -> list[int]:
        """Return the possible ends in a file of `size` bytes."""
        return list(range(self.end, size + 1, WRAP))


def jump_of(event: bytes, file: str, before: int, *, checksum_bytes: int) -> Jump:
    """Return the jump to an event, according to the event's header."""
    kind, header = event[4], event[:HEADER_BYTES]
    has_it = bool(has_position(kind, event[17]))
    length = 0 if has_it else len(event)
    low = int.from_bytes(event[13:17], "little")
    gtid = None
    if kind in (GTID, ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID):
        body = event[HEADER_BYTES : len(event) - checksum_bytes]
        gtid, _ = gtid_text(header, body, mariadb=kind == MARIADB_GTID)
    end = before + length + (low - before - length) % WRAP
    return Jump(file, before, end, length, kind, int.from_bytes(event[5:9], "little"), gtid, checksum_bytes == 4)


def nearest_position(jump: Jump) -> int:
    """Return the nearest end, which is right in files up to 4 GiB.

    For a virtual event with an earlier position, return the present position.
    """
    if not jump.is_in_file and jump.end - jump.before >= WRAP // 2:
        return jump.before
    return jump.end


class PositionFinder:
    """The search for positions after a jump (`FileEvents.find_position`), with the help of a server.

    It remembers the sizes of complete files, and queries those of others.
    """

    def __init__(self, connect: Callable[[], Connection[Any]]) -> None:
        self._connect = connect
        self._sizes: dict[str, int] = {}

    def __call__(self, jump: Jump) -> int:
        """Return where the event ends; for an ambiguous virtual event, the present position."""
        size = self._sizes.get(jump.file)
        if size is not None and size <= WRAP:
            return self._only(jump, size)
        with closing(self._connect()) as connection:
            files = [(str(row[0]), int(row[1])) for row in query(connection, "SHOW BINARY LOGS")]
            self._sizes = dict(files[:-1])
            size = dict(files).get(jump.file)
            if size is None:
                raise SourceUnavailableError(
                    f"{jump.file} was purged on {address_of(connection)} while it was read. If this repeats, raise "
                    f"binlog_expire_logs_seconds."
                )
            ends = jump.ends(size)
            if len(ends) < 2 or not jump.is_in_file:
                return self._only(jump, size)
            if jump.kind in (ROTATE, STOP) and ends[-1] == size:
                return size  # It is the last event of its file.
            proven = [end for end in ends if jump.checksum and _is_at(connection, jump, end)]
            if len(proven) == 1:
                return proven[0]
            raise SourceError(
                f"{jump.file} on {address_of(connection)} has {size / (1 << 30):.1f} GiB; an event ({jump.gtid}) came "
                f"that may end at any of its bytes {', '.join(map(str, ends))}: others before it were skipped. Set "
                'binlog_checksum = CRC32 on the server; then, after this file, set startup.mode = "initial" and '
                f"{NEW_STATE}."
            )

    @staticmethod
    def _only(jump: Jump, size: int) -> int:
        ends = jump.ends(size)
        if not jump.is_in_file:
            return ends[0] if len(ends) == 1 else jump.before
        if not ends:
            raise CorruptLogError(
                f"an event that ends at byte {jump.end} came, and the file has {size} bytes: the file was replaced, "
                f"or another server answers"
            )
        return ends[0]


def _is_at(connection: Connection[Any], jump: Jump, end: int) -> bool:
    """Return True if the server finds the event at that position. It verifies the checksum of the first event there."""
    try:
        rows = query(connection, "SHOW BINLOG EVENTS IN %s FROM %s LIMIT 1", (jump.file, end - jump.length))
    except SourceUnavailableError:
        raise
    except SourceError:
        return False
    if not rows:
        return False
    _, start, _, server_id, its_end, text = rows[0][:6]
    # A tagged GTID ends in its number. MariaDB prints the GTID after BEGIN or alone.
    same = jump.gtid is None or jump.gtid in str(text).replace("'", " ").split()
    return (
        int(start) == end - jump.length
        and (int(its_end) - end) % WRAP == 0
        and int(server_id) == jump.server_id
        and same
    )
