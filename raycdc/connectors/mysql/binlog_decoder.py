"""Raw binlog events in, Arrow batches and DDL out. No I/O, no threads, no clock.

`BinlogDecoder` is called by the log reader and by ``inspect binlog`` with buffers of complete events. Per buffer it
runs one compiled pass that lists the row events (`binlog_index_loops`), one compiled decode per table map
(`binlog_row_loops`), and copies the arenas into batches. Python work is per table, DDL and new table map.

Invariants: items come in log order; a DDL separates the rows before it from those after it; `position` is always a
transaction boundary; after an error the decoder is of no more use (begin again from a position).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mysql import binlog_index_loops as index
from raycdc.connectors.mysql import binlog_row_loops as rows
from raycdc.connectors.mysql import row_metadata_loops as metadata
from raycdc.connectors.mysql.arena_loops import FULL_NEED, FULL_SLOT
from raycdc.connectors.mysql.binlog_events import (
    IGNORABLE_FLAG,
    REFUSED_EVENTS,
    DdlItem,
    LogItem,
    RowsItem,
    event_name,
    parse_format_description,
    parse_query,
    parse_rotate,
)
from raycdc.connectors.mysql.binlog_table_map import TableMap, WirePlan, infer_table, parse_table_map, wire_plan
from raycdc.connectors.mysql.columns import TableArena
from raycdc.connectors.mysql.gtid import ExecutedGtids
from raycdc.connectors.mysql.offset import BinlogOffset
from raycdc.connectors.mysql.table_decoding import Decoding, Part, ReadyMap, RowsDamagedError, rows_damage
from raycdc.connectors.mysql.table_map_registry import TableMapRegistry
from raycdc.connectors.mysql.types import MySqlTable
from raycdc.errors import CorruptLogError, DataError, SchemaError
from raycdc.model import TableId
from raycdc.model.batch import BATCH_BYTES_MAX, BATCH_ROWS_MAX

Flavor = Literal["mysql", "mariadb"]
Bytes = bytes | bytearray | memoryview | npt.NDArray[np.uint8]

#: Row events listed before they are decoded: 64 bytes each, so 4 MiB of list at most.
_EVENTS_FIRST = 4096
_EVENTS_MAX = 65_536


class BinlogDecoder:
    """See the module's docstring. One thread at a time.

    `tables` holds the schemas in force at `start`; `set_table` replaces one. `wanted` decides, once per table map,
    whether a table's rows are decoded. `on_ddl` is called at each DDL, before any row after it is decoded, and may
    call `set_table`. `infer` makes schemas of tables from the table maps, where `schemas` has none that fits. With
    `with_pos`, `_pos` is filled.
    `verify_checksums` compares each event's CRC32.
    """

    def __init__(
        self,
        tables: Mapping[TableId, MySqlTable],
        *,
        wanted: Callable[[TableId], bool],
        start: BinlogOffset,
        flavor: Flavor,
        with_pos: bool = False,
        on_ddl: Callable[[DdlItem], None] | None = None,
        infer: bool = False,
        schemas: Mapping[TableId, MySqlTable] | None = None,
        verify_checksums: bool = True,
        rows_max: int = BATCH_ROWS_MAX,
        bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self._tables = dict(tables)
        self._wanted = wanted
        self._on_ddl = on_ddl
        self._infer = infer
        self._schemas: Mapping[TableId, MySqlTable] = schemas or {}
        self._with_pos = with_pos
        self._mariadb = flavor == "mariadb"
        self._limits = (rows_max, bytes_max)
        self._file = start.file
        self._state = np.zeros(index.S_SIZE, np.int64)
        self._state[index.S_POS] = self._state[index.S_TX_POS] = start.pos
        self._state[index.S_GTID_SLOT] = -1
        self._state[index.S_VERIFY] = int(verify_checksums)
        self._gtids = ExecutedGtids(start.gtid_set, mariadb=self._mariadb)
        self._registry = TableMapRegistry()
        self._maps: dict[int, ReadyMap] = {}
        self._decodings: dict[TableId, Decoding] = {}
        self._events = np.zeros((_EVENTS_FIRST, index.E_SIZE), np.int64)
        self._next_seq = 0
        self._zero_dates = self._replaced = 0
        self._boundary_file = start.file
        self._formatted = False
        self._damaged_event_end = 0

    # -- what the caller asks between feeds ---------------------------------------------------------------------------

    @property
    def position(self) -> BinlogOffset:
        """End of the last complete transaction, with the GTID set up to it."""
        self._gtids.merge(self._state)
        return BinlogOffset(self._boundary_file, int(self._state[index.S_TX_POS]), str(self._gtids))

    @property
    def event_position(self) -> BinlogOffset:
        """End of the last event; inside a transaction no place to restart from."""
        return BinlogOffset(self._file, int(self._state[index.S_POS]))

    @property
    def in_transaction(self) -> bool:
        return int(self._state[index.S_TX]) != index.TX_NONE

    @property
    def last_ts_ms(self) -> int:
        """Commit time of the last event that has one, 0 before the first."""
        return int(self._state[index.S_LAST_MS])

    @property
    def next_seq(self) -> int:
        """The `_seq` the next row will get."""
        return self._next_seq

    def statistics(self) -> dict[str, int]:
        """Counts since construction: rows, zero dates that became null, values with replaced characters, maps."""
        arenas = [d.arena for d in self._decodings.values()]
        return {
            "rows": self._next_seq,
            "zero_dates": self._zero_dates + sum(a.zero_dates for a in arenas),
            "replaced": self._replaced + sum(a.replaced for a in arenas),
            "table_maps": self._registry.count,
        }

    def table(self, table: TableId) -> MySqlTable:
        """The schema its last rows were decoded with; KeyError before the first."""
        return self._decodings[table].table

    @property
    def damage_position(self) -> int:
        """After an error: the end of the last event before the damage, in `event_position.file`."""
        if self._damaged_event_end:
            return self._damaged_event_end - 1
        return int(self._state[index.S_POS])

    def set_table(self, table: MySqlTable) -> None:
        """Rows after this point have this schema; table maps seen before are checked again."""
        self._tables[table.id] = table
        self._forget(table.id)

    def remove_table(self, table: TableId) -> None:
        """The table is gone; its rows would be refused as unknown."""
        self._tables.pop(table, None)
        self._forget(table)

    def cut(self, events: Bytes, start: int = 0) -> int:
        """Offset after the last event of the buffer that leaves no transaction open, or `start` when there is none.

        Feeding ``events[start:cut]`` then ends between transactions. Does not change the decoder.
        """
        data = _as_array(events)
        state = self._state
        return int(index.last_boundary(data, start, len(data), int(state[index.S_TX]), int(state[index.S_CHECKSUM])))

    def feed(self, events: Bytes) -> list[LogItem]:
        """Decode complete events that follow those fed before; the buffer may be reused afterwards.

        Raises `CorruptLogError` (damage, with file and position), `SchemaError` (a table map does not fit its table)
        and `DataError` (an event that cannot be followed). On an error inside the buffer nothing of it is returned.
        """
        return list(self.items(events))

    def items(self, events: Bytes) -> Iterator[LogItem]:
        """`feed`, item by item, so that what precedes damage is seen before the error. Consume it to its end."""
        data = _as_array(events)
        at, count = 0, 0
        if not self.in_transaction:
            self._registry.trim_ids(self._state)
        while True:
            code, at, length, count = self._index(data, at, count)
            match code:
                case index.STOP_END:
                    yield from self._flush(data, count)
                    return
                case index.STOP_FULL:
                    if len(self._events) < _EVENTS_MAX:
                        self._events = np.concatenate([self._events, np.zeros_like(self._events)])
                        continue
                    yield from self._flush(data, count)
                    count = 0
                case index.STOP_MAP:
                    try:
                        self._register(data, at, length)
                    except DataError:
                        yield from self._flush(data, count)
                        raise
                case index.STOP_GTIDS:
                    self._gtids.make_room(self._state)
                case index.STOP_TABLE_IDS:
                    self._registry.grow_ids(self._state)
                case index.STOP_QUERY:
                    yield from self._flush(data, count)
                    count = 0
                    yield self._ddl(data, at, length)
                    at += length
                case index.STOP_EVENT:
                    yield from self._flush(data, count)
                    count = 0
                    self._handle(data, at, length)
                    at += length
                case index.STOP_ERROR:
                    yield from self._flush(data, count)
                    raise self._damage()
                case _:
                    raise AssertionError(f"unknown stop {code}")

    # -- the passes ---------------------------------------------------------------------------------------------------

    def _index(
        self, data: npt.NDArray[np.uint8], at: int, count: int, *, end: int | None = None
    ) -> tuple[int, int, int, int]:
        registry, gtids = self._registry, self._gtids
        code, at, length, count = index.index_events(
            data, at, len(data) if end is None else end, self._mariadb, self._state, self._events, count,
            registry.maps, registry.wanted, registry.content, registry.map_keys, registry.map_values,
            registry.id_keys, registry.id_values, gtids.keys, gtids.first, gtids.last, gtids.runs,
        )  # fmt: skip
        if int(self._state[index.S_TX]) == index.TX_NONE:
            self._boundary_file = self._file
        return int(code), int(at), int(length), int(count)

    def _flush(self, data: npt.NDArray[np.uint8], count: int) -> Iterator[RowsItem]:
        """Decode the listed events, one table map after the other, then number all rows in log order."""
        if count == 0:
            return
        events = self._events[:count]
        numbers = events[:, index.E_MAP]
        parts: list[Part] = []
        try:
            for number in np.unique(numbers).tolist():
                self._decode(data, events, np.flatnonzero(numbers == number), self._maps[number], parts)
        except RowsDamagedError as damage:
            # What precedes the damage, of all tables, still counts; then the error.
            yield from self._flush(data, damage.event)
            self._damaged_event_end = self._damaged_event_end or int(events[damage.event, index.E_POS])
            raise damage.error from None
        event_seq = np.empty(count, np.int64)
        self._next_seq = int(metadata.number_rows(events, count, self._next_seq, event_seq))
        for part in parts:
            yield self._finish(part, events, event_seq)

    def _decode(
        self,
        data: npt.NDArray[np.uint8],
        events: npt.NDArray[np.int64],
        order: npt.NDArray[np.int64],
        table_map: ReadyMap,
        parts: list[Part],
    ) -> None:
        """Decode the events of one table map into finished parts. Raises `RowsDamagedError`."""
        decoding, plan = table_map.decoding, table_map.plan
        cursor = np.zeros(rows.C_SIZE, np.int64)
        while True:
            arena = decoding.arena
            code = rows.decode_rows(
                data, events, order, plan.wire, plan.wire1, plan.wire2, plan.width, arena.view, arena.rows_max,
                arena.row_bytes, arena.bytes_max, decoding.op, decoding.row_event, decoding.row_number, cursor,
            )  # fmt: skip
            done = int(cursor[rows.C_ROWS])
            if code == rows.ROWS_TEXT:
                need, slot = int(arena.view.counters[FULL_NEED]), int(arena.view.counters[FULL_SLOT])
                if done == 0 or int(cursor[rows.C_TEXT]) < arena.bytes_max // 2:
                    arena.grow(slot, need, done)
                    continue
            elif code not in (rows.ROWS_END, rows.ROWS_FULL):
                arena.reset()
                raise rows_damage(int(code), events, order, cursor, table_map, file=self._file)
            if done:
                parts.append(decoding.take(done))
                cursor[rows.C_ROWS] = cursor[rows.C_TEXT] = 0
            if code == rows.ROWS_END:
                return
            if code == rows.ROWS_FULL:
                self._count_losses(arena)
                decoding.enlarge(*self._limits)

    def _finish(self, part: Part, events: npt.NDArray[np.int64], event_seq: npt.NDArray[np.int64]) -> RowsItem:
        """Add the metadata columns."""
        count = len(part.op)
        seq, millis, positions = (np.empty(count, np.int64) for _ in range(3))
        metadata.row_metadata(events, event_seq, part.row_event, part.row_number, seq, millis, positions)
        added = [
            pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(part.op)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(seq)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(millis)]),
            self._positions(positions, part.row_number) if self._with_pos else pa.nulls(count, pa.string()),
        ]
        batch = pa.RecordBatch.from_arrays([*part.arrays, *added], schema=part.schema)
        return RowsItem(part.table, batch, positions, count, self._file)

    def _positions(self, positions: npt.NDArray[np.int64], row_number: npt.NDArray[np.int64]) -> pa.Array:
        name = np.frombuffer(self._file.encode(), np.uint8)
        offsets = np.empty(len(positions) + 1, np.int32)
        out = np.empty(len(positions) * (len(name) + 42), np.uint8)
        used = int(metadata.position_texts(name, positions, row_number, offsets, out))
        return pa.Array.from_buffers(
            pa.string(), len(positions), [None, pa.py_buffer(offsets), pa.py_buffer(out[:used].copy())]
        )

    # -- single events ------------------------------------------------------------------------------------------------

    def _register(self, data: npt.NDArray[np.uint8], at: int, length: int) -> None:
        """A TABLE_MAP not seen before: parse it, check it, make its decode plan."""
        end = at + length - int(self._state[index.S_CHECKSUM])
        content = data[at + index.HEADER_BYTES + 8 : end]
        try:
            table_map = parse_table_map(content.tobytes(), mariadb=self._mariadb)
        except CorruptLogError as cause:
            raise CorruptLogError(f"{self.event_position}: {cause}") from cause
        wanted = self._wanted(table_map.table)
        ready = self._ready(table_map) if wanted else None
        number = self._registry.add(content, wanted=wanted)
        if ready is not None:
            self._maps[number] = ready

    def _ready(self, table_map: TableMap) -> ReadyMap:
        if self._infer:
            table, plan = self._inferred(table_map)
        else:
            known = self._tables.get(table_map.table)
            if known is None:
                raise SchemaError(
                    f"{self.event_position}: rows of table {table_map.table}, whose schema is not known here."
                )
            table = known
            try:
                plan = wire_plan(table_map, table)
            except SchemaError as cause:
                raise SchemaError(f"{self.event_position}: {cause}") from cause
        decoding = self._decodings.get(table.id)
        if decoding is None or decoding.table != table:
            decoding = Decoding.start(table, *self._limits)
            self._decodings[table.id] = decoding
        return ReadyMap(table.id, decoding, plan)

    def _inferred(self, table_map: TableMap) -> tuple[MySqlTable, WirePlan]:
        given = self._schemas.get(table_map.table)
        if given is not None:
            with suppress(SchemaError):  # it was written for another version of the table
                return given, wire_plan(table_map, given)
        table = infer_table(table_map)
        return table, wire_plan(table_map, table)

    def _forget(self, table: TableId) -> None:
        for number in [n for n, known in self._maps.items() if known.table == table]:
            self._registry.forget(number)
            del self._maps[number]
        gone = self._decodings.pop(table, None)
        if gone is not None:
            self._count_losses(gone.arena)

    def _count_losses(self, arena: TableArena) -> None:
        self._zero_dates += arena.zero_dates
        self._replaced += arena.replaced

    def _ddl(self, data: npt.NDArray[np.uint8], at: int, length: int) -> DdlItem:
        before = self.position
        self._state[index.S_PASS_QUERY] = 1
        self._index(data, at, 0, end=at + length)
        self._state[index.S_PASS_QUERY] = 0
        end = at + length - int(self._state[index.S_CHECKSUM])
        query = parse_query(data[at + index.HEADER_BYTES : end].tobytes())
        gtids = self.position.gtid_set
        item = DdlItem(
            db=query.db,
            statement=query.statement,
            before=before,
            position=BinlogOffset(self._file, int(self._state[index.S_POS]), gtids),
            ts_ms=self.last_ts_ms,
            in_transaction=self.in_transaction,
            session=query.session,
        )
        if self._on_ddl is not None:
            self._on_ddl(item)
        return item

    def _handle(self, data: npt.NDArray[np.uint8], at: int, length: int) -> None:
        """An event the compiled pass leaves to Python: a new file, a format, or one that cannot be followed."""
        event = data[at : at + length].tobytes()
        kind = event[4]
        try:
            match kind:
                case index.ROTATE:
                    self._rotate(event)
                case index.FORMAT_DESCRIPTION:
                    self._format(event)
                case _ if kind not in REFUSED_EVENTS and event[17] & IGNORABLE_FLAG:
                    self._moved(event)
                case _:
                    reason = REFUSED_EVENTS.get(kind, "this version does not know it")
                    raise DataError(f"{event_name(kind)} cannot be followed: {reason}.")
        except CorruptLogError as cause:
            raise CorruptLogError(f"{self.event_position}: {cause}") from cause
        except DataError as cause:
            raise DataError(f"{self.event_position}: {cause}") from cause

    def _rotate(self, event: bytes) -> None:
        body = event[index.HEADER_BYTES : len(event) - int(self._state[index.S_CHECKSUM])]
        if not self._formatted and len(event) > 32 and zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
            body = event[index.HEADER_BYTES : -4]  # the dump's first event comes before the format that announces CRCs
        file, pos = parse_rotate(body)
        if self.in_transaction and file != self._file:
            raise CorruptLogError(f"the log goes on in {file} in the middle of a transaction")
        self._file = file
        self._state[index.S_POS] = pos
        self._at_boundary()

    def _format(self, event: bytes) -> None:
        format_ = parse_format_description(event)
        self._formatted = True
        self._state[index.S_CHECKSUM] = format_.checksum_bytes
        if "MariaDB" in format_.server_version and not self._mariadb:
            raise DataError(f"the log was written by MariaDB ({format_.server_version}), not by MySQL")
        self._moved(event)

    def _moved(self, event: bytes) -> None:
        position = int.from_bytes(event[13:17], "little")
        if position > int(self._state[index.S_POS]):
            self._state[index.S_POS] = position
        self._at_boundary()

    def _at_boundary(self) -> None:
        if not self.in_transaction:
            self._state[index.S_TX_POS] = self._state[index.S_POS]
            self._boundary_file = self._file

    # -- errors -------------------------------------------------------------------------------------------------------

    def _damage(self) -> CorruptLogError:
        what = {
            index.ERROR_LENGTH: "an event's length is impossible, or it ends after the data",
            index.ERROR_CHECKSUM: "the checksum of an event does not match",
            index.ERROR_TABLE_ID: "a row event names a table id that no table map announced",
            index.ERROR_BODY: "an event is shorter than its type requires",
        }[int(self._state[index.S_ERROR])]
        return CorruptLogError(f"{self.event_position}: {what}")


def _as_array(events: Bytes) -> npt.NDArray[np.uint8]:
    return events if isinstance(events, np.ndarray) else np.frombuffer(events, np.uint8)
