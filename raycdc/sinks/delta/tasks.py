"""The stage task of a partitioned Delta table: it reads segments and writes a file for each partition.

A `TaskRunner` runs it in a Spark worker or in the driver process, like the tasks of `raycdc.sinks.tasks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from raycdc.sinks.delta.layout import check_days, folder_of, partition_values
from raycdc.sinks.lakes.partitioning import gathered
from raycdc.sinks.task_inputs import TableTask
from raycdc.sinks.tasks import DataFile, write_parquet_file
from raycdc.storage.files import AnyPath


@dataclass(frozen=True, slots=True)
class WritePartitioned(TableTask[list[DataFile]]):
    """Writes rows like `raycdc.sinks.tasks.WriteParquet`, with one or more files for each partition by `partition_by`.

    Columns that rows lack are NULL. The names of files are made from `path`, which is in the table's folder.
    """

    path: AnyPath
    changelog: bool
    partition_by: Sequence[str]
    target: str

    def run(self) -> list[DataFile]:
        arrow, rows = self.table.arrow(changelog=self.changelog), self.table.rows(changelog=self.changelog)
        return write_files(self.path, arrow, rows, self.partition_by, target=self.target)


def write_files(
    path: AnyPath, schema: pa.Schema, batches: Iterable[pa.RecordBatch], partition_by: Sequence[str], *, target: str
) -> list[DataFile]:
    """Write `batches` of `schema`, the rows of each partition into separate files whose names are made from `path`.

    Raises `DataError` for a value that cannot partition a table.
    """

    def keys(rows: pa.Table) -> list[pa.Array | pa.ChunkedArray]:
        check_days(rows, partition_by, target)
        nothing = pa.nulls(rows.num_rows)
        return [rows.column(name) if name in rows.column_names else nothing for name in partition_by]

    kept = pa.schema([field for field in schema if field.name not in partition_by])
    named = (pa.RecordBatch.from_arrays(batch.columns, names=schema.names) for batch in batches)
    files: list[DataFile] = []
    for number, (values, rows) in enumerate(gathered(named, keys)):
        partition = partition_values(partition_by, values, target)
        index = path.parent / folder_of(partition) / path.name.replace("part-", f"part-{number:05d}-", 1)
        written = write_parquet_file(index, kept, (batch.select(kept.names) for batch in rows))
        files.append(replace(written, partition=partition))
    return files
