"""Compressed transactions and events, XA, tagged GTIDs and partial updates on hand-made logs."""

from __future__ import annotations

import json
import struct
import zlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, DdlItem, LogItem
from raycdc.connectors.mysql.binlog.positions.gtid import MySqlGtidSet
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.tables.table_decoding import BatchForm
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import CorruptLogError, DataError
from raycdc.model import TableId
from tests.unit.connectors.mysql.binlog_bytes import UUID, LogWriter, int_row

TABLE = MySqlTable(TableId("d", "t"), (MySqlColumn("id", "int"),), ("id",))
INT = b"\x03"
UUID_TEXT = "00010203-0405-0607-0809-0a0b0c0d0e0f"
XID = "x'7831',x'',1"


def decoder(*, mariadb: bool = False, start: BinlogOffset | None = None) -> BinlogDecoder:
    return BinlogDecoder(
        MapSchemas({TABLE.id: TABLE}),
        wanted=lambda table: table == TABLE.id,
        start=start or BinlogOffset("binlog.000001", 4),
        log=LogKind(mariadb=mariadb),
        form=BatchForm(with_pos=True),
    )


def ids(items: list[LogItem]) -> list[int]:
    rows = [row for item in items if isinstance(item, BinlogRowsItem) for row in item.batch.to_pylist()]
    return [row["id"] for row in sorted(rows, key=lambda row: row["_seq"])]


