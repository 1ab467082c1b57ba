"""The interface of a target for its comparison: its columns, and its rows as of one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class NotComparedError(Exception):
    """Raised if a table cannot be compared, or not now.

    The text has the reason and the remedy. It concerns only this table.
    """


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Selects some rows: in each named column a row has one of the column's `values`.

    These are distinct and ascending, of type int64, decimal128(38, 0) or string. With `of_changes`, rows which record
    that the table was emptied (`raycdc.verify.changelog`) are selected, too.
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

        With `wanted`, the reader skips as many other rows as it can: it may return more rows than wanted, never fewer.
        """
