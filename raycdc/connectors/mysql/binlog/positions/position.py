"""Positions in a MySQL or MariaDB binlog.

Positions of one server are ordered by (number of the file, byte position); positions of different servers are never
compared. The GTID set is included for visibility waits and fail-over, as text in the server's own syntax (MySQL:
``uuid:1-5,…``; MariaDB: ``domain-server-sequence,…``; empty if the server has none).

A file's name and a byte offset do not identify its content: after RESET MASTER, or on a server created again by the
same scripts, the same names, offsets and GTIDs mean other transactions. A position therefore carries a mark: the time
and server of the file's beginning, from the FORMAT_DESCRIPTION that each dump repeats, and the length and checksum of
the event that ends at the position. `log_proof` compares it before anything is read from there.

*Limit:* if nothing was read yet, the mark has only the file's beginning, in seconds: a log that is reset within the
second in which its file was begun, with a start in between, is not detected.

`position_text` is the form that ``raycdc inspect`` and ``raycdc tables`` print.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import total_ordering

from raycdc.core.typed_codec import LEFT_OUT, JsonObject
from raycdc.state.opaque import Position

#: A mark names no event larger than this, because the server sends the event again at each start, for a comparison.
#: After a larger event, the mark has only the file's beginning.
EVENT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class LogMark(JsonObject):
    """The mark of a position; see the module's docstring.

    The event of `file` from byte `at` on has the CRC32 `crc` without its checksum; `at` is 0 if none is known. `begun`
    is in seconds by the clock of the server that wrote the file.
    """

    file: str
    begun: int
    server_id: int
    at: int = field(default=0, metadata=LEFT_OUT)
    crc: int = field(default=0, metadata=LEFT_OUT)

    @classmethod
    def of_format(cls, file: str, event: bytes) -> LogMark:
        """Return the mark of a file's beginning, from its FORMAT_DESCRIPTION.

        Only its header is used, because some dumps zero other fields about the server's start.
        """
        return cls(file, int.from_bytes(event[:4], "little"), int.from_bytes(event[5:9], "little"))

    def is_of_same_file(self, other: LogMark) -> bool:
        """Return True if both marks are of the same file."""
        return (self.file, self.begun, self.server_id) == (other.file, other.begun, other.server_id)


class Marks:
    """The marks of positions while the log is read.

    `start` is the (file, byte) where reading begins, and `mark` its known mark.
    """

    def __init__(self, start: tuple[str, int], mark: LogMark | None) -> None:
        self._start = start
        self._of_start = mark
        #: The mark of an earlier file, and that of the present file, which is known after its format event.
        self._before = mark
        self._begun: LogMark | None = None

    def begin_file(self, last: LogMark | None) -> None:
        """Continue in another file, whose mark is unknown until its format event. `last` is the mark so far."""
        self._before, self._begun = last, None

    def formatted(self, file: str, event: bytes) -> None:
        """Take the mark of the present file from its FORMAT_DESCRIPTION event."""
        self._begun = LogMark.of_format(file, event)

    def at(self, position: tuple[str, int], length: int, crc: int) -> LogMark | None:
        """Return the mark of `position`, where an event of `length` bytes (0: unknown) with the checksum `crc` ends."""
        if position == self._start and self._of_start is not None:
            return self._of_start
        file, pos = position
        if self._begun is None or self._begun.file != file:
            return self._before
        if not 0 < length <= EVENT_BYTES_MAX:
            return self._begun
        return replace(self._begun, at=pos - length, crc=crc)


#: The advice in messages about a position that the server does not have any more.
RESNAPSHOT_HINT = (
    'To read all tables again set pipeline.on_log_lost = "resnapshot" and start again (at a first start: '
    'startup.mode = "initial")'
)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class BinlogOffset(JsonObject):
    """The byte after an event: everything before it has been seen. Equality and order use only file and byte.

    `server` names the server of the file (empty: not known). If `by_gtid` is set, later transactions of the GTID set
    have been seen too, so that the next dump must request only the transactions that are not in the set. `prepared`
    holds the rows of prepared XA transactions (`xa_transactions`). The next `skip_events` events and `skip_rows` rows
    are left out. `mark` identifies the log, and is None in a state of an earlier version.
    """

    file: str
    pos: int
    gtid_set: str = ""
    server: str = field(default="", metadata=LEFT_OUT)
    by_gtid: bool = field(default=False, metadata=LEFT_OUT)
    prepared: str = field(default="", metadata=LEFT_OUT)
    skip_events: int = field(default=0, metadata=LEFT_OUT)
    skip_rows: int = field(default=0, metadata=LEFT_OUT)
    mark: LogMark | None = field(default=None, metadata=LEFT_OUT)

    @property
    def file_number(self) -> int:
        """Return the number at the end of the file's name, by which files of one server are ordered."""
        return int(self.file.rpartition(".")[2])

    def _key(self) -> tuple[int, int]:
        return (self.file_number, self.pos)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BinlogOffset) and self._key() == other._key()

    def __lt__(self, other: BinlogOffset) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"

    @classmethod
    def of(cls, position: Position) -> BinlogOffset:
        """Return the inverse of `sealed`."""
        return cls.from_json(position.to_json())

    def sealed(self) -> Position:
        """Return the position for states."""
        return Position.from_json(self.to_json())


#: The bits of an ordinal for the position within one file; the file's number is above them.
_POSITION_BITS = 40


def ordinal_of(offset: BinlogOffset) -> int:
    """Return a position of one server's log as an ordinal. Later positions have greater ordinals."""
    return (offset.file_number << _POSITION_BITS) | offset.pos


def position_text(position: Position) -> str:
    """Return the file and the byte, followed by the GTIDs up to there."""
    offset = BinlogOffset.of(position)
    return f"{offset}   gtid {offset.gtid_set}" if offset.gtid_set else str(offset)
