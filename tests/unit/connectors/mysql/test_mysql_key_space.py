"""Laws of keys as numbers: there and back is the same key, and the order is kept."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from raycdc.connectors.mysql.snapshot.keys import KeyValue, from_number, to_number
from raycdc.connectors.mysql.values.types import MySqlColumn

DECIMAL = MySqlColumn("k", "decimal(38,4)")
MOMENT = MySqlColumn("k", "datetime(3)")
DAY = MySqlColumn("k", "date")
SPAN = MySqlColumn("k", "time(6)")
DOUBLE = MySqlColumn("k", "double")
BYTES = MySqlColumn("k", "varbinary(24)")
TEXT = MySqlColumn("k", "varchar(24)", "utf8mb4", "utf8mb4_bin")


def there_and_back(column: MySqlColumn, value: KeyValue) -> KeyValue | None:
    number = to_number(column, value)
    assert number is not None
    return from_number(column, number)


@given(st.integers(-(10**38) + 1, 10**38 - 1))
def test_decimals_come_back_with_all_digits(unscaled: int) -> None:
    text = from_number(DECIMAL, unscaled)
    assert isinstance(text, str)
    assert to_number(DECIMAL, text) == unscaled


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_come_back_and_keep_their_order(one: float, other: float) -> None:
    assert there_and_back(DOUBLE, one) == one
    first, second = to_number(DOUBLE, one), to_number(DOUBLE, other)
    assert first is not None
    assert second is not None
    assert (first < second) == (one < other)
    assert math.copysign(1, 0.0) == 1


@given(st.binary(max_size=24).map(lambda value: value.rstrip(b"\0")))
def test_bytes_come_back(value: bytes) -> None:
    assert there_and_back(BYTES, value) == value


@given(st.text(alphabet=[chr(code) for code in range(0x20, 0x7F)], max_size=24))
def test_plain_text_comes_back(value: str) -> None:
    assert there_and_back(TEXT, value) == value


@given(st.datetimes(), st.integers(0, 999))
def test_moments_come_back_and_have_no_digits_the_column_lacks(moment: object, millis: int) -> None:
    text = f"{str(moment)[:19]}.{millis:03}"
    assert there_and_back(MOMENT, text) == text + "000"
    number = to_number(MOMENT, text)
    assert number is not None
    assert from_number(MOMENT, number + 999) == text + "000"


def test_days_and_spans_come_back() -> None:
    assert there_and_back(DAY, "2024-02-29") == "2024-02-29"
    assert there_and_back(SPAN, "-838:59:58.000001") == "-838:59:58.000001"
    assert there_and_back(SPAN, "12:00:00") == "12:00:00.000000"


def test_a_date_that_no_calendar_has_is_no_number() -> None:
    assert to_number(DAY, "2024-00-10") is None
