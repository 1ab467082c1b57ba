"""Logical types: the common types between a source, Arrow, Spark and the sinks.

| kind | Arrow | Spark | note |
|---|---|---|---|
| INT8 … INT64 | int8 … int64 | tinyint … bigint | unsigned source types have the next wider type |
| UINT64 | decimal128(20, 0) | decimal(20,0) | the only integer that no signed type holds |
| FLOAT32, FLOAT64 | float, double | float, double | |
| DECIMAL | decimal128(p, s), p ≤ 38 | decimal(p,s) | wider decimals are STRING with the exact digits |
| STRING, ENUM, SET, JSON | string | string | UTF-8; ENUM/SET as labels; JSON as the server's text |
| BINARY | binary | binary | |
| DATE | date32 | date | |
| DATETIME | timestamp[us] | timestamp_ntz | a wall-clock reading, never shifted |
| TIMESTAMP | timestamp[us, UTC] | timestamp | an instant |
| TIME | string | string | a duration as the server prints it, e.g. ``-838:59:59.000`` |
| YEAR | int16 | smallint | |
| BIT | int64 (n ≤ 63), decimal128(20, 0) (n = 64) | bigint, decimal(20,0) | the bits as an unsigned number |
| BOOLEAN | bool | boolean | |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from raycdc.core.typed_codec import LEFT_OUT, JsonObject

DECIMAL_PRECISION_MAX = 38


class TypeKind(StrEnum):
    """The closed set of logical types. State files hold the values."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    UINT64 = "uint64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    DECIMAL = "decimal"
    STRING = "string"
    BINARY = "binary"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    YEAR = "year"
    BIT = "bit"
    ENUM = "enum"
    SET = "set"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class LogicalType(JsonObject):
    """A logical type with the parameters that affect values or their text.

    `precision`/`scale` belong to DECIMAL, `fsp` (fractional-second digits, 0–6) to the temporal kinds and `length`
    (bits) to BIT. `native` is the source's own spelling (``information_schema.COLUMN_TYPE``), for people and DDL; it
    has no effect on the equality of types, but is kept in the state. A state has only the parameters that are set, so
    that schemas stay readable.
    """

    kind: TypeKind
    precision: int = field(default=0, metadata=LEFT_OUT)
    scale: int = field(default=0, metadata=LEFT_OUT)
    fsp: int = field(default=0, metadata=LEFT_OUT)
    length: int = field(default=0, metadata=LEFT_OUT)
    native: str = field(default="", metadata=LEFT_OUT)

    refuses_unknown_keys = True
    #: Types are cached, because the schemas of 100,000 tables have a million columns, and few different types.
    interned_max = 1 << 16

    def arrow(self) -> pa.DataType:
        """Return the Arrow type of a column of this type (see the table in the module's docstring)."""
        match self.kind:
            case TypeKind.DECIMAL:
                return pa.decimal128(self.precision, self.scale)
            case TypeKind.BIT:
                return pa.int64() if self.length <= 63 else pa.decimal128(20, 0)
            case kind:
                return _ARROW[kind]

    def spark(self) -> str:
        """Return the Spark SQL DDL spelling of `arrow()`."""
        match self.kind:
            case TypeKind.DECIMAL:
                return f"decimal({self.precision},{self.scale})"
            case TypeKind.BIT:
                return "bigint" if self.length <= 63 else "decimal(20,0)"
            case kind:
                return _SPARK[kind]


#: Kinds whose values are the same text in expressions.
_TEXTS = frozenset({TypeKind.STRING, TypeKind.ENUM, TypeKind.SET})


def keeps_meaning(before: LogicalType, after: LogicalType) -> bool:
    """Return True if every expression gives equal results for equal values of the two types.

    A column that an expression names may change its type in this way without a change of the expression's meaning. Only
    changes for which this is proven return True. Most changes may affect an expression: a wider integer has a different
    hash, and a FLOAT that became a DOUBLE, or a decimal with more digits, has a different text.
    """
    same_kind = before.kind is after.kind or {before.kind, after.kind} <= _TEXTS
    # A timestamp has the same value and text with any precision; TIME is a text that ends with its digits.
    same_text = before.kind is not TypeKind.TIME or before.fsp == after.fsp
    same_digits = wide_decimal(before) == wide_decimal(after)
    return same_kind and same_text and same_digits and before.spark() == after.spark()


def wide_decimal(logical: LogicalType) -> tuple[int, int] | None:
    """Return precision and scale of a decimal column whose values are text because Arrow's decimals are too narrow;
    else None.
    """
    match = _WIDE.match(logical.native) if logical.kind is TypeKind.STRING else None
    return (int(match[1]), int(match[2] or 0)) if match else None


_WIDE = re.compile(r"(?:decimal|numeric)\((\d+)(?:,(\d+))?\)", re.IGNORECASE)

_ARROW: dict[TypeKind, pa.DataType] = {
    TypeKind.BOOLEAN: pa.bool_(),
    TypeKind.INT8: pa.int8(),
    TypeKind.INT16: pa.int16(),
    TypeKind.INT32: pa.int32(),
    TypeKind.INT64: pa.int64(),
    TypeKind.UINT64: pa.decimal128(20, 0),
    TypeKind.FLOAT32: pa.float32(),
    TypeKind.FLOAT64: pa.float64(),
    TypeKind.STRING: pa.string(),
    TypeKind.BINARY: pa.binary(),
    TypeKind.DATE: pa.date32(),
    TypeKind.DATETIME: pa.timestamp("us"),
    TypeKind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    TypeKind.TIME: pa.string(),
    TypeKind.YEAR: pa.int16(),
    TypeKind.ENUM: pa.string(),
    TypeKind.SET: pa.string(),
    TypeKind.JSON: pa.string(),
}

_SPARK: dict[TypeKind, str] = {
    TypeKind.BOOLEAN: "boolean",
    TypeKind.INT8: "tinyint",
    TypeKind.INT16: "smallint",
    TypeKind.INT32: "int",
    TypeKind.INT64: "bigint",
    TypeKind.UINT64: "decimal(20,0)",
    TypeKind.FLOAT32: "float",
    TypeKind.FLOAT64: "double",
    TypeKind.STRING: "string",
    TypeKind.BINARY: "binary",
    TypeKind.DATE: "date",
    TypeKind.DATETIME: "timestamp_ntz",
    TypeKind.TIMESTAMP: "timestamp",
    TypeKind.TIME: "string",
    TypeKind.YEAR: "smallint",
    TypeKind.ENUM: "string",
    TypeKind.SET: "string",
    TypeKind.JSON: "string",
}
