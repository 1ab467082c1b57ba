"""Raw binlog events in, Arrow batches and DDL out. No I/O, no threads, no clock.

`BinlogDecoder` is called by the log reader and by ``inspect binlog`` with buffers of complete events. Per buffer it
runs one compiled pass that lists the row events (`EventPass`), one compiled decode per table map (`RowBatches`), and
copies the arenas into batches. Python work is per table, DDL and new table map.

The decoder walks; each other matter has an owner, which callers ask and tell directly:

| field | owner | of |
|---|---|---|
| `cursor` | `BinlogCursor` | the place in the log: positions, transactions, GTIDs, numbers of rows |
| `maps` | `MapPlans` | table maps and schemas: how rows of each lie in the log, and whether they are wanted |
| `misfits` | `MisfitReports` | tables whose rows cannot be given |
| `files` | `FileEvents` | new files, formats, what a dump by GTID passed over |
| `xa` | `XaRows` | rows of XA transactions, which wait for their XA COMMIT |

Invariants: items come in log order; a DDL separates the rows before it from those after it; `cursor.position` is always
a transaction boundary; after an error the decoder is of no more use (begin again from a position).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.event_pass import EventPass
from raycdc.connectors.mysql.binlog.events import Bytes, DdlItem, LogItem, as_array, parse_query
from raycdc.connectors.mysql.binlog.expand import Expander
from raycdc.connectors.mysql.binlog.expand_loops import find_compressed
from raycdc.connectors.mysql.binlog.file_events import FileEvents
from raycdc.connectors.mysql.binlog.log_kind import LogKind
from raycdc.connectors.mysql.binlog.map_plans import MapPlans
from raycdc.connectors.mysql.binlog.map_schemas import MapSchemas
from raycdc.connectors.mysql.binlog.misfit_reports import MisfitReports
from raycdc.connectors.mysql.binlog.partial_updates import PartialUpdates
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.binlog.rows import RowBatches
from raycdc.connectors.mysql.binlog.table_decoding import BatchForm, Decodings
from raycdc.connectors.mysql.binlog.xa_rows import XaRows
from raycdc.connectors.mysql.binlog.xa_transactions import XaTransactions
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError
from raycdc.model import TableId


class BinlogDecoder:
    """See the module's docstring. One thread at a time.

    `schemas` are those in force at `start`. `wanted` decides, once per table map, whether a table's rows are decoded.
    `on_ddl` is called at each DDL, before any row after it is decoded, and may call `set_table`.
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
        self.misfits = MisfitReports(self.cursor)
        self.maps = MapPlans(schemas, decodings, self.misfits, wanted=wanted, mariadb=log.mariadb)
        self.files = FileEvents(self.cursor, mariadb=log.mariadb)
        self.xa = XaRows(transactions, self.cursor, self.maps, self.misfits, decode=self.decode)
        self._pass = EventPass(self.cursor, self.maps.registry, mariadb=log.mariadb)
        self._rows = RowBatches(self.cursor, self.maps, decodings, self.misfits, with_pos=form.with_pos)
        self._decodings = decodings
        self._expander = Expander()
        self._partial = PartialUpdates(self.maps)
        self._on_ddl = on_ddl

    def statistics(self) -> dict[str, int]:
        """Counts since construction: rows, zero dates that became null, values with replaced characters, maps."""
        return {
            "rows": self.cursor.next_seq,
            **self._decodings.losses(),
            "table_maps": self.maps.registry.count,
        }

    @property
    def damage_position(self) -> int:
        """After an error: the end of the last event before the damage, in `cursor.file`."""
        damaged = self._rows.damaged_event_end
        return damaged - 1 if damaged else self.cursor.event_position.pos

    # -- `raycdc.connectors.mysql.ddl.followed_tables.SchemaSetter` ---------------------------------------------------

    def set_table(self, table: MySqlTable) -> None:
        """Rows after this point have this schema; table maps seen before are checked again."""
        self.maps.set(table)

    def remove_table(self, table: TableId) -> None:
        """The table is gone; its rows would be refused as unknown."""
        self.maps.remove(table)

    def take_seq(self) -> int:
        """A `_seq` for a row that is not in the log (a truncation), between the rows before it and those after it."""
        return self.cursor.take_seq()

    # -- events in, items out -----------------------------------------------------------------------------------------

    def cut(self, events: Bytes, start: int = 0) -> int:
        """Offset after the last event of the buffer that leaves no transaction open, or `start` when there is none.

        Feeding ``events[start:cut]`` then ends between transactions. Does not change the decoder.
        """
        data, tx = as_array(events), int(self.cursor.state[index.S_TX])
        return int(index.last_boundary(data, start, len(data), tx, self.cursor.checksum_bytes))

    def feed(self, events: Bytes) -> list[LogItem]:
        """Decode complete events that follow those fed before; the buffer may be reused afterwards.

        Raises `CorruptLogError` (damage, with file and position), `SchemaError` (a table map does not fit its table)
        and `DataError` (an event that cannot be followed). On an error inside the buffer nothing of it is returned.
        """
        return list(self.items(events))

    def items(self, events: Bytes) -> Iterator[LogItem]:
        """`feed`, item by item, so that items before damage are seen before the error. Consume it to its end."""
        data = as_array(events)
        self.xa.begin()
        if not self.cursor.in_transaction:
            self.maps.registry.trim_ids(self.cursor.state)
        yield from self._walk(data)

    def pieces(self, events: Bytes) -> Iterator[tuple[npt.NDArray[np.uint8], bool]]:
        """The events as they are, but compressed ones expanded: (piece, whether its events have no checksum).

        For callers that look at every event themselves: each piece goes to `items_of` before the next is asked for.
        """
        data = as_array(events)
        at = 0
        while at < len(data):
            compressed_at = int(find_compressed(data, at, len(data)))
            if compressed_at > at:
                yield data[at:compressed_at], False
            at = compressed_at
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

    def decode(self, piece: npt.NDArray[np.uint8]) -> Iterator[LogItem]:
        """The items of events that have no checksums any more."""
        with self.cursor.without_checksums():
            yield from self._walk(piece)

    # -- the passes ---------------------------------------------------------------------------------------------------

    def _walk(self, data: npt.NDArray[np.uint8]) -> Iterator[LogItem]:
        """Index, and act where the compiled pass stops; rows listed before are decoded first."""
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
                    yield self._ddl(data, at, length)
                    at += length
                case index.STOP_EVENT:
                    self.files.handle(data[at : at + length].tobytes())
                    at += length
                case index.STOP_COMPRESSED:
                    for piece in self._expanded(data, at):
                        yield from self.decode(piece)
                    at = self._expander.at
                case index.STOP_PARTIAL:
                    with self.cursor.placed():
                        piece = self._partial.piece(data, at, self.cursor.ends)
                    yield from self.decode(piece)
                    at = self._partial.at
                case index.STOP_XA:
                    yield from self._xa_event(data, at, length)
                    at += length
                case index.STOP_ERROR:
                    raise self.cursor.damage()
                case _:
                    raise AssertionError(f"unknown stop {code}")

    def _expanded(self, data: npt.NDArray[np.uint8], at: int) -> Iterator[npt.NDArray[np.uint8]]:
        with self.cursor.placed():
            yield from self._expander.pieces(data, at, self.cursor.ends)

    def _register(self, data: npt.NDArray[np.uint8], at: int, length: int) -> None:
        """A TABLE_MAP not seen before: parse it, check it, make its decode plan."""
        end = at + length - self.cursor.checksum_bytes
        with self.cursor.placed():
            self.maps.add(data[at + index.HEADER_BYTES + 8 : end], place=str(self.cursor.event_position))

    def _ddl(self, data: npt.NDArray[np.uint8], at: int, length: int) -> DdlItem:
        cursor = self.cursor
        before = cursor.position
        self._pass.count_event(data, at, length)
        end = at + length - cursor.checksum_bytes
        query = parse_query(data[at + index.HEADER_BYTES : end].tobytes())
        item = DdlItem(
            db=query.db,
            statement=query.statement,
            before=before,
            position=cursor.statement_position,
            ts_ms=cursor.last_ts_ms,
            in_transaction=cursor.in_transaction,
            session=query.session,
        )
        if self._on_ddl is not None:
            self._on_ddl(item)
        return item

    def _xa_event(self, data: npt.NDArray[np.uint8], at: int, length: int) -> Iterator[LogItem]:
        """Keep the rows of a transaction that may be prepared; hand them out where it is committed."""
        cursor = self.cursor
        yield from self.xa.items(data[at : at + length - cursor.checksum_bytes].tobytes())
        self._pass.count_event(data, at, length)
        # The pass takes the end of a transaction for the end of what may be prepared.
        cursor.state[index.S_XA] = int(self.xa.is_open)
        cursor.move_to(cursor.event_position.pos)
