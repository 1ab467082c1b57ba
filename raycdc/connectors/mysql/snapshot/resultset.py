"""Reads result sets of prepared statements (binary protocol) into Arrow, from the raw socket of a pymysql connection.

The statement is prepared and executed once. Then bytes are received in bulk into one buffer, a compiled scan finds the
packet boundaries, and a compiled loop decodes many packets at a time into Arrow column buffers (`columns.TableArena`,
the arena). The log is decoded into the same kind of arena, so that equal values give equal bytes. Text comes in the
character sets of the columns, as in the log, so that the same code converts it. The binary protocol was chosen by
measurement: the server sends about twice as many rows per second as with the text protocol, and floats arrive exactly.

Theory of operation: ``recv → scan (packets complete?) → decode (arena full?) → batch``. A payload of 16 MB or more
comes in several packets and is joined in the buffer first. The connection can be used again after the last batch, or
after an error that the *server* reported. If the caller stops in between, or the network breaks, the connection is
closed.

`PacketReceiver` receives packets of the client/server protocol from the raw socket of a pymysql connection, which
handles commands and login. One thread at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pymysql
from pymysql.connections import Connection
from pymysql.constants import COMMAND, FIELD_TYPE, FLAG

from raycdc.clients.mysql import address_of, asks_for_file, query, query_error, sane_answers
from raycdc.connectors.mysql.binlog.tables.plan import Scratch
from raycdc.connectors.mysql.snapshot import resultset_loops as loops
from raycdc.connectors.mysql.values import block_loops as blocks
from raycdc.connectors.mysql.values.arena_loops import (
    COLUMN_BOOLEAN,
    COLUMN_DATE,
    COLUMN_KEY,
    FAILED_COLUMN,
    FAILED_ROW,
    FULL_NEED,
    FULL_SLOT,
)
from raycdc.connectors.mysql.values.charset_loops import FAMILY_UTF8
from raycdc.connectors.mysql.values.columns import INVALID_BOOLEAN, INVALID_DATE, ONE_TEXT, TableArena
from raycdc.connectors.mysql.values.layouts import ArenaColumnKind
from raycdc.connectors.mysql.values.time_loops import FORM_SENT
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.core.activity import note_statement
from raycdc.errors import DataError, SchemaMismatchError, SourceUnavailableError, TableChangedError
from raycdc.model import TableId

#: The initial size of the buffer, and the most requested from the socket in one call.
RECEIVE_BYTES = 1 << 20
#: The largest row: the largest ``max_allowed_packet`` that a server accepts.
ROW_BYTES_MAX = 1 << 30


class PacketReceiver:
    """The receiver of packets: one growing buffer for bytes of the connection's socket, with packets from `start` to
    `end`.

    It bypasses pymysql's buffered reader, which is empty between commands.
    """

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self.data = np.empty(RECEIVE_BYTES + loops.SLACK, np.uint8)
        self._memory: memoryview = self.data.data
        #: The first byte that was not consumed, the end of the last complete packet, and the end of the bytes received.
        self.start = self.scanned = self.end = 0
        self.received = 0
        self._position = np.zeros(2, np.int64)

    def fill(self) -> None:
        """Receive once, as many bytes as there are.

        Raises OSError, and pymysql's OperationalError if the server closed.
        """
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
        """Join the payload at `start`, which spans several packets, so that it follows one header; return its end.

        The bytes after the payload are moved. Blocks until the payload is complete.
        """
        pieces, at = [], 0
        while True:
            # Offsets count from `start`, because `start` changes when room is made.
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
        """Consume the next packet, and return (start, stop) of its payload in `data`.

        Raises the error of an error packet.
        """
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
        """Block until `count` bytes from `start` on were received. `start` may change."""
        while self.end - self.start < count:
            self.fill()

    def _make_room(self) -> None:
        held = self.end - self.start
        if held <= self._capacity // 2:
            # Regions may overlap; numpy then copies through a temporary array.
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


#: Decoding begins when this much is complete: enough for a low cost per call, and little enough to stay in the cache.
DECODE_BYTES = 256 << 10
#: The first byte of a request for a file (Protocol::LOCAL_INFILE_Request).
_LOCAL_FILE = 0xFB
#: The least sizes of COM_STMT_PREPARE_OK up to its count of parameters, and of the end of a
#: Protocol::ColumnDefinition41.
_PREPARED_BYTES_MIN, _DEFINITION_BYTES_MIN = 9, 13


@dataclass(frozen=True, slots=True)
class WireField:
    """The type and flags of one column as the server announces them (Protocol::ColumnDefinition41)."""

    type_code: int
    unsigned: bool


@dataclass(frozen=True, slots=True)
class SentPlan:
    """The arrays of `decode_rows` per column: the bytes of its value (-1: the value begins with its length), and the
    plan.
    """

    steps: npt.NDArray[np.int64]
    plan: npt.NDArray[np.int64]


def arena_for(table: MySqlTable, **limits: int) -> TableArena:
    """Return an arena for result sets of `table`."""
    return TableArena(table, **limits)


def stream_query(
    connection: Connection[Any], sql: str, table: MySqlTable, *, arena: TableArena | None = None
) -> Iterator[pa.RecordBatch]:
    """Run `sql`, whose columns are those of `table` in order, and yield its rows in batches.

    Batches hold at most ``rows_max`` rows and about ``bytes_max`` bytes of `arena` (one row may exceed it). Blocks in
    the socket with the GIL released. `sql` is sent unchanged, without parameters. Raises `SourceError` for the server's
    errors, `SourceUnavailableError` when the connection breaks, `TableChangedError` when the columns do not match.
    """
    arena = arena or arena_for(table)
    receiver = PacketReceiver(connection)
    statement: int | None = None
    finished = False
    query(connection, "SET character_set_results = NULL")
    try:
        note_statement(sql)
        with sane_answers(address_of(connection)):
            statement = _prepare(connection, receiver, sql)
            fields = _execute(connection, receiver, statement)
        yield from _batches(receiver, plan_columns(fields, arena, str(table.id)), arena)
        finished = True
    except pymysql.Error as cause:
        # An error packet ends the command, and the session continues.
        finished = not isinstance(cause, pymysql.err.InterfaceError) and connection.open
        raise query_error(connection, sql, cause) from cause
    except OSError as cause:
        raise SourceUnavailableError(
            f"The connection to {address_of(connection)} broke while {table.id} was read ({cause}). "
            f"Trying again may help."
        ) from cause
    finally:
        if finished and statement is not None:
            connection._execute_command(COMMAND.COM_STMT_CLOSE, struct.pack("<I", statement))
        if finished:
            query(connection, f"SET character_set_results = {connection.charset}")
        else:
            connection._force_close()


def query_cells(connection: Connection[Any], sql: str | bytes, count: int) -> tuple[npt.NDArray[np.int64], pa.Buffer]:
    """Return the cells of a one-row result as (offsets, bytes), for rows of thousands of columns.

    NULL becomes empty.
    """
    receiver = PacketReceiver(connection)
    try:
        connection._execute_command(COMMAND.COM_QUERY, sql)
        receiver.next_packet()
        receiver.skip_to_end()
        start, stop = receiver.next_packet()
        starts, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
        cells = loops.split_cells(receiver.data, start, stop, starts, lengths)
        out_offsets = np.empty(count + 1, np.int64)
        out = np.empty(int(np.maximum(lengths, 0).sum()), np.uint8)
        loops.gather_cells(receiver.data, starts, lengths, out_offsets, out)
        receiver.skip_to_end()
    except pymysql.Error as cause:
        text = sql if isinstance(sql, str) else sql[:200].decode("ascii", "replace")
        raise query_error(connection, text, cause) from cause
    except OSError as cause:
        raise SourceUnavailableError(f"The connection to {address_of(connection)} broke: {cause}.") from cause
    if cells != count:
        raise DataError(f"{address_of(connection)} answered {cells} of {count} columns")
    return out_offsets, pa.py_buffer(out)


def warm_up() -> None:
    """Compile every loop of result sets, or load it from the cache."""
    arena = arena_for(MySqlTable(TableId("d", "t"), (MySqlColumn("id", "int"),), ("id",)), rows_max=2)
    data, position, scratch = np.zeros(loops.SLACK, np.uint8), np.zeros(3, np.int64), Scratch.of(1)
    cells, plan = np.zeros(1, np.int64), np.zeros((1, blocks.P_SIZE), np.int64)
    loops.scan_packets(data, 0, 0, position)
    loops.decode_rows(
        data, 0, 0, cells, plan, scratch.at, scratch.size, arena.view, arena.limits, position, np.zeros(3, np.int64)
    )
    loops.split_cells(data, 0, 0, cells, cells)
    loops.gather_cells(data, cells, cells, np.zeros(2, np.int64), data)


def plan_columns(fields: list[WireField], arena: TableArena, name: str) -> SentPlan:
    """Return how each column of the result set is read and written. Raises `TableChangedError` if they do not match."""
    if len(fields) != len(arena.table.columns):
        raise TableChangedError(f"{name}: the query has {len(fields)} columns instead of {len(arena.table.columns)}")
    steps, rows = [], []
    for index, (wire, column) in enumerate(zip(fields, arena.table.columns, strict=True)):
        planned = _planned(wire, arena, index)
        if planned is None:
            raise TableChangedError(
                f"{name}.{column.name}: the server sends type {wire.type_code} where {column.column_type} was "
                f"expected. The table was altered; its schema must be read again."
            )
        steps.append(planned[0])
        rows.append((index, *planned[1:]))
    return SentPlan(np.array(steps, np.int64), np.array(rows, np.int64))


def _batches(receiver: PacketReceiver, sent: SentPlan, arena: TableArena) -> Iterator[pa.RecordBatch]:
    """Decode until the EOF packet. `position` has (start of the next packet, rows, text bytes)."""
    position, after = np.zeros(3, np.int64), np.zeros(3, np.int64)
    scratch = Scratch.of(len(sent.steps))
    while True:
        scanned = receiver.scan()
        if scanned == loops.SCAN_MORE and receiver.scanned - receiver.start < DECODE_BYTES:
            receiver.fill()
            continue
        stop = receiver.scanned
        if scanned == loops.SCAN_LONG and receiver.start == receiver.scanned:
            stop = receiver.scanned = receiver.join_long()
        while True:
            reason = loops.decode_rows(
                receiver.data, receiver.start, stop, sent.steps, sent.plan, scratch.at, scratch.size, arena.view,
                arena.limits, position, after,
            )  # fmt: skip
            receiver.start, rows = int(position[0]), int(position[1])
            if reason == loops.NEED_MORE:
                break
            if reason == loops.TEXT_FULL:
                counters = arena.view.counters
                arena.grow(int(counters[FULL_SLOT]), int(counters[FULL_NEED]), rows)
                continue
            if reason in (loops.MALFORMED, loops.COLUMN_FAILED):
                raise _undecodable(arena, rows, failed=reason == loops.COLUMN_FAILED)
            if reason == loops.SERVER_ERROR:
                receiver.raise_error(receiver.start + 4, stop)
            if rows:
                yield arena.to_record_batch(rows)
                position[1:] = 0
            if reason == loops.END_OF_ROWS:
                receiver.start = stop
                return


def _undecodable(arena: TableArena, rows: int, *, failed: bool) -> DataError:
    table, counters = arena.table, arena.view.counters
    if failed:
        column = table.columns[int(counters[FAILED_COLUMN])].name
        reasons = {COLUMN_DATE: INVALID_DATE, COLUMN_BOOLEAN: INVALID_BOOLEAN, COLUMN_KEY: ONE_TEXT}
        if text := reasons.get(int(counters[FAILED_ROW])):
            return SchemaMismatchError(f"{table.id}: {text.format(column=column)}")
    return DataError(f"A row of {table.id} sent by the server cannot be decoded after {rows} rows")


def _prepare(connection: Connection[Any], receiver: PacketReceiver, sql: str) -> int:
    """Send COM_STMT_PREPARE, and return the statement's id. Skip its parameter and column definitions."""
    connection._execute_command(COMMAND.COM_STMT_PREPARE, sql)
    begin, stop = receiver.next_packet()
    if receiver.data[begin] == _LOCAL_FILE and stop > begin:
        raise asks_for_file(address_of(connection))
    if stop - begin < _PREPARED_BYTES_MIN:
        raise ValueError("the answer to PREPARE is cut short")
    _, statement, column_count, parameter_count = struct.unpack("<BIHH", receiver.data[begin : begin + 9].tobytes())
    for count in (parameter_count, column_count):
        if count:
            receiver.skip_to_end()
    return int(statement)


