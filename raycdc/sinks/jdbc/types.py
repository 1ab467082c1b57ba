"""Maps logical types to column types of PostgreSQL and MySQL/MariaDB. Every value arrives unchanged, or is refused with
an error.

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
anything of the epoch is visible; the error names table and column. Pure; called by `postgres` and `mysql`. After such
an error, `postgres_unrepresentable` and `mysql_unrepresentable` find the rows with such values by the rules of the kind
of server, without a query. They find only values that every server of this kind refuses. If a value is refused by only
some servers (because a key is too long for the index, because of a constraint, or because newer versions have a wider
range), the table is parked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import ColumnsRefusedError
from raycdc.model import Column, TableId
from raycdc.model.types import LogicalType, TypeKind, wide_decimal
from raycdc.sinks.jdbc.mysql_text import literal_sizes
from raycdc.sinks.rows import reasons


def demanded(columns: Sequence[Column], key: Collection[str]) -> tuple[str, ...]:
    """Return the columns outside of the `key` that are NOT NULL in a target because they are NOT NULL at the source.
    Dates and times are always nullable: a NOT NULL column of MySQL may contain an invalid date (``0000-00-00``), which
    arrives as NULL.
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

    If there is no such type, raises ValueError; its text continues a sentence that begins with the column's name.
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


def mysql_types(target: TableId, columns: Sequence[Column], key: Sequence[str]) -> dict[str, str]:
    """Return the types of the columns, by their names.

    Raises `ColumnsRefusedError` for a column that needs a type that the server does not have.
    """
    types: dict[str, str] = {}
    for column in columns:
        try:
            types[column.name] = mysql_type(column.type, key=column.name in key)
        except ValueError as cause:
            raise ColumnsRefusedError(f"{target}: column {column.name} {cause}") from cause
    return types


def postgres_keeps(have: str, want: str) -> bool:
    """Return True if a column of type `have` stores each value of type `want` unchanged, or rejects it with an error.

    If the types differ, PostgreSQL may round, cut or pad an assigned value without an error (see "Assignment Casts",
    ``numeric`` and ``character`` in its manual). Both types are spelled as ``format_type`` spells them.
    """
    if have == want or (have in _POSTGRES_ANY and want in _POSTGRES_ANY[have]):
        return True
    have_digits, digits = _digits(have, "numeric", _POSTGRES_INTEGERS), _digits(want, "numeric", _POSTGRES_INTEGERS)
    return digits is not None and (have == "numeric" or (have_digits is not None and have_digits >= digits))


def mysql_keeps(have: str, want: str) -> bool:
    """Return True if a column of type `have` stores each value of type `want` unchanged, or rejects it with an error.

    The session is in strict mode, which rejects numbers out of range. Strict mode still rounds decimals and times, and
    cuts spaces at the end of texts, without an error. Both types are spelled as ``information_schema`` spells them.
    """
    if have == want or {have, want} <= _MYSQL_MOMENTS or (have, want) == ("double", "float"):
        return True
    longer = [re.fullmatch(r"(varchar|varbinary)\((\d+)\)", kind) for kind in (have, want)]
    if longer[0] is not None and longer[1] is not None:
        return longer[0][1] == longer[1][1] and int(longer[0][2]) >= int(longer[1][2])
    have_digits, digits = _digits(have, "decimal", _MYSQL_INTEGERS), _digits(want, "decimal", _MYSQL_INTEGERS)
    return have_digits is not None and digits is not None and have_digits >= digits


def _digits(kind: str, decimal: str, integers: Collection[str]) -> int | None:
    """Return the digits after the point of an exact number, which are what an assignment rounds; None for other
    types.
    """
    match = re.fullmatch(rf"{decimal}\(\d+,(-?\d+)\)", kind)
    return int(match[1]) if match else 0 if kind.removesuffix(" unsigned") in integers else None


_POSTGRES_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_MYSQL_INTEGERS = frozenset({"tinyint(1)", "tinyint", "smallint", "mediumint", "int", "bigint"})
#: PostgreSQL's types without a limit, and types whose values they store unchanged.
_POSTGRES_ANY = {
    "double precision": {"real"},
    "text": {"json"},
    "character varying": {"text", "json"},
    "timestamp(6) without time zone": {"timestamp without time zone"},
    "timestamp(6) with time zone": {"timestamp with time zone"},
}
#: The types that a TIMESTAMP column may have. The first only covers the years from 1970 to 2038.
_MYSQL_MOMENTS = frozenset({"timestamp(6)", "datetime(6)"})


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


