"""A base class for sinks that load rows one by one: stage tasks write each commit's rows as JSON lines into a folder.

`LinesSink` implements `prepare` and `after_commit` of `ExactlyOnceSink`. A sink implements `opened` and the methods of
its `Target`, which read the rows with `staged_rows`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from raycdc.core.typed_codec import Json
from raycdc.sinks.api import TableCommit
from raycdc.sinks.steps import ExactlyOnceSink, StageBatch, TargetT
from raycdc.sinks.tasks import LinesFile, WriteJsonLines

#: The result of a commit's single task: the file that it wrote.
StagedLines = list[LinesFile]
#: A value that every database accepts.
Plain = str | int | float | bool | None


class LinesSink(ExactlyOnceSink[TargetT]):
    """A sink whose rows are staged as JSON lines; see the module's docstring.

    Only for changelogs: each line is an event, and the lines are in order.
    """

    #: The folder for staged files, on a disk that tasks and the driver share. It must contain nothing else. Several
    #: pipelines may share it.
    staging: Path

    def prepare(self, work: TableCommit, batch: StageBatch) -> StagedLines:
        path = self._files_of(work) / f"{work.epoch}-{work.generation}.jsonl"
        staged: StagedLines = []
        batch.add(WriteJsonLines(self._context.table_input(work), str(path)), staged.append)
        return staged

    def after_commit(self, work: TableCommit, staged: StagedLines) -> None:
        # Files of earlier drivers are deleted, too. Files of later epochs may already be staged.
        for path in self._files_of(work).glob("*.jsonl"):
            if int(path.stem.partition("-")[0]) <= work.epoch:
                path.unlink(missing_ok=True)

    def _files_of(self, work: TableCommit) -> Path:
        return self.staging / self._context.app_id / str(work.target)


def staged_rows(staged: StagedLines, names: Sequence[str]) -> Iterator[list[Plain]]:
    """Yield the staged rows in order, each as the list of its values in the columns `names`. JSON documents and bytes
    are given as JSON text. Integers of more than 64 bits are given as text, so that they are not rounded.
    """
    for file in staged:
        with Path(file.path).open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                yield [_plain(row[name]) for name in names]


def _plain(value: Json) -> Plain:
    match value:
        case None | str() | float() | bool():
            return value
        case int():
            return str(value) if value.bit_length() > 63 else value
        case _:
            return json.dumps(value)
