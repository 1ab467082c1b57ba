"""Converts column types as text to logical types: MySQL's spelling, and the common names of Flink SQL and Spark SQL.

Used for ``columns = "id BIGINT, …"`` and ``--schema``, for Canal's ``mysqlType`` and for Maxwell's table definitions. A
name that exists in MySQL has MySQL's meaning: TIMESTAMP is an instant, and DATETIME a wall-clock reading.
"""

from __future__ import annotations

import re

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.model.types import DECIMAL_PRECISION_MAX

_INTEGERS: dict[str, tuple[TypeKind, TypeKind]] = {
    "tinyint": (TypeKind.INT8, TypeKind.INT16),
    "smallint": (TypeKind.INT16, TypeKind.INT32),
    "mediumint": (TypeKind.INT32, TypeKind.INT32),
    "int": (TypeKind.INT32, TypeKind.INT64),
    "integer": (TypeKind.INT32, TypeKind.INT64),
    "bigint": (TypeKind.INT64, TypeKind.UINT64),
    # Other spellings in DDL statements, which Canal repeats.
    "serial": (TypeKind.UINT64, TypeKind.UINT64),
    "int1": (TypeKind.INT8, TypeKind.INT16),
    "int2": (TypeKind.INT16, TypeKind.INT32),
    "int3": (TypeKind.INT32, TypeKind.INT32),
    "middleint": (TypeKind.INT32, TypeKind.INT32),
    "int4": (TypeKind.INT32, TypeKind.INT64),
    "int8": (TypeKind.INT64, TypeKind.UINT64),
}
_SIMPLE: dict[str, TypeKind] = {
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "string"), TypeKind.STRING),
    **dict.fromkeys(("character", "nchar", "nvarchar", "uuid", "inet4", "inet6"), TypeKind.STRING),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bytes"), TypeKind.BINARY),
    **dict.fromkeys(("geometry", "point", "linestring", "polygon", "multipoint"), TypeKind.BINARY),
    **dict.fromkeys(("multilinestring", "multipolygon", "geometrycollection", "geomcollection"), TypeKind.BINARY),
    **dict.fromkeys(("json", "row", "array", "map", "multiset", "struct", "variant"), TypeKind.JSON),
    **dict.fromkeys(("national", "clob"), TypeKind.STRING),
    "vector": TypeKind.BINARY,
    "boolean": TypeKind.BOOLEAN,
    "bool": TypeKind.BOOLEAN,
    "float": TypeKind.FLOAT32,
    "real": TypeKind.FLOAT64,
    "double": TypeKind.FLOAT64,
    "float4": TypeKind.FLOAT32,
    "float8": TypeKind.FLOAT64,
    "date": TypeKind.DATE,
    "year": TypeKind.YEAR,
    "enum": TypeKind.ENUM,
    "set": TypeKind.SET,
}
_MOMENTS: dict[str, TypeKind] = {
    "datetime": TypeKind.DATETIME,
    "timestamp_ntz": TypeKind.DATETIME,
    "timestamp": TypeKind.TIMESTAMP,
    "timestamp_ltz": TypeKind.TIMESTAMP,
    "time": TypeKind.TIME,
}
_TYPE = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\(([^()]*(?:\([^()]*\)[^()]*)*)\)|<.*>)?\s*(.*)$", re.DOTALL)
_NAME = re.compile(r'\s*(?:`((?:[^`]|``)+)`|"((?:[^"]|"")+)"|([^\s`",()]+))\s*(.*)$', re.DOTALL)
_KEY = re.compile(r"\s*(?:CONSTRAINT\s+\S+\s+)?PRIMARY\s+KEY\s*\(([^)]*)\)\s*+(?:NOT\s+ENFORCED\s*+)?$", re.IGNORECASE)
_INLINE_KEY = re.compile(r"\bPRIMARY\s+KEY\b", re.IGNORECASE)


def type_words() -> tuple[str, ...]:
    """Return every word that names a type.

    In a text, parameters follow some of these words, such as DECIMAL and BIT.
    """
    return tuple(dict.fromkeys((*_INTEGERS, "decimal", "numeric", "bit", *_SIMPLE, *_MOMENTS)))


