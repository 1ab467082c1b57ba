"""Row filters applied to the log: what of a batch of changes concerns the rows that are captured.

| before the change | after it | becomes |
|---|---|---|
| captured | captured | itself |
| captured | not | a delete |
| not | captured | an insert |
| not | not | nothing |

Used by the log's fetcher thread, before the hand-off: a chunk's SELECT has the same filter, so the hand-off sees one
and the same table in both phases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from pymysql.connections import Connection

from raycdc.connectors.mysql.connection import close_quietly
from raycdc.connectors.mysql.row_filter import Condition, parse_filter, server_answers
from raycdc.connectors.mysql.types import MySqlTable
from raycdc.errors import SourceUnavailableError
from raycdc.model import RowKind, TableId


class LogFilter:
    """Filters by table; `table_of` gives the schema in force. Opens a connection when text must be compared."""

    def __init__(
        self,
        connect: Callable[[], Connection[Any]],
        filters: Mapping[TableId, str],
        table_of: Callable[[TableId], MySqlTable | None],
    ) -> None:
        self._connect = connect
        self._filters = dict(filters)
        self._table_of = table_of
        self._parsed: dict[TableId, tuple[MySqlTable, Condition]] = {}
        self._connection: Connection[Any] | None = None

    def apply(
        self, table: TableId, batch: pa.RecordBatch, row_pos: np.ndarray
    ) -> tuple[pa.RecordBatch, np.ndarray] | None:
        """What is left of a batch and of the rows' positions; None when nothing is."""
        if table not in self._filters or batch.num_rows == 0:
            return batch, row_pos
        passes = np.asarray(self._condition(table).mask(batch, self._ask).fill_null(fill_value=False))
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
        return None if not passes.any() else (batch.filter(pa.array(passes)), row_pos[passes])

    def text(self, table: TableId) -> str | None:
        """The table's filter as configured, for its schema documents."""
        return self._filters.get(table)

    def close(self) -> None:
        if self._connection is not None:
            close_quietly(self._connection)
            self._connection = None

    def _condition(self, table: TableId) -> Condition:
        described = self._table_of(table)
        assert described is not None, "rows of a table are decoded by its schema"
        known = self._parsed.get(table)
        if known is None or known[0] != described:
            known = self._parsed[table] = (described, parse_filter(described, self._filters[table]))
        return known[1]

    def _ask(self, expressions: list[str]) -> list[Any]:
        """Ask the server; once more over a new connection when it was lost."""
        with suppress(SourceUnavailableError):
            return server_answers(self._open())(expressions)
        self.close()
        return server_answers(self._open())(expressions)

    def _open(self) -> Connection[Any]:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection
