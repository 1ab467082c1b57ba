"""Column arenas: reusable Arrow column buffers, into which the binlog loop and the result-set loop decode rows.

A `TableArena` holds up to `rows_max` rows of one table in reusable buffers, laid out as Arrow requires. A compiled loop
gets its `view` (arrays only), writes rows, and `to_record_batch` copies them into one exactly sized, immutable slab.
Both loops therefore produce the same bytes for the same values. No Python object exists per row.

Contract for a loop writing row ``r`` of column ``c`` (`layouts.ColumnLayout` says what a column holds):

* null: ``valid[c, r] = 0; has_null[c] = 1``, and the value 0 or an empty text (``voff[s, r + 1] = voff[s, r]``);
  `valid` is 1 beforehand.
* fixed width: ``i8/i16/i32/i64[base[c] + r] = value``; 128 bits: ``i64[base[c] + 2 * r]`` (low), ``+ 1`` (high);
  booleans take a byte here.
* text: bytes at ``vdata[vbase[s] + voff[s, r]]``, end in ``voff[s, r + 1]``, where ``s = slot[c]``. When
  ``voff + need > vcap[s]`` the loop notes ``counters[FULL_SLOT]``, ``counters[FULL_NEED]``, stops before the row, and
  its caller ends the batch or calls `grow`. A loop that writes a row again overwrites everything that it wrote for the
  row before.
* a date that became null, or text of another character set with bytes that are no characters: ``losses[0, c] += 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mysql.values import charsets
from raycdc.connectors.mysql.values.arena_loops import COUNTERS
from raycdc.connectors.mysql.values.json_loops import STACK_SHAPE
from raycdc.connectors.mysql.values.layouts import ArenaColumnKind, ArenaLayout, ColumnLayout, layout_of
from raycdc.connectors.mysql.values.types import MySqlTable, ValueTreatment
from raycdc.errors import SchemaMismatchError
from raycdc.model.batch import BATCH_BYTES_MAX, BATCH_ROWS_MAX, with_lost_values

INVALID_DATE = (
    "column {column!r} holds a date that no calendar has, such as 0000-00-00. Correct it, or have such dates read as "
    'nulls or as text: source.types.invalid_dates = "null" or "text".'
)
INVALID_BOOLEAN = (
    "column {column!r} is a TINYINT(1) that holds another number than 0 and 1, so it is no boolean. Read such columns "
    'as numbers: source.types.tinyint1 = "integer".'
)

ONE_TEXT = (
    "a key in column {column!r} has bytes that are no character of its character set, or a code whose character has "
    "another code, too: in Unicode it may be the same text as the key of another row. Correct the value, make the "
    "column VARBINARY or of a Unicode character set, or leave the table out with source.exclude."
)

#: The first capacity of a text column's arena. It doubles if a batch needs more, and keeps its size.
_TEXT_BYTES_FIRST = 64 << 10
#: The limit of Arrow's int32 offsets, which is also the limit of a single value.
TEXT_BYTES_MAX = (1 << 31) - 1


class MySqlArenaView(NamedTuple):
    """The arrays of an arena for a compiled loop. `i8 … i64` are views of the same fixed-width memory."""

    base: npt.NDArray[np.int64]
    slot: npt.NDArray[np.int64]
    i8: npt.NDArray[np.int8]
    i16: npt.NDArray[np.int16]
    i32: npt.NDArray[np.int32]
    i64: npt.NDArray[np.int64]
    valid: npt.NDArray[np.uint8]
    has_null: npt.NDArray[np.uint8]
    voff: npt.NDArray[np.int32]
    vdata: npt.NDArray[np.uint8]
    vbase: npt.NDArray[np.int64]
    vcap: npt.NDArray[np.int64]
    loff: npt.NDArray[np.int64]
    ldata: npt.NDArray[np.uint8]
    points: npt.NDArray[np.int32]
    losses: npt.NDArray[np.int64]
    counters: npt.NDArray[np.int64]
    stack: npt.NDArray[np.int64]


class LostValues:
    """The numbers of values since construction that could not be kept unchanged, by column.

    Compiled loops count in `counts`, which is a row of the view's `losses`. Invalid UTF-8 is found when arrays are
    made.
    """

    def __init__(self, counts: npt.NDArray[np.int64], columns: Sequence[ColumnLayout]) -> None:
        self._counts = counts
        self._dates = [
            column.form in (ArenaColumnKind.DATE, ArenaColumnKind.DATETIME, ArenaColumnKind.TIMESTAMP)
            for column in columns
        ]
        self._invalid_utf8 = [0] * len(columns)
        self._taken = 0

    @property
    def zero_dates(self) -> int:
        """Return the number of dates that became null."""
        return sum(self.of(c) for c, is_date in enumerate(self._dates) if is_date)

    @property
    def replaced(self) -> int:
        """Return the number of values with bytes that were invalid in their character set."""
        return sum(self.of(c) for c, is_date in enumerate(self._dates) if not is_date)

    def of(self, column: int) -> int:
        """Return the number of all lost values of the column."""
        return int(self._counts[column]) + self._invalid_utf8[column]

    def add_invalid(self, column: int, count: int) -> None:
        """Count values of the column that are not valid UTF-8."""
        self._invalid_utf8[column] += count

    def take(self) -> int:
        """Return the number of values lost since the last call, in the batch just made."""
        total = int(self._counts.sum()) + sum(self._invalid_utf8)
        lost, self._taken = total - self._taken, total
        return lost


class TableArena:
    """Reusable column buffers of one table version. One thread at a time.

    `rows_max` is chosen so that the fixed-width part of a batch stays under `bytes_max`. Text is not counted in it. A
    loop that must limit text, too, computes the bytes of text up to row ``r`` itself: the sum of ``voff[:, r]``, the
    offsets of the text columns.
    """

    def __init__(self, table: MySqlTable, *, rows_max: int = BATCH_ROWS_MAX, bytes_max: int = BATCH_BYTES_MAX) -> None:
        self.table = table
        self.schema: pa.Schema = table.schema().arrow()
        self.layout: ArenaLayout = layout_of(table)
        columns = self.layout.columns
        count = len(columns)
        self._widths = [column.width for column in columns]
        #: The bytes of one row without its text. Each text counts with one offset.
        self.row_bytes = sum(w or 4 for w in self._widths) + 4
        #: An arena has at least two rows, because an update's images stay together.
        self.rows_max = max(2, min(rows_max, bytes_max // self.row_bytes))
        self.bytes_max = bytes_max
        #: The limits at which a loop ends a batch: rows, bytes of a row without text, bytes.
        self.limits = np.array([self.rows_max, self.row_bytes, bytes_max], np.int64)
        base, slot, size, texts = self._buffers()
        self._fixed = np.zeros(size, np.uint8)
        labels = self.layout.labels
        label_bytes = b"".join(labels)
        points = [charsets.code_points(name) for name in self.layout.charsets]
        self.view = MySqlArenaView(
            base=base,
            slot=slot,
            i8=self._fixed.view(np.int8),
            i16=self._fixed.view(np.int16),
            i32=self._fixed.view(np.int32),
            i64=self._fixed.view(np.int64),
            valid=np.ones((max(count, 1), self.rows_max), np.uint8),
            has_null=np.zeros(max(count, 1), np.uint8),
            voff=np.zeros((max(texts, 1), self.rows_max + 1), np.int32),
            vdata=np.empty(max(texts, 1) * _TEXT_BYTES_FIRST, np.uint8),
            vbase=np.arange(max(texts, 1), dtype=np.int64) * _TEXT_BYTES_FIRST,
            vcap=np.full(max(texts, 1), _TEXT_BYTES_FIRST, np.int64),
            loff=np.cumsum([0, *(len(label) for label in labels)], dtype=np.int64),
            ldata=np.frombuffer(label_bytes or b"\0", np.uint8).copy(),
            points=np.concatenate(points) if points else np.zeros(1, np.int32),
            losses=np.zeros((2, max(count, 1)), np.int64),
            counters=np.zeros(COUNTERS, np.int64),
            stack=np.zeros(STACK_SHAPE, np.int64),
        )
        self._booleans = [c.form is ArenaColumnKind.BOOLEAN for c in columns]
        self.lost = LostValues(self.view.losses[0], columns)

    def grow(self, slot: int, need: int, rows: int) -> None:
        """Make room for `need` bytes in a text column that holds `rows` rows; replaces `view`.

        Raises `ValueError` if `need` exceeds Arrow's 32-bit offsets.
        """
        if need > TEXT_BYTES_MAX:
            raise ValueError(f"a value of {need} bytes is longer than a column of a batch can hold")
        old = self.view
        vcap = old.vcap.copy()
        vcap[slot] = min(max(need, 2 * int(vcap[slot])), TEXT_BYTES_MAX)
        vbase = np.concatenate([[0], np.cumsum(vcap)[:-1]]).astype(np.int64)
        vdata = np.empty(int(vcap.sum()), np.uint8)
        for s in range(len(vcap)):
            used = int(old.voff[s, rows])
            vdata[vbase[s] : vbase[s] + used] = old.vdata[old.vbase[s] : old.vbase[s] + used]
        self.view = old._replace(vdata=vdata, vbase=vbase, vcap=vcap)

    def reset(self) -> None:
        """Forget all rows, after a failure."""
        self.view.valid[:] = 1
        self.view.has_null[:] = 0

    def to_arrays(self, rows: int) -> list[pa.Array]:
        """Copy the first `rows` rows into immutable Arrow arrays (one slab of memory) and start over."""
        view = self.view
        nulls = [self._null_bitmap(c, rows) for c in range(len(self._widths))]
        pieces: list[npt.NDArray[np.uint8]] = []
        for c, width in enumerate(self._widths):
            bitmap = nulls[c]
            if bitmap is not None:
                pieces.append(bitmap[1])
            if width:
                start = int(view.base[c]) * min(width, 8)
                values = self._fixed[start : start + rows * width]
                pieces.append(np.packbits(values, bitorder="little") if self._booleans[c] else values)
            else:
                s = int(view.slot[c])
                pieces.append(view.voff[s, : rows + 1].view(np.uint8))
                start, used = int(view.vbase[s]), int(view.voff[s, rows])
                pieces.append(view.vdata[start : start + used])
        buffers = iter(_slab(pieces))
        arrays: list[pa.Array] = []
        for c, width in enumerate(self._widths):
            bitmap = nulls[c]
            parts = [next(buffers) if bitmap is not None else None, next(buffers)]
            if not width:
                parts.append(next(buffers))
            arrays.append(self._array(c, rows, parts, bitmap[0] if bitmap is not None else 0))
        return arrays

    def to_record_batch(self, rows: int) -> pa.RecordBatch:
        """Return the first `rows` rows as a batch of the table's columns, and start over."""
        batch = pa.RecordBatch.from_arrays(self.to_arrays(rows), schema=self.schema)
        lost = self.lost.take()
        return with_lost_values(batch, lost) if lost else batch

    def _buffers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int, int]:
        base = np.zeros(len(self._widths), np.int64)
        slot = np.full(len(self._widths), -1, np.int64)
        size = texts = 0
        for c, width in enumerate(self._widths):
            if width:
                base[c] = size // min(width, 8)
                size += -(-self.rows_max * width // 64) * 64
            else:
                slot[c] = texts
                texts += 1
        return base, slot, max(size, 64), texts

    def _null_bitmap(self, column: int, rows: int) -> tuple[int, npt.NDArray[np.uint8]] | None:
        view = self.view
        if not view.has_null[column]:
            return None
        valid = view.valid[column]
        nulls = rows - int(np.count_nonzero(valid[:rows]))
        bitmap = np.packbits(valid[:rows], bitorder="little") if nulls else None
        valid[:] = 1
        view.has_null[column] = 0
        return None if bitmap is None else (nulls, bitmap)

    def _array(self, column: int, rows: int, buffers: list[pa.Buffer | None], null_count: int) -> pa.Array:
        """Return an array over its buffers, with its text checked.

        Raises `DataError` according to the column's treatment.
        """
        type_ = self.schema.field(column).type
        layout, described = self.layout.columns[column], self.table.columns[column]
        array = pa.Array.from_buffers(type_, rows, buffers, null_count)
        if layout.check_utf8 and not _is_utf8(array):
            if layout.exact:
                raise SchemaMismatchError(f"{self.table.id}: {ONE_TEXT.format(column=described.name)}")
            array, invalid = _repaired(array)
            self.lost.add_invalid(column, invalid)
        if described.treatment is ValueTreatment.TEXT_ERROR and self.lost.of(column):
            raise SchemaMismatchError(
                f"{self.table.id}.{described.name}: a value holds bytes that are no characters of "
                f"{described.charset}. Correct it, or have such bytes replaced by U+FFFD: "
                'source.types.invalid_text = "replace".'
            )
        return array


def _is_utf8(array: pa.Array) -> bool:
    used = int(np.frombuffer(array.buffers()[1], np.int32)[len(array)])
    text = np.frombuffer(array.buffers()[2], np.uint8)[:used]
    whole = used & ~7
    # Most text is ASCII, which is detected quickly, eight bytes at a time.
    high = int(np.bitwise_or.reduce(text[:whole].view(np.uint64), initial=np.uint64(0)))
    if high & 0x8080808080808080 == 0 and not (text[whole:] & 0x80).any():
        return True
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _repaired(array: pa.Array) -> tuple[pa.Array, int]:
    """Return the array with invalid UTF-8 replaced, and the number of such values.

    Rare, so it uses Python per value.
    """
    texts: list[str | None] = []
    invalid = 0
    for value in array.view(pa.binary()).to_pylist():
        text = None if value is None else value.decode("utf-8", "replace")
        invalid += int(text is not None and text.encode() != value)
        texts.append(text)
    return pa.array(texts, array.type), invalid


def _slab(pieces: list[npt.NDArray[np.uint8]]) -> list[pa.Buffer]:
    """Copy the pieces into one buffer, each at a multiple of 64 bytes, and return it in slices."""
    offsets: list[int] = []
    size = 0
    for piece in pieces:
        offsets.append(size)
        size += -(-piece.size // 64) * 64
    buffer: Any = pa.allocate_buffer(max(size, 64))
    memory = np.frombuffer(buffer, np.uint8)
    for at, piece in zip(offsets, pieces, strict=True):
        memory[at : at + piece.size] = piece
    return [buffer.slice(at, piece.size) for at, piece in zip(offsets, pieces, strict=True)]
