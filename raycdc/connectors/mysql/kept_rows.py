"""Rows of prepared XA transactions, as positions keep them: captured ones alone, and nothing of them in the clear.

The log's fetcher thread calls it at XA PREPARE, while the schema is in force that the rows were decoded with. Rows are
masked as segments are. Those of a table that is cut into chunks by a masked column are encrypted instead: at XA COMMIT
the hand-off looks for their chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import pyarrow as pa

from raycdc.connectors.mysql.binlog.events import RowsItem
from raycdc.connectors.mysql.binlog.xa_rows import batch_of, ipc_bytes
from raycdc.connectors.mysql.log_filter import LogFilter
from raycdc.model import TableId
from raycdc.model.state_key import is_sealed
from raycdc.transform.hiding import Hiding


class KeptRows:
    """`raycdc.connectors.mysql.binlog.xa_rows.RowKeeper`; `cut_by` are the columns that a table may be cut by."""

    def __init__(
        self, hiding: Hiding, cut_by: Callable[[TableId], Collection[str]], row_filter: LogFilter | None
    ) -> None:
        self._hiding = hiding
        self._cut_by = cut_by
        self._row_filter = row_filter

    def keep(self, item: RowsItem) -> bytes | None:
        captured = item if self._row_filter is None else self._row_filter.captured(item)
        if captured is None or not captured.batch.num_rows:
            return None
        if self._hiding.hides(item.table, self._cut_by(item.table)):
            return self._hiding.seal(item.table, ipc_bytes(captured.batch)).encode()
        return ipc_bytes(self._hiding.batch(item.table, captured.batch))

    def batch(self, kept: bytes) -> pa.RecordBatch:
        return batch_of(self._opened(kept))

    def keep_events(self, table: TableId, events: bytes) -> bytes | None:
        if not self._hiding.concerns(table):
            return events
        return None if self._hiding.state_key is None else self._hiding.seal(table, events).encode()

    def events(self, kept: bytes) -> bytes:
        return self._opened(kept)

    def _opened(self, kept: bytes) -> bytes:
        return self._hiding.open(kept.decode()) if is_sealed(kept[:16].decode("ascii", "replace")) else kept
