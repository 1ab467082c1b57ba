"""Key values as whole numbers, to compute with: where is the middle of two keys, what lies a step further?

`to_number` and `from_number` are inverse enough to aim with, and keep the order of most keys; nothing is ever decided
by them. Text is the weakest: its collation's order is guessed from the characters, and `from_number` gives a text to
look from, not a key (`exact` says which).
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal

from raycdc.connectors.mysql.snapshot.keys import KeyKind, KeyValue, key_kind
from raycdc.connectors.mysql.values.types import MySqlColumn

#: Bytes and characters looked at; keys that differ only behind them count as equal here.
_BYTES = 24
_CHARACTERS = 24
#: Characters are counted from the space to the tilde; others count as the nearest of these.
_FIRST, _LAST = 0x20, 0x7E
_BASE = _LAST - _FIRST + 2
_SIGN = 1 << 63
_EPOCH = dt.datetime(1, 1, 1, tzinfo=dt.UTC)


def exact(column: MySqlColumn) -> bool:
    """Whether `from_number` gives values that can be bounds as they are."""
    return key_kind(column) is not KeyKind.TEXT


def to_number(column: MySqlColumn, value: KeyValue) -> int | None:
    """A whole number for `value`; None when there is none (a date that no calendar has)."""
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
    """The value at `number`, or None when the column has none there."""
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
    """Without digits the column does not have: the server would round a bound to it, and the log reader would not."""
    unit = 86_400_000_000 if column.shape.base == "date" else 10 ** (6 - column.logical().fsp)
    return micros // unit * unit


def _time_at(number: int) -> str:
    sign, number = ("-", -number) if number < 0 else ("", number)
    seconds, micros = divmod(number, 1_000_000)
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"


def _scale(column: MySqlColumn) -> int:
    return column.logical().scale
