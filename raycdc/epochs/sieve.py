"""Segments without the rows that their merged target cannot have (`raycdc.bridge.bad_rows`).

For ``on_bad_record`` other than fail, and for columns whose type may be turned into the target's only for some of its
values: these alone are read and turned, on threads of the driver, and only a segment with a bad row is written anew.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.bridge import SegmentWriter
from raycdc.bridge.access import HERE, SegmentAccess
from raycdc.bridge.bad_rows import BadRecords, Letters, Sifted, counted, failing, judged, row_named, whole_updates
from raycdc.bridge.reading import read_segment, segment_schema
from raycdc.bridge.views import turned, viewed
from raycdc.checkpoint.manifest import Segment
from raycdc.epochs.made_segments import MadeSegments
from raycdc.errors import RowRefusedError
from raycdc.model import META_COLUMNS, Column, LogicalType, RowKind, TableId, TypeKind
from raycdc.model.view import RowView


class Sieve(MadeSegments):
    """See the module's docstring. Sieved segments are in `folder`, on this machine; callable from any thread.

    `local`: whether the tasks that will read them run here.
    """

    def __init__(self, records: BadRecords, folder: Path, *, access: SegmentAccess = HERE, local: bool = True) -> None:
        self._records = records
        super().__init__(folder)
        self._access = access
        self._local = local

    def concerns(self, segment: Segment) -> bool:
        """Whether rows of `segment` may be left out at all; told without reading it."""
        return self._records.leaves_out and segment.view is not None and bool(risky(segment.view))

    def __call__(self, segment: Segment, target: TableId, epoch: int) -> Sifted:
        """`segment`, which it `concerns`, without bad rows. `SegmentUnavailableError` when it cannot be read now."""
        view = segment.view
        assert view is not None
        columns = risky(view)
        task = _Task(segment, view, columns, target, self._records, self._access)
        if not task.any_bad():
            return Sifted(segment)
        if not self._local:
            raise RowRefusedError(
                f"{segment.table}: a value of it is none of the type that {target} has, and leaving rows out needs a "
                'Spark on this machine, such as spark.master = "local[*]".'
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        return task.sifted(self._folder, self._records.letters(epoch, f"{target}-{segment.name}"))


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
class _Task:
    segment: Segment
    view: RowView
    columns: list[tuple[Column, LogicalType]]
    target: TableId
    records: BadRecords
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

    def sifted(self, folder: Path, letters: Letters | None) -> Sifted:
        segment, access = self.segment, self.access
        names = segment_schema(segment, access=access).names
        writer = SegmentWriter.remaking(segment, folder, f"sieved-{uuid.uuid4().hex}.arrow")
        count, why = 0, ""
        rows = read_segment(replace(segment, view=None), [*names, "_db", "_table"], access=access)
        try:
            for batch in whole_updates(rows):
                kept, bad, first = self._kept(batch, letters)
                count, why = count + bad, why or first
                numbers = pc.subtract(kept.column("_seq"), pa.scalar(segment.seq_base, pa.int64()))
                stored = kept.set_column(kept.schema.get_field_index("_seq"), "_seq", numbers).select(names)
                writer.append(stored)
            made = writer.finish(seq_base=segment.seq_base) if writer.rows else None
            if letters is not None:
                letters.close()
        except BaseException:
            writer.abort()
            if letters is not None:
                letters.abort()
            raise
        return Sifted(None if made is None else replace(made, view=segment.view), count, why)

    def _kept(self, batch: pa.RecordBatch, letters: Letters | None) -> tuple[pa.RecordBatch, int, str]:
        """The rows that the target gets; how many that came are bad, and what the first of them has."""
        source = self.view.source
        names = [column.name for column in source.columns]
        shown = viewed(batch, replace(self.view, target=source, fill=False), names, table=self.segment.table)
        ops, which = batch.column("_op").to_numpy(), np.full(batch.num_rows, -1)
        for number, (column, want) in enumerate(self.columns):
            failed = failing(shown.column(column.name), lambda part, c=column, w=want: turned(part, c.type, w))  # type: ignore[misc]
            which = np.where((which < 0) & failed, number, which)
        which[ops == RowKind.TRUNCATE] = -1
        bad, wanted = which >= 0, np.ones(batch.num_rows, np.bool_)
        # A value that an image lacks is NULL, which every type has: a value that fails is the row's.
        # And a deletion of its key might take the row of another table.
        exact = replace(self.records, partial=False, upsert=False)
        made, kept = judged(ops, batch.column("_seq").to_numpy(), wanted, bad, exact)
        told = np.flatnonzero(counted(ops, bad))
        meta = [name for name in META_COLUMNS if name in batch.schema.names]
        full = pa.RecordBatch.from_pydict({**{n: shown.column(n) for n in names}, **{n: batch.column(n) for n in meta}})
        if letters is not None and len(told):
            reasons = [self._reason(int(which[place])) for place in told]
            letters.append(full.take(pa.array(told)), reasons, table=self.segment.table, schema=source)
        first = int(told[0]) if len(told) else 0
        why = f"{self._reason(int(which[first]))} ({row_named(full, first, source)})" if len(told) else ""
        columns = {name: batch.column(name) for name in batch.schema.names} | {"_op": pa.array(made, pa.int8())}
        return pa.RecordBatch.from_pydict(columns).filter(pa.array(kept)), len(told), why

    def _reason(self, number: int) -> str:
        column, want = self.columns[number]
        return f"the value of column {column.name!r} ({column.type.kind}) is no {want.arrow()}, which {self.target} has"
