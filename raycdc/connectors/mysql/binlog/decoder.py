"""Raw binlog events in, Arrow batches and DDL out. No I/O, no threads, no clock.

`BinlogDecoder` is called by the log reader and by ``inspect binlog`` with buffers of complete events. Per buffer it
runs one compiled pass that lists the row events (`index_loops`), one compiled decode per table map
(`row_loops`), and copies the arenas into batches. Python work is per table, DDL and new table map.

Invariants: items come in log order; a DDL separates the rows before it from those after it; `position` is always a
transaction boundary; after an error the decoder is of no more use (begin again from a position).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.events import (
    IGNORABLE_FLAG,
    REFUSED_EVENTS,
    Bytes,
    DdlItem,
    LogItem,
    RowsItem,
    as_array,
    event_name,
    parse_format_description,
    parse_query,
    parse_rotate,
)
from raycdc.connectors.mysql.binlog.expand import Expander
from raycdc.connectors.mysql.binlog.expand_loops import find_compressed
from raycdc.connectors.mysql.binlog.far_places import Jump, jump_of, nearest_place
from raycdc.connectors.mysql.binlog.gtid import ExecutedGtids
from raycdc.connectors.mysql.binlog.map_plans import MapPlans
from raycdc.connectors.mysql.binlog.map_schemas import MapSchemas
from raycdc.connectors.mysql.binlog.partial_updates import PartialUpdates
from raycdc.connectors.mysql.binlog.plan import WirePlan
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.binlog.rows import RowBatches
from raycdc.connectors.mysql.binlog.table_decoding import log_damage
from raycdc.connectors.mysql.binlog.table_map_registry import TableMapRegistry
from raycdc.connectors.mysql.binlog.xa_rows import XaRows
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import CorruptLogError, DataError, SchemaError
from raycdc.model import TableId
from raycdc.model.batch import BATCH_BYTES_MAX, BATCH_ROWS_MAX

Flavor = Literal["mysql", "mariadb"]
#: Told of a table, why its rows cannot be decoded, and where the transaction before them ended.
MisfitListener = Callable[[TableId, DataError, BinlogOffset], None]


class BinlogDecoder:
    """See the module's docstring. One thread at a time.

    `tables` holds the schemas in force at `start`; `set_table` replaces one. `wanted` decides, once per table map,
    whether a table's rows are decoded. `on_ddl` is called at each DDL, before any row after it is decoded, and may
    call `set_table`. `infer` makes schemas of tables from the table maps, where `schemas` has none that fits. With
    `with_pos`, `_pos` is filled. `verify_checksums` compares CRC32s. `whole_file`: events end where they lie.
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
        whole_file: bool = False,
        rows_max: int = BATCH_ROWS_MAX,
        bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self.keeps = wanted  # Prepared rows are kept of more tables, maybe: theirs may be wanted later.
        self._on_ddl = on_ddl
        self._on_misfit: MisfitListener | None = None
        #: Told of an event of a dump by GTID behind what was passed over; answers where it ends.
        self.find_place: Callable[[Jump], int] = nearest_place
        self._infer = infer
        self._mariadb = flavor == "mariadb"
        self._start = start
        self._file = start.file
        self.state = np.zeros(index.S_SIZE, np.int64)
        self.state[index.S_POS] = self.state[index.S_TX_POS] = start.pos
        self.state[index.S_GTID_SLOT] = -1
        self.state[index.S_VERIFY] = int(verify_checksums)
        self.state[index.S_SEEK] = int(start.by_gtid)
        self.state[index.S_SKIP] = start.skip_events
        self.state[index.S_EXACT] = int(whole_file)
        self._gtids = ExecutedGtids(start.gtid_set, mariadb=self._mariadb)
        self._registry = TableMapRegistry()
        self._rows = RowBatches(rows_max=rows_max, bytes_max=bytes_max, with_pos=with_pos)
        self._rows.skip_rows = start.skip_rows
        self.maps = MapPlans(
            MapSchemas(tables, infer=infer, given=schemas),
            self._registry,
            self._rows,
            wanted=wanted,
            mariadb=self._mariadb,
        )
        self.xa = XaRows(start.prepared, self._rows, self, raw=infer)
        self._expander = Expander()
        self._partial = PartialUpdates()
        self._boundary_file = start.file
        self._formatted = False
        #: Of a whole file: its last event has come.
        self._ended = False
        self._stripped = False

    # -- what the caller asks between feeds ---------------------------------------------------------------------------

    @property
    def position(self) -> BinlogOffset:
        """End of the last complete transaction, with the GTID set up to it."""
        self._gtids.merge(self.state)
        return self._offset(self._boundary_file, int(self.state[index.S_TX_POS]))

    @property
    def event_position(self) -> BinlogOffset:
        """End of the last event; inside a transaction no place to restart from."""
        return BinlogOffset(self._file, int(self.state[index.S_POS]))

    @property
    def in_transaction(self) -> bool:
        return int(self.state[index.S_TX]) != index.TX_NONE

    @property
    def last_ts_ms(self) -> int:
        """Commit time of the last event that has one, 0 before the first."""
        return int(self.state[index.S_LAST_MS])

    @property
    def next_seq(self) -> int:
        """The `_seq` the next row will get."""
        return self._rows.next_seq

    def statistics(self) -> dict[str, int]:
        """Counts since construction: rows, zero dates that became null, values with replaced characters, maps."""
        return {**self._rows.statistics(), "table_maps": self._registry.count}

    @property
    def damage_position(self) -> int:
        """After an error: the end of the last event before the damage, in `event_position.file`."""
        damaged = self._rows.damaged_event_end
        return damaged - 1 if damaged else int(self.state[index.S_POS])

    def take_seq(self) -> int:
        """A `_seq` for a row that is not in the log (a truncation), between the rows before it and those after it."""
        return self._rows.take_seq()

    def set_table(self, table: MySqlTable) -> None:
        """Rows after this point have this schema; table maps seen before are checked again."""
        self.maps.set(table)

    def remove_table(self, table: TableId) -> None:
        """The table is gone; its rows would be refused as unknown."""
        self.maps.remove(table)

    def tell_misfits(self, listener: MisfitListener) -> None:
        """`listener` is told of a table map that does not fit and of rows that are not whole, which are errors else,
        with the end of the transaction before; the table's rows are passed over from there.
        """
        self._on_misfit = listener
        self._rows.on_partial = self._on_partial

    def cut(self, events: Bytes, start: int = 0) -> int:
        """Offset after the last event of the buffer that leaves no transaction open, or `start` when there is none.

        Feeding ``events[start:cut]`` then ends between transactions. Does not change the decoder.
        """
        data, tx, checksum = as_array(events), int(self.state[index.S_TX]), int(self.state[index.S_CHECKSUM])
        return int(index.last_boundary(data, start, len(data), tx, checksum))

    def feed(self, events: Bytes) -> list[LogItem]:
        """Decode complete events that follow those fed before; the buffer may be reused afterwards.

        Raises `CorruptLogError` (damage, with file and position), `SchemaError` (a table map does not fit its table)
        and `DataError` (an event that cannot be followed). On an error inside the buffer nothing of it is returned.
        """
        return list(self.items(events))

    def items(self, events: Bytes) -> Iterator[LogItem]:
        """`feed`, item by item, so that what precedes damage is seen before the error. Consume it to its end."""
        data = as_array(events)
        self.xa.begin()
        if not self.in_transaction:
            self._registry.trim_ids(self.state)
        yield from self._walk(data)

    def pieces(self, events: Bytes) -> Iterator[tuple[npt.NDArray[np.uint8], bool]]:
        """The events as they are, but what is compressed expanded: (piece, whether its events have no checksum).

        For callers that look at every event themselves: each piece goes to `items_of` before the next is asked for.
        """
        data = as_array(events)
        at = 0
        while at < len(data):
            found = int(find_compressed(data, at, len(data)))
            if found > at:
                yield data[at:found], False
            at = found
            if at < len(data):
                for piece in self._expanded(data, at):
                    yield piece, True
                at = self._expander.at

    def items_of(self, piece: npt.NDArray[np.uint8], *, stripped: bool) -> Iterator[LogItem]:
        """`items` of one of `pieces`."""
        if stripped:
            yield from self.decode(piece)
        else:
            yield from self.items(piece)

    # -- the passes ---------------------------------------------------------------------------------------------------

    def _walk(self, data: npt.NDArray[np.uint8]) -> Iterator[LogItem]:
        """Index, and act where the compiled pass stops; rows listed before are decoded first."""
        at, count = 0, 0
        while True:
            code, at, length, count = self._index(data, at, count)
            match code:
                case index.STOP_FULL:
                    if not self._rows.grow():
                        yield from self._flush(data, count)
                        count = 0
                    continue
                case index.STOP_MAP:
                    try:
                        self._register(data, at, length)
                    except DataError:
                        yield from self._flush(data, count)
                        raise
                    continue
                case index.STOP_GTIDS:
                    self._gtids.make_room(self.state)
                    continue
                case index.STOP_JUMP:
                    at += self._jump(data[at : at + length])
                    continue
                case index.STOP_TABLE_IDS:
                    self._registry.grow_ids(self.state)
                    continue
            yield from self._flush(data, count)
            count = 0
            match code:
                case index.STOP_END:
                    return
                case index.STOP_QUERY:
                    yield self._ddl(data, at, length)
                    at += length
                case index.STOP_EVENT:
                    self._handle(data, at, length)
                    at += length
                case index.STOP_COMPRESSED:
                    for piece in self._expanded(data, at):
                        yield from self.decode(piece)
                    at = self._expander.at
                case index.STOP_PARTIAL:
                    yield from self.decode(self._completed(data, at))
                    at = self._partial.at
                case index.STOP_XA:
                    yield from self._xa_event(data, at, length)
                    at += length
                case index.STOP_ERROR:
                    raise self._damage()
                case _:
                    raise AssertionError(f"unknown stop {code}")

    def decode(self, piece: npt.NDArray[np.uint8]) -> Iterator[LogItem]:
        """The items of events that have no checksums any more."""
        state = self.state
        before = int(state[index.S_CHECKSUM]), int(state[index.S_STRIPPED])
        state[index.S_CHECKSUM], state[index.S_STRIPPED] = 0, 1
        yield from self._walk(piece)
        state[index.S_CHECKSUM], state[index.S_STRIPPED] = before

    def _expanded(self, data: npt.NDArray[np.uint8], at: int) -> Iterator[npt.NDArray[np.uint8]]:
        state = self.state
        with self._placed():
            yield from self._expander.pieces(
                data,
                at,
                checksum_bytes=int(state[index.S_CHECKSUM]),
                verify=bool(state[index.S_VERIFY]),
                position=int(state[index.S_POS]) & 0xFFFFFFFF if state[index.S_EXACT] else -1,
            )

    def _completed(self, data: npt.NDArray[np.uint8], at: int) -> npt.NDArray[np.uint8]:
        state, registry = self.state, self._registry

        def known(number: int) -> tuple[bool, WirePlan | None] | None:
            if number < 0:
                return None
            ready = self._rows.maps.get(number)
            return bool(registry.wanted[number]), None if ready is None else ready.plan

        with self._placed():
            return self._partial.piece(
                data,
                at,
                checksum_bytes=int(state[index.S_CHECKSUM]),
                verify=bool(state[index.S_VERIFY]),
                position=int(state[index.S_POS]) & 0xFFFFFFFF if state[index.S_EXACT] else -1,
                by_id=lambda table_id: known(registry.number_of_id(table_id)),
                by_content=lambda content: known(registry.number_of(content)),
            )

    def _index(
        self, data: npt.NDArray[np.uint8], at: int, count: int, *, end: int | None = None
    ) -> tuple[int, int, int, int]:
        registry, gtids = self._registry, self._gtids
        code, at, length, count = index.index_events(
            data, at, len(data) if end is None else end, self._mariadb, self.state, self._rows.events, count,
            registry.maps, registry.wanted, registry.content, registry.map_keys, registry.map_values,
            registry.id_keys, registry.id_values, gtids.keys, gtids.first, gtids.last, gtids.runs,
        )  # fmt: skip
        if int(self.state[index.S_TX]) == index.TX_NONE:
            self._boundary_file = self._file
        return int(code), int(at), int(length), int(count)

    def _pass(self, data: npt.NDArray[np.uint8], at: int, length: int) -> None:
        """Count an event that the compiled pass stopped at."""
        self.state[index.S_PASS] = 1
        while (code := self._index(data, at, 0, end=at + length)[0]) == index.STOP_GTIDS:
            self._gtids.make_room(self.state)
        self.state[index.S_PASS] = 0
        if code == index.STOP_ERROR:
            raise self._damage()

    def _flush(self, data: npt.NDArray[np.uint8], count: int) -> Iterator[RowsItem]:
        return self._rows.flush(data, count, file=self._file)

    # -- single events ------------------------------------------------------------------------------------------------

    def _register(self, data: npt.NDArray[np.uint8], at: int, length: int) -> None:
        """A TABLE_MAP not seen before: parse it, check it, make its decode plan."""
        end = at + length - int(self.state[index.S_CHECKSUM])
        listener = self._on_misfit

        def on_misfit(table: TableId, error: DataError) -> None:
            assert listener is not None
            listener(table, type(error)(f"{self.event_position}: {error}"), self.position)

        with self._placed():
            content = data[at + index.HEADER_BYTES + 8 : end]
            self.maps.add(content, on_misfit=None if listener is None else on_misfit)

    def _on_partial(self, table: TableId, error: DataError, start: int) -> None:
        assert self._on_misfit is not None
        self.maps.pass_over(table)
        self._on_misfit(table, error, BinlogOffset(self._file, start))

    def _xa_event(self, data: npt.NDArray[np.uint8], at: int, length: int) -> Iterator[LogItem]:
        """Keep the rows of a transaction that may be prepared; hand them out where it is committed."""
        state = self.state
        event = data[at : at + length - int(state[index.S_CHECKSUM])].tobytes()
        with self._placed():
            step = self.xa.on_event(event)
        state[index.S_XA] = 0
        yield from self.xa.items(step, event, self._file)
        state[index.S_XA] = int(self.xa.is_open)
        self._pass(data, at, length)
        state[index.S_XA] = int(self.xa.is_open)
        self._at_boundary()

    @property
    def parks(self) -> bool:
        """`raycdc.connectors.mysql.binlog.xa_rows.DecodesRows`."""
        return self._on_misfit is not None

    def mismatch(self, table: TableId, error: DataError) -> None:
        """`raycdc.connectors.mysql.binlog.xa_rows.DecodesRows`."""
        if self._on_misfit is None:
            raise error
        self._on_misfit(table, error, self.position)

    def _ddl(self, data: npt.NDArray[np.uint8], at: int, length: int) -> DdlItem:
        before = self.position
        self._pass(data, at, length)
        end = at + length - int(self.state[index.S_CHECKSUM])
        query = parse_query(data[at + index.HEADER_BYTES : end].tobytes())
        self._gtids.merge(self.state)
        item = DdlItem(
            db=query.db,
            statement=query.statement,
            before=before,
            position=self._offset(self._file, int(self.state[index.S_POS])),
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
        with self._placed():
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

    def _rotate(self, event: bytes) -> None:
        body = event[index.HEADER_BYTES : len(event) - int(self.state[index.S_CHECKSUM])]
        if not self._formatted and len(event) > 32 and zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
            body = event[index.HEADER_BYTES : -4]  # the dump's first event comes before the format that announces CRCs
        file, pos = parse_rotate(body)
        if self.in_transaction and file != self._file:
            raise CorruptLogError(f"the log goes on in {file} in the middle of a transaction")
        self._file = file
        self.state[index.S_POS] = pos
        if event[13:17] == bytes(4):
            # Not of this file: it is a relay log, which goes on with another server's positions.
            self.state[index.S_EXACT] = 0
        self._ended = bool(self.state[index.S_EXACT])
        self._at_boundary()

    def _format(self, event: bytes) -> None:
        format_ = parse_format_description(event)
        if self._ended:
            raise CorruptLogError("the file goes on behind its last event, which names the next file")
        self._formatted = True
        self.state[index.S_CHECKSUM] = format_.checksum_bytes
        if "MariaDB" in format_.server_version and not self._mariadb:
            raise DataError(f"the log was written by MariaDB ({format_.server_version}), not by MySQL")
        self._moved(event)

    def _jump(self, event: npt.NDArray[np.uint8]) -> int:
        """A dump by GTID passed over what we have: find where it goes on. Returns the bytes that are done with."""
        state, pos = self.state, int(self.state[index.S_POS])
        jump = jump_of(event.tobytes(), self._file, pos, checksum_bytes=int(state[index.S_CHECKSUM]))
        with self._placed():
            end = self.find_place(jump)
        if jump.is_in_file:
            state[index.S_POS] = end - jump.length
            return 0
        state[index.S_POS] = max(jump.before, end)
        self._at_boundary()
        return len(event)

    def _moved(self, event: bytes) -> None:
        before, end = int(self.state[index.S_POS]), int.from_bytes(event[13:17], "little")
        far = end and event[4] != index.FORMAT_DESCRIPTION  # That one stands at the file's beginning.
        self.state[index.S_POS] = before + (end - before) % (1 << 32) if far else max(before, end)
        self._at_boundary()

    def _at_boundary(self) -> None:
        if not self.in_transaction:
            self.state[index.S_TX_POS] = self.state[index.S_POS]
            self._boundary_file = self._file

    def _offset(self, file: str, pos: int) -> BinlogOffset:
        start, left = self._start, (0, 0)
        if start.skip_events or start.skip_rows:
            read = int(self.state[index.S_SKIP]), self._rows.skip_rows
            left = (start.skip_events, start.skip_rows) if (file, pos) == (start.file, start.pos) else read
        return BinlogOffset(
            file,
            pos,
            str(self._gtids),
            server=start.server,
            by_gtid=start.by_gtid,
            prepared=self.xa.stored,
            skip_events=left[0],
            skip_rows=left[1],
        )

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Errors of what is inside say where in the log it happened."""
        try:
            yield
        except (CorruptLogError, SchemaError, DataError) as cause:
            raise type(cause)(f"{self.event_position}: {cause}") from cause

    def _damage(self) -> CorruptLogError:
        return CorruptLogError(f"{self.event_position}: {log_damage(int(self.state[index.S_ERROR]))}")
