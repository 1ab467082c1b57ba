"""Parquet: every change as a row of a plain ``.parquet`` file, one file per table and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raycdc.sinks.api import TableCommit
from raycdc.sinks.files.sink import FileSink
from raycdc.sinks.rows import changelog_arrow
from raycdc.sinks.table_input import TableInput
from raycdc.sinks.task_plan import Input
from raycdc.sinks.tasks import WriteParquet, write_parquet_file
from raycdc.storage.files import FileName


class ParquetSink(FileSink):
    """The sink of Parquet files.

    One task writes the file of a table and epoch, because parts cannot be concatenated.
    """

    kind = "parquet"
    spark_format = "PARQUET"

    def part_inputs(self, work: TableCommit) -> list[list[Input]]:
        return [[Input(segment) for segment in work.segments]] if work.segments else []

    def task(self, table: TableInput, path: FileName) -> WriteParquet:
        return WriteParquet(table, path, changelog=True)

    def join(self, parts: Sequence[Path], whole: Path, work: TableCommit) -> None:
        if parts:
            parts[0].rename(whole)
        else:
            write_parquet_file(whole, changelog_arrow(work.schema), [])
