"""Determines the value of existing rows in an added column: its constant default as the server stores it.

A statement has a default in the user's notation (``'1:2'`` for a TIME, ``'b,a'`` for a SET, an instant in the session's
time zone). The server stores it in a normal form, and fills rows with that. For each type this module knows the
spellings whose stored form is the same on every server. The stored form of any other spelling is *unsure*, and the
table must be read again. Called by `alter`, `shadows`, `log_server` and `catalogue`.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext

import numpy as np

from raycdc.connectors.mysql.ddl.parse.statements import ColumnDefinition, DdlDialect, Spelled
from raycdc.connectors.mysql.ddl.parse.types import number_text
from raycdc.connectors.mysql.values.types import MySqlColumn, ValueTreatment
from raycdc.model import TypeKind

_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_NUMBERS = frozenset({*_INTEGER_BITS, "decimal", "float", "double", "bit", "year"})
#: The value of a NOT NULL column without a default (MySQL manual, "Data Type Default Values").
_ZEROS = {
    **dict.fromkeys(_NUMBERS, "0"),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "set"), ""),
    **dict.fromkeys(("varbinary", "tinyblob", "blob", "mediumblob", "longblob"), ""),
    "json": "null",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "inet4": "0.0.0.0",  # noqa: S104  a value, no address to listen on
    "inet6": "::",
}
_HEXADECIMAL = re.compile(r"0x[0-9a-f]*|[xb]'.*'", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_EXACT = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)")
_APPROXIMATE = re.compile(rf"{_EXACT.pattern}(?:[eE][+-]?[0-9]+)?")
_CLOCK = r"([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,6}))?)?"
_MOMENT = re.compile(rf"([0-9]{{4}})-([0-9]{{1,2}})-([0-9]{{1,2}})(?:[ T]{_CLOCK})?")
_DURATION = re.compile(rf"(-?)([0-9]{{1,3}}):{_CLOCK.partition(':')[2]}")
_NO_DATE = re.compile(r"0000-00-00(?: 00:00:00(?:\.0+)?)?|0")
_OFFSET = re.compile(r"([+-])([0-9]{1,2}):([0-9]{2})")
#: The first and the last second of a TIMESTAMP.
_INSTANTS = (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2038, 1, 19, 3, 14, 7, tzinfo=UTC))
#: The number of characters that certainly fit into a text of that type.
_TEXT_ROOM = {"tinytext": 255 // 4, "text": 65_535 // 4}
#: The end of the range from U+00A0 on of which a set has all characters.
_LAST = {"utf8mb4": "\U0010fffd", "utf8mb3": "\uffff", "utf8": "\uffff", "latin1": "\xff"}


@dataclass(frozen=True, slots=True)
class Fill:
    """The value of existing rows, as text (None: null). If it is unknown, `unsure` is the reason."""

    value: str | None
    unsure: str = ""


class _UnsureError(Exception):
    """The stored form is not known."""


def fill_of(column: MySqlColumn, definition: ColumnDefinition, dialect: DdlDialect) -> Fill:
    """Return the value of existing rows in `column`, which a statement read by `dialect` adds as `definition`.

    If the default is no constant, the definition's `computed` is not empty, and null is returned.
    """
    if definition.computed:
        return Fill(None)
    return _fill(column, column.default, definition.spelled, dialect)


def catalogue_fill(column: MySqlColumn) -> Fill:
    """Return `fill_of` for an added column that the catalogue describes now.

    The caller knows if the default is an expression. Catalogues print bytes in special forms, a FLOAT with six digits,
    and a TIMESTAMP in an unstated time zone.
    """
    text, base = column.default, column.shape.base
    if text is None:
        return _fill(column, None, Spelled.TEXT, DdlDialect())
    if base == "bit":
        return _fill(column, number_text(text), Spelled.NUMBER, DdlDialect())
    digits = len(text.partition("e")[0].strip("-0.").replace(".", ""))
    hexadecimal = base not in _NUMBERS and _HEXADECIMAL.fullmatch(text) is not None
    if hexadecimal or column.logical().kind is TypeKind.BINARY or (base == "float" and digits > 5):
        return Fill(None, "a constant that the catalogue prints in another notation")
    return _fill(column, text, Spelled.TEXT, DdlDialect())


def _fill(column: MySqlColumn, text: str | None, spelled: Spelled, dialect: DdlDialect) -> Fill:
    if text is None and column.nullable:
        return Fill(None)
    try:
        if text is None:
            return Fill(_zero(column))
        if text == "" and dialect.empty_is_null:
            raise _UnsureError
        return Fill(_stored(column, text, spelled, dialect))
    except _UnsureError:
        if text is None:
            return Fill(None, f"the zero of {column.column_type}")
        zone = " in the time zone of the session" if column.shape.base == "timestamp" else ""
        return Fill(None, f"what the server makes of a constant as {column.column_type}{zone}")


def _zero(column: MySqlColumn) -> str | None:
    shape = column.shape
    match shape.base:
        case "enum":
            return column.labels[0]
        case "binary":
            return "\0" * shape.length
        case "time":
            return _duration("00:00:00", shape.fsp)
        case "date" | "datetime" | "timestamp":
            return _no_date(column)
        case "decimal" if column.logical().kind is TypeKind.STRING:
            return f"{Decimal(0):.{shape.scale}f}"
        case base if base in _ZEROS:
            return _ZEROS[base]
        case _:
            raise _UnsureError


def _stored(column: MySqlColumn, text: str, spelled: Spelled, dialect: DdlDialect) -> str | None:
    shape = column.shape
    temporal = shape.base in ("date", "datetime", "timestamp", "time")
    if spelled is Spelled.OTHERWISE or (spelled is Spelled.TEMPORAL and not temporal):
        raise _UnsureError
    if shape.base in _NUMBERS:
        return _number(column, text, spelled)
    match shape.base:
        case "time":
            return _duration(text, shape.fsp)
        case "date" | "datetime" | "timestamp":
            return _moment(column, text, dialect)
        case "enum":
            return _label(column.labels, text, spelled)
        case "set":
            chosen = {_label(column.labels, part, spelled) for part in text.split(",")} if text else set()
            return ",".join(label for label in column.labels if label in chosen)
        case "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" if column.charset != "binary":
            return _text(column, text, spelled)
        case "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob":
            return _binary(column, text, spelled)
        case _:
            raise _UnsureError


def _number(column: MySqlColumn, text: str, spelled: Spelled) -> str:
    base = column.shape.base
    if base in _INTEGER_BITS:
        whole = int(_rounded(text, 0, spelled))
        bits = _INTEGER_BITS[base]
        low, high = (0, 1 << bits) if column.unsigned else (-(1 << bits - 1), 1 << bits - 1)
        return str(_within(whole, low, high))
    match base:
        case "bit":
            if spelled is not Spelled.NUMBER or not _WHOLE.fullmatch(text):
                raise _UnsureError
            return str(_within(int(text), 0, 1 << column.shape.length))
        case "year":
            return str(_year(text, spelled))
        case "decimal":
            number = _rounded(text, column.shape.scale, Spelled.NUMBER)
            limit = 10 ** (column.shape.precision - column.shape.scale)
            if abs(number) >= limit or (number < 0 and column.unsigned):
                raise _UnsureError
            return f"{number:f}"
        case _:
            return _floating(column, text)


def _rounded(text: str, scale: int, spelled: Spelled) -> Decimal:
    """Return an exact number rounded half away from zero, like all servers (manual, "Rounding Behavior")."""
    if not (_EXACT if spelled is Spelled.NUMBER else _WHOLE).fullmatch(text):
        raise _UnsureError
    with localcontext(prec=200):
        number = Decimal(text)
        if number.adjusted() > 100:
            raise _UnsureError
        rounded = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
        return abs(rounded) if rounded == 0 else rounded


def _within(number: int, low: int, high: int) -> int:
    if not low <= number < high:
        raise _UnsureError
    return number


def _year(text: str, spelled: Spelled) -> int:
    """Return the year of a default. Two digits are a year from 1970 to 2069.

    The number 0 is the year 0000, but the text ``'0'`` is 2000.
    """
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise _UnsureError
    year = int(text)
    if year == 0:
        return 2000 if spelled is Spelled.TEXT and len(text) <= 2 else 0
    if len(text) <= 2:
        return year + (2000 if year < 70 else 1900)
    return _within(year, 1901, 2156)


def _floating(column: MySqlColumn, text: str) -> str:
    if not _APPROXIMATE.fullmatch(text):
        raise _UnsureError
    number = float(text)
    single = column.shape.base == "float"
    if "," in column.column_type:
        # If the type states the digits after the point, the server rounds in binary.
        digits = int(column.column_type.partition(",")[2].partition(")")[0])
        exact = Decimal(text)
        if exact != exact.quantize(Decimal(1).scaleb(-digits if single else 0)):
            raise _UnsureError
    with np.errstate(over="ignore"):
        stored = np.float32(number) if single else np.float64(number)
    if not np.isfinite(stored) or (text.startswith("-") and (stored == 0 or column.unsigned)):
        raise _UnsureError
    return str(stored)


def _moment(column: MySqlColumn, text: str, dialect: DdlDialect) -> str | None:
    base, fsp = column.shape.base, column.shape.fsp
    if _NO_DATE.fullmatch(text):
        return _no_date(column)
    found = _MOMENT.fullmatch(text)
    if found is None or (base == "date" and found[4] is not None):
        raise _UnsureError
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    try:
        moment = datetime(year, month, day, hour, minute, second, _microseconds(found[7], fsp), tzinfo=UTC)
    except ValueError:
        raise _UnsureError from None
    if base == "date":
        return moment.date().isoformat()
    if base == "timestamp":
        moment = _instant(moment, dialect.time_zone)
    seconds = moment.replace(microsecond=0, tzinfo=None).isoformat(" ")
    return f"{seconds}{_fraction(moment.microsecond, fsp)}"


def _instant(moment: datetime, zone: str) -> datetime:
    """Convert a time of the session's clock, given as if in UTC, to UTC.

    Raises `_UnsureError` for a named zone, because its offset changes.
    """
    offset = _OFFSET.fullmatch(zone)
    if offset is None and zone != "UTC":
        raise _UnsureError
    ahead = timedelta(hours=int(offset[2]), minutes=int(offset[3])) if offset is not None else timedelta()
    if offset is not None and offset[1] == "-":
        ahead = -ahead
    if moment.year < _INSTANTS[0].year - 1:
        raise _UnsureError
    instant = moment - ahead
    if not _INSTANTS[0] <= instant <= _INSTANTS[1]:
        raise _UnsureError
    return instant


def _no_date(column: MySqlColumn) -> str | None:
    """Return ``0000-00-00`` in the form of the column's treatment."""
    match column.treatment:
        case ValueTreatment.DATES_TEXT:
            clock = "" if column.shape.base == "date" else f" 00:00:00{_fraction(0, column.shape.fsp)}"
            return f"0000-00-00{clock}"
        case ValueTreatment.DATES_ERROR:
            raise _UnsureError
        case _:
            return None


