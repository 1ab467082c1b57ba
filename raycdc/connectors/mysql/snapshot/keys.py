"""Values of a chunk key: their forms in queries, SQL literals, state and Arrow.

This module handles one column of a key; `chunk_keys` combines several. The server compares values in SQL, with the
column's type and collation; here they are only converted. A value is an int (integers, YEAR, BIT, the number of an
ENUM's label), a float, bytes, or text: characters for character columns, else the server's spelling (decimals,
temporals). Every literal is built so that no character of it can end the literal.

**An ENUM** is ordered by its label's number in ORDER BY and in indexes, and by its text in ``<``. Only equality means
the same in both, and uses the index by number, so a range is written as a list of numbers.

**Dates that no calendar has** (``0000-00-00``, ``2024-00-10``) become null in Arrow, where the log reader judges them.
Rows with such a date therefore belong to the chunk of NULL: `null_condition` and `range_condition` express this in SQL.

`to_number` and `from_number` convert key values to integers for computing, for example, the middle of two keys. The two
functions are approximately inverse to each other, and keep the order of most keys. Their results are only starting
points of searches. For text they are least exact: the collation's order is guessed from the characters, and
`from_number` returns a text to search from, not a key (`exact` returns False for such columns).
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, overload

import pyarrow as pa

from raycdc.clients.mysql import quote_name
from raycdc.connectors.mysql.values.types import CHARACTER_TYPES, MySqlColumn, MySqlTable, ValueTreatment
from raycdc.errors import ConfigError
from raycdc.model import LogicalType, TypeKind
from raycdc.model.column_names import mysql_fold

KeyValue = int | float | str | bytes
#: A bound of a chunk: a value of the key's column, or values of its first columns. A shorter tuple is less than all
#: that begin with it, so it comes before the first row with these values.
Bound = KeyValue | tuple[KeyValue, ...]
#: A key value in states and messages. Bytes and floats are tagged, so that they are restored exactly.
StoredValue = int | str | dict[str, str]
StoredBound = StoredValue | list[StoredValue] | tuple[StoredValue, ...]

#: An ENUM with more labels cannot be a key, because conditions list them.
LABELS_MAX = 1000


class KeyKind(Enum):
    """The notation of a chunk key's values; a closed set."""

    INTEGER = "integer"
    FLOAT = "float"
    EXACT = "exact"
    DATE = "date"
    TIME = "time"
    TEXT = "text"
    BYTES = "bytes"
    LABEL = "label"


_BY_BASE: dict[str, KeyKind] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"), KeyKind.INTEGER),
    **dict.fromkeys(("float", "double"), KeyKind.FLOAT),
    **dict.fromkeys(("date", "datetime", "timestamp"), KeyKind.DATE),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), KeyKind.BYTES),
    "decimal": KeyKind.EXACT,
    "time": KeyKind.TIME,
}


def key_kind(column: MySqlColumn) -> KeyKind | None:
    """Return the kind of key of `column`; None for SET, JSON, geometry and decimals beyond 38 digits.

    It is also None for an ENUM with an empty label, because an invalid value looks the same.
    """
    base = column.shape.base
    if column.treatment in (ValueTreatment.DATES_TEXT, ValueTreatment.BOOLEAN):
        return None
    if base in CHARACTER_TYPES:
        return KeyKind.BYTES if column.charset == "binary" else KeyKind.TEXT
    if base == "enum":
        labels = column.shape.labels
        return None if "" in labels or len(labels) > LABELS_MAX else KeyKind.LABEL
    if base == "decimal" and column.logical().kind is not TypeKind.DECIMAL:
        return None
    return _BY_BASE.get(base)


def column_named(table: MySqlTable, name: str) -> MySqlColumn:
    """Return the column `name` of `table` (case as in the server's names).

    Raises `ConfigError` if it does not exist.
    """
    for column in table.columns:
        if mysql_fold(column.name) == mysql_fold(name):
            return column
    raise ConfigError(f"source.snapshot.key: table {table.id} has no column {name!r}")


