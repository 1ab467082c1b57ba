"""Proves that a position belongs to the server's log, and that the log can be read from there.

`prove` runs before anything is read. It dumps the log, like ``mysqlbinlog``, from the event in the position's mark, and
compares this event with the mark. `read_ahead` continues from there for a moment, so that damage soon after the
position is reported before a run begins. Every problem is a `LogLostError`, because the only remedy is to read the
tables again (``pipeline.on_log_lost``).
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from pymysql.connections import Connection

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.index_loops import FORMAT_DESCRIPTION, HEADER_BYTES
from raycdc.connectors.mysql.binlog.positions.position import RESNAPSHOT_HINT, BinlogOffset, LogMark
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.server.client import MySqlServerInfo, log_files
from raycdc.errors import CorruptLogError, DataError, LogLostError, SourceUnavailableError

_log = logging.getLogger(__name__)

#: The limits of reading ahead. The bytes are the size of one epoch, so that damage that ended a run is found before the
#: next run begins. The time is what users accept at a start.
AHEAD_BYTES, AHEAD_S = 256 << 20, 3.0
_READ_BYTES, _READ_TIMEOUT_S = 1 << 20, 30.0
#: The largest position in COM_BINLOG_DUMP, which has 32 bits for it.
_POSITION_MAX = (1 << 32) - 1

#: Opens a connection to the server of the position, and to no other.
Connect = Callable[[], "Connection[Any]"]


def prove(connect: Connect, info: MySqlServerInfo, offset: BinlogOffset) -> None:
    """Raise `LogLostError` unless the log matches the position's mark, as far as the server still has it.

    A position without a mark, from a state of an earlier version, is accepted if an event begins at it.
    """
    mark = offset.mark
    if mark is None:
        if not offset.by_gtid and 4 < offset.pos <= _POSITION_MAX:
            _log.warning("%s has no mark yet that identifies the log of %s: it is accepted once", offset, info.address)
            _read(connect, info, offset, bytes_max=1)
        return
    with closing(connect()) as connection:
        sizes = dict(log_files(connection, info))
        if mark.file not in sizes:
            _require_purged(connection, info, offset, mark, min(sizes, key=_number))
            return
    is_far = mark.at > _POSITION_MAX
    found, event = _beginning(connect, info, mark, 4 if is_far else mark.at or 4)
    if not mark.is_of_same_file(found) or (mark.at and not is_far and event != mark.crc):
        raise LogLostError(
            f"{mark.file} on {info.address} is another file than the one that was read up to {offset}: the log was "
            f"reset, or the server was set up again. {RESNAPSHOT_HINT}."
        )


def read_ahead(connect: Connect, info: MySqlServerInfo, offset: BinlogOffset) -> None:
    """Raise `LogLostError` if the log cannot be read from the proven position, or is damaged soon after it."""
    if not offset.by_gtid and offset.pos <= _POSITION_MAX:
        _read(connect, info, offset, bytes_max=AHEAD_BYTES)


def marked(connect: Connect, info: MySqlServerInfo, offset: BinlogOffset) -> BinlogOffset:
    """Return `offset`, a position of the present log, with the mark of its file."""
    found, _ = _beginning(connect, info, LogMark(offset.file, 0, 0), 4)
    return replace(offset, mark=found)


def _beginning(connect: Connect, info: MySqlServerInfo, mark: LogMark, at: int) -> tuple[LogMark, int]:
    """Return the mark of the file's beginning, and the CRC32 of the event at byte `at`; 0 if no event begins there."""
    found: LogMark | None = None
    try:
        for kind, event, checksum_bytes in _events(connect, BinlogOffset(mark.file, at)):
            if kind == FORMAT_DESCRIPTION:
                found = LogMark.of_format(mark.file, event)
                if at == 4:
                    return found, 0
            elif found is not None and event[13:17] != bytes(4):
                end = len(event) - checksum_bytes
                whole = checksum_bytes == 0 or zlib.crc32(event[:end]) == int.from_bytes(event[end:], "little")
                return found, zlib.crc32(event[:end]) if whole else 0
    except (CorruptLogError, LogLostError) as cause:
        if found is None:
            raise _unreadable(info, BinlogOffset(mark.file, at), cause) from cause
    if found is None:
        raise SourceUnavailableError(f"{info.address} sent no beginning of its log file {mark.file}.")
    return found, 0


