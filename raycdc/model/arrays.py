"""What Arrow's arrays lack: which of their values cannot be turned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa


def failing(array: pa.Array, turn: Callable[[pa.Array], Any]) -> Any:
    """Of each value whether `turn` raises on it: halved until they are found, so good ones cost one call together."""
    bad = np.zeros(len(array), np.bool_)
    waiting = [(0, len(array))]
    while waiting:
        start, count = waiting.pop()
        try:
            turn(array.slice(start, count))
        except pa.ArrowException:
            if count == 1:
                bad[start] = True
            else:
                waiting += [(start, count // 2), (start + count // 2, count - count // 2)]
    return bad