def order_of(table: MySqlTable, name: str) -> tuple[LogicalType, str, str] | None:
    """Return the properties that determine the order of a column's values; None if there is no such column."""
    column = next((column for column in table.columns if column.name == name), None)
    return None if column is None else (column.logical(), column.charset, column.collation)


def select_expression(column: MySqlColumn) -> str:
    """Return SQL for a value of `column` in a form that `from_server` understands."""
    name = quote_name(column.name)
    match key_kind(column):
        case KeyKind.INTEGER:
            return f"{name} + 0" if column.shape.base == "bit" else name
        case KeyKind.LABEL:
            return f"{name} + 0"
        case KeyKind.FLOAT:
            # A FLOAT is printed with 6 digits, but as a double with all.
            return f"{name} + 0e0"
        case KeyKind.TEXT:
            return f"CONVERT({name} USING utf8mb4)"
        case KeyKind.BYTES:
            return f"HEX({name})"
        case _:
            return f"CAST({name} AS CHAR)"


def from_server(column: MySqlColumn, value: Any) -> KeyValue | None:
    """Return the key value in a cell that was selected with `select_expression`."""
    if value is None:
        return None
    match key_kind(column):
        case KeyKind.INTEGER | KeyKind.LABEL:
            return int(value)
        case KeyKind.FLOAT:
            return float(value)
        case KeyKind.BYTES:
            return bytes.fromhex(value if isinstance(value, str) else value.decode("ascii"))
        case _:
            return value if isinstance(value, str) else bytes(value).decode("utf-8")


def literal(column: MySqlColumn, value: KeyValue) -> str:
    """Return `value` as SQL that compares with `column` by the column's type and collation, and can use its index."""
    match value:
        case bytes():
            return f"X'{value.hex()}'"
        case int():
            return str(value)
        case float():
            text = repr(value)
            return text if "e" in text else f"{text}e0"
        case str() if key_kind(column) is KeyKind.TEXT:
            return text_value(column, text_literal(value))
        case _ if key_kind(column) is KeyKind.EXACT:
            return str(Decimal(value))
        case _:
            return f"'{_temporal(value)}'"


def text_literal(text: str) -> str:
    """Return `text` as SQL, in utf8mb4."""
    return f"_utf8mb4 X'{text.encode().hex()}'"


def text_value(column: MySqlColumn, text: str) -> str:
    """Return the SQL expression `text`, in utf8mb4, as a value that compares like those of the text `column`."""
    if column.charset not in ("utf8mb4", ""):
        text = f"CONVERT({text} USING {_word(column.charset)})"
    return f"{text} COLLATE {_word(column.collation)}" if column.collation else text


def null_condition(column: MySqlColumn) -> str:
    """Return SQL that is true for rows of the chunk of NULL, and never NULL itself."""
    name = quote_name(column.name)
    if key_kind(column) is not KeyKind.DATE:
        return f"{name} IS NULL"
    leap = f"(YEAR({name}) % 4 = 0 AND (YEAR({name}) % 100 <> 0 OR YEAR({name}) % 400 = 0))"
    last = f"ELT(MONTH({name}), 31, 28 + {leap}, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)"
    return (
        f"({name} IS NULL OR MONTH({name}) = 0 OR DAYOFMONTH({name}) = 0 "
        f"OR COALESCE(DAYOFMONTH({name}) > {last} + 0, 0))"
    )


def has_null_chunk(column: MySqlColumn) -> bool:
    """Return True if rows may belong to the chunk of NULL."""
    return column.nullable or key_kind(column) is KeyKind.DATE


