"""Merges types, and schemas of several tables, into a type and a schema that hold the values of all. Pure.

| types | become |
|---|---|
| the same type | itself; if labels or sizes differ (ENUM, SET, BIT and so on), the larger of the two |
| BOOLEAN, INT8 … INT64, YEAR (as INT16), BIT(n ≤ 63) (as INT64) | the wider integer |
| UINT64 or BIT(64) with any other integer | DECIMAL(20, 0) |
| DECIMAL with DECIMAL, an integer or UINT64 | DECIMAL with the larger number of digits before the point, and after \
it; STRING if these are more than 38 digits |
| decimals of more than 38 digits (which are STRING), with each other | STRING, with the digits that both need |
| FLOAT32 with BOOLEAN, INT8, INT16, YEAR | FLOAT32 |
| FLOAT32 or FLOAT64 with FLOAT64, INT32, INT64, BIT(n ≤ 63) | FLOAT64; an INT64 value that FLOAT64 cannot hold \
exactly is an error |
| FLOAT32, FLOAT64 with DECIMAL, UINT64 | STRING |
| DATE with DATETIME | DATETIME, at midnight |
| DATETIME or DATE with TIMESTAMP | STRING, because a DATETIME is the reading of a clock in no known time zone, and \
no instant |
| DATETIME, TIMESTAMP or TIME with the same type of a different precision | the type with the larger precision |
| STRING, ENUM, SET, JSON, TIME with each other | STRING |
| BINARY with anything else | STRING; a value that is no UTF-8 is an error |
| anything else | STRING |

Merging is associative, commutative and idempotent (tests prove it over all kinds), so the merged schema does not depend
on the order of the tables. `raycdc.segments.reading` converts the values.
"""

from __future__ import annotations

from dataclasses import replace

from raycdc.errors import RulesRefusedError
from raycdc.model import LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.column_names import mysql_fold
from raycdc.model.types import DECIMAL_PRECISION_MAX, wide_decimal

STRING = LogicalType(TypeKind.STRING)

#: Each type holds all values of the types before it.
_INTEGERS = (TypeKind.BOOLEAN, TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64)
_DIGITS = {
    TypeKind.BOOLEAN: 3,
    TypeKind.INT8: 3,
    TypeKind.INT16: 5,
    TypeKind.INT32: 10,
    TypeKind.INT64: 19,
    TypeKind.UINT64: 20,
}
_FLOATS = (TypeKind.FLOAT32, TypeKind.FLOAT64)
_IN_FLOAT32 = _INTEGERS[:3]


def merge_types(one: LogicalType, other: LogicalType) -> LogicalType:
    """Return the narrowest type for the values of both types, according to the module's table."""
    if one == other:
        return one
    if one.kind is other.kind:
        return _same_kind(one, other)
    one, other = _plain(one), _plain(other)
    kinds = {one.kind, other.kind}
    if kinds <= set(_INTEGERS):
        return LogicalType(max(kinds, key=_INTEGERS.index))
    if kinds <= {*_INTEGERS, *_FLOATS}:
        narrow = TypeKind.FLOAT64 not in kinds and kinds <= {*_IN_FLOAT32, TypeKind.FLOAT32}
        return LogicalType(TypeKind.FLOAT32 if narrow else TypeKind.FLOAT64)
    if kinds == {TypeKind.UINT64}:
        return LogicalType(TypeKind.UINT64)
    if kinds <= {*_DIGITS, TypeKind.DECIMAL}:
        return _decimal(one, other)
    if kinds == {TypeKind.DATE, TypeKind.DATETIME}:
        return LogicalType(TypeKind.DATETIME, fsp=max(one.fsp, other.fsp))
    return STRING


def merge_schemas(target: TableId, known: TableSchema, source: TableId, other: TableSchema) -> TableSchema:
    """Return the schema `known` of `target`, extended so that it holds rows of `source`.

    Columns may be added and types may become wider; no column is removed. Columns are the same if their names differ
    only in case. Raises `RulesRefusedError` if the keys differ.
    """
    if [mysql_fold(name) for name in known.primary_key] != [mysql_fold(name) for name in other.primary_key]:
        raise RulesRefusedError(
            f"{source} has the primary key ({', '.join(other.primary_key)}), and the tables routed to {target} before "
            f"it ({', '.join(known.primary_key)}): merged rows need one key. Route it elsewhere, or change its key."
        )
    columns = list(known.columns)
    indexes = {mysql_fold(column.name): index for index, column in enumerate(columns)}
    for column in other.columns:
        at = indexes.get(mysql_fold(column.name))
        if at is None:
            columns.append(replace(column, nullable=True, default=None))
            continue
        here = columns[at]
        nullable = here.nullable or column.nullable
        columns[at] = replace(here, type=merge_types(here.type, column.type), nullable=nullable)
    theirs = {mysql_fold(column.name) for column in other.columns}
    relaxed = (c if mysql_fold(c.name) in theirs else replace(c, nullable=True) for c in columns)
    return TableSchema(tuple(relaxed), known.primary_key)


def _same_kind(one: LogicalType, other: LogicalType) -> LogicalType:
    """Return the merge of two types of one kind that have other parameters, or other native names."""
    if one.kind is TypeKind.DECIMAL:
        return _decimal(one, other)
    wide, others = wide_decimal(one), wide_decimal(other)
    if wide is not None and others is not None:
        scale = max(wide[1], others[1])
        digits = max(wide[0] - wide[1], others[0] - others[1]) + scale
        return LogicalType(TypeKind.STRING, precision=digits, scale=scale, native=f"decimal({digits},{scale})")
    return LogicalType(one.kind, fsp=max(one.fsp, other.fsp), length=max(one.length, other.length))


def _plain(logical: LogicalType) -> LogicalType:
    """Return the general type as which a type of only one source is treated."""
    match logical.kind:
        case TypeKind.YEAR:
            return LogicalType(TypeKind.INT16)
        case TypeKind.BIT:
            return LogicalType(TypeKind.INT64 if logical.length <= 63 else TypeKind.UINT64)
        case _:
            return logical


def _decimal(one: LogicalType, other: LogicalType) -> LogicalType:
    whole = max(_whole(one), _whole(other))
    scale = max(one.scale, other.scale)
    if whole + scale > DECIMAL_PRECISION_MAX:
        return STRING
    return LogicalType(TypeKind.DECIMAL, precision=whole + scale, scale=scale)


def _whole(logical: LogicalType) -> int:
    """Return the number of digits before the point."""
    return logical.precision - logical.scale if logical.kind is TypeKind.DECIMAL else _DIGITS[logical.kind]
