"""An arena is a set of reusable buffers for the rows of one table, which compiled loops fill in Arrow's layout.

The value of column ``c`` in row ``r`` is stored as follows. A number of any type is the word ``i64[base + r]``; a
number of 128 bits is two words from ``base + 2r`` on. The number gets its type when the batch is made. A text begins at
``vdata[begin + voff[s, r]]`` and ends at ``voff[s, r + 1]``, where ``s`` is the slot of the column. A null has
``valid[c, r] = 0``. `ArenaView.col` has, for each column, its base, its slot and its kind. Buffers grow on request and
never shrink. No Python object exists per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.formats.loops import code_loops as cells
from raycdc.formats.loops.row_loops import ArenaView
from raycdc.model import LogicalType, TypeKind
from raycdc.model.batch import BATCH_ROWS_MAX

#: The initial capacity in rows, and in bytes of each text column.
_ROWS_FIRST = 1024
_TEXT_BYTES_FIRST = 16 << 10
#: The largest int32 offset that Arrow supports.
_TEXT_BYTES_MAX = (1 << 31) - 1

_INTEGERS = {TypeKind.INT8: 1, TypeKind.INT16: 2, TypeKind.INT32: 4, TypeKind.INT64: 8, TypeKind.YEAR: 2}
_SIMPLE: dict[TypeKind, int] = {
    TypeKind.BOOLEAN: cells.K_BOOL,
    TypeKind.FLOAT32: cells.K_FLOAT32,
    TypeKind.FLOAT64: cells.K_FLOAT64,
    TypeKind.DATE: cells.K_DATE,
    TypeKind.DATETIME: cells.K_MOMENT,
    TypeKind.TIMESTAMP: cells.K_MOMENT,
    TypeKind.STRING: cells.K_TEXT,
    TypeKind.ENUM: cells.K_TEXT,
    TypeKind.SET: cells.K_SET,
    TypeKind.BINARY: cells.K_BYTES,
    TypeKind.TIME: cells.K_TIME,
    TypeKind.JSON: cells.K_JSON,
}


@dataclass(frozen=True, slots=True)
class WireColumn:
    """A column in a format's representation: `wire` is one of `code_loops.WIRE_…`.

    `labels` are those of an ENUM or SET column whose values may be ordinals (`WIRE_ORDINAL`, `WIRE_NUMBER`). If the
    column is added to a table, its existing rows get the value `default` (None: null). If `unclear` is not empty, that
    value is unknown, and the text says why.
    """

    name: str
    type: LogicalType
    wire: int = cells.WIRE_PLAIN
    labels: tuple[str, ...] = ()
    default: str | None = None
    unclear: str = ""


class Arena:
    """The buffers for rows of one table in one version of its columns. For one thread at a time."""

    def __init__(self, columns: Sequence[WireColumn]) -> None:
        self.columns = tuple(columns)
        self._types = [column.type.arrow() for column in self.columns]
        count = len(self.columns)
        self._col = np.zeros((max(count, 1), 8), np.int64)
        slots = 0
        table = _LabelTable()
        for c, column in enumerate(self.columns):
            kind, p1, p2, wide = _plan(column.type)
            if column.wire in (cells.WIRE_ORDINAL, cells.WIRE_NUMBER):
                p1, p2 = table.add(column.labels), len(column.labels)
            self._col[c] = (kind, p1, p2, column.wire, 0, slots if kind >= cells.K_TEXT else -1, 0, wide)
            slots += kind >= cells.K_TEXT
        self._labels = table.arrays()
        self._text_count = slots
        self._rooms = np.full(max(slots, 1), _TEXT_BYTES_FIRST, np.int64)
        self._counters = np.zeros(8, np.int64)
        self.view = self._view(_ROWS_FIRST)

    @property
    def rows(self) -> int:
        return int(self._counters[cells.ROWS])

    @property
    def rows_wanted(self) -> int:
        """Return the number of additional rows that the loop needs, after it stopped because of them."""
        return int(self._counters[cells.FULL_NEED])

    @property
    def text_bytes(self) -> int:
        return int(self.view.voff[:, self.rows].sum()) if self._text_count else 0

    @property
    def zero_dates(self) -> int:
        return int(self._counters[cells.ZERO_DATES])

    def unfit(self) -> WireColumn:
        """Return the column of the loop's last error."""
        return self.columns[int(self._counters[cells.ERROR_COLUMN])]

    def grow_rows(self, rows: int) -> None:
        """Make room for at least `rows` rows. Replaces `view`."""
        old, old_base, held = self.view, self._col[:, cells.C_BASE].copy(), self.rows
        self.view = self._view(max(rows, 2 * len(old.meta)), old.vdata)
        for c in range(len(self.columns)):
            words = held * (2 if self._col[c, cells.C_WIDE] else 1)
            if self._col[c, cells.C_KIND] < cells.K_TEXT:
                start = int(self._col[c, cells.C_BASE])
                self.view.i64[start : start + words] = old.i64[old_base[c] : old_base[c] + words]
        self.view.valid[:, :held] = old.valid[:, :held]
        self.view.voff[:, : held + 1] = old.voff[:, : held + 1]
        self.view.meta[:held] = old.meta[:held]

    def grow_text(self) -> None:
        """Make as much room as the loop requested in the counters.

        Replaces `view`. Raises ValueError if Arrow's offsets cannot address so much.
        """
        slot, need = int(self._counters[cells.FULL_SLOT]), int(self._counters[cells.FULL_NEED])
        if need > _TEXT_BYTES_MAX:
            raise ValueError(f"a column of {need} bytes is longer than a batch can hold")
        old, held = self.view, self.rows
        self._rooms[slot] = min(max(need, 2 * int(self._rooms[slot])), _TEXT_BYTES_MAX)
        slots, vdata = self._slots()
        for s in range(self._text_count):
            used, start, end = int(old.voff[s, held]), int(slots[s, cells.S_BASE]), int(old.slot[s, cells.S_BASE])
            vdata[start : start + used] = old.vdata[end : end + used]
        self.view = old._replace(vdata=vdata, slot=slots)

    def take(self) -> list[pa.Array]:
        """Return all rows as Arrow arrays that own their memory, and empty the arena."""
        rows = self.rows
        arrays = [self._array(c, rows) for c in range(len(self.columns))]
        self.view.valid[:] = 1
        self._col[:, cells.C_HAS_NULL] = 0
        self._counters[cells.ROWS] = 0
        return arrays

    def _slots(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        slots = np.stack([np.cumsum(self._rooms) - self._rooms, self._rooms], axis=1)
        return slots, np.empty(int(self._rooms.sum()) + 64, np.uint8)

    def _view(self, rows: int, vdata: npt.NDArray[np.uint8] | None = None) -> ArenaView:
        words = np.where(self._col[:, cells.C_KIND] < cells.K_TEXT, 1 + self._col[:, cells.C_WIDE], 0) * rows
        self._col[:, cells.C_BASE] = np.cumsum(words) - words
        slots, fresh = self._slots()
        return ArenaView(
            col=self._col,
            i64=np.zeros(max(int(words.sum()), 1), np.int64),
            valid=np.ones((len(self._col), rows), np.uint8),
            voff=np.zeros((len(self._rooms), rows + 1), np.int32),
            vdata=fresh if vdata is None else vdata,
            slot=slots,
            counters=self._counters,
            meta=np.zeros((rows, 5), np.int64),
            labels=self._labels[0],
            label=self._labels[1],
        )

    def _array(self, column: int, rows: int) -> pa.Array:
        view, type_ = self.view, self._types[column]
        kind, wide = int(self._col[column, cells.C_KIND]), int(self._col[column, cells.C_WIDE])
        nulls, bitmap = 0, None
        if self._col[column, cells.C_HAS_NULL]:
            valid = view.valid[column, :rows]
            nulls = rows - int(np.count_nonzero(valid))
            bitmap = _buffer(np.packbits(valid, bitorder="little")) if nulls else None
        if kind >= cells.K_TEXT:
            slot = int(self._col[column, cells.C_SLOT])
            start, used = int(view.slot[slot, cells.S_BASE]), int(view.voff[slot, rows])
            parts = [bitmap, _buffer(view.voff[slot, : rows + 1]), _buffer(view.vdata[start : start + used])]
            return pa.Array.from_buffers(type_, rows, parts, nulls)
        start = int(self._col[column, cells.C_BASE])
        values: npt.NDArray[Any] = view.i64[start : start + rows * (1 + wide)]
        if kind == cells.K_BOOL:
            values = np.packbits(values.astype(np.uint8), bitorder="little")
        elif not wide and type_.bit_width < 64:
            values = values.astype({8: np.int8, 16: np.int16, 32: np.int32}[type_.bit_width])
        return pa.Array.from_buffers(type_, rows, [bitmap, _buffer(values)], nulls)


class _LabelTable:
    """The labels of all ENUM and SET columns as `ArenaView` has them."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._rows: list[tuple[int, int]] = []

    def add(self, labels: Sequence[str]) -> int:
        """Add the labels of a column. Returns the row of its header."""
        header = len(self._rows)
        room = sum(len(label.encode()) + 1 for label in labels)
        self._rows.append((room, any(label.isdigit() and label.isascii() for label in labels)))
        for label in labels:
            begin = len(self._bytes)
            self._bytes += label.encode()
            self._rows.append((begin, len(self._bytes)))
        return header

    def arrays(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """Return `ArenaView.labels` and `ArenaView.label`."""
        return np.frombuffer(bytes(self._bytes) or b"\0", np.uint8).copy(), np.array(self._rows or [(0, 0)], np.int64)


def _plan(logical: LogicalType) -> tuple[int, int, int, int]:
    """Return (kind, p1, p2, 1 if a value has two words) for a type."""
    match logical.kind:
        case TypeKind.DECIMAL:
            return cells.K_DECIMAL, logical.precision, logical.scale, 1
        case TypeKind.UINT64:
            return cells.K_DECIMAL, 0, 0, 1
        case TypeKind.BIT:
            return cells.K_BIT, logical.length, 0, int(logical.length > 63)
        case kind if kind in _INTEGERS:
            return cells.K_INT, _INTEGERS[kind], 0, 0
        case kind:
            return _SIMPLE[kind], logical.fsp, 0, 0


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    """Return a copy of the values that Arrow owns."""
    return pa.py_buffer(np.ascontiguousarray(values).tobytes())


#: The number of rows after which a table's batch ends, as in all of raycdc.
ROWS_MAX = BATCH_ROWS_MAX
