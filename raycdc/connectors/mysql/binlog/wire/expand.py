"""Expands compressed events of the log into a buffer that the decoder walks like the log itself.

Called by `BinlogDecoder` when its compiled pass meets a compressed event; all events from the compressed one to the
buffer's end (or the next file's beginning) are copied, so that many small compressed transactions are still decoded
together. Events inside a compressed event get the end position of the compressed event, because the log has no
positions inside it.

MySQL (``binlog_transaction_compression``): TRANSACTION_PAYLOAD holds a whole transaction, compressed with zstd or not
at all; libs/mysql/binlog/event/codecs/binary.cpp. MariaDB (``log_bin_compress``): statements and row events, each with
its own zlib stream; sql/log_event.cc, ``query_event_uncompress`` and ``row_log_event_uncompress``.

*Bound*: a piece is at most `PIECE_BYTES` and one event; memory is never allocated for a size that the log only claims.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mysql.binlog.event_types import EventEnds
from raycdc.connectors.mysql.binlog.index_loops import (
    COMPRESSED_FIRST,
    HEADER_BYTES,
    QUERY,
    TRANSACTION_PAYLOAD,
    complete_events,
)
from raycdc.connectors.mysql.binlog.wire import expand_loops as loops
from raycdc.errors import CorruptLogError

#: The size at which a piece is returned.
PIECE_BYTES = 4 << 20
_FIRST_BYTES = 1 << 16
#: A payload with a smaller claimed size is expanded in one step.
_WHOLE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
#: The greatest compression factor of zlib (zlib.net, "Maximum compression factor").
_ZLIB_FACTOR = 1100
#: The largest event, because an event is one packet of the server, at most 1 GiB (max_allowed_packet).
_EVENT_MAX = (1 << 30) + (1 << 16)
_ZSTD, _NONE = 0, 255
WRONG_POSITION = "an event does not end where its header says: bytes before it are missing or there twice"
#: The types of MariaDB's events without compression, in the order of the compressed types from `COMPRESSED_FIRST` on.
_PLAIN_KINDS = (QUERY, 23, 24, 25, 30, 31, 32)


class Expander:
    """The expansion of one buffer at a time. `at` is the offset after the last of the `pieces`."""

    def __init__(self) -> None:
        self._out = np.empty(_FIRST_BYTES, np.uint8)
        self._used = 0
        self.at = 0

    def pieces(self, data: npt.NDArray[np.uint8], at: int, ends: EventEnds) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the events from `at` on without checksums, expanded; each piece is valid until the next is requested.

        Raises `CorruptLogError` without a position (`at` is the event's offset), after the pieces before the damage.
        """
        self._used = 0
        self.at = at
        checksum_bytes, verify, position = ends.checksum_bytes, int(ends.verify), ends.position
        while True:
            code, self.at, self._used, position = loops.copy_plain(
                data, self.at, len(data), checksum_bytes, verify, position, self._out, self._used
            )
            match code:
                case loops.COPY_FULL:
                    if self._used >= PIECE_BYTES or self._used > len(self._out) // 2:
                        yield self._take()
                    if self._used == 0:
                        self._room(int.from_bytes(data[self.at + 9 : self.at + 13].tobytes(), "little"))
                    else:
                        self._room(len(self._out) - self._used + 1)
                    continue
                case loops.COPY_COMPRESSED:
                    before = self.at
                    yield from self._expand(data, checksum_bytes)
                    if position >= 0:
                        position = (position + self.at - before) & 0xFFFFFFFF
                    continue
            if self._used:
                yield self._take()
            if code == loops.COPY_CHECKSUM:
                raise CorruptLogError("the checksum of an event does not match")
            if code == loops.COPY_POSITION:
                raise CorruptLogError(WRONG_POSITION)
            if code == loops.COPY_LENGTH:
                raise CorruptLogError("an event's length is impossible, or it ends after the data")
            return

    def _take(self) -> npt.NDArray[np.uint8]:
        piece, self._used = self._out[: self._used], 0
        return piece

    def _room(self, count: int) -> None:
        """Make room for `count` more bytes, and keep the content."""
        need = self._used + count
        if need > len(self._out):
            bigger = np.empty(max(need, min(2 * len(self._out), 2 * PIECE_BYTES)), np.uint8)
            bigger[: self._used] = self._out[: self._used]
            self._out = bigger

    def _put(self, content: bytes | memoryview) -> None:
        self._room(len(content))
        self._out[self._used : self._used + len(content)] = np.frombuffer(content, np.uint8)
        self._used += len(content)

    def _expand(self, data: npt.NDArray[np.uint8], checksum_bytes: int) -> Iterator[npt.NDArray[np.uint8]]:
        head = data[self.at : self.at + HEADER_BYTES].tobytes()
        length = int.from_bytes(head[9:13], "little")
        body = data[self.at + HEADER_BYTES : self.at + length - checksum_bytes]
        try:
            if head[4] == TRANSACTION_PAYLOAD:
                yield from self._payload(body.data, int.from_bytes(head[13:17], "little"))
            else:
                if self._used >= PIECE_BYTES:
                    yield self._take()
                self._put(mariadb_plain_event(head, body.tobytes()))
        except CorruptLogError:
            if self._used:
                yield self._take()
            raise
        self.at += length

    def _payload(self, body: memoryview, position: int) -> Iterator[npt.NDArray[np.uint8]]:
        algorithm, claimed, content = payload_parts(bytes(body[:64]), body)
        start = self._used
        total = 0
        for chunk in _inflated(algorithm, content, claimed):
            total += len(chunk)
            if total > claimed:
                raise CorruptLogError("a compressed transaction is larger than it says")
            self._put(chunk)
            done = int(loops.set_end_positions(self._out, start, self._used, position))
            if done < 0:
                self._used = start
                raise CorruptLogError("a compressed transaction holds something that is no event")
            start = done
            if start >= PIECE_BYTES:
                rest = self._out[start : self._used].copy()
                self._used = start
                yield self._take()
                self._put(rest.data)
                start = 0
            elif start < self._used and complete_events(self._out, start, self._used)[1] > _EVENT_MAX:
                self._used = start
                raise CorruptLogError("an event in a compressed transaction has an impossible length")
        if start != self._used or total != claimed:
            self._used = start
            raise CorruptLogError("a compressed transaction ends in the middle of an event")


