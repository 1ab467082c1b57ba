"""The items of the binlog decoder, and the rare events that are parsed in Python.

Rows come as `BinlogRowsItem` batches; everything else in the log that concerns a reader comes as a separate item. Items
are in log order, except that the rows between two other items are grouped by table (`_seq` orders them).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.clients.mysql import quote_name
from raycdc.connectors.mysql.binlog.event_types import CREATE_FILE, EXECUTE_LOAD_QUERY, LOAD, QUERY
from raycdc.connectors.mysql.binlog.index_loops import HEADER_BYTES
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import NO_SESSION, NO_WRITER, LogWriter, SessionState, parse_session
from raycdc.connectors.mysql.values.charsets import codec_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.core.typed_codec import JsonText
from raycdc.errors import CorruptLogError
from raycdc.model import TableId


@dataclass(frozen=True, slots=True)
class BinlogRowsItem:
    """Rows of one table, in log order.

    `batch` has the columns of `changelog_schema`; `_seq` continues over all tables and items. `row_pos` holds the end
    position (in `file`) of the event each row came from. An update is two rows (-U, +U), never in different items.
    `described` is the version of the table that the rows were decoded with: a buffer may hold rows of several versions.
    `kept` is True if a `RowKeeper` stored the rows, and removed values that are not captured.
    """

    table: TableId
    batch: pa.RecordBatch
    row_pos: npt.NDArray[np.int64]
    rows: int
    file: str
    described: MySqlTable
    kept: bool = False


@dataclass(frozen=True, slots=True, order=True)
class LoggedThread(JsonText):
    """The session that ran a statement: its server, and its number there, which is valid until that server restarts."""

    server_id: int
    thread_id: int

    def __str__(self) -> str:
        return f"{self.server_id}:{self.thread_id}"

    @classmethod
    def parse(cls, text: str) -> LoggedThread:
        server_id, _, thread_id = text.partition(":")
        return cls(int(server_id), int(thread_id))


#: The thread of a statement that is not from a log.
NO_THREAD = LoggedThread(0, 0)


@dataclass(frozen=True, slots=True)
class DdlItem:
    """A statement of the log other than BEGIN, COMMIT, ROLLBACK and SAVEPOINT.

    `db` is the session's default database. `before` is the end of the last complete transaction before it, `position`
    the end of the statement itself; both carry the GTID set up to there. `in_transaction` is True for a statement
    inside BEGIN … COMMIT (`position` is then no position to restart from), and `after_rows` if rows of that transaction
    may precede it. `thread` ran the statement. `thread_specific` is True if it used a temporary table, or is DROP
    TABLE.
    """

    db: str
    statement: str
    before: BinlogOffset
    position: BinlogOffset
    ts_ms: int
    in_transaction: bool
    session: SessionState = NO_SESSION
    thread: LoggedThread = NO_THREAD
    thread_specific: bool = False
    after_rows: bool = False


@dataclass(frozen=True, slots=True)
class FileBegins:
    """A notice that a file of the log begins, and that this changed the state for a restart, according to `on_file`.

    `position` is the end of the last complete transaction.
    """

    position: BinlogOffset
    in_transaction: bool


LogItem = BinlogRowsItem | DdlItem | FileBegins
#: Complete events, one after the other.
Bytes = bytes | bytearray | memoryview | npt.NDArray[np.uint8]


def as_array(events: Bytes) -> npt.NDArray[np.uint8]:
    """Return `events` as an array, without a copy."""
    return events if isinstance(events, np.ndarray) else np.frombuffer(events, np.uint8)


@dataclass(frozen=True, slots=True)
class QueryEvent:
    """A QUERY event: default database, text, thread number, and the settings of its session.

    `statement` is decoded by the session's character set, which is that of the client. `text` is decoded as UTF-8,
    which servers use for their own statements; other bytes are kept (`surrogateescape`).
    """

    db: str
    statement: str
    session: SessionState = NO_SESSION
    thread_id: int = 0
    text: str = ""


#: The offset of the status variables. EXECUTE_LOAD_QUERY also has its file's number, and the position of the file's
#: name in the text.
_BEFORE_STATUS = {QUERY: 13, EXECUTE_LOAD_QUERY: 26}


def parse_query(body: bytes, *, kind: int = QUERY, writer: LogWriter = NO_WRITER) -> QueryEvent:
    """Parse the body of a QUERY event: thread(4) time(4) db_length(1) error(2) status_length(2) … status db NUL
    statement.
    """
    status_at = _BEFORE_STATUS[kind]
    if len(body) < status_at + 1:
        raise CorruptLogError("a QUERY event is too short")
    db_at = status_at + int.from_bytes(body[11:13], "little")
    session = parse_session(body[status_at:db_at], writer)
    db_end = db_at + body[8]
    # Servers treat the bytes as UTF-8 if the session's character set is binary, when they look for names.
    codec = codec_of(session.charset) if session.charset not in ("", "binary") else "utf-8"
    db = body[db_at:db_end].decode("utf-8", "replace")
    statement, text = body[db_end + 1 :].decode(codec, "replace"), body[db_end + 1 :].decode("utf-8", "surrogateescape")
    return QueryEvent(db, statement, session, int.from_bytes(body[:4], "little"), text)


def parse_load(kind: int, body: bytes) -> tuple[QueryEvent, int]:
    """Return (LOAD DATA, number of its file) of a LOAD, CREATE_FILE or NEW_LOAD event of servers before MySQL 5.0.3.

    thread(4) time(4) skipped_lines(4) table_length(1) db_length(1) fields(4) [CREATE_FILE: file(4)] terminators, fields
    × length(1), fields × (name NUL), table NUL db NUL file. Terminators: 5 characters and 2 flags in LOAD, otherwise 5
    × (length(1) text) and a flag (MySQL source before 8.0, ``Load_log_event::copy_log_event``).
    """
    try:
        fields, at = int.from_bytes(body[14:18], "little"), 18
        number = int.from_bytes(body[18:22], "little") if kind == CREATE_FILE else 0
        at += 4 if kind == CREATE_FILE else 0
        if kind == LOAD:
            at += 7
        else:
            for _ in range(5):
                at += 1 + body[at]
            at += 1
        at += fields + sum(body[at : at + fields]) + fields
        table_end = at + body[12]
        db_end = table_end + 1 + body[13]
        if body[table_end] or body[db_end]:
            raise CorruptLogError("an event of LOAD DATA is damaged")
    except IndexError as cause:
        raise CorruptLogError("an event of LOAD DATA is too short") from cause
    table, db = body[at:table_end].decode("utf-8", "replace"), body[table_end + 1 : db_end].decode("utf-8", "replace")
    statement = f"LOAD DATA INFILE '' INTO TABLE {quote_name(db, table)}"
    return QueryEvent(db, statement, thread_id=int.from_bytes(body[:4], "little")), number


@dataclass(frozen=True, slots=True)
class FormatDescription:
    """The format of the events that follow. `started` is True if the server started when it began this file."""

    server_version: str
    checksum_bytes: int
    started: bool = False


def parse_format_description(event: bytes) -> FormatDescription:
    """Parse a complete FORMAT_DESCRIPTION event. Raises `CorruptLogError` for a format other than binlog version 4.

    Body: binlog_version(2) server_version(50) created(4) header_length(1) post-header lengths, checksum algorithm(1),
    checksum(4). `created` is 0 if the server had begun files before, and in a dump from the middle of a file. Servers
    before 5.6 have neither algorithm nor checksum.
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
    return FormatDescription(version, 4 if algorithm == 1 else 0, started=body[52:56] != bytes(4))


def _knows_checksums(version: str) -> bool:
    parts = version.split("-", maxsplit=1)[0].split(".")
    try:
        numbers = tuple(int(part) for part in parts[:3])
    except ValueError:
        return True
    return numbers >= ((5, 3, 0) if "MariaDB" in version else (5, 6, 1))


def parse_rotate(body: bytes) -> tuple[str, int]:
    """Return the next file and the position in it. The server may write a path; the last part is the file's name."""
    if len(body) < 9:
        raise CorruptLogError("a ROTATE event is too short")
    path = body[8:].split(b"\0")[0].decode("utf-8", "replace").replace("\\", "/")
    position = int.from_bytes(body[:8], "little")
    if position >= 1 << 63:
        raise CorruptLogError("a ROTATE event is damaged")
    return path.rpartition("/")[2], position
