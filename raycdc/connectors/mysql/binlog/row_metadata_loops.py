"""Computes the metadata of decoded rows, compiled: `_seq`, `_ts_ms`, positions and `_pos`."""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.binlog.index_loops import E_MS, E_POS, E_ROWS
from raycdc.connectors.mysql.values.arena_loops import write_number
from raycdc.core.compiled import copy, njit


@njit
def number_rows(events: Any, count: Any, first_seq: Any, event_seq: Any) -> Any:
    """Give each event the number of its first row, in log order. Returns the next free number."""
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
    to = np.int64(0)
    start = np.int64(0)
    prefix = np.int64(0)
    offsets[0] = 0
    for r in range(len(positions)):
        if r > 0 and positions[r] == positions[r - 1]:
            # Rows of one event differ only in their number.
            copy(out, start, out, to, prefix)
            start = to
            to += prefix
        else:
            start = to
            copy(name, 0, out, to, len(name))
            to += len(name)
            out[to] = 58
            to = write_number(out, to + 1, positions[r], 1)
            out[to] = 58
            to += 1
            prefix = to - start
        to = write_number(out, to, row_number[r], 1)
        offsets[r + 1] = to
    return to
