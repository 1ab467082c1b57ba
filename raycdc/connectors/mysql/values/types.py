"""MySQL and MariaDB column types: parsed from ``information_schema.COLUMN_TYPE``, mapped once for snapshot and log.

Only `MySqlColumn.logical` decides the logical type of a source type; the arenas (`columns`), the binlog loop, the
result-set loop and the sinks' schemas follow from it. The mapping's table is in `raycdc.model.types`.

Snapshot and log treat these values in the same way: BINARY(n) is padded with trailing zeros; CHAR has no trailing
spaces; JSON is the server's text; ENUM and SET are labels (the error value of an ENUM, index 0, is the empty string); a
geometry is the server's bytes (SRID in four bytes, least significant first, then WKB); a vector is its 32-bit floats; a
UUID or address is its text. Configurable behaviour (`TypeOptions`) is stored in a column's `treatment`.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Literal

from raycdc.connectors.mysql.values.charsets import is_known
from raycdc.core.typed_codec import LEFT_OUT, NOWHERE, SPREAD, JsonObject
from raycdc.errors import SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.types import DECIMAL_PRECISION_MAX

_INTEGERS: dict[str, tuple[TypeKind, TypeKind]] = {
    "tinyint": (TypeKind.INT8, TypeKind.INT16),
    "smallint": (TypeKind.INT16, TypeKind.INT32),
    "mediumint": (TypeKind.INT32, TypeKind.INT32),
    "int": (TypeKind.INT32, TypeKind.INT64),
    "bigint": (TypeKind.INT64, TypeKind.UINT64),
}

CHARACTER_TYPES = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
#: MariaDB's types for identifiers and addresses, which become the text that the server prints.
ADDRESS_TYPES = frozenset({"uuid", "inet4", "inet6"})
#: The kinds of geometries by their number in a table map.
GEOMETRY_KINDS = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)
GEOMETRIES = frozenset({*GEOMETRY_KINDS, "geomcollection"})
BYTE_TYPES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"}) | GEOMETRIES

_ALIASES: dict[str, str] = {
    "integer": "int",
    "numeric": "decimal",
    "dec": "decimal",
    "fixed": "decimal",
    "real": "double",
    "bool": "tinyint",
    "boolean": "tinyint",
    "nchar": "char",
    "nvarchar": "varchar",
    "character": "char",
}

_TEMPORAL: dict[str, TypeKind] = {
    "datetime": TypeKind.DATETIME,
    "timestamp": TypeKind.TIMESTAMP,
    "time": TypeKind.TIME,
}

_HEAD = re.compile(r"\s*+([a-z0-9_]++)\s*+(?:\((.*)\))?([^)]*)$", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}


#: The value of `MySqlColumn.collation` for a column that is known from the log only, which does not show if it is text
#: or bytes.
TEXT_OR_BYTES = "?"


@dataclass(frozen=True, slots=True)
class TypeShape:
    """A parsed ``COLUMN_TYPE``: lower-case base type and its parameters.

    `length` is characters (char, varchar), bytes (binary, varbinary) or bits (bit); `labels` belong to enum and set,
    `digits` (after the point; None: any number) to FLOAT(M,D) and DOUBLE(M,D).
    """

    base: str
    length: int = 0
    precision: int = 0
    scale: int = 0
    fsp: int = 0
    unsigned: bool = False
    digits: int | None = None
    labels: tuple[str, ...] = ()


def is_short_year(shape: TypeShape) -> bool:
    """Return True for MariaDB's YEAR(2), which prints the last two digits of a year, but stores all of it."""
    return shape.base == "year" and shape.length == 2


class ValueTreatment(StrEnum):
    """The way to read a column's values if there is a choice. `TypeOptions` decides it, and the state keeps it."""

    PLAIN = ""
    BOOLEAN = "boolean"
    DATES_ERROR = "dates_error"
    DATES_TEXT = "dates_text"
    TEXT_ERROR = "text_error"
    GEOJSON = "geojson"