def _duration(text: str, fsp: int) -> str:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise _UnsureError
    sign, hours, minutes, seconds, digits = found.groups()
    fraction = _microseconds(digits, fsp)
    parts = [int(hours), _within(int(minutes), 0, 60), _within(int(seconds or 0), 0, 60)]
    if (*parts, fraction) > (838, 59, 59, 0) or (sign and not any((*parts, fraction))):
        raise _UnsureError
    return f"{sign}{parts[0]:02}:{parts[1]:02}:{parts[2]:02}{_fraction(fraction, fsp)}"


def _microseconds(digits: str | None, fsp: int) -> int:
    """Return the microseconds of a fraction. If the column has fewer digits, servers differ in rounding or cutting."""
    written = (digits or "").ljust(6, "0")
    if written[fsp:].strip("0"):
        raise _UnsureError
    return int(written)


def _fraction(microseconds: int, fsp: int) -> str:
    return f".{microseconds:06}"[: fsp + 1] if fsp else ""


def _label(labels: tuple[str, ...], text: str, spelled: Spelled) -> str:
    """Return the label that the collation treats as equal to the text.

    Raises `_UnsureError` if several labels may be meant, because that depends on the collation.
    """
    if spelled is not Spelled.TEXT:
        raise _UnsureError
    folded = [_folded(label) for label in labels]
    wanted = _folded(text)
    if folded.count(wanted) != 1:
        raise _UnsureError
    return labels[folded.index(wanted)]


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.rstrip(" ").casefold())
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).casefold()


def _text(column: MySqlColumn, text: str, spelled: Spelled) -> str:
    if spelled is Spelled.NUMBER and not re.fullmatch(r"-?[1-9][0-9]{0,17}|0", text):
        raise _UnsureError
    base = column.shape.base
    if not text.isascii() and not all("\xa0" <= letter <= _LAST.get(column.charset, "") for letter in _beyond(text)):
        raise _UnsureError
    room = _TEXT_ROOM.get(base, column.shape.length if base in ("char", "varchar") else len(text))
    stored = text.rstrip(" ") if base == "char" else text
    if len(stored) > room:
        raise _UnsureError
    return stored


def _beyond(text: str) -> set[str]:
    """Return the non-ASCII characters; undecodable bytes of a statement count as the last character."""
    return {letter for letter in text if not letter.isascii()} - {"\ufffd"} | (
        {"\U0010ffff"} if "\ufffd" in text else set()
    )


def _binary(column: MySqlColumn, text: str, spelled: Spelled) -> str:
    base, length = column.shape.base, column.shape.length
    limited = base in ("binary", "varbinary")
    if spelled is not Spelled.TEXT or not text.isascii() or len(text) > (length if limited else 255):
        raise _UnsureError
    return text.ljust(length, "\0") if base == "binary" else text
