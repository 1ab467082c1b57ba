"""Column arenas: the one memory layout that both the binlog loop and the result-set loop decode rows into.

A `TableArena` holds up to `rows_max` rows of one table in reusable buffers, laid out as Arrow wants them. A compiled
loop gets its `view` (arrays only), writes rows, and `to_record_batch` copies them into one exactly sized, immutable
slab. Both loops therefore produce the same bytes for the same values. No Python object exists per row.

Contract for a loop writing row ``r`` of column ``c`` (constants `KIND_…` below say what `p1`, `p2` mean):

* null: ``valid[c, r] = 0; has_null[c] = 1``, and the value 0 or an empty text (``voff[s, r + 1] = voff[s, r]``);
  `valid` is 1 beforehand.
* fixed width: ``i8/i16/i32/i64[base[c] + r] = value``; 128 bits: ``i64[base[c] + 2 * r]`` (low), ``+ 1`` (high).
* text: bytes at ``vdata[vbase[s] + voff[s, r]]``, end in ``voff[s, r + 1]``, where ``s = slot[c]``. When
  ``voff + need > vcap[s]`` the loop notes ``counters[FULL_SLOT]``, ``counters[FULL_NEED]``, stops before the row, and
  its caller ends the batch or calls `grow`. Rows written again overwrite everything they wrote before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mysql import charsets
from raycdc.connectors.mysql.arena_loops import COUNT_REPLACED, COUNT_ZERO_DATES
from raycdc.connectors.mysql.json_loops import STACK_SHAPE
from raycdc.connectors.mysql.types import MySqlColumn, MySqlTable
from raycdc.model import TypeKind
from raycdc.model.batch import BATCH_BYTES_MAX, BATCH_ROWS_MAX

KIND_INT = 0  # p1: bytes of the Arrow integer (1, 2, 4, 8); p2: 1 when the source is unsigned
KIND_UINT64 = 1  # decimal128(20, 0)
KIND_FLOAT32 = 2  # the IEEE bits through i32
KIND_FLOAT64 = 3  # the IEEE bits through i64
KIND_DECIMAL = 4  # p1: precision; p2: scale; decimal128
KIND_DECIMAL_TEXT = 5  # p1: precision; p2: scale; the exact digits as the server prints them
KIND_TEXT = 6  # p2: row of `points` for a single-byte character set, -1 to copy the bytes
KIND_BYTES = 7  # p1: pad with zero bytes to this length (BINARY(n)), 0 for none
KIND_DATE = 8  # i32: days since 1970-01-01
KIND_DATETIME = 9  # i64: microseconds; p1: fractional digits
KIND_TIMESTAMP = 10  # i64: microseconds since the epoch, UTC; p1: fractional digits
KIND_TIME = 11  # text; p1: fractional digits
KIND_YEAR = 12  # i16
KIND_BIT = 13  # p1: bits; i64, or decimal128(20, 0) for 64 bits
KIND_ENUM = 14  # text; p1: first label in `loff`, which is the empty label of index 0; p2: number of labels
KIND_SET = 15  # text; p1: first label in `loff`; p2: number of labels
KIND_JSON = 16  # text

_SIMPLE_KINDS: dict[TypeKind, tuple[int, int]] = {  # kind of loop, bytes per value (0: text)
    TypeKind.UINT64: (KIND_UINT64, 16),
    TypeKind.FLOAT32: (KIND_FLOAT32, 4),
    TypeKind.FLOAT64: (KIND_FLOAT64, 8),
    TypeKind.DECIMAL: (KIND_DECIMAL, 16),
    TypeKind.STRING: (KIND_TEXT, 0),
    TypeKind.BINARY: (KIND_BYTES, 0),
    TypeKind.DATE: (KIND_DATE, 4),
    TypeKind.DATETIME: (KIND_DATETIME, 8),
    TypeKind.TIMESTAMP: (KIND_TIMESTAMP, 8),
    TypeKind.TIME: (KIND_TIME, 0),
    TypeKind.YEAR: (KIND_YEAR, 2),
    TypeKind.ENUM: (KIND_ENUM, 0),
    TypeKind.SET: (KIND_SET, 0),
    TypeKind.JSON: (KIND_JSON, 0),
}
_INTEGER_BYTES = {TypeKind.INT8: 1, TypeKind.INT16: 2, TypeKind.INT32: 4, TypeKind.INT64: 8}

#: First capacity of a text column's arena; it doubles when a batch needs more, and keeps its size.
_TEXT_BYTES_FIRST = 64 << 10
#: Arrow's int32 offsets end here; a single value may not be larger.
TEXT_BYTES_MAX = (1 << 31) - 1


class ArenaView(NamedTuple):
    """The arrays a compiled loop sees. `i8 … i64` are views of the same fixed-width memory."""

    kind: npt.NDArray[np.int64]
    p1: npt.NDArray[np.int64]
    p2: npt.NDArray[np.int64]
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
    counters: npt.NDArray[np.int64]
    stack: npt.NDArray[np.int64]


class TableArena:
    """Reusable column buffers of one table version. One thread at a time.

    `rows_max` is chosen so that the fixed-width part of a batch stays under `bytes_max`; a loop that wants to keep
    the text under it too compares the sum of ``voff[:, r]`` itself. `zero_dates` and `replaced` count, since
    construction, dates that became null and bytes that were no text of their character set.
    """

    def __init__(self, table: MySqlTable, *, rows_max: int = BATCH_ROWS_MAX, bytes_max: int = BATCH_BYTES_MAX) -> None:
        self.table = table
        self.schema: pa.Schema = table.schema().arrow()
        columns = table.columns
        count = len(columns)
        kind, p1, p2 = (np.zeros(count, np.int64) for _ in range(3))
        labels: list[bytes] = []
        pages: list[str] = []
        self._widths: list[int] = []
        for index, column in enumerate(columns):
            kind[index], p1[index], p2[index], width = _plan(column, labels, pages)
            self._widths.append(width)
        #: Bytes of one row without its text; an offset counts for each text.
        self.row_bytes = sum(w or 4 for w in self._widths) + 4
        #: At least two rows, because an update's images stay together.
        self.rows_max = max(2, min(rows_max, bytes_max // self.row_bytes))
        self.bytes_max = bytes_max
        base, slot, size, texts = self._place()
        self._fixed = np.zeros(size, np.uint8)
        self._slots = texts
        label_bytes = b"".join(labels)
        self.view = ArenaView(
            kind=kind,
            p1=p1,
            p2=p2,
            base=base,
            slot=slot,
            i8=self._fixed.view(np.int8),
            i16=self._fixed.view(np.int16),
            i32=self._fixed.view(np.int32),
            i64=self._fixed.view(np.int64),
            valid=np.ones((count, self.rows_max), np.uint8),
            has_null=np.zeros(count, np.uint8),
            voff=np.zeros((max(texts, 1), self.rows_max + 1), np.int32),
            vdata=np.empty(max(texts, 1) * _TEXT_BYTES_FIRST, np.uint8),
            vbase=np.arange(max(texts, 1), dtype=np.int64) * _TEXT_BYTES_FIRST,
            vcap=np.full(max(texts, 1), _TEXT_BYTES_FIRST, np.int64),
            loff=np.cumsum([0, *(len(label) for label in labels)], dtype=np.int64),
            ldata=np.frombuffer(label_bytes or b"\0", np.uint8).copy(),
            points=np.stack([charsets.code_points(p) for p in pages]) if pages else np.zeros((1, 256), np.int32),
            counters=np.zeros(8, np.int64),
            stack=np.zeros(STACK_SHAPE, np.int64),
        )
        self._recode = {
            i: charsets.codec_of(c.charset)
            for i, c in enumerate(columns)
            if kind[i] == KIND_TEXT and c.charset and p2[i] < 0 and c.charset not in charsets.UTF8_CHARSETS
        }
        self._check_utf8 = [kind[i] == KIND_JSON or (kind[i] == KIND_TEXT and p2[i] < 0) for i in range(count)]
        self._replaced_after = 0

    @property
    def zero_dates(self) -> int:
        return int(self.view.counters[COUNT_ZERO_DATES])

    @property
    def replaced(self) -> int:
        return int(self.view.counters[COUNT_REPLACED]) + self._replaced_after

    def text_bytes(self, rows: int) -> int:
        """Bytes of text in the first `rows` rows."""
        return int(self.view.voff[:, rows].sum()) if self._slots else 0

    def grow(self, slot: int, need: int, rows: int) -> None:
        """Make room for `need` bytes in a text column that holds `rows` rows; replaces `view`.

        Raises `ValueError` when `need` passes what Arrow's 32-bit offsets reach.
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
                pieces.append(self._fixed[start : start + rows * width])
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
            null_count = bitmap[0] if bitmap is not None else 0
            type_ = self.schema.field(c).type
            arrays.append(self._checked(c, pa.Array.from_buffers(type_, rows, parts, null_count), rows))
        return arrays

    def to_record_batch(self, rows: int) -> pa.RecordBatch:
        """The first `rows` rows as a batch of the table's columns; the arena starts over."""
        return pa.RecordBatch.from_arrays(self.to_arrays(rows), schema=self.schema)

    def _place(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int, int]:
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

    def _checked(self, column: int, array: pa.Array, rows: int) -> pa.Array:
        """Convert text of multi-byte character sets, and replace bytes that are no UTF-8, counting the values."""
        codec = self._recode.get(column)
        if codec is None:
            if not self._check_utf8[column] or pa.types.is_binary(array.type):
                return array
            try:
                array.validate(full=True)
            except pa.ArrowInvalid:
                codec = "utf-8"
            else:
                return array
        raw = pa.Array.from_buffers(pa.binary(), rows, array.buffers(), array.null_count)
        texts: list[str | None] = []
        for value in raw.to_pylist():
            if value is None:
                texts.append(None)
                continue
            try:
                texts.append(value.decode(codec))
            except UnicodeDecodeError:
                self._replaced_after += 1
                texts.append(value.decode(codec, "replace"))
        return pa.array(texts, array.type)


