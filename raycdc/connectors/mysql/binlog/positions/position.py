"""Positions in a MySQL or MariaDB binlog.

Positions of one server are ordered by (number of the file, byte position); positions of different servers are never
compared. The GTID set travels along for visibility waits and fail-over, as text in the server's own syntax
(MySQL: ``uuid:1-5,…``; MariaDB: ``domain-server-sequence,…``; empty where the server has none).

What a log has before a place, by which it is known again.

A file's name and a byte say nothing of what is in the file: after RESET MASTER, and on a server that the same scripts
made anew, the same names and bytes mean other transactions, and so do the same GTIDs. So a position carries a mark:
when the file was begun and by which server, as its FORMAT_DESCRIPTION says in each dump of it, and the length and
checksum of the event that ends at the position. `log_proof` compares it before anything is read from there.

*Limit:* where nothing was read yet, the mark is the file's beginning alone, to the second: a log that is reset in the
very second in which its file was begun, behind a start that fell between the two, is not told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import total_ordering

from raycdc.core.typed_codec import LEFT_OUT, JsonObject
from raycdc.state.opaque import Position

#: A larger event would be sent once more at each start, only to be compared; the file is then known by its beginning.
EVENT_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class LogMark(JsonObject):
    """See the module's docstring. The event of `file` from byte `at` on has the CRC32 `crc` without its checksum; `at`
    is 0 where none is known. `begun` is in seconds, as the server that wrote the file counts them.
    """

    file: str
    begun: int
    server_id: int
    at: int = field(default=0, metadata=LEFT_OUT)
    crc: int = field(default=0, metadata=LEFT_OUT)

    @classmethod
    def of_format(cls, file: str, event: bytes) -> LogMark:
        """The mark of a file's beginning, from its FORMAT_DESCRIPTION.

        Its header stays as it was written; whatever else in it says when the server began is zeroed in some dumps.
        """
        return cls(file, int.from_bytes(event[:4], "little"), int.from_bytes(event[5:9], "little"))

    def is_of_same_file(self, other: LogMark) -> bool:
        """Whether both are of one file."""
        return (self.file, self.begun, self.server_id) == (other.file, other.begun, other.server_id)


class Marks:
    """By which the log is known again at the places that are met. `start` is the (file, byte) where reading begins, and
    `mark` what is known of it.
    """

    def __init__(self, start: tuple[str, int], mark: LogMark | None) -> None:
        self._start = start
        self._of_start = mark
        #: Of an earlier file; and of the one that is read, once its format has come.
        self._before = mark
        self._begun: LogMark | None = None

    def begin_file(self, last: LogMark | None) -> None:
        """The log goes on in another file, of which nothing is known before its format comes; `last` is behind."""
        self._before, self._begun = last, None

    def formatted(self, file: str, event: bytes) -> None:
        """The FORMAT_DESCRIPTION of the file came."""
        self._begun = LogMark.of_format(file, event)

    def at(self, position: tuple[str, int], length: int, crc: int) -> LogMark | None:
        """At `position`, where an event of `length` bytes ends (0: not known) whose checksum is `crc`."""
        if position == self._start and self._of_start is not None:
            return self._of_start
        file, pos = position
        if self._begun is None or self._begun.file != file:
            return self._before
        if not 0 < length <= EVENT_BYTES_MAX:
            return self._begun
        return replace(self._begun, at=pos - length, crc=crc)


#: The advice about a lost place, within the messages that say why it is lost.
RESNAPSHOT_HINT = (
    'To read all tables anew set pipeline.on_log_lost = "resnapshot" and start again (at a first start: startup.mode = '
    '"initial")'
)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class BinlogOffset(JsonObject):
    """The byte after an event: everything before it has been seen. Equality and order look at file and byte alone.

    `server` names the server whose file this is (empty: not known). `by_gtid`: transactions behind this place that are
    in the GTID set have been seen too, so that reading on must ask for those that it lacks. `prepared` holds the rows
    of prepared XA transactions (`xa_transactions`). The next `skip_events` events and `skip_rows` rows are left out.
    By `mark` the log is known again; a state that an earlier version wrote has none.
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
        """The number a binlog file ends in; files of one server are ordered by it."""
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
        """Inverse of `sealed`."""
        return cls.from_json(position.to_json())

    def sealed(self) -> Position:
        """As states have it."""
        return Position.from_json(self.to_json())


#: Room for positions within one file; the file's number is above it.
_POSITION_BITS = 40


def ordinal_of(offset: BinlogOffset) -> int:
    """Positions of one server's log as ascending integers."""
    return (offset.file_number << _POSITION_BITS) | offset.pos