#: The first timestamp and date of PostgreSQL, in 4713 BC, and the range of MySQL's DATETIME.
_POSTGRES_FIRST_S = -210_866_803_200
_MYSQL_FIRST_S, _MYSQL_LAST_S = -62_167_219_200, 253_402_300_799
#: The first time of a type, if it differs from the default.
_FIRST_S = {"timestamp(6)": 1}


def postgres_unrepresentable(rows: pa.RecordBatch, columns: Sequence[Column], encoding: str) -> pa.Array:
    """Return for each of `rows` the reason why a PostgreSQL database in this `encoding` can never hold it, or null."""
    foreign = _foreign_characters(encoding)

    def bad() -> Iterator[tuple[pa.Array, str]]:
        for column in columns:
            values = rows.column(column.name)
            if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                yield pc.match_substring(values, "\0"), f"column {column.name} has a NUL, and no text of PostgreSQL has"
                if foreign:
                    text = f"column {column.name} has a character that the encoding {encoding} of the database lacks"
                    yield pc.match_substring_regex(values, foreign), text
            elif pa.types.is_temporal(values.type):
                early = _outside(values, _POSTGRES_FIRST_S)
                yield early, f"column {column.name} is before the first day of PostgreSQL"

    return reasons(rows.num_rows, bad())


def mysql_unrepresentable(
    rows: pa.RecordBatch, columns: Sequence[Column], key: Sequence[str], *, bytes_max: int
) -> pa.Array:
    """Return for each of `rows` the reason why a MySQL or MariaDB server can never hold it, or null.

    `bytes_max` is the size of the largest value that the server accepts in a statement.
    """

    def bad() -> Iterator[tuple[pa.Array, str]]:
        plain = {}
        for column in columns:
            values = plain[column.name] = rows.column(column.name)
            if pa.types.is_floating(values.type):
                invalid = pc.fill_null(pc.invert(pc.is_finite(values)), fill_value=False)
                yield invalid, f"column {column.name} is NaN or infinite, which no number of MySQL is"
                plain[column.name] = pc.if_else(invalid, None, values)
            elif pa.types.is_temporal(values.type):
                kind = mysql_type(column.type, key=column.name in key)
                outside = _outside(values, _FIRST_S.get(kind, _MYSQL_FIRST_S), _MYSQL_LAST_S)
                yield outside, f"column {column.name} is outside the years that {kind} has"
        sizes = literal_sizes(pa.RecordBatch.from_pydict(plain))
        large = sizes.sum(axis=0) + len(sizes) + 1 > bytes_max
        for number, column in enumerate(columns):
            widest = large & (sizes.argmax(axis=0) == number)
            if np.any(widest):
                text = f"column {column.name} makes the row larger than the server's max_allowed_packet ({bytes_max})"
                yield pa.array(widest), text

    return reasons(rows.num_rows, bad())


def _outside(values: pa.Array, first_s: int, last_s: int | None = None) -> pa.Array:
    """Return which timestamps or dates are before `first_s` or after `last_s`, in seconds since 1970."""
    if pa.types.is_date(values.type):
        counted, first, last = values.cast(pa.int32()), first_s // 86_400, (last_s or 0) // 86_400
    else:
        counted, first, last = values.cast(pa.int64()), first_s * 1_000_000, (last_s or 0) * 1_000_000 + 999_999
    early = pc.less(counted, first)
    return early if last_s is None else pc.or_(early, pc.greater(counted, last))


def _foreign_characters(encoding: str) -> str:
    """Return a pattern of the characters that a one-byte encoding lacks; empty if it has all, or is unknown here."""
    name = encoding.upper()
    if match := re.fullmatch(r"LATIN(\d+)", name):
        codec = f"iso8859-{_LATIN.get(int(match[1]), 0)}"
    elif match := re.fullmatch(r"(ISO_8859_|WIN|KOI8)(\w+)", name):
        codec = {"ISO_8859_": "iso8859-", "WIN": "cp", "KOI8": "koi8-"}[match[1]] + match[2]
    else:
        return ""
    try:
        known = sorted(set(bytes(range(1, 256)).decode(codec, "ignore")))
    except LookupError:
        return ""
    return "[^" + "".join(rf"\x{{{ord(character):x}}}" for character in known) + "]"


#: The parts of ISO 8859, by the numbers in PostgreSQL's names of encodings (LATIN5 is part 9).
_LATIN = {1: 1, 2: 2, 3: 3, 4: 4, 5: 9, 6: 10, 7: 13, 8: 14, 9: 15, 10: 16}
