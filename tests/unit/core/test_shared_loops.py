"""The compiled helpers that several packages share, against Python's own functions."""

from __future__ import annotations

import base64
import json
from datetime import date, timedelta
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raycdc.core.compiled import njit
from raycdc.core.loops.byte_loops import base64_text, hex_text
from raycdc.core.loops.calendar_loops import NO_DATE, civil_date, date_days
from raycdc.core.loops.number_loops import integer_text, multiply_add, negate, number_text, tenth
from raycdc.core.loops.string_loops import WIDEST, string_size, string_text
from raycdc.core.loops.utf8_loops import is_utf8, put_character

ROOM = 64


@njit
def as_hex(data: Any, out: Any) -> Any:
    return hex_text(data, np.int64(0), np.int64(len(data)), out, np.int64(0))


@njit
def as_base64(data: Any, out: Any) -> Any:
    return base64_text(data, np.int64(0), np.int64(len(data)), out, np.int64(0))


@njit
def as_string(data: Any, out: Any, five: Any) -> Any:
    end = string_text(data, np.int64(0), np.int64(len(data)), out, np.int64(0), five == 1)
    return end if end == string_size(data, np.int64(0), np.int64(len(data)), five == 1) else np.int64(-1)


@njit
def as_integer(value: Any, out: Any) -> Any:
    return integer_text(value, out, np.int64(0))


@njit
def as_number(value: Any, digits: Any, out: Any) -> Any:
    return number_text(value, digits, out, np.int64(0))


@njit
def is_text(data: Any) -> Any:
    return is_utf8(data, np.int64(0), np.int64(len(data)))


@njit
def as_character(point: Any, out: Any) -> Any:
    return put_character(point, out, np.int64(0))


@njit
def days(year: Any, month: Any, day: Any) -> Any:
    return date_days(year, month, day)


@njit
def civil(of: Any) -> Any:
    return civil_date(of)


@njit
def divided(words: Any) -> None:
    """(high, low) becomes a tenth of it, and the rest."""
    high, low, rest = tenth(words[0], words[1])
    words[0], words[1], words[2] = high, low, rest


@njit
def multiplied(words: Any, factor: Any, addend: Any) -> None:
    high, low = multiply_add(words[0], words[1], factor, addend)
    words[0], words[1] = high, low


@njit
def negated(words: Any) -> None:
    high, low = negate(words[0], words[1])
    words[0], words[1] = high, low


def array(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8).copy()


def room(data: bytes) -> Any:
    return np.zeros(WIDEST * len(data) + ROOM, np.uint8)


def wide(number: int) -> Any:
    return np.array([number >> 64, number & 0xFFFFFFFFFFFFFFFF, 0], np.uint64)


def number_of(words: Any) -> int:
    return int(words[0]) << 64 | int(words[1])


@given(st.binary(max_size=40))
def test_bytes_become_the_texts_of_the_standard_library(data: bytes) -> None:
    out = room(data)
    assert bytes(out[: as_hex(array(data), out)]) == data.hex().encode()
    assert bytes(out[: as_base64(array(data), out)]) == base64.b64encode(data)


@given(st.text(max_size=40) | st.text(alphabet='a"\\\b\f\n\r\t\x00\x1f é', max_size=40))
def test_strings_are_json_and_as_long_as_they_were_counted(text: str) -> None:
    data = text.encode(errors="replace")
    out = room(data)
    written = bytes(out[: as_string(array(data), out, 1)]).decode()
    assert written == json.dumps(data.decode(), ensure_ascii=False)
    without = bytes(out[: as_string(array(data), out, 0)]).decode()
    assert without == written.replace("\\\\", "\0").replace("\\b", "\\u0008").replace("\\f", "\\u000c").replace(
        "\0", "\\\\"
    )


@given(st.binary(max_size=24) | st.text(max_size=24).map(lambda text: text.encode(errors="replace")))
def test_utf8_is_what_python_decodes(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        assert not is_text(array(data))
    else:
        assert is_text(array(data))


@given(st.characters(exclude_categories=["Cs"]))
def test_a_character_is_written_as_python_encodes_it(character: str) -> None:
    out = np.zeros(8, np.uint8)
    assert bytes(out[: as_character(ord(character), out)]) == character.encode()


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(1, 25))
def test_numbers_are_decimal_digits(value: int, digits: int) -> None:
    out = np.zeros(ROOM, np.uint8)
    assert bytes(out[: as_integer(value, out)]).decode() == str(value)
    positive = abs(value) & ((1 << 62) - 1)
    assert bytes(out[: as_number(positive, digits, out)]).decode() == str(positive).zfill(digits)


@given(st.integers(0, (1 << 128) - 1), st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 31) - 1))
def test_wide_integers_are_exact(number: int, factor: int, addend: int) -> None:
    words = wide(number)
    divided(words)
    assert (number_of(words), int(words[2])) == divmod(number, 10)
    words = wide(number)
    multiplied(words, factor, addend)
    assert number_of(words) == (number * factor + addend) % (1 << 128)
    words = wide(number)
    negated(words)
    assert number_of(words) == -number % (1 << 128)


@given(st.dates(min_value=date(1970, 1, 1)))
def test_days_and_dates_are_those_of_the_calendar(day: date) -> None:
    number = (day - date(1970, 1, 1)).days
    assert days(day.year, day.month, day.day) == number
    assert civil(number) == (day.year, day.month, day.day)


@given(st.integers(1, 9999), st.integers(0, 14), st.integers(0, 33))
def test_a_date_that_does_not_exist_has_no_day(year: int, month: int, day: int) -> None:
    try:
        expected = (date(year, month, day) - date(1970, 1, 1)) // timedelta(days=1)
    except ValueError:
        expected = NO_DATE
    assert days(year, month, day) == expected
