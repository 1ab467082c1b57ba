"""Reads the binlog as a stream of `LogUnit`s: combines the connection, the compiled decoder and the schema changes.

Runs in the log fetcher's thread. Schema changes are applied here, at their position in the log, before any row after
them is decoded; the reader's thread gets them as separate units and ends the epoch there.

| statement on a captured table | becomes |
|---|---|
| ADD, DROP, RENAME COLUMN, a wider type, new labels, a position, a comment | schema update |
| indexes, options, partitions that keep their rows | nothing |
| TRUNCATE, DROP TABLE, DROP DATABASE | schema update, and a truncation among the rows |
| RENAME that replaces the table by a schema change tool's table | schema update from the old schema to the new one |
| CREATE TABLE that the selection matches | the table is followed from here on, without a snapshot, even if a snapshot \
was planned because it is new to the state |
| CREATE TABLE under the name of a dropped table, with different columns | the table is resnapshotted |
| a statement that rewrites rows without logging them, or puts other rows under the name | the table is resnapshotted |
| RENAME to a name that is not captured | the table ends; its target keeps its rows |
| any other effect on columns or rows, unparsable statements, rows that do not match | the table is parked |

Statements about tables that are not captured are skipped without being parsed. A change of rows that is logged as a
statement parks its table. If rows of the same transaction precede the statement, the table is parked at the
transaction's end, because no epoch ends inside a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, DdlItem, FileBegins
from raycdc.connectors.mysql.binlog.positions.position import RESNAPSHOT_HINT, BinlogOffset, ordinal_of
from raycdc.connectors.mysql.binlog.whole_transactions import WholeEvents, WholeLog
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory
from raycdc.connectors.mysql.ddl.follow.history_state import HistoryState
from raycdc.connectors.mysql.log.log_filter import LogFilter, redacted_state, redacted_update
from raycdc.connectors.mysql.snapshot.row_filter import UncomparableTextError
from raycdc.errors import ConfigError, CorruptLogError, DataError, LogLostError
from raycdc.source.snapshot.handoff.hand_off import LogRows
from raycdc.source.snapshot.log.log_unit import (
    LogPosition,
    LogProgress,
    LogTransactions,
    LogUnit,
    ParkTableUpdate,
    SchemaChange,
    SchemaUpdate,
    TransactionPart,
)
from raycdc.state.opaque import LogNotes
from raycdc.transform.masks import Masking

#: The bytes of the log decoded at a time: many, so that per-batch work is small, but few enough to stay in the cache.
READ_BYTES_MAX = 4 << 20
#: The longest wait of a fetch for the server, so that closing does not wait long.
READ_TIMEOUT_S = 0.2


def unreadable(stream: BinlogStream, offset: BinlogOffset, cause: CorruptLogError) -> LogLostError:
    """Return the error of a log damaged after `offset`.

    At the next start, `log_proof` finds the damage, and the tables can be read again.
    """
    return LogLostError(f"{stream.address}: the log cannot be read after {offset}: {cause}. {RESNAPSHOT_HINT}.")


class MySqlLogReader:
    """The log of the stream split, a `raycdc.source.snapshot.reader.reading.BlockingLog`.

    `log` is read from `start` on. `log` has the cursor of `decoder`.
    """

    def __init__(
        self,
        *,
        log: WholeLog,
        history: DdlHistory,
        decoder: BinlogDecoder,
        start: BinlogOffset,
        row_filter: LogFilter | None = None,
        masking: Masking | None = None,
    ) -> None:
        self._masking = masking or Masking()
        self._history = history
        self._row_filter = row_filter
        self._decoder = decoder
        self._position = start
        #: True if the last unit left a transaction open. The reader must learn of its end even if nothing else comes
        #: with it.
        self._open = False
        self._units: list[LogUnit] = []
        #: Tables parked by a statement inside the open transaction, after rows of the transaction.
        self._parked: list[ParkTableUpdate] = []
        self._log = log

    def __repr__(self) -> str:
        return f"MySqlLogReader({self._position}, {self._decoder.statistics()})"

    def fetch(self) -> LogUnit | None:
        """Return the next unit; None if the server had nothing new within a short wait."""
        while not self._units:
            try:
                if (whole := self._log.next_known()) is not None:
                    self._decode(whole)
                    continue
                self._resnapshot_parked()
                if not self._units and not self._log.read(timeout_s=READ_TIMEOUT_S):
                    return None
            except CorruptLogError as cause:
                raise unreadable(self._log.stream, self._position, cause) from cause
        return self._units.pop(0)

    @property
    def is_woken(self) -> bool:
        """Return True if `wake_up` or `close` was called, so that nothing more is read."""
        return self._log.is_woken

    def wake_up(self) -> None:
        self._log.wake_up()

    def close(self) -> None:
        self._log.wake_up()
        if self._row_filter is not None:
            self._row_filter.close()

    def _decode(self, whole: WholeEvents) -> None:
        fetched_ms = time.time_ns() // 1_000_000
        pending: list[BinlogRowsItem] = []
        for item in self._decoder.items_of_whole(whole):
            match item:
                case BinlogRowsItem(kept=True):
                    pending.append(item)
                case BinlogRowsItem():
                    # Filtered here, and not when the unit is made, because a statement may change the table in between.
                    captured = self._captured(item)
                    pending += [] if captured is None else [captured]
                case DdlItem():
                    updates, truncations = self._history.take_updates()
                    state = self._history.take_state()
                    if updates or state is not None:
                        self._rows_unit(pending, item.before, in_transaction=item.after_rows, fetched_ms=fetched_ms)
                        pending = []
                        if item.after_rows:
                            updates = self._parked_later(updates, item.statement)
                        self._schema_unit(updates, truncations, item, fetched_ms=fetched_ms, state=state)
                case FileBegins(position, in_transaction):
                    self._rows_unit(pending, position, in_transaction=in_transaction, fetched_ms=fetched_ms)
                    pending = []
                    self._notes_unit(position, in_transaction=in_transaction, fetched_ms=fetched_ms)
        cursor = self._decoder.cursor
        self._rows_unit(pending, cursor.position, in_transaction=cursor.in_transaction, fetched_ms=fetched_ms)

    def _captured(self, item: BinlogRowsItem) -> BinlogRowsItem | None:
        """Return the captured part of the item; None if there is none, or if its table is parked."""
        if self._row_filter is None:
            return item
        try:
            return None if item.table in self._history.mismatches else self._row_filter.captured(item)
        except (UncomparableTextError, ConfigError) as cause:
            why = f"{cause}, then read the table anew with: raycdc tables resnapshot CONFIG {item.table}"
            # The item may have rows of several transactions, which all come after the last unit.
            self._history.on_schema_mismatch(item.table, DataError(f"{item.table}: {why}"), self._position)
            self._decoder.maps.pass_over(item.table)
            return None

    def _resnapshot_parked(self) -> None:
        """Pass on the resnapshots of parked tables whose probe holds here, if no transaction is open."""
        if self._decoder.cursor.in_transaction:
            return
        self._history.resnapshot_parked(self._position, time.time_ns() // 1_000_000)
        updates, truncations = self._history.take_updates()
        if updates:
            log_position = LogPosition(self._position.sealed(), ordinal_of(self._position))
            self._units.append(self._as_passed_on(SchemaChange(log_position, updates, truncations)))

    def _rows_unit(
        self, items: Sequence[BinlogRowsItem], position: BinlogOffset, *, in_transaction: bool, fetched_ms: int
    ) -> None:
        known = position == self._position and position.mark == self._position.mark
        if not items and known and not in_transaction and not self._open:
            return
        self._position, self._open = position, in_transaction
        rows = tuple(believed for item in items if (believed := self._believed(item)) is not None)
        parked: tuple[ParkTableUpdate, ...] = ()
        if not in_transaction:
            parked = (*self._parked, *self._history.take_mismatches(position, self._decoder.cursor.last_ts_ms))
            self._parked.clear()
        log_position = LogPosition(
            position.sealed(), ordinal_of(position), self._decoder.cursor.last_ts_ms or None, fetched_ms
        )
        size = sum(item.batch.nbytes for item in items)
        if in_transaction:
            self._units.append(TransactionPart(log_position, rows, size))
        elif items or parked:
            self._units.append(LogTransactions(log_position, rows, parked=parked, bytes=size))
        else:
            self._units.append(LogProgress(log_position))

    def _parked_later(self, updates: Sequence[SchemaUpdate], statement: str) -> tuple[SchemaUpdate, ...]:
        """Return the updates that do not park a table. Updates that do must wait for the end of the transaction."""
        now: list[SchemaUpdate] = []
        for update in updates:
            if isinstance(update, ParkTableUpdate):
                parked = redacted_update(update, self._masking, statement)
                assert isinstance(parked, ParkTableUpdate)
                self._parked.append(parked)
            else:
                now.append(update)
        return tuple(now)

    def _believed(self, item: BinlogRowsItem) -> LogRows | None:
        """Return the part of the item before a schema mismatch of its table; None if there is none."""
        batch, row_pos = item.batch, item.row_pos
        last = self._history.mismatches.believed_up_to(item.table)
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
        """Pass on the changes of a statement.

        A statement about a tool's table only changes the state for the next start.
        """
        # MySQL 8.0.21 and later log CREATE TABLE … SELECT and its rows as one transaction.
        self._position, self._open = item.before if item.in_transaction else item.position, item.in_transaction
        log_position = LogPosition(
            self._position.sealed(),
            ordinal_of(self._position),
            item.ts_ms,
            fetched_ms,
            self._notes(state),
        )
        if updates:
            at = ordinal_of(item.position) if item.in_transaction else None
            change = SchemaChange(log_position, updates, truncations, in_transaction=item.in_transaction, at=at)
            self._units.append(self._as_passed_on(change, item.statement))
        else:
            self._units.append(TransactionPart(log_position) if item.in_transaction else LogProgress(log_position))

    def _notes_unit(self, position: BinlogOffset, *, in_transaction: bool, fetched_ms: int) -> None:
        """Pass on a unit that has only a position and the notes for the next start (`LogNotes`)."""
        last_ts_ms = self._decoder.cursor.last_ts_ms or None
        notes = self._notes(self._history.take_state())
        log_position = LogPosition(position.sealed(), ordinal_of(position), last_ts_ms, fetched_ms, notes)
        self._units.append(TransactionPart(log_position) if in_transaction else LogProgress(log_position))

    def _notes(self, state: HistoryState | None) -> LogNotes | None:
        return None if state is None else LogNotes.from_json(redacted_state(state, self._masking.masks).to_json())

    def _as_passed_on(self, change: SchemaChange, statement: str = "") -> SchemaChange:
        """Return the change without rows and values that the configuration leaves out."""
        updates, truncations = change.updates, change.truncations
        if self._row_filter is not None:
            updates = tuple(self._row_filter.update(update) for update in updates)
            narrowed = self._row_filter.narrowed
            truncations = tuple(replace(rows, batch=narrowed(rows.table, rows.batch)) for rows in truncations)
        updates = tuple(redacted_update(update, self._masking, statement) for update in updates)
        return replace(change, updates=updates, truncations=truncations)
