"""The source's side: a table's rows by its own SELECTs, as the columns of its target, and the places it was read at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.checkpoint.opaque import Position
from raycdc.model import META_COLUMNS, TableId, TableSchema
from raycdc.model.view import constant_type
from raycdc.source.connector import IncrementalSource
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import OpenedAt, SnapshotSplit
from raycdc.transform.hiding import Hiding
from raycdc.transform.resolved import COMPUTED, ResolvedTransform
from raycdc.verify.expressions import Expressions, computable


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Rows of `table` as its target has them: masked by `hiding`, and by what `transform` chooses, renames, filters and
    computes (by `expressions`).

    `schema` is that of the result.
    """

    table: TableId
    schema: TableSchema
    hiding: Hiding
    expressions: Expressions
    transform: ResolvedTransform | None = None

    def columns(self, batch: pa.RecordBatch) -> Mapping[str, pa.Array]:
        """The target's columns by name, of a batch of the source's, also of rows that a filter leaves out. Values that
        differ from change to change are not among them. Raises `NotComparedError`.
        """
        return self._made(batch)[0]

    def rows(self, batch: pa.RecordBatch) -> tuple[Mapping[str, pa.Array], int]:
        """As `columns`, of the rows that the target has, and how many these are."""
        columns, passing = self._made(batch)
        if passing is None:
            return columns, batch.num_rows
        chosen = pa.array(passing)
        return {name: array.filter(chosen) for name, array in columns.items()}, int(passing.sum())

    def _made(self, batch: pa.RecordBatch) -> tuple[Mapping[str, pa.Array], np.ndarray | None]:
        batch = self.hiding.batch(self.table, batch)
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
        """The columns that `columns` gives."""
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
    """No row that was read is behind `ordinal`; they came in so many `ranges`."""

    ordinal: int = 0
    ranges: int = 0


@dataclass(frozen=True, slots=True)
class SourceTableRows:
    """A table at the source: `document` describes it as the state has it at the place where it is compared."""

    source: IncrementalSource[Any]
    table: TableId
    document: SchemaDocument
    maker: RowMaker

    def splits(self) -> Iterator[SnapshotSplit]:
        """Ranges of the table's chunk key that cover it exactly once. Blocks."""
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
        """The rows of these `ranges` (None: all rows) as the source has them, each range not before everything up to
        `position` is visible. `up_to` says at the end how far that was.

        Raises `TableChangedError` where the table is not as described (any more).
        """
        with closing(self.source.chunk_reader()) as reader:
            for split in self.splits() if ranges is None else ranges:
                opened = OpenedAt(position, as_of=split.as_of)
                yield from reader.read(split, opened_at=opened, document=self.document)
                end = reader.high_watermark()
                up_to.ordinal = max(up_to.ordinal, end.ordinal, end.log_end)
                up_to.ranges += 1
