"""Column types in PostgreSQL and MySQL/MariaDB for logical types. Every value arrives unchanged, or an error names it.

| kind | PostgreSQL | MySQL, MariaDB |
|---|---|---|
| BOOLEAN | boolean | tinyint(1) |
| INT8 | smallint | tinyint |
| INT16, YEAR | smallint | smallint |
| INT32, INT64 | integer, bigint | int, bigint |
| UINT64, BIT(64) | numeric(20,0) | bigint unsigned |
| BIT(1 … 63) | bigint | bigint |
| FLOAT32, FLOAT64 | real, double precision | float, double; no NaN, no infinities, on MariaDB no negative zero |
| DECIMAL(p, s) | numeric(p,s) | decimal(p,s) |
| … of more than 38 digits (STRING of a decimal column) | numeric(p,s) | decimal(p,s) |
| STRING, ENUM, SET | text; NUL characters are refused | longtext, or varchar(n) in a key, compared by its bytes |
| JSON | json, which keeps the text (jsonb refuses ``U+0000``, and moves keys) | longtext, with the same text |
| BINARY | bytea | longblob, or varbinary(n) in a key |
| DATE | date | date |
| DATETIME | timestamp without time zone | datetime(6) |
| TIMESTAMP | timestamp with time zone | timestamp(6), 1970 to 2038, for a MySQL source; else datetime(6) in UTC |
| TIME | text as the source prints it: a duration, not a time of day | time(6) |

The server itself refuses a value that it cannot hold (a date beyond its range, a NUL) while rows are staged, before
anything of the epoch is visible; the error names table and column. Pure; called by `postgres` and `mysql`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from raycdc.model import Column
from raycdc.model.types import LogicalType, TypeKind, wide_decimal


def demanded(columns: Sequence[Column], key: Collection[str]) -> tuple[str, ...]:
    """Return the columns, without those of the `key`, that are NOT NULL in a target because they are so at the source.

    Dates and times are always nullable, because an invalid one (``0000-00-00``) arrives as NULL, and a NOT NULL column
    of MySQL may contain it.
    """
    return tuple(c.name for c in columns if not (c.nullable or c.name in key or c.type.kind in _MOMENTS))


_MOMENTS = frozenset({TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP})


def postgres_type(logical: LogicalType) -> str:
    """Return the column type in the spelling of PostgreSQL's ``format_type``."""
    match logical.kind:
        case TypeKind.BIT:
            return "bigint" if logical.length <= 63 else "numeric(20,0)"
        case TypeKind.DECIMAL:
            return f"numeric({logical.precision},{logical.scale})"
        case TypeKind.STRING if (wide := wide_decimal(logical)) is not None:
            return f"numeric({wide[0]},{wide[1]})"
        case kind:
            return _POSTGRES[kind]


_POSTGRES: dict[TypeKind, str] = {
    TypeKind.BOOLEAN: "boolean",
    TypeKind.INT8: "smallint",
    TypeKind.INT16: "smallint",
    TypeKind.YEAR: "smallint",
    TypeKind.INT32: "integer",
    TypeKind.INT64: "bigint",
    TypeKind.UINT64: "numeric(20,0)",
    TypeKind.FLOAT32: "real",
    TypeKind.FLOAT64: "double precision",
    TypeKind.STRING: "text",
    TypeKind.ENUM: "text",
    TypeKind.SET: "text",
    TypeKind.TIME: "text",
    TypeKind.JSON: "json",
    TypeKind.BINARY: "bytea",
    TypeKind.DATE: "date",
    TypeKind.DATETIME: "timestamp without time zone",
    TypeKind.TIMESTAMP: "timestamp with time zone",
}


def mysql_type(logical: LogicalType, *, key: bool) -> str:
    """Return the column type in the spelling of ``information_schema``.

    Raises ValueError if there is none, with a text that follows the column's name.
    """
    wide = wide_decimal(logical)
    match logical.kind:
        case TypeKind.BIT:
            return "bigint" if logical.length <= 63 else "bigint unsigned"
        case TypeKind.DECIMAL:
            return f"decimal({logical.precision},{logical.scale})"
        case TypeKind.STRING if wide is not None:
            return f"decimal({wide[0]},{wide[1]})"
        case TypeKind.STRING | TypeKind.ENUM | TypeKind.SET | TypeKind.JSON if key:
            return f"varchar({_length(logical)})"
        case TypeKind.TIMESTAMP if not logical.native.lower().startswith("timestamp"):
            return "datetime(6)"
        case TypeKind.BINARY if key:
            return f"varbinary({_length(logical)})"
        case kind:
            return _MYSQL[kind]


def _length(logical: LogicalType) -> int:
    """Return the maximal length of a key column's values, which MySQL must know."""
    if logical.kind in (TypeKind.ENUM, TypeKind.SET):
        return 255
    match = _LENGTH.match(logical.native)
    if match is None or int(match[1]) > 768:
        raise ValueError(f"({logical.native or logical.kind}) is in the key, and MySQL needs a length of at most 768")
    return max(1, int(match[1]))


def mysql_key_bytes(logical: LogicalType) -> int:
    """Return the maximal size of a text column in an index; 0 if its declaration does not limit it."""
    kind = mysql_type(logical, key=True)
    if not (match := re.fullmatch(r"(varchar|varbinary)\((\d+)\)", kind)):
        return 0
    return int(match[2]) * (_UTF8MB4_BYTES if match[1] == "varchar" else 1)


#: The most bytes of a character in the targets' character set.
_UTF8MB4_BYTES = 4

_LENGTH = re.compile(r"(?:var)?(?:char|binary)\((\d+)\)", re.IGNORECASE)

_MYSQL: dict[TypeKind, str] = {
    TypeKind.BOOLEAN: "tinyint(1)",
    TypeKind.INT8: "tinyint",
    TypeKind.INT16: "smallint",
    TypeKind.YEAR: "smallint",
    TypeKind.INT32: "int",
    TypeKind.INT64: "bigint",
    TypeKind.UINT64: "bigint unsigned",
    TypeKind.FLOAT32: "float",
    TypeKind.FLOAT64: "double",
    TypeKind.STRING: "longtext",
    TypeKind.ENUM: "longtext",
    TypeKind.SET: "longtext",
    TypeKind.JSON: "longtext",
    TypeKind.TIME: "time(6)",
    TypeKind.BINARY: "longblob",
    TypeKind.DATE: "date",
    TypeKind.DATETIME: "datetime(6)",
    TypeKind.TIMESTAMP: "timestamp(6)",
}
