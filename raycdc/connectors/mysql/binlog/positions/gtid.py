"""GTID sets as text, and in the form that the decoder updates: MySQL's intervals per server, and MariaDB's last
transactions per domain.
"""

from __future__ import annotations

import re
import struct
import uuid
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog.event_loops import read_tagged_gtid
from raycdc.connectors.mysql.binlog.index_loops import GTID, GTID_TAGGED, S_GTIDS, S_RUNS
from raycdc.errors import DataError

_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")


@dataclass(slots=True)
class MySqlGtidSet:
    """Intervals (first, last) per server UUID, or per UUID and tag (``uuid:tag``).

    Both ends are inclusive; the intervals are sorted and do not touch.
    """

    intervals: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MySqlGtidSet:
        """Parse a set like ``uuid:1-5:7:tag:1-3,uuid:1``. Raises `DataError` for an invalid text."""
        gtids = cls()
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            server, *ranges = (word.strip() for word in part.split(":"))
            try:
                source = name = str(uuid.UUID(server))
                for item in ranges:
                    if _TAG.fullmatch(item.lower()):
                        name = f"{source}:{item.lower()}"
                        continue
                    first, _, last = item.partition("-")
                    gtids.add(name, int(first), int(last or first))
            except ValueError as cause:
                raise DataError(f"{text!r} is not a GTID set of MySQL") from cause
        return gtids

    def add(self, server: str, first: int, last: int) -> None:
        """Add an interval, and join it with the intervals that it touches."""
        have = self.intervals.setdefault(server, [])
        if have and first == have[-1][1] + 1:
            have[-1] = (have[-1][0], last)
            return
        have.append((first, last))
        have.sort()
        joined = [have[0]]
        for low, high in have[1:]:
            if low <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
            else:
                joined.append((low, high))
        self.intervals[server] = joined

    def __str__(self) -> str:
        return ",".join(
            ":".join([server, *(f"{a}-{b}" if a != b else str(a) for a, b in self.intervals[server])])
            for server in sorted(self.intervals)
        )

    def contains(self, other: MySqlGtidSet) -> bool:
        """Return True if this set has every transaction of `other`."""
        return all(
            any(low <= first and last <= high for low, high in self.intervals.get(server, ()))
            for server, ranges in other.intervals.items()
            for first, last in ranges
        )

    def without(self, other: MySqlGtidSet) -> MySqlGtidSet:
        """Return the transactions of this set that are not in `other`."""
        rest = MySqlGtidSet()
        for server, ranges in self.intervals.items():
            for first, last in ranges:
                at = first
                for low, high in other.intervals.get(server, ()):
                    if high < at or low > last:
                        continue
                    if low > at:
                        rest.add(server, at, low - 1)
                    at = high + 1
                if at <= last:
                    rest.add(server, at, last)
        return rest

    @classmethod
    def decode(cls, data: bytes) -> MySqlGtidSet:
        """Return the set in the result of `encode`, or in the body of a PREVIOUS_GTIDS event. Raises `DataError`."""
        gtids = cls()
        try:
            (head,) = struct.unpack_from("<Q", data)
            tagged = head >> 56 == 1
            at = 8
            for _ in range(head >> 8 & (1 << 48) - 1 if tagged else head):
                name = str(uuid.UUID(bytes=data[at : at + 16]))
                at += 16
                if tagged:
                    size = data[at] >> 1
                    tag = data[at + 1 : at + 1 + size].decode("ascii")
                    name = f"{name}:{tag}" if tag else name
                    at += 1 + size
                (count,) = struct.unpack_from("<Q", data, at)
                at += 8
                for _ in range(count):
                    first, after = struct.unpack_from("<QQ", data, at)
                    gtids.add(name, first, after - 1)
                    at += 16
        except (struct.error, ValueError, IndexError) as cause:
            raise DataError("a GTID set in the log is damaged") from cause
        return gtids

    def encode(self) -> bytes:
        """Encode the set for COM_BINLOG_DUMP_GTID (sql/rpl_gtid_set.cc, ``Gtid_set::encode``); tags use another format.

        sources(8), then per source: uuid(16) [tag: twice its length (1), text] intervals(8) (first(8) after_last(8))*.
        """
        tagged = any(":" in server for server in self.intervals)
        count = len(self.intervals)
        parts = [struct.pack("<Q", (1 << 56) | (count << 8) | 1 if tagged else count)]
        for server in sorted(self.intervals):
            source, _, tag = server.partition(":")
            parts.append(uuid.UUID(source).bytes)
            if tagged:
                parts.append(bytes([2 * len(tag)]) + tag.encode())
            ranges = self.intervals[server]
            parts.append(struct.pack("<Q", len(ranges)))
            parts += [struct.pack("<QQ", first, last + 1) for first, last in ranges]
        return b"".join(parts)