def range_condition(column: MySqlColumn, lower: KeyValue | None, upper: KeyValue | None) -> str:
    """Return SQL for keys in [lower, upper); None is unbounded. It excludes rows of the chunk of NULL."""
    name = quote_name(column.name)
    parts = []
    if lower is not None:
        parts.append(f"{name} >= {literal(column, lower)}")
    if upper is not None:
        parts.append(f"{name} < {literal(column, upper)}")
    if key_kind(column) is KeyKind.DATE or not parts:
        parts.append(f"NOT {null_condition(column)}")
    return " AND ".join(parts)


def equals(column: MySqlColumn, value: KeyValue) -> str:
    """Return SQL for keys equal to `value`."""
    return f"{quote_name(column.name)} = {literal(column, value)}"


def beyond(column: MySqlColumn, operator: Literal["<", ">", ">="], value: KeyValue) -> str:
    """Return SQL for keys on one side of `value`."""
    if key_kind(column) is not KeyKind.LABEL:
        return f"{quote_name(column.name)} {operator} {literal(column, value)}"
    assert isinstance(value, int), "an ENUM's bound is the number of a label"
    numbers = range(value) if operator == "<" else range(value + (operator == ">"), len(column.shape.labels) + 1)
    listed = ", ".join(str(number) for number in numbers)
    return f"{quote_name(column.name)} IN ({listed})" if listed else "1 = 0"


@overload
def bound_to_json(bound: Bound) -> StoredBound: ...
@overload
def bound_to_json(bound: None) -> None: ...
def bound_to_json(bound: Bound | None) -> StoredBound | None:
    """Return `bound` for states and messages; see `StoredValue`."""
    if isinstance(bound, tuple):
        return [_value_to_json(value) for value in bound]
    return None if bound is None else _value_to_json(bound)


def bound_from_json(data: StoredBound | None) -> Bound | None:
    """Return the inverse of `bound_to_json`."""
    if isinstance(data, list | tuple):
        return tuple(_value_from_json(value) for value in data)
    return None if data is None else _value_from_json(data)


def _value_to_json(value: KeyValue) -> StoredValue:
    match value:
        case bytes():
            return {"bytes": value.hex()}
        case float():
            return {"float": value.hex()}
        case _:
            return value


def _value_from_json(data: StoredValue) -> KeyValue:
    match data:
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"float": text}:
            return float.fromhex(text)
        case int() | str():
            return data
        case _:
            raise ValueError(f"a value of the type {type(data).__name__} is no key value")


def to_arrow(column: MySqlColumn, values: list[KeyValue]) -> pa.Array:
    """Return key values as an array of the column's Arrow type, as the log reader has them."""
    type_ = column.logical().arrow()
    if pa.types.is_decimal(type_):
        return pa.array([Decimal(str(v)) for v in values], type_)
    if pa.types.is_temporal(type_):
        texts = pa.array([str(v) for v in values], pa.string())
        if pa.types.is_date(type_):
            return texts.cast(type_)
        return texts.cast(pa.timestamp("us")).cast(pa.int64()).cast(type_)
    return pa.array(values, type_)


def _word(name: str) -> str:
    """Return a name of a character set or collation, which must consist of letters, digits and underscores."""
    if not name.replace("_", "").isalnum():
        raise ValueError(f"not a name of a character set or collation: {name!r}")
    return name


def _temporal(value: KeyValue) -> str:
    text = str(value)
    if not set(text) <= set("0123456789-:. "):
        raise ValueError(f"not a date or time: {text!r}")
    return text


#: The numbers of bytes and characters that are used. Keys that differ only after them count as equal here.
_BYTES = 24
_CHARACTERS = 24
#: Characters count from the space to the tilde. Others count as the nearest of these.
_FIRST, _LAST = 0x20, 0x7E
_BASE = _LAST - _FIRST + 2
_SIGN = 1 << 63
_EPOCH = dt.datetime(1, 1, 1, tzinfo=dt.UTC)


def exact(column: MySqlColumn) -> bool:
    """Return True if values of `from_number` can be used as bounds."""
    return key_kind(column) is not KeyKind.TEXT


