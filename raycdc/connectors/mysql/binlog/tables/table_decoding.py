"""Decodes one version of a table: its arena and per-row arrays, its table maps, and finished batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog import walk_loops as rows
from raycdc.connectors.mysql.binlog.index_loops import E_POS
from raycdc.connectors.mysql.binlog.tables.plan import Scratch, WirePlan
from raycdc.connectors.mysql.binlog.wire.expand import WRONG_POSITION
from raycdc.connectors.mysql.values.columns import INVALID_BOOLEAN, INVALID_DATE, ONE_TEXT, TableArena
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import CorruptLogError, DataError, PartialRowsError, SchemaMismatchError
from raycdc.model import META_FIELDS, TableId
from raycdc.model.batch import BATCH_BYTES_MAX, BATCH_ROWS_MAX

#: The errors of rows that park their table. Any other error ends the run, because the log cannot be trusted any more.
CONCERNS_ONE_TABLE = (PartialRowsError, SchemaMismatchError)
_UNSEEN = (
    "A schema change was probably not seen, such as one by a session with sql_log_bin = 0; take a new snapshot of the "
    "table."
)
#: The rows of a table's first arena. It grows eightfold when it is full, so that thousands of quiet tables cost little.
_ROWS_FIRST = 1024


@dataclass(frozen=True, slots=True)
class BatchForm:
    """The limits of a batch in rows and bytes, and whether its column `_pos` is filled."""

    rows_max: int = BATCH_ROWS_MAX
    bytes_max: int = BATCH_BYTES_MAX
    with_pos: bool = False


@dataclass(slots=True)
class Decoding:
    """A table version being decoded: its arena and the per-row arrays."""

    table: MySqlTable
    arena: TableArena
    schema: pa.Schema
    op: npt.NDArray[np.int8]
    row_event: npt.NDArray[np.int64]
    row_number: npt.NDArray[np.int64]

    @classmethod
    def start(cls, table: MySqlTable, form: BatchForm, *, capacity: int = _ROWS_FIRST) -> Decoding:
        arena = TableArena(table, rows_max=min(capacity, form.rows_max), bytes_max=form.bytes_max)
        size = arena.rows_max
        schema = pa.schema([*arena.schema, *META_FIELDS])
        return cls(table, arena, schema, np.empty(size, np.int8), np.empty(size, np.int64), np.empty(size, np.int64))

    def enlarge(self, form: BatchForm) -> None:
        """Replace the arena by a larger, empty one, if the limits of a batch permit it."""
        capacity = self.arena.rows_max
        if capacity < form.rows_max and capacity * self.arena.row_bytes * 2 <= form.bytes_max:
            bigger = Decoding.start(self.table, form, capacity=capacity * 8)
            self.arena, self.op = bigger.arena, bigger.op
            self.row_event, self.row_number = bigger.row_event, bigger.row_number

    def take(self, count: int) -> UnnumberedBatch:
        """Return a copy of the first `count` rows, and clear the arena."""
        arrays = self.arena.to_arrays(count)
        return UnnumberedBatch(
            self.table,
            self.schema,
            arrays,
            self.op[:count].copy(),
            self.row_event[:count].copy(),
            self.row_number[:count].copy(),
            self.arena.lost.take(),
        )


class Decodings:
    """The memory into which rows are decoded: arenas for the newest version of each table, and shared scratch
    memory.
    """

    def __init__(self, form: BatchForm) -> None:
        self._form = form
        self._decodings: dict[TableId, Decoding] = {}
        self._scratch: dict[int, Scratch] = {}
        self._zero_dates = self._replaced = 0

    def of(self, table: MySqlTable) -> Decoding:
        """Return the arena for rows of this version of the table."""
        decoding = self._decodings.get(table.id)
        if decoding is None or decoding.table != table:
            self.forget(table.id)
            decoding = self._decodings[table.id] = Decoding.start(table, self._form)
        return decoding

    def scratch(self, columns: int) -> Scratch:
        """Return the scratch memory for table maps with this many columns.

        It is shared, because one map is decoded at a time.
        """
        if columns not in self._scratch:
            self._scratch[columns] = Scratch.of(columns)
        return self._scratch[columns]

    def enlarge(self, decoding: Decoding) -> None:
        """Enlarge an arena that was full and whose rows were taken."""
        full = decoding.arena
        decoding.enlarge(self._form)
        if decoding.arena is not full:
            self._count_losses(full)

    def forget(self, table: TableId) -> None:
        """Forget the newest version of the table, of which no more rows come."""
        dropped = self._decodings.pop(table, None)
        if dropped is not None:
            self._count_losses(dropped.arena)

    def losses(self) -> dict[str, int]:
        """Return the values lost since construction: zero dates that became null, and values with replaced
        characters.
        """
        arenas = [decoding.arena for decoding in self._decodings.values()]
        return {
            "zero_dates": self._zero_dates + sum(arena.lost.zero_dates for arena in arenas),
            "replaced": self._replaced + sum(arena.lost.replaced for arena in arenas),
        }

    def _count_losses(self, arena: TableArena) -> None:
        self._zero_dates += arena.lost.zero_dates
        self._replaced += arena.lost.replaced


@dataclass(slots=True)
class ReadyMap:
    """A table map of a wanted table, ready to decode."""

    table: TableId
    decoding: Decoding
    plan: WirePlan
    scratch: Scratch


@dataclass(slots=True)
class UnnumberedBatch:
    """A finished batch that still lacks its sequence numbers."""

    table: MySqlTable
    schema: pa.Schema
    arrays: list[pa.Array]
    op: npt.NDArray[np.int8]
    row_event: npt.NDArray[np.int64]
    row_number: npt.NDArray[np.int64]
    lost: int


class RowsDamagedError(Exception):
    """Event number `event` of the list cannot be decoded."""

    def __init__(self, event: int, error: DataError) -> None:
        self.event = event
        self.error = error
        super().__init__(str(error))


def log_damage(code: int) -> str:
    """Return the description of damage that the compiled pass found."""
    return {
        index.ERROR_LENGTH: "an event's length is impossible, or it ends after the data",
        index.ERROR_CHECKSUM: "the checksum of an event does not match",
        index.ERROR_TABLE_ID: "a row event names a table id that no table map announced",
        index.ERROR_BODY: "an event is shorter than its type requires",
        index.ERROR_POSITION: WRONG_POSITION,
        index.ERROR_TAKEN_BACK: "the transaction rolls back rows of captured tables that were emitted already. "
        "Nothing of it was passed on. This is a bug in raycdc; please report it, with the log file if you can",
    }[code]


def rows_damage(
    code: int,
    events: npt.NDArray[np.int64],
    cursor: npt.NDArray[np.int64],
    table_map: ReadyMap,
    *,
    file: str,
    proven: bool,
) -> RowsDamagedError:
    """Return the error for a loop's return code: one of `CONCERNS_ONE_TABLE`, or damage of the log.

    If `proven`, a checksum has shown that the event is as the server wrote it. Rows that do not fit are then no damage:
    our schema of the table is wrong.
    """
    event = int(cursor[rows.C_FAILED])
    table = table_map.decoding.table
    # A damaged table map may have no columns.
    names = [column.name for column in table.columns] or ["no column"]
    column = names[min(int(cursor[rows.C_COLUMN]), len(names) - 1)]
    where = f"{file}, event ending at {int(events[event, E_POS])}, table {table.id}"
    if code == rows.ROWS_IMAGE:
        return RowsDamagedError(
            event,
            PartialRowsError(
                f"{where}: the row image is not complete. Set binlog_row_image = FULL on the source "
                "(for new sessions too) and take a new snapshot."
            ),
        )
    if (why := _unfit(code, column)) is None and code == rows.ROWS_COLUMNS and table_map.plan.optional.any():
        count = len(table_map.plan.optional)
        why = f"the rows have {count} columns instead of {len(names)} ({', '.join(names)}). {_UNSEEN}"
    if why is not None:
        return RowsDamagedError(event, SchemaMismatchError(f"{where}: {why}"))
    what = _damage(code, column)
    if proven:
        return RowsDamagedError(
            event,
            SchemaMismatchError(
                f"{where}: {what}, though its checksum matches: the table has another schema than the known one. "
                f"{_UNSEEN}"
            ),
        )
    return RowsDamagedError(event, CorruptLogError(f"{where}: {what}"))


def _unfit(code: int, column: str) -> str | None:
    """Return why rows cannot be delivered although their bytes are readable; None if the bytes are unreadable."""
    match code:
        case rows.ROWS_KEY:
            return ONE_TEXT.format(column=column)
        case rows.ROWS_LABEL:
            return f"column {column!r} holds a label after its last known one. {_UNSEEN}"
        case rows.ROWS_DATE:
            return INVALID_DATE.format(column=column)
        case rows.ROWS_BOOLEAN:
            return INVALID_BOOLEAN.format(column=column)
        case _:
            return None


def _damage(code: int, column: str) -> str:
    match code:
        case rows.ROWS_BOUNDS:
            return f"the value of column {column!r} does not end inside its event"
        case rows.ROWS_VALUE:
            return f"the value of column {column!r} has a length its type does not have"
        case rows.ROWS_JSON:
            return f"the JSON value of column {column!r} is damaged"
        case _:
            return "the event does not fit its table map"
