"""stub"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.compiled import njit

JSON_NO_ROOM = -1
JSON_CORRUPT = -2


@njit
def json_text(data: Any, at: Any, end: Any, out: Any, to: Any, limit: Any) -> Any:
    """Stub"""
    return np.int64(JSON_CORRUPT)
