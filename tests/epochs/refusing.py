"""A sink of which one target refuses an epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raycdc.errors import TableRefusedError
from raycdc.model import TableId
from raycdc.sinks.api import Sink, TableCommit

ITEMS = TableId("shop", "items")


class Refusing:
    """A sink that refuses what is done with one target in one epoch, before or after it is done."""

    def __init__(self, sink: Sink, where: str, *, epoch: int, error: type[TableRefusedError]) -> None:
        self._sink = sink
        self._where = where
        self._epoch = epoch
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def apply_schema(self, work: TableCommit) -> None:
        self._refuse("apply", work)
        self._sink.apply_schema(work)

    def stage(self, works: Sequence[TableCommit]) -> Mapping[TableId, Any]:
        for work in works:
            self._refuse("stage", work)
        return self._sink.stage(works)

    def tombstone(self, work: TableCommit) -> None:
        self._refuse("tombstone", work)
        self._sink.tombstone(work)

    def commit(self, work: TableCommit, staged: Any) -> None:
        self._refuse("commit", work)
        self._sink.commit(work, staged)
        self._refuse("committed", work)

    def _refuse(self, where: str, work: TableCommit) -> None:
        if where == self._where and work.target == ITEMS and work.epoch == self._epoch:
            raise self._error(f"{work.target} refuses epoch {work.epoch}.")
