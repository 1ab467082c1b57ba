"""The source's side of a comparison: reads a table's rows by SELECTs, and the changes in its log.

Rows are converted to the columns of the target. A later round reads only rows whose keys are undecided (`SomeRows`).
Each of these keys has a change in the log, which contains the key's values. So neither side is read completely: the
source selects rows by lists of keys, and the target by a condition that its reader can push down
(`raycdc.verify.targets.api.RowFilter`). Both may return more rows than requested; only rows with the wanted key hashes
count. If an update changes a row's key, the log has both keys.

`LogChanges` reads the keys that have changes in the log, over its own connection. Used by one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import META_COLUMNS, RowKind, TableId, TableSchema
from raycdc.model.view import constant_type
from raycdc.source.connector import IncrementalSource
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_unit import rows_of, updates_of
from raycdc.source.snapshot.reader.reading import BlockingLog
from raycdc.source.snapshot.rereading.backfill_keys import lists_of_keys
from raycdc.source.split import BackfillRows, OpenedAt, SnapshotSplit, StreamSplit
from raycdc.state.opaque import Position
from raycdc.transform.masks import Masking
from raycdc.transform.resolved import COMPUTED, ResolvedTransform
from raycdc.verify.canonical import Compared, ComparedColumn, Family
from raycdc.verify.expressions import Expressions, computable


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes the target's rows from rows of the source's `table`.

    `masking` masks the rows. `transform` selects, renames and computes columns, and filters rows (with `expressions`).
    `schema` is the schema of the result.
    """

    table: TableId
    schema: TableSchema
    masking: Masking
    expressions: Expressions
    transform: ResolvedTransform | None = None

    def columns(self, batch: pa.RecordBatch) -> Mapping[str, pa.Array]:
        """Return the target's columns by name, for all rows of a batch of the source, including rows that a filter
        leaves out.

        Columns whose values differ from change to change are left out. Raises `NotComparedError`.
        """
        return self._made(batch)[0]

    def rows(self, batch: pa.RecordBatch) -> tuple[Mapping[str, pa.Array], int]:
        """Return the target's columns for the rows that the target has, and the number of these rows."""
        columns, passing = self._made(batch)
        if passing is None:
            return columns, batch.num_rows
        chosen = pa.array(passing)
        return {name: array.filter(chosen) for name, array in columns.items()}, int(passing.sum())

    def _made(self, batch: pa.RecordBatch) -> tuple[Mapping[str, pa.Array], np.ndarray | None]:
        batch = self.masking.batch(self.table, batch)
        if self.transform is None:
            return {name: batch.column(name) for name in batch.schema.names if name not in META_COLUMNS}, None
        computed = self.expressions.rows(self.transform, batch)
        made: dict[str, pa.Array] = {}
        for output in self.transform.projection().outputs:
            match output.stored:
                case "":
                    constant = pa.scalar(output.constant, constant_type(output.constant).arrow())
                    made[output.name] = pa.repeat(constant, batch.num_rows)
                case "_db":
                    made[output.name] = pa.repeat(pa.scalar(self.table.db), batch.num_rows)
                case "_table":
                    made[output.name] = pa.repeat(pa.scalar(self.table.table), batch.num_rows)
                case name if name.startswith(COMPUTED):
                    if output.name in computed.columns:
                        made[output.name] = computed.columns[output.name]
                case name if name not in META_COLUMNS:
                    made[output.name] = batch.column(name)
        return made, computed.passing

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the columns that `columns` returns."""
        if self.transform is None:
            return [column.name for column in self.schema.columns]
        computed = {column.name for column in computable(self.transform)}
        varying = set(META_COLUMNS) - {"_db", "_table"}
        return [
            output.name
            for output in self.transform.projection().outputs
            if output.stored not in varying and (not output.stored.startswith(COMPUTED) or output.name in computed)
        ]


@dataclass(slots=True)
class ReadUpTo:
    """The position up to which rows were read.

    Every row was read at `ordinal` or before. `ranges` is the number of ranges that were read.
    """

    ordinal: int = 0
    ranges: int = 0


@dataclass(frozen=True, slots=True)
class SourceTableRows:
    """A table of the source. `document` is the state's description of the table at the position of the comparison."""

    source: IncrementalSource[Any]
    table: TableId
    document: SchemaDocument
    maker: RowMaker

    def splits(self) -> Iterator[SnapshotSplit]:
        """Yield ranges of the table's chunk key that together cover it exactly once. Blocks."""
        planner = self.source.planner(self.table, self.document)
        if planner is None:
            yield SnapshotSplit(self.table, 0, None, None, None, includes_null=True)
            return
        dialect, index = self.source.enumerator_dialect(), 0
        while planner is not None:
            planned = dialect.plan(self.document, self.table, planner, index)
            yield from planned.splits
            index += len(planned.splits)
            planner = planned.planner

    def batches(
        self, position: Position, up_to: ReadUpTo, ranges: Iterable[SnapshotSplit] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these `ranges` (None: all rows), each range after everything up to `position` is visible in
        it.

        `up_to` is set at the end. Raises `TableChangedError` if the table differs from its description.
        """
        with closing(self.source.chunk_reader()) as reader:
            for split in self.splits() if ranges is None else ranges:
                opened = OpenedAt(position, as_of=split.as_of)
                yield from reader.read(split, opened_at=opened, document=self.document)
                end = reader.high_watermark()
                up_to.ordinal = max(up_to.ordinal, end.ordinal, end.log_end)
                up_to.ranges += 1


#: If more keys are undecided, both sides are read completely, because the values of keys are kept in memory and written
#: into statements.
KEYS_MAX = 50_000
#: The maximum size of the values in one statement to a target. Columns whose values would exceed it are left out of the
#: condition, so that more rows are read. A text as a literal may take twice its size, and servers accept packets of 4
#: MiB and more.
VALUES_BYTES_MAX = 1 << 20

#: The forms of keys whose values every server finds by a literal. Floats have no exact literals, and literals of
#: moments depend on the session.
_ASKED = (Family.WHOLE, Family.DECIMAL, Family.DAY, Family.TEXT, Family.BYTES)


@dataclass(frozen=True, slots=True)
class SomeRows:
    """The rows with the key hashes `hashes` (uint64, ascending).

    `lists` are lists of keys by which the source selects the rows (`raycdc.source.snapshot.rereading.backfill_keys`).
    Without lists, the source is read completely. `values` has the values of the columns of the compared key, by name; a
    column without an entry may have any value.
    """

    hashes: np.ndarray
    lists: tuple[str, ...] = ()
    values: Mapping[str, pa.Array] = field(default_factory=dict)

    @property
    def is_narrow(self) -> bool:
        """Return True if at least one side is not read completely."""
        return bool(self.lists or self.values)

    def whole(self) -> SomeRows:
        """Return the same rows, for which both sides are read completely."""
        return replace(self, lists=(), values={})

    def wanted(self) -> WantedOnce:
        """Return the filter that decides which rows of the source count."""
        return WantedOnce(self.hashes, once=len(self.lists) > 1)

    def splits(self, table: TableId) -> Iterator[SnapshotSplit]:
        """Yield splits of the source, with a list of keys each."""
        for number, keys in enumerate(self.lists):
            yield SnapshotSplit(table, number, None, None, None, includes_null=True, again=BackfillRows("", keys=keys))


class WantedOnce:
    """Selects the rows of the keys with these hashes.

    If `once` is True, each key is selected only once. A server that ignores the case of texts returns a row for every
    list that has its key in any spelling, while the target is queried for all lists together.
    """

    def __init__(self, hashes: np.ndarray, *, once: bool) -> None:
        self._hashes = hashes
        self._once = once
        self._left = np.ones(len(hashes), np.bool_)

    def among(self, hashes: np.ndarray) -> np.ndarray:
        """Return a mask of the rows with these key hashes (uint64) that are selected."""
        places = np.searchsorted(self._hashes, hashes)
        found = places < len(self._hashes)
        found[found] = self._hashes[places[found]] == hashes[found]
        chosen = found.copy()
        chosen[found] = self._left[places[found]]
        if self._once:
            self._left[places[found]] = False
        return chosen


class NamedKeys:
    """The values of keys in the log, by their hashes. If there are more than `KEYS_MAX`, none are kept.

    `asked_by` has the columns of the source's own key, in the order of the compared key, if the compared key consists
    of these columns unchanged. Used by one thread.
    """

    def __init__(self, compared: Compared, schema: TableSchema, asked_by: Sequence[str]) -> None:
        self._compared = compared
        asked = asked_by and all(column.form.family in _ASKED for column in compared.key)
        columns = [(name, schema.column(name).type.arrow()) for name in asked_by] if asked else []
        self._source = pa.schema(columns)
        self._hashes = np.zeros(0, np.uint64)
        self._asked: list[pa.Table] = []
        self._made: list[pa.Table] = []
        self._too_many = False

    def observe(
        self, wanted: np.ndarray, hashes: np.ndarray, batch: pa.RecordBatch, columns: Mapping[str, pa.Array]
    ) -> None:
        """Store those keys of rows of the log whose hashes are in `wanted`.

        `hashes` are the rows' key hashes, `batch` the rows of the source, and `columns` those of the target.
        """
        if self._too_many:
            return
        fresh = np.isin(hashes, wanted) & ~np.isin(hashes, self._hashes)
        new, places = np.unique(hashes[fresh], return_index=True)
        if not len(new):
            return
        if len(self._hashes) + len(new) > KEYS_MAX:
            self._too_many = True
            self._asked, self._made, self._hashes = [], [], np.zeros(0, np.uint64)
            return
        taken = pa.array(np.flatnonzero(fresh)[places])
        self._hashes = np.concatenate([self._hashes, new])
        asked = [_plain(batch.column(part.name)).take(taken).cast(part.type) for part in self._source]
        self._asked.append(pa.Table.from_arrays(asked, schema=self._source))
        keys = self._compared.key
        made = [_plain(columns[column.name]).take(taken) for column in keys]
        self._made.append(pa.Table.from_arrays(made, names=[column.name for column in keys]))

    def rows(self, hashes: np.ndarray) -> SomeRows:
        """Return the rows with these key hashes (ascending).

        If a key was not stored, both sides are read completely.
        """
        everything = SomeRows(hashes)
        if self._too_many or not len(hashes) or not np.isin(hashes, self._hashes).all():
            return everything
        chosen = pa.array(np.flatnonzero(np.isin(self._hashes, hashes)))
        lists: tuple[str, ...] = ()
        if self._source.names:
            lists = lists_of_keys(pa.concat_tables(self._asked).take(chosen))
        made = pa.concat_tables(self._made, promote_options="permissive").take(chosen)
        values: dict[str, pa.Array] = {}
        room = VALUES_BYTES_MAX
        for column in self._compared.key:
            found = _askable(made.column(column.name), column)
            if found is not None and found.nbytes <= room:
                values[column.name] = found
                room -= found.nbytes
        return replace(everything, lists=lists, values=values)


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def _askable(array: pa.ChunkedArray, column: ComparedColumn) -> pa.Array | None:
    """Return the distinct values, ascending, as int64, decimal128(38, 0) or string.

    Returns None if a server might miss values that are equal in the comparison.
    """
    form, kind = column.form, array.type
    if array.null_count:
        return None
    if form.family is Family.WHOLE and pa.types.is_integer(kind):
        wanted = pa.int64()
    elif form.family is Family.DECIMAL and form.scale == 0 and (pa.types.is_decimal(kind) or pa.types.is_integer(kind)):
        wanted = pa.decimal128(38, 0)
    elif form.family is Family.TEXT and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        wanted = pa.string()
    else:
        return None
    values = pc.unique(array.combine_chunks().cast(wanted))
    return values.take(pc.sort_indices(values))


#: Seconds within which the log must be read up to the end that it had when the reading began.
REACHED_WITHIN_S = 120.0


class LogSaysMoreError(Exception):
    """Raised if the log has a change of the table as a whole, of its columns or of all rows, so that single keys do
    not suffice.
    """


@dataclass(slots=True)
class LogChanges:
    """The changes of one table from the position of `split` on; `maker` converts its rows to those of the target.

    A context manager; the log is opened at the first request.
    """

    source: IncrementalSource[Any]
    split: StreamSplit
    maker: RowMaker
    compared: Compared
    #: Stores the values of the keys of interest.
    named: NamedKeys
    _log: BlockingLog | None = None
    _keys: list[np.ndarray] = field(default_factory=list)
    _ordinals: list[np.ndarray] = field(default_factory=list)
    _reached: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._log is not None:
            self._log.close()

    def after(self, low: int, high: int, asked: np.ndarray) -> np.ndarray:
        """Return the hashes of the keys that changed after the ordinal `low`; the log is read up to `high` first.

        Blocks. `asked` are hashes of the keys of interest, whose values are stored (`named`). Each part of the log is
        read only once, with the `asked` of that call. Raises `LogSaysMoreError`, and the errors of reading a log, such
        as `LogLostError`.
        """
        self._read_to(high, asked)
        if not self._keys:
            return np.zeros(0, np.uint64)
        keys, ordinals = np.concatenate(self._keys), np.concatenate(self._ordinals)
        return np.unique(keys[ordinals > low])

    def _read_to(self, high: int, asked: np.ndarray) -> None:
        if self._log is None:
            self._log = self.source.log_reader(self.split)
            self._reached = self.split.state.ordinal
        deadline = time.monotonic() + REACHED_WITHIN_S
        while self._reached < high:
            unit = self._log.fetch()
            if unit is None:
                if time.monotonic() > deadline:
                    raise LogSaysMoreError(f"the log did not come to its end within {REACHED_WITHIN_S:g} s")
                continue
            table = self.maker.table
            if any(update.table == table for update in updates_of(unit)):
                raise LogSaysMoreError("the table itself was changed meanwhile (its columns, or what it is)")
            for rows in rows_of(unit):
                if rows.table != table or not rows.batch.num_rows:
                    continue
                ops = rows.batch.column("_op").to_numpy(zero_copy_only=False)
                if (ops == RowKind.TRUNCATE).any():
                    raise LogSaysMoreError("the table was emptied meanwhile")
                columns = self.maker.columns(rows.batch)
                hashes = self.compared.key_hashes(columns, rows.batch.num_rows)
                self.named.observe(asked, hashes, rows.batch, columns)
                self._keys.append(hashes)
                self._ordinals.append(np.asarray(rows.ordinals))
            if unit.log_position.ordinal > self._reached:
                self._reached, deadline = unit.log_position.ordinal, time.monotonic() + REACHED_WITHIN_S
