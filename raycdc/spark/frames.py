"""One table's rows of an epoch as a typed DataFrame, for sinks that write with Spark SQL.

Python tasks read the segments and pass them on as Arrow, so each column has exactly the type of the model, and the
schema may differ from epoch to epoch at no cost. Reading is repeatable, so Spark may retry and recompute.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from raycdc.model import META_COLUMNS, TableSchema
from raycdc.segments.access import HERE, SegmentAccess
from raycdc.segments.reading import read_segment
from raycdc.sinks.rows import changelog_names
from raycdc.sinks.task_inputs import Input, task_inputs
from raycdc.state.manifests.manifest import Segment

_META_DDL = "`_op` string, `_seq` bigint, `_ts_ms` bigint, `_db` string, `_table` string, `_pos` string"


def changelog_frame(
    spark: Any,
    segments: Sequence[Segment],
    schema: TableSchema,
    *,
    parallelism: int,
    columns: Sequence[str] | None = None,
    access: SegmentAccess = HERE,
) -> Any:
    """Return a DataFrame of the table's columns and the metadata columns, or of `columns` only.

    Columns that are not in `columns` are not read. Rows of different tasks come in any order; if the order matters, the
    caller must sort by `_seq`.
    """
    tasks = task_inputs(segments, parallelism=parallelism)
    names = list(columns) if columns is not None else changelog_names(schema)
    reader = ReadSegments(tasks, names, access)
    count = max(1, len(tasks))
    return spark.range(0, count, 1, count).mapInArrow(reader, changelog_ddl(schema, names))


def changelog_ddl(schema: TableSchema, names: Sequence[str]) -> str:
    """Return the Spark SQL column list of `names`."""
    meta = dict(zip(META_COLUMNS, _META_DDL.split(", "), strict=True))
    quoted = {c.name: f"`{c.name.replace('`', '``')}` {c.type.spark()}" for c in schema.columns}
    return ", ".join(quoted.get(name) or meta[name] for name in names)


class ReadSegments:
    """The function of the job: for each input row, the index of a task, it yields the rows of that task's segments.

    Pickled by the name of this module.
    """

    def __init__(self, tasks: list[list[Input]], columns: list[str], access: SegmentAccess) -> None:
        self._tasks = tasks
        self._columns = columns
        self._access = access

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                if index < len(self._tasks):
                    yield from self._read(self._tasks[index])

    def _read(self, inputs: list[Input]) -> Iterator[pa.RecordBatch]:
        for entry in inputs:
            yield from read_segment(
                entry.segment,
                self._columns,
                access=self._access,
                part=entry.part,
                symbols=True,
            )
