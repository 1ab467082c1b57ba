"""Reduces the log's rows and schema changes to the captured part, by filters, column lists, masks and current rows.

| before the change | after it | becomes |
|---|---|---|
| captured | captured | itself |
| captured | not | a delete |
| not | captured | an insert |
| not | not | nothing |

A system-versioned table of MariaDB also logs changes of its history: a deletion is logged as an update to a row that is
not current any more, and an update also inserts the old row, which is not current, either. Only current rows count, as
in a SELECT.

`LogFilter` runs in the log's fetcher thread, before the hand-off. A chunk's SELECT has the same filter, so the hand-off
of snapshot and log gets the same rows from both.

`KeptRows` stores the captured rows of prepared XA transactions in positions, without values that must be masked. It
stores the rows at XA PREPARE, while the schema by which the rows were decoded is in force. Rows are masked like
segments. If a table's chunk key is masked, its rows are encrypted instead, because the hand-off needs the key at XA
COMMIT.

Schema changes, reasons for parking, and the schemas with which the enumerator begins are redacted here, too: no schema
has a default of a masked column, and no text has a statement's values. Such defaults are also removed from tables of
schema change tools. If such a default is needed after a restart, the table is resnapshotted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from raycdc.clients.mysql import close_quietly
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem, DdlItem
from raycdc.connectors.mysql.binlog.xa_rows import batch_of, ipc_bytes
from raycdc.connectors.mysql.ddl.follow.history_state import HistoryState
from raycdc.connectors.mysql.ddl.shadows import Shadow
from raycdc.connectors.mysql.snapshot.row_filter import Condition, parse_filter, server_answers
from raycdc.connectors.mysql.values.documents import ALL, Capture, capture_of, document_of, table_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, SchemaError, SourceUnavailableError
from raycdc.model import META_COLUMNS, RowKind, TableId, part_of
from raycdc.model.evolution.events import (
    AddColumnEvent,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
)
from raycdc.model.redaction import without_values
from raycdc.model.rules.mask import Masks
from raycdc.model.state_key import is_sealed
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    BeginTableUpdate,
    DropTableUpdate,
    ParkTableUpdate,
    SchemaUpdate,
)
from raycdc.transform.masks import Masking, redacted_changes


class LogFilter:
    """The filter of captured rows. A table without an entry in `captures` is captured completely.

    `table_of` returns the schema in force. A connection is opened if text must be compared.
    """

    def __init__(
        self,
        connect: Callable[[], Connection[Any]],
        captures: Mapping[TableId, Capture],
        table_of: Callable[[TableId], MySqlTable | None],
    ) -> None:
        self._connect = connect
        self._captures = dict(captures)
        self._table_of = table_of
        self._parsed: dict[TableId, tuple[MySqlTable, Condition]] = {}
        self._connection: Connection[Any] | None = None

    def captured(self, item: BinlogRowsItem) -> BinlogRowsItem | None:
        """Return the captured part of the item; None if there is none.

        Called while the schema with which the item was decoded is in force.
        """
        described, capture = self._table_of(item.table), self._captures.get(item.table, ALL)
        assert described is not None, "rows of a table are decoded by its schema"
        batch, row_pos = item.batch, item.row_pos
        if (capture.filter is not None or described.row_end) and batch.num_rows:
            rest = self._filtered(described, capture, batch, row_pos)
            if rest is None:
                return None
            batch, row_pos = rest
        return replace(item, batch=self.narrowed(item.table, batch), row_pos=row_pos)

    def narrowed(self, table: TableId, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the captured columns only."""
        listed = self._captures.get(table, ALL).columns
        if listed is None:
            described = self._table_of(table)
            if described is None or not described.row_end:
                return batch
            listed = tuple(column.name for column in described.columns)
        return batch.select([n for n in batch.schema.names if n in listed or n in META_COLUMNS])

    def update(self, update: SchemaUpdate) -> SchemaUpdate:
        """Return a schema change as the target sees it; changes of columns that are not captured are removed."""
        capture = self._captures.get(update.table, ALL)
        if capture == ALL or not isinstance(update, AlterTableUpdate | BeginTableUpdate):
            return update
        described = self._table_of(update.table)
        if described is None:
            return update
        listed = capture.columns
        changes = tuple(c for c in update.changes if listed is None or _column_of(c) in (None, *listed))
        return replace(update, changes=changes, document=document_of(described, capture))

    def _filtered(
        self, table: MySqlTable, capture: Capture, batch: pa.RecordBatch, row_pos: np.ndarray
    ) -> tuple[pa.RecordBatch, np.ndarray] | None:
        passes = np.ones(batch.num_rows, np.bool_)
        if table.row_end:
            passes &= np.asarray(_current_rows(batch.column(table.row_end)))
        if capture.filter is not None:
            condition = self._condition(table, capture.filter)
            passes &= np.asarray(condition.mask(batch, self._ask).fill_null(fill_value=False))
        op_index = batch.schema.get_field_index("_op")
        ops = batch.column(op_index).to_numpy(zero_copy_only=False)
        before = np.flatnonzero(ops == RowKind.UPDATE_BEFORE)
        leaves = before[passes[before] & ~passes[before + 1]]
        enters = before[~passes[before] & passes[before + 1]] + 1
        if leaves.size or enters.size:
            ops = ops.copy()
            ops[leaves] = RowKind.DELETE
            ops[enters] = RowKind.INSERT
            batch = batch.set_column(op_index, batch.schema.field(op_index), pa.array(ops, pa.int8()))
        # A truncation concerns all rows, so it always passes.
        passes = passes | (ops == RowKind.TRUNCATE)
        if passes.all():
            return batch, row_pos
        return None if not passes.any() else (part_of(batch, pa.array(passes)), row_pos[passes])

    def close(self) -> None:
        if self._connection is not None:
            close_quietly(self._connection)
            self._connection = None

    def _condition(self, table: MySqlTable, text: str) -> Condition:
        parsed = self._parsed.get(table.id)
        if parsed is None or parsed[0] != table:
            parsed = self._parsed[table.id] = (table, parse_filter(table, text))
        return parsed[1]

    def _ask(self, conditions: list[str], prepared: Sequence[str]) -> list[bool | None]:
        """Evaluate conditions on the server. If the connection was lost, try once more with a new one."""
        with suppress(SourceUnavailableError):
            return server_answers(self._open())(conditions, prepared)
        self.close()
        return server_answers(self._open())(conditions, prepared)

    def _open(self) -> Connection[Any]:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection


