"""How far tables are, one by one and all together, where only tables of which there was news are looked at again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from raycdc.checkpoint.manifest import Segment
from raycdc.model import TableId
from raycdc.source.protocol.api import TableCounts, TableProgress


@dataclass(frozen=True, slots=True)
class Published:
    """Chunks of a table that are published and in no manifest yet."""

    chunks: int = 0
    rows: int = 0
    bytes: int = 0


NONE_PUBLISHED = Published()


class CountedTables:
    """`TablesProgress`: see the module's docstring. `progress_of` says how far a table is, with what is published of it
    and in no manifest yet. Not thread-safe.
    """

    def __init__(self, progress_of: Callable[[TableId, Published], TableProgress]) -> None:
        self._progress_of = progress_of
        self._published: dict[TableId, Published] = {}
        self._progress: dict[TableId, TableProgress] = {}
        self._news: dict[TableId, None] = {}
        self._in_snapshot = self._chunks_done = self._chunks_left = 0

    def __repr__(self) -> str:
        return f"CountedTables({self.counts()})"

    def note(self, table: TableId) -> None:
        """There is news of the table, or may be."""
        self._news[table] = None

    def published(self, table: TableId, times: int, segments: Iterable[Segment]) -> None:
        """A chunk of it with these `segments` is published and in no manifest, or (`times` is -1) is that no more."""
        before = self._published.pop(table, NONE_PUBLISHED)
        rows, size = before.rows, before.bytes
        for segment in segments:
            rows, size = rows + times * segment.rows, size + times * segment.bytes
        if (now := Published(before.chunks + times, rows, size)) != NONE_PUBLISHED:
            self._published[table] = now
        self._news[table] = None

    def tables(self) -> Mapping[TableId, TableProgress]:
        """One by one; whoever keeps it sees it change."""
        self._look()
        return self._progress

    def counts(self) -> TableCounts:
        """All together."""
        self._look()
        return TableCounts(len(self._progress), self._in_snapshot, self._chunks_done, self._chunks_left)

    def _look(self) -> None:
        for table in self._news:
            if (before := self._progress.get(table)) is not None:
                self._count(before, -1)
            now = self._progress[table] = self._progress_of(table, self._published.get(table, NONE_PUBLISHED))
            self._count(now, +1)
        self._news.clear()

    def _count(self, progress: TableProgress, times: int) -> None:
        self._chunks_done += times * progress.chunks_done
        if progress.phase == "snapshot":
            self._in_snapshot += times
            self._chunks_left += times * max(0, progress.chunks_total - progress.chunks_done)
