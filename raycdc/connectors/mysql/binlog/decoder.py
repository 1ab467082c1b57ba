"""Decodes raw binlog events into Arrow batches and DDL, without I/O, threads or a clock.

`BinlogDecoder` is called by the log reader and by ``inspect binlog`` with buffers of complete events. For each buffer,
a compiled pass lists the row events (`EventPass`), compiled loops decode the rows of each table map (`RowBatches`), and
the column buffers (arenas) are copied into batches. Python code runs for each table, each DDL and each new table map,
but not for each row.

The decoder itself only walks over events; callers use these parts directly:

| field | class | content |
|---|---|---|
| `cursor` | `BinlogCursor` | the position in the log: positions, transactions, GTIDs, numbers of rows |
| `maps` | `MapPlans` | table maps and schemas: the layout of each table's rows, and if they are wanted |
| `mismatches` | `SchemaMismatchReports` | tables whose rows cannot be delivered |
| `files` | `FileEvents` | new files, formats, jumps of a dump by GTID |
| `xa` | `XaRows` | rows of XA transactions, which wait for their XA COMMIT |

Invariants: items come in log order; a DDL separates the rows before it from the rows after it; `cursor.position` is
always a transaction boundary; after an error the decoder cannot be used any more (start again from a position).

`EventPass` is the compiled pass over events (`index_loops`), with its arrays. It lists row events of wanted tables
(`events`), records table ids and GTIDs, and moves the cursor. If one of its arrays is full, `EventPass` enlarges the
array and continues the pass; the decoder handles all other stops.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.event_loops import (
    Q_COMMIT,
    Q_DOUBT,
    Q_OTHER,
    Q_ROLLBACK,
    Q_XA_FINISH,
    Q_XA_START,
)
from raycdc.connectors.mysql.binlog.event_types import THREAD_SPECIFIC_FLAG, LogKind
from raycdc.connectors.mysql.binlog.events import (
    Bytes,
    DdlItem,
    FileBegins,
    LoggedThread,
    LogItem,
    QueryEvent,
    as_array,
    parse_query,
)
from raycdc.connectors.mysql.binlog.file_events import FileEvents
from raycdc.connectors.mysql.binlog.partial_updates import PartialUpdates
from raycdc.connectors.mysql.binlog.positions.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.positions.position import EVENT_BYTES_MAX, BinlogOffset
from raycdc.connectors.mysql.binlog.rows import RowBatches
from raycdc.connectors.mysql.binlog.tables.map_plans import (
    MapPlans,
    MapSchemas,
    SchemaMismatchReports,
    TableMapRegistry,
)
from raycdc.connectors.mysql.binlog.tables.table_decoding import BatchForm, Decodings
from raycdc.connectors.mysql.binlog.tables.table_map import tables_of
from raycdc.connectors.mysql.binlog.transaction_statements import rules_of, transaction_statement
from raycdc.connectors.mysql.binlog.whole_transactions import WholeEvents
from raycdc.connectors.mysql.binlog.wire.expand import Expander
from raycdc.connectors.mysql.binlog.wire.expand_loops import find_compressed
from raycdc.connectors.mysql.binlog.xa_rows import XaRows
from raycdc.connectors.mysql.binlog.xa_transactions import XaTransactions
from raycdc.connectors.mysql.ddl.parse.tokens import shown
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, PartialRowsError, SchemaMismatchError
from raycdc.model import TableId

#: The number of row events that are listed before they are decoded: 72 bytes each, so the list has at most 4.5 MiB.
_EVENTS_FIRST = 4096
_EVENTS_MAX = 65_536

#: The caller gives no meaning of the statement, so the compiled pass determines it.
NOT_ASKED = -1


class EventPass:
    """The compiled pass with its arrays; see the module's docstring.

    `mariadb` is True for a log of MariaDB.
    """

    def __init__(self, cursor: BinlogCursor, registry: TableMapRegistry, *, mariadb: bool) -> None:
        self.events = np.zeros((_EVENTS_FIRST, index.E_SIZE), np.int64)
        self._cursor = cursor
        self._registry = registry
        self._mariadb = mariadb

    def run(self, data: npt.NDArray[np.uint8], at: int, count: int) -> tuple[int, int, int, int]:
        """Walk the events from `at`, of which `count` are listed already.

        Returns (STOP_…, offset of the stopping event, its length, events listed).
        """
        return self._run(data, at, len(data), count)

    def count_event(self, data: npt.NDArray[np.uint8], at: int, length: int, meaning: int = NOT_ASKED) -> None:
        """Process an event at which the pass stopped.

        `meaning` is the effect of a statement. Raises `CorruptLogError`.
        """
        state = self._cursor.state
        state[index.S_PASS], state[index.S_MEANING] = 1, meaning
        code = self._run(data, at, at + length, 0)[0]
        state[index.S_PASS], state[index.S_MEANING] = 0, NOT_ASKED
        if code == index.STOP_ERROR:
            raise self._cursor.damage()

    def _run(self, data: npt.NDArray[np.uint8], at: int, end: int, count: int) -> tuple[int, int, int, int]:
        registry, gtids, state = self._registry, self._cursor.gtids, self._cursor.state
        while True:
            code, at, length, count = index.index_events(
                data, at, end, self._mariadb, state, self.events, count,
                registry.maps, registry.wanted, registry.content, registry.map_keys, registry.map_values,
                registry.id_keys, registry.id_values, gtids.keys, gtids.first, gtids.last, gtids.runs,
            )  # fmt: skip
            self._cursor.note_boundary()
            match code:
                case index.STOP_GTIDS:
                    gtids.make_room(state)
                case index.STOP_TABLE_IDS:
                    registry.grow_ids(state)
                case index.STOP_FULL if len(self.events) < _EVENTS_MAX:
                    self.events = np.concatenate([self.events, np.zeros_like(self.events)])
                case _:
                    return int(code), int(at), int(length), int(count)


class BinlogDecoder:
    """The decoder of one log; see the module's docstring. One thread at a time.

    `schemas` are the schemas in force at `start`. `wanted` decides, once per table map, whether a table's rows are
    decoded. `on_ddl` is called at each DDL, before any row after it is decoded, and may call `set_table`.
    """

    def __init__(
        self,
        schemas: MapSchemas,
        *,
        wanted: Callable[[TableId], bool],
        start: BinlogOffset,
        log: LogKind,
        on_ddl: Callable[[DdlItem], None] | None = None,
        form: BatchForm = BatchForm(),  # noqa: B008  frozen
    ) -> None:
        transactions, decodings = XaTransactions(start.prepared), Decodings(form)
        self.cursor = BinlogCursor(start, log, transactions)
        self.mismatches = SchemaMismatchReports(self.cursor)
        self.maps = MapPlans(schemas, decodings, self.mismatches, wanted=wanted, log=log)
        self.files = FileEvents(self.cursor, mariadb=log.mariadb)
        self.xa = XaRows(transactions, self.cursor, self.maps, self.mismatches, decode=self.decode)
        self._pass = EventPass(self.cursor, self.maps.registry, mariadb=log.mariadb)
        self._rows = RowBatches(self.cursor, self.maps, decodings, self.mismatches, with_pos=form.with_pos)
        self._decodings = decodings
        self._expander = Expander()
        self._partial = PartialUpdates(self.maps)
        self._on_ddl = on_ddl
        self._shows_all = int(log.whole_file)

    def statistics(self) -> dict[str, int]:
        """Return counts since construction: rows, zero dates that became null, values with replaced characters,
        maps.
        """
        return {
            "rows": self.cursor.next_seq,
            **self._decodings.losses(),
            "table_maps": self.maps.registry.count,
        }

    @property
    def damage_position(self) -> int:
        """Return the end of the last event before the damage, in `cursor.file`, after an error."""
        damaged = self._rows.damaged_event_end
        return damaged - 1 if damaged else self.cursor.event_position.pos

    # ---------------------------------------------------

    def set_table(self, table: MySqlTable) -> None:
        """Decode rows after this point with the schema `table`. Table maps seen before are checked again."""
        self.maps.set(table)

    def remove_table(self, table: TableId) -> None:
        """Forget a dropped table. Later rows of it are refused as unknown."""
        self.maps.remove(table)

    def take_seq(self) -> int:
        """Return a `_seq` for a row that is not in the log (a truncation), between the rows before and after it."""
        self.cursor.next_seq += 1
        return self.cursor.next_seq - 1

    def cut(self, events: Bytes, start: int = 0) -> int:
        """Return the offset after the last event that leaves no transaction open; `start` if there is none.

        Feeding ``events[start:cut]`` then ends between transactions. Does not change the decoder.
        """
        data, tx = as_array(events), int(self.cursor.state[index.S_TX])
        return int(index.last_boundary(data, start, len(data), tx, self.cursor.checksum_bytes))

    def feed(self, events: Bytes) -> list[LogItem]:
        """Decode complete events that follow the events fed before; the buffer may be reused afterwards.

        Raises `CorruptLogError` (damage, with file and position), `SchemaError` (a table map does not fit its table)
        and `DataError` (an event that cannot be followed). On an error inside the buffer nothing of it is returned.
        """
        return list(self.items(events))

    def items(self, events: Bytes) -> Iterator[LogItem]:
        """Yield the items of `feed` one by one, so that items before damage come before the error.

        Consume it to its end.
        """
        data = as_array(events)
        self.xa.begin()
        if not self.cursor.in_transaction:
            self.maps.registry.trim_ids(self.cursor.state)
        yield from self._walk(data)

    def items_of_whole(self, events: WholeEvents) -> Iterator[LogItem]:
        """Yield the items of a transaction's events, without rows that the transaction rolled back."""
        if not self.cursor.in_transaction:
            self.xa.doubtful.clear()
        if events.doubt:
            _report_doubt(self, events)
        with self.cursor.foreseen(taken_back=events.taken_back):
            yield from self.items(events.data)

    def pieces(self, events: Bytes) -> Iterator[tuple[npt.NDArray[np.uint8], bool]]:
        """Yield the events with compressed ones expanded, as (piece, True if its events have no checksum).

        For callers that inspect every event themselves: each piece must be passed to `items_of` before the next is
        requested.
        """
        data = as_array(events)
        at = 0
        while at < len(data):
            compressed_at = int(find_compressed(data, at, len(data)))
            if compressed_at > at:
                yield data[at:compressed_at], False
            at = compressed_at
            if at < len(data):
                for piece in _expanded(self._expander, data, at, self.cursor):
                    yield piece, True
                at = self._expander.at

    def items_of(self, piece: npt.NDArray[np.uint8], *, stripped: bool) -> Iterator[LogItem]:
        """Yield the `items` of one of the `pieces`."""
        if stripped:
            yield from self.decode(piece)
        else:
            yield from self.items(piece)

    def decode(self, piece: npt.NDArray[np.uint8]) -> Iterator[LogItem]:
        """Yield the items of events without checksums."""
        with self.cursor.without_checksums():
            yield from self._walk(piece)

    def _walk(self, data: npt.NDArray[np.uint8]) -> Iterator[LogItem]:
        """Yield the items of the events. List row events, and handle each event at which the compiled pass stops.

        Rows that are listed before such an event are decoded first.
        """
        at, count = 0, 0
        while True:
            code, at, length, count = self._pass.run(data, at, count)
            listed = self._pass.events[:count]
            match code:
                case index.STOP_MAP:
                    try:
                        self._register(data, at, length)
                    except DataError:
                        yield from self._rows.flush(data, listed)
                        raise
                    continue
                case index.STOP_JUMP:
                    at += self.files.jump(data[at : at + length].tobytes())
                    continue
            yield from self._rows.flush(data, listed)
            count = 0
            match code:
                case index.STOP_END:
                    return
                case index.STOP_FULL:
                    pass
                case index.STOP_QUERY:
                    yield from self._statement(data, at, length)
                    at += length
                case index.STOP_EVENT:
                    event = data[at : at + length].tobytes()
                    before = self.cursor.position
                    self.files.handle(event)
                    at += length
                    if (loaded := self.files.take_load()) is not None:
                        yield self._ddl(loaded, event, before)
                    if self.files.take_file_changed():
                        yield FileBegins(self.cursor.position, self.cursor.in_transaction)
                case index.STOP_COMPRESSED:
                    if data[at + 4] == index.TRANSACTION_PAYLOAD:
                        # Servers do not compress a transaction that is rolled back in part, because it is logged by
                        # statements, too.
                        self.cursor.state[index.S_FORESEEN] = self._shows_all
                    for piece in _expanded(self._expander, data, at, self.cursor):
                        yield from self.decode(piece)
                    self._ended_with(data[at : self._expander.at])
                    at = self._expander.at
                case index.STOP_PARTIAL:
                    try:
                        with self.cursor.locating_errors():
                            piece = self._partial.piece(data, at, self.cursor.ends, proven=self.cursor.proven)
                    except SchemaMismatchError as error:
                        self._pass_over_partial(data, at, error)
                        continue
                    yield from self.decode(piece)
                    at = self._partial.at
                case index.STOP_XA:
                    yield from self._xa_event(data, at, length)
                    at += length
                case index.STOP_ERROR:
                    raise self.cursor.damage()
                case _:
                    raise AssertionError(f"unknown stop {code}")

    def _pass_over_partial(self, data: npt.NDArray[np.uint8], at: int, error: SchemaMismatchError) -> None:
        """Skip the partial update at `at`, and report its table, whose rows cannot be delivered.

        Raises `error` if there is no listener.
        """
        body = at + index.HEADER_BYTES
        number = self.maps.registry.number_of_id(int.from_bytes(data[body : body + 6].tobytes(), "little"))
        table = self.maps.ready[number].table
        self.mismatches.report(table, type(error)(f"{error} Table {table}."))
        self.maps.pass_over(table)

    def _ended_with(self, events: npt.NDArray[np.uint8]) -> None:
        """Let the position's mark name the last event of `events`, not an event that was expanded from it."""
        state = self.cursor.state
        if self.cursor.in_transaction:
            return
        at, length = index.event_ending_at(events, int(state[index.S_TX_POS]) & 0xFFFFFFFF)
        if 0 < length <= EVENT_BYTES_MAX:
            body = events[at : at + length - self.cursor.checksum_bytes]
            state[index.S_TX_LENGTH], state[index.S_TX_CRC] = length, zlib.crc32(body.tobytes())

    def _register(self, data: npt.NDArray[np.uint8], at: int, length: int) -> None:
        """Register a table map that was not seen before: parse it, check it, and make its decode plan."""
        end = at + length - self.cursor.checksum_bytes
        with self.cursor.locating_errors():
            self.maps.add(
                data[at + index.HEADER_BYTES + 8 : end],
                index=str(self.cursor.event_position),
                proven=self.cursor.proven,
            )

    def _statement(self, data: npt.NDArray[np.uint8], at: int, length: int) -> Iterator[LogItem]:
        """Handle a statement whose meaning the compiled pass does not know."""
        cursor = self.cursor
        event = data[at : at + length - cursor.checksum_bytes].tobytes()
        query = parse_query(event[index.HEADER_BYTES :], kind=event[4], writer=self.files.writer)
        with cursor.locating_errors():
            meaning = transaction_statement(query.text, rules_of(query.session)).meaning
            is_doubt = meaning == Q_DOUBT
            if is_doubt:
                # `WholeTransactions` marks the rows of this transaction as taken back, with the doubt for their tables.
                take_probed = int(cursor.state[index.S_FORESEEN]) and int(cursor.state[index.S_TX]) == index.TX_OPEN
                if not take_probed and not self._shows_all:
                    raise DataError(f"a statement about a transaction is not understood: {shown(query.statement)}")
                meaning = Q_OTHER
        before = cursor.position
        is_xa = int(cursor.state[index.S_XA]) != 0 and meaning in (Q_ROLLBACK, Q_COMMIT)
        if is_xa or meaning in (Q_XA_START, Q_XA_FINISH):
            yield from self._xa_event(data, at, length, meaning)
            return
        effect = int(cursor.state[index.S_ALTER]) not in (index.ALTER_START, index.ALTER_ROLLBACK)
        self._pass.count_event(data, at, length, meaning)
        if meaning == Q_OTHER and effect and (self._shows_all or not is_doubt):
            yield self._ddl(query, event, before)

    def _ddl(self, query: QueryEvent, event: bytes, before: BinlogOffset) -> DdlItem:
        cursor = self.cursor
        rows = self._rows.last_rows
        after_rows = cursor.in_transaction and rows.file == before.file and rows.pos > before.pos
        item = DdlItem(
            db=query.db,
            statement=query.statement,
            before=before,
            position=cursor.statement_position,
            ts_ms=cursor.last_ts_ms,
            in_transaction=cursor.in_transaction,
            session=query.session,
            thread=LoggedThread(int.from_bytes(event[5:9], "little"), query.thread_id),
            thread_specific=bool(event[17] & THREAD_SPECIFIC_FLAG),
            after_rows=after_rows,
        )
        if self._on_ddl is not None:
            self._on_ddl(item)
        return item

    def _xa_event(
        self, data: npt.NDArray[np.uint8], at: int, length: int, meaning: int = NOT_ASKED
    ) -> Iterator[LogItem]:
        """Yield the rows that an event of an XA transaction commits, and keep the rows that may be prepared."""
        cursor = self.cursor
        yield from self.xa.items(data[at : at + length - cursor.checksum_bytes].tobytes())
        self._pass.count_event(data, at, length, meaning)
        # The pass took this event for the end of a transaction, but the transaction may be in preparation.
        cursor.state[index.S_XA] = int(self.xa.is_open)
        cursor.move_to(cursor.event_position.pos)


def _expanded(
    expander: Expander, data: npt.NDArray[np.uint8], at: int, cursor: BinlogCursor
) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the pieces of a compressed event. Errors have the position in the log."""
    with cursor.locating_errors():
        yield from expander.pieces(data, at, cursor.ends)


def _report_doubt(decoder: BinlogDecoder, events: WholeEvents) -> None:
    """Report a transaction for which it is unknown which rows were rolled back.

    Raises `DataError` if there is no listener.
    """
    for table in filter(decoder.maps.wanted, tables_of(events.data)):
        decoder.xa.doubtful.add(table)
        decoder.mismatches.report(
            table,
            PartialRowsError(
                f"{decoder.cursor.position}: of the transaction after it, it is unknown which rows of {table} it "
                f"has in the end: {events.doubt}. Read the table again: raycdc tables resnapshot CONFIG {table}"
            ),
        )
        decoder.maps.pass_over(table)
