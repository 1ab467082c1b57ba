"""The items of the binlog decoder, and the rare events that are parsed in Python.

Rows come as `RowsItem` batches; everything else in the log that a reader must act on is an item of its own. Items are
in log order, except that the rows between two other items are grouped by table (`_seq` orders them).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mysql.binlog.index_loops import HEADER_BYTES
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import NO_SESSION, SessionState, parse_session
from raycdc.connectors.mysql.values.charsets import codec_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import CorruptLogError
from raycdc.model import TableId

EVENT_NAMES: dict[int, str] = {
    0: "UNKNOWN",
    1: "START_V3",
    2: "QUERY",
    3: "STOP",
    4: "ROTATE",
    15: "FORMAT_DESCRIPTION",
    16: "XID",
    17: "BEGIN_LOAD_QUERY",
    18: "EXECUTE_LOAD_QUERY",
    19: "TABLE_MAP",
    20: "PRE_GA_WRITE_ROWS",
    21: "PRE_GA_UPDATE_ROWS",
    22: "PRE_GA_DELETE_ROWS",
    23: "WRITE_ROWS_V1",
    24: "UPDATE_ROWS_V1",
    25: "DELETE_ROWS_V1",
    26: "INCIDENT",
    30: "WRITE_ROWS",
    31: "UPDATE_ROWS",
    32: "DELETE_ROWS",
    33: "GTID",
    34: "ANONYMOUS_GTID",
    39: "PARTIAL_UPDATE_ROWS",
    40: "TRANSACTION_PAYLOAD",
    42: "GTID_TAGGED",
    164: "START_ENCRYPTION",
    165: "QUERY_COMPRESSED",
    166: "WRITE_ROWS_COMPRESSED_V1",
    167: "UPDATE_ROWS_COMPRESSED_V1",
    168: "DELETE_ROWS_COMPRESSED_V1",
    169: "WRITE_ROWS_COMPRESSED",
    170: "UPDATE_ROWS_COMPRESSED",
    171: "DELETE_ROWS_COMPRESSED",
}

#: Events that mean lost or unreadable data, with what the user can do about each.
REFUSED_EVENTS: dict[int, str] = {
    17: "it comes from LOAD DATA logged as a statement; set binlog_format=ROW",
    18: "it comes from LOAD DATA logged as a statement; set binlog_format=ROW",
    20: "it was written by a server before MySQL 5.1.18",
    21: "it was written by a server before MySQL 5.1.18",
    22: "it was written by a server before MySQL 5.1.18",
    26: "the server says that changes may be missing from its log; take a new snapshot",
    164: "the file is encrypted; read it through the server",
}

#: Header flag of events that a reader may skip when it does not know them (LOG_EVENT_IGNORABLE_F).
IGNORABLE_FLAG = 0x80


@dataclass(frozen=True, slots=True)
class RowsItem:
    """Rows of one table, in log order.

    `batch` has the columns of `changelog_schema`; `_seq` continues over all tables and items. `row_pos` holds the end
    position (in `file`) of the event each row came from. An update is two rows (-U, +U), never in different items.
    `described` is the version of the table that the rows were decoded with: a buffer may hold rows of several.
    `kept`: a `RowKeeper` had them, and has left out what is not captured.
    """

    table: TableId
    batch: pa.RecordBatch
    row_pos: npt.NDArray[np.int64]
    rows: int
    file: str
    described: MySqlTable
    kept: bool = False


@dataclass(frozen=True, slots=True)
class DdlItem:
    """A statement of the log other than BEGIN, COMMIT, ROLLBACK and SAVEPOINT.

    `db` is the session's default database. `before` is the end of the last complete transaction before it, `position`
    the end of the statement itself; both carry the GTID set up to there. `in_transaction` is True for a statement
    inside BEGIN … COMMIT (then `position` is no place to restart from).
    """

    db: str
    statement: str
    before: BinlogOffset
    position: BinlogOffset
    ts_ms: int
    in_transaction: bool
    session: SessionState = NO_SESSION


LogItem = RowsItem | DdlItem
#: Complete events, one after the other.
Bytes = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


def as_array(events: Bytes) -> npt.NDArray[np.uint8]:
    """`events` without a copy."""
    return events if isinstance(events, np.ndarray) else np.frombuffer(events, np.uint8)


@dataclass(frozen=True, slots=True)
class QueryEvent:
    """A QUERY event's default database, text, and the settings by which its session read the text."""

    db: str
    statement: str
    session: SessionState = NO_SESSION


def event_name(kind: int) -> str:
    """Name and number of an event type, for messages."""
    return f"{EVENT_NAMES.get(kind, 'unknown')} event (type {kind})"


def parse_query(body: bytes) -> QueryEvent:
    """Body: thread(4) time(4) db_length(1) error(2) status_length(2) status db NUL statement."""
    if len(body) < 14:
        raise CorruptLogError("a QUERY event is too short")
    status_length = int.from_bytes(body[11:13], "little")
    session = parse_session(body[13 : 13 + status_length])
    db_at = 13 + status_length
    db_end = db_at + body[8]
    codec = codec_of(session.charset) if session.charset else "utf-8"
    db = body[db_at:db_end].decode("utf-8", "replace")
    return QueryEvent(db, body[db_end + 1 :].decode(codec, "replace"), session)


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """How the events after it look."""

    server_version: str
    checksum_bytes: int


def parse_format_description(event: bytes) -> FormatDescription:
    """A whole FORMAT_DESCRIPTION event. Raises `CorruptLogError` for a format other than binlog version 4.

    Body: binlog_version(2) server_version(50) created(4) header_length(1) post-header lengths, checksum algorithm(1),
    checksum(4). Servers before 5.6 have neither algorithm nor checksum.
    """
    body = event[HEADER_BYTES:]
    if len(body) < 57 or body[:2] != b"\x04\x00" or body[56] != HEADER_BYTES:
        raise CorruptLogError("the FORMAT_DESCRIPTION event is damaged or of a binlog format other than version 4")
    version = body[2:52].split(b"\0")[0].decode("ascii", "replace")
    if body[57:] and len(body) > 75 and body[75] != 8:
        raise CorruptLogError("TABLE_MAP events have four-byte table ids, as before MySQL 5.1.4")
    algorithm = event[-5] if _knows_checksums(version) and len(body) >= 62 else 0
    if algorithm not in (0, 1, 255):
        raise CorruptLogError(f"unknown checksum algorithm {algorithm}")
    if algorithm == 1:
        # The flag "binlog in use" is set in the file after the checksum was computed.
        clean = bytearray(event[:-4])
        clean[17] &= 0xFE
        if zlib.crc32(clean) != int.from_bytes(event[-4:], "little"):
            raise CorruptLogError("the checksum of the FORMAT_DESCRIPTION event does not match")
    return FormatDescription(version, 4 if algorithm == 1 else 0)


def _knows_checksums(version: str) -> bool:
    parts = version.split("-", maxsplit=1)[0].split(".")
    try:
        numbers = tuple(int(part) for part in parts[:3])
    except ValueError:
        return True
    return numbers >= ((5, 3, 0) if "MariaDB" in version else (5, 6, 1))


def parse_rotate(body: bytes) -> tuple[str, int]:
    """(next file, position in it); the server may write a path, whose last part is the name."""
    if len(body) < 9:
        raise CorruptLogError("a ROTATE event is too short")
    path = body[8:].split(b"\0")[0].decode("utf-8", "replace").replace("\\", "/")
    position = int.from_bytes(body[:8], "little")
    if position >= 1 << 63:
        raise CorruptLogError("a ROTATE event is damaged")
    return path.rpartition("/")[2], position
