"""Counts large documents, and warns once of each collection that has some.

A change of a large document may be an event of more than 16 MiB, which servers before 6.0.9 cannot send. The document
is then read by its key, and the document before the change is missing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mongodb.bson.size_loops import larger_than
from raycdc.model import TableId

#: Half of the largest message, because an event may have a document twice, before and after its change.
LARGE_BYTES = 8 << 20

_log = logging.getLogger(__name__)


class LargeDocuments:
    """The counts of large documents in one process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"LargeDocuments({dict(self._counts)})"

    def __reduce__(self) -> Any:
        return LargeDocuments, ()

    def counts(self) -> dict[str, int]:
        """Return the number of large documents by collection."""
        with self._lock:
            return dict(self._counts)

    def count(self, table: TableId, documents: bytes) -> None:
        """Count the large documents in `documents`, which are concatenated."""
        if len(documents) > LARGE_BYTES:
            self._met(table, int(larger_than(np.frombuffer(documents, np.uint8), LARGE_BYTES)))

    def count_at(self, table: TableId, data: bytes, indexes: npt.NDArray[np.int64]) -> None:
        """Count the large documents in `data` at the offsets `indexes` (0: none)."""
        if len(data) > LARGE_BYTES:
            found = np.frombuffer(data, np.uint8)
            sizes = sum(found[indexes + i].astype(np.int64) << (8 * i) for i in range(4))
            self._met(table, int(((sizes > LARGE_BYTES) & (indexes > 0)).sum()))

    def _met(self, table: TableId, count: int) -> None:
        if not count:
            return
        with self._lock:
            first = str(table) not in self._counts
            self._counts[str(table)] += count
        if first:
            _log.warning(
                "%s has documents of more than 8 MiB: where an event of one is more than 16 MiB, a server before "
                "6.0.9 cannot send it, and the document is read by its key.",
                table,
            )
