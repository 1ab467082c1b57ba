"""From the bytes of a log connection to complete events, and the beginning of a large file that nobody asked for."""

from __future__ import annotations

import struct

import pytest

from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.wire.log_dump import FileBeginning
from raycdc.connectors.mysql.binlog.wire.stream import EventBuffer
from raycdc.errors import LogLostError
from tests.unit.connectors.mysql.binlog_bytes import LogWriter

WRAP = 1 << 32


def packet(content: bytes) -> bytes:
    return struct.pack("<I", len(content))[:3] + b"\1" + content


def receive(buffer: EventBuffer, data: bytes) -> bytes | None:
    buffer.free[: len(data)] = data
    return buffer.received(len(data))


def test_an_event_that_arrives_in_two_parts_is_handed_out_once_it_is_whole() -> None:
    first, second = LogWriter().gtid(1).take(), LogWriter().begin().take()
    sent = packet(b"\0" + first) + packet(b"\0" + second)
    buffer = EventBuffer()
    assert receive(buffer, sent[:-3]) is None
    assert bytes(buffer.take()) == first
    buffer.drop_taken()
    assert buffer.complete == 0
    assert receive(buffer, sent[-3:]) is None
    assert bytes(buffer.take()) == second


def test_an_event_larger_than_the_memory_makes_it_grow() -> None:
    event = LogWriter().event(29, bytes(5 << 20)).take()
    sent = packet(b"\0" + event)
    buffer = EventBuffer()
    for at in range(0, len(sent), 1 << 20):
        assert buffer.complete == 0
        receive(buffer, sent[at : at + (1 << 20)])
    assert bytes(buffer.take()) == event


def test_the_packet_that_ends_the_stream_comes_once_it_is_whole_and_behind_the_events() -> None:
    event, end = LogWriter().gtid(1).take(), packet(b"\xff\xd4\x04#HY000purged")
    buffer = EventBuffer()
    assert receive(buffer, packet(b"\0" + event) + end[:-2]) is None
    assert receive(buffer, end[-2:]) == end
    assert bytes(buffer.take()) == event


def test_of_a_file_sent_from_its_beginning_the_format_and_what_was_asked_for_are_left() -> None:
    log = LogWriter().rotate(b"binlog.000001", position=0).format()
    head = log.take()
    log.position = WRAP - 50
    before = log.event(29, b"").take()  # it ends behind 4 GiB
    log.position += 5000
    before += log.begin().take()
    offset = BinlogOffset("binlog.000001", log.position)
    behind = log.xid().take()
    beginning = FileBeginning(offset, "db:3306")

    assert beginning.rest_of(head) == head
    assert not beginning.is_over
    assert beginning.rest_of(before + behind) == behind
    assert beginning.is_over


def test_a_position_inside_an_event_of_a_large_file_is_lost() -> None:
    log = LogWriter().format()
    head = log.take()
    log.position = WRAP - 50
    beginning = FileBeginning(BinlogOffset("binlog.000001", WRAP + 5), "db:3306")
    with pytest.raises(
        LogLostError, match=r"binlog\.000001:4294967301 is not the end of an event in the log of db:3306"
    ):
        beginning.rest_of(head + log.event(29, bytes(90)).take())
