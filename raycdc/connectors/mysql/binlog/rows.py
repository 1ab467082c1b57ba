"""Turns listed row events into Arrow batches: the second half of `decoder`.

`RowBatches` decodes the row events that the compiled pass has listed, one table map after the other, then numbers all
rows in log order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog import row_loops
from raycdc.connectors.mysql.binlog import walk_loops as rows
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem
from raycdc.connectors.mysql.binlog.positions.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapPlans, SchemaMismatchReports
from raycdc.connectors.mysql.binlog.tables.table_decoding import (
    CONCERNS_ONE_TABLE,
    Decoding,
    Decodings,
    ReadyMap,
    RowsDamagedError,
    UnnumberedBatch,
    rows_damage,
)
from raycdc.connectors.mysql.values.arena_loops import FULL_NEED, FULL_SLOT
from raycdc.errors import SchemaMismatchError
from raycdc.model import part_of, with_lost_values


class RowBatches:
    """The decoder of listed row events; see the module's docstring. Rows take their numbers from the cursor."""

    def __init__(
        self,
        cursor: BinlogCursor,
        maps: MapPlans,
        decodings: Decodings,
        mismatches: SchemaMismatchReports,
        *,
        with_pos: bool,
    ) -> None:
        #: The end of the event whose rows were damaged, 0 if there is none.
        self.damaged_event_end = 0
        self._cursor = cursor
        self._maps = maps
        self._decodings = decodings
        self._mismatches = mismatches
        self._with_pos = with_pos
        #: The end of the last event whose rows were emitted.
        self.last_rows = BinlogOffset("", 0)

    def flush(self, data: npt.NDArray[np.uint8], events: npt.NDArray[np.int64]) -> Iterator[BinlogRowsItem]:
        """Decode the listed events, one table map after the other, and number all rows in log order."""
        if len(events) == 0:
            return
        cursor = self._cursor
        self.last_rows = BinlogOffset(cursor.file, int(events[-1, index.E_POS]))
        numbers = events[:, index.E_MAP]
        parts: list[UnnumberedBatch] = []
        try:
            for number in np.unique(numbers).tolist():
                self._decode(data, events, np.flatnonzero(numbers == number), self._maps.ready[number], parts)
        except RowsDamagedError as damage:
            # Rows of all tables before the damage are still emitted; then the error follows.
            if isinstance(damage.error, CONCERNS_ONE_TABLE) and self._mismatches.heard:
                yield from self._without_table(data, damage, events)
                return
            yield from self.flush(data, events[: damage.event])
            self.damaged_event_end = self.damaged_event_end or int(events[damage.event, index.E_POS])
            raise damage.error from None
        event_seq = np.empty(len(events), np.int64)
        cursor.next_seq = int(row_loops.number_rows(events, len(events), cursor.next_seq, event_seq))
        for part in parts:
            item = self._finish(part, events, event_seq)
            if cursor.skip_rows:
                item = self._without_skipped(item, part)
            yield item
        cursor.skip_rows = 0

    def _without_table(
        self, data: npt.NDArray[np.uint8], damage: RowsDamagedError, events: npt.NDArray[np.int64]
    ) -> Iterator[BinlogRowsItem]:
        """Yield the rows of `flush`. Of the table with damaged rows, yield only the rows before the damage."""
        table = self._maps.ready[int(events[damage.event, index.E_MAP])].table
        start = int(events[damage.event, index.E_FROM])
        yield from self.flush(data, events[: damage.event])
        self._maps.pass_over(table)
        self._mismatches.report(table, damage.error, BinlogOffset(self._cursor.file, start))
        later = events[damage.event + 1 :]
        yield from self.flush(data, later[np.isin(later[:, index.E_MAP], list(self._maps.ready))])

    def _without_skipped(self, item: BinlogRowsItem, part: UnnumberedBatch) -> BinlogRowsItem:
        """Leave out the first rows of the first event. An update counts once, although it has two rows in the batch."""
        numbers = part.row_number.copy()
        updates = np.isin(part.op, (1, 2))
        numbers[updates] //= 2
        keep = (part.row_event != 0) | (numbers >= self._cursor.skip_rows)
        batch = part_of(item.batch, pa.array(keep))
        return replace(item, batch=batch, row_pos=item.row_pos[keep], rows=int(keep.sum()))

    def _decode(
        self,
        data: npt.NDArray[np.uint8],
        events: npt.NDArray[np.int64],
        order: npt.NDArray[np.int64],
        table_map: ReadyMap,
        parts: list[UnnumberedBatch],
    ) -> None:
        """Decode the events of one table map into finished parts. Raises `RowsDamagedError`."""
        decoding, plan, scratch = table_map.decoding, table_map.plan, table_map.scratch
        cursor = np.zeros(rows.C_SIZE, np.int64)
        while True:
            arena = decoding.arena
            code = row_loops.decode_rows(
                data, events, order, plan.steps, plan.optional, plan.targets, plan.plan, scratch.present, scratch.at,
                scratch.size, arena.view, arena.limits, decoding.op, decoding.row_event, decoding.row_number, cursor,
            )  # fmt: skip
            done = int(cursor[rows.C_ROWS])
            if code == rows.ROWS_TEXT:
                need, slot = int(arena.view.counters[FULL_NEED]), int(arena.view.counters[FULL_SLOT])
                if done == 0 or int(cursor[rows.C_TEXT]) < arena.bytes_max // 2:
                    arena.grow(slot, need, done)
                    continue
            elif code not in (rows.ROWS_END, rows.ROWS_FULL):
                arena.reset()
                raise rows_damage(
                    int(code), events, cursor, table_map, file=self._cursor.file, proven=self._cursor.proven
                )
            if done:
                parts.append(_taken(decoding, done))
                cursor[rows.C_ROWS] = cursor[rows.C_TEXT] = 0
            if code == rows.ROWS_END:
                return
            if code == rows.ROWS_FULL:
                self._decodings.enlarge(decoding)

    def _finish(
        self, part: UnnumberedBatch, events: npt.NDArray[np.int64], event_seq: npt.NDArray[np.int64]
    ) -> BinlogRowsItem:
        """Return the finished item, with the metadata columns added."""
        file, count = self._cursor.file, len(part.op)
        seq, millis, positions = (np.empty(count, np.int64) for _ in range(3))
        row_loops.row_metadata(events, event_seq, part.row_event, part.row_number, seq, millis, positions)
        added = [
            pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(part.op)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(seq)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(millis)]),
            _positions(file, positions, part.row_number) if self._with_pos else pa.nulls(count, pa.string()),
        ]
        batch = pa.RecordBatch.from_arrays([*part.arrays, *added], schema=part.schema)
        if part.lost:
            batch = with_lost_values(batch, part.lost)
        return BinlogRowsItem(part.table.id, batch, positions, count, file, part.table)


def _taken(decoding: Decoding, count: int) -> UnnumberedBatch:
    """Return the result of `Decoding.take`. Raises `RowsDamagedError` for the first event if rows cannot be decoded."""
    event = int(decoding.row_event[0])
    try:
        return decoding.take(count)
    except SchemaMismatchError as error:
        decoding.arena.reset()
        raise RowsDamagedError(event, error) from None


def _positions(file: str, positions: npt.NDArray[np.int64], row_number: npt.NDArray[np.int64]) -> pa.Array:
    name = np.frombuffer(file.encode(), np.uint8)
    offsets = np.empty(len(positions) + 1, np.int32)
    out = np.empty(len(positions) * (len(name) + 42), np.uint8)
    used = int(row_loops.position_texts(name, positions, row_number, offsets, out))
    return pa.Array.from_buffers(
        pa.string(), len(positions), [None, pa.py_buffer(offsets), pa.py_buffer(out[:used].copy())]
    )
