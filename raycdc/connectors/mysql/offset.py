"""Positions in a MySQL or MariaDB binlog.

Positions of one server are ordered by (number of the file, byte position); positions of different servers are never
compared. The GTID set travels along for visibility waits and fail-over, as text in the server's own syntax
(MySQL: ``uuid:1-5,…``; MariaDB: ``domain-server-sequence,…``; empty where the server has none).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import Any


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class BinlogOffset:
    """The byte after an event: everything before it has been seen. Equality and order ignore the GTID set."""

    file: str
    pos: int
    gtid_set: str = ""

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

    def to_json(self) -> dict[str, Any]:
        return {"file": self.file, "pos": self.pos, "gtid_set": self.gtid_set}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> BinlogOffset:
        return cls(data["file"], data["pos"], data["gtid_set"])