def _current_rows(row_end: pa.Array) -> pa.BooleanArray:
    """Return which rows of a system-versioned table are current: the rows that are valid until the server's last time
    value.

    Servers from 11.5 on have times up to 2106; no row was replaced in the last microsecond of 2038's range.
    """
    ends = pa.array(_ENDS_OF_TIME)  # The column is text if source.types.invalid_dates is "text".
    return pc.is_in(
        row_end, ends.cast(pa.timestamp("us")).cast(row_end.type) if pa.types.is_timestamp(row_end.type) else ends
    )


_ENDS_OF_TIME = ("2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999")


def _column_of(change: SchemaChangeEvent) -> str | None:
    """Return the column that a schema change concerns; None for a change of the table."""
    match change:
        case AddColumnEvent(_, column):
            return column.name
        case (
            DropColumnEvent(_, name)
            | RenameColumnEvent(_, name)
            | AlterColumnTypeEvent(_, name)
            | AlterColumnPositionEvent(_, name)
        ):
            return name
        case _:
            return None


class KeptRows:
    """A `RowKeeper` that stores captured rows, masked or encrypted.

    `cut_by` returns the columns that may be a table's chunk key.
    """

    def __init__(
        self, masking: Masking, cut_by: Callable[[TableId], Collection[str]], row_filter: LogFilter | None
    ) -> None:
        self._masking = masking
        self._cut_by = cut_by
        self._row_filter = row_filter

    def keep(self, item: BinlogRowsItem) -> bytes | None:
        captured = item if self._row_filter is None else self._row_filter.captured(item)
        if captured is None or not captured.batch.num_rows:
            return None
        if self._masking.masks_any(item.table, self._cut_by(item.table)):
            return self._masking.seal(item.table, ipc_bytes(captured.batch)).encode()
        return ipc_bytes(self._masking.batch(item.table, captured.batch))

    def batch(self, kept: bytes) -> pa.RecordBatch:
        return batch_of(self._opened(kept))

    def keep_events(self, table: TableId, events: bytes) -> bytes | None:
        if not self._masking.concerns(table):
            return events
        return None if self._masking.state_key is None else self._masking.seal(table, events).encode()

    def events(self, kept: bytes) -> bytes:
        return self._opened(kept)

    def _opened(self, kept: bytes) -> bytes:
        return self._masking.open(kept.decode()) if is_sealed(kept[:16].decode("ascii", "replace")) else kept


