"""A log in which nothing happens but that collections begin again: on request, or because rows of an epoch were lost.

It is what a snapshot without a change stream has for a log. A collection that is to begin again
(`raycdc.source.parking`) is looked at when the log is opened: there is no place to wait for, so its new beginning comes
at once, with the columns that the configuration now gives it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.connectors.mongodb.layout import ID, Layout
from raycdc.connectors.mongodb.snapshot.chunk_reader import NO_LOG
from raycdc.model import RowKind, TableId, changelog_schema
from raycdc.schema.events import CreateTableEvent, TruncateTableEvent
from raycdc.source.snapshot.hand_off import LogRows
from raycdc.source.snapshot.log_unit import LogPlace, LogUnit, SchemaChange, SchemaUpdate, TableBegun, TableParked
from raycdc.source.table_life import Parking, Phase, SnapshotState

#: Longest that a log without entries keeps its thread from leaving.
_IDLE_S = 1.0
#: A collection of which no chunk is read. Every document has a key, and none is NULL.
UNREAD = SnapshotState(ID, foldable=True, needs_null=False)


class NewBeginnings:
    """`raycdc.source.snapshot.reading.BlockingLog` of the units that let `wanted` begin again; then silence.

    `look` asks the source for a collection's layout, None where there is none such. It blocks, in the fetcher's thread.
    """

    def __init__(
        self, look: Callable[[TableId], Layout | None], wanted: Iterable[TableId], position: Mapping[str, Any]
    ) -> None:
        self._look = look
        self._waiting = deque(wanted)
        self._position = dict(position)
        self._rows = 0
        self._woken = threading.Event()

    def __repr__(self) -> str:
        return f"NewBeginnings({list(map(str, self._waiting))})"

    def fetch(self) -> LogUnit | None:
        if not self._waiting:
            self._woken.wait(_IDLE_S)
            return None
        table = self._waiting.popleft()
        layout = self._look(table)
        now_ms = time.time_ns() // 1_000_000
        if layout is None:
            why = f"there is no collection {table} any more; the target keeps what it had"
            return self._unit(TableParked(table, Parking(why, self._position, now_ms, phase=Phase.ENDED)))
        update = begins_again(table, layout)
        rows = emptied(table, layout, seq=self._rows, ts_ms=now_ms, ordinal=NO_LOG)
        self._rows += 1
        return self._unit(update, rows)

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Nothing is open."""

    def _unit(self, update: SchemaUpdate, *rows: LogRows) -> LogUnit:
        return SchemaChange(LogPlace(self._position, NO_LOG), (update,), rows)


def emptied(table: TableId, layout: Layout, *, seq: int, ts_ms: int, ordinal: int) -> LogRows:
    """The row that says that all rows of the target are gone. Without a place: no change of a document did it."""
    meta = {"_op": int(RowKind.TRUNCATE), "_seq": seq, "_ts_ms": ts_ms}
    schema = changelog_schema(layout.schema())
    arrays = [pa.array([meta.get(field.name)], field.type) for field in schema]
    return LogRows(table, pa.RecordBatch.from_arrays(arrays, schema=schema), np.array([ordinal], np.int64))


def begins_again(table: TableId, layout: Layout) -> TableBegun:
    """The schema change with which a collection begins again, every chunk of it unread."""
    events = (TruncateTableEvent(table), CreateTableEvent(table, layout.schema()))
    return TableBegun(table, events, layout.document(), UNREAD)
