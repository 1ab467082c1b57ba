"""Rows of XA transactions: decoded at XA PREPARE, and emitted at XA COMMIT.

Called by `BinlogDecoder`. The rows get the position and time of XA COMMIT. They are already decoded and masked
(`RowKeeper`) at XA PREPARE, because a position must not hold values that masks hide. The server holds metadata locks on
the tables until XA COMMIT, so the schema at XA COMMIT is the schema by which the rows were decoded. A restarted server
may lose these locks. Therefore a table's schema is compared at XA COMMIT, and a different schema is treated like a
table map that does not match.

Rows of a table that is parked at XA PREPARE cannot be decoded, and if the table is resnapshotted before XA COMMIT, its
new snapshot lacks them. They are kept as raw events if these have no masked values; otherwise the table is parked again
at XA COMMIT. A table that was selected only after XA PREPARE is treated in the same way. If a transaction was prepared
before the job began, the tables that `find_prepared` returns are parked, or all tables if it does not know them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol, assert_never

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, LogItem
from raycdc.connectors.mysql.binlog.positions.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapPlans, SchemaMismatchReports
from raycdc.connectors.mysql.binlog.xa_transactions import (
    Committing,
    Counting,
    PreparedRows,
    PreparedTransaction,
    Preparing,
    Unseen,
    XaStep,
    XaTransactions,
    events_by_table,
    relocated,
)
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, PartialRowsError
from raycdc.model import RowKind, TableId, part_of
from raycdc.state.codec import NEW_STATE


class RowKeeper(Protocol):
    """The conversion of rows to the form in which a position keeps them."""

    def keep(self, item: BinlogRowsItem) -> bytes | None:
        """Return the rows as bytes, without values that must be masked; None if no row matters."""

    def batch(self, kept: bytes) -> pa.RecordBatch:
        """Return the batch of rows that `keep` turned into bytes."""

    def keep_events(self, table: TableId, events: bytes) -> bytes | None:
        """Return the events that may be kept, as bytes; None if none may."""

    def events(self, kept: bytes) -> bytes:
        """Return the events that were passed to `keep_events`."""


class PlainKeeper:
    """A `RowKeeper` that keeps all rows unchanged."""

    def keep(self, item: BinlogRowsItem) -> bytes | None:
        return ipc_bytes(item.batch)

    def batch(self, kept: bytes) -> pa.RecordBatch:
        return batch_of(kept)

    def keep_events(self, table: TableId, events: bytes) -> bytes | None:
        return events

    def events(self, kept: bytes) -> bytes:
        return kept


class XaRows:
    """The rows of XA transactions; see the module's docstring.

    `decode` yields the items of events without checksums, at the cursor's position.
    """

    def __init__(
        self,
        transactions: XaTransactions,
        cursor: BinlogCursor,
        maps: MapPlans,
        mismatches: SchemaMismatchReports,
        *,
        decode: Callable[[npt.NDArray[np.uint8]], Iterator[LogItem]],
    ) -> None:
        self._transactions = transactions
        self._cursor = cursor
        self._maps = maps
        self._mismatches = mismatches
        self._decode = decode
        #: True if no schema is certain, so that rows are kept as raw events.
        self._raw = maps.schemas.inferred
        self._begun = self._raw
        #: Returns True for tables whose rows are kept, maybe more tables than are wanted now, because they may be
        #: wanted later. This and the keeper may be replaced before the first event.
        self.keeps: Callable[[TableId], bool] = maps.wanted
        self.keeper: RowKeeper = PlainKeeper()
        #: Returns the tables of an unknown transaction at its XA COMMIT, or why they are unknown. May be replaced
        #: before the first event.
        self.find_prepared: Callable[[str, BinlogOffset], tuple[TableId, ...] | str] = _nobody_knows
        #: The tables of the present transaction whose rows are uncertain.
        self.doubtful: set[TableId] = set()
        #: Called for each XA PREPARE, before the cursor reaches its end. May be replaced before the first event.
        self.on_prepare: Callable[[Preparing], None] | None = None

    @property
    def is_open(self) -> bool:
        """Return True if a transaction has begun that may be prepared."""
        return self._transactions.is_open

    def begin(self) -> None:
        """Decode transactions that the state of an earlier version kept as raw events.

        Called before all other methods.
        """
        if self._begun:
            return
        self._begun = True
        last = int(self._cursor.state[index.S_POS]) & 0xFFFFFFFF
        location = {"seconds": bytes(4), "end": last.to_bytes(4, "little")}
        if waiting := self._transactions.take_events():
            self._transactions.keep(*((step.xid, self._prepared(step, **location)) for step in waiting))

    def items(self, event: bytes) -> Iterator[LogItem]:
        """Yield the rows that `event` commits. It is an event of an XA transaction, without its checksum."""
        state = self._cursor.state
        with self._cursor.locating_errors():
            step = self._transactions.on_event(event, wanted=self.keeps, from_the_start=self._raw)
        state[index.S_XA] = 0
        yield from self._items_of(step, event)
        state[index.S_XA] = int(self.is_open)

    def _items_of(self, step: XaStep | None, event: bytes) -> Iterator[LogItem]:
        location = {"seconds": event[:4], "end": event[13:17]}
        match step:
            case None:
                return
            case Preparing(xid, events):
                if self.on_prepare is not None:
                    self.on_prepare(step)
                prepared_now = PreparedTransaction(events=events) if self._raw else self._prepared(step, **location)
                self._transactions.keep((xid, prepared_now))
            case Counting(events):
                yield from self._counted(events, **location)
            case Committing(xid, prepared):
                yield from self._counted(prepared.events, **location)
                yield from self._committed(xid, prepared, event)
                for part in prepared.rows:
                    if not part.version and self._maps.wanted(part.table):
                        yield from self._counted(tuple(msgpack.unpackb(self.keeper.events(part.rows))), **location)
            case Unseen(xid):
                self._unseen(xid, event)
            case _:
                assert_never(step)

    def _counted(self, events: tuple[bytes, ...], *, seconds: bytes, end: bytes) -> Iterator[LogItem]:
        state = self._cursor.state
        if events and int(state[index.S_SKIP]) == 0:
            before = int(state[index.S_POS])
            yield from self._decode(_piece(relocated(events, seconds=seconds, end=end)))
            state[index.S_POS] = before

    def _prepared(self, step: Preparing, *, seconds: bytes, end: bytes) -> PreparedTransaction:
        """Decode the rows without moving the cursor."""
        cursor, parts = self._cursor, []
        first_seq = cursor.next_seq
        with cursor.ahead():
            for item in self._decode(_piece(relocated(step.events, seconds=seconds, end=end))):
                assert isinstance(item, BinlogRowsItem)
                if (part := self._kept(item, first_seq)) is not None:
                    parts.append(part)
            count = cursor.next_seq - first_seq
        return self._with_unfollowed(PreparedTransaction(tuple(parts), count), step)

    def _with_unfollowed(self, prepared: PreparedTransaction, step: Preparing) -> PreparedTransaction:
        """Return the transaction with the raw events of tables that are not followed now, and the names of other
        tables.
        """
        parked = {t: found for t, found in events_by_table(step.events).items() if not self._maps.wanted(t)}
        kept = {table: self.keeper.keep_events(table, msgpack.packb(found)) for table, found in parked.items()}
        parts = [part for part in prepared.rows if part.table not in parked]
        parts += [PreparedRows(table, "", rows) for table, rows in kept.items() if rows is not None]
        unknown = (*(table for table, rows in kept.items() if rows is None), *step.others, *sorted(self.doubtful))
        return replace(prepared, rows=tuple(parts), unknown=unknown)

    def _kept(self, item: BinlogRowsItem, first_seq: int) -> PreparedRows | None:
        shape = self._maps.schemas.known(item.table)
        if shape is None or not self._maps.wanted(item.table):
            return None  # The rows cannot be trusted, because the table is parked.
        numbered = _with_column(item.batch, "_seq", pc.subtract(item.batch.column("_seq"), pa.scalar(first_seq)))
        rows = self.keeper.keep(replace(item, batch=numbered))
        return None if rows is None else PreparedRows(item.table, version_of(shape), rows)

    def _committed(self, xid: str, prepared: PreparedTransaction, event: bytes) -> Iterator[BinlogRowsItem]:
        cursor, maps, mismatches = self._cursor, self._maps, self._mismatches
        if int(cursor.state[index.S_SKIP]) > 0:
            return
        file, position = cursor.file, cursor.end_of(event)
        millis = int(cursor.state[index.S_TX_MS]) or int.from_bytes(event[:4], "little") * 1000
        first_seq, cursor.next_seq = cursor.next_seq, cursor.next_seq + prepared.count
        for table in filter(maps.wanted, prepared.unknown):
            mismatches.report(
                table,
                PartialRowsError(
                    f"{file}:{position}: XA COMMIT {xid} brings rows of {table} that are not in its snapshot. They "
                    "were prepared while the table was not selected, or while it was parked and a mask hid columns of "
                    "it and there was no pipeline.state_key; so they were not kept. Read the table again: raycdc "
                    "tables "
                    f"resnapshot CONFIG {table}"
                ),
            )
        for part in prepared.rows:
            shape = maps.schemas.known(part.table)
            if not part.version or not maps.wanted(part.table):
                continue
            if shape is None or version_of(shape) != part.version:
                mismatches.report(
                    part.table,
                    PartialRowsError(
                        f"{file}:{position}: XA COMMIT {xid} brings rows of {part.table} that were prepared when it "
                        f"had other columns. Read it again: raycdc tables resnapshot CONFIG {part.table}"
                    ),
                )
                continue
            batch = self._without_skipped(self.keeper.batch(part.rows))
            yield _relocated_item(shape, batch, file, position, millis, first_seq)
        if prepared.rows:
            cursor.skip_rows = 0

    def _unseen(self, xid: str, event: bytes) -> None:
        """Park the followed tables that have rows in an unknown transaction, or may have."""
        cursor, maps = self._cursor, self._maps
        if int(cursor.state[index.S_SKIP]) > 0:
            return
        why = (
            f"{cursor.file}:{cursor.end_of(event)}: XA COMMIT {xid}: the transaction was prepared before the "
            "position this job began at, so its rows were never seen"
        )
        if not self._mismatches.heard:
            raise DataError(f"{why}. To go on, {NEW_STATE}.")
        tables = self.find_prepared(xid, cursor.event_position)
        for table in filter(maps.wanted, maps.schemas.followed if isinstance(tables, str) else tables):
            known = (
                f", and it is unknown if some are of {table}: {tables}"
                if isinstance(tables, str)
                else f"; some are of {table}"
            )
            self._mismatches.report(
                table,
                PartialRowsError(
                    f"{why}{known}. Read the table again: raycdc tables resnapshot CONFIG {table}; or let tables with "
                    'missing rows be read again automatically, with pipeline.on_log_lost = "resnapshot"'
                ),
            )

    def _without_skipped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out the skipped rows. An update counts once, although it has two rows in the batch."""
        skip_rows = self._cursor.skip_rows
        if not skip_rows:
            return batch
        numbers = batch.column("_seq").to_numpy(zero_copy_only=False).copy()
        updates = np.isin(
            batch.column("_op").to_numpy(zero_copy_only=False), (RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER)
        )
        numbers[updates] //= 2
        return part_of(batch, pa.array(numbers >= skip_rows))


