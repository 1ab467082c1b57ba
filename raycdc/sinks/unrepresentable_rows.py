"""Helpers for `raycdc.sinks.api.Sink.unrepresentable`: finding rows with a value that a target can never have.

Pure Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc


def reasons(rows: int, bad: Iterable[tuple[pa.Array, str]]) -> pa.Array:
    """Return for each row the text of the first mask in `bad` that is true for it, or null."""
    texts = pa.nulls(rows, pa.string())
    for mask, text in bad:
        is_first = pc.and_(pc.is_null(texts), pc.fill_null(mask, fill_value=False))
        texts = pc.if_else(is_first, pa.scalar(text), texts)
    return texts


def halved(rows: pa.RecordBatch, refusal: Callable[[pa.RecordBatch], str]) -> pa.Array:
    """Return for each row the text that `refusal` returns for it, or null if that is empty.

    The rows are halved until the bad ones are found, so that good rows are checked together in few calls.
    """
    waiting, found = [(0, rows.num_rows)], {}
    while waiting:
        start, count = waiting.pop()
        if not count or not (text := refusal(rows.slice(start, count))):
            continue
        if count == 1:
            found[start] = text
        else:
            waiting += [(start, count // 2), (start + count // 2, count - count // 2)]
    return pa.array([found.get(row) for row in range(rows.num_rows)] if found else [None] * rows.num_rows, pa.string())
