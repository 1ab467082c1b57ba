"""What a target is to whoever compares it: its columns, and its rows as they are at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class NotComparedError(Exception):
    """A table cannot be compared, or not now; the text says why, and what to do. It concerns this table alone."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Some rows: in each column that is named each of them has one of the column's `values`, which are distinct and
    ascending, and of type int64, decimal128(38, 0) or string.

    With `of_changes` rows that say that the table was emptied (`raycdc.verify.changelog`) are wanted beside them.
    """

    values: Mapping[str, pa.Array]
    of_changes: bool = False


class TargetTable(Protocol):
    """A target that can be read. Methods block; each call of `batches` sees the newest rows, all of one moment."""

    #: Whether -0.0 is stored as 0.0.
    one_zero: bool

    def columns(self) -> Sequence[str]:
        """Names of all columns. Raises `NotComparedError` if there is no such target."""

    def rows_about(self) -> int:
        """About how many rows it has, for people; 0 if that would cost a scan."""

    def batches(self, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        """The columns `columns`, in that order, of all rows; types are the target's.

        Of `wanted` rows the reader skips as many others as it can: it may give more rows, never fewer.
        """
