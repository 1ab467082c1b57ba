"""The chunk keys of tables in their snapshot, which no statement may change, because chunks are ranges of them.

The log's fetcher thread asks, ahead of the reader's, which knows when a snapshot is over and says so by counting: the
first, second … snapshot of a table since the start. Where a snapshot ends while it is asked, the table is taken for one
that is still in it, and begins again without need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from raycdc.connectors.mysql.snapshot.keys import order_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.source.snapshot.chunk_key import ChunkKey, key_names


class SnapshotKeys:
    """`keys` are those of snapshots under way at the start; `over` how many snapshots of a table are, live."""

    def __init__(
        self, keys: Mapping[TableId, ChunkKey] | None = None, over: Mapping[TableId, int] | None = None
    ) -> None:
        self._keys: dict[TableId, ChunkKey | None] = dict(keys or {})
        self._begun = Counter(self._keys.keys())
        self._over = {} if over is None else over

    def begin(self, table: TableId, key: ChunkKey | None) -> None:
        """The next snapshot of `table` begins, cut by `key`."""
        self._keys[table] = key
        self._begun[table] += 1

    def under_way(self, table: TableId) -> bool:
        """Whether the table is in its snapshot, as far as is known."""
        return table in self._keys and self._over.get(table, 0) < self._begun[table]

    def changed(self, before: MySqlTable, after: MySqlTable) -> str | None:
        """The column by which a table in its snapshot phase is cut, and which is another one afterwards; None: none."""
        key = self._keys.get(before.id)
        if key is None or not self.under_way(before.id):
            return None
        return next((name for name in key_names(key) if order_of(before, name) != order_of(after, name)), None)