def _execute(connection: Connection[Any], receiver: PacketReceiver, statement: int) -> list[WireField]:
    """Send COM_STMT_EXECUTE without a cursor, and return the columns' definitions."""
    connection._execute_command(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", statement, 0, 1))
    begin, stop = receiver.next_packet()
    count = int(receiver.data[begin])
    if count == _LOCAL_FILE:
        raise asks_for_file(address_of(connection))
    if stop - begin < 1 + 2 * (count == 0xFC):
        raise ValueError("the count of columns is missing")
    if count == 0xFC:
        count = int.from_bytes(receiver.data[begin + 1 : begin + 3].tobytes(), "little")
    fields = []
    for _ in range(count):
        begin, stop = receiver.next_packet()
        if stop - begin < _DEFINITION_BYTES_MIN:
            raise ValueError("a definition of a column is cut short")
        # The definition ends in type (1), flags (2), decimals (1), filler (2), after names of any length.
        type_code = int(receiver.data[stop - 6])
        flags = int.from_bytes(receiver.data[stop - 5 : stop - 3].tobytes(), "little")
        fields.append(WireField(type_code, bool(flags & FLAG.UNSIGNED)))
    if count:
        receiver.next_packet()
    return fields


_INTEGER_WIDTH = {
    FIELD_TYPE.TINY: 1,
    FIELD_TYPE.SHORT: 2,
    FIELD_TYPE.YEAR: 2,
    FIELD_TYPE.INT24: 4,
    FIELD_TYPE.LONG: 4,
    FIELD_TYPE.LONGLONG: 8,
}
_FIXED_OR_TEMPORAL = frozenset(
    {
        *_INTEGER_WIDTH,
        FIELD_TYPE.FLOAT,
        FIELD_TYPE.DOUBLE,
        FIELD_TYPE.DATE,
        FIELD_TYPE.TIME,
        FIELD_TYPE.DATETIME,
        FIELD_TYPE.TIMESTAMP,
        FIELD_TYPE.NULL,
    }
)
_TEMPORAL_CODE = {
    ArenaColumnKind.DATE: (FIELD_TYPE.DATE, blocks.WIRE_DATE),
    ArenaColumnKind.DATETIME: (FIELD_TYPE.DATETIME, blocks.WIRE_MOMENT),
    ArenaColumnKind.TIMESTAMP: (FIELD_TYPE.TIMESTAMP, blocks.WIRE_MOMENT),
}
_AS_TEXT = frozenset(
    {
        ArenaColumnKind.TEXT,
        ArenaColumnKind.BYTES,
        ArenaColumnKind.ENUM,
        ArenaColumnKind.SET,
        ArenaColumnKind.JSON,
        ArenaColumnKind.DECIMAL_TEXT,
        ArenaColumnKind.ADDRESS,
    }
)
_Planned = tuple[int, int, int, int, int]
"""(step, wire, a, b, c)"""


def _planned(wire: WireField, arena: TableArena, index: int) -> _Planned | None:  # noqa: PLR0911  one per form
    """Return how `wire` is converted to column `index` of the arena, or None if it cannot be."""
    layout, column, code = arena.layout.columns[index], arena.table.columns[index], wire.type_code
    match layout.form:
        case ArenaColumnKind.FLOAT32 if code == FIELD_TYPE.FLOAT:
            return 4, blocks.WIRE_HALF, 0, 0, 0
        case ArenaColumnKind.FLOAT64 if code == FIELD_TYPE.DOUBLE:
            return 8, blocks.WIRE_WORD, 0, 0, 0
        case ArenaColumnKind.DATE | ArenaColumnKind.DATETIME | ArenaColumnKind.TIMESTAMP if (
            code == _TEMPORAL_CODE[layout.form][0]
        ):
            fsp = column.shape.fsp
            if layout.as_text:
                return -1, blocks.WIRE_DATE_TEXT, FORM_SENT, int(layout.form is not ArenaColumnKind.DATE), fsp
            return -1, _TEMPORAL_CODE[layout.form][1], FORM_SENT, layout.dates, fsp
        case ArenaColumnKind.TIME if code == FIELD_TYPE.TIME:
            return -1, blocks.WIRE_TIME, FORM_SENT, 0, column.shape.fsp
        case ArenaColumnKind.DECIMAL if code in (FIELD_TYPE.NEWDECIMAL, FIELD_TYPE.DECIMAL):
            return -1, blocks.WIRE_PRINTED, column.shape.precision, 0, 0
        case ArenaColumnKind.BIT | ArenaColumnKind.BIT64 if code == FIELD_TYPE.BIT:
            return -1, (blocks.WIRE_BIT if layout.form is ArenaColumnKind.BIT else blocks.WIRE_BIT64), 0, 0, 0
        case ArenaColumnKind.UINT64 if code == FIELD_TYPE.LONGLONG and wire.unsigned:
            return 8, blocks.WIRE_UINT64, 0, 0, 0
        case ArenaColumnKind.YEAR if code == FIELD_TYPE.YEAR:
            return 2, blocks.WIRE_SMALL, 2, 0, 2
        case ArenaColumnKind.BOOLEAN if code == FIELD_TYPE.TINY:
            return 1, blocks.WIRE_BOOLEAN, 0, 0, 0
        case ArenaColumnKind.INTEGER if code in _INTEGER_WIDTH:
            return _integer(_INTEGER_WIDTH[code], layout.width, column, wire)
        case ArenaColumnKind.GEOJSON if code == FIELD_TYPE.GEOMETRY:
            return -1, blocks.WIRE_GEOJSON, 0, 0, 0
        case form if form in _AS_TEXT and code not in _FIXED_OR_TEMPORAL:
            if layout.family != FAMILY_UTF8:
                return -1, blocks.WIRE_CONVERTED, layout.family, arena.layout.points_of(index), int(layout.exact)
            return -1, blocks.WIRE_TEXT, 0, 0, 0
        case _:
            return None


def _integer(width: int, arrow: int, column: MySqlColumn, wire: WireField) -> _Planned | None:
    unsigned = column.shape.unsigned
    # MEDIUMINT comes in 4 bytes and fits int32; every other unsigned type is widened.
    if wire.unsigned != unsigned or width > arrow or (width == arrow and unsigned and width != 4):
        return None
    if width == arrow == 8:
        return 8, blocks.WIRE_WORD, 0, 0, 0
    if width == arrow == 4:
        return 4, blocks.WIRE_HALF, 0, 0, 0
    return width, blocks.WIRE_SMALL, width, int(not unsigned), arrow
