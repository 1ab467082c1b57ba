"""The console sink, for testing: it prints every change as a JSON line to standard output. It remembers nothing between
runs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from raycdc.model import TableId
from raycdc.model.table import file_name
from raycdc.sinks.api import CHANGELOG, CommitVector, Sink, SinkContext, TableCommit
from raycdc.sinks.files.plugin import ConsoleSinkConfig
from raycdc.sinks.targets import check_write
from raycdc.sinks.tasks import WriteJsonLines


class ConsoleSink(Sink):
    """Prints rows to standard output. Stage tasks render them into a temporary folder, and each commit prints an epoch.

    Delivery is at least once: an epoch whose printing a crash interrupted is printed again.
    """

    writes: ClassVar[tuple[str, ...]] = (CHANGELOG,)
    durable: ClassVar[bool] = False

    def __init__(self, config: ConsoleSinkConfig) -> None:
        self.config = config

    def open(self, context: SinkContext) -> None:
        check_write("console", self.writes, context.write)
        self._context = context
        self._folder = tempfile.TemporaryDirectory(prefix="raycdc-console-")

    def inspect(self, context: SinkContext) -> None:
        """Do nothing, because there is nothing to check."""

    def require_free(self, target: TableId) -> None:
        """Do nothing, because every target can be printed."""

    def committed(self, target: TableId) -> CommitVector | None:
        return None

    def apply_schema(self, work: TableCommit) -> None:
        """Do nothing, because each line contains the names of its columns."""

    def stage(self, commits: Sequence[TableCommit]) -> Mapping[TableId, Any]:
        written = [work for work in commits if work.segments]
        results = self._context.run_tasks([self._task(work) for work in written]) if written else []
        paths = {work.target: result.path for work, result in zip(written, results, strict=True)}
        return {work.target: paths.get(work.target) for work in commits}

    def commit(self, work: TableCommit, staged: Any) -> None:
        if staged is not None:
            sys.stdout.write(Path(staged).read_text(encoding="utf-8"))
            sys.stdout.flush()
            Path(staged).unlink()

    def tombstone(self, work: TableCommit) -> None:
        """Do nothing, because printed rows cannot be removed or barred."""

    def close(self) -> None:
        self._folder.cleanup()

    def _task(self, work: TableCommit) -> WriteJsonLines:
        path = Path(self._folder.name) / f"{work.epoch}-{file_name(str(work.target))}.jsonl"
        return WriteJsonLines(self._context.table_input(work), str(path))
