"""The numbers of the rows (`_seq`) of the log and of a reading beside it, which are in one order within an epoch.

Each reader of a log counts from 0. A log that is opened anew goes on behind the numbers of the one before, because rows
of that may still be held for a chunk; what is read beside it is moved to where the log's numbers are in each epoch,
because an epoch has no room for numbers that are far from each other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.source.snapshot.log_rows import LogRows
from raycdc.source.snapshot.log_unit import LogUnit, Progress, SchemaChange, TransactionPart, Transactions, rows_of


class RowNumbers:
    """See the module's docstring. Owned by the reader's thread."""

    def __init__(self) -> None:
        #: Behind all rows of the log.
        self._next = 0
        #: What is added to the numbers of the log's present reader, and to those of the reading beside it, which is
        #: known when that has its first row of an epoch.
        self._log = 0
        self._beside: int | None = None
        #: Behind the rows that the open epoch has of the reading beside the log.
        self._behind = 0

    def open_anew(self) -> None:
        """Another reader of the log counts from here on."""
        self._log = self._next

    def begin_epoch(self) -> None:
        """The rows before are in an epoch that was cut."""
        self._beside, self._behind = None, 0

    def read_again(self) -> None:
        """Another reader beside the log counts from here on; the open epoch has rows of the one before."""
        self._beside = None

    def of_log(self, unit: LogUnit) -> LogUnit:
        """A unit of the log with its rows' numbers."""
        unit = _moved(unit, self._log)
        self._next = max([self._next, *(_last_number(rows) + 1 for rows in rows_of(unit))])
        return unit

    def of_beside(self, unit: LogUnit) -> LogUnit:
        """A unit of the reading beside it with its rows' numbers."""
        if self._beside is None:
            firsts = [int(rows.batch.column("_seq")[0].as_py()) for rows in rows_of(unit)]
            if not firsts:
                return unit
            self._beside = max(self._next, self._behind) - min(firsts)
        unit = _moved(unit, self._beside)
        self._behind = max([self._behind, *(_last_number(rows) + 1 for rows in rows_of(unit))])
        return unit


def _last_number(rows: LogRows) -> int:
    return int(rows.batch.column("_seq")[-1].as_py())


def _moved(unit: LogUnit, shift: int) -> LogUnit:
    if not shift:
        return unit
    match unit:
        case SchemaChange(truncations=rows):
            return replace(unit, truncations=tuple(_numbered(part, shift) for part in rows))
        case TransactionPart(rows=rows) | Transactions(rows=rows):
            return replace(unit, rows=tuple(_numbered(part, shift) for part in rows))
        case Progress():
            return unit
        case _:
            assert_never(unit)


def _numbered(rows: LogRows, shift: int) -> LogRows:
    index = rows.batch.schema.get_field_index("_seq")
    numbers = pc.add(rows.batch.column(index), pa.scalar(shift, pa.int64()))
    return replace(rows, batch=rows.batch.set_column(index, rows.batch.schema.field(index), numbers))
