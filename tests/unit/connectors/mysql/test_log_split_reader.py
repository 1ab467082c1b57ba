"""Bytes of a log become units for the log reader: what each says about where transactions end."""

from __future__ import annotations

from typing import Any, cast

import pymysql

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.log_kind import LogKind
from raycdc.connectors.mysql.binlog.map_schemas import MapSchemas
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.binlog.stream import BinlogStream
from raycdc.connectors.mysql.ddl.apply import DdlDialect
from raycdc.connectors.mysql.ddl.history import DdlHistory
from raycdc.connectors.mysql.ddl.log_server import LogServer
from raycdc.connectors.mysql.log_filter import LogFilter
from raycdc.connectors.mysql.log_reader import MySqlLogReader
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import TableId
from raycdc.model.selector import TableSelector
from raycdc.source.snapshot.log_unit import LogUnit, SchemaChange, in_transaction, rows_of
from tests.unit.connectors.mysql.binlog_bytes import LogWriter, int_row

TABLE = MySqlTable(TableId("d", "t"), (MySqlColumn("id", "int", nullable=False),), ("id",))
START = BinlogOffset("binlog.000001", 4)


class Received:
    """A `BinlogStream` whose reads are `buffers`."""

    is_silent = False

    def __init__(self, *buffers: bytes) -> None:
        self._buffers = list(buffers)

    def read(self, *, bytes_max: int, timeout_s: float) -> bytes:
        return self._buffers.pop(0) if self._buffers else b""

    def close(self) -> None: ...


def units_of(*buffers: bytes, capture: Capture | None = None) -> list[LogUnit]:
    selector = TableSelector(("d.t",))
    history = DdlHistory(
        {TABLE.id: TABLE}, selector=selector, server=LogServer(DdlDialect(display_width=False), ("utf8mb4", ""))
    )
    decoder = BinlogDecoder(
        MapSchemas({TABLE.id: TABLE}), wanted=selector.matches, start=START, log=LogKind(), on_ddl=history.on_ddl
    )
    history.attach(decoder)
    stream: Any = Received(*buffers)
    reader = MySqlLogReader(
        open_stream=lambda _: cast("BinlogStream", stream),
        history=history,
        decoder=decoder,
        start=START,
        row_filter=None if capture is None else LogFilter(pymysql.connect, {TABLE.id: capture}, history.table),
    )
    units = []
    while (unit := reader.fetch()) is not None:
        units.append(unit)
    return units


def test_a_schema_change_never_follows_a_unit_that_leaves_a_transaction_open() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x03").rows(30, 9, 1, int_row(1)).xid()
    boundary = log.position
    # The statement's GTID is the last event of one read, the statement the first of the next.
    first = log.gtid(2).take()
    second = log.query(b"ALTER TABLE t ADD COLUMN name VARCHAR(10)").take()

    units = units_of(first, second)

    assert [(in_transaction(unit), isinstance(unit, SchemaChange)) for unit in units] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert [BinlogOffset.of(unit.place.position).pos for unit in units] == [boundary, boundary, log.position]


def test_a_table_created_with_its_rows_is_no_place_to_start_from_before_they_end() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x03").rows(30, 9, 1, int_row(1)).xid()
    boundary = log.position
    created = b"CREATE OR REPLACE TABLE t (id INT NOT NULL PRIMARY KEY) START TRANSACTION"
    log.gtid(2).begin().query(created).table_map(10, b"\x03").rows(30, 10, 1, int_row(2)).xid()

    units = units_of(log.take())

    assert [
        (BinlogOffset.of(unit.place.position).pos, in_transaction(unit), isinstance(unit, SchemaChange))
        for unit in units
    ] == [
        (boundary, False, False),
        (boundary, True, True),
        (log.position, False, False),
    ]


def test_an_idle_log_makes_no_units() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x03").rows(30, 9, 1, int_row(1)).xid()

    units = units_of(log.take(), log.event(27, b"binlog.000001", position=log.position).take())

    assert [len(rows_of(unit)) for unit in units] == [1]


def test_a_filter_knows_the_table_that_a_statement_behind_its_rows_drops() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x03").rows(30, 9, 1, int_row(1) + int_row(5)).xid()
    log.gtid(2).query(b"DROP TABLE t")

    units = units_of(log.take(), capture=Capture("id > 3"))

    assert [rows.batch.column("id").to_pylist() for rows in rows_of(units[0])] == [[5]]
    assert [isinstance(unit, SchemaChange) for unit in units] == [False, True]
