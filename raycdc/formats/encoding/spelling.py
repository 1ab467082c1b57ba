"""The representation of a column's values in each format: converts Arrow arrays to JSON texts, the
inverse of decoding.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import SchemaError
from raycdc.formats.decoding.sql_types import parse_type, same_type
from raycdc.model import LogicalType, TypeKind
from raycdc.model.json_text import base64_text, between_quotes, decimal_text, json_values, quoted

_FLOATS = (TypeKind.FLOAT32, TypeKind.FLOAT64)
_MYSQL: dict[TypeKind, str] = {
    TypeKind.BOOLEAN: "boolean",
    TypeKind.INT8: "tinyint",
    TypeKind.INT16: "smallint",
    TypeKind.INT32: "int",
    TypeKind.INT64: "bigint",
    TypeKind.UINT64: "bigint unsigned",
    TypeKind.FLOAT32: "float",
    TypeKind.FLOAT64: "double",
    TypeKind.STRING: "longtext",
    TypeKind.BINARY: "longblob",
    TypeKind.DATE: "date",
    TypeKind.YEAR: "year",
    TypeKind.ENUM: "enum",
    TypeKind.SET: "set",
    TypeKind.JSON: "json",
}
#: The numbers in ``java.sql.Types``, which Canal's `sqlType` contains.
_JDBC: dict[TypeKind, int] = {
    TypeKind.BOOLEAN: 16,
    TypeKind.INT8: -6,
    TypeKind.INT16: 5,
    TypeKind.INT32: 4,
    TypeKind.INT64: -5,
    TypeKind.UINT64: -5,
    TypeKind.FLOAT32: 7,
    TypeKind.FLOAT64: 8,
    TypeKind.DECIMAL: 3,
    TypeKind.BINARY: 2004,
    TypeKind.DATE: 91,
    TypeKind.TIME: 92,
    TypeKind.DATETIME: 93,
    TypeKind.TIMESTAMP: 93,
    TypeKind.YEAR: 12,
    TypeKind.BIT: -7,
    TypeKind.ENUM: 4,
    TypeKind.SET: -7,
}


def text(value: str) -> str:
    """Return a JSON string."""
    return json.dumps(value, ensure_ascii=False)


def name(value: str) -> str:
    """Return a JSON key with its colon."""
    return text(value) + ":"


def mysql_type(logical: LogicalType) -> str:
    """Return the type in MySQL's spelling. The source's own spelling is kept if MySQL reads it as the same type."""
    try:
        if logical.native and same_type(parse_type(logical.native), logical):
            return logical.native.lower() if "'" not in logical.native else logical.native
    except SchemaError:
        return _canonical(logical)
    return _canonical(logical)


def _canonical(logical: LogicalType) -> str:
    match logical.kind:
        case TypeKind.DECIMAL:
            return f"decimal({logical.precision},{logical.scale})"
        case TypeKind.BIT:
            return f"bit({logical.length})"
        case TypeKind.DATETIME | TypeKind.TIMESTAMP | TypeKind.TIME:
            return f"{logical.kind.value}({logical.fsp})" if logical.fsp else logical.kind.value
        case kind:
            return _MYSQL[kind]


def jdbc_type(logical: LogicalType) -> int:
    """Return the number of the type in ``java.sql.Types``."""
    return _JDBC.get(logical.kind, 12)


def maxwell(array: pa.Array, logical: LogicalType) -> pa.Array:
    """Return values as Maxwell writes them: numbers and decimals as numbers, sets as arrays, bytes as base64, JSON
    nested.
    """
    match logical.kind:
        case TypeKind.DECIMAL:
            return decimal_text(array, logical.scale)
        case TypeKind.BINARY:
            return _masked(between_quotes(base64_text(array)), array)
        case TypeKind.SET:
            labels = pc.replace_substring(quoted(array), ",", '","')
            return pc.if_else(pc.equal(array, ""), "[]", pc.binary_join_element_wise("[", labels, "]", ""))
        case kind if kind in _FLOATS:
            return _double(array)
        case _:
            return json_values(array, _precise(array, logical))


def canal(array: pa.Array, logical: LogicalType) -> pa.Array:
    """Return values as Canal writes them: all as texts, with one character per byte of a binary, and JSON inside a
    string.
    """
    match logical.kind:
        case TypeKind.DECIMAL:
            return between_quotes(decimal_text(array, logical.scale))
        case TypeKind.BINARY:
            return quoted(_latin1(array))
        case TypeKind.JSON:
            return quoted(array)
        case TypeKind.BOOLEAN:
            return between_quotes(pc.if_else(array, "1", "0"))
        case kind if kind in _FLOATS:
            return between_quotes(array.cast(pa.string()))
        case TypeKind.STRING | TypeKind.ENUM | TypeKind.SET | TypeKind.TIME:
            return quoted(array)
        case TypeKind.DATE | TypeKind.DATETIME | TypeKind.TIMESTAMP:
            return json_values(array, _precise(array, logical))
        case _:
            return between_quotes(json_values(array, logical))


def debezium(array: pa.Array, logical: LogicalType) -> pa.Array:
    """Return values as Debezium writes them: decimals, bits and bytes as base64, dates and times as numbers or ISO
    texts.

    `connect_schema` describes them.
    """
    match logical.kind:
        case TypeKind.DECIMAL | TypeKind.UINT64:
            return _unscaled(array)
        case TypeKind.BINARY:
            return _masked(between_quotes(base64_text(array)), array)
        case TypeKind.BIT:
            return _bits(array, logical.length)
        case TypeKind.JSON:
            return quoted(array)
        case TypeKind.DATE:
            return array.view(pa.int32()).cast(pa.string())
        case TypeKind.DATETIME:
            micros = array.view(pa.int64())
            if logical.fsp > 3:
                return micros.cast(pa.string())
            if _precise(array, LogicalType(logical.kind, fsp=3)).fsp > 3:
                raise SchemaError(
                    f"A DATETIME({logical.fsp}) column holds microseconds, which Debezium writes for DATETIME(4) and "
                    "finer only. Declare it as DATETIME(6)."
                )
            return pc.divide(micros, 1000).cast(pa.string())
        case TypeKind.TIMESTAMP:
            iso = pc.replace_substring(array.cast(pa.timestamp("us")).cast(pa.string()), " ", "T")
            return between_quotes(pc.binary_join_element_wise(iso, "Z", ""))
        case kind if kind in _FLOATS:
            return _double(array)
        case _:
            return json_values(array, logical)


def _masked(texts: pa.Array, array: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


def _double(array: pa.Array) -> pa.Array:
    """Return numbers. Values for which JSON has no number are strings, which the decoders read."""
    texts = array.cast(pa.string())
    return pc.if_else(pc.is_finite(array), texts, between_quotes(texts))


def _precise(array: pa.Array, logical: LogicalType) -> LogicalType:
    """Return the type; if a value has more digits of a second than the type, return the type with six, so that no
    digit is lost.
    """
    if logical.kind in (TypeKind.DATETIME, TypeKind.TIMESTAMP) and logical.fsp < 6:
        micros = array.drop_null().view(pa.int64()).to_numpy()
        if np.any(micros % 10 ** (6 - logical.fsp)):
            return LogicalType(logical.kind, fsp=6)
    return logical


def _words(array: pa.Array, width: int) -> np.ndarray:
    """Return the little-endian bytes of each value, with the shape (rows, width)."""
    raw = np.frombuffer(array.buffers()[1], np.uint8)
    return raw[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width)


def _fixed_base64(values: np.ndarray, array: pa.Array) -> pa.Array:
    """Return rows of bytes as base64 in quotes; null where `array` is null."""
    values = np.ascontiguousarray(values)
    binary = pa.Array.from_buffers(pa.binary(values.shape[1]), len(values), [None, pa.py_buffer(values.tobytes())])
    return _masked(between_quotes(base64_text(binary.cast(pa.binary()))), array)


def _unscaled(array: pa.Array) -> pa.Array:
    """Return two's complement numbers of sixteen big-endian bytes, which Java reads like the shortest form."""
    return _fixed_base64(_words(array, 16)[:, ::-1], array)


def _bits(array: pa.Array, length: int) -> pa.Array:
    width = 8 if length <= 63 else 16
    return _fixed_base64(_words(array, width)[:, : -(-length // 8)], array)


def _latin1(array: pa.Array) -> pa.Array:
    """Return bytes as texts, with one character of U+0000 to U+00FF each."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    sizes = 1 + (data >= 0x80)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    out = np.zeros(int(ends[-1]), np.uint8)
    high = data >= 0x80
    out[ends[1:] - 1] = np.where(high, 0x80 | (data & 0x3F), data)
    out[ends[:-1][high]] = 0xC0 | (data[high] >> 6)
    bounds = ends[offsets - offsets[0]].astype(np.int32)
    texts = pa.StringArray.from_buffers(len(array), pa.py_buffer(bounds.tobytes()), pa.py_buffer(out.tobytes()))
    return _masked(texts, array)
