"""Segments without the rows that their target cannot have (`raycdc.bridge.bad_rows`).

| rows | looked for | where |
|---|---|---|
| of a merged target, in columns whose type may be turned into its own only for some values | before they are staged | \
these columns alone are read, where ``on_bad_record`` leaves rows out |
| with a value that the target itself can never have (`Sink.misfits`) | once it refused a value | all columns are read |

On threads of the driver; only a segment with a bad row is written anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.bridge import SegmentWriter
from raycdc.bridge.access import HERE, SegmentAccess
from raycdc.bridge.bad_rows import (
    ON_BAD_RECORD,
    BadRecords,
    Sifted,
    counted,
    judged,
    whole_updates,
)
from raycdc.bridge.letters import Letters
from raycdc.bridge.reading import read_segment, segment_schema
from raycdc.bridge.sifting import Sieved, write_sifted
from raycdc.bridge.views import turned, viewed
from raycdc.checkpoint.manifest import Segment
from raycdc.epochs.made_segments import MadeSegments
from raycdc.errors import ValueRefusedError
from raycdc.model import META_COLUMNS, Column, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.model.arrays import failing
from raycdc.model.table import file_name
from raycdc.model.untold import row_named
from raycdc.model.view import RowView
from raycdc.sinks.api import TableWork

#: `raycdc.sinks.api.Sink.misfits`.
Misfits = Callable[[TableWork, pa.RecordBatch], pa.Array]
#: For each row with the columns of a table the reason why it is bad, or null.
Judge = Callable[[pa.RecordBatch], pa.Array]


class Sieve(MadeSegments):
    """See the module's docstring. Sieved segments are in `folder`, on this machine; callable from any thread."""

    def __init__(self, records: BadRecords, folder: Path, *, access: SegmentAccess = HERE) -> None:
        self._records = records
        super().__init__(folder)
        self._access = access

    def concerns(self, segment: Segment) -> bool:
        """Whether rows of `segment` may be left out at all; told without reading it."""
        return self._records.leaves_out and segment.view is not None and bool(risky(segment.view))

    def __call__(self, segment: Segment, target: TableId, epoch: int) -> Sifted:
        """`segment`, which it `concerns`, without bad rows. `SegmentUnavailableError` when it cannot be read now."""
        view = segment.view
        assert view is not None
        merged = _Merged(segment, view, risky(view), target, self._access)
        if not merged.any_bad():
            return Sifted(segment)
        plain = replace(view, target=view.source, fill=False)
        return self._sifted(
            _Task(segment, plain, view.source, merged.reasons, self._records, self._access), target, epoch
        )

    def without_misfits(self, segment: Segment, work: TableWork, misfits: Misfits) -> Sifted:
        """`segment` of `work` without its `misfits`, after the target refused a value. `ValueRefusedError`, which names
        the first of them, where ``on_bad_record`` leaves no rows out.
        """

        def judge(rows: pa.RecordBatch) -> pa.Array:
            return misfits(work, rows)

        task = _Task(segment, segment.view, work.schema, judge, self._records, self._access)
        why = task.first()
        if not why:
            return Sifted(segment)
        if not self._records.leaves_out:
            raise ValueRefusedError(f"{work.target}: {why}. {ON_BAD_RECORD}")
        return self._sifted(task, work.target, work.epoch)

    def _sifted(self, task: _Task, target: TableId, epoch: int) -> Sifted:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = file_name(str(target))
        # A segment of a target has another name each time that it is derived: all that is left out of a target's share
        # is written again together.
        return task.sifted(self._folder, self._records.letters(epoch, f"{name}-{task.segment.name}", name))


def risky(view: RowView) -> list[tuple[Column, LogicalType]]:
    """Columns of the view's source of which some values may be none of the target's type, and that type."""
    wanted = {column.name.casefold(): column.type for column in view.target.columns}
    found = []
    for column in view.source.columns:
        want = wanted.get(column.name.casefold())
        if want is not None and may_fail(column.type, want):
            found.append((column, want))
    return found


def may_fail(have: LogicalType, want: LogicalType) -> bool:
    """Whether some values of `have` are none of `want`, which it is merged into (`raycdc.schema.merge`)."""
    if have.kind is TypeKind.BINARY:
        return want.kind is not TypeKind.BINARY
    return have.kind in (TypeKind.INT64, TypeKind.BIT) and pa.types.is_floating(want.arrow())


@dataclass(frozen=True, slots=True)
class _Merged:
    """The `columns` of a segment of which some values may be none of the types that the merged `target` has."""

    segment: Segment
    view: RowView
    columns: list[tuple[Column, LogicalType]]
    target: TableId
    access: SegmentAccess

    def any_bad(self) -> bool:
        """Whether a value fails at all."""
        plain = replace(self.segment, view=replace(self.view, target=self.view.source, fill=False))
        names = [column.name for column, _ in self.columns]
        for batch in read_segment(plain, names, access=self.access):
            for column, want in self.columns:
                try:
                    turned(batch.column(column.name), column.type, want)
                except pa.ArrowException:
                    return True
        return False

    def reasons(self, rows: pa.RecordBatch) -> pa.Array:
        """A `Judge`."""
        which = np.full(rows.num_rows, -1)
        for number, (column, want) in enumerate(self.columns):
            failed = failing(rows.column(column.name), lambda part, c=column, w=want: turned(part, c.type, w))  # type: ignore[misc]
            which = np.where((which < 0) & failed, number, which)
        texts = pa.array([self._reason(column, want) for column, want in self.columns], pa.string())
        return texts.take(pa.array(which, mask=which < 0))

    def _reason(self, column: Column, want: LogicalType) -> str:
        column_type = f"column {column.name!r} ({column.type.kind})"
        return f"the value of {column_type} does not fit {want.arrow()}, the type in {self.target}"


