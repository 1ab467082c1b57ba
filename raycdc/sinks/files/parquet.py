"""Parquet: every change as a row of a plain ``.parquet`` file, one file per table and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raycdc.bridge.tasks import StageTask
from raycdc.sinks.api import TableWork
from raycdc.sinks.files.sink import FileSink
from raycdc.sinks.plan import Input
from raycdc.sinks.rows import changelog_arrow
from raycdc.sinks.tasks import write_parquet_file


class ParquetSink(FileSink):
    """One task per table and epoch, because two Parquet files cannot become visible in one step."""

    kind = "parquet"

    def tasks(self, work: TableWork) -> list[StageTask]:
        if not work.segments:
            return []
        task = StageTask(
            "raycdc.sinks.tasks:write_parquet",
            {
                "inputs": [Input(segment).to_json() for segment in work.segments],
                "schema": work.schema.to_json(),
                "path": self.part(work, 0),
                "changelog": True,
                **self.task_args(),
            },
            input_bytes=work.input_bytes,
        )
        return [task]

    def join(self, parts: Sequence[Path], whole: Path, work: TableWork) -> None:
        if parts:
            parts[0].rename(whole)
        else:
            write_parquet_file(whole, changelog_arrow(work.schema), [])
