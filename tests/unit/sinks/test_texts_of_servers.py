"""Texts of servers and libraries have no values when they are passed on."""

from __future__ import annotations

import pytest

from raycdc.model.redaction import without_quotations
from raycdc.sinks.delta.table_constraints import without_values
from raycdc.sinks.jdbc.refusals import postgres_grant, without_quoted, without_value

MYSQL = [
    (1062, "Duplicate entry 'planted-41' for key 't.mail'", "Duplicate entry '…' for key 't.mail'"),
    (1062, "Duplicate entry 'it's planted' for key 'mail'", "Duplicate entry '…' for key 'mail'"),
    (1264, "Out of range value for column 'a' at row 1", "Out of range value for column 'a' at row 1"),
    (1292, "Truncated incorrect DOUBLE value: 'planted'", "Truncated incorrect DOUBLE value: '…'"),
    (1366, r"Incorrect string value: '\xF0\x9F' for column `d`.`t`.`a` at row 1",
     "Incorrect string value: '…' for column `d`.`t`.`a` at row 1"),
    (1411, "Incorrect datetime value: 'planted' for function str_to_date",
     "Incorrect datetime value: '…' for function str_to_date"),
    (1690, "BIGINT value is out of range in '(`d`.`t`.`a` + 41)'", "BIGINT value is out of range in '…'"),
    (1064, "You have an error in your SQL syntax; check the manual near 'VALUES ('planted')' at line 1",
     "You have an error in your SQL syntax; check the manual near '…' at line 1"),
    (1644, "no planted here", "a trigger or routine there refuses the row"),
]  # fmt: skip

POSTGRES = [
    ("22P02", 'invalid input syntax for type integer: "planted"', 'invalid input syntax for type integer: …'),
    ("22003", 'value "4100" is out of range for type smallint', "value … is out of range for type smallint"),
    ("22008", 'date/time field value out of range: "0000-00-41"', "date/time field value out of range: …"),
    ("22021", 'invalid byte sequence for encoding "UTF8": 0xe2 0x82', 'invalid byte sequence for encoding "UTF8": …'),
    ("23505", 'duplicate key value violates unique constraint "t_pkey"',
     'duplicate key value violates unique constraint "t_pkey"'),
    ("P0001", "no planted here", "a trigger or function there refuses the row"),
]  # fmt: skip


def test_a_privilege_that_lacks_at_postgresql_comes_with_its_grant() -> None:
    def advice(text: str, sqlstate: str = "42501") -> str:
        return postgres_grant(sqlstate, text, '"me"')

    assert advice("permission denied for schema public").endswith('GRANT USAGE, CREATE ON SCHEMA public TO "me";')
    assert advice("permission denied for database shop").endswith('GRANT CREATE ON DATABASE shop TO "me";')
    assert advice("permission denied for table t").endswith('SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t TO "me";')
    assert advice("must be owner of table t") == ""
    assert advice("permission denied for table t", "42P01") == ""


@pytest.mark.parametrize(("code", "text", "told"), MYSQL)
def test_a_text_of_mysql(code: int, text: str, told: str) -> None:
    assert without_value(text, code) == told


@pytest.mark.parametrize(("state", "text", "told"), POSTGRES)
def test_a_text_of_postgresql(state: str, text: str, told: str) -> None:
    assert without_quoted(state, text) == told


@pytest.mark.parametrize(
    "text",
    [
        '[CAST_INVALID_INPUT] The value \'planted\' of the type "STRING" cannot be cast to "INT"',
        '[CAST_OVERFLOW] The value 4141L of the type "BIGINT" cannot be cast to "INT" due to an overflow.',
        '[DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value "planted" exceeds char/varchar type length limitation.',
        "Cast error: Cannot cast string 'planted' to value of Int32 type",
        "CHECK constraint c (a > 0) violated by row with values:\n - a : 4141",
        'Invariant violations: ["Check or Invariant (a > 0) violated by value in row: [4141]"]',
    ],
)
def test_a_text_of_a_lake(text: str) -> None:
    assert "planted" not in without_values(text)
    assert "4141" not in without_values(text)


def test_a_text_of_arrow() -> None:
    assert without_quotations("Integer value 4141 not in range: -128 to 127") == (
        "Integer value … not in range: … to …"
    )
    assert without_quotations("Failed to parse string: 'planted' as a scalar of type int32") == (
        "Failed to parse string: … as a scalar of type int32"
    )
