"""Positions in a MySQL or MariaDB binlog.

Positions of one server are ordered by (number of the file, byte position); positions of different servers are never
compared. The GTID set travels along for visibility waits and fail-over, as text in the server's own syntax
(MySQL: ``uuid:1-5,…``; MariaDB: ``domain-server-sequence,…``; empty where the server has none).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import NotRequired, TypedDict

from raycdc.checkpoint.opaque import Position

#: The advice about a lost place, within the messages that say why it is lost.
READ_ANEW = (
    'To read all tables anew set pipeline.on_log_lost = "resnapshot" and start again (at a first start: startup.mode = '
    '"initial")'
)


class StoredOffset(TypedDict):
    """`BinlogOffset` in checkpoints and messages; the optional parts only where they say something."""

    file: str
    pos: int
    gtid_set: str
    server: NotRequired[str]
    by_gtid: NotRequired[bool]
    prepared: NotRequired[str]
    skip_events: NotRequired[int]
    skip_rows: NotRequired[int]


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class BinlogOffset:
    """The byte after an event: everything before it has been seen. Equality and order look at file and byte alone.

    `server` names the server whose file this is (empty: not known). `by_gtid`: transactions behind this place that are
    in the GTID set have been seen too, so that reading on must ask for those that it lacks. `prepared` holds the rows
    of prepared XA transactions (`xa_transactions`). The next `skip_events` events and `skip_rows` rows are left out.
    """

    file: str
    pos: int
    gtid_set: str = ""
    server: str = ""
    by_gtid: bool = False
    prepared: str = ""
    skip_events: int = 0
    skip_rows: int = 0

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

    def to_json(self) -> StoredOffset:
        stored: StoredOffset = {"file": self.file, "pos": self.pos, "gtid_set": self.gtid_set}
        if self.server:
            stored["server"] = self.server
        if self.by_gtid:
            stored["by_gtid"] = self.by_gtid
        if self.prepared:
            stored["prepared"] = self.prepared
        if self.skip_events:
            stored["skip_events"] = self.skip_events
        if self.skip_rows:
            stored["skip_rows"] = self.skip_rows
        return stored

    @classmethod
    def from_json(cls, data: StoredOffset) -> BinlogOffset:
        """The position that `to_json` wrote, however long ago."""
        return cls(
            data["file"],
            data["pos"],
            data["gtid_set"],
            data.get("server", ""),
            data.get("by_gtid", False),
            data.get("prepared", ""),
            data.get("skip_events", 0),
            data.get("skip_rows", 0),
        )

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