def _plan(column: MySqlColumn, labels: list[bytes], pages: list[str]) -> tuple[int, int, int, int]:
    """(kind, p1, p2, bytes per value) of a column; adds its labels and its character set to the tables."""
    logical, shape = column.logical(), column.shape
    if logical.kind in _INTEGER_BYTES:
        width = _INTEGER_BYTES[logical.kind]
        return KIND_INT, width, int(shape.unsigned), width
    if shape.base == "decimal":
        exact = logical.kind is TypeKind.DECIMAL
        return (KIND_DECIMAL if exact else KIND_DECIMAL_TEXT), shape.precision, shape.scale, 16 if exact else 0
    if logical.kind is TypeKind.BIT:
        return KIND_BIT, shape.length, 0, 8 if shape.length <= 63 else 16
    kind, width = _SIMPLE_KINDS[logical.kind]
    match kind:
        case 6:  # KIND_TEXT
            page = -1
            if charsets.is_single_byte(column.charset) and column.charset != "binary":
                if column.charset not in pages:
                    pages.append(column.charset)
                page = pages.index(column.charset)
            return kind, 0, page, 0
        case 7:  # KIND_BYTES
            return kind, shape.length if shape.base == "binary" else 0, 0, 0
        case 14 | 15:  # KIND_ENUM, KIND_SET
            first = len(labels)
            if kind == KIND_ENUM:
                labels.append(b"")
            labels.extend(label.encode() for label in shape.labels)
            return kind, first, len(labels) - first, 0
        case _:
            return kind, shape.fsp, 0, width


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
