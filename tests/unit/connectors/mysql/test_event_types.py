"""Each type of log event has one treatment, and the compiled walk has the same."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog import transaction_loops
from raycdc.connectors.mysql.binlog.event_types import EVENT_TYPES, PARTIAL_ROW_DATA, EventTreatment, LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import MODES, OPTIONS, VARIABLES
from raycdc.connectors.mysql.binlog.whole_transactions import BinlogTransactionAssembler
from raycdc.connectors.mysql.log.startup import statements_between
from raycdc.errors import CorruptLogError, DataError
from raycdc.model import TableId
from tests.unit.connectors.mysql.binlog_bytes import LogWriter, int_row
from tests.unit.connectors.mysql.test_binlog_decoder import decoder

#: Those that `index_events` asks for by name, and the walk's owner (`FileEvents`) for two.
READ = {
    index.QUERY, index.ROTATE, index.FORMAT_DESCRIPTION, index.XID, index.TABLE_MAP, index.GTID, index.ANONYMOUS_GTID,
    index.XA_PREPARE, index.PARTIAL_UPDATE_ROWS, index.TRANSACTION_PAYLOAD, index.GTID_TAGGED, index.MARIADB_GTID,
    *range(23, 26), *range(30, 33), *range(index.COMPRESSED_FIRST, index.COMPRESSED_LAST + 1),
}  # fmt: skip


@pytest.mark.parametrize("kind", range(256))
def test_the_walk_treats_an_event_as_the_table_says(kind: int) -> None:
    known = EVENT_TYPES.get(kind)
    assert bool(index._ignored(kind)) is (known is not None and known.treatment is EventTreatment.IGNORED)
    assert (kind in READ) is (known is not None and known.treatment is EventTreatment.READ)


def test_the_look_ahead_has_the_numbers_of_the_table() -> None:
    named = {29: "ROWS_QUERY", 160: "ANNOTATE_ROWS", PARTIAL_ROW_DATA: "PARTIAL_ROW_DATA"}
    assert {getattr(transaction_loops, name): name for name in named.values()} == named
    assert {kind: EVENT_TYPES[kind].name for kind in named} == named


def test_what_is_not_read_says_why() -> None:
    assert [
        kind for kind, known in EVENT_TYPES.items() if not known.why and known.treatment is not EventTreatment.READ
    ] == []
    assert [code for code, variable in VARIABLES.items() if not variable.use] == []
    assert [bit for bit, use in (*OPTIONS.items(), *MODES.items()) if not use] == []


def test_load_data_that_was_logged_as_a_statement_is_a_statement_between_rows() -> None:
    text = b"LOAD DATA LOCAL INFILE '/tmp/SQL_LOAD_MB-1-0' INTO TABLE `u` FIELDS TERMINATED BY ','"
    log = LogWriter().format().gtid(1).begin().event(17, b"\1\0\0\0" + b"1,2\n").event(9, b"\1\0\0\0" + b"3,4\n")
    log.load_query(text).xid()
    subject = decoder()
    (item,) = subject.feed(log.take())
    assert isinstance(item, DdlItem)
    assert (item.db, item.statement, item.in_transaction) == ("d", text.decode(), True)
    assert subject.cursor.position.pos == log.position


def old_load(kind: int, *, file: int = 0) -> bytes:
    """LOAD DATA of a server before MySQL 5.0.3 into `t` of `d`, with two columns."""
    head = struct.pack("<IIIBBI", 3, 0, 0, 1, 1, 2) + (struct.pack("<I", file) if kind == 8 else b"")
    terminators = b",'\n\0\\\0\0" if kind == 6 else b"\1,\1'\2\r\n\0\1\\\0"
    return head + terminators + b"\2\3" + b"id\0log\0" + b"t\0d\0" + b"/tmp/a"


def test_load_data_of_an_old_server_names_its_table() -> None:
    log = LogWriter().format()
    for kind in (6, 12, 8):
        log.event(kind, old_load(kind, file=5))
    log.event(9, struct.pack("<I", 5) + b"1,2\n").event(10, struct.pack("<I", 5))
    subject = decoder()
    items = subject.feed(log.take())
    assert [(item.db, item.statement) for item in items if isinstance(item, DdlItem)] == [
        ("d", "LOAD DATA INFILE '' INTO TABLE `d`.`t`")
    ] * 3
    assert subject.cursor.position.pos == log.position


def test_a_file_that_is_loaded_into_a_table_that_nobody_named_ends_the_reading() -> None:
    with pytest.raises(DataError, match=r"EXEC_LOAD event .* named before this log was read"):
        decoder().feed(LogWriter().format().event(10, struct.pack("<I", 5)).take())


@pytest.mark.parametrize("kind", [6, 8, 12])
def test_load_data_of_an_old_server_that_is_damaged_is_damage(kind: int) -> None:
    body = old_load(kind)
    for end in range(len(body) - len("/tmp/a")):
        with pytest.raises(CorruptLogError):
            decoder().feed(LogWriter().format().event(kind, body[:end]).take())


def test_a_row_event_that_was_cut_parks_the_tables_that_its_transaction_has_maps_of() -> None:
    log = LogWriter().format(b"12.3.1-MariaDB")
    log.mariadb_gtid(1).table_map(9, b"\x03").rows(23, 9, 1, int_row(1)).xid()
    log.mariadb_gtid(2).table_map(9, b"\x03").table_map(10, b"\x03", table=b"u")
    log.event(172, struct.pack("<IIBQ", 2, 1, 1, 999) + b"first").event(172, struct.pack("<IIB", 2, 2, 0) + b"last")
    log.rows(23, 9, 1, int_row(2)).xid()
    events = log.take()
    subject, told = decoder(mariadb=True), list[tuple[TableId, str]]()
    subject.mismatches.listener = lambda table, error, before: told.append((table, str(error)))

    items = [item for whole in BinlogTransactionAssembler().of(events) for item in subject.items_of_whole(whole)]

    assert [item.rows for item in items if isinstance(item, BinlogRowsItem)] == [1]
    assert [table for table, _ in told] == [TableId("d", "t")]
    assert "PARTIAL_ROW_DATA event (type 172)" in told[0][1]
    assert "binlog_row_event_fragment_threshold" in told[0][1]
    assert subject.cursor.position.pos == log.position
    with pytest.raises(DataError, match="PARTIAL_ROW_DATA"):  # Nobody looked ahead.
        decoder(mariadb=True).feed(events)


@dataclass
class Dump:
    """A log that is sent at once."""

    events: bytes

    def read(self, **_: object) -> bytes:
        events, self.events = self.events, b""
        return events

    def close(self) -> None: ...


def test_whoever_looks_for_statements_alone_passes_rows_over_in_every_form() -> None:
    log = LogWriter().format(b"12.3.1-MariaDB").mariadb_gtid(1).table_map(9, b"\x03")
    log.event(172, struct.pack("<IIBQ", 1, 1, 1, 999) + b"all").query(b"ROLLBACK TO `never ends").xid()
    log.mariadb_gtid(2, standalone=True).query(b"ALTER TABLE t ADD COLUMN c INT")
    info: Any = SimpleNamespace(log_kind=LogKind(mariadb=True), address="here")
    end, dump = BinlogOffset("binlog.000001", log.position), cast("Any", Dump(log.take()))

    found = statements_between(info, BinlogOffset("binlog.000001", 4), end, lambda _: dump)

    assert [item.statement for item in found] == ["ALTER TABLE t ADD COLUMN c INT"]


@pytest.mark.parametrize("metadata", [b"\xff\xff", b"\x0a"])
def test_a_table_map_that_cannot_be_parks_its_table_where_a_checksum_proves_it(metadata: bytes) -> None:
    """A DECIMAL of more digits than there are, and one whose metadata ends too early."""
    told: list[tuple[TableId, str]] = []
    for checksum in (True, False):
        log = LogWriter(checksum=checksum).format().gtid(1).begin()
        log.table_map(9, b"\xf6", metadata).rows(30, 9, 1, int_row(1)).xid()
        subject = decoder()
        subject.mismatches.listener = lambda table, error, before: told.append((table, str(error)))
        if checksum:
            assert subject.feed(log.take()) == []
            assert subject.cursor.position.pos == log.position
        else:
            with pytest.raises(CorruptLogError):
                subject.feed(log.take())
    assert [table for table, _ in told] == [TableId("d", "t")]