_NOT_KEPT = "a default that a mask hides, and that the state does not keep"


def redacted_table(table: MySqlTable, masks: Masks, owner: TableId | None = None) -> MySqlTable:
    """Return the table without defaults that masks hide. If it will replace `owner`, the masks of `owner` apply."""
    if not masks:
        return table
    return replace(
        table,
        columns=tuple(
            column if column.default is None or masks.of(owner or table.id, column.name) is None
            else replace(column, default=None)
            for column in table.columns
        ),
    )  # fmt: skip


def redacted_document(document: SchemaDocument, masks: Masks) -> SchemaDocument:
    """Return the schema document without defaults that masks hide."""
    table = table_of(document)
    hidden = redacted_table(table, masks)
    return document if hidden == table else document_of(hidden, capture_of(document))


def redacted_update(update: SchemaUpdate, masking: Masking, statement: str) -> SchemaUpdate:
    """Return a change made by `statement` without the values that masks hide."""
    masks = masking.masks
    if not masks:
        return update
    match update:
        case ParkTableUpdate(table, parking):
            if not masking.concerns(table):
                return update
            return ParkTableUpdate(table, replace(parking, reason=without_values(parking.reason, statement)))
        case DropTableUpdate(table, changes):
            return DropTableUpdate(table, redacted_changes(table, changes, masks))
        case AlterTableUpdate(table, changes, document):
            return AlterTableUpdate(table, redacted_changes(table, changes, masks), redacted_document(document, masks))
        case BeginTableUpdate(table, changes, document, snapshot):
            return BeginTableUpdate(
                table, redacted_changes(table, changes, masks), redacted_document(document, masks), snapshot
            )
        case _:
            assert_never(update)


def redacted_state(state: HistoryState, masks: Masks) -> HistoryState:
    """Return the state without defaults that masks hide, which tables of schema change tools may have."""
    if not masks or not state.shadows:
        return state
    return replace(state, shadows={name: redacted_shadow(shadow, masks) for name, shadow in state.shadows.items()})


def redacted_shadow(shadow: Shadow, masks: Masks) -> Shadow:
    """Return a tool's table without the defaults that masks hide in the table that it will replace."""
    owner = shadow.owner
    lost = [n for n, value in shadow.filled.items() if value is not None and masks.of(owner, n) is not None]
    return replace(
        shadow,
        table=None if shadow.table is None else redacted_table(shadow.table, masks, owner),
        filled={**shadow.filled, **dict.fromkeys(lost)},
        computed={**shadow.computed, **dict.fromkeys(lost, _NOT_KEPT)},
    )


def without_values_in_errors(on_ddl: Callable[[DdlItem], None], masking: Masking) -> Callable[[DdlItem], None]:
    """Return `on_ddl` with errors that have no values of the statement."""

    def apply(item: DdlItem) -> None:
        try:
            on_ddl(item)
        except (SchemaError, DataError) as cause:
            kind = SchemaError if isinstance(cause, SchemaError) else DataError
            raise kind(without_values(str(cause), item.statement)) from None

    return apply if masking.masks else on_ddl
