"""Values of Canal's ENUM and SET columns: the number of a label, or the bits of a set, become labels."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.formats.format_messages import batch, decode, decoder, failure, rows_of


def canal(value: Any, type_: str, *, old: Any = None) -> dict[str, Any]:
    told = {"database": "d", "table": "t", "isDdl": False, "es": 1, "mysqlType": {"id": "int", "v": type_}}
    row = {"id": "1", "v": value}
    if old is None:
        return {**told, "type": "INSERT", "data": [row], "old": None}
    return {**told, "type": "UPDATE", "data": [row], "old": [{"v": old}]}


ENUM, SET = "enum('new','it''s','a,b','2x')", "set('a','b','c')"


@pytest.mark.parametrize(
    ("type_", "value", "label"),
    [
        (ENUM, "1", "new"),
        (ENUM, "2", "it's"),
        (ENUM, 3, "a,b"),
        (ENUM, "0", ""),
        (ENUM, "", ""),
        (ENUM, "new", "new"),
        (ENUM, "it's", "it's"),
        (ENUM, "2x", "2x"),
        (ENUM, None, None),
        ("enum('a','\u00e4\u4e2d')", "2", "\u00e4\u4e2d"),
        (r"enum('a','x\\ty')", "2", r"x\ty"),
        ("ENUM('1','2','3')", "2", "2"),
        ("enum('100','200')", "100", "100"),
        ("enum('01','02')", "01", "01"),
        (SET, "0", ""),
        (SET, "", ""),
        (SET, "5", "a,c"),
        (SET, "7", "a,b,c"),
        (SET, "a,c", "a,c"),
        (SET, None, None),
        ("set('1','2')", "1", "1"),
        (f"set({','.join(repr(f'l{i}') for i in range(64))})", str(2**63 + 1), "l0,l63"),
        (f"set({','.join(repr('l' * 200 + str(i)) for i in range(64))})", str(2**64 - 1),
         ",".join("l" * 200 + str(i) for i in range(64))),
        (f"enum({','.join(repr(f'e{i}') for i in range(1, 5001))})", "4321", "e4321"),
    ],
)  # fmt: skip
def test_numbers_and_bits_become_labels(type_: str, value: Any, label: str | None) -> None:
    assert decode("canal-json", canal(value, type_)) == [("+I", {"id": 1, "v": label})]


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        ("enum('2','1')", "1", "is the number of one label, and another label itself"),
        ("enum('5','10','15','20','25')", "5", "is the number of one label, and another label itself"),
        ("set('2','4')", "2", "is the number of one label, and another label itself"),
        (ENUM, "5", "is neither the number of a label nor a label"),
        (SET, "8", "is neither the number of a label nor a label"),
        (SET, "99999999999999999999", "is neither the number of a label nor a label"),
        (ENUM, True, "is of another kind"),
        (ENUM, 1.5, "is of another kind"),
        (ENUM, {"a": 1}, "is of another kind"),
    ],
)
def test_a_value_of_two_meanings_or_none_is_a_bad_message(type_: str, value: Any, why: str) -> None:
    error = failure("canal-json", canal(value, type_))
    assert error.startswith("UnrepresentableValueError: ")
    assert why in error
    assert "column 'v'" in error


def test_the_option_says_how_values_are_spelled() -> None:
    message = canal("1", "enum('2','1')")
    assert decode("canal-json", message, labels="number") == [("+I", {"id": 1, "v": "2"})]
    assert decode("canal-json", message, labels="label") == [("+I", {"id": 1, "v": "1"})]
    assert decode("canal-json", canal("2", "set('2','4')"), labels="number") == [("+I", {"id": 1, "v": "4"})]


def test_both_images_and_new_labels_are_read_with_the_labels_of_their_message() -> None:
    grown = "enum('z','new')"
    messages = [canal("2", ENUM, old="1"), canal("2", grown, old="1"), canal("1", ENUM)]
    rows = [(op, row["v"]) for op, row in decode("canal-json", *messages)]
    assert rows == [("-U", "new"), ("+U", "it's"), ("-U", "z"), ("+U", "new"), ("+I", "new")]


def test_declared_columns_take_the_labels_of_the_message_or_their_own() -> None:
    for columns in ("id INT, v STRING", "id INT, v ENUM"):
        assert decode("canal-json", canal("2", ENUM), columns=columns) == [("+I", {"id": 1, "v": "it's"})]
    untold = {**canal("2", ENUM), "mysqlType": None}
    assert decode("canal-json", untold, columns="id INT, v ENUM('x','y')") == [("+I", {"id": 1, "v": "y"})]


def test_labels_are_kept_over_a_restart() -> None:
    first = decoder("canal-json", columns="id INT, v STRING")
    first.decode(batch([canal("1", ENUM)]))
    second = decoder("canal-json", columns="id INT, v STRING")
    second.restore_state(json.loads(json.dumps(first.snapshot_state())))
    untold = {**canal("2", ENUM), "mysqlType": None}
    assert rows_of(second.decode(batch([untold]))) == [("+I", {"id": 1, "v": "it's"})]


@pytest.mark.parametrize("number", ["-1", -1, 2**64, "99999999999999999999"])
def test_a_number_beyond_bigint_unsigned_is_none(number: Any) -> None:
    for name in ("canal-json", "json"):
        message = canal(number, "bigint unsigned") if name == "canal-json" else {"id": 1, "v": number}
        columns = {} if name == "canal-json" else {"columns": "id INT, v BIGINT UNSIGNED"}
        assert "is out of range" in failure(name, message, **columns)
    assert decode("canal-json", canal(str(2**64 - 1), "bigint unsigned"))[0][1]["v"] == 2**64 - 1
