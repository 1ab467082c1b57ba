"""Hand-made binlog events for tests: what a server writes, byte by byte."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

UUID = bytes(range(16))


@dataclass(slots=True)
class LogWriter:
    """Appends events as the server would, keeping positions; `checksum` adds a CRC32 to each."""

    checksum: bool = True
    position: int = 4
    data: bytearray = field(default_factory=bytearray)
    seconds: int = 1_700_000_000

    def event(self, kind: int, body: bytes, *, flags: int = 0, position: int | None = None) -> LogWriter:
        """Append an event; `position` 0 makes it artificial."""
        length = 19 + len(body) + (4 if self.checksum else 0)
        if position is None:
            self.position += length
            position = self.position
        head = struct.pack("<IBIIIH", self.seconds, kind, 1, length, position & 0xFFFFFFFF, flags)
        self.data += head + body
        if self.checksum:
            self.data += struct.pack("<I", zlib.crc32(head + body))
        return self

    def format(self, version: bytes = b"8.0.36", *, created: int = 0) -> LogWriter:
        """FORMAT_DESCRIPTION; it always ends in the checksum's algorithm and a checksum. `created`: by a start."""
        lengths = bytearray(40)
        lengths[18] = 8
        body = struct.pack("<H", 4) + version.ljust(50, b"\0") + struct.pack("<IB", created, 19) + bytes(lengths)
        body += b"\1" if self.checksum else b"\0"
        if self.checksum:
            return self.event(15, body)
        return self.event(15, body + b"\0\0\0\0")

    def gtid(self, number: int, *, uuid: bytes = UUID, micros: int = 0) -> LogWriter:
        """GTID of MySQL, with the immediate commit timestamp when `micros` is given."""
        body = b"\1" + uuid + struct.pack("<Q", number) + b"\2" + struct.pack("<QQ", 0, 1)
        if micros:
            body += struct.pack("<Q", micros)[:7]
        return self.event(33, body)

    def mariadb_gtid(
        self, sequence: int, *, domain: int = 0, standalone: bool = False, extra: bytes = b""
    ) -> LogWriter:
        """`extra` are the extra flags and what follows them; without any the event is filled up with zeros."""
        head = struct.pack("<QIB", sequence, domain, 1 if standalone else 0)
        return self.event(162, head + (extra or bytes(6)))

    def query(self, statement: bytes, *, db: bytes = b"d", status: bytes = b"") -> LogWriter:
        body = struct.pack("<IIBHH", 1, 0, len(db), 0, len(status)) + status + db + b"\0" + statement
        return self.event(2, body)

    def load_query(self, statement: bytes, *, db: bytes = b"d") -> LogWriter:
        """EXECUTE_LOAD_QUERY of file 1."""
        body = struct.pack("<IIBHHIIIB", 1, 0, len(db), 0, 0, 1, 9, 55, 1) + db + b"\0" + statement
        return self.event(18, body)

    def begin(self) -> LogWriter:
        return self.query(b"BEGIN")

    def xid(self) -> LogWriter:
        return self.event(16, struct.pack("<Q", 7))

    def table_map(
        self,
        table_id: int,
        types: bytes,
        metadata: bytes = b"",
        *,
        table: bytes = b"t",
        optional: bytes = b"",
        nullable: bool = True,
    ) -> LogWriter:
        count = len(types)
        body = struct.pack("<IHH", table_id, 0, 1) + b"\1d\0" + bytes([len(table)]) + table + b"\0"
        nulls = (b"\xff" if nullable else b"\0") * ((count + 7) // 8)
        body += bytes([count]) + types + bytes([len(metadata)]) + metadata + nulls + optional
        return self.event(19, body)

    def rows(
        self, kind: int, table_id: int, columns: int, images: bytes, *, present: bytes | None = None, ends: bool = True
    ) -> LogWriter:
        """WRITE (30), UPDATE (31) or DELETE (32) rows, or their version 1 (23, 24, 25); `ends` their statement."""
        bitmap = present if present is not None else ((1 << columns) - 1).to_bytes((columns + 7) // 8, "little")
        body = struct.pack("<IHH", table_id, 0, int(ends)) + (struct.pack("<H", 2) if kind >= 30 else b"")
        body += bytes([columns]) + bitmap + (bitmap if kind in (24, 31) else b"") + images
        return self.event(kind, body)

    def rotate(self, file: bytes, pos: int = 4, *, position: int | None = None) -> LogWriter:
        return self.event(4, struct.pack("<Q", pos) + file, position=position)

    def take(self) -> bytes:
        """The events so far; the writer goes on behind them."""
        found = bytes(self.data)
        self.data.clear()
        return found


def int_row(value: int | None) -> bytes:
    """Image of a row of one INT column."""
    return b"\1" if value is None else b"\0" + struct.pack("<i", value)