def _nobody_knows(_xid: str, _before: BinlogOffset) -> str:
    return "no older log was searched"


def version_of(table: MySqlTable) -> str:
    """Return a hash that changes if rows would be decoded differently."""
    columns = [(c.name, c.column_type, c.charset, c.collation, c.treatment.value) for c in table.columns]
    return hashlib.sha256(repr((columns, table.primary_key, table.row_end)).encode()).hexdigest()[:16]


def ipc_bytes(batch: pa.RecordBatch) -> bytes:
    """Return the batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def batch_of(data: bytes) -> pa.RecordBatch:
    """Return the inverse of `ipc_bytes`."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch().replace_schema_metadata(reader.schema.metadata)


def _relocated_item(
    shape: MySqlTable, batch: pa.RecordBatch, file: str, position: int, millis: int, first_seq: int
) -> BinlogRowsItem:
    """Return the batch as rows of the event that ends at `position`."""
    count = batch.num_rows
    batch = _with_column(batch, "_seq", pc.add(batch.column("_seq"), pa.scalar(first_seq)))
    batch = _with_column(batch, "_ts_ms", pa.array(np.full(count, millis, np.int64)))
    location = pc.replace_substring_regex(batch.column("_pos"), r"^.*:([0-9]+)$", rf"{file}:{position}:\1")
    batch = _with_column(batch, "_pos", location)
    return BinlogRowsItem(shape.id, batch, np.full(count, position, np.int64), count, file, shape, kept=True)


def _with_column(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    number = batch.schema.get_field_index(name)
    return batch.set_column(number, batch.schema.field(number), values)


def _piece(events: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(events, np.uint8)
