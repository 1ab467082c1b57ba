"""Converts schemas in Debezium's events to columns and representations.

Kafka Connect's JSON converter adds these schemas. Reference: Debezium documentation, "Data type mappings", semantic
types ``io.debezium.…``, and Kafka Connect's logical types.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import pyarrow as pa

from raycdc.errors import SchemaError
from raycdc.formats.decoding.arena import WireColumn
from raycdc.formats.loops import code_loops as cells
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.schema import constant

_DEBEZIUM = "io.debezium."
_CONNECT = "org.apache.kafka.connect.data."

#: The kind, the fractional digits and the wire form of each temporal semantic type.
_TEMPORAL: dict[str, tuple[TypeKind, int, int]] = {
    f"{_DEBEZIUM}time.Date": (TypeKind.DATE, 0, cells.WIRE_DAYS),
    f"{_CONNECT}Date": (TypeKind.DATE, 0, cells.WIRE_DAYS),
    f"{_DEBEZIUM}time.Time": (TypeKind.TIME, 3, cells.WIRE_MILLIS),
    f"{_CONNECT}Time": (TypeKind.TIME, 3, cells.WIRE_MILLIS),
    f"{_DEBEZIUM}time.MicroTime": (TypeKind.TIME, 6, cells.WIRE_MICROS),
    f"{_DEBEZIUM}time.NanoTime": (TypeKind.STRING, 0, cells.WIRE_NANO_TIME),
    f"{_DEBEZIUM}time.Timestamp": (TypeKind.DATETIME, 3, cells.WIRE_MILLIS),
    f"{_CONNECT}Timestamp": (TypeKind.DATETIME, 3, cells.WIRE_MILLIS),
    f"{_DEBEZIUM}time.MicroTimestamp": (TypeKind.DATETIME, 6, cells.WIRE_MICROS),
    f"{_DEBEZIUM}time.NanoTimestamp": (TypeKind.STRING, 0, cells.WIRE_NANO_MOMENT),
    f"{_DEBEZIUM}time.ZonedTimestamp": (TypeKind.TIMESTAMP, 6, cells.WIRE_PLAIN),
    f"{_DEBEZIUM}time.IsoTimestamp": (TypeKind.DATETIME, 6, cells.WIRE_PLAIN),
    f"{_DEBEZIUM}time.IsoDate": (TypeKind.DATE, 0, cells.WIRE_PLAIN),
    f"{_DEBEZIUM}time.IsoTime": (TypeKind.TIME, 6, cells.WIRE_PLAIN),
    f"{_DEBEZIUM}time.ZonedTime": (TypeKind.STRING, 0, cells.WIRE_PLAIN),
    f"{_DEBEZIUM}time.Year": (TypeKind.INT32, 0, cells.WIRE_PLAIN),
}
_OTHERS: dict[str, tuple[TypeKind, int]] = {
    f"{_DEBEZIUM}data.Json": (TypeKind.JSON, cells.WIRE_TEXT),
    f"{_DEBEZIUM}data.Enum": (TypeKind.ENUM, cells.WIRE_PLAIN),
    f"{_DEBEZIUM}data.EnumSet": (TypeKind.SET, cells.WIRE_PLAIN),
    f"{_DEBEZIUM}data.VariableScaleDecimal": (TypeKind.STRING, cells.WIRE_VARIABLE),
}
_PRIMITIVE: dict[str, TypeKind] = {
    "boolean": TypeKind.BOOLEAN,
    "int8": TypeKind.INT8,
    "int16": TypeKind.INT16,
    "int32": TypeKind.INT32,
    "int64": TypeKind.INT64,
    "float": TypeKind.FLOAT32,
    "float32": TypeKind.FLOAT32,
    "double": TypeKind.FLOAT64,
    "float64": TypeKind.FLOAT64,
    "string": TypeKind.STRING,
    "bytes": TypeKind.BINARY,
    "struct": TypeKind.JSON,
    "array": TypeKind.JSON,
    "map": TypeKind.JSON,
}


class ConnectField(TypedDict):
    """A field of a Kafka Connect schema, with the attributes that are used here."""

    type: str
    optional: bool
    field: NotRequired[str]
    name: NotRequired[str]
    version: NotRequired[int]
    parameters: NotRequired[dict[str, str]]
    default: NotRequired[Any]
    fields: NotRequired[list[ConnectField]]


def described_columns(schema: Any) -> list[WireColumn] | None:
    """Return the columns of the row in an envelope's schema; None if rows are documents, or if the schema describes
    no row.
    """
    fields = schema.get("fields") if isinstance(schema, dict) else None
    for side in ("after", "before"):
        for field in fields or ():
            if field.get("field") == side and field.get("type") == "struct":
                generated = _names_generated_defaults(fields or ())
                return [_with_default(_column(column), column, generated) for column in field.get("fields", ())]
    return None


def _names_generated_defaults(fields: Iterable[ConnectField]) -> bool:
    """Return True if the connector may write 0 as the default of a number that the database generates."""
    return any(str(field.get("name")).startswith(f"{_DEBEZIUM}connector.postgresql.") for field in fields)


#: The defaults that MySQL gives existing rows in a new column that is NOT NULL and has no DEFAULT.
_IMPLICIT = {
    **dict.fromkeys((TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64, TypeKind.DECIMAL), "0"),
    **dict.fromkeys((TypeKind.FLOAT32, TypeKind.FLOAT64, TypeKind.BIT), "0"),
    **dict.fromkeys((TypeKind.STRING, TypeKind.SET, TypeKind.BINARY), ""),
    TypeKind.BOOLEAN: "false",
}
_UNITS_PER_S = {cells.WIRE_SECONDS: 1, cells.WIRE_MILLIS: 10**3, cells.WIRE_MICROS: 10**6, cells.WIRE_NANOS: 10**9}
_MOMENTS = (TypeKind.DATE, TypeKind.DATETIME)
_GENERATED = "the schema's default may stand for a value that the database generates"


def _with_default(column: WireColumn, field: ConnectField, generated: bool) -> WireColumn:
    """Return the column with the value that existing rows get if the column is added to a table with rows.

    Connectors describe a default that is no constant by a placeholder: 1970-01-01 for a time, zeros for a UUID, and,
    if `generated` is True, 0 for a number.
    """
    told = field.get("default")
    kind = column.type.kind
    if kind is TypeKind.TIMESTAMP and told is not None:
        return replace(column, unclear="its default is a time in the time zone of the session that added the column")
    if told is None:
        if field.get("optional", True):
            return column
        if kind not in _IMPLICIT or field["type"] in ("struct", "array", "map"):
            return replace(column, unclear="the column cannot be null, and its schema has no default")
        return replace(column, default=_IMPLICIT[kind])
    try:
        default = _default_text(column, told)
        constant(default, column.type.arrow())
    except (ValueError, TypeError, KeyError, ArithmeticError, pa.ArrowException):
        return replace(column, unclear="the default in its schema cannot be read")
    numbers = (TypeKind.INT16, TypeKind.INT32, TypeKind.INT64)
    zero = kind in numbers and default == "0" and generated and not field.get("optional", True)
    if zero or (kind in _MOMENTS and default.startswith("1970-01-01")) or told == str(UUID(int=0)):
        return replace(column, unclear=_GENERATED)
    return replace(column, default=default)


def _default_text(column: WireColumn, told: Any) -> str:
    """Return a default as `Column.default` has it. Raises an error if it is none of the column's type."""
    kind = column.type.kind
    if kind is TypeKind.DECIMAL:
        scale = cells.WIRE_SCALED - column.wire if column.wire >= cells.WIRE_SCALED else column.type.scale
        return f"{Decimal(int.from_bytes(b64decode(told), signed=True)).scaleb(-scale):f}"
    if kind is TypeKind.BIT:
        return str(int.from_bytes(b64decode(told), "little"))
    if kind is TypeKind.BINARY:
        return b64decode(told).decode()
    if kind is TypeKind.DATE and column.wire == cells.WIRE_DAYS:
        return (date(1970, 1, 1) + timedelta(days=told)).isoformat()
    if kind in (*_MOMENTS, TypeKind.TIME) and column.wire in _UNITS_PER_S:
        whole, part = divmod(told, _UNITS_PER_S[column.wire])
        micros = timedelta(seconds=whole, microseconds=part * 10**6 // _UNITS_PER_S[column.wire])
        if kind is not TypeKind.TIME:
            return (datetime(1970, 1, 1) + micros).isoformat(" ")  # noqa: DTZ001
        raise ValueError("a time of day has no one text")
    if kind is TypeKind.BOOLEAN:
        return {True: "true", False: "false"}[told]
    if column.wire in (cells.WIRE_PLAIN, cells.WIRE_TEXT) and isinstance(told, str | int | float):
        return str(told)
    raise ValueError("a default of an unknown form")


def _column(field: ConnectField) -> WireColumn:
    try:
        name, primitive = str(field["field"]), str(field["type"])
    except KeyError as cause:
        raise SchemaError("An embedded schema has a field without name or type") from cause
    semantic = str(field.get("name") or "")
    parameters = field.get("parameters") or {}
    if semantic in _TEMPORAL:
        kind, fsp, wire = _TEMPORAL[semantic]
        return WireColumn(name, LogicalType(kind, fsp=fsp if kind is not TypeKind.STRING else 0), wire)
    if semantic in _OTHERS:
        kind, wire = _OTHERS[semantic]
        return WireColumn(name, LogicalType(kind), wire)
    if semantic == f"{_CONNECT}Decimal":
        scale = int(parameters.get("scale", 0))
        precision = int(parameters.get("connect.decimal.precision", 38))
        if scale < 0:
            # The value has zeros before the decimal point instead of digits after it.
            precision = min(max(precision - scale, 1), 38)
            return WireColumn(name, LogicalType(TypeKind.DECIMAL, precision=precision), cells.WIRE_SCALED - scale)
        if scale > min(precision, 38):
            raise SchemaError(f"Field {name!r} is a decimal of scale {scale}, which no column holds exactly")
        return WireColumn(
            name, LogicalType(TypeKind.DECIMAL, precision=min(precision, 38), scale=scale), cells.WIRE_BASE64
        )
    if semantic == f"{_DEBEZIUM}data.Bits":
        length = int(parameters.get("length", 64))
        if length > 64:
            return WireColumn(name, LogicalType(TypeKind.BINARY))
        return WireColumn(name, LogicalType(TypeKind.BIT, length=length), cells.WIRE_BASE64)
    if primitive not in _PRIMITIVE:
        raise SchemaError(
            f"Field {name!r} of an embedded schema has the type {primitive!r}, which raycdc does not know"
        )
    return WireColumn(name, LogicalType(_PRIMITIVE[primitive]))


_CONNECT_TYPES: dict[TypeKind, tuple[str, str]] = {
    TypeKind.BOOLEAN: ("boolean", ""),
    TypeKind.INT8: ("int16", ""),
    TypeKind.INT16: ("int16", ""),
    TypeKind.INT32: ("int32", ""),
    TypeKind.INT64: ("int64", ""),
    TypeKind.FLOAT32: ("float", ""),
    TypeKind.FLOAT64: ("double", ""),
    TypeKind.STRING: ("string", ""),
    TypeKind.BINARY: ("bytes", ""),
    TypeKind.DATE: ("int32", f"{_DEBEZIUM}time.Date"),
    TypeKind.TIMESTAMP: ("string", f"{_DEBEZIUM}time.ZonedTimestamp"),
    TypeKind.TIME: ("string", f"{_DEBEZIUM}time.IsoTime"),
    TypeKind.YEAR: ("int32", f"{_DEBEZIUM}time.Year"),
    TypeKind.BIT: ("bytes", f"{_DEBEZIUM}data.Bits"),
    TypeKind.DECIMAL: ("bytes", f"{_CONNECT}Decimal"),
    TypeKind.UINT64: ("bytes", f"{_CONNECT}Decimal"),
    TypeKind.ENUM: ("string", f"{_DEBEZIUM}data.Enum"),
    TypeKind.SET: ("string", f"{_DEBEZIUM}data.EnumSet"),
    TypeKind.JSON: ("string", f"{_DEBEZIUM}data.Json"),
}


def connect_schema(table: TableId, schema: TableSchema) -> ConnectField:
    """Return the schema that the encoder adds to its events; `described_columns` reads it."""
    prefix = f"raycdc.{table.db}.{table.table}"
    fields = [_described(column) for column in schema.columns]
    row = ConnectField(type="struct", fields=fields, optional=True, name=f"{prefix}.Value")
    source = [_plain("version", "string"), _plain("connector", "string"), _plain("name", "string")]
    source += [_plain("ts_ms", "int64"), _plain("db", "string"), _plain("schema", "string"), _plain("table", "string")]
    where = ConnectField(type="struct", fields=source, optional=False, name="io.raycdc.Source", field="source")
    sides: list[ConnectField] = [{**row, "field": "before"}, {**row, "field": "after"}]
    rest: list[ConnectField] = [where, {**_plain("op", "string"), "optional": False}, _plain("ts_ms", "int64")]
    return {"type": "struct", "fields": [*sides, *rest], "optional": False, "name": f"{prefix}.Envelope"}


def _plain(field: str, kind: str) -> ConnectField:
    return {"type": kind, "optional": True, "field": field}


def _described(column: Column) -> ConnectField:
    logical = column.type
    kind, semantic = _CONNECT_TYPES.get(logical.kind, ("", ""))
    parameters: dict[str, str] = {}
    match logical.kind:
        case TypeKind.DATETIME:
            kind, semantic = "int64", f"{_DEBEZIUM}time.{'MicroTimestamp' if logical.fsp > 3 else 'Timestamp'}"
        case TypeKind.DECIMAL:
            parameters = {"scale": str(logical.scale), "connect.decimal.precision": str(logical.precision)}
        case TypeKind.UINT64:
            parameters = {"scale": "0", "connect.decimal.precision": "20"}
        case TypeKind.BIT:
            parameters = {"length": str(logical.length)}
        case _:
            pass
    described = ConnectField(type=kind, optional=True)
    if semantic:
        described |= {"name": semantic, "version": 1}
    if parameters:
        described["parameters"] = parameters
    return {**described, "field": column.name}