def to_number(column: MySqlColumn, value: KeyValue) -> int | None:
    """Return a whole number for `value`; None if there is none (an invalid date)."""
    match value:
        case int():
            return value
        case float():
            (bits,) = struct.unpack("<q", struct.pack("<d", value + 0.0))
            return int(bits) if bits >= 0 else -int(bits & (_SIGN - 1))
        case bytes():
            return int.from_bytes(value[:_BYTES].ljust(_BYTES, b"\0"))
        case str():
            return _text_to_number(column, value)


def from_number(column: MySqlColumn, number: int) -> KeyValue | None:
    """Return the value at `number`, or None if the column has none there."""
    match key_kind(column):
        case KeyKind.INTEGER | KeyKind.LABEL:
            return number
        case KeyKind.FLOAT:
            bits = number if number >= 0 else -number - _SIGN
            (value,) = struct.unpack("<d", struct.pack("<q", bits))
            return float(value) if math.isfinite(value) else None
        case KeyKind.BYTES:
            return number.to_bytes(_BYTES).rstrip(b"\0") if 0 <= number < 1 << (8 * _BYTES) else None
        case KeyKind.EXACT:
            digits = tuple(int(digit) for digit in str(abs(number)))
            return format(Decimal((int(number < 0), digits, -_scale(column))), "f")
        case KeyKind.DATE:
            return _date_at(column, _floor(column, number))
        case KeyKind.TIME:
            return _time_at(_floor(column, number))
        case KeyKind.TEXT:
            return _text_at(number)
        case None:
            return None


def _text_to_number(column: MySqlColumn, text: str) -> int | None:
    match key_kind(column):
        case KeyKind.EXACT:
            sign, digits, exponent = Decimal(text).as_tuple()
            assert isinstance(exponent, int), "a decimal column holds numbers only"
            amount = int("".join(map(str, digits)) + "0" * (exponent + _scale(column)))
            return -amount if sign else amount
        case KeyKind.DATE:
            try:
                return (dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC) - _EPOCH) // dt.timedelta(microseconds=1)
            except ValueError:
                return None
        case KeyKind.TIME:
            hours, minutes, seconds = text.removeprefix("-").split(":")
            return (-1 if text.startswith("-") else 1) * (
                (int(hours) * 60 + int(minutes)) * 60_000_000 + int(Decimal(seconds) * 1_000_000)
            )
        case _:
            number = 0
            if column.collation.endswith("_ci"):
                text = text.upper()
            for character in text[:_CHARACTERS].ljust(_CHARACTERS, "\0"):
                code = 0 if character == "\0" else min(max(ord(character), _FIRST), _LAST) - _FIRST + 1
                number = number * _BASE + code
            return number


def _text_at(number: int) -> str | None:
    codes = []
    for _ in range(_CHARACTERS):
        number, code = divmod(number, _BASE)
        codes.append(code)
    if number:
        return None
    text = "".join(chr(code - 1 + _FIRST) if code else "\0" for code in reversed(codes))
    return text.split("\0", 1)[0]


def _date_at(column: MySqlColumn, number: int) -> str | None:
    try:
        moment = _EPOCH + dt.timedelta(microseconds=number)
    except OverflowError:
        return None
    if column.shape.base == "date":
        return moment.date().isoformat()
    return moment.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")


def _floor(column: MySqlColumn, micros: int) -> int:
    """Round down to the digits of the column.

    The server would round a bound otherwise, and the log reader would not.
    """
    unit = 86_400_000_000 if column.shape.base == "date" else 10 ** (6 - column.logical().fsp)
    return micros // unit * unit


def _time_at(number: int) -> str:
    sign, number = ("-", -number) if number < 0 else ("", number)
    seconds, micros = divmod(number, 1_000_000)
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"


def _scale(column: MySqlColumn) -> int:
    return column.logical().scale
