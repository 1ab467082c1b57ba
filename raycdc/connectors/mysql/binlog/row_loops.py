"""Compiled loops that decode row events into Arrow column buffers (arenas), without a Python object per row.

Called by `decoder` once per table map and batch with the list of row events from `index_loops`. `decode_rows` first
finds the values of a block of rows (`walk_loops`), then writes the block column by column (`values.block_loops`). It
reads nothing outside the event. It stops at a row boundary when the batch is full (an update's two rows stay together),
and continues there after the caller has emptied or enlarged the arena.

Value formats: MySQL Internals manual, "Rows Event"; decimals: ``decimal2bin`` in strings/decimal.c.

`number_rows`, `row_metadata` and `position_texts` compute the metadata columns of decoded rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mysql.binlog.index_loops import E_MS, E_POS, E_ROWS
from raycdc.connectors.mysql.binlog.walk_loops import (
    C_AT,
    C_COLUMN,
    C_EVENT,
    C_FAILED,
    C_NEXT,
    C_ROW_IN_EVENT,
    C_ROWS,
    C_TEXT,
    ROWS_BLOCK,
    ROWS_BOOLEAN,
    ROWS_DATE,
    ROWS_JSON,
    ROWS_KEY,
    ROWS_LABEL,
    ROWS_TEXT,
    ROWS_VALUE,
    walk_rows,
)
from raycdc.connectors.mysql.values.arena_loops import (
    COLUMN_BOOLEAN,
    COLUMN_DATE,
    COLUMN_DONE,
    COLUMN_FULL,
    COLUMN_JSON,
    COLUMN_KEY,
    COLUMN_LABEL,
    FAILED_COLUMN,
    FAILED_ROW,
)
from raycdc.connectors.mysql.values.block_loops import write_block
from raycdc.core.compiled import copy, helper, njit
from raycdc.core.loops.number_loops import number_text


@helper
def _failure(code: Any) -> Any:
    """Return the ROWS_… code for the COLUMN_… code of a column that failed."""
    if code == COLUMN_FULL:
        return ROWS_TEXT
    if code == COLUMN_LABEL:
        return ROWS_LABEL
    if code == COLUMN_JSON:
        return ROWS_JSON
    if code == COLUMN_DATE:
        return ROWS_DATE
    if code == COLUMN_KEY:
        return ROWS_KEY
    return ROWS_BOOLEAN if code == COLUMN_BOOLEAN else ROWS_VALUE


@njit
def decode_rows(
    data: Any, events: Any, order: Any, steps: Any, optional: Any, targets: Any, plan: Any, present: Any, at: Any,
    size: Any, arena: Any, limits: Any, op: Any, row_event: Any, row_number: Any, cursor: Any,
) -> Any:  # fmt: skip
    """Decode the events ``events[order]`` of one table map from `cursor` on; returns ROWS_….

    `steps`, `optional` and `targets` describe the table map's columns (`tables.plan.WirePlan`), `plan` the table's;
    `present`, `at` and `size` are scratch memory.
    """
    losses = arena.losses
    while True:
        code, count = walk_rows(
            data, events, order, steps, optional, targets, present, at, size, arena.valid, arena.has_null, limits, op,
            row_event, row_number, cursor,
        )  # fmt: skip
        if count > 0:
            first = cursor[C_ROWS]
            for column in range(len(plan)):
                losses[1, column] = losses[0, column]
            written = write_block(data, at, size, count, first, plan, arena)
            if written != COLUMN_DONE:
                # Reset the counts of lost values, because this block is decoded again or never.
                for column in range(len(plan)):
                    losses[0, column] = losses[1, column]
                cursor[C_COLUMN] = arena.counters[FAILED_COLUMN]
                cursor[C_FAILED] = row_event[first + arena.counters[FAILED_ROW]] if written != COLUMN_FULL else 0
                return _failure(written)
        for field in (C_EVENT, C_AT, C_ROW_IN_EVENT, C_ROWS, C_TEXT):
            cursor[field] = cursor[C_NEXT + field]
        if code != ROWS_BLOCK:
            return code


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
            to = number_text(positions[r], 1, out, to + 1)
            out[to] = 58
            to += 1
            prefix = to - start
        to = number_text(row_number[r], 1, out, to)
        offsets[r + 1] = to
    return to
