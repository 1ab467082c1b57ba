"""Bytes of a log become units for the log reader: what each says about where transactions end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pymysql
import pytest

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.whole_transactions import WholeLog
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.ddl.apply import DdlDialect
from raycdc.connectors.mysql.ddl.follow.followed_tables import emptied_by_server
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer
from raycdc.connectors.mysql.log.log_filter import LogFilter
from raycdc.connectors.mysql.log.log_reader import MySqlLogReader
from raycdc.connectors.mysql.snapshot.row_filter import UncomparableTextError
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import RowKind, TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.source.snapshot.log.log_unit import (
    LogUnit,
    ParkTableUpdate,
    SchemaChange,
    in_transaction,
    rows_of,
    updates_of,
)
from raycdc.source.tables.parked_tables import ParkingSetup
from tests.unit.connectors.mysql.binlog_bytes import LogWriter, int_row

TABLE = MySqlTable(TableId("d", "t"), (MySqlColumn("id", "int", nullable=False),), ("id",))
OTHER = replace(TABLE, id=TableId("d", "u"))
START = BinlogOffset("binlog.000001", 4)


class Received:
    """A `BinlogStream` whose reads are `buffers`."""

    is_silent = False

    def __init__(self, *buffers: bytes) -> None:
        self._buffers = list(buffers)

    def read(self, *, bytes_max: int, timeout_s: float) -> bytes:
        return self._buffers.pop(0) if self._buffers else b""

    def close(self) -> None: ...


def units_of(
    *buffers: bytes, capture: Capture | None = None, in_memory: bool = False, row_filter: type[LogFilter] = LogFilter
) -> list[LogUnit]:
    selector = TableSelector(("d.t", "d.u"))
    tables = {TABLE.id: TABLE, OTHER.id: OTHER}
    server = LogServer(DdlDialect(display_width=False), ("utf8mb4", ""), is_in_memory=lambda _: in_memory)
    history = DdlHistory(tables, selector=selector, server=server, terms=ParkingSetup({}))
    decoder = BinlogDecoder(
        MapSchemas(tables), wanted=selector.matches, start=START, log=LogKind(), on_ddl=history.on_ddl
    )
    history.attach(decoder)
    stream: Any = Received(*buffers)
    reader = MySqlLogReader(
        log=WholeLog(lambda _: cast("BinlogStream", stream), START, decoder.cursor),
        history=history,
        decoder=decoder,
        start=START,
        row_filter=None if capture is None else row_filter(pymysql.connect, {TABLE.id: capture}, history.table),
    )
    units = []
    while (unit := reader.fetch()) is not None:
        units.append(unit)
    return units


def test_a_schema_change_never_follows_a_unit_that_leaves_a_transaction_open() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(1)).xid()
    boundary = log.position
    # The statement's GTID is the last event of one read, the statement the first of the next: it is held until then.
    first = log.gtid(2).take()
    second = log.query(b"ALTER TABLE t ADD COLUMN name VARCHAR(10)").take()

    units = units_of(first, second)

    assert [(in_transaction(unit), isinstance(unit, SchemaChange)) for unit in units] == [
        (False, False),
        (False, True),
    ]
    assert [BinlogOffset.of(unit.log_position.position).pos for unit in units] == [boundary, log.position]


def test_a_table_created_with_its_rows_is_no_place_to_start_from_before_they_end() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(1)).xid()
    boundary = log.position
    created = b"CREATE OR REPLACE TABLE t (id INT NOT NULL PRIMARY KEY) START TRANSACTION"
    log.gtid(2).begin().query(created).table_map(10, b"\x03", nullable=False).rows(30, 10, 1, int_row(2)).xid()

    units = units_of(log.take())

    assert [
        (BinlogOffset.of(unit.log_position.position).pos, in_transaction(unit), isinstance(unit, SchemaChange))
        for unit in units
    ] == [
        (boundary, False, False),
        (boundary, True, True),
        (log.position, False, False),
    ]


def test_an_idle_log_makes_no_units() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(1)).xid()

    units = units_of(log.take(), log.event(27, b"binlog.000001", position=log.position).take())

    assert [len(rows_of(unit)) for unit in units] == [1]


def test_a_filter_knows_the_table_that_a_statement_behind_its_rows_drops() -> None:
    log = (
        LogWriter()
        .format()
        .gtid(1)
        .begin()
        .table_map(9, b"\x03", nullable=False)
        .rows(30, 9, 1, int_row(1) + int_row(5))
        .xid()
    )
    log.gtid(2).query(b"DROP TABLE t")

    units = units_of(log.take(), capture=Capture("id > 3"))

    assert [rows.batch.column("id").to_pylist() for rows in rows_of(units[0])] == [[5]]
    assert [isinstance(unit, SchemaChange) for unit in units] == [False, True]


class Uncomparing(LogFilter):
    """A filter that cannot compare a 5."""

    def captured(self, item: BinlogRowsItem) -> BinlogRowsItem | None:
        if 5 in item.batch.column("id").to_pylist():
            raise UncomparableTextError("source.snapshot.filter compares id, and the server cannot")
        return super().captured(item)


def test_a_table_with_a_value_that_its_filter_cannot_compare_is_parked_alone_before_its_transaction() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(1)).xid()
    first, start = log.take(), log.position
    log.gtid(2).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(4) + int_row(5))
    log.table_map(10, b"\x03", table=b"u", nullable=False).rows(30, 10, 1, int_row(7)).xid()
    log.gtid(3).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(6)).xid()

    units = units_of(first, log.take(), capture=Capture("id > 0"), row_filter=Uncomparing)

    rows = [(rows.table, rows.batch.column("id").to_pylist()) for unit in units for rows in rows_of(unit)]
    assert rows == [(TABLE.id, [1]), (OTHER.id, [7])]
    (parked,) = [update for unit in units for update in updates_of(unit)]
    assert isinstance(parked, ParkTableUpdate)
    assert (parked.table, BinlogOffset.of(parked.parking.position).pos) == (TABLE.id, start)
    assert parked.parking.reason.endswith("raycdc tables resnapshot CONFIG d.t")


def parted(units: list[LogUnit], start: int) -> list[tuple[int, bool, list[int], list[str]]]:
    """Of each unit its place behind `start`, whether it leaves a transaction open, its rows, and tables it is about.

    One that says that nothing was before is left out.
    """
    every = [
        (
            BinlogOffset.of(unit.log_position.position).pos - start,
            in_transaction(unit),
            [value for rows in rows_of(unit) for value in rows.batch.column("id").to_pylist()],
            [f"{type(update).__name__} {update.table.table}" for update in updates_of(unit)],
        )
        for unit in units
    ]
    return [one for one in every if one != (0, False, [], [])]


def test_a_statement_behind_rows_of_its_transaction_parks_its_table_where_that_ends() -> None:
    """A cut before it would lie inside the transaction: a restart would bring the rows before it once more."""
    log = LogWriter().format()
    start = log.position
    log.gtid(1).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(1)).query(b"UPDATE u SET id = 2")
    log.table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(2)).xid()
    end = log.position - start
    assert parted(units_of(log.take()), start) == [
        (0, True, [1], []),
        (0, True, [], []),
        (end, False, [2], ["ParkTableUpdate u"]),
    ]


def test_a_statement_that_begins_its_transaction_parks_its_table_there() -> None:
    log = LogWriter().format()
    start = log.position
    log.gtid(1).begin().query(b"UPDATE u SET id = 2").table_map(9, b"\x03", nullable=False).rows(
        30, 9, 1, int_row(2)
    ).xid()
    end = log.position - start
    assert parted(units_of(log.take()), start) == [(0, True, [], ["ParkTableUpdate u"]), (end, False, [2], [])]


def test_rows_of_an_earlier_transaction_are_passed_on_before_the_statement() -> None:
    log = LogWriter().format()
    start = log.position
    log.gtid(1).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(1)).xid()
    first = log.position - start
    log.gtid(2).begin().query(b"UPDATE u SET id = 2").table_map(9, b"\x03", nullable=False).rows(
        30, 9, 1, int_row(2)
    ).xid()
    assert parted(units_of(log.take()), start) == [
        (first, False, [1], []),
        (first, True, [], ["ParkTableUpdate u"]),
        (log.position - start, False, [2], []),
    ]


def test_a_table_in_memory_that_its_server_emptied_is_truncated() -> None:
    log = LogWriter().format()
    start = log.position
    log.gtid(1).begin().query(b"DELETE FROM `d`.`t`").query(b"COMMIT")
    log.gtid(2).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(3)).xid()
    units = units_of(log.take(), in_memory=True)
    assert parted(units, start) == [
        (0, True, [None], ["AlterTableUpdate t"]),
        (log.position - start, False, [3], []),
    ]
    truncations = [rows for unit in units if isinstance(unit, SchemaChange) for rows in rows_of(unit)]
    assert [rows.batch.column("_op").to_pylist() for rows in truncations] == [[RowKind.TRUNCATE]]


@pytest.mark.parametrize(
    ("statement", "in_memory"),
    [
        (b"DELETE FROM `d`.`t`", False),
        (b"DELETE FROM d.t", True),
        (b"DELETE FROM `d`.`t` WHERE id = 1", True),
        (b"DELETE FROM `d`.`t` LIMIT 1", True),
        (b"delete from `d`.`t`", True),
        (b"DELETE FROM `t`", True),
    ],
)
def test_no_other_statement_is_one_of_a_server_that_emptied_a_table(statement: bytes, in_memory: bool) -> None:
    log = LogWriter().format().gtid(1).begin().query(statement).query(b"COMMIT")
    updates = [update for unit in units_of(log.take(), in_memory=in_memory) for update in updates_of(unit)]
    assert [type(update) for update in updates] == [ParkTableUpdate]


def test_behind_rows_of_its_transaction_a_statement_is_no_servers() -> None:
    log = LogWriter().format().gtid(1).begin().table_map(9, b"\x03", nullable=False).rows(30, 9, 1, int_row(1))
    log.query(b"DELETE FROM `d`.`t`").query(b"COMMIT")
    updates = [update for unit in units_of(log.take(), in_memory=True) for update in updates_of(unit)]
    assert [type(update) for update in updates] == [ParkTableUpdate]


def test_names_of_tables_that_a_server_emptied_may_have_anything_in_them() -> None:
    assert emptied_by_server("DELETE FROM `d.``x`.`we``ird t`") == TableId("d.`x", "we`ird t")
    assert emptied_by_server("DELETE FROM `d`.`t` /* generated by server, for it was empty */") == TableId("d", "t")
    assert emptied_by_server("DELETE FROM `d`.`t` /* of mine */") is None
