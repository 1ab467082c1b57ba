"""JSON Lines: every change as one line of a plain ``.jsonl`` file, one file per table and epoch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from raycdc.sinks.api import TableCommit
from raycdc.sinks.files.sink import FileSink
from raycdc.sinks.table_input import TableInput
from raycdc.sinks.task_plan import Input, task_inputs
from raycdc.sinks.tasks import WriteJsonLines
from raycdc.storage.files import FileName


class JsonlSink(FileSink):
    """The sink of JSON Lines files. Several tasks may write parts, because lines can be concatenated."""

    kind = "jsonl"
    spark_format = "JSON"

    def part_inputs(self, work: TableCommit) -> list[list[Input]]:
        return task_inputs(work.segments, parallelism=self._context.parallelism)

    def task(self, table: TableInput, path: FileName) -> WriteJsonLines:
        return WriteJsonLines(table, path)

    def join(self, parts: Sequence[Path], whole: Path, work: TableCommit) -> None:
        if len(parts) == 1:
            parts[0].rename(whole)
            return
        with whole.open("wb") as target:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
