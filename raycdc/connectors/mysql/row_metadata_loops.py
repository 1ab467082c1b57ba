"""Compiled metadata of decoded rows: `_seq`, `_ts_ms`, positions and `_pos`."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.compiled import njit
from raycdc.connectors.mysql.binlog_index_loops import E_MS, E_POS, E_ROWS


@njit
def number_rows(events: Any, count: Any, first_seq: Any, event_seq: Any) -> Any:
    """Give each event the number of its first row, in log order; returns the next free number."""
    seq = first_seq
    for i in range(count):
        event_seq[i] = seq
        seq += events[i, E_ROWS]
    return seq


@njit
def row_metadata(
    events: Any, event_seq: Any, row_event: Any, row_number: Any, seq: Any, millis: Any, positions: Any
) -> Any:
    """Fill `_seq`, `_ts_ms` and the end position of each row."""
    for r in range(len(row_event)):
        event = row_event[r]
        seq[r] = event_seq[event] + row_number[r]
        millis[r] = events[event, E_MS]
        positions[r] = events[event, E_POS]


@njit
def position_texts(name: Any, positions: Any, row_number: Any, offsets: Any, out: Any) -> Any:
    """Write ``file:position:row`` per row; `out` has room for ``len(name) + 42`` bytes each. Returns the bytes."""
    to = 0
    offsets[0] = 0
    for r in range(len(positions)):
        for i in range(len(name)):
            out[to + i] = name[i]
        to += len(name)
        for part in range(2):
            value = positions[r] if part == 0 else np.int64(row_number[r])
            out[to] = 58
            to += 1
            size = 1
            rest = value
            while rest >= 10:
                rest //= 10
                size += 1
            for i in range(size - 1, -1, -1):
                out[to + i] = 48 + value % 10
                value //= 10
            to += size
        offsets[r + 1] = to
    return to
