"""Messages that are damaged, unknown or do not fit: named, quoted, placed; and what JSON allows that few expect."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from raycdc.formats.api import CorruptMessageError, MessageBatch, Origin, RowsItem, UnknownTypeError
from tests.unit.formats.format_messages import Message, batch, decode, decoder, failure, rows_of

LONG = "1234567890123456789012345678.0123456789"


def insert(data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"database": "d", "table": "t", "type": "insert", "ts": 1, "data": data, **more}


def text_of(column: str, body: str) -> list[Any]:
    """The values of column v in Maxwell messages whose data is the given JSON text."""
    message = '{"database":"d","table":"t","type":"insert","ts":1,"data":' + body + "}"
    return [row["v"] for _, row in decode("maxwell-json", message, columns=f"v {column}")]


def test_a_corrupt_message_is_told_by_its_place_after_the_rows_before_it() -> None:
    decoded = decoder("maxwell-json").decode(batch([insert({"id": 1}), '{"database": "d", ', insert({"id": 2})]))
    assert rows_of(decoded) == [("+I", {"id": 1})]
    assert isinstance(decoded.failure, CorruptMessageError)
    assert str(decoded.failure) == "topic/3@2: corrupt message: it ends in the middle at byte 18"


def test_an_unknown_type_is_another_error() -> None:
    decoded = decoder("maxwell-json").decode(batch([insert({"id": 1}, type="upsert")]))
    assert isinstance(decoded.failure, UnknownTypeError)
    assert str(decoded.failure).startswith("topic/3@1: unknown type; known are insert, bootstrap-insert, ")
    assert failure("debezium-json", {"before": None, "after": {}}).startswith(
        "UnknownTypeError: topic/3@1: the field 'op'"
    )


@pytest.mark.parametrize(
    "message",
    ['{"a": "planted', json.dumps(insert({"v": "planted"})), json.dumps(insert({"v": 1}, type="planted"))],
    ids=["corrupt", "unfit", "unknown"],
)
@pytest.mark.parametrize("kept", [False, True])
def test_an_error_quotes_nothing_of_its_message(message: str, kept: bool) -> None:
    read = decoder("maxwell-json", columns="v INT", on_error="dead-letter" if kept else "fail")
    decoded = read.decode(batch([message]))
    error = decoded.bad[0].error if kept else decoded.failure
    assert str(error).startswith("topic/3@1: ")
    assert "planted" not in str(error)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("[1]", "it is no JSON object"),
        ('{"a": 1} x', "something follows the JSON value"),
        ('{"a" 1}', "a colon is expected"),
        ('{"a": 01}', "a comma or a closing bracket is expected"),
        ('{"a": 1.}', "a malformed number"),
        ('{"a": NaN}', "a JSON value is expected"),
        ('{"a": 1,}', "a key in double quotes is expected"),
        ('{"a": "\\x"}', "an unknown or incomplete escape sequence"),
        (b'{"a": "\x01"}', "a control character in a string"),
        (b'{"a": "\xff"}', "bytes that are no UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "bytes that are no UTF-8"),
        ("[" * 200, "nested deeper than 128 levels"),
    ],
)
def test_damage_has_its_words(message: str | bytes, why: str) -> None:
    assert f"corrupt message: {why}" in failure("json", message)


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("TINYINT", 128, "is out of range"),
        ("BIGINT", 2**63, "is out of range"),
        ("INT", "12x", "is no number"),
        ("INT", 1.5, "has more digits after the point than the type holds"),
        ("INT", {"a": 1}, "is of another kind"),
        ("DECIMAL(4,2)", "100.00", "is out of range"),
        ("DECIMAL(4,2)", "1.001", "has more digits after the point than the type holds"),
        ("DATE", "yesterday", "is no date or time"),
        ("DATETIME", "2020-01-01 25:00:00", "is no date or time"),
        ("VARBINARY(9)", "a", "is no base64"),
        ("VARCHAR(9)", "\ud800", "has half of a surrogate pair"),
        ("BOOLEAN", "maybe", "is of another kind"),
        ("BIT(3)", 8, "is out of range"),
        ("DOUBLE", "1e400", "is out of range"),
        ("DOUBLE", "-1e-400", "is closer to 0 than any number of the type but 0 itself"),
        ("FLOAT", 1e300, "is out of range"),
        ("FLOAT", 1e-60, "is closer to 0 than any number of the type but 0 itself"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_never_bent(column: str, value: Any, why: str) -> None:
    text = failure("maxwell-json", json.dumps(insert({"v": value})), columns=f"v {column}")
    assert text.startswith("UnrepresentableValueError: topic/3@1: table d.t, column 'v': ")
    assert why in text


@pytest.mark.parametrize(
    ("column", "body", "expected"),
    [
        ("TEXT", r'{"v":"\u00fc\ud83d\ude00\n\"\\\/"}', 'ü😀\n"\\/'),
        ("TEXT", '{"v":[1, {"a":null}]}', '[1, {"a":null}]'),
        ("TEXT", '{"v":1.50}', "1.50"),
        ("BIGINT", '{"v":-9223372036854775808}', -(2**63)),
        ("BIGINT", '{"v":"9223372036854775807"}', 2**63 - 1),
        ("BIGINT", '{"v":1.0e3}', 1000),
        ("BIGINT UNSIGNED", '{"v":18446744073709551615}', Decimal(2**64 - 1)),
        (
            "DECIMAL(38,10)",
            '{"v":1234567890123456789012345678.0123456789}',
            Decimal("1234567890123456789012345678.0123456789"),
        ),
        ("DECIMAL(38,0)", '{"v":-1e37}', Decimal(-(10**37))),
        ("DECIMAL(5,2)", '{"v":1.5000}', Decimal("1.50")),
        ("DOUBLE", '{"v":0.1}', 0.1),
        ("DOUBLE", '{"v":1.7976931348623157e308}', 1.7976931348623157e308),
        ("DOUBLE", '{"v":123456789012345678}', 123456789012345678.0),
        ("DOUBLE", '{"v":5e-324}', 5e-324),
        ("DOUBLE", '{"v":-0.000e-400}', 0.0),
        ("DOUBLE", '{"v":"-Infinity"}', float("-inf")),
        ("FLOAT", '{"v":1e-45}', 1.401298464324817e-45),
        ("BIGINT", '{"v":1,"v":2}', 2),
        ("BIGINT", r'{"\u0076":5}', 5),
        ("BIGINT", '{"V":7,"unknown":[{}]}', 7),
        ("BIGINT", '{"v":1,"V":7}', 1),
        ("BIGINT", '{"V":7,"v":null}', None),
        ("DATE", '{"v":"0000-00-00"}', None),
        ("DATE", '{"v":"2021-00-10"}', None),
    ],
)
def test_what_json_allows(column: str, body: str, expected: Any) -> None:
    assert text_of(column, body) == [expected]


def test_a_number_that_no_double_holds_keeps_its_digits_where_types_come_from_the_messages() -> None:
    bodies = ('{"v":1.5}', '{"v":1e-400}', '{"v":1e400}')
    raws = [f'{{"database":"d","table":"t","type":"insert","ts":1,"data":{body}}}' for body in bodies]
    assert [row["v"] for _, row in decode("maxwell-json", *raws)] == ["1.5", "1e-400", "1e400"]


@pytest.mark.parametrize(
    ("spelled", "value", "expected"),
    [
        ("SERIAL", str(2**64 - 1), Decimal(2**64 - 1)),
        ("serial", "1", Decimal(1)),
        ("INT4 UNSIGNED", "4294967295", 2**32 - 1),
        ("middleint", "1", 1),
        ("DOUBLE PRECISION", "1.5", 1.5),
        ("FLOAT8", "1.5", 1.5),
        ("CHARACTER VARYING(20)", "x", "x"),
        ("NATIONAL VARCHAR(20)", "x", "x"),
        ("LONG VARCHAR", "x", "x"),
        ("LONG VARBINARY", "x", b"x"),
        ("numeric(0)", "7", 7),
    ],
)
def test_canal_may_spell_a_type_as_the_statement_did(spelled: str, value: str, expected: Any) -> None:
    message = {"database": "d", "table": "t", "type": "INSERT", "es": 1, "data": [{"v": value}], "pkNames": None}
    assert [row["v"] for _, row in decode("canal-json", {**message, "mysqlType": {"v": spelled}})] == [expected]


def test_a_table_of_texts_alone_has_its_columns() -> None:
    for keep in (True, False):
        found = decode("maxwell-json", insert({"v": "a"}), insert({"v": "b", "w": "c"}), keep=keep)
        assert found == [("+I", {"v": "a", "w": None}), ("+I", {"v": "b", "w": "c"})]


@pytest.mark.parametrize(
    "body",
    [
        {"type": "what is this"},
        {"type": None},
        {"type": "insert", "data": 5},
        {"type": "insert", "data": {"v": "no number"}},
        {"type": "delete", "data": [[]]},
    ],
)
def test_what_is_wrong_with_a_table_that_is_left_out_does_not_matter(body: dict[str, Any]) -> None:
    bad = json.dumps({"database": "d", "table": "other", "ts": 1, **body})
    good = insert({"v": 1})
    for left_out in ({"exclude": ["d.other"]}, {"include": ["d.t"]}):
        assert [row["v"] for _, row in decode("maxwell-json", bad, good, columns="v BIGINT", **left_out)] == [1]
    assert failure("maxwell-json", json.dumps({"database": "d", "table": "t", "ts": 1, **body}), columns="v BIGINT")


def test_names_in_another_case_can_be_refused_as_columns() -> None:
    assert decode("maxwell-json", insert({"V": 1}), columns="v INT", case_sensitive=True) == [("+I", {"v": None})]


def test_bad_messages_are_skipped_or_set_aside() -> None:
    messages: list[Message] = [insert({"v": 1}), "{", insert({"v": "x"}), insert({"v": 2}), insert({"v": 3}, type="?")]
    skipped = decoder("maxwell-json", columns="v INT", on_error="skip").decode(batch(messages))
    assert ([row["v"] for _, row in rows_of(skipped)], skipped.bad, skipped.failure) == ([1, 2], (), None)
    aside = decoder("maxwell-json", columns="v INT", on_error="dead-letter").decode(
        batch(messages, keys=[b"a", b"b", b"c", b"d", b"e"])
    )
    assert [row["v"] for _, row in rows_of(aside)] == [1, 2]
    assert sorted((bad.offset, bad.key, type(bad.error).__name__) for bad in aside.bad) == [
        (2, b"b", "CorruptMessageError"),
        (3, b"c", "UnrepresentableValueError"),
        (5, b"e", "UnknownTypeError"),
    ]


def test_a_message_with_one_bad_row_gives_none_of_its_rows() -> None:
    message = {"data": [{"v": "1"}, {"v": "x"}], "database": "d", "table": "t", "type": "INSERT", "old": None}
    good = {**message, "data": [{"v": "3"}]}
    decoded = decoder("canal-json", columns="v INT", on_error="skip").decode(batch([message, good]))
    assert rows_of(decoded) == [("+I", {"v": 3})]


def test_nothing_after_a_failure_comes_out_whatever_the_table() -> None:
    messages: list[Message] = [insert({"v": i}, table="abc"[i % 3]) for i in range(30)]
    messages[16] = insert({"v": "x"}, table="b")
    decoded = decoder("maxwell-json", columns="v INT").decode(batch(messages))
    assert [row["v"] for _, row in rows_of(decoded)] == list(range(16))


def test_large_batches_and_values_grow_the_buffers() -> None:
    rows = 70_000
    messages: list[Any] = [insert({"id": i, "s": "x" * (i % 50)}) for i in range(rows)]
    messages.append(insert({"id": rows, "s": "y" * 3_000_000}))
    decoded = decoder("maxwell-json").decode(batch(messages))
    found = rows_of(decoded)
    assert [row["id"] for _, row in found] == list(range(rows + 1))
    assert all(len(row["s"]) == i % 50 for i, (_, row) in enumerate(found[:-1]))
    assert found[-1][1]["s"] == "y" * 3_000_000
    assert sum(isinstance(item, RowsItem) for item in decoded.items) > 1


def test_cutting_a_stream_anywhere_gives_the_same_rows() -> None:
    messages: list[Any] = [insert({"id": i, "n": None if i < 5 else i / 2}) for i in range(12)]
    whole = rows_of(decoder("maxwell-json").decode(batch(messages)))
    for cut in range(1, 12):
        first = decoder("maxwell-json")
        rows = rows_of(first.decode(batch(messages[:cut])))
        second = decoder("maxwell-json")
        second.restore_state(json.loads(json.dumps(first.snapshot_state())))
        rows += rows_of(second.decode(batch(messages[cut:], first=cut + 1)))
        assert rows == whole


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)


@given(st.lists(_JSON, min_size=1, max_size=3), st.booleans())
@settings(max_examples=25)
def test_any_json_value_passes_through_unchanged(values: list[Any], ascii_only: bool) -> None:
    texts = [json.dumps({"v": value}, ensure_ascii=ascii_only) for value in values]
    for value, (_, row) in zip(values, decode("json", *texts, columns="v JSON"), strict=True):
        assert (None if row["v"] is None else json.loads(row["v"])) == value


def _python_accepts(message: bytes) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        found = json.loads(message.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict)


_SEED = json.dumps({"a": [1, -2.5e3, "x\\u00e9\n"], "b": {"c": None, "d": True}, "é": "€"}, ensure_ascii=False).encode()


@given(st.data())
@settings(max_examples=80)
def test_mutated_messages_are_taken_exactly_when_they_are_json(data: st.DataObject) -> None:
    message = bytearray(_SEED)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message) - 1))
        match data.draw(st.sampled_from(("flip", "drop", "insert", "cut"))):
            case "flip":
                message[at] = data.draw(st.integers(0, 255))
            case "drop" if len(message) > 1:
                del message[at]
            case "insert":
                message.insert(at, data.draw(st.sampled_from(b'{}[]",:\\ 0e.-ntf\xe2')))
            case "cut":
                del message[max(at, 1) :]
    decoded = decoder("json", columns="zzz JSON").decode(batch([bytes(message)]))
    assert (decoded.failure is None and decoded.tombstones == 0) == _python_accepts(bytes(message)) or (
        bytes(message).strip() in (b"null", b"")
    )


@given(st.lists(st.binary(max_size=60), max_size=6))
@example([b'{"type":"insert","data":[[]],"old":3}'])
@example([b'{"type":"update","data":{"a":1},"old":[{"a":2}]}'])
@settings(max_examples=25)
def test_arbitrary_bytes_never_break_a_decoder(messages: list[bytes]) -> None:
    for name in ("maxwell-json", "canal-json", "debezium-json", "ogg-json", "json"):
        values = pa.array(messages, pa.binary())
        decoded = decoder(name, on_error="skip").decode(MessageBatch(Origin("t"), values, np.arange(len(messages))))
        assert decoded.failure is None