@dataclass(slots=True)
class MariaDbGtidSet:
    """The last transaction of each domain, as (server id, sequence number)."""

    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MariaDbGtidSet:
        """Parse a set like ``0-1-270,1-2-8``. Raises `DataError` for an invalid text."""
        gtids = cls()
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            try:
                domain, server, sequence = (int(number) for number in part.split("-"))
            except ValueError as cause:
                raise DataError(f"{text!r} is not a GTID position of MariaDB") from cause
            gtids.last[domain] = (server, sequence)
        return gtids

    @classmethod
    def decode(cls, data: bytes) -> MariaDbGtidSet:
        """Parse the body of a GTID_LIST event. Raises `DataError`.

        The body has a count (28 bits), then domain(4) server(4) sequence(8) for each entry; the last entry of a domain
        counts.
        """
        gtids = cls()
        try:
            for n in range(struct.unpack_from("<I", data)[0] & (1 << 28) - 1):
                domain, server, sequence = struct.unpack_from("<IIQ", data, 4 + 16 * n)
                gtids.last[domain] = (server, sequence)
        except struct.error as cause:
            raise DataError("a list of GTIDs in the log is damaged") from cause
        return gtids

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self.last.items()))


class ExecutedGtids:
    """The set of transactions seen: arrays that the compiled pass updates, and a set into which they are merged.

    `keys` names each slot (MySQL: the UUID's halves, then the tag; MariaDB: the domain). `first` and `last` hold the
    slot's current run (MariaDB: server id and sequence number), `runs` the runs that ended.
    """

    def __init__(self, text: str, *, mariadb: bool) -> None:
        self._set: MySqlGtidSet | MariaDbGtidSet = MariaDbGtidSet.parse(text) if mariadb else MySqlGtidSet.parse(text)
        self.keys = np.zeros((64, 6), np.int64)
        self.first = np.zeros(64, np.int64)
        self.last = np.zeros(64, np.int64)
        self.runs = np.zeros((1024, 3), np.int64)

    def merge(self, state: npt.NDArray[np.int64]) -> None:
        """Add the transactions collected by the compiled pass to the set."""
        for slot, first, last in self.runs[: int(state[S_RUNS])].tolist():
            self._add(slot, first, last)
        state[S_RUNS] = 0
        for slot in range(int(state[S_GTIDS])):
            if self.last[slot]:
                self._add(slot, int(self.first[slot]), int(self.last[slot]))
                if isinstance(self._set, MySqlGtidSet):
                    self.first[slot] = self.last[slot]

    def make_room(self, state: npt.NDArray[np.int64]) -> None:
        """Merge the arrays into the set because runs or slots are full, and enlarge the slots."""
        self.merge(state)
        if int(state[S_GTIDS]) == len(self.keys):
            self.keys = np.concatenate([self.keys, np.zeros_like(self.keys)])
            self.first = np.concatenate([self.first, np.zeros_like(self.first)])
            self.last = np.concatenate([self.last, np.zeros_like(self.last)])

    def _add(self, slot: int, first: int, last: int) -> None:
        match self._set:
            case MySqlGtidSet():
                self._set.add(_source_name(self.keys[slot].tobytes()), first, last)
            case MariaDbGtidSet():
                self._set.last[int(self.keys[slot, 0])] = (first, last)

    def __str__(self) -> str:
        return str(self._set)


def _source_name(key: bytes) -> str:
    """Return ``uuid`` or ``uuid:tag`` of a slot's key."""
    tag = key[16:].rstrip(b"\0").decode("ascii", "replace")
    source = str(uuid.UUID(bytes=key[:16]))
    return f"{source}:{tag}" if tag else source


def gtid_text(header: bytes, body: bytes, *, mariadb: bool) -> tuple[str | None, int]:
    """Return (GTID, commit time in ms or 0) of a GTID event. The GTID is None for an anonymous transaction."""
    if mariadb:
        sequence, domain = int.from_bytes(body[:8], "little"), int.from_bytes(body[8:12], "little")
        return f"{domain}-{int.from_bytes(header[5:9], 'little')}-{sequence}", 0
    if header[4] == GTID_TAGGED:
        keys = np.zeros((1, 6), np.int64)
        padded = np.frombuffer(body + bytes(8), np.uint8)
        number, micros = read_tagged_gtid(padded, 0, len(body), keys)
        return f"{_source_name(keys[0].tobytes())}:{number}", micros // 1000
    millis = 0
    if len(body) >= 49 and body[25] == 2:
        millis = (int.from_bytes(body[42:49], "little") & ((1 << 55) - 1)) // 1000
    if header[4] != GTID:
        return None, millis
    return f"{uuid.UUID(bytes=body[1:17])}:{int.from_bytes(body[17:25], 'little')}", millis
