"""Formats values of a decoded column as JSON text, for ``inspect binlog``.

It runs Python code for each value, so it is only for display.

Integers and doubles are numbers, decimals and temporals text as the server prints them (TIMESTAMP in UTC), bytes
``{"$binary": base64}``, JSON itself.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.connectors.mysql.values.types import TEXT_OR_BYTES, MySqlColumn
from raycdc.model import TypeKind

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)


def printers(column: MySqlColumn) -> Callable[[pa.Array], list[str]]:
    """Return a function that converts a column's array to the JSON text of each value.

    The array must have the column's Arrow type.
    """
    logical = column.logical()
    arrow = logical.arrow()
    one = _printer(column, logical.kind, logical.fsp)
    if logical.kind in (TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP):
        integer = pa.int32() if logical.kind is TypeKind.DATE else pa.int64()

        def temporal(array: pa.Array) -> list[str]:
            assert array.type == arrow, f"{column.name}: {array.type} for {arrow}"
            return ["null" if v is None else one(v) for v in array.view(integer).to_pylist()]

        return temporal

    def plain(array: pa.Array) -> list[str]:
        assert array.type == arrow, f"{column.name}: {array.type} for {arrow}"
        return ["null" if v is None else one(v) for v in array.to_pylist()]

    return plain


def _printer(column: MySqlColumn, kind: TypeKind, fsp: int) -> Callable[[Any], str]:
    match kind:
        case TypeKind.DECIMAL:
            return lambda v: f'"{v:f}"'
        case TypeKind.UINT64 | TypeKind.BIT:
            return lambda v: str(int(v))
        case TypeKind.FLOAT32:
            return lambda v: json.dumps(float(str(np.float32(v))))
        case TypeKind.BINARY:
            return _text_or_bytes if column.collation == TEXT_OR_BYTES else _bytes
        case TypeKind.JSON:
            return str
        case TypeKind.DATE:
            return lambda v: f'"{_day(v)}"'
        case TypeKind.DATETIME | TypeKind.TIMESTAMP:
            return lambda v: f'"{_moment(v, fsp)}"'
        case _:
            return lambda v: json.dumps(v, ensure_ascii=False)


def _bytes(value: bytes) -> str:
    return json.dumps({"$binary": base64.b64encode(value).decode("ascii")})


def _text_or_bytes(value: bytes) -> str:
    try:
        return json.dumps(value.decode("utf-8"), ensure_ascii=False)
    except UnicodeDecodeError:
        return _bytes(value)


def _day(days: int) -> str:
    # Python has no year 0, but the server allows it.
    if days < -719162:
        return "0000" + (_EPOCH_DAY + timedelta(days=days + 146097)).isoformat()[4:]
    return (_EPOCH_DAY + timedelta(days=days)).isoformat()


def _moment(micros: int, fsp: int) -> str:
    days, rest = divmod(micros, 86_400_000_000)
    seconds, part = divmod(rest, 1_000_000)
    text = f"{_day(days)} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{part:06d}"[: 20 + fsp] if fsp else text