@dataclass(frozen=True, slots=True)
class MySqlColumn(JsonObject):
    """One column as the server describes it.

    `column_type` is ``information_schema.COLUMNS.COLUMN_TYPE`` (``decimal(12,2) unsigned``, ``enum('a','b')``);
    `charset` and `collation` are empty for types that have none; `default` is the constant default as text or None;
    `extra` is ``EXTRA`` (``auto_increment``, ``VIRTUAL GENERATED`` …); `treatment` is raycdc's way to read its values.
    """

    name: str
    column_type: str
    charset: str = ""
    collation: str = ""
    nullable: bool = True
    default: str | None = None
    extra: str = ""
    #: Left out of states if there was no choice, so that the fingerprints of such tables stay the same.
    treatment: ValueTreatment = field(default=ValueTreatment.PLAIN, metadata=LEFT_OUT)

    @property
    def shape(self) -> TypeShape:
        return parse_column_type(self.column_type)

    @property
    def data_type(self) -> str:
        return self.shape.base

    @property
    def unsigned(self) -> bool:
        return self.shape.unsigned

    @property
    def labels(self) -> tuple[str, ...]:
        return self.shape.labels

    @property
    def is_virtual(self) -> bool:
        return "VIRTUAL" in self.extra.upper()

    @property
    def is_generated(self) -> bool:
        """Return True if the column is computed from other columns. A default expression does not count."""
        return "GENERATED" in self.extra.upper().replace("DEFAULT_GENERATED", "")

    @property
    def is_counter(self) -> bool:
        return "AUTO_INCREMENT" in self.extra.upper()

    def logical(self) -> LogicalType:
        """Return the logical type, which is the same for all consumers.

        Raises `SchemaError` for a type or character set that is not supported.
        """
        if not is_known(self.charset):
            # In another set its bytes would be other characters (`filename` is an internal set of servers).
            raise SchemaError(
                f"Column {self.name!r} has the character set {self.charset!r}, which is not supported. "
                "Leave its table out with source.exclude."
            )
        try:
            return _logical(self.column_type, self.charset, self.treatment)
        except KeyError:
            raise SchemaError(
                f"Column {self.name!r} has type {self.column_type!r}, which is not supported. "
                "Leave its table out with source.exclude."
            ) from None


@dataclass(frozen=True, slots=True)
class MySqlTable(JsonObject):
    """A source table in one version of its schema; `primary_key` holds column names in key order (empty: none).

    `charset` and `collation` are the table's defaults, which columns added later inherit; empty if unknown. `row_end`
    is the column with the end of a row's validity, if the table keeps outdated rows (MariaDB's WITH SYSTEM VERSIONING),
    else empty. `primary_key` never includes this column, because current rows have different keys without it. If the
    statement that created the table did not name the column, it is not in `columns`, but rows of the log have ROW START
    and this column after all other columns.
    """

    id: TableId = field(metadata=SPREAD)
    columns: tuple[MySqlColumn, ...]
    primary_key: tuple[str, ...] = ()
    charset: str = ""
    collation: str = ""
    row_end: str = field(default="", metadata=LEFT_OUT)
    #: An upper bound of the number of unique keys of a MariaDB table, not counting its primary key. The log may have a
    #: hash column for each.
    unique_keys: int = field(default=0, metadata=LEFT_OUT)
    #: Set for a table that was just probed or created, and in no state: its engine if known, and a VIRTUAL column with
    #: other values in the log (`raycdc.connectors.mysql.ddl.logged_otherwise`).
    engine: str = field(default="", compare=False, metadata=NOWHERE)
    #: True if rows are only displayed, so that they need not be distinguished by their key.
    for_people: bool = field(default=False, metadata=NOWHERE)
    misleading: str = field(default="", compare=False, metadata=NOWHERE)

    def as_logged(self) -> MySqlTable:
        """Return the table with the columns that only the log has."""
        if not self.row_end or any(column.name == self.row_end for column in self.columns):
            return self
        return replace(self, columns=(*self.columns, *_IMPLICIT_PERIOD))

    def schema(self) -> TableSchema:
        """Return the schema for segments and sinks. Raises `SchemaError` naming the table for an unsupported type."""
        try:
            columns = tuple(Column(c.name, c.logical(), c.nullable, c.default) for c in self.columns)
        except SchemaError as cause:
            raise SchemaError(f"Table {self.id}: {cause}") from cause
        return TableSchema(columns, self.primary_key)


#: MariaDB's name for the end of a row's validity, if the user gave the column no name.
IMPLICIT_ROW_END = "row_end"
_IMPLICIT_PERIOD = tuple(
    MySqlColumn(name, "timestamp(6)", nullable=False, extra="STORED GENERATED, INVISIBLE")
    for name in ("row_start", IMPLICIT_ROW_END)
)


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """The user's choices (``source.types``) for types that can be read in several ways."""

    invalid_dates: Literal["null", "park", "text"] = "null"
    invalid_text: Literal["replace", "park"] = "replace"
    tinyint1: Literal["integer", "boolean"] = "integer"
    geometry: Literal["wkb", "geojson"] = "wkb"

    def treat(self, column: MySqlColumn) -> MySqlColumn:
        """Return `column` with the treatment that these options choose."""
        base, treatment = column.shape.base, ValueTreatment.PLAIN
        if base in ("date", "datetime", "timestamp") and self.invalid_dates != "null":
            treatment = ValueTreatment.DATES_ERROR if self.invalid_dates == "park" else ValueTreatment.DATES_TEXT
        elif base == "tinyint" and self.tinyint1 == "boolean" and column.shape.length == 1 and not column.unsigned:
            treatment = ValueTreatment.BOOLEAN
        elif base in GEOMETRIES and self.geometry == "geojson":
            treatment = ValueTreatment.GEOJSON
        elif column.charset and self.invalid_text == "park":
            treatment = ValueTreatment.TEXT_ERROR
        return column if column.treatment is treatment else replace(column, treatment=treatment)

    def treat_table(self, table: MySqlTable) -> MySqlTable:
        """Return `table` with the treatments of all columns."""
        return replace(table, columns=tuple(self.treat(column) for column in table.columns))


