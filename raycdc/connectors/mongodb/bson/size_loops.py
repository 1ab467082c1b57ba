"""A compiled loop over the sizes of concatenated documents."""

from __future__ import annotations

from typing import Any

from raycdc.connectors.mongodb.bson.element_loops import container_end
from raycdc.core.loops.compiling import njit


@njit
def larger_than(data: Any, limit: int) -> int:
    """Return the number of documents in `data` with more than `limit` bytes; the count ends at damage."""
    at = 0
    count = 0
    size = len(data)
    while at < size:
        last = container_end(data, at, size)
        if last < 0:
            break
        if last - at > limit:
            count += 1
        at = last
    return count
