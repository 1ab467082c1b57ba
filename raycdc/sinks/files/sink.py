"""Sinks of plain files, one per table and epoch: Parquet and JSON Lines.

```
PATH/DB/TABLE/epoch-0000000012.3-1a2b3c4d.jsonl        visible rows; its name *is* the commit record
PATH/DB/TABLE/_raycdc/epoch-0000000012.3-1a2b3c4d-g1.json  generation 1's note about the file of that name:
                                                       positions, generation, inode; written just before
PATH/DB/TABLE/_raycdc/newest-1a2b3c4d.json             the note about the newest visible file, so that a loader may
                                                       remove that one, too
PATH/DB/TABLE/_raycdc/writer-1a2b3c4d.json, barred-…   the writers (`raycdc.sinks.files.folder_target`)
PATH/DB/TABLE/_raycdc/stage/…                          staged files, deleted after they became visible
```

The name of a visible file contains the epoch, the step and a hash of the pipeline's identity. One ``link`` makes the
file visible. It fails if the name exists, so a second attempt, by a retry or by a suspended driver, changes nothing.
The protocol for object stores is different (`raycdc.sinks.files.store_target`). A tombstone is an empty file with the
name of the epoch's file. Readers skip names that begin with ``_`` or ``.``.

`JsonlSink` writes every change as a line of JSON, and `ParquetSink` as a row of Parquet.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.model import TableId
from raycdc.segments.tasks import StageTask
from raycdc.sinks.api import CHANGELOG, SinkContext, TableCommit, TargetShape
from raycdc.sinks.files.folder_target import FilesTarget, FileSteps, Part
from raycdc.sinks.files.plugin import JsonlSinkConfig, ParquetSinkConfig
from raycdc.sinks.files.store_target import StoreSteps
from raycdc.sinks.rows import changelog_arrow
from raycdc.sinks.steps import ExactlyOnceSink, StageBatch
from raycdc.sinks.targets import spark_statement, table_folder
from raycdc.sinks.task_inputs import Input, TableInput, task_inputs
from raycdc.sinks.tasks import WriteJsonLines, WriteParquet, write_parquet_file
from raycdc.state.files.folder import private_file
from raycdc.storage.api import StoreError
from raycdc.storage.files import Access, FileName, StorePath, any_path, as_text, has_secrets
from raycdc.storage.settings import LIKE_ANYBODY
from raycdc.storage.url import is_url


class FileSink(ExactlyOnceSink[FilesTarget]):
    """The base class of sinks of files. Subclasses write parts, and join them to one file."""

    writes: ClassVar[tuple[str, ...]] = (CHANGELOG,)
    #: Spark's name for the file format.
    spark_format: ClassVar[str]

    def __init__(self, config: ParquetSinkConfig | JsonlSinkConfig) -> None:
        super().__init__()
        self._path = config.path
        #: The folder of all targets. The access settings of a store are only known after `open`.
        self.root = any_path(config.path, Access(LIKE_ANYBODY))
        self._secrets: Path | None = None
        self._accepted: set[TableId] = set()

    def open(self, context: SinkContext) -> None:
        self.inspect(context)
        if is_url(self._path) and has_secrets(context.storage):
            settings = as_text(context.storage)
            self._secrets = private_file(Path(context.private or tempfile.gettempdir()), settings)
            self.root = any_path(self._path, Access(context.storage, str(self._secrets), written=settings))

    def inspect(self, context: SinkContext) -> None:
        super().inspect(context)
        self.root = any_path(self._path, Access(context.storage))

    def close(self) -> None:
        if self._secrets is not None:
            self._secrets.unlink(missing_ok=True)
            self._secrets = None

    def statement(self, target: TargetShape) -> str:
        return spark_statement(target, self.spark_format, self._path)

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[FilesTarget]:
        try:
            yield self._target(target)
        except StoreError as cause:
            raise (SinkError if cause.lasting else SinkUnavailableError)(str(cause)) from cause

    def prepare(self, work: TableCommit, batch: StageBatch) -> list[Part]:
        staged: list[Part] = []
        target = self._target(work.target)
        parts = self.part_inputs(work)
        if is_url(self._path) and parts:
            # In a store, a file is one object, and cannot be joined from parts.
            parts = [[entry for share in parts for entry in share]]
        for index, inputs in enumerate(parts):
            batch.add(self.task(self._context.table_input(work, inputs), target.part(work, index)), staged.append)
        return staged

    def after_commit(self, work: TableCommit, staged: list[Part]) -> None:
        self._target(work.target).unstage(work.epoch)

    def forget(self, target: TableId) -> None:
        super().forget(target)
        self._accepted.discard(target)

    @abstractmethod
    def part_inputs(self, work: TableCommit) -> Sequence[list[Input]]:
        """Return the inputs of each task that writes a part of `work`."""

    @abstractmethod
    def task(self, table: TableInput, path: FileName) -> StageTask[Part]:
        """Return the task that writes one part to `path`."""

    @abstractmethod
    def join(self, parts: Sequence[Path], whole: Path, work: TableCommit) -> None:
        """Join `parts` to one durable file; the parts may be deleted. Without parts, make an empty file with the schema
        of the epoch.
        """

    def _target(self, target: TableId) -> FilesTarget:
        folder = table_folder(self.root, target)
        if isinstance(folder, StorePath):
            return StoreSteps(target, folder, self._context, kind=self.kind, accepted=self._accepted)
        return FileSteps(target, folder, self._context, kind=self.kind, join=self.join, accepted=self._accepted)


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