def payload_parts(head: bytes, body: memoryview) -> tuple[int, int, memoryview]:
    """Return (algorithm, size before compression, content) of a TRANSACTION_PAYLOAD's body.

    Fields of (type, length, value), all packed integers, up to type 0: 1 size, 2 algorithm, 3 size before compression.
    """
    at = 0

    def packed() -> int:
        nonlocal at
        first = head[at]
        width = {252: 2, 253: 3, 254: 8}.get(first, 0)
        value = int.from_bytes(head[at + 1 : at + 1 + width], "little") if width else first
        at += 1 + width
        return value

    fields = {1: -1, 2: _NONE, 3: -1}
    try:
        while (kind := packed()) != 0:
            size = packed()
            start = at
            fields[kind] = packed()
            at = start + size
    except IndexError as cause:
        raise CorruptLogError("the head of a compressed transaction is damaged") from cause
    content = body[at:]
    if fields[1] != len(content) or at > len(head):
        raise CorruptLogError("a compressed transaction has another size than it says")
    claimed = fields[3] if fields[3] >= 0 else len(content)
    return fields[2], claimed, content


def _inflated(algorithm: int, content: memoryview, claimed: int) -> Iterator[memoryview]:
    """Yield the uncompressed payload in pieces."""
    if algorithm == _NONE:
        yield content
        return
    if algorithm != _ZSTD:
        raise CorruptLogError(f"a transaction is compressed with the unknown algorithm {algorithm}")
    try:
        if claimed <= _WHOLE_BYTES:
            yield memoryview(pa.decompress(content, decompressed_size=claimed, codec="zstd"))
            return
        # Decompressed as a stream, because the claimed size may be wrong.
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(content)), "zstd") as stream:
            while chunk := stream.read_buffer(_CHUNK_BYTES):
                yield memoryview(chunk)
    except OSError as cause:
        raise CorruptLogError(f"a compressed transaction is damaged ({cause})") from cause


def mariadb_plain_event(head: bytes, body: bytes) -> bytes:
    """Return the event that MariaDB would have written without compression, without a checksum."""
    kind = head[4]
    if not COMPRESSED_FIRST <= kind < COMPRESSED_FIRST + len(_PLAIN_KINDS):
        raise CorruptLogError(f"unknown compressed event (type {kind})")
    start = _query_text(body) if kind == COMPRESSED_FIRST else _row_images(kind, body)
    content = body[:start] + _uncompressed(body[start:])
    size = HEADER_BYTES + len(content)
    return (
        head[:4]
        + bytes([_PLAIN_KINDS[kind - COMPRESSED_FIRST]])
        + head[5:9]
        + size.to_bytes(4, "little")
        + (head[13:] + content)
    )


def _query_text(body: bytes) -> int:
    """Return where a QUERY event's text begins: after the fixed part, status variables and database."""
    if len(body) < 13:
        raise CorruptLogError("a compressed QUERY event is too short")
    return 13 + int.from_bytes(body[11:13], "little") + body[8] + 1


def _row_images(kind: int, body: bytes) -> int:
    """Return where a row event's images begin: after table id, flags, extra data, column count and bitmaps."""
    version2 = kind >= COMPRESSED_FIRST + 4
    try:
        at = 8 + (int.from_bytes(body[8:10], "little") if version2 else 0)
        columns = body[at]
        at += 1
        if columns == 252:
            columns = int.from_bytes(body[at : at + 2], "little")
            at += 2
    except IndexError as cause:
        raise CorruptLogError("a compressed row event is too short") from cause
    images = 2 if kind in (COMPRESSED_FIRST + 2, COMPRESSED_FIRST + 5) else 1
    return at + (columns + 7) // 8 * images


def _uncompressed(record: bytes) -> bytes:
    """Return the content of a compressed record.

    The record is ``1 algorithm(3) size_bytes(4)`` in bits, the size (big endian), and a zlib stream.
    """
    if not record or record[0] & 0xF0 != 0x80 or not 1 <= record[0] & 7 <= 4:
        raise CorruptLogError("the head of a compressed event is damaged")
    width = record[0] & 7
    size = int.from_bytes(record[1 : 1 + width], "big")
    if size > _ZLIB_FACTOR * len(record) + 64 or size > _EVENT_MAX:
        raise CorruptLogError("a compressed event claims an impossible size")
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(record[1 + width :], size + 1)
    except zlib.error as cause:
        raise CorruptLogError(f"a compressed event is damaged ({cause})") from cause
    if len(content) != size or not inflater.eof:
        raise CorruptLogError("a compressed event has another size than it says")
    return content
