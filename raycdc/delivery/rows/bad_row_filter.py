"""Removes rows that a target cannot hold from segments (`raycdc.segments.bad_rows`).

Two kinds of rows are removed:

* Rows of a merged target, if ``on_bad_record`` leaves rows out. Before the rows are staged, the filter reads and checks
  the columns of which only some values convert to the target's type.
* Rows with a value that the target can never have (`Sink.unrepresentable`). After the target refused a value, the
  filter reads and checks all columns.

Runs on threads of the driver; only a segment with a bad row is written again.

`LeftOut` refuses epochs in which leaving rows out would silently make a target wrong. A deletion of a bad row is
recognized because the row is found bad again when it is deleted (`raycdc.segments.bad_rows`). If a column's type
changes, the server converts existing values, so different rows may be bad than before:

| target | a changed type of a column |
|---|---|
| of one table, upsert | followed, because the removal of a bad row always deletes its key |
| of one table, a changelog | refused if expressions use the column |
| of several tables | refused if values may not fit the target's type, and if rows were left out before |

If no row was left out so far, a change that would be refused is followed and recorded (``retyped.json``). After that,
no row may be left out any more. In an upsert target of several tables, deleting the key of a bad row might remove
another table's row. Tables whose expressions may fail are therefore always refused there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_floating

from raycdc.errors import RoutesRefusedError, RulesRefusedError, ValueRefusedError
from raycdc.model import META_COLUMNS, Column, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.model.arrays import failing
from raycdc.model.column_names import mysql_fold, spark_fold
from raycdc.model.evolution.apply import find_column
from raycdc.model.evolution.events import AlterColumnTypeEvent
from raycdc.model.evolution.targets import Tables, TargetEpoch, TargetSchema
from raycdc.model.redaction import row_named
from raycdc.model.table import file_name
from raycdc.model.view import RowView
from raycdc.segments import SegmentWriter
from raycdc.segments.access import HERE, SegmentAccess
from raycdc.segments.bad_rows import (
    ON_BAD_RECORD,
    BadRecords,
    DeadLetterFile,
    FilteredRows,
    FilteredSegment,
    counted,
    judged,
    whole_updates,
    write_filtered,
)
from raycdc.segments.reading import read_segment, segment_schema, turned, viewed
from raycdc.segments.writing import MadeSegments
from raycdc.sinks.api import TableCommit
from raycdc.state.bad_row_counts import bad_rows
from raycdc.state.manifests.manifest import Manifest, Segment
from raycdc.state.store import CheckpointStore
from raycdc.transform import ResolvedTransform

#: The type of `raycdc.sinks.api.Sink.unrepresentable`.
UnrepresentableRows = Callable[[TableCommit, pa.RecordBatch], pa.Array]
#: Returns for each row of a batch, which has the columns of a table, the reason why it is bad, or null.
Judge = Callable[[pa.RecordBatch], pa.Array]


class BadRowFilter(MadeSegments):
    """Removes bad rows; see the module's docstring.

    New segments are written to `folder`, on this machine. Callable from any thread.
    """

    def __init__(self, records: BadRecords, folder: Path, *, access: SegmentAccess = HERE) -> None:
        self._records = records
        super().__init__(folder)
        self._access = access

    def concerns(self, segment: Segment) -> bool:
        """Return True if rows of `segment` may have to be left out. Does not read the segment."""
        return self._records.leaves_out and segment.view is not None and bool(risky(segment.view))

    def __call__(self, segment: Segment, target: TableId, epoch: int) -> FilteredSegment:
        """Return `segment`, for which `concerns` is True, without bad rows.

        Raises `SegmentUnavailableError` if it cannot be read now.
        """
        view = segment.view
        assert view is not None
        merged = _Merged(segment, view, risky(view), target, self._access)
        if not merged.any_bad():
            return FilteredSegment(segment)
        plain = replace(view, target=view.source, fill=False)
        return self._filtered(
            _Task(segment, plain, view.source, merged.reasons, self._records, self._access), target, epoch
        )

    def without_unrepresentable(
        self, segment: Segment, work: TableCommit, unrepresentable: UnrepresentableRows
    ) -> FilteredSegment:
        """Return `segment` of `work` without rows that the target can never have. Called after the target refused a
        value.

        If the policy leaves no rows out, raise a `ValueRefusedError` that names the first bad row.
        """

        def judge(rows: pa.RecordBatch) -> pa.Array:
            return unrepresentable(work, rows)

        task = _Task(segment, segment.view, work.schema, judge, self._records, self._access)
        why = task.first()
        if not why:
            return FilteredSegment(segment)
        if not self._records.leaves_out:
            raise ValueRefusedError(f"{work.target}: {why}. {ON_BAD_RECORD}")
        return self._filtered(task, work.target, work.epoch)

    def _filtered(self, task: _Task, target: TableId, epoch: int) -> FilteredSegment:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = file_name(str(target))
        # The `part` of the dead letters is the target's name and not the segment's, because a segment gets a new name
        # each time it is derived. The dead letters of all segments of a target then replace earlier ones together.
        return task.filtered(self._folder, self._records.dead_letters(epoch, f"{name}-{task.segment.name}", name))


def risky(view: RowView) -> list[tuple[Column, LogicalType]]:
    """Return the columns of the view's source whose values may not fit the target's type, with that type."""
    wanted = {mysql_fold(column.name): column.type for column in view.target.columns}
    found = []
    for column in view.source.columns:
        want = wanted.get(mysql_fold(column.name))
        if want is not None and may_fail(column.type, want):
            found.append((column, want))
    return found


def may_fail(have: LogicalType, want: LogicalType) -> bool:
    """Return True if some values of `have` do not fit `want`.

    `want` is the type that it is merged into (`raycdc.model.evolution.merge`).
    """
    if have.kind is TypeKind.BINARY:
        return want.kind is not TypeKind.BINARY
    return have.kind in (TypeKind.INT64, TypeKind.BIT) and pa.types.is_floating(want.arrow())


@dataclass(frozen=True, slots=True)
class _Merged:
    """The `columns` of a segment whose values may not fit the types of the merged `target`."""

    segment: Segment
    view: RowView
    columns: list[tuple[Column, LogicalType]]
    target: TableId
    access: SegmentAccess

    def any_bad(self) -> bool:
        """Return True if at least one value does not fit."""
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
        """Return the reason why each row is bad, or null. A `Judge`."""
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
    """The check of one segment: `judge` gets its rows by `view`, if there is one, with the columns of `schema`."""

    segment: Segment
    view: RowView | None
    schema: TableSchema
    judge: Judge
    records: BadRecords
    access: SegmentAccess

    def first(self) -> str:
        """Return the reason for the first bad row, and the row's key; empty if no row is bad."""
        for batch in self._rows():
            shown = self._shown(batch)
            reasons = self.judge(shown.select([column.name for column in self.schema.columns]))
            if reasons.null_count < len(reasons):
                index = pc.index(pc.is_valid(reasons), True).as_py()
                return f"{reasons[index].as_py()} ({row_named(shown, index, self.schema)})"
        return ""

    def filtered(self, folder: Path, dead_letters: DeadLetterFile | None) -> FilteredSegment:
        segment = self.segment
        names = segment_schema(segment, access=self.access).names
        writer = SegmentWriter.remaking(segment, folder, f"filtered-{uuid.uuid4().hex}.arrow")

        def stored(batch: pa.RecordBatch) -> FilteredRows:
            kept, bad, first = self._kept(batch, dead_letters)
            numbers = pc.subtract(kept.column("_seq"), pa.scalar(segment.seq_base, pa.int64()))
            return kept.set_column(kept.schema.get_field_index("_seq"), "_seq", numbers).select(names), bad, first

        filtered = write_filtered(writer, dead_letters, map(stored, self._rows()), seq_base=segment.seq_base)
        made = filtered.segment
        return filtered if made is None else replace(filtered, segment=replace(made, view=segment.view))

    def _rows(self) -> Iterator[pa.RecordBatch]:
        names = segment_schema(self.segment, access=self.access).names
        plain = replace(self.segment, view=None)
        return whole_updates(read_segment(plain, [*names, "_db", "_table"], access=self.access))

    def _of_keys(self, batch: pa.RecordBatch, bad: Any) -> tuple[pa.RecordBatch, Any]:
        """Return `batch` with all values of its `bad` rows but their keys set to NULL, and a mask of bad rows that may
        be in the target.

        The target may have a bad row from before the row was bad, if it can hold the row's key. The target of a
        backfill has no rows of other tables, and no rows under other keys (`raycdc.source.tables.table_commands`), so a
        row with that key is this row.
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

    def _kept(self, batch: pa.RecordBatch, dead_letters: DeadLetterFile | None) -> tuple[pa.RecordBatch, int, str]:
        """Return the rows that the target gets, the number of bad ones, and the reason for the first."""
        shown = self._shown(batch)
        reasons = self.judge(shown.select([column.name for column in self.schema.columns]))
        ops = batch.column("_op").to_numpy()
        bad = pc.is_valid(reasons).to_numpy(zero_copy_only=False) & (ops != RowKind.TRUNCATE)
        # A missing value counts as NULL, which fits every type, so only an image with a bad value counts as bad. Bad
        # rows are not turned into deletions of their keys, because these might remove another table's row.
        exact, wanted = replace(self.records, partial=False, upsert=False), np.ones(batch.num_rows, np.bool_)
        made, kept = judged(ops, batch.column("_seq").to_numpy(), wanted, bad, exact)
        if self.segment.kind == "backfill" and bad.any():
            batch, deleted = self._of_keys(batch, bad)
            made, kept = np.where(deleted, RowKind.DELETE, made), kept | deleted
        reported = np.flatnonzero(counted(ops, bad))
        if dead_letters is not None and len(reported):
            texts = reasons.take(pa.array(reported)).to_pylist()
            dead_letters.append(shown.take(pa.array(reported)), texts, table=self.segment.table, schema=self.schema)
        first = int(reported[0]) if len(reported) else 0
        why = f"{reasons[first].as_py()} ({row_named(shown, first, self.schema)})" if len(reported) else ""
        columns = {name: batch.column(name) for name in batch.schema.names} | {"_op": pa.array(made, pa.int8())}
        return pa.RecordBatch.from_pydict(columns).filter(pa.array(kept)), len(reported), why


_NAME = "retyped.json"
_RESNAPSHOT = "Read its tables anew (raycdc tables resnapshot), which empties the target"


@dataclass(slots=True)
class LeftOut:
    """Refuses epochs in which leaving rows out would make a target wrong; see the module's docstring.

    The epoch loop calls it for each epoch, in order, after earlier epochs are staged.
    """

    store: CheckpointStore
    records: BadRecords
    upsert: bool
    _lost: set[TableId] = field(default_factory=set)
    _retyped: set[str] | None = None

    def add(self, tables: Collection[TableId]) -> None:
        """Note that a staged epoch leaves out rows of `tables`."""
        self._lost.update(tables)

    def check(
        self,
        manifest: Manifest,
        tables: Tables,
        target_epoch: TargetEpoch,
        before: TargetSchema | None,
        after: TargetSchema,
        transforms: Mapping[TableId, ResolvedTransform],
    ) -> None:
        """Check `target_epoch`, one target's part of the epoch of `manifest`. `tables` and `transforms` are those of
        all tables in the epoch.

        Raises `SchemaError` or `ConfigError` if leaving rows out would make the target wrong.
        """
        if before is None:
            self._forget(target_epoch.name)
        if self._leaves and str(target_epoch.name) in self._followed():
            raise RulesRefusedError(
                f'{target_epoch.name}: pipeline.on_bad_record = "{self.records.action}", and the type of a column '
                'changed while it was "fail": a row that was good when it was written may be bad now. Use "fail". Or: '
                f"{_RESNAPSHOT}."
            )
        known = before.sources if before is not None else ()
        retyped = {table: _retyped(manifest, table) for table in target_epoch.sources if table in known}
        if len(after.sources) == 1:
            for table, names in retyped.items():
                if not self.upsert:
                    self._check_changelog(target_epoch, table, names, transforms.get(table), manifest.epoch)
            return
        if self._leaves and self.upsert:
            self._check_merged_upsert(target_epoch, tables, transforms)
        lost = next((table for table in after.sources if self._has_lost(table, manifest.epoch)), None)
        for table, names in retyped.items():
            if names and (table == lost or self._has_lost(table, manifest.epoch)):
                raise self._refused(target_epoch, f"the type of column {names[0]!r} of {table} changed", table)
            self._check_source(target_epoch, table, tables[table][0], names, transforms.get(table))
        if before is not None and before.schema is not None:
            self._check_target(target_epoch, before.schema, lost)

    @property
    def _leaves(self) -> bool:
        return self.records.leaves_out

    def _has_lost(self, table: TableId, epoch: int) -> bool:
        return table in self._lost or str(table) in bad_rows(self.store, epoch - 1)

    def _followed(self) -> set[str]:
        """Return the recorded targets: those that followed a change of type before any of their rows was left out."""
        if self._retyped is None:
            self._retyped = set((self.store.documents.read(_NAME) or {}).get("targets", ()))
        return self._retyped

    def _follow(self, target: TableId) -> None:
        """Record the target, before the epoch with the change of type is staged. This is harmless if the epoch is never
        committed.
        """
        if str(target) not in self._followed():
            self._followed().add(str(target))
            self.store.documents.write(_NAME, {"targets": sorted(self._followed())})

    def _forget(self, target: TableId) -> None:
        """Remove the record of the target, which is new or is resnapshotted, so that it has no row from before a
        change.
        """
        if str(target) in self._followed():
            self._followed().discard(str(target))
            self.store.documents.write(_NAME, {"targets": sorted(self._followed())})

    def _check_changelog(
        self,
        target_epoch: TargetEpoch,
        table: TableId,
        names: Collection[str],
        resolved: ResolvedTransform | None,
        epoch: int,
    ) -> None:
        used = [name for name in names if resolved is not None and spark_fold(name) in resolved.uses.columns]
        lost = self._has_lost(table, epoch)
        if used and (self._leaves or lost):
            why = "rows of it were left out" if lost else f'pipeline.on_bad_record is "{self.records.action}"'
            raise RulesRefusedError(
                f"{table}: the type of column {used[0]!r}, which the table's transform uses, changed, and {why}. So "
                "nobody can tell any more which earlier rows the changelog has, and which it lacks as bad. "
                f"{_RESNAPSHOT}."
            )
        if used:
            self._follow(target_epoch.name)

    def _check_merged_upsert(
        self, target_epoch: TargetEpoch, tables: Tables, transforms: Mapping[TableId, ResolvedTransform]
    ) -> None:
        policy = f'pipeline.on_bad_record = "{self.records.action}"'
        for table in target_epoch.sources:
            if table in transforms and (transforms[table].computed or transforms[table].transform.filter):
                raise RoutesRefusedError(
                    f"{policy}: {table}, whose transform computes or filters, is merged with other tables into "
                    f"{target_epoch.name}, where a bad row might delete the row of another table. Route it elsewhere, "
                    'or use "fail".'
                )
            if self.records.partial and (name := _may_be_bad(tables[table][0], target_epoch.schema)):
                raise RoutesRefusedError(
                    f"{policy}: {table} is merged with other tables into {target_epoch.name}, where values of its "
                    f"column {name!r} may have no place, and its source does not say whether a bad row replaces one "
                    'that is there. Route it elsewhere, or use "fail".'
                )

    def _check_source(
        self,
        target_epoch: TargetEpoch,
        table: TableId,
        schema: TableSchema,
        names: Collection[str],
        resolved: ResolvedTransform | None,
    ) -> None:
        used = [name for name in names if resolved is not None and spark_fold(name) in resolved.uses.columns]
        if names and (used or _may_be_bad(schema, target_epoch.schema)):
            if self._leaves:
                name = next(iter(used or names))
                raise self._refused(target_epoch, f"the type of column {name!r} of {table} changed")
            self._follow(target_epoch.name)

    def _check_target(self, target_epoch: TargetEpoch, before: TableSchema, lost: TableId | None) -> None:
        for column in before.columns:
            index = find_column(target_epoch.schema, column.name)
            want = column.type if index is None else target_epoch.schema.columns[index].type
            if column.type.arrow() == want.arrow():
                continue
            # A change of type matters if rows are bad under only one of the two types.
            came = lost is not None and is_floating(column.type.arrow())
            if came or (self._leaves and may_fail(column.type, want)):
                change = f"the merged type of column {column.name!r} becomes {want.arrow()}"
                raise self._refused(target_epoch, change, lost if came else None)
            if may_fail(column.type, want):
                self._follow(target_epoch.name)

    def _refused(self, target_epoch: TargetEpoch, change: str, lost: TableId | None = None) -> RulesRefusedError:
        why = f'pipeline.on_bad_record is "{self.records.action}"' if lost is None else f"rows of {lost} were left out"
        return RulesRefusedError(
            f"{target_epoch.name}: {change}, and {why}. So nobody can tell any more which earlier rows the target has, "
            f"and which it lacks as bad. {_RESNAPSHOT}, or route tables of other types elsewhere."
        )


def _retyped(manifest: Manifest, table: TableId) -> list[str]:
    """Return the columns of `table` whose type changed at the source. Expressions may hide such a change."""
    return [event.name for event in manifest.tables[table].changes if isinstance(event, AlterColumnTypeEvent)]


def _may_be_bad(schema: TableSchema, merged: TableSchema) -> str:
    """Return a column of rows with `schema` whose values may not fit the merged type; empty if there is none."""
    for column in schema.columns:
        index = find_column(merged, column.name)
        if index is not None and may_fail(column.type, merged.columns[index].type):
            return column.name
    return ""
