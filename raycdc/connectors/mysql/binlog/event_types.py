"""The types of log events, and the treatment of each.

Both servers count from 0; MariaDB's own types begin at 160. An unlisted type is skipped if its header permits that
(`IGNORABLE_FLAG`); otherwise the run ends with an error, because any table may be concerned. The compiled walk
(`index_loops`) has the numbers that it needs; a test compares the two.

Reference: MySQL source, libs/mysql/binlog/event/binlog_event.h; MariaDB's, ``Log_event_type`` in sql/log_event.h.

`LogKind` is the kind of log: the server's product, and how its events end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

QUERY, EXECUTE_LOAD_QUERY = 2, 18
#: The events of LOAD DATA from servers before MySQL 5.0.3. LOAD and NEW_LOAD have the whole statement. CREATE_FILE has
#: the table, and EXEC_LOAD the end.
LOAD, CREATE_FILE, EXEC_LOAD, NEW_LOAD = 6, 8, 10, 12
#: One part of a row event that MariaDB has split.
PARTIAL_ROW_DATA = 172


class EventTreatment(Enum):
    """The treatment of an event."""

    #: The event is read, and has an effect.
    READ = auto()
    #: The event is skipped, because no row, table or position depends on it.
    IGNORED = auto()
    #: The event changes rows by a statement, or in a form that is not supported: the tables that it may concern are
    #: parked.
    PARKS = auto()
    #: The event ends the run with an error, because it may concern any table.
    REFUSED = auto()


class EventType(NamedTuple):
    """A type of event.

    `why` is the reason for its treatment: why it can be ignored, or the user's remedy if it is refused.
    """

    name: str
    treatment: EventTreatment
    why: str = ""


_READ, _IGNORED, _PARKS, _REFUSED = (
    EventTreatment.READ,
    EventTreatment.IGNORED,
    EventTreatment.PARKS,
    EventTreatment.REFUSED,
)
_OLD_ROWS = "it was written by a server before MySQL 5.1.18"

EVENT_TYPES: dict[int, EventType] = {
    0: EventType("UNKNOWN", _REFUSED, "no server writes it"),
    1: EventType("START_V3", _REFUSED, "it was written by a server before MySQL 5.0"),
    QUERY: EventType("QUERY", _READ),
    3: EventType("STOP", _IGNORED, "the server stopped; the next file says that it started"),
    4: EventType("ROTATE", _READ),
    5: EventType("INTVAR", _IGNORED, "a value for the statement behind it, which is never executed"),
    LOAD: EventType("LOAD", _PARKS, "it names the table"),
    7: EventType("SLAVE", _REFUSED, "no server writes it"),
    CREATE_FILE: EventType("CREATE_FILE", _PARKS, "it names the table that EXEC_LOAD loads the file into"),
    9: EventType("APPEND_BLOCK", _IGNORED, "bytes of a file that EXECUTE_LOAD_QUERY loads, and names the table of"),
    EXEC_LOAD: EventType(
        "EXEC_LOAD",
        _PARKS,
        "it loads a file of a server before MySQL 5.0.3 into a table that was named before this log was read; begin "
        "after it",
    ),
    11: EventType("DELETE_FILE", _IGNORED, "the file of a LOAD DATA that failed: it added no rows"),
    NEW_LOAD: EventType("NEW_LOAD", _PARKS, "it names the table"),
    13: EventType("RAND", _IGNORED, "a value for the statement behind it, which is never executed"),
    14: EventType("USER_VAR", _IGNORED, "a value for the statement behind it, which is never executed"),
    15: EventType("FORMAT_DESCRIPTION", _READ),
    16: EventType("XID", _READ),
    17: EventType(
        "BEGIN_LOAD_QUERY", _IGNORED, "bytes of a file that EXECUTE_LOAD_QUERY loads, and names the table of"
    ),
    EXECUTE_LOAD_QUERY: EventType("EXECUTE_LOAD_QUERY", _PARKS, "its text has the LOAD DATA"),
    19: EventType("TABLE_MAP", _READ),
    20: EventType("PRE_GA_WRITE_ROWS", _REFUSED, _OLD_ROWS),
    21: EventType("PRE_GA_UPDATE_ROWS", _REFUSED, _OLD_ROWS),
    22: EventType("PRE_GA_DELETE_ROWS", _REFUSED, _OLD_ROWS),
    23: EventType("WRITE_ROWS_V1", _READ),
    24: EventType("UPDATE_ROWS_V1", _READ),
    25: EventType("DELETE_ROWS_V1", _READ),
    26: EventType(
        "INCIDENT", _REFUSED, "the server says that changes may be missing from its log; take a new snapshot"
    ),
    27: EventType("HEARTBEAT", _IGNORED, "of the connection; if it has a position, `file_offsets` reads it"),
    28: EventType("IGNORABLE", _IGNORED, "by its definition"),
    29: EventType("ROWS_QUERY", _IGNORED, "the text behind row events, whose rows are read"),
    30: EventType("WRITE_ROWS", _READ),
    31: EventType("UPDATE_ROWS", _READ),
    32: EventType("DELETE_ROWS", _READ),
    33: EventType("GTID", _READ),
    34: EventType("ANONYMOUS_GTID", _READ),
    35: EventType("PREVIOUS_GTIDS", _IGNORED, "what lies before the file; positions count from where they began"),
    36: EventType("TRANSACTION_CONTEXT", _IGNORED, "of group replication: what was certified; the rows follow"),
    37: EventType("VIEW_CHANGE", _IGNORED, "of group replication: its members"),
    38: EventType("XA_PREPARE", _READ),
    39: EventType("PARTIAL_UPDATE_ROWS", _READ),
    40: EventType("TRANSACTION_PAYLOAD", _READ),
    41: EventType("HEARTBEAT_V2", _IGNORED, "as HEARTBEAT"),
    42: EventType("GTID_TAGGED", _READ),
    160: EventType("ANNOTATE_ROWS", _IGNORED, "the text behind row events, whose rows are read"),
    161: EventType("BINLOG_CHECKPOINT", _IGNORED, "which file the server's own recovery begins with"),
    162: EventType("GTID of MariaDB", _READ),
    163: EventType("GTID_LIST", _IGNORED, "as PREVIOUS_GTIDS; if it has a position, `file_offsets` reads it"),
    164: EventType("START_ENCRYPTION", _REFUSED, "the file is encrypted; read it through the server"),
    165: EventType("QUERY_COMPRESSED", _READ),
    166: EventType("WRITE_ROWS_COMPRESSED_V1", _READ),
    167: EventType("UPDATE_ROWS_COMPRESSED_V1", _READ),
    168: EventType("DELETE_ROWS_COMPRESSED_V1", _READ),
    169: EventType("WRITE_ROWS_COMPRESSED", _READ),
    170: EventType("UPDATE_ROWS_COMPRESSED", _READ),
    171: EventType("DELETE_ROWS_COMPRESSED", _READ),
    PARTIAL_ROW_DATA: EventType(
        "PARTIAL_ROW_DATA",
        _PARKS,
        "it is a part of a row event that MariaDB 12.3 cut, of some table that its transaction has a map of; raise "
        "binlog_row_event_fragment_threshold",
    ),
}

#: The header flag of events that a reader may skip if it does not know them (LOG_EVENT_IGNORABLE_F).
IGNORABLE_FLAG = 0x80
#: The header flag of statements that used a temporary table (LOG_EVENT_THREAD_SPECIFIC_F). DROP TABLE may have it, too.
THREAD_SPECIFIC_FLAG = 0x04


def event_name(kind: int) -> str:
    """Return the name and number of an event type, for messages."""
    known = EVENT_TYPES.get(kind)
    return f"{'unknown' if known is None else known.name} event (type {kind})"


@dataclass(frozen=True, slots=True)
class LogKind:
    """A log of MySQL or of MariaDB.

    If `verify_checksums` is set, CRC32s are compared. In a `whole_file`, each event ends at its recorded position; a
    dump skips some events. `json_point_zero`: the server prints an integral double of a JSON document with ``.0``, as
    since MySQL 8.0.
    """

    mariadb: bool = False
    json_point_zero: bool = True
    verify_checksums: bool = True
    whole_file: bool = False


@dataclass(frozen=True, slots=True)
class EventEnds:
    """The checks at the ends of events, for copying events without their checksums.

    Each event is followed by `checksum_bytes`, which are compared if `verify`. `position` is where the previous event
    ends (32 bits) if each event must end at its recorded position; otherwise -1.
    """

    checksum_bytes: int
    verify: bool
    position: int = -1
