"""The interface of a target for its comparison: its columns, and its rows as of one moment.

`arrow_condition` makes a condition of spans that contain the wanted values. With it, readers skip whole files and
groups of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.verify.changelog import EMPTIED, KIND


class NotComparedError(Exception):
    """Raised if a table cannot be compared, or not now.

    The text has the reason and the remedy. It concerns only this table.
    """


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Selects some rows: each has, in every named column, one of the column's `values`.

    Values are distinct and ascending, of type int64, decimal128(38, 0) or string. If `of_changes` is True, rows which
    record that the table was emptied (`raycdc.verify.changelog`) are selected, too.
    """

    values: Mapping[str, pa.Array]
    of_changes: bool = False


class TargetTable(Protocol):
    """A target that can be read. Methods block; each call of `batches` returns the newest rows, as of one moment."""

    #: True if -0.0 is stored as 0.0.
    one_zero: bool

    def columns(self) -> Sequence[str]:
        """Return the names of all columns. Raises `NotComparedError` if there is no such target."""

    def rows_about(self) -> int:
        """Return the approximate number of rows, for people; 0 if that would need a scan."""

    def batches(self, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        """Yield all rows with the columns `columns`, in that order, in the target's types.

        If there is a filter `wanted`, the reader skips as many of the remaining rows as it can. It may return more rows
        than wanted, but never fewer.
        """


#: The maximum number of spans per column, because each is compared with every file's statistics.
SPANS_MAX = 64


def spans(values: pa.Array) -> Sequence[tuple[Any, Any]]:
    """Return spans [first, last] that contain all values: numbers are split at their widest gaps, texts in
    equal parts.
    """
    count = len(values)
    if count <= SPANS_MAX:
        cuts = np.arange(1, count)
    elif pa.types.is_integer(values.type):
        # Doubles do not overflow. If rounding chooses another gap, the spans are still correct.
        gaps = np.diff(values.to_numpy().astype(np.float64))
        cuts = np.sort(np.argpartition(gaps, -(SPANS_MAX - 1))[-(SPANS_MAX - 1) :]) + 1
    else:
        cuts = np.arange(1, SPANS_MAX) * count // SPANS_MAX
    first, last = np.concatenate([[0], cuts]), np.concatenate([cuts, [count]]) - 1
    return [(values[int(a)].as_py(), values[int(b)].as_py()) for a, b in zip(first, last, strict=True)]


def arrow_condition(wanted: RowFilter | None, schema: pa.Schema) -> pc.Expression | None:
    """Return the condition for a dataset with columns of `schema`; None if it can skip nothing.

    Only columns of integers and texts are used, because some formats have inexact statistics of other types (Delta has
    moments in milliseconds, and decimals as floats).
    """
    if wanted is None:
        return None
    parts = []
    for name, values in wanted.values.items():
        kind = schema.field(name).type
        numbers = pa.types.is_integer(kind) and pa.types.is_integer(values.type)
        texts = pa.types.is_string(values.type) and (pa.types.is_string(kind) or pa.types.is_large_string(kind))
        if not numbers and not texts:
            continue
        try:
            bounds = [(pa.scalar(low, kind), pa.scalar(high, kind)) for low, high in spans(values)]
        except (pa.ArrowInvalid, OverflowError):  # The column cannot have these numbers.
            continue
        parts.append(reduce(or_, ((pc.field(name) >= low) & (pc.field(name) <= high) for low, high in bounds)))
    if not parts:
        return None
    found = reduce(and_, parts)
    return found | (pc.field(KIND) == EMPTIED) if wanted.of_changes else found