def parse_type(text: str, *, tiny_boolean: bool = False) -> LogicalType:
    """Return the logical type of ``decimal(10,2) unsigned``, ``TIMESTAMP(3)``, ``ARRAY<INT>`` … Raises SchemaError for
    an unknown type.

    If `tiny_boolean` is True, TINYINT(1) is a BOOLEAN.
    """
    found = _TYPE.match(text)
    if found is None:
        raise SchemaError(f"{text!r} is not a column type")
    word, inside, rest = found[1].lower(), found[2] or "", found[3].lower()
    numbers = [int(part) for part in inside.split(",") if part.strip().isdigit()]
    unsigned = "unsigned" in rest or "zerofill" in rest
    native = text.strip()
    if word in _INTEGERS:
        if tiny_boolean and word == "tinyint" and numbers == [1]:
            return LogicalType(TypeKind.BOOLEAN, native=native)
        return LogicalType(_INTEGERS[word][unsigned], native=native)
    if word in ("decimal", "numeric", "dec", "fixed"):
        # As in the server, DECIMAL(0) is DECIMAL(10).
        precision = (numbers[0] if numbers else 0) or 10
        scale = numbers[1] if len(numbers) > 1 else 0
        if scale > precision:
            raise SchemaError(f"{text!r}: more digits after the point than in all")
        kind = TypeKind.DECIMAL if precision <= DECIMAL_PRECISION_MAX else TypeKind.STRING
        return LogicalType(kind, precision=precision, scale=scale, native=native)
    if word in _MOMENTS:
        kind = _MOMENTS[word]
        if word == "timestamp" and "without" in rest:
            kind = TypeKind.DATETIME
        fsp = numbers[0] if numbers else 0
        return LogicalType(kind, fsp=min(fsp, 6), native=native)
    if word == "bit":
        return LogicalType(TypeKind.BIT, length=numbers[0] if numbers else 1, native=native)
    if word in ("float", "double") and word == "float" and numbers and len(numbers) == 1 and numbers[0] > 24:
        return LogicalType(TypeKind.FLOAT64, native=native)
    if word == "long":
        return LogicalType(TypeKind.BINARY if rest.startswith("varbinary") else TypeKind.STRING, native=native)
    if word in _SIMPLE:
        return LogicalType(_SIMPLE[word], native=native)
    raise SchemaError(f"{text!r} is not a column type raycdc knows")


_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPED = re.compile(r"''|\\(.)", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "b": "\b"}


def labels_of(logical: LogicalType) -> tuple[str, ...]:
    """Return the labels of an ENUM or SET column, from the source's name of its type; empty if that has none."""
    if logical.kind not in (TypeKind.ENUM, TypeKind.SET):
        return ()
    texts = (found[1] for found in _LABEL.finditer(logical.native))
    return tuple(_ESCAPED.sub(lambda e: _ESCAPES.get(e[1], e[1]) if e[1] else "'", text) for text in texts)


def parse_columns(text: str, *, key_path: str) -> TableSchema:
    """Return the schema that ``id BIGINT NOT NULL, name STRING, PRIMARY KEY (id)`` describes.

    Raises `ConfigError` at `key_path` with every bad column. A list in brackets (``(id BIGINT, …)``) is accepted as
    well.
    """
    stripped = text.strip().rstrip(";").strip()
    if stripped.startswith("(") and stripped.endswith(")"):
        stripped = stripped[1:-1]
    columns: list[Column] = []
    key: tuple[str, ...] = ()
    problems: list[str] = []
    for part in _split(stripped):
        listed = _KEY.match(part)
        if listed is not None:
            key = tuple(name.strip().strip('`"') for name in listed[1].split(","))
            continue
        named = _NAME.match(part)
        if named is None or not named[4].strip():
            problems.append(f"{key_path}: {part.strip()!r} is not NAME TYPE")
            continue
        name = (named[1] or "").replace("``", "`") or (named[2] or "").replace('""', '"') or named[3]
        try:
            logical = parse_type(named[4])
        except SchemaError as error:
            problems.append(f"{key_path}: column {name!r}: {error}")
            continue
        if any(column.name == name for column in columns):
            problems.append(f"{key_path}: column {name!r} is there twice")
        if _INLINE_KEY.search(named[4]):
            key = (name,)
        nullable = "not null" not in named[4].lower() and not _INLINE_KEY.search(named[4])
        columns.append(Column(name, logical, nullable))
    known = {column.name for column in columns}
    problems += [f"{key_path}: PRIMARY KEY names {name!r}, which is no column" for name in key if name not in known]
    if not columns and not problems:
        problems.append(f"{key_path}: no column is given")
    if problems:
        raise ConfigError(*problems)
    return TableSchema(tuple(columns), key)


def _split(text: str) -> list[str]:
    """Split the text at commas outside brackets and quotes."""
    parts: list[str] = []
    depth, start, quote = 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character in "(<":
            depth += 1
        elif character in ")>":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]


def same_type(one: LogicalType, other: LogicalType) -> bool:
    """Return True if two types hold the same values. The source's names of the types do not matter."""
    return (one.kind, one.precision, one.scale, one.fsp, one.length) == (
        other.kind,
        other.precision,
        other.scale,
        other.fsp,
        other.length,
    )
