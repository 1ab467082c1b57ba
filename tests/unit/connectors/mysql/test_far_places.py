"""Where events lie behind what a dump by GTID passed over, in files that may be larger than 4 GiB."""

from __future__ import annotations

import struct
from typing import Any, cast

import pytest
from pymysql.connections import Connection

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.positions import file_offsets
from raycdc.connectors.mysql.binlog.positions.file_offsets import WRAP, Jump, PositionFinder
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.errors import CorruptLogError, RaycdcError, SourceError
from tests.unit.connectors.mysql.binlog_bytes import UUID, LogWriter

FILE = "binlog.000001"
GTID = "00010203-0405-0607-0809-0a0b0c0d0e0f"


def decoder(start: BinlogOffset) -> tuple[BinlogDecoder, LogWriter]:
    made = BinlogDecoder(MapSchemas({}), wanted=lambda _: False, start=start, log=LogKind())
    log = LogWriter().format()
    made.feed(log.take())
    return made, log


def test_positions_go_on_from_where_the_server_has_the_event() -> None:
    subject, log = decoder(BinlogOffset(FILE, 4, f"{GTID}:1-5", by_gtid=True))
    asked: list[Jump] = []

    def find(jump: Jump) -> int:
        asked.append(jump)
        return jump.end + WRAP

    subject.files.find_position = find
    subject.feed(log.gtid(4).begin().xid().take())
    assert asked == []
    before = log.position
    log.position += 1000
    subject.feed(log.gtid(6).begin().xid().take())
    assert [(jump.before, jump.gtid, jump.is_in_file) for jump in asked] == [(before, f"{GTID}:6", True)]
    assert subject.cursor.position.pos == log.position + WRAP


def test_a_transaction_is_never_taken_for_a_jump() -> None:
    """MariaDB leaves out events inside of one that replicas do not need."""
    subject, log = decoder(BinlogOffset(FILE, 4, f"{GTID}:1-5", by_gtid=True))
    asked: list[Jump] = []
    subject.files.find_position = lambda jump: asked.append(jump) or jump.end  # type: ignore[func-returns-value]
    log.gtid(6).begin()
    log.position += 90
    subject.feed(log.xid().take())
    assert asked == []
    assert subject.cursor.position.pos == log.position


def test_a_heartbeat_tells_how_far_the_server_has_come_and_never_leads_back() -> None:
    subject, log = decoder(BinlogOffset(FILE, 4, f"{GTID}:1-5", by_gtid=True))
    at = subject.cursor.position.pos
    subject.feed(log.event(27, FILE.encode(), position=at + 5000).take())
    assert subject.cursor.position.pos == at + 5000
    subject.feed(log.event(27, FILE.encode(), position=at).take())
    assert subject.cursor.position.pos == at + 5000


def events_at(monkeypatch: pytest.MonkeyPatch, *, size: int, events: dict[int, tuple[int, str]]) -> PositionFinder:
    """A server whose file has `size` bytes and, at these places, events of (end, text)."""

    def query(_: Any, sql: str, arguments: Any = None) -> list[tuple[Any, ...]]:
        if sql == "SHOW BINARY LOGS":
            return [(FILE, size, "No"), ("binlog.000002", 200, "No")]
        start = arguments[1]
        if start not in events:
            raise SourceError("wrong offset or I/O error")
        end, text = events[start]
        return [(FILE, start, "Gtid", 1, end % WRAP, text)]

    class Closed:
        host, port = "db", 3306

        def close(self) -> None:
            pass

    monkeypatch.setattr(file_offsets, "query", query)
    monkeypatch.setattr(file_offsets, "address_of", lambda _: "db:3306")
    return PositionFinder(lambda: cast("Connection[Any]", Closed()))


def jump(**changes: Any) -> Jump:
    values: dict[str, Any] = {
        "file": FILE,
        "before": 500,
        "end": 1000,
        "length": 65,
        "kind": 33,
        "server_id": 1,
        "gtid": f"{GTID}:6",
        "checksum": True,
    }
    return Jump(**{**values, **changes})


SET = "SET @@SESSION.GTID_NEXT= '{}'"


def test_in_a_file_of_up_to_4_gib_there_is_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert events_at(monkeypatch, size=WRAP, events={})(jump()) == 1000


def test_the_server_is_asked_for_the_event_at_each_place_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    there = WRAP + 1000
    other = {935: (1000, SET.format(f"{GTID}:3"))}
    find = events_at(monkeypatch, size=2 * WRAP + 2000, events={**other, there - 65: (there, SET.format(f"{GTID}:6"))})
    assert find(jump()) == there


def test_the_last_event_of_a_file_ends_where_the_file_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert events_at(monkeypatch, size=WRAP + 1000, events={})(jump(kind=4, gtid=None)) == WRAP + 1000


def test_a_heartbeat_that_may_mean_several_places_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert events_at(monkeypatch, size=WRAP + 5000, events={})(jump(kind=27, length=0)) == 500


@pytest.mark.parametrize(
    ("size", "changes", "error", "text"),
    [
        (WRAP + 5000, {}, SourceError, "1000, 4294968296"),
        (WRAP + 5000, {"checksum": False}, SourceError, "binlog_checksum = CRC32"),
        (900, {}, CorruptLogError, "the file has 900 bytes"),
    ],
)
def test_what_is_not_found_is_refused(
    monkeypatch: pytest.MonkeyPatch, size: int, changes: dict[str, Any], error: type[RaycdcError], text: str
) -> None:
    # Without checksums the server would take any bytes for an event: it is not asked.
    found = {WRAP + 935: (WRAP + 1000, SET.format(f"{GTID}:6"))} if changes else {}
    with pytest.raises(error, match=text):
        events_at(monkeypatch, size=size, events=found)(jump(**changes))


def test_ids_in_the_log_are_as_the_server_writes_them() -> None:
    event = LogWriter(position=935).gtid(6, uuid=UUID).take()
    made = file_offsets.jump_of(event, FILE, 500, checksum_bytes=4)
    assert made == jump(length=len(event), end=935 + len(event))
    assert struct.unpack_from("<I", event, 13)[0] == made.end
