"""The binlog as a stream of `LogUnit`s: connection, compiled decoder and schema changes together.

Runs in the log fetcher's thread. Schema changes are applied here, at their place in the log, before any row after
them is decoded; the reader's thread meets them as units of their own and ends the epoch there.

| statement on a captured table | becomes |
|---|---|
| ADD, DROP, RENAME COLUMN, a wider type, new labels, a position, a comment | schema update |
| indexes, options, partitions that keep their rows | nothing |
| TRUNCATE, DROP TABLE, DROP DATABASE | schema update, and a truncation among the rows |
| RENAME that puts a schema change tool's table in its place | schema update from the old shape to the new one |
| CREATE TABLE that the selection matches | the table is followed from here on, without a snapshot |
| CREATE TABLE under the name of a dropped one, with other columns | the table begins again |
| one that rewrites rows without logging them, or puts other rows under the name | the table begins again |
| RENAME to a name outside | the table ends; its target keeps what it has |
| anything else with effect on columns or rows, what cannot be parsed, rows that do not fit | the table is parked |

Statements about other tables are passed over without being parsed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from raycdc.checkpoint.opaque import LogNotes
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.events import DdlItem, RowsItem
from raycdc.connectors.mysql.binlog.position import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.binlog.stream import BinlogStream
from raycdc.connectors.mysql.ddl.history import DdlHistory
from raycdc.connectors.mysql.ddl.history_state import HistoryState
from raycdc.connectors.mysql.hidden_changes import hidden_state, hidden_update
from raycdc.connectors.mysql.log_filter import LogFilter
from raycdc.source.snapshot.hand_off import LogRows
from raycdc.source.snapshot.log_unit import (
    LogPlace,
    LogUnit,
    Progress,
    SchemaChange,
    SchemaUpdate,
    TransactionPart,
    Transactions,
)
from raycdc.transform.hiding import Hiding

#: Bytes of the log decoded at a time: large enough that per-batch work is small, small enough to stay in the cache.
READ_BYTES_MAX = 4 << 20
#: Longest a fetch waits for the server, so that closing does not.
READ_TIMEOUT_S = 0.2


class MySqlLogReader:
    """`raycdc.source.snapshot.reading.BlockingLog` of the stream split. `open_stream` connects and starts the dump."""

    def __init__(
        self,
        *,
        open_stream: Callable[[BinlogOffset], BinlogStream],
        history: DdlHistory,
        decoder: BinlogDecoder,
        start: BinlogOffset,
        row_filter: LogFilter | None = None,
        hiding: Hiding | None = None,
    ) -> None:
        self._hiding = hiding or Hiding()
        self._history = history
        self._row_filter = row_filter
        self._decoder = decoder
        self._position = start
        #: The last unit left a transaction open; the reader must hear of its end even where nothing else came with it.
        self._open = False
        self._units: list[LogUnit] = []
        self._stream = open_stream(start)
        #: Bytes of the log that one fetch reads at most.
        self.read_bytes_max = READ_BYTES_MAX

    def __repr__(self) -> str:
        return f"MySqlLogReader({self._position}, {self._decoder.statistics()})"

    def fetch(self) -> LogUnit | None:
        """The next unit; None when the server had nothing new for a moment."""
        while not self._units:
            self._begin_again()
            if self._units:
                break
            data = self._stream.read(bytes_max=self.read_bytes_max, timeout_s=READ_TIMEOUT_S)
            if len(data) == 0 and self._stream.is_silent and not self._stream.closed:
                continue
            if len(data) == 0:
                return None
            self._decode(data)
        return self._units.pop(0)

    def wake_up(self) -> None:
        self._stream.close()

    def close(self) -> None:
        self._stream.close()
        if self._row_filter is not None:
            self._row_filter.close()

    def _decode(self, data: memoryview) -> None:
        fetched_ms = time.time_ns() // 1_000_000
        pending: list[RowsItem] = []
        for item in self._decoder.items(data):
            match item:
                case RowsItem(kept=True):
                    pending.append(item)
                case RowsItem():
                    # Here and not when the unit is made: by then a statement may have changed the table.
                    captured = item if self._row_filter is None else self._row_filter.captured(item)
                    pending += [] if captured is None else [captured]
                case DdlItem():
                    updates, truncations = self._history.take_updates()
                    state = self._history.take_state()
                    if updates or state is not None:
                        self._rows_unit(pending, item.before, in_transaction=False, fetched_ms=fetched_ms)
                        pending = []
                        self._schema_unit(updates, truncations, item, fetched_ms=fetched_ms, state=state)
        cursor = self._decoder.cursor
        self._rows_unit(pending, cursor.position, in_transaction=cursor.in_transaction, fetched_ms=fetched_ms)

    def _begin_again(self) -> None:
        """Between two transactions: let tables begin again whose look holds here."""
        if self._decoder.cursor.in_transaction:
            return
        self._history.begin_again(self._position, time.time_ns() // 1_000_000)
        updates, truncations = self._history.take_updates()
        if updates:
            place = LogPlace(self._position.sealed(), ordinal_of(self._position))
            self._units.append(self._as_passed_on(SchemaChange(place, updates, truncations)))

    def _rows_unit(
        self, items: Sequence[RowsItem], position: BinlogOffset, *, in_transaction: bool, fetched_ms: int
    ) -> None:
        if not items and position == self._position and not in_transaction and not self._open:
            return
        self._position, self._open = position, in_transaction
        rows = tuple(believed for item in items if (believed := self._believed(item)) is not None)
        parked = () if in_transaction else self._history.take_misfits(self._decoder.cursor.last_ts_ms)
        place = LogPlace(position.sealed(), ordinal_of(position), self._decoder.cursor.last_ts_ms or None, fetched_ms)
        size = sum(item.batch.nbytes for item in items)
        if in_transaction:
            self._units.append(TransactionPart(place, rows, size))
        elif items or parked:
            self._units.append(Transactions(place, rows, parked=parked, bytes=size))
        else:
            self._units.append(Progress(place))

    def _believed(self, item: RowsItem) -> LogRows | None:
        """The part of the item before the place where its table became unbelievable."""
        batch, row_pos = item.batch, item.row_pos
        last = self._history.misfits.believed_up_to(item.table)
        if last is not None:
            believed = row_pos + ordinal_of(BinlogOffset(item.file, 0)) <= last
            if not believed.any():
                return None
            batch, row_pos = batch.filter(pa.array(believed)), row_pos[believed]
        return LogRows(item.table, batch, row_pos + ordinal_of(BinlogOffset(item.file, 0)))

    def _schema_unit(
        self,
        updates: tuple[SchemaUpdate, ...],
        truncations: tuple[LogRows, ...],
        item: DdlItem,
        *,
        fetched_ms: int,
        state: HistoryState | None,
    ) -> None:
        """The changes of a statement; one about a tool's table changes only the facts that the next start must know."""
        # CREATE TABLE … SELECT of MySQL 8.0.21 and later is one transaction with its rows.
        self._position, self._open = item.before if item.in_transaction else item.position, item.in_transaction
        place = LogPlace(
            self._position.sealed(),
            ordinal_of(self._position),
            item.ts_ms,
            fetched_ms,
            None if state is None else LogNotes.from_json(hidden_state(state, self._hiding.masks).to_json()),
        )
        if updates:
            change = SchemaChange(place, updates, truncations, in_transaction=item.in_transaction)
            self._units.append(self._as_passed_on(change, item.statement))
        else:
            self._units.append(TransactionPart(place) if item.in_transaction else Progress(place))

    def _as_passed_on(self, change: SchemaChange, statement: str = "") -> SchemaChange:
        """The change without rows and values that the configuration leaves out."""
        updates, truncations = change.updates, change.truncations
        if self._row_filter is not None:
            updates = tuple(self._row_filter.update(update) for update in updates)
            narrowed = self._row_filter.narrowed
            truncations = tuple(replace(rows, batch=narrowed(rows.table, rows.batch)) for rows in truncations)
        updates = tuple(hidden_update(update, self._hiding, statement) for update in updates)
        return replace(change, updates=updates, truncations=truncations)
