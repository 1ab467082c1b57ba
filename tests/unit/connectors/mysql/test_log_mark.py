"""By what a position's log is known again: the beginning of its file, and the event that ends there."""

from __future__ import annotations

import zlib

import pytest

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.positions.position import EVENT_BYTES_MAX, BinlogOffset, LogMark
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from tests.unit.connectors.mysql.binlog_bytes import LogWriter, int_row
from tests.unit.connectors.mysql.test_binlog_decoder import INT, decoder

FILE = "binlog.000001"


def mark_of(subject: BinlogDecoder) -> LogMark | None:
    return subject.cursor.position.mark


def crc_of(events: bytes, at: int, *, checksum: bool) -> int:
    """Of the event at byte `at` of a file that begins with `events`."""
    length = int.from_bytes(events[at - 4 + 9 : at - 4 + 13], "little")
    return zlib.crc32(events[at - 4 : at - 4 + length - (4 if checksum else 0)])


@pytest.mark.parametrize("checksum", [True, False])
def test_a_position_has_the_event_that_ends_there(checksum: bool) -> None:
    log = LogWriter(checksum=checksum).format()
    format_ends = log.position
    log.gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1))
    at = log.position
    log.xid()
    events = bytes(log.data)
    subject = decoder()
    assert mark_of(subject) is None
    begun = LogMark(FILE, log.seconds, 1)

    subject.feed(events[: format_ends - 4])
    assert mark_of(subject) == begun
    subject.feed(events[format_ends - 4 :])

    mark = mark_of(subject)
    assert mark == LogMark(FILE, log.seconds, 1, at, crc_of(events, at, checksum=checksum))
    # Inside the next transaction the position, and what it is known by, stay.
    more = LogWriter(checksum=checksum, position=log.position).gtid(2).begin()
    subject.feed(bytes(more.data))
    assert mark_of(subject) == mark


def test_a_new_file_is_known_by_the_one_before_until_its_format_came() -> None:
    log = LogWriter().format().gtid(1).begin()
    log.xid().rotate(b"binlog.000002")
    rotated = log.position
    subject = decoder()
    subject.feed(log.take())
    assert str(subject.cursor.position) == "binlog.000002:4"
    mark = mark_of(subject)
    assert mark is not None
    assert (mark.file, mark.begun) == (FILE, log.seconds)
    assert mark.at < rotated

    after = LogWriter(seconds=log.seconds + 60).rotate(b"binlog.000002", position=0).format()
    subject.feed(after.take())
    assert mark_of(subject) == LogMark("binlog.000002", log.seconds + 60, 1)


def test_a_start_keeps_its_mark_until_something_came() -> None:
    mark = LogMark(FILE, 7, 1, 200, 99)
    start = BinlogOffset.of(BinlogOffset(FILE, 240, mark=mark).sealed())
    assert start.mark == mark
    subject = BinlogDecoder(MapSchemas({}), wanted=lambda _: False, start=start, log=LogKind())
    log = LogWriter(seconds=7).rotate(b"binlog.000001", 240, position=0)
    log.event(15, format_body(), position=0)
    subject.feed(log.take())
    assert mark_of(subject) == mark
    log = LogWriter(position=240).query(b"FLUSH PRIVILEGES")
    subject.feed(log.take())
    events = bytes(LogWriter(position=240).query(b"FLUSH PRIVILEGES").data)
    assert mark_of(subject) == LogMark(FILE, 7, 1, 240, zlib.crc32(events[:-4]))


def format_body() -> bytes:
    return bytes(LogWriter().format().data)[19:-4]


def test_a_statement_that_is_too_large_to_be_sent_again_is_not_kept() -> None:
    log = LogWriter().format().query(b"CREATE TABLE x (c INT) COMMENT '" + b"a" * EVENT_BYTES_MAX + b"'")
    subject = decoder()
    subject.feed(log.take())
    assert mark_of(subject) == LogMark(FILE, log.seconds, 1)
