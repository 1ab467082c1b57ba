"""The input of a stage task: rows of a table's segments, their schema, and the access to the segments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from raycdc.model import TableSchema
from raycdc.segments.access import SegmentAccess
from raycdc.segments.reading import read_segment
from raycdc.segments.tasks import ResultT_co, StageTask
from raycdc.sinks.rows import changelog_arrow, changelog_names
from raycdc.sinks.task_plan import Input
from raycdc.state.manifests.manifest import Segment


@dataclass(frozen=True, slots=True)
class TableInput:
    """The rows of a table that one stage task reads. `SinkContext.table_input` makes it."""

    inputs: tuple[Input, ...]
    schema: TableSchema
    access: SegmentAccess

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.inputs)

    @property
    def segments(self) -> Collection[Segment]:
        return [entry.segment for entry in self.inputs]

    def batches(self, columns: Sequence[str], *, symbols: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the batches in order, with `columns`; see `raycdc.segments.reading.read_segment`."""
        for entry in self.inputs:
            yield from read_segment(entry.segment, list(columns), access=self.access, part=entry.part, symbols=symbols)

    def rows(self, *, changelog: bool) -> Iterator[pa.RecordBatch]:
        """Yield the unchanged rows: as events (`changelog`), or the table's columns of snapshot rows, which are all
        inserts.
        """
        names = changelog_names(self.schema) if changelog else self.schema.arrow().names
        return self.batches(names, symbols=changelog)

    def arrow(self, *, changelog: bool) -> pa.Schema:
        """Return the schema of `rows`."""
        return changelog_arrow(self.schema) if changelog else self.schema.arrow()


@dataclass(frozen=True, slots=True)
class TableTask(StageTask[ResultT_co]):
    """The base of stage tasks that read `table`."""

    table: TableInput

    @property
    def input_bytes(self) -> int:
        return self.table.bytes

    @property
    def segments(self) -> Collection[Segment]:
        return self.table.segments
