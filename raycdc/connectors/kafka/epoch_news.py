"""The news of the open epoch for the enumerator, which a reader sends right before it reports its seal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raycdc.connectors.kafka.events import TableEmptied, TableHome
from raycdc.connectors.kafka.keys import NewKeys
from raycdc.model import TableId
from raycdc.source.protocol.source_event import SourceEvent


class EpochNews:
    """Tables with rows, where they were met, what emptied them, and new keys. Owned by the reader's thread."""

    def __init__(self) -> None:
        self._touched: set[TableId] = set()
        #: Partitions in which each table's rows were met, and whether the enumerator was told.
        self._homes: dict[tuple[TableId, str], bool] = {}
        self._emptied: list[TableEmptied] = []
        #: Only while partitions may share keys, which the enumerator knows.
        self._keys: NewKeys | None = None

    @property
    def checks_keys(self) -> bool:
        return self._keys is not None

    def check_keys(self) -> None:
        """From now on, which keys come from which partition is told, too."""
        self._keys = self._keys or NewKeys()

    def rows(self, table: TableId, split_id: str) -> None:
        """The open epoch has rows of `table` that come from this partition."""
        self._homes.setdefault((table, split_id), False)
        self._touched.add(table)

    def keys(self, table: TableId, split_id: str, hashes: npt.NDArray[np.uint64]) -> None:
        assert self._keys is not None, "nobody asked for keys"
        self._keys.read(table, split_id, hashes)

    def emptied(self, event: TableEmptied) -> None:
        self._emptied.append(event)

    def take(self) -> tuple[list[SourceEvent], list[TableId]]:
        """The events for the epoch that is being cut, in their order, and its tables. The next epoch has none yet."""
        homes = [home for home, told in self._homes.items() if not told]
        self._homes.update(dict.fromkeys(homes, True))
        keys = self._keys.take() if self._keys is not None else []
        events: list[SourceEvent] = [*(TableHome(table, split_id) for table, split_id in homes), *self._emptied, *keys]
        tables = sorted(self._touched)
        self._emptied.clear()
        self._touched.clear()
        return events, tables