DEFAULT_TYPES = TypeOptions()


def column_types() -> tuple[str, ...]:
    """Return every base type of columns, in the servers' notation, without aliases and parameters."""
    texts = sorted(CHARACTER_TYPES), sorted(BYTE_TYPES), sorted(_OTHERS)
    return (*_INTEGERS, "decimal", "bit", *_TEMPORAL, *itertools.chain.from_iterable(texts))


@lru_cache(maxsize=4096)
def parse_column_type(column_type: str) -> TypeShape:
    """Parse ``COLUMN_TYPE`` as MySQL 5.7–9 and MariaDB print it. Raises `SchemaError` for text that is no type."""
    found = _HEAD.match(re.sub(r"/\*.*?\*/", "", column_type).strip())
    if found is None:
        raise SchemaError(f"{column_type!r} is not a MySQL column type")
    word, inside, rest = found.group(1).lower(), found.group(2) or "", found.group(3).lower()
    base = _ALIASES.get(word, word)
    unsigned = "unsigned" in rest or "zerofill" in rest
    if base in ("enum", "set"):
        return TypeShape(base, labels=tuple(_unquote(m.group(1)) for m in _LABEL.finditer(inside)))
    numbers = [int(part) for part in inside.split(",") if part.strip().isdigit()]
    first = numbers[0] if numbers else None
    match base:
        case "decimal":
            return TypeShape(base, precision=first or 10, scale=(*numbers, 0, 0)[1], unsigned=unsigned)
        case "datetime" | "timestamp" | "time":
            return TypeShape(base, fsp=first or 0)
        case "bit":
            return TypeShape(base, length=first or 1)
        case "char" | "binary":
            return TypeShape(base, length=1 if first is None else first)
        case "float" if first is not None and len(numbers) == 1 and first > 24:
            return TypeShape("double", unsigned=unsigned)
        case "float" | "double":
            digits = numbers[1] if len(numbers) == 2 else None
            return TypeShape(base, length=first or 0, unsigned=unsigned, digits=digits)
        case _:
            return TypeShape(base, length=first or 0, unsigned=unsigned)


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), text.replace("''", "'"), flags=re.DOTALL)


@lru_cache(maxsize=4096)
def _logical(column_type: str, charset: str, treatment: ValueTreatment) -> LogicalType:
    """Return the logical type. Raises KeyError for an unsupported type."""
    shape = parse_column_type(column_type)
    base = shape.base
    if treatment in _TREATED:
        return LogicalType(_TREATED[treatment], native=column_type)
    if base in _INTEGERS:
        return LogicalType(_INTEGERS[base][shape.unsigned], native=column_type)
    if base in _TEMPORAL:
        return LogicalType(_TEMPORAL[base], fsp=shape.fsp, native=column_type)
    if base == "decimal":
        if shape.precision > DECIMAL_PRECISION_MAX:
            return LogicalType(TypeKind.STRING, precision=shape.precision, scale=shape.scale, native=column_type)
        return LogicalType(TypeKind.DECIMAL, precision=shape.precision, scale=shape.scale, native=column_type)
    if base == "bit":
        return LogicalType(TypeKind.BIT, length=shape.length, native=column_type)
    if base in CHARACTER_TYPES:
        return LogicalType(TypeKind.BINARY if charset == "binary" else TypeKind.STRING, native=column_type)
    if base in BYTE_TYPES:
        return LogicalType(TypeKind.BINARY, native=column_type)
    return LogicalType(_OTHERS[base], native=column_type)


_TREATED = {
    ValueTreatment.BOOLEAN: TypeKind.BOOLEAN,
    ValueTreatment.DATES_TEXT: TypeKind.STRING,
    ValueTreatment.GEOJSON: TypeKind.JSON,
}

_OTHERS: dict[str, TypeKind] = {
    **dict.fromkeys(ADDRESS_TYPES, TypeKind.STRING),
    "float": TypeKind.FLOAT32,
    "double": TypeKind.FLOAT64,
    "date": TypeKind.DATE,
    "year": TypeKind.YEAR,
    "enum": TypeKind.ENUM,
    "set": TypeKind.SET,
    "json": TypeKind.JSON,
}
