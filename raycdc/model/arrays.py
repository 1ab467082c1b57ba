"""Additions to Arrow's arrays: they find values that a conversion refuses, and values that Python's types cannot
hold.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_EPOCH = datetime.date(1970, 1, 1).toordinal()
#: Days since 1970 of the first and the last date that Python supports.
_FIRST_DAY, _LAST_DAY = datetime.date.min.toordinal() - _EPOCH, datetime.date.max.toordinal() - _EPOCH
_DAY_US = 86_400_000_000


def failing(array: pa.Array, turn: Callable[[pa.Array], Any]) -> Any:
    """Return for each value if `turn` raises on it.

    `turn` converts all values in one call. If it raises, each half is tried separately, and so on down to single
    values.
    """
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


def beyond_calendar(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return for each day or moment of the column if it is outside the years 1 to 9999, which many readers do not
    support.
    """
    first, last = _FIRST_DAY, _LAST_DAY + 1
    if pa.types.is_date(column.type):
        numbers = column.cast(pa.int32())
    else:
        numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        first, last = first * _DAY_US, last * _DAY_US
    return bool(pc.any(pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, last))).as_py())


def python_value(scalar: pa.Scalar) -> Any:
    """Return the value as Python has it.

    A day or moment outside of Python's years (0, or beyond 9999) is returned as text.
    """
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return scalar.cast(pa.string()).as_py()


#: A value of a key or a partition; days and moments are texts.
RowValue = str | int | float | bytes | decimal.Decimal | None


def python_rows(rows: pa.Table) -> list[dict[str, RowValue]]:
    """Return the rows with days and moments as texts, because Python lacks some of them, and equal ones
    must be equal.
    """
    for number, field in enumerate(rows.schema):
        if pa.types.is_temporal(field.type):
            rows = rows.set_column(number, field.name, rows.column(number).cast(pa.string()))
    return rows.to_pylist()  # type: ignore[no-any-return]