def transaction(*values: int) -> bytes:
    """What is inside a compressed transaction: events without checksum and position."""
    inner = LogWriter(checksum=False)
    inner.event(2, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0BEGIN", position=0)
    for value in values:
        inner.table_map(9, INT).rows(30, 9, 1, int_row(value))
    return inner.xid().take()


def packed(value: int) -> bytes:
    return b"\xfe" + struct.pack("<Q", value)


def payload(content: bytes, *, claimed: int | None = None, algorithm: int = 0) -> bytes:
    """Body of a TRANSACTION_PAYLOAD."""
    inside = bytes(pa.compress(content, "zstd")) if algorithm == 0 else content
    fields = b"\2\1" + (b"\0" if algorithm == 0 else b"\xfc\xff\0")
    size = packed(len(content) if claimed is None else claimed)
    return fields + b"\3\x09" + size + b"\1\x09" + packed(len(inside)) + b"\0" + inside


@pytest.mark.parametrize("algorithm", [0, 255])
def test_rows_of_a_compressed_transaction_have_its_position(algorithm: int) -> None:
    log = LogWriter().format().gtid(1).event(40, payload(transaction(1, 2, 3), algorithm=algorithm))
    end = log.position
    log.gtid(2).begin().table_map(9, INT).rows(30, 9, 1, int_row(4)).xid()
    subject = decoder()

    items = subject.feed(log.take())

    assert ids(items) == [1, 2, 3, 4]
    first = next(item for item in items if isinstance(item, BinlogRowsItem))
    assert first.row_pos.tolist()[:3] == [end] * 3
    assert subject.cursor.position == BinlogOffset("binlog.000001", log.position)
    assert subject.cursor.position.gtid_set == f"{UUID_TEXT}:1-2"


def test_compressed_transactions_before_a_rotation_are_followed_into_the_next_file() -> None:
    log = LogWriter().format()
    for number in range(1, 50):
        log.gtid(number).event(40, payload(transaction(number)))
    log.rotate(b"binlog.000002")
    log.position = 4
    log.format().gtid(50).event(40, payload(transaction(50)))
    subject = decoder()

    assert ids(subject.feed(log.take())) == list(range(1, 51))
    assert subject.cursor.position == BinlogOffset("binlog.000002", log.position)


def test_a_large_compressed_transaction_comes_in_pieces_and_whole() -> None:
    values = range(60_000)
    log = LogWriter().format().gtid(1).event(40, payload(transaction(*values)))

    items = decoder().feed(log.take())

    assert ids(items) == list(values)


@pytest.mark.parametrize(
    "body",
    [
        payload(transaction(1, 2), claimed=1 << 60),
        payload(transaction(1, 2), claimed=3),
        payload(transaction(1, 2), algorithm=255)[:-5],
        payload(transaction(1, 2)[:-3]),
        payload(b"\xff" * 100),
        b"\2",
        b"\2\1\7" + payload(b"x")[3:],
    ],
)
def test_a_damaged_payload_is_a_named_error(body: bytes) -> None:
    log = LogWriter(checksum=False).format().gtid(1)
    before = log.position
    log.event(40, body)

    with pytest.raises(CorruptLogError, match=rf"binlog\.000001:({before}|{log.position}): "):
        decoder().feed(log.take())


def mariadb_compressed(content: bytes) -> bytes:
    return b"\x82" + struct.pack(">H", len(content)) + zlib.compress(content)


def test_mariadb_compressed_statements_and_rows_are_followed() -> None:
    log = LogWriter().format(b"10.11.6-MariaDB-log").mariadb_gtid(1, standalone=True)
    status = struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0"
    log.event(165, status + mariadb_compressed(b"CREATE TABLE d.x (a INT)"))
    log.mariadb_gtid(2).table_map(9, INT)
    head = struct.pack("<IHH", 9, 0, 1) + b"\1\x01"
    log.event(166, head + mariadb_compressed(int_row(1) + int_row(2)))
    log.event(167, head + b"\1" + mariadb_compressed(int_row(2) + int_row(3)))
    log.event(169, head[:8] + b"\2\0" + head[8:] + mariadb_compressed(int_row(4)))
    end = log.position
    log.event(168, head + mariadb_compressed(int_row(1))).xid()
    subject = decoder(mariadb=True)

    items = subject.feed(log.take())

    assert [item.statement for item in items if isinstance(item, DdlItem)] == ["CREATE TABLE d.x (a INT)"]
    assert ids(items) == [1, 2, 2, 3, 4, 1]
    assert end in np.concatenate([item.row_pos for item in items if isinstance(item, BinlogRowsItem)]).tolist()
    assert subject.cursor.position.pos == log.position


def xa_log() -> tuple[LogWriter, int]:
    """A transaction prepared, another one committed, and the first one's XA COMMIT still to come."""
    log = LogWriter().format().gtid(1).query(b"XA START X'7831',X'',1").table_map(9, INT).rows(30, 9, 1, int_row(1))
    log.query(b"XA END X'7831',X'',1").event(38, b"\0" + struct.pack("<III", 1, 2, 0) + b"x1")
    prepared = log.position
    log.gtid(2).begin().table_map(9, INT).rows(30, 9, 1, int_row(2)).xid()
    return log, prepared


def test_rows_of_an_xa_transaction_take_the_place_of_its_commit() -> None:
    log, _ = xa_log()
    log.gtid(3, micros=1_700_000_999_000_000).query(b"XA COMMIT X'7831',X'',1")
    subject = decoder()

    items = subject.feed(log.take())

    assert ids(items) == [2, 1]
    late = [item for item in items if isinstance(item, BinlogRowsItem)][-1]
    assert late.row_pos.tolist() == [log.position]
    assert late.batch["_ts_ms"].to_pylist() == [1_700_000_999_000]
    assert (subject.cursor.position.pos, subject.cursor.position.gtid_set) == (log.position, f"{UUID_TEXT}:1-3")
    assert subject.cursor.position.prepared == ""


def test_prepared_rows_are_part_of_the_position_and_survive_a_restart() -> None:
    log, _ = xa_log()
    first = decoder()
    assert ids(first.feed(log.take())) == [2]
    stored = BinlogOffset.from_json(json.loads(json.dumps(first.cursor.position.to_json())))
    second = decoder(start=stored)
    rest = LogWriter(position=stored.pos).format().gtid(3).query(b"XA COMMIT X'7831',X'',1")

    assert ids(second.feed(rest.take())) == [1]
    assert second.cursor.position.prepared == ""


def test_rolled_back_xa_transactions_leave_nothing() -> None:
    log, _ = xa_log()
    subject = decoder()

    assert ids(subject.feed(log.gtid(3).query(b"XA ROLLBACK X'7831',X'',1").take())) == [2]
    assert (subject.cursor.position.prepared, subject.cursor.in_transaction) == ("", False)


def test_one_phase_xa_counts_where_it_is_prepared() -> None:
    log = LogWriter().format().gtid(1).query(b"XA START X'7831',X'',1").table_map(9, INT).rows(30, 9, 1, int_row(1))
    log.query(b"XA END X'7831',X'',1").event(38, b"\1" + struct.pack("<III", 1, 2, 0) + b"x1")
    subject = decoder()

    assert ids(subject.feed(log.take())) == [1]
    assert subject.cursor.position.prepared == ""


def test_an_xa_commit_of_a_transaction_prepared_before_the_start_is_refused() -> None:
    log = LogWriter().format().gtid(3).query(b"XA COMMIT X'7831',X'',1")

    with pytest.raises(DataError, match=r"x'7831',x'',1: the transaction was prepared before"):
        decoder().feed(log.take())


def test_xa_transactions_cut_anywhere_between_reads_are_the_same() -> None:
    log, _ = xa_log()
    log.gtid(3).query(b"XA COMMIT X'7831',X'',1")
    events = log.take()
    starts = [0]
    while starts[-1] < len(events):
        starts.append(starts[-1] + int.from_bytes(events[starts[-1] + 9 : starts[-1] + 13], "little"))
    subject = decoder()
    items: list[LogItem] = []

    for start, end in pairwise(starts):
        items += subject.feed(events[start:end])

    assert ids(items) == [2, 1]


def varying(value: int, *, signed: bool = False) -> bytes:
    """A number as MySQL's serialization library writes it, of up to 56 bits."""
    if signed:
        value <<= 1
    more = 0
    while value >= 1 << (7 * (more + 1)):
        more += 1
    return ((value << (more + 1)) | ((1 << more) - 1)).to_bytes(more + 1, "little")


def tagged_gtid(number: int, tag: bytes, micros: int) -> bytes:
    body = varying(0) + varying(0) + varying(1) + b"".join(varying(byte) for byte in UUID)
    body += varying(2) + varying(number, signed=True) + varying(3) + varying(len(tag)) + tag
    body += varying(4) + varying(0) + varying(5) + varying(7, signed=True) + varying(6) + varying(micros)
    return varying(1) + varying(len(body)) + varying(0) + body


def test_tagged_gtids_are_sets_of_their_own() -> None:
    log = LogWriter().format()
    for number, tag in [(1, b"a"), (2, b"a"), (300, b"a"), (1, b"quite_a_long_tag_of_32_characters")]:
        log.event(42, tagged_gtid(number, tag[:32], 1_700_000_123_456_789)).begin().table_map(9, INT)
        log.rows(30, 9, 1, int_row(number)).xid()
    log.gtid(4).begin().xid()
    subject = decoder(start=BinlogOffset("binlog.000001", 4, f"{UUID_TEXT}:1-3:b:5"))

    [item] = subject.feed(log.take())

    assert isinstance(item, BinlogRowsItem)
    assert set(item.batch["_ts_ms"].to_pylist()) == {1_700_000_123_456}
    found = MySqlGtidSet.parse(subject.cursor.position.gtid_set)
    assert found.intervals == {
        UUID_TEXT: [(1, 4)],
        f"{UUID_TEXT}:a": [(1, 2), (300, 300)],
        f"{UUID_TEXT}:b": [(5, 5)],
        f"{UUID_TEXT}:quite_a_long_tag_of_32_character": [(1, 1)],
    }
    assert MySqlGtidSet.parse(str(found)) == found


def test_skipped_events_and_rows_are_left_out_once() -> None:
    log = LogWriter().format().take()
    writer = LogWriter(position=len(log) + 4).gtid(1).begin().table_map(9, INT).rows(30, 9, 1, int_row(1))
    writer.rows(30, 9, 1, int_row(2) + int_row(3)).rows(30, 9, 1, int_row(4)).xid()
    # GTID, BEGIN, TABLE_MAP and the first rows; then one row of the next event.
    subject = decoder(start=BinlogOffset("binlog.000001", 4, skip_events=4, skip_rows=1))
    subject.feed(log)
    assert (subject.cursor.position.skip_events, subject.cursor.position.skip_rows) == (4, 1)

    assert ids(subject.feed(writer.take())) == [3, 4]
    assert (subject.cursor.position.skip_events, subject.cursor.position.skip_rows) == (0, 0)
