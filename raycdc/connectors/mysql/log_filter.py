"""The captured part of a batch of changes or of a schema change: filters, column lists and current rows, in the log.

| before the change | after it | becomes |
|---|---|---|
| captured | captured | itself |
| captured | not | a delete |
| not | captured | an insert |
| not | not | nothing |

A system-versioned table of MariaDB logs what it does to its history, too: a row that is deleted is updated to one
that is not current any more, and an update writes another row that never was. Only rows that are current count, as in
a SELECT.

Used by the log's fetcher thread, before the hand-off: a chunk's SELECT has the same filter, so the hand-off sees one
and the same table in both phases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from raycdc.clients.mysql import close_quietly
from raycdc.connectors.mysql.binlog.events import RowsItem
from raycdc.connectors.mysql.snapshot.row_filter import Condition, parse_filter, server_answers
from raycdc.connectors.mysql.values.documents import ALL, Capture, document_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SourceUnavailableError
from raycdc.model import META_COLUMNS, RowKind, TableId, part_of
from raycdc.schema.events import (
    AddColumnEvent,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
)
from raycdc.source.snapshot.log_unit import SchemaUpdate, TableAltered, TableBegun


class LogFilter:
    """The captured part by table (others: all of it); `table_of` gives the schema in force.

    Opens a connection when text must be compared.
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

    def captured(self, item: RowsItem) -> RowsItem | None:
        """The captured part of the item; None when there is none. Called while the schema it was decoded by is in
        force.
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
        """The captured columns of a batch."""
        listed = self._captures.get(table, ALL).columns
        if listed is None:
            described = self._table_of(table)
            if described is None or not described.row_end:
                return batch
            listed = tuple(column.name for column in described.columns)
        return batch.select([n for n in batch.schema.names if n in listed or n in META_COLUMNS])

    def update(self, update: SchemaUpdate) -> SchemaUpdate:
        """A schema change as the target sees it; one of columns that are not captured changes nothing there."""
        capture = self._captures.get(update.table, ALL)
        if capture == ALL or not isinstance(update, TableAltered | TableBegun):
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
        # A truncation concerns every row.
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

    def _ask(self, conditions: list[str]) -> list[bool | None]:
        """Ask the server; once more over a new connection when it was lost."""
        with suppress(SourceUnavailableError):
            return server_answers(self._open())(conditions)
        self.close()
        return server_answers(self._open())(conditions)

    def _open(self) -> Connection[Any]:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection


def _current_rows(row_end: pa.Array) -> pa.BooleanArray:
    """Which rows of a system-versioned table are current: those until the last moment its server knows.

    Servers from 11.5 on know moments up to 2106; no row was replaced in the last microsecond of 2038's end.
    """
    ends = pa.array(_ENDS_OF_TIME)  # As text is what source.types.invalid_dates may have, too.
    return pc.is_in(
        row_end, ends.cast(pa.timestamp("us")).cast(row_end.type) if pa.types.is_timestamp(row_end.type) else ends
    )


_ENDS_OF_TIME = ("2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999")


def _column_of(change: SchemaChangeEvent) -> str | None:
    """The column that a schema change is about; None for one about the table."""
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
