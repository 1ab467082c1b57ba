"""Listed row events in, Arrow batches out: the second half of `decoder`.

`RowBatches` owns the list that the compiled pass fills, and what is known per table map. It decodes one table map
after the other, then numbers all rows in log order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog import row_loops as binlog_row_loops
from raycdc.connectors.mysql.binlog import row_metadata_loops as metadata
from raycdc.connectors.mysql.binlog import walk_loops as rows
from raycdc.connectors.mysql.binlog.events import RowsItem
from raycdc.connectors.mysql.binlog.plan import Scratch
from raycdc.connectors.mysql.binlog.table_decoding import Decoding, Part, ReadyMap, RowsDamagedError, rows_damage
from raycdc.connectors.mysql.values.arena_loops import FULL_NEED, FULL_SLOT
from raycdc.connectors.mysql.values.columns import TableArena
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, PartialRowsError
from raycdc.model import TableId, part_of, with_lost_values

#: Row events listed before they are decoded: 72 bytes each, so 4.5 MiB of list at most.
_EVENTS_FIRST = 4096
_EVENTS_MAX = 65_536


class RowBatches:
    """See the module's docstring. `maps` holds the table maps of wanted tables by their registered number."""

    def __init__(self, *, rows_max: int, bytes_max: int, with_pos: bool) -> None:
        self.events = np.zeros((_EVENTS_FIRST, index.E_SIZE), np.int64)
        self.maps: dict[int, ReadyMap] = {}
        #: Table maps whose rows are not wanted: a table may be wanted again.
        self._passed_over: dict[TableId, list[int]] = {}
        self.next_seq = 0
        #: End of the event whose rows were damaged, 0 while there is none.
        self.damaged_event_end = 0
        #: Rows of the next event that are left out.
        self.skip_rows = 0
        self._limits = (rows_max, bytes_max)
        self._with_pos = with_pos
        #: Told of rows that are not whole, and where the transaction before them ended: of their table nothing is
        #: decoded then before it has another schema. None: they are an error.
        self.on_partial: Callable[[TableId, DataError, int], None] | None = None
        self._decodings: dict[TableId, Decoding] = {}
        self._scratch: dict[int, Scratch] = {}
        self._zero_dates = self._replaced = 0

    def take_seq(self) -> int:
        """The next `_seq`, for a row made here."""
        self.next_seq += 1
        return self.next_seq - 1

    def statistics(self) -> dict[str, int]:
        arenas = [d.arena for d in self._decodings.values()]
        return {
            "rows": self.next_seq,
            "zero_dates": self._zero_dates + sum(a.zero_dates for a in arenas),
            "replaced": self._replaced + sum(a.replaced for a in arenas),
        }

    def grow(self) -> bool:
        """A longer list of events, unless it is as long as it may be."""
        if len(self.events) >= _EVENTS_MAX:
            return False
        self.events = np.concatenate([self.events, np.zeros_like(self.events)])
        return True

    def decoding(self, table: MySqlTable) -> Decoding:
        """Where rows of this version of the table are decoded into."""
        decoding = self._decodings.get(table.id)
        if decoding is None or decoding.table != table:
            decoding = Decoding.start(table, *self._limits)
            self._decodings[table.id] = decoding
        return decoding

    def scratch(self, columns: int) -> Scratch:
        """Memory shared by all table maps with this many columns: one is decoded at a time."""
        if columns not in self._scratch:
            self._scratch[columns] = Scratch.of(columns)
        return self._scratch[columns]

    def know(self, number: int, table: TableId, ready: ReadyMap | None) -> None:
        """Table map `number` is one of `table`; None: its rows are passed over."""
        if ready is not None:
            self.maps[number] = ready
        else:
            self._passed_over.setdefault(table, []).append(number)

    def forget(self, table: TableId) -> list[int]:
        """Drop what is known of a table; returns the numbers of its table maps, those passed over too."""
        numbers = [number for number, known in self.maps.items() if known.table == table]
        for number in numbers:
            del self.maps[number]
        numbers += self._passed_over.pop(table, ())
        gone = self._decodings.pop(table, None)
        if gone is not None:
            self._count_losses(gone.arena)
        return numbers

    def flush(self, data: npt.NDArray[np.uint8], count: int, *, file: str) -> Iterator[RowsItem]:
        """Decode the first `count` listed events, one table map after the other, and number all rows in log order."""
        if count == 0:
            return
        events = self.events[:count]
        numbers = events[:, index.E_MAP]
        parts: list[Part] = []
        try:
            for number in np.unique(numbers).tolist():
                self._decode(data, events, np.flatnonzero(numbers == number), self.maps[number], parts, file=file)
        except RowsDamagedError as damage:
            # Rows of all tables before the damage still count; then the error follows.
            if isinstance(damage.error, PartialRowsError) and self.on_partial is not None:
                yield from self._without_table(data, damage, events, file=file)
                return
            yield from self.flush(data, damage.event, file=file)
            self.damaged_event_end = self.damaged_event_end or int(events[damage.event, index.E_POS])
            raise damage.error from None
        event_seq = np.empty(count, np.int64)
        self.next_seq = int(metadata.number_rows(events, count, self.next_seq, event_seq))
        for part in parts:
            item = self._finish(part, events, event_seq, file=file)
            if self.skip_rows:
                item = self._without_skipped(item, part)
            yield item
        self.skip_rows = 0

    def _without_table(
        self, data: npt.NDArray[np.uint8], damage: RowsDamagedError, events: npt.NDArray[np.int64], *, file: str
    ) -> Iterator[RowsItem]:
        """`flush`, but of the table whose rows are not whole what precedes these alone."""
        assert self.on_partial is not None
        table = self.maps[int(events[damage.event, index.E_MAP])].table
        start = int(events[damage.event, index.E_FROM])
        later = events[damage.event + 1 :].copy()
        yield from self.flush(data, damage.event, file=file)
        self.on_partial(table, damage.error, start)
        left = later[np.isin(later[:, index.E_MAP], list(self.maps))]
        self.events[: len(left)] = left
        yield from self.flush(data, len(left), file=file)

    def pass_over(self, table: TableId) -> list[int]:
        """Rows of the table are of no use from here; returns the numbers of its table maps."""
        numbers = [number for number, known in self.maps.items() if known.table == table]
        for number in numbers:
            del self.maps[number]
        self._passed_over.setdefault(table, []).extend(numbers)
        return numbers

    def _without_skipped(self, item: RowsItem, part: Part) -> RowsItem:
        """Leave out the first rows of the first event; an update counts once, as two rows of the batch."""
        numbers = part.row_number.copy()
        updates = np.isin(part.op, (1, 2))
        numbers[updates] //= 2
        keep = (part.row_event != 0) | (numbers >= self.skip_rows)
        kept = part_of(item.batch, pa.array(keep))
        return replace(item, batch=kept, row_pos=item.row_pos[keep], rows=int(keep.sum()))

    def _decode(
        self,
        data: npt.NDArray[np.uint8],
        events: npt.NDArray[np.int64],
        order: npt.NDArray[np.int64],
        table_map: ReadyMap,
        parts: list[Part],
        *,
        file: str,
    ) -> None:
        """Decode the events of one table map into finished parts. Raises `RowsDamagedError`."""
        decoding, plan, scratch = table_map.decoding, table_map.plan, table_map.scratch
        cursor = np.zeros(rows.C_SIZE, np.int64)
        while True:
            arena = decoding.arena
            code = binlog_row_loops.decode_rows(
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
                raise rows_damage(int(code), events, cursor, table_map, file=file)
            if done:
                parts.append(decoding.take(done))
                cursor[rows.C_ROWS] = cursor[rows.C_TEXT] = 0
            if code == rows.ROWS_END:
                return
            if code == rows.ROWS_FULL:
                self._count_losses(arena)
                decoding.enlarge(*self._limits)

    def _finish(
        self, part: Part, events: npt.NDArray[np.int64], event_seq: npt.NDArray[np.int64], *, file: str
    ) -> RowsItem:
        """Add the metadata columns."""
        count = len(part.op)
        seq, millis, positions = (np.empty(count, np.int64) for _ in range(3))
        metadata.row_metadata(events, event_seq, part.row_event, part.row_number, seq, millis, positions)
        added = [
            pa.Array.from_buffers(pa.int8(), count, [None, pa.py_buffer(part.op)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(seq)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(millis)]),
            _positions(file, positions, part.row_number) if self._with_pos else pa.nulls(count, pa.string()),
        ]
        batch = pa.RecordBatch.from_arrays([*part.arrays, *added], schema=part.schema)
        if part.lost:
            batch = with_lost_values(batch, part.lost)
        return RowsItem(part.table.id, batch, positions, count, file, part.table)

    def _count_losses(self, arena: TableArena) -> None:
        self._zero_dates += arena.zero_dates
        self._replaced += arena.replaced


def _positions(file: str, positions: npt.NDArray[np.int64], row_number: npt.NDArray[np.int64]) -> pa.Array:
    name = np.frombuffer(file.encode(), np.uint8)
    offsets = np.empty(len(positions) + 1, np.int32)
    out = np.empty(len(positions) * (len(name) + 42), np.uint8)
    used = int(metadata.position_texts(name, positions, row_number, offsets, out))
    return pa.Array.from_buffers(
        pa.string(), len(positions), [None, pa.py_buffer(offsets), pa.py_buffer(out[:used].copy())]
    )