@dataclass(frozen=True, slots=True)
class _Task:
    """The rows of a segment as `judge` sees them: by `view`, if there is one, with the columns of `schema`."""

    segment: Segment
    view: RowView | None
    schema: TableSchema
    judge: Judge
    records: BadRecords
    access: SegmentAccess

    def first(self) -> str:
        """The reason why the first bad row is one, and its key; empty where there is none."""
        for batch in self._rows():
            shown = self._shown(batch)
            reasons = self.judge(shown.select([column.name for column in self.schema.columns]))
            if reasons.null_count < len(reasons):
                place = pc.index(pc.is_valid(reasons), True).as_py()
                return f"{reasons[place].as_py()} ({row_named(shown, place, self.schema)})"
        return ""

    def sifted(self, folder: Path, letters: Letters | None) -> Sifted:
        segment = self.segment
        names = segment_schema(segment, access=self.access).names
        writer = SegmentWriter.remaking(segment, folder, f"sieved-{uuid.uuid4().hex}.arrow")

        def stored(batch: pa.RecordBatch) -> Sieved:
            kept, bad, first = self._kept(batch, letters)
            numbers = pc.subtract(kept.column("_seq"), pa.scalar(segment.seq_base, pa.int64()))
            return kept.set_column(kept.schema.get_field_index("_seq"), "_seq", numbers).select(names), bad, first

        sifted = write_sifted(writer, letters, map(stored, self._rows()), seq_base=segment.seq_base)
        made = sifted.segment
        return sifted if made is None else replace(sifted, segment=replace(made, view=segment.view))

    def _rows(self) -> Iterator[pa.RecordBatch]:
        names = segment_schema(self.segment, access=self.access).names
        plain = replace(self.segment, view=None)
        return whole_updates(read_segment(plain, [*names, "_db", "_table"], access=self.access))

    def _of_keys(self, batch: pa.RecordBatch, bad: Any) -> tuple[pa.RecordBatch, Any]:
        """`batch`, where the `bad` rows have nothing but their keys, and which of them the target may have as they were
        before they were bad: those whose keys it can have. It has no rows of other tables, nor of other keys
        (`raycdc.source.rows_by_key`).
        """
        keys = set((self.schema if self.view is None else self.view.source).primary_key)
        if self.view is not None and self.view.projection is not None:
            keys = {output.stored for output in self.view.projection.outputs if output.name in keys}
        keeps = {*keys, *META_COLUMNS, "_db", "_table"}
        hidden = pa.array(bad)
        columns = {
            name: values if name in keeps else pc.if_else(hidden, pa.scalar(None, values.type), values)
            for name, values in zip(batch.schema.names, batch.columns, strict=True)
        }
        left = pa.RecordBatch.from_pydict(columns)
        reasons = self.judge(self._shown(left).select([column.name for column in self.schema.columns]))
        return left, bad & reasons.is_null().to_numpy(zero_copy_only=False)

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [column.name for column in self.schema.columns]
        shown = batch if self.view is None else viewed(batch, self.view, names, table=self.segment.table)
        meta = [name for name in META_COLUMNS if name in batch.schema.names]
        return pa.RecordBatch.from_pydict({**{n: shown.column(n) for n in names}, **{n: batch.column(n) for n in meta}})

    def _kept(self, batch: pa.RecordBatch, letters: Letters | None) -> tuple[pa.RecordBatch, int, str]:
        """The rows that the target gets; how many that came are bad, and what the first of them has."""
        shown = self._shown(batch)
        reasons = self.judge(shown.select([column.name for column in self.schema.columns]))
        ops = batch.column("_op").to_numpy()
        bad = pc.is_valid(reasons).to_numpy(zero_copy_only=False) & (ops != RowKind.TRUNCATE)
        # A value that an image lacks is NULL, which every type has: a value that fails is the row's.
        # And a deletion of its key might take the row of another table.
        exact, wanted = replace(self.records, partial=False, upsert=False), np.ones(batch.num_rows, np.bool_)
        made, kept = judged(ops, batch.column("_seq").to_numpy(), wanted, bad, exact)
        if self.segment.kind == "backfill" and bad.any():
            batch, gone = self._of_keys(batch, bad)
            made, kept = np.where(gone, RowKind.DELETE, made), kept | gone
        told = np.flatnonzero(counted(ops, bad))
        if letters is not None and len(told):
            texts = reasons.take(pa.array(told)).to_pylist()
            letters.append(shown.take(pa.array(told)), texts, table=self.segment.table, schema=self.schema)
        first = int(told[0]) if len(told) else 0
        why = f"{reasons[first].as_py()} ({row_named(shown, first, self.schema)})" if len(told) else ""
        columns = {name: batch.column(name) for name in batch.schema.names} | {"_op": pa.array(made, pa.int8())}
        return pa.RecordBatch.from_pydict(columns).filter(pa.array(kept)), len(told), why
