"""Packets of the client/server protocol, received in bulk from the raw socket of a pymysql connection.

pymysql sends commands and knows how to log in; answers of volume are received here: large reads into one
buffer, packet boundaries found by a compiled scan. Used by `resultset`; one thread at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import address_of
from raycdc.connectors.mysql.snapshot import resultset_loops as loops
from raycdc.errors import DataError

#: First size of the buffer, and so the most that is asked of the socket at once.
RECEIVE_BYTES = 1 << 20
#: A row may be as long as the largest ``max_allowed_packet`` a server takes.
ROW_BYTES_MAX = 1 << 30


class Receiver:
    """Bytes from the connection's socket in one growing buffer; packets between `start` and `end`.

    Bypasses pymysql's buffered reader, which is empty between commands.
    """

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self.data = np.empty(RECEIVE_BYTES + loops.SLACK, np.uint8)
        self._memory: memoryview = self.data.data
        #: First byte not consumed, end of the last complete packet, end of the bytes received.
        self.start = self.scanned = self.end = 0
        self.received = 0
        self._position = np.zeros(2, np.int64)

    def fill(self) -> None:
        """Receive once, whatever there is. Raises OSError, and pymysql's OperationalError when the server left."""
        if self._capacity - self.end < RECEIVE_BYTES // 4:
            self._make_room()
        count = self._connection._sock.recv_into(self._memory[self.end : self._capacity])
        if count == 0:
            self._connection._force_close()
            raise pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
        self.end += count
        self.received += count

    def scan(self) -> int:
        """Advance `scanned` over complete packets; see `loops.scan_packets`."""
        reason: int = loops.scan_packets(self.data, self.scanned, self.end, self._position)
        self.scanned = int(self._position[0])
        return reason

    def join_long(self) -> int:
        """Join a payload that spans packets at `start` behind one header; returns its end. The rest moves behind it.

        Blocks until the payload is complete.
        """
        pieces, at = [], 0
        while True:
            # Offsets count from `start`, which moves when room is made.
            self._require(at + 4)
            header = self.start + at
            length = int.from_bytes(self.data[header : header + 3].tobytes(), "little")
            self._require(at + 4 + length)
            pieces.append((at + 4, length))
            at += 4 + length
            if length < loops.PACKET_MAX:
                break
        begin = self.start
        tail = begin + at
        out = begin + 4
        for offset, length in pieces:
            source = begin + offset
            self._memory[out : out + length] = bytes(self._memory[source : source + length])
            out += length
        rest = self.end - tail
        self._memory[out : out + rest] = bytes(self._memory[tail : self.end])
        self.end = out + rest
        return out

    def next_packet(self) -> tuple[int, int]:
        """(start, stop) of the next payload in `data`, consumed; raises the error of an error packet."""
        self._require(4)
        length = int.from_bytes(self.data[self.start : self.start + 3].tobytes(), "little")
        if length == loops.PACKET_MAX:
            stop = self.join_long()
            begin = self.start + 4
        else:
            self._require(4 + length)
            begin = self.start + 4
            stop = begin + length
        self.start = self.scanned = stop
        if stop > begin and self.data[begin] == 0xFF:
            self.raise_error(begin, stop)
        return begin, stop

    def skip_to_end(self) -> None:
        """Consume packets up to and including the next EOF packet."""
        while True:
            reason = self.scan()
            if reason == loops.SCAN_END:
                at = int(self._position[1]) + 4
                self.start = self.scanned
                if self.data[at] == 0xFF:
                    self.raise_error(at, self.start)
                return
            self.start = self.scanned
            if reason == loops.SCAN_LONG:
                self.next_packet()
            else:
                self.fill()

    def raise_error(self, begin: int, stop: int) -> None:
        """Raise the pymysql exception of the error packet with this payload."""
        pymysql.err.raise_mysql_exception(self.data[begin:stop].tobytes())

    @property
    def _capacity(self) -> int:
        return len(self.data) - loops.SLACK

    def _require(self, count: int) -> None:
        """Block until `count` bytes from `start` on are there; may move `start`."""
        while self.end - self.start < count:
            self.fill()

    def _make_room(self) -> None:
        held = self.end - self.start
        if held <= self._capacity // 2:
            # Regions may overlap; numpy copies through a temporary where they do.
            self.data[:held] = self.data[self.start : self.end].copy()
        else:
            if self._capacity > ROW_BYTES_MAX:
                raise DataError(f"A row sent by {address_of(self._connection)} is larger than {ROW_BYTES_MAX} bytes")
            grown = np.empty(2 * self._capacity + loops.SLACK, np.uint8)
            grown[:held] = self.data[self.start : self.end]
            self.data = grown
            self._memory = self.data.data
        self.scanned -= self.start
        self.end = held
        self.start = 0