def _events(connect: Connect, position: BinlogOffset) -> Iterator[tuple[int, bytes, int]]:
    """Yield (type, event, bytes of its checksum) of a dump from the position to the end of the log."""
    checksum_bytes = 0
    with closing(BinlogStream(connect(), server_id=0, offset=position, connect_again=connect)) as stream:
        while not stream.ended:
            data = _next(stream)
            at = 0
            while at < len(data):
                length = int.from_bytes(data[at + 9 : at + 13], "little")
                if length < HEADER_BYTES:
                    raise CorruptLogError(f"{position}: an event's length is impossible")
                event = bytes(data[at : at + length])
                if event[4] == FORMAT_DESCRIPTION:
                    checksum_bytes = 4 if event[-5] == 1 else 0
                yield event[4], event, checksum_bytes
                at += length


def _next(stream: BinlogStream) -> memoryview:
    """Return the next events; empty at the end of the log.

    Raises `SourceUnavailableError` if nothing comes before the end.
    """
    data = stream.read(bytes_max=_READ_BYTES, timeout_s=_READ_TIMEOUT_S)
    if len(data) == 0 and not stream.ended:
        raise SourceUnavailableError(f"{stream} sent nothing of its log for {_READ_TIMEOUT_S:g} s")
    return data


def _read(connect: Connect, info: MySqlServerInfo, offset: BinlogOffset, *, bytes_max: int) -> None:
    """Read up to `bytes_max` bytes of the log, without decoding rows."""
    plain = replace(offset, skip_events=0, skip_rows=0, prepared="")
    log = LogKind(mariadb=info.is_mariadb)
    decoder = BinlogDecoder(MapSchemas.from_the_log(), wanted=lambda _: False, start=plain, log=log)
    count, deadline = 0, time.monotonic() + AHEAD_S
    try:
        with closing(BinlogStream(connect(), server_id=0, offset=plain, connect_again=connect)) as stream:
            while not stream.ended and count < bytes_max and time.monotonic() < deadline:
                data = _next(stream)
                count += len(data)
                for _ in decoder.items(np.frombuffer(data, np.uint8)):
                    pass
    except (CorruptLogError, LogLostError) as cause:
        raise _unreadable(info, offset, cause) from cause
    except DataError:
        return  # The log reader handles an event that is not supported.


def _unreadable(info: MySqlServerInfo, offset: BinlogOffset, cause: Exception) -> LogLostError:
    return LogLostError(
        f"The log of {info.address} cannot be read from {offset}: {_first_sentence(cause)} The log was reset, or is "
        f"damaged there. {RESNAPSHOT_HINT}."
    )


def _first_sentence(cause: Exception) -> str:
    """Return the first sentence of an error, without its advice."""
    return str(cause).partition(f" {RESNAPSHOT_HINT}")[0].rstrip(".") + "."


def _require_purged(
    connection: Connection[Any], info: MySqlServerInfo, offset: BinlogOffset, mark: LogMark, oldest: str
) -> None:
    """Raise `LogLostError` if unread transactions were purged with the file of the mark, which the server has lost."""
    if _number(oldest) > _number(mark.file):
        if info.is_mariadb or not offset.by_gtid:
            return
        row = query(connection, "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_purged)", (offset.gtid_set,))[0]
        if not str(row[0] or ""):
            return
    raise LogLostError(
        f"{info.address} has no {mark.file} any more, which was read up to {offset}, and did not purge all of it (its "
        f"oldest file is {oldest}): the log was reset, or the server was set up again. {RESNAPSHOT_HINT}."
    )


def _number(file: str) -> int:
    return int(file.rpartition(".")[2])
